"""The one writer: commands in, frames to the journal, answers out when they are durable."""
