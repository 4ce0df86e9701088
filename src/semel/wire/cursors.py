"""Cursors: interval numbers that keep caches from answering a live reader for ever (1.9)."""

from typing import Final

from semel.model.limits import NUMBER_MAX

_EPOCH_MS: Final = 1_728_432_000_000  # 2024-10-09T00:00:00Z
_INTERVAL_MS: Final = 20_000
_INTERVAL_S: Final = _INTERVAL_MS // 1000
JITTER_S_MAX: Final = 3600


def parse_cursor(text: str | None) -> int | None:
    """Read the cursor a client sends back; None if there is none or it is none of ours."""
    if text is None or len(text) > 16 or not (text.isascii() and text.isdigit()):
        return None
    return min(int(text), NUMBER_MAX)


def next_cursor(given: int | None, *, now_ms: int, jitter_s: int) -> int:
    """Give out a cursor: the current interval, or one past the client's if that is not older.

    `jitter_s` is a random number from 1 to 3600.
    """
    current = max(0, (now_ms - _EPOCH_MS) // _INTERVAL_MS)
    if given is None or given < current:
        return current
    return given + max(1, -(-jitter_s // _INTERVAL_S))
