"""Tests of all clients on a faulty network, with a killed server: `python -m tests.faults`."""
