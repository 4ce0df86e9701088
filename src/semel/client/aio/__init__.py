"""The client for asyncio. `semel.client.sync` is generated from the modules of this package.

What differs between threads and tasks is therefore not here but written twice by hand: in the flow
drivers (`async_driver`, `sync_driver`) and in `producer`.
"""
