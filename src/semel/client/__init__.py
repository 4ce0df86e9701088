"""The Python client, in a version for threads and a version for asyncio.

Both versions run the same flows, and both use plain HTTP.
"""
