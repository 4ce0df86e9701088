"""The `apply` functions for events of transactions that have not ended yet."""

from collections.abc import Iterable
from itertools import chain, repeat

from msgspec.structs import astuple, replace

from semel.machine.checks import digest_of_chunk
from semel.machine.claims import last_receipt, new_producer
from semel.machine.events import (
    SECTION_STAGED,
    ChunkStaged,
    PositionsNamed,
    PositionsNamedByMembers,
    PositionsNamedWithMetadata,
    ProducerStamp,
    Section,
    Sections,
    StreamAppended,
    TxnBegun,
    TxnExtended,
    TxnPrepared,
    TxnPublished,
)
from semel.machine.pending import (
    add_named_position,
    add_transaction,
    hold_positions,
    index_stream,
    mark_open_in,
)
from semel.machine.positions import (
    add_named,
    remove_named,
    remove_named_position,
    stored_position,
)
from semel.machine.producers import pack_receipt, push_after_first, retained_sessions
from semel.machine.rows import ChunkBlockRow, NamedPosition, TxnRow, TxnStreamRow
from semel.machine.state import (
    Effects,
    State,
    Stream,
    Txn,
    advance_tail,
    find_producer,
    put_producer,
)
from semel.machine.topic_receipts import find_partition, note_key, pack_part, store_parts
from semel.machine.txn.apply_end import end_transactions, store_registration
from semel.machine.txn.draft import push_chunk, push_extent
from semel.model.commands import DENSE, ProducerOwner
from semel.model.errors import invariant


def _set_row(state: State, txn: Txn, row: TxnRow) -> None:
    txn.row = state.dirty.transactions[row.number] = row


def _set_stream(state: State, txn: Txn, number: int, row: TxnStreamRow) -> None:
    txn.streams[number] = state.dirty.txn_streams[txn.row.number, number] = row


# ---- from begin to prepare -----------------------------------------------------------------------


def apply_begun(state: State, event: TxnBegun, sections: Sections, time_ms: int) -> Effects:
    """Begin a transaction, and abort the transactions in `event.ended`.

    These are the pending transactions of the producer's older instances.
    """
    effects = end_transactions(state, event.ended, sections, {}, time_ms)
    invariant(
        event.number == state.next_txn, "the transaction's number is not the next free number"
    )
    invariant(event.id not in state.transactions, "a transaction with this id is already pending")
    state.next_txn += 1
    owner = event.owner
    if isinstance(owner, ProducerOwner):
        store_registration(state, owner.id, owner.epoch)
    deadline_ms = None if event.timeout_ms is None else time_ms + event.timeout_ms
    row = TxnRow(
        number=event.number,
        id=event.id,
        epoch=event.epoch,
        kind=event.kind,
        owner=owner,
        is_implicit=event.is_implicit,
        begun_ms=time_ms,
        timeout_ms=event.timeout_ms,
        deadline_ms=deadline_ms,
        touched_ms=time_ms,
    )
    txn = Txn(row, {}, [])
    add_transaction(state, txn)
    _set_row(state, txn, row)
    _add_streams(state, txn, event.streams)
    return effects


def _add_streams(state: State, txn: Txn, numbers: Iterable[int]) -> None:
    for number in numbers:
        _set_stream(state, txn, number, TxnStreamRow())
        index_stream(state.by_number[number], txn.row.number)


def apply_extended(state: State, event: TxnExtended, _sections: Sections, time_ms: int) -> None:
    """Add streams to a transaction. In old journals, the event can also add positions."""
    txn = state.by_txn[event.txn]
    _add_streams(state, txn, event.streams)
    guards = {(named.group, named.stream): named.guard for named in txn.row.positions}
    named = []
    for group, number, to in event.positions:
        stored = stored_position(state.by_number[number], group)
        guard = guards.setdefault((group, number), stored.version)
        named.append(NamedPosition(group, number, to, guard))
    _name(state, txn, add_named(txn.row, named), time_ms)


