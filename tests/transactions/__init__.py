"""Concurrent transactions, kills and a bad network, and a judge: `python -m tests.transactions`."""
