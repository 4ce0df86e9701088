"""The broker: decides commands, writes their frames, and replies once they are durable."""
