"""How long a stream is kept: which offsets it or its forks still need, and when it expires."""

from typing import Final

from semel.machine.state import State, Stream

OFFSET_MAX: Final = 1 << 63


def retained_range(state: State, stream: Stream, starts: dict[int, int]) -> tuple[int, int]:
    """Return the offsets of a stream that it or any fork of it still needs: from, up to.

    `starts` caches the first of them per stream, over several calls on the same state.
    """
    start = retained_from(state, stream, starts)
    if not stream.tail.is_deleted:
        return start, OFFSET_MAX
    forks = [_fork_start(state.by_number[number]) for number in stream.forks or ()]
    return start, max(forks, default=0)


def retained_from(state: State, stream: Stream, starts: dict[int, int]) -> int:
    """Return the first offset of a stream that it or any fork of it still needs."""
    if stream.row.number in starts:
        return starts[stream.row.number]
    start = stream.tail.tail if stream.tail.is_deleted else stream.tail.head
    for number in stream.forks or ():
        fork = state.by_number[number]
        needed = retained_from(state, fork, starts)
        if needed < _fork_start(fork):
            start = min(start, needed)
    starts[stream.row.number] = start
    return start


def _fork_start(fork: Stream) -> int:
    assert fork.row.fork is not None
    return fork.row.fork.start


def is_expired(stream: Stream, touched_ms: int, *, now_ms: int, time_ms: int) -> bool:
    """Return whether a stream has expired, if it was last used at `touched_ms`.

    A date is compared with the clock, a window with the time of the journal, which never goes back:
    a clock that once jumped far ahead must not end streams whose date is still to come.
    """
    row = stream.row
    if row.expires_at_ms is not None and now_ms >= row.expires_at_ms:
        return True
    return row.ttl_ms is not None and time_ms >= window_end_ms(stream, touched_ms)


def window_end_ms(stream: Stream, touched_ms: int) -> int:
    """Return when the sliding window of a stream with a TTL ends."""
    assert stream.row.ttl_ms is not None
    return max(stream.tail.written_ms, touched_ms) + stream.row.ttl_ms
