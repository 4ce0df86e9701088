"""The broker, which decides commands and replies when they are durable, and the engine."""
