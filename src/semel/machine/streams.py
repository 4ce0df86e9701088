"""Decisions for commands on streams, and the ranges of offsets that must be retained.

A number in a comment refers to a row of the table of checks in `docs/reference/machine.md`.
"""

from collections.abc import Iterable
from typing import Final

from msgspec.structs import replace

from semel.machine.checks import check_body, section_of
from semel.machine.events import (
    Decision,
    Section,
    Sections,
    StreamConfigured,
    StreamCreated,
    StreamDeleted,
    StreamExpired,
    StreamTrimmed,
    UnguardedCreated,
)
from semel.machine.policies import dedup_source, find_dedup
from semel.machine.rows import ForkRow, NewStream, StreamRow, TailRow
from semel.machine.shared_events import TopicRemoved
from semel.machine.state import Effects, State, Stream, set_tail
from semel.machine.subscribers import note_moved
from semel.machine.topics import in_topic
from semel.model.commands import (
    Batch,
    Create,
    Delete,
    Expire,
    ForkRequest,
    StoredAppend,
    Trim,
)
from semel.model.limits import FORK_DEPTH_MAX, FORKS_PER_STREAM_MAX
from semel.model.messages import DEFAULT_MEDIA_TYPE, is_json, same_media_type
from semel.model.outcomes import (
    ConfigConflict,
    ContentTypeConflict,
    Created,
    Deleted,
    Expired,
    ForkSourceGone,
    Gone,
    LimitReached,
    NotFound,
    OffsetBeyondTail,
    OffsetTrimmed,
    Outcome,
    Refusal,
    StillAlive,
    SubOffsetInvalid,
    Trimmed,
)
from semel.model.outcomes_topics import IsTopic
from semel.model.outcomes_txn import OffsetUnstable, StreamRefused
from semel.model.policies import DedupSource


def decide_create(state: State, command: Create) -> Decision:
    """Return the decision on a command that creates a stream.

    If the path already has a stream, no stream is created. The outcome is then Created if the
    stream is as requested, and ConfigConflict if the stream differs or is soft-deleted.
    """
    stream = state.by_path.get(command.path)
    if stream is not None:
        return Decision(_compare(state, stream, command))  # 1, 2
    if command.fork is not None:
        return _decide_fork(state, command, command.fork)
    content_type = command.content_type or DEFAULT_MEDIA_TYPE
    refusal = _refuse_body_and_room(state, command, content_type)
    if refusal is not None:
        return Decision(refusal)
    row = NewStream(
        number=state.next_stream,
        path=command.path,
        incarnation=command.incarnation,
        content_type=content_type,
        created_ms=state.frame_time(command.now_ms),
        ttl_ms=command.ttl_ms,
        expires_at_ms=command.expires_at_ms,
    )
    return _accept(state, row, command, head=0, start=0, prefix=None, own=command.dedup)


# ---- comparing with an existing stream -----------------------------------------------------------


def _compare(state: State, stream: Stream, command: Create) -> Outcome:
    if stream.tail.is_deleted:
        return ConfigConflict("deleted")
    if stream.topic is not None:
        return IsTopic()
    row, tail = stream.row, stream.tail
    for field, is_equal in (
        ("content_type", _same_content_type(row, command)),
        ("ttl", _same_expiry(row, command, is_ttl=True)),
        ("expires_at", _same_expiry(row, command, is_ttl=False)),
        ("closed", command.closed == tail.is_closed),
        ("fork", _same_fork(row.fork, command.fork)),
        ("dedup", _same_dedup(tail, command)),
    ):
        if not is_equal:
            refusal = in_topic(state, stream) if _is_change(command, field) else None
            return refusal or ConfigConflict(field)
    return Created(
        row.incarnation,
        row.content_type,
        tail.tail,
        tail.is_closed,
        is_new=False,
        dedup_from=tail.dedup_from,
        source=dedup_source(state.policies, row.path, tail),
    )


def _is_change(command: Create, field: str) -> bool:
    """Return True if the command has a setting that a partition can only share with its topic."""
    return command.closed if field == "closed" else field in ("ttl", "expires_at", "dedup")


