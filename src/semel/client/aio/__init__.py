"""The client for asyncio. `semel.client.sync` is generated from the modules in this package.

These modules therefore contain only code that is the same for threads and for tasks. Code that
differs is written by hand, once for threads and once for tasks. It is in the flow drivers
(`async_driver`, `sync_driver`) and in the package `producer`.
"""
