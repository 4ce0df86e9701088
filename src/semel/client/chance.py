"""The client's door for chance."""

import os


def share() -> float:
    """Draw a number from 0 to 1."""
    return int.from_bytes(os.urandom(2), "big") / 65_536


def jitter(seconds: float) -> float:
    """Shorten a pause by up to half, so that many clients do not all come back at once."""
    return seconds * (0.5 + share() / 2)


def fresh_id() -> str:
    """Draw a name nobody has used."""
    return os.urandom(16).hex()