def _same_dedup(tail: TailRow, command: Create) -> bool:
    """Return True if the request has no setting for duplicate detection, or the stream's own one.

    A stream that inherits can have the same value now, and another one after a policy changes.
    """
    own = (tail.dedup_from is not None) if tail.dedup_own else None
    return command.dedup == own or (command.dedup is None and not command.inherits)


def _same_content_type(row: StreamRow, command: Create) -> bool:
    if command.content_type is None and command.fork is not None:
        return True
    return same_media_type(command.content_type, row.content_type)


def _same_expiry(row: StreamRow, command: Create, *, is_ttl: bool) -> bool:
    if row.inherits_expiry and command.ttl_ms is None and command.expires_at_ms is None:
        return True
    if is_ttl:
        return command.ttl_ms == row.ttl_ms
    return command.expires_at_ms == row.expires_at_ms


def _same_fork(stored: ForkRow | None, request: ForkRequest | None) -> bool:
    if stored is None or request is None:
        return stored is None and request is None
    if (request.source, request.sub_offset) != (stored.source_path, stored.sub_offset):
        return False
    return request.offset is None or request.offset == stored.anchor


# ---- forks ---------------------------------------------------------------------------------------


def _decide_fork(state: State, command: Create, fork: ForkRequest) -> Decision:
    source = state.by_path.get(fork.source)
    if source is None:
        return Decision(NotFound())  # 3
    if source.topic is not None:
        return Decision(IsTopic())  # 3
    anchor = source.tail.stable if fork.offset is None else fork.offset
    content_type = command.content_type or source.row.content_type
    refusal = (
        _refuse_source(source, command)
        or _refuse_anchor(source, fork, anchor)
        or _refuse_depth(state, source)
        or _refuse_body_and_room(state, command, content_type)
    )
    if refusal is not None:
        return Decision(refusal)
    joins_messages = is_json(source.row.content_type)
    start = anchor + fork.sub_offset if joins_messages else anchor
    prefix = None
    if fork.sub_offset and not joins_messages:
        assert fork.stored is not None
        prefix = Batch(fork.stored.payload[: fork.sub_offset])
    inherits = command.ttl_ms is None and command.expires_at_ms is None
    row = NewStream(
        number=state.next_stream,
        path=command.path,
        incarnation=command.incarnation,
        content_type=content_type,
        created_ms=state.frame_time(command.now_ms),
        ttl_ms=source.row.ttl_ms if inherits else command.ttl_ms,
        expires_at_ms=source.row.expires_at_ms if inherits else command.expires_at_ms,
        inherits_expiry=inherits,
        fork=ForkRow(source.row.number, fork.source, anchor, fork.sub_offset, start),
    )
    own, head = command.dedup, source.tail.head
    if own is None and source.tail.dedup_own and not command.inherits:
        own = source.tail.dedup_from is not None
    return _accept(state, row, command, head=head, start=start, prefix=prefix, own=own)


def _refuse_source(source: Stream, command: Create) -> Outcome | None:
    if source.tail.is_deleted:
        return ForkSourceGone()  # 4
    expected = source.row.content_type
    is_same = command.content_type is None or same_media_type(command.content_type, expected)
    return None if is_same else ContentTypeConflict(expected)  # 5


def _refuse_anchor(source: Stream, fork: ForkRequest, anchor: int) -> Outcome | None:
    if anchor > source.tail.tail:
        return OffsetBeyondTail(source.tail.tail)  # 6
    if anchor < source.tail.head:
        return OffsetTrimmed(source.tail.head)  # 7
    stable = source.tail.stable
    if anchor > stable or (fork.sub_offset and anchor == stable < source.tail.tail):
        return OffsetUnstable(stable)  # 7
    if fork.sub_offset == 0:
        return None
    units = _units_at(source, fork.stored, anchor)
    return SubOffsetInvalid() if fork.sub_offset > units else None  # 8


def _units_at(source: Stream, stored: StoredAppend | None, anchor: int) -> int:
    """Return the highest sub-offset that a fork of `source` at the offset `anchor` can have.

    If `stored` is None, or is not the append at `anchor` in `source`, return 0.
    """
    if stored is None or (stored.stream, stored.offset) != (source.row.number, anchor):
        return 0
    return stored.units