def apply_named(state: State, event: PositionsNamed, _sections: Sections, time_ms: int) -> None:
    """Record the positions that a transaction will move when it commits."""
    txn = state.by_txn[event.txn]
    metadata = event.metadata if isinstance(event, PositionsNamedWithMetadata) else ()
    members = event.members if isinstance(event, PositionsNamedByMembers) else ()
    named = [
        NamedPosition(*astuple(position), *(owner or ()))
        for position, owner in zip(event.positions, chain(members, repeat(None)), strict=False)
    ]
    _name(state, txn, add_named(txn.row, named, metadata), time_ms)


def _name(state: State, txn: Txn, row: TxnRow, time_ms: int) -> None:
    """Store the row of a transaction that has named positions."""
    for named in row.positions:
        add_named_position(state, row.number, named)
    _set_row(state, txn, replace(row, touched_ms=time_ms))


def apply_staged(
    state: State, event: ChunkStaged, sections: Sections, time_ms: int, lsn: int
) -> None:
    """Add a chunk to a staged transaction."""
    txn = state.by_txn[event.txn]
    row = txn.row
    invariant(
        event.seq == row.next_seq and all(each.kind == SECTION_STAGED for each in sections),
        "the frame does not contain the next chunk of its transaction",
    )
    for section in sections:
        number, count = section.stream, section.count
        index_stream(state.by_number[number], event.txn)
        old = txn.streams.get(number, TxnStreamRow())
        _set_stream(state, txn, number, TxnStreamRow(-1, old.messages + count, old.chunks + 1))
        block = push_chunk(txn.chunk_blocks, lsn, number, count, digest_of_chunk(section))
        _note_block(state, txn, block)
        note_key(state, section)
    deadline_ms = None if row.timeout_ms is None else time_ms + row.timeout_ms
    next_row = replace(row, next_seq=row.next_seq + 1, deadline_ms=deadline_ms, touched_ms=time_ms)
    _set_row(state, txn, next_row)


def _note_block(state: State, txn: Txn, block: int) -> None:
    state.dirty.parts[txn.row.number, block] = ChunkBlockRow(txn.chunk_blocks[block])


def apply_prepared(state: State, event: TxnPrepared, _sections: Sections, time_ms: int) -> None:
    """Prepare a transaction. Until it ends, it holds the positions that it names."""
    txn = state.by_txn[event.txn]
    row = replace(txn.row, is_prepared=True, deadline_ms=None, touched_ms=time_ms)
    _set_row(state, txn, row)
    hold_positions(state, txn)


# ---- inline messages -----------------------------------------------------------------------------


def apply_published(state: State, event: TxnPublished, sections: Sections, time_ms: int) -> Effects:
    """Append the messages of an inline transaction to a stream."""
    append, txn = event.append, state.by_txn[event.txn]
    stream = state.by_number[append.stream]
    _set_row(state, txn, replace(txn.row, touched_ms=time_ms))
    if stream.topic is not None:
        return _publish_to_topic(state, txn, stream, append, sections, time_ms)
    (section,) = sections
    first = stream.tail.tail
    _publish(state, txn, stream, section, time_ms, append.stream_seq)
    if append.stamp is not None:
        _record_publish(state, stream, append.stamp, event.txn, first)
    return Effects((stream,))


def _publish(
    state: State,
    txn: Txn,
    stream: Stream,
    section: Section,
    time_ms: int,
    stream_seq: str | None = None,
) -> None:
    """Append the messages of an inline transaction to one stream."""
    number, first, txn_number = stream.row.number, stream.tail.tail, txn.row.number
    invariant(
        section.base == first and not stream.tail.is_closed,
        "the messages must begin at the tail of an open stream",
    )
    row = txn.streams.get(number, TxnStreamRow())
    if row.first < 0:
        index_stream(stream, txn_number)
        mark_open_in(stream, txn_number, first)
        row = TxnStreamRow(first)
    _set_stream(state, txn, number, TxnStreamRow(row.first, row.messages + section.count))
    _note_block(state, txn, push_extent(txn.chunk_blocks, first, number, section.count))
    advance_tail(state, stream, first + section.count, time_ms, stream_seq)
    if stream.row.partition >= 0:
        note_key(state, section)


