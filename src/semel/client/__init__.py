"""The Python client: plain HTTP, no server parts, sync and async from one set of flows."""
