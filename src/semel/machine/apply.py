"""`apply` is the only function that changes the state, both in normal operation and in recovery.

`apply` reads only the state and the frame: the event, the sections, the time and the LSN. Therefore
a replay of the journal produces the same state.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from msgspec.structs import astuple, replace

from semel.machine.checks import store_key
from semel.machine.claims import claimed_row
from semel.machine.events import (
    SECTION_CONTROL,
    ChunkStaged,
    Decided,
    DecidedWithAcks,
    DecidedWithMetadata,
    DedupSwitched,
    Event,
    HourPassed,
    PolicyChanged,
    PositionsMoved,
    PositionsMovedWithMetadata,
    PositionsNamed,
    PositionsNamedByMembers,
    PositionsNamedWithMetadata,
    ProducerClaimed,
    ProducerDeclared,
    ProducerExpired,
    ProducerForgotten,
    ProducerRaised,
    ProducerRegistered,
    ProducersRetired,
    ProducerStamp,
    Sections,
    SinkForgotten,
    SinkRebound,
    SnapshotPinned,
    StreamAppended,
    StreamConfigured,
    StreamCreated,
    StreamDeleted,
    StreamExpired,
    StreamTrimmed,
    TombstonesDropped,
    TxnBegun,
    TxnExtended,
    TxnPrepared,
    TxnPublished,
    UnguardedCreated,
    declared_event,
)
from semel.machine.groups import apply_group_changed, apply_group_forgotten
from semel.machine.lifetimes import (
    apply_expired,
    apply_forgotten,
    apply_idle_time,
    apply_retired,
    apply_tombstones_dropped,
)
from semel.machine.policies import apply_policy, is_settled
from semel.machine.positions import (
    apply_moved,
    apply_pinned,
    apply_rebound,
    apply_sink_forgotten,
)
from semel.machine.producer_counts import note_unused
from semel.machine.producers import (
    PACK_RECEIPT,
    RECEIPT_BYTES,
    drop_receipts,
    pack_receipt,
    push_receipt,
    receipts_of,
    retained_sessions,
)
from semel.machine.rows import KeyRow, ProducerRow, StreamRow, TailRow
from semel.machine.shared_events import (
    GroupChanged,
    GroupForgotten,
    PartitionsAdded,
    PartitionsClosed,
    TopicAdded,
    TopicRemoved,
)
from semel.machine.shares import note_lost_stream, note_new_stream
from semel.machine.state import (
    NO_EFFECTS,
    Effects,
    State,
    Stream,
    add_fork,
    advance_tail,
    drop_owner,
    find_producer,
    put_producer,
    set_tail,
)
from semel.machine.streams import apply_trimmed, controls_of, mark_prunable, remove_unneeded
from semel.machine.subscribers import note_linked_stream, note_unlinked_stream
from semel.machine.subscription_changes import SUBSCRIPTION_APPLIERS
from semel.machine.tokens import TOKEN_APPLIERS
from semel.machine.topic_receipts import append_sections, note_key, pack_parts, store_parts
from semel.machine.topics import (
    apply_partitions_added,
    apply_partitions_closed,
    apply_topic_added,
    partitions_of,
)
from semel.machine.txn.apply_end import apply_decided, end_transactions, store_registration
from semel.machine.txn.apply_open import (
    apply_begun,
    apply_extended,
    apply_named,
    apply_prepared,
    apply_published,
    apply_staged,
    leave_all_streams,
)
from semel.model.commands import DENSE
from semel.model.errors import InvariantBroken, invariant
from semel.model.rights import PRODUCER


def apply(state: State, event: Event, sections: Sections, time_ms: int, lsn: int = 0) -> Effects:
    """Apply the frame at `lsn` to the state.

    Return the streams that changed, and the rows that the journal must store. Raises
    InvariantBroken if the frame contradicts the state, because of a bug or a damaged journal.
    """
    if time_ms < state.time_ms:  # not `invariant()`, which would cost a call per append
        raise InvariantBroken("the frame has an earlier time than the previous frame")
    state.time_ms = time_ms
    if type(event) is ChunkStaged:
        apply_staged(state, event, sections, time_ms, lsn)
        return NO_EFFECTS
    return _APPLIERS[type(event)](state, event, sections, time_ms) or NO_EFFECTS


def _advance(stream: int, offset: int, sections: Sections) -> int:
    for section in sections:
        if section.stream != stream or section.base != offset:
            raise InvariantBroken("a section does not begin at the tail of the event's stream")
        offset += section.count
    return offset


# ---- streams -------------------------------------------------------------------------------------


def _apply_created(state: State, event: StreamCreated, sections: Sections, time_ms: int) -> Effects:
    row = StreamRow(*astuple(event.row))
    invariant(row.number == state.next_stream, "the stream's number is not the next free number")
    invariant(row.path not in state.by_path, "a stream with this path already exists")
    if row.fork is not None:
        add_fork(state.by_number[row.fork.source], row.number)
    tail = _advance(row.number, 0 if row.fork is None else row.fork.start, sections)
    first = TailRow(
        head=event.head,
        tail=tail,
        is_closed=event.is_closed,
        is_deleted=False,
        stream_seq=None,
        written_ms=time_ms,
        dedup_from=None if isinstance(event, UnguardedCreated) else 0,
        stable=tail,
        dedup_own=isinstance(event, UnguardedCreated),
        controls=controls_of(state, row),
    )
    stream = state.by_number[row.number] = state.by_path[row.path] = Stream(row, first)
    state.next_stream += 1
    state.dirty.streams[row.number] = row
    set_tail(state, stream, first)
    note_new_stream(state, stream)
    note_linked_stream(state, stream)
    return Effects((stream,))


def _apply_appended(
    state: State, event: StreamAppended, sections: Sections, time_ms: int
) -> Effects:
    stream = state.by_number[event.stream]
    if stream.topic is not None:
        return _apply_topic_appended(state, stream, event, sections, time_ms)
    old = stream.tail
    if old.is_closed or old.is_deleted:
        raise InvariantBroken("the frame appends to a stream that is closed or deleted")
    tail = _advance(event.stream, old.tail, sections)
    advance_tail(state, stream, tail, time_ms, event.stream_seq, event.close)
    if stream.row.partition >= 0:
        for section in sections:
            note_key(state, section)
    if event.stamp is not None:
        _record_producer(state, stream, event.stamp, old.tail, time_ms)
    if event.key is not None:
        row = KeyRow(stream.next_key, time_ms, event.digest, old.tail, tail, state.hours)
        store_key(state, stream, event.key, row)
    if stream.policy_version != state.policy_version and is_settled(state, stream):
        stream.policy_version = state.policy_version
    return Effects((stream,))


def _apply_topic_appended(
    state: State, topic: Stream, event: StreamAppended, sections: Sections, time_ms: int
) -> Effects:
    old = topic.tail
    if old.is_closed or old.is_deleted:
        raise InvariantBroken("the frame appends to a topic that is closed or deleted")
    changed = append_sections(state, topic, sections, time_ms)
    stamp, tail = event.stamp, topic.tail.tail
    if stamp is None and event.key is None:
        return Effects(changed)
    packed = pack_parts(state, sections)
    if stamp is not None:
        before = find_producer(topic, stamp.id)
        _record_producer(state, topic, stamp, old.tail, time_ms)
        assert topic.producers is not None
        store_parts(state, topic.producers[stamp.id], before, tail, packed)
    if event.key is not None:
        row = KeyRow(
            topic.next_key, time_ms, event.digest, old.tail, tail, hour=state.hours, parts=packed
        )
        store_key(state, topic, event.key, row)
    return Effects(changed)


def _apply_topic_removed(
    state: State, event: TopicRemoved, sections: Sections, time_ms: int
) -> Effects:
    topic = state.by_number[event.topic]
    changed: list[Stream] = []
    for stream in partitions_of(state, topic):
        changed += _apply_ended(state, StreamDeleted(stream.row.number), sections, time_ms).streams
    changed += _apply_ended(state, StreamDeleted(event.topic), sections, time_ms).streams
    return Effects(changed)


def _apply_raised(state: State, event: ProducerRaised, sections: Sections, time_ms: int) -> Effects:
    appended = NO_EFFECTS
    controls = tuple(section for section in sections if section.kind == SECTION_CONTROL)
    if event.append is not None:
        own = tuple(section for section in sections if section.kind != SECTION_CONTROL)
        appended = _apply_appended(state, event.append, own, time_ms)
    if event.registered is not None:
        _apply_registered(state, event.registered, (), time_ms)
    if event.claimed is not None:
        _apply_claimed(state, event.claimed, (), time_ms)
    ended = end_transactions(state, event.ended, controls, {}, time_ms)
    return Effects((*appended.streams, *ended.streams), ended.outcomes, ended.aborted)


def _apply_ended(
    state: State, event: StreamDeleted | StreamExpired, _sections: Sections, _time_ms: int
) -> Effects:
    stream = state.by_number[event.stream]
    leave_all_streams(state, stream)
    note_lost_stream(state, stream)
    note_unlinked_stream(state, stream)
    set_tail(state, stream, replace(stream.tail, is_deleted=True, stable=stream.tail.tail))
    mark_prunable(state, stream)
    _drop_producers(state, stream)
    return Effects((stream, *remove_unneeded(state, stream)))


def _drop_producers(state: State, stream: Stream) -> None:
    """Drop all producers of a stream, with tombstones."""
    for producer_id in stream.producers or ():
        state.dirty.producers[stream.row.number, producer_id] = None
        drop_owner(state, (PRODUCER, stream.row.number, producer_id))
    state.producer_counts.drop_all(stream.producers)
    note_unused(state)
    stream.producers = None


def _apply_switched(
    state: State, event: DedupSwitched, _sections: Sections, _time_ms: int
) -> Effects:
    stream = state.by_number[event.stream]
    _set_dedup(state, stream, event.dedup_from, is_own=event.dedup_from is None)
    return Effects((stream,))


def _apply_configured(
    state: State, event: StreamConfigured, sections: Sections, time_ms: int
) -> Effects:
    if event.created is not None:
        _apply_created(state, event.created, sections, time_ms)
    stream = state.by_number[event.stream]
    _set_dedup(state, stream, event.dedup_from, is_own=event.is_own)
    if event.append is None:
        return Effects((stream,))
    raised = ProducerRaised(event.ended, event.append)
    if event.expires_ms:
        declared = ProducerDeclared(event.expires_ms, raised=raised)
        return _apply_declared(state, declared, sections, time_ms)
    return _apply_raised(state, raised, sections, time_ms)


def _set_dedup(state: State, stream: Stream, dedup_from: int | None, *, is_own: bool) -> None:
    """Set the duplicate detection of a stream. If it starts or stops, drop producers and keys.

    The rows are not updated while detection is off. If they were kept, new messages could look like
    duplicates after detection is switched on again.
    """
    number, old = stream.row.number, stream.tail
    set_tail(state, stream, replace(old, dedup_from=dedup_from, dedup_own=is_own))
    stream.policy_version = -1
    if (old.dedup_from is None) == (dedup_from is None):
        return
    _drop_producers(state, stream)
    for key in stream.keys or ():
        state.dirty.keys[number, key] = None
    stream.keys = None
    stream.next_key = 0


# ---- producers -----------------------------------------------------------------------------------
# Rows are built with positional arguments because they are faster, and this runs for every append.


def _record_producer(
    state: State, stream: Stream, stamp: ProducerStamp, first_offset: int, time_ms: int
) -> None:
    name, seq, tail, producers = stamp.id, stamp.last_seq, stream.tail.tail, stream.producers
    row = producers.changeable.get(name) if producers else None
    if (
        row is not None
        and producers is not None
        and producers.changeable_in == state.cuts
        and stamp.epoch == row.epoch
        and row.last_seq < seq
        and stamp.mode == DENSE
        and (stamp.session is None or stamp.session == row.session)
        and stamp.cursor is None
    ):
        # The common case. `_row_after` would return an equal row, with more calls and copies.
        ring = row.receipts
        if len(ring) >= state.limits.receipts * RECEIPT_BYTES:
            del ring[:RECEIPT_BYTES]
        ring += PACK_RECEIPT(seq, tail, stamp.digest, tail - first_offset, 0)
        row.last_seq = seq
        row.updated_ms = time_ms
        if row.hour != state.hours:
            row.hour = state.hours
    else:
        receipt = pack_receipt(stamp.first_seq, seq, first_offset, tail, stamp.digest)
        row = _row_after(state, find_producer(stream, name), stamp, receipt, time_ms)
        put_producer(state, stream, name, row)
        state.dirty.producers[stream.row.number, name] = row
        assert stream.producers is not None
        stream.producers.set_changeable(name, row, state.cuts)
    if state.registry:
        _raise_registered(state, name, row.epoch)


def _row_after(
    state: State, old: ProducerRow | None, stamp: ProducerStamp, receipt: bytes, time_ms: int
) -> ProducerRow:
    """Return the row of a producer after an append with this stamp and receipt."""
    if old is None:
        return _first_row(state, stamp, receipt, time_ms)
    row = _continue_producer(state, old, stamp, receipt, time_ms)
    if old.txn and old.txn in state.by_txn and old.epoch == stamp.epoch:
        return replace(row, txn=old.txn, txn_receipts=old.txn_receipts)
    return row


def _raise_registered(state: State, producer_id: str, epoch: int) -> None:
    """If the registry has a lower epoch for the producer, raise it to `epoch`."""
    registered = state.registry.get(producer_id)
    if registered is not None and epoch > registered.epoch:
        store_registration(state, producer_id, epoch)


def _first_row(state: State, stamp: ProducerStamp, receipt: bytes, time_ms: int) -> ProducerRow:
    return ProducerRow(
        stamp.mode,
        stamp.epoch,
        stamp.session,
        (),
        stamp.last_seq,
        bytearray(receipt),
        _first_receipt(stamp, b"", receipt),
        stamp.cursor,
        time_ms,
        hour=state.hours,
    )


def _continue_producer(
    state: State, old: ProducerRow, stamp: ProducerStamp, receipt: bytes, time_ms: int
) -> ProducerRow:
    receipts_max = state.limits.receipts
    is_raised = stamp.epoch > old.epoch
    ring = bytearray() if is_raised and stamp.mode == DENSE else old.receipts
    surplus = 0 if stamp.mode == DENSE else receipts_of(ring) + 1 - receipts_max
    forgotten_seq, stored_from = drop_receipts(old, surplus)
    session = stamp.session
    if session is None and not is_raised:
        session = old.session
    return ProducerRow(
        stamp.mode,
        stamp.epoch,
        session,
        old.old_sessions if session == old.session else retained_sessions(old, session),
        stamp.last_seq,
        push_receipt(ring, receipt, receipts_max),
        _first_receipt(stamp, old.first_receipt if old.last_seq >= 0 else b"", receipt),
        old.cursor if stamp.cursor is None else stamp.cursor,
        time_ms,
        forgotten_seq,
        stored_from=stored_from,
        expires_ms=old.expires_ms,
        hour=state.hours,
    )


def _first_receipt(stamp: ProducerStamp, old: bytes, receipt: bytes) -> bytes:
    if stamp.mode != DENSE:
        return b""
    return receipt if stamp.first_seq == 0 else old


def _apply_claimed(state: State, event: ProducerClaimed, _sections: Sections, time_ms: int) -> None:
    stream = state.by_number[event.stream]
    row = claimed_row(state, find_producer(stream, event.id), event, time_ms)
    put_producer(state, stream, event.id, row)
    state.dirty.producers[event.stream, event.id] = row
    _raise_registered(state, event.id, row.epoch)


def _apply_registered(
    state: State, event: ProducerRegistered, _sections: Sections, _time_ms: int
) -> None:
    store_registration(state, event.id, event.epoch)
    if event.is_assigned:
        state.next_producer = int(event.id) + 1


def _apply_hour(state: State, _event: HourPassed, _sections: Sections, _time_ms: int) -> None:
    state.hours += 1
    state.run_ms = 0


def _apply_declared(
    state: State, event: ProducerDeclared, sections: Sections, time_ms: int
) -> Effects:
    effects = apply(state, declared_event(event), sections, time_ms)
    apply_idle_time(state, event)
    return effects


_APPLIERS: Final[Mapping[type, Callable[[State, Any, Sections, int], Effects | None]]] = {
    StreamCreated: _apply_created,
    UnguardedCreated: _apply_created,
    StreamAppended: _apply_appended,
    StreamDeleted: _apply_ended,
    StreamExpired: _apply_ended,
    StreamTrimmed: apply_trimmed,
    DedupSwitched: _apply_switched,
    StreamConfigured: _apply_configured,
    PolicyChanged: apply_policy,
    ProducerRegistered: _apply_registered,
    ProducerForgotten: apply_forgotten,
    ProducerExpired: apply_expired,
    ProducersRetired: apply_retired,
    TombstonesDropped: apply_tombstones_dropped,
    ProducerDeclared: _apply_declared,
    HourPassed: _apply_hour,
    ProducerClaimed: _apply_claimed,
    ProducerRaised: _apply_raised,
    TxnPublished: apply_published,
    TxnBegun: apply_begun,
    TxnExtended: apply_extended,
    PositionsNamed: apply_named,
    PositionsNamedWithMetadata: apply_named,
    PositionsNamedByMembers: apply_named,
    TxnPrepared: apply_prepared,
    Decided: apply_decided,
    DecidedWithMetadata: apply_decided,
    DecidedWithAcks: apply_decided,
    PositionsMoved: apply_moved,
    PositionsMovedWithMetadata: apply_moved,
    SnapshotPinned: apply_pinned,
    SinkRebound: apply_rebound,
    SinkForgotten: apply_sink_forgotten,
    TopicAdded: apply_topic_added,
    PartitionsAdded: apply_partitions_added,
    PartitionsClosed: apply_partitions_closed,
    TopicRemoved: _apply_topic_removed,
    GroupChanged: apply_group_changed,
    GroupForgotten: apply_group_forgotten,
    **TOKEN_APPLIERS,
    **SUBSCRIPTION_APPLIERS,
}
