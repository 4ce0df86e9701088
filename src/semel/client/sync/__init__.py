"""The client for programs that block, generated from `semel.client.aio` by `make facades`."""