def _publish_to_topic(
    state: State,
    txn: Txn,
    topic: Stream,
    append: StreamAppended,
    sections: Sections,
    time_ms: int,
) -> Effects:
    """Append the messages of an inline transaction to the partitions of a topic."""
    streams, parts, first = [], [], topic.tail.tail
    for section in sections:
        stream = find_partition(state, topic, section)
        parts.append(pack_part(stream, section))
        _publish(state, txn, stream, section, time_ms)
        streams.append(stream)
    tail = first + sum(section.count for section in sections)
    advance_tail(state, topic, tail, time_ms)
    stamp = append.stamp
    if stamp is not None:
        before = find_producer(topic, stamp.id)
        _record_publish(state, topic, stamp, txn.row.number, first)
        assert topic.producers is not None
        store_parts(state, topic.producers[stamp.id], before, tail, b"".join(parts))
    return Effects((topic, *streams))


def _record_publish(
    state: State, stream: Stream, stamp: ProducerStamp, txn_number: int, first: int
) -> None:
    old = find_producer(stream, stamp.id)
    tail, time_ms = stream.tail.tail, stream.tail.written_ms
    receipt = pack_receipt(stamp.first_seq, stamp.last_seq, first, tail, stamp.digest)
    row = new_producer(DENSE, stamp.epoch, time_ms)
    ring, session, old_sessions = b"", stamp.session, row.old_sessions
    if old is not None:
        if old.epoch == stamp.epoch and not old.is_expired:
            row = old
            ring = old.txn_receipts if old.txn == txn_number else b""
            session = old.session if session is None else session
        else:
            row = replace(
                row,
                cursor=old.cursor,
                first_receipt=last_receipt(old),
                expires_ms=old.expires_ms,
            )
        is_current = session == old.session
        old_sessions = old.old_sessions if is_current else retained_sessions(old, session)
    row = replace(
        row,
        session=session,
        old_sessions=old_sessions,
        updated_ms=time_ms,
        txn=txn_number,
        txn_receipts=push_after_first(ring, receipt, state.limits.receipts),
        latest_seq=stamp.last_seq,
        hour=state.hours,
    )
    state.dirty.producers[stream.row.number, stamp.id] = row
    put_producer(state, stream, stamp.id, row)


# ---- deletion of a stream ------------------------------------------------------------------------


def leave_all_streams(state: State, stream: Stream) -> None:
    """Remove a deleted or expired stream from every group and transaction.

    Each position that a transaction named in the stream is recorded as lost. A transaction with a
    lost position can be committed only if it is already prepared.
    """
    number, path = stream.row.number, stream.row.path
    for txn_number in sorted(stream.txns or ()):
        txn = state.by_txn[txn_number]
        deleted = txn.row.deleted
        if txn.streams.pop(number, None) is not None:
            state.dirty.txn_streams[txn_number, number] = None
            deleted = tuple(sorted({*deleted, path}))
        here = [named for named in txn.row.positions if named.stream == number]
        for named in here:
            remove_named_position(state, txn_number, named)
        # Another worker may have committed the same messages. The stored position would show that,
        # but is removed here. A prepared transaction held its positions, so they did not move.
        lost = tuple(sorted({*txn.row.lost, *((named.group, path) for named in here)}))
        row = remove_named(txn.row, number)
        _set_row(state, txn, replace(row, deleted=deleted, lost=lost))
    for group in stream.positions or ():
        state.dirty.positions[number, group] = None
        del state.groups[group][path]
        if not state.groups[group]:
            del state.groups[group]
    stream.txns = stream.open = stream.positions = stream.holds = None
