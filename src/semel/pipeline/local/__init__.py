"""The local engine: one process, one transaction per step."""