def _refuse_depth(state: State, source: Stream) -> Outcome | None:
    depth = 1
    row = source.row
    while row.fork is not None:
        depth += 1
        row = state.by_number[row.fork.source].row
    if depth > FORK_DEPTH_MAX:
        return LimitReached("fork_depth", FORK_DEPTH_MAX)  # 9
    is_full = len(source.forks or ()) >= FORKS_PER_STREAM_MAX
    return LimitReached("forks_per_stream", FORKS_PER_STREAM_MAX) if is_full else None  # 9


def _refuse_body_and_room(state: State, command: Create, content_type: str) -> Outcome | None:
    is_full = len(state.by_number) >= state.limits.streams
    return (
        check_body(command.batch, command.body_error, content_type)  # 10
        or (LimitReached("streams", state.limits.streams) if is_full else None)  # 11
    )


def _accept(
    state: State,
    row: NewStream,
    command: Create,
    *,
    head: int,
    start: int,
    prefix: Batch | None,
    own: bool | None,
) -> Decision:
    sections: list[Section] = []
    tail = start
    for batch in (prefix, command.batch):
        if batch is not None:
            sections.append(section_of(row.number, tail, batch, row.content_type))
            tail += batch.count
    dedup, policy = find_dedup(state.policies, row.path) if own is None else (own, None)
    outcome = Created(
        row.incarnation,
        row.content_type,
        tail,
        command.closed,
        is_new=True,
        dedup_from=0 if dedup else None,
        source=DedupSource(is_own=own is not None, prefix=policy),
    )
    event = _created(row, head, command.closed, own=own, dedup=dedup)
    return Decision(outcome, event, tuple(sections), grows=True)


def _created(
    row: NewStream, head: int, is_closed: bool, *, own: bool | None, dedup: bool
) -> StreamCreated | StreamConfigured:
    """Return the event that creates a stream. `own` is its own setting for duplicate detection.

    `dedup` is the setting that it gets. The two kinds of events that existed before policies are
    used for what they meant then.
    """
    if own is False:
        return UnguardedCreated(row, head, is_closed)
    created = StreamCreated(row, head, is_closed)
    if own is None and dedup:
        return created
    return StreamConfigured(row.number, 0 if dedup else None, own is not None, created)


# ---- delete, trim, expire ----------------------------------------------------------------------


def find_stream(state: State, path: str) -> Stream | Refusal:
    """Return the stream at `path`, or a refusal if it does not exist or is soft-deleted."""
    stream = find_any(state, path)
    return IsTopic() if isinstance(stream, Stream) and stream.topic is not None else stream


def find_any(state: State, path: str) -> Stream | Refusal:
    """Return the stream or topic at `path`, or a refusal if it is missing or soft-deleted."""
    stream = state.by_path.get(path)
    if stream is None:
        return NotFound()
    return Gone() if stream.tail.is_deleted else stream


def decide_delete(state: State, stream: Stream, _command: Delete) -> Decision:
    """Return the decision on a `Delete`. A stream that has forks is only soft-deleted."""
    refusal = in_topic(state, stream)
    if refusal is not None:
        return Decision(refusal)
    return Decision(Deleted(is_soft=bool(stream.forks)), StreamDeleted(stream.row.number))


def decide_trim(_state: State, stream: Stream, command: Trim) -> Decision:
    """Decide a `Trim`. The head only moves forward, and at most to the stable offset."""
    tail = stream.tail
    if command.before > tail.tail:
        return Decision(OffsetBeyondTail(tail.tail))
    if command.before <= tail.head:
        return Decision(Trimmed(tail.head))
    if command.before > tail.stable:
        return Decision(OffsetUnstable(tail.stable))
    return Decision(Trimmed(command.before), StreamTrimmed(stream.row.number, command.before))


def decide_expire(_state: State, stream: Stream, command: Expire) -> Decision:
    """Return the decision on a command that deletes a stream or a topic if it has expired."""
    if not is_expired(stream, now_ms=command.now_ms, elapsed_ms=command.elapsed_ms):
        return Decision(StillAlive())
    number = stream.row.number
    if stream.topic is not None:
        return Decision(Expired(), TopicRemoved(number, is_expired=True))
    return Decision(Expired(), StreamExpired(number))


# ---- several streams -----------------------------------------------------------------------------


