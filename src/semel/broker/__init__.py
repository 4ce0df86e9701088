"""The broker and the engine.

The broker decides commands, and replies to each one when its outcome is durable. The engine runs
the broker on a data directory.
"""
