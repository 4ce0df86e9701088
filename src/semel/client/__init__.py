"""The Python client, in a version for threads and a version for asyncio.

Both versions share the code that decides which requests to send (`flows`).
"""
