"""Concurrent transactions under kills and network faults: `python -m tests.transactions`."""
