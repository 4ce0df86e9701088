"""The client for asyncio. `semel.client.sync` is generated from the modules in this package.

Code that differs between threads and tasks is therefore not in this package. It is written by hand
in the flow drivers (`async_driver`, `sync_driver`) and in the package `producer`.
"""
