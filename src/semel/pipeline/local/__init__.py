"""The local engine, which runs in one process, and the loop that both engines use."""
