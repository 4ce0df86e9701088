"""The local engine, which runs in one process, and the processing loop that all engines use."""
