"""The broker and the engine.

The broker decides the outcome of each command, and replies when the outcome is durable. The engine
runs the broker on a data directory.
"""
