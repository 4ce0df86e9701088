"""The Python client, for threads and for asyncio: both run the same flows, over plain HTTP."""
