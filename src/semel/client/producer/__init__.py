"""The idempotent producer: a pure core, a pump on an event loop, and two facades."""
