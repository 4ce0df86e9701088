"""The idempotent producer: each message stored once and in order, despite failures."""
