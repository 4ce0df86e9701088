"""The client for asyncio. `semel.client.sync` is generated from the modules of this package.

So these modules contain only code that is the same for threads and tasks. Code that differs is
written by hand for each: in the flow drivers (`async_driver`, `sync_driver`) and in `producer`.
"""