def find_by_path(
    state: State, paths: Iterable[str], *, finds_topics: bool = False
) -> dict[str, Stream] | StreamRefused:
    """Return a mapping from each path to its stream or, with `finds_topics`, to its topic.

    If a stream does not exist or is soft-deleted, return a refusal for the first such path.
    """
    streams: dict[str, Stream] = {}
    find = find_any if finds_topics else find_stream
    for path in paths:
        stream = find(state, path)
        if not isinstance(stream, Stream):
            return StreamRefused(path, stream)
        streams[path] = stream
    return streams


# ---- retention -----------------------------------------------------------------------------------
# These functions compute which offsets are still needed, and when a stream expires.

OFFSET_MAX: Final = 1 << 63


def retained_range(state: State, stream: Stream, starts: dict[int, int]) -> tuple[int, int]:
    """Return the range (start, end) of offsets that a stream or any of its forks still needs.

    `starts` is a cache that this function fills. Pass an empty dict in the first call, and pass the
    same dict again until the state changes. Then start with a new empty dict.
    """
    start = retained_from(state, stream, starts)
    if not stream.tail.is_deleted:
        return start, OFFSET_MAX
    forks = [_fork_start(state.by_number[number]) for number in stream.forks or ()]
    return start, max(forks, default=0)


def retained_from(state: State, stream: Stream, starts: dict[int, int]) -> int:
    """Return the first offset in `stream` that the stream or any of its forks still needs."""
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


def is_expired(stream: Stream, *, now_ms: int, elapsed_ms: int) -> bool:
    """Return True if a stream has expired.

    An expiry date is compared with `now_ms`, the time of the clock. A TTL is compared with
    `elapsed_ms`, the time since the last use of the stream by the broker's monotonic clock.
    """
    row = stream.row
    # Not frame time: if the clock jumps ahead and is then corrected, frame time stays ahead. Then
    # streams would expire before their dates, and TTLs would never end.
    if row.expires_at_ms is not None and now_ms >= row.expires_at_ms:
        return True
    return row.ttl_ms is not None and elapsed_ms >= row.ttl_ms


# ---- apply ---------------------------------------------------------------------------------------


def controls_of(state: State, row: StreamRow) -> int:
    """Return the number of control records in a new stream, or -1 if a fork may have some."""
    if row.fork is None or state.by_number[row.fork.source].tail.controls == 0:
        return 0
    return -1


def mark_prunable(state: State, stream: Stream) -> None:
    """Mark a stream and all its fork sources for pruning.

    These streams can have messages that are no longer needed. The next checkpoint removes the index
    entries of such messages.
    """
    row = stream.row
    state.dirty.pruned.add(row.number)
    while row.fork is not None:
        row = state.by_number[row.fork.source].row
        state.dirty.pruned.add(row.number)


def remove_unneeded(state: State, stream: Stream) -> list[Stream]:
    """Remove `stream` if it is deleted and has no forks. Return all removed streams.

    If `stream` was the last fork of a deleted source, the source is removed too, and so on. A
    deleted topic is removed with its last partition.
    """
    removed: list[Stream] = []
    while stream.tail.is_deleted and not stream.forks and not _has_partitions(state, stream):
        number = stream.row.number
        del state.by_number[number]
        del state.by_path[stream.row.path]
        state.dirty.streams.pop(number, None)
        state.dirty.tails.pop(number, None)
        state.dirty.topics.pop(number, None)
        state.dirty.dropped.add(number)
        removed.append(stream)
        if stream.row.partition >= 0:
            stream = state.by_number[stream.row.topic]
            continue
        fork = stream.row.fork
        if fork is None:
            break
        stream = state.by_number[fork.source]
        assert stream.forks is not None
        stream.forks.discard(number)
    return removed


def _has_partitions(state: State, stream: Stream) -> bool:
    topic = stream.topic
    return topic is not None and any(number in state.by_number for number in topic.partitions)


def apply_trimmed(
    state: State, event: StreamTrimmed, _sections: Sections, _time_ms: int
) -> Effects:
    """Move the head of a stream."""
    stream = state.by_number[event.stream]
    set_tail(state, stream, replace(stream.tail, head=event.head))
    note_moved(state, stream, stream.links or ())
    mark_prunable(state, stream)
    return Effects((stream,))
