"""The clients, the bad network and the killed server, all at once: `python -m tests.faults`."""
