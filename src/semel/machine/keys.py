"""Idempotency keys: once per key, for a stated window."""

from semel.machine.rows import KeyRow
from semel.machine.state import State, Stream
from semel.model.outcomes import Duplicate, KeyReused, Outcome


def judge_key(
    state: State, stream: Stream, key: str, *, digest: int, now_ms: int
) -> Outcome | None:
    """Answer a key seen within the window; None if it is new."""
    row = stream.keys.get(key) if stream.keys else None
    if row is None or is_over(state, row, state.frame_time(now_ms)):
        return None
    if row.digest != digest:
        return KeyReused()
    return Duplicate(row.first_offset, row.next_offset, stream.tail.is_closed)


def is_over(state: State, row: KeyRow, time_ms: int) -> bool:
    """Tell whether a key's window has passed."""
    return time_ms >= row.time_ms + state.limits.key_window_ms


def remember_key(state: State, stream: Stream, key: str, row: KeyRow) -> None:
    """Store a key's answer and let go of those beyond the window. Called by `apply` only."""
    if stream.keys is None:
        stream.keys = {}
    keys, number = stream.keys, stream.row.number
    keys.pop(key, None)
    keys[key] = row
    stream.next_key = row.number + 1
    state.dirty.keys[number, key] = row
    while True:
        oldest = next(iter(keys))
        if len(keys) <= state.limits.keys and not is_over(state, keys[oldest], row.time_ms):
            return
        del keys[oldest]
        state.dirty.keys[number, oldest] = None
