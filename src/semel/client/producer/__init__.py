"""The idempotent producer: it stores each message once and in order, despite failures."""
