"""The state: every table the journal folds into, and what changed since the last checkpoint."""

from typing import Final

import msgspec
from msgspec import Struct

from semel.machine.rows import KeyRow, MetaRow, ProducerRow, RegistryRow, StreamRow, TailRow
from semel.model import limits as default

EVERYTHING: Final = 1 << 63


class MachineLimits(Struct, frozen=True):
    """The limits a deployment may set; part of the machine's behaviour, so keep them stable."""

    receipts: int = default.RECEIPTS_DEFAULT
    streams: int = default.STREAMS_MAX
    producers_per_stream: int = default.PRODUCERS_PER_STREAM_MAX
    keys: int = default.IDEMPOTENCY_KEYS_MAX
    key_window_ms: int = default.IDEMPOTENCY_WINDOW_MS
    registry: int = default.REGISTRY_MAX

    def __post_init__(self) -> None:
        if min(msgspec.structs.astuple(self)) < 1:
            raise ValueError("every limit must be at least 1")


class Stream(Struct, gc=False, eq=False):
    """One stream: frozen rows behind a mutable holder.

    There may be a million of these; the garbage collector has no business walking them.
    """

    row: StreamRow
    tail: TailRow
    producers: dict[str, ProducerRow] | None = None
    keys: dict[str, KeyRow] | None = None
    next_key: int = 0
    forks: set[int] | None = None


class Dirty:
    """The rows changed since the last checkpoint, by table; None means removed.

    `dropped` streams are gone with all their rows; of `pruned` ones some data may be.
    """

    __slots__ = ("dropped", "keys", "producers", "pruned", "registry", "streams", "tails")

    def __init__(self) -> None:
        self.streams: dict[int, StreamRow] = {}
        self.tails: dict[int, TailRow] = {}
        self.producers: dict[tuple[int, str], ProducerRow | None] = {}
        self.keys: dict[tuple[int, str], KeyRow | None] = {}
        self.registry: dict[str, RegistryRow] = {}
        self.dropped: set[int] = set()
        self.pruned: set[int] = set()

    def absorb(self, older: "Dirty") -> None:
        """Take back what an abandoned checkpoint was to store; newer rows win."""
        self.streams = older.streams | self.streams
        self.tails = older.tails | self.tails
        self.producers = older.producers | self.producers
        self.keys = older.keys | self.keys
        self.registry = older.registry | self.registry
        self.dropped |= older.dropped
        self.pruned |= older.pruned


class State:
    """The fold of the journal.

    `touched` collects the streams that the last `apply` changed; whoever calls it empties the list.
    `live_producers` counts the producers of all streams that are no tombstones.
    """

    __slots__ = (
        "by_number",
        "by_path",
        "dirty",
        "limits",
        "live_producers",
        "next_producer",
        "next_stream",
        "registry",
        "time_ms",
        "touched",
    )

    def __init__(self, limits: MachineLimits | None = None) -> None:
        self.limits: Final = limits or MachineLimits()
        self.by_path: dict[str, Stream] = {}
        self.by_number: dict[int, Stream] = {}
        self.registry: dict[str, RegistryRow] = {}
        self.next_stream = 1
        self.next_producer = 1
        self.time_ms = 0
        self.live_producers = 0
        self.dirty = Dirty()
        self.touched: list[Stream] = []

    def frame_time(self, now_ms: int) -> int:
        """Tell the time of a frame written now: it never goes back."""
        return now_ms if now_ms > self.time_ms else self.time_ms

    def take_dirty(self) -> Dirty:
        """Hand over what changed and start collecting anew."""
        dirty, self.dirty = self.dirty, Dirty()
        return dirty

    def meta_row(self) -> MetaRow:
        """Freeze the counters."""
        return MetaRow(self.next_stream, self.next_producer, self.time_ms)

    # ---- loading a checkpoint; rows arrive in any order within a table, streams first ----

    def load_meta(self, row: MetaRow) -> None:
        """Restore the counters."""
        self.next_stream, self.next_producer = row.next_stream, row.next_producer
        self.time_ms = row.time_ms

    def load_stream(self, row: StreamRow, tail: TailRow) -> None:
        """Restore a stream."""
        stream = Stream(row, tail)
        self.by_number[row.number] = stream
        self.by_path[row.path] = stream

    def load_producer(self, number: int, producer_id: str, row: ProducerRow) -> None:
        """Restore a producer."""
        stream = self.by_number[number]
        if stream.producers is None:
            stream.producers = {}
        stream.producers[producer_id] = row
        self.live_producers += not row.is_expired

    def load_key(self, number: int, key: str, row: KeyRow) -> None:
        """Restore an idempotency key."""
        stream = self.by_number[number]
        if stream.keys is None:
            stream.keys = {}
        stream.keys[key] = row

    def load_links(self) -> None:
        """Restore what is derived: who forks whom, and the order of keys."""
        for number, stream in self.by_number.items():
            if stream.row.fork is not None:
                add_fork(self.by_number[stream.row.fork.source], number)
            if stream.keys:
                ordered = sorted(stream.keys.items(), key=lambda item: item[1].number)
                stream.keys = dict(ordered)
                stream.next_key = ordered[-1][1].number + 1


def live_producers(stream: Stream) -> int:
    """Count a stream's producers that are no tombstones."""
    return sum(not row.is_expired for row in (stream.producers or {}).values())


def add_fork(source: Stream, number: int) -> None:
    """Note that stream `number` reads from `source`."""
    if source.forks is None:
        source.forks = set()
    source.forks.add(number)


def kept_range(state: State, stream: Stream, known: dict[int, int]) -> tuple[int, int]:
    """Find the offsets of a stream that it or any fork of it still reads: from, up to.

    `known` remembers what was found for others on the way.
    """
    if not stream.tail.is_deleted:
        return kept_from(state, stream, known), EVERYTHING
    starts = [fork_start(state.by_number[number]) for number in stream.forks or ()]
    return kept_from(state, stream, known), max(starts, default=0)


def fork_start(fork: Stream) -> int:
    """Tell where a fork stops reading its source."""
    assert fork.row.fork is not None
    return fork.row.fork.start


def kept_from(state: State, stream: Stream, known: dict[int, int]) -> int:
    """Find the first offset of a stream that it or any fork of it still reads."""
    if stream.row.number in known:
        return known[stream.row.number]
    floor = stream.tail.tail if stream.tail.is_deleted else stream.tail.head
    for number in stream.forks or ():
        child = state.by_number[number]
        needed = kept_from(state, child, known)
        if needed < fork_start(child):
            floor = min(floor, needed)
    known[stream.row.number] = floor
    return floor


def is_over(stream: Stream, touched_ms: int, *, now_ms: int, time_ms: int) -> bool:
    """Tell whether a stream's time is over, given its latest use.

    A date is compared with the clock, a window with the journal's time, which never goes back: a
    clock that jumped far ahead once must not end every date to come.
    """
    row = stream.row
    if row.expires_at_ms is not None and now_ms >= row.expires_at_ms:
        return True
    return row.ttl_ms is not None and time_ms >= window_end_ms(stream, touched_ms)


def window_end_ms(stream: Stream, touched_ms: int) -> int:
    """Tell when a stream's sliding window ends."""
    assert stream.row.ttl_ms is not None
    return max(stream.tail.written_ms, touched_ms) + stream.row.ttl_ms
