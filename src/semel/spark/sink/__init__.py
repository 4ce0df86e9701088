"""The sink: rows staged by tasks, committed once per batch by the driver."""
