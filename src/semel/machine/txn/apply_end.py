"""The `apply` functions for decision frames. A decision frame ends transactions."""

from array import array
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final

from msgspec.structs import replace

from semel.machine.events import (
    SECTION_CONTROL,
    SECTION_DATA,
    CommitStamp,
    Decided,
    DecidedWithAcks,
    DecidedWithMetadata,
    Ended,
    Section,
    Sections,
    SinkStamp,
)
from semel.machine.pending import owner_key
from semel.machine.positions import (
    move_positions,
    named_metadata,
    remove_named_position,
    set_sink,
)
from semel.machine.rows import (
    AbortedRow,
    OutcomeRow,
    OwnerKey,
    RegistryRow,
    SinkRow,
    VersionRow,
)
from semel.machine.state import (
    Effects,
    State,
    Stream,
    Txn,
    advance_tail,
    drop_owner,
    set_tail,
)
from semel.machine.subscription_changes import apply_all_acked
from semel.machine.topic_receipts import note_key
from semel.machine.txn.draft import (
    Spans,
    chunks_in,
    extent_columns,
    first_offsets,
    pack_result,
    push_result,
    result_of,
    result_of_commit,
)
from semel.model.commands import (
    ABORTED,
    COMMITTED,
    TXN_INLINE,
    ProducerOwner,
    TxnOutcome,
    TxnResult,
)
from semel.model.errors import invariant
from semel.model.limits import SINK_VERSIONS_KEPT
from semel.model.rights import TRANSACTION

_NO_CHUNKS: Final[Spans] = {}


def end_transactions(
    state: State,
    ended: Iterable[Ended],
    controls: Iterable[Section],
    chunks: Mapping[int, Spans],
    time_ms: int,
) -> Effects:
    """End the transactions in `ended`, and append the control records in `controls`.

    `chunks` has the offsets of the committed chunks of each transaction. Before the call, the tails
    of the streams must be moved past these chunks.
    """
    aborted: list[AbortedRow] = []
    outcomes = [
        _end(state, end, chunks.get(end.txn, _NO_CHUNKS), time_ms, aborted) for end in ended
    ]
    streams: list[Stream] = []
    for control in controls:
        stream = state.by_number[control.stream]
        is_next = control.kind == SECTION_CONTROL and control.base == stream.tail.tail
        invariant(is_next, "the control record is not at the tail of its stream")
        advance_tail(state, stream, control.base + 1, time_ms)
        if stream.tail.controls >= 0:
            set_tail(state, stream, replace(stream.tail, controls=stream.tail.controls + 1))
        streams.append(stream)
    return Effects(streams, outcomes, aborted)


def _end(
    state: State, end: Ended, chunks: Spans, time_ms: int, aborted: list[AbortedRow]
) -> OutcomeRow:
    txn = state.by_txn[end.txn]
    result = result_of(state, txn, end, chunks)
    for number in (*txn.streams, *(named.stream for named in txn.row.positions)):
        stream = state.by_number[number]
        assert stream.txns is not None
        stream.txns.discard(end.txn)
        if stream.open:
            stream.open.pop(end.txn, None)
    for named in txn.row.positions:
        remove_named_position(state, end.txn, named)
        if named.group in state.shares:
            state.unsettled.add(named.group)
    if end.is_committed:
        metadata = named_metadata(txn.row)
        moves = [(named.group, named.stream, named.to) for named in txn.row.positions]
        noted = [metadata.get((group, number), ()) for group, number, _ in moves]
        move_positions(state, moves, time_ms, owner_key(txn.row.owner), noted)
    elif txn.row.kind == TXN_INLINE:
        aborted += _abort_extents(state, txn, dict(end.markers))
    _remove_transaction(state, txn)
    _forget_rows(state, txn)
    return _number_outcome(state, txn, end, result, time_ms)


def _remove_transaction(state: State, txn: Txn) -> None:
    """Remove a transaction from the indexes that are keyed by id, number and owner."""
    row = txn.row
    del state.transactions[row.id]
    del state.by_txn[row.number]
    key = owner_key(row.owner)
    state.owned[key].discard(row.number)
    if not state.owned[key]:
        del state.owned[key]
    state.sink_txn_count -= not isinstance(row.owner, ProducerOwner)


def _abort_extents(state: State, txn: Txn, markers: dict[int, int]) -> list[AbortedRow]:
    """Return an inline transaction's aborted ranges, and update each stream's `aborted_end`.

    `markers` maps each stream to the offset of the transaction's control record. If the record
    directly follows a range, the range includes the record.
    """
    aborted: list[AbortedRow] = []
    ends: dict[int, int] = {}
    for first, number, count in chunks_in(txn.chunk_blocks):
        if number in txn.streams:
            end = first + count
            ends[number] = end + (markers[number] == end)
            aborted.append(AbortedRow(number, first, ends[number]))
    for number, end in ends.items():
        stream = state.by_number[number]
        stream.tail = replace(stream.tail, aborted_end=max(stream.tail.aborted_end, end))
    return aborted


def _number_outcome(
    state: State, txn: Txn, end: Ended, result: TxnResult, time_ms: int
) -> OutcomeRow:
    row = txn.row
    decision = COMMITTED if end.is_committed else ABORTED
    outcome = TxnOutcome(row.id, row.epoch, decision, end.reason, time_ms, result)
    ordinal = 0
    if isinstance(row.owner, ProducerOwner):
        registered = state.registry[row.owner.id]
        ordinal = registered.decided
        highest = max(registered.txn_epoch, row.epoch)
        changed = replace(registered, decided=ordinal + 1, txn_epoch=highest)
        set_registered(state, row.owner.id, changed)
    state.next_outcome += 1
    principal = drop_owner(state, (TRANSACTION, 0, row.id))
    return OutcomeRow(state.next_outcome - 1, ordinal, row.owner, outcome, state.hours, principal)


def _forget_rows(state: State, txn: Txn) -> None:
    number, dirty = txn.row.number, state.dirty
    dirty.decided.add(number)
    dirty.transactions.pop(number, None)
    for stream in txn.streams:
        dirty.txn_streams.pop((number, stream), None)
    for page in range(len(txn.chunk_blocks)):
        dirty.parts.pop((number, page), None)


def apply_decided(state: State, event: Decided, sections: Sections, time_ms: int) -> Effects:
    """Apply a decision frame: end transactions, give their chunks offsets, and move positions."""
    is_one_shot = event.sink is not None or (
        event.producer is not None and event.producer.seq is not None
    )
    ends, chunks = _place(state, event, sections)
    packed = b""
    if is_one_shot:
        packed = pack_result(result_of_commit(state, event, sections, chunks.values()))
    outcomes_from = state.next_outcome
    streams = [state.by_number[number] for number in ends]
    for stream, end in zip(streams, ends.values(), strict=True):
        advance_tail(state, stream, end, time_ms)
    if event.producer is not None:
        _stamp_producer(state, event.producer, packed)
    controls = (section for section in sections if section.kind == SECTION_CONTROL)
    ended = end_transactions(state, event.ended, controls, chunks, time_ms)
    metadata = event.metadata if isinstance(event, DecidedWithMetadata) else ()
    move_positions(state, event.positions, time_ms, _mover_of(event), metadata)
    if event.sink is not None:
        _stamp_sink(state, event.sink, packed, outcomes_from)
    if isinstance(event, DecidedWithAcks):
        apply_all_acked(state, event.wakes)
    return Effects([*streams, *ended.streams], ended.outcomes, ended.aborted, event.extents)


def _mover_of(event: Decided) -> OwnerKey | None:
    if event.producer is not None:
        return True, event.producer.id
    return None if event.sink is None else (False, event.sink.app)


def _place(
    state: State, event: Decided, sections: Sections
) -> tuple[dict[int, int], dict[int, Spans]]:
    """Return the new tail of each stream that gets messages, and the offsets of all chunks.

    The offsets are returned for each transaction that is committed. Raises InvariantBroken if a
    stream is closed, or if the offsets do not continue at its tail.
    """
    ends: dict[int, int] = {}
    for section in sections:
        if section.kind == SECTION_DATA:
            note_key(state, section)
            tail = ends.get(section.stream, state.by_number[section.stream].tail.tail)
            _check_next(section.base == tail)
            ends[section.stream] = section.base + section.count
    chunks: dict[int, Spans] = {}
    columns, at = extent_columns(event.extents), 0
    for end in event.ended:
        txn = state.by_txn[end.txn]
        if end.is_committed and txn.row.kind != TXN_INLINE:
            firsts = first_offsets(state, txn, ends)
            until = at + sum(row.chunks for row in txn.streams.values())
            tails = _check_extents(firsts, *(column[at:until] for column in columns))
            chunks[end.txn] = {number: (first, tails[number]) for number, first in firsts.items()}
            ends |= tails
            at = until
    _check_next(at == len(columns[0]))
    _check_next(not any(state.by_number[number].tail.is_closed for number in ends))
    return ends, chunks


def _check_extents(
    firsts: dict[int, int], numbers: "array[int]", bases: "array[int]", counts: "array[int]"
) -> dict[int, int]:
    """Return the tails of the streams after the chunks of one transaction.

    This function must be fast, because a frame can have hundreds of thousands of chunks.
    """
    tails = defaultdict(lambda: -1, firsts)  # -1 is no offset
    for number, base, count in zip(numbers, bases, counts, strict=True):
        if base != tails[number]:
            _check_next(False)
        tails[number] = base + count
    return dict(tails)


def _check_next(is_next: bool) -> None:
    invariant(is_next, "messages and chunks must begin at the tail of an open stream")


# ---- the producer or sink of a commit ------------------------------------------------------------


def set_registered(state: State, producer_id: str, row: RegistryRow) -> None:
    """Store a registration. It is in use, so it is no longer retired."""
    used_hour = state.hours if row.expires_ms else -1
    if (row.retired_hour, row.used_hour) != (-1, used_hour):
        row = replace(row, retired_hour=-1, used_hour=used_hour)
    state.registry[producer_id] = state.dirty.registry[producer_id] = row


def store_registration(state: State, producer_id: str, epoch: int) -> RegistryRow:
    """Register a producer at `epoch`, and return its row in the registry.

    If the epoch is new, the sequences of the producer's one-shot commits start from 0 again.
    """
    old = state.registry.get(producer_id)
    row = RegistryRow(epoch)
    if old is not None and old.epoch == epoch:
        if old.retired_hour < 0 and (not old.expires_ms or old.used_hour == state.hours):
            return old
        row = old
    elif old is not None:
        row = RegistryRow(
            epoch, decided=old.decided, txn_epoch=old.txn_epoch, expires_ms=old.expires_ms
        )
    set_registered(state, producer_id, row)
    return state.registry[producer_id]


def _stamp_producer(state: State, stamp: CommitStamp, packed: bytes) -> None:
    row = store_registration(state, stamp.id, stamp.epoch)
    if stamp.seq is not None:
        results = push_result(row.results, packed)
        digests = (*row.digests, stamp.digest)[-len(results) :]
        row = replace(row, commit_seq=stamp.seq, results=results, digests=digests)
        set_registered(state, stamp.id, row)


def _stamp_sink(state: State, stamp: SinkStamp, packed: bytes, outcomes_from: int) -> None:
    old = state.sinks.get(stamp.app)
    versions = () if old is None else old.versions
    versions = (*versions, VersionRow(stamp.version, stamp.input, packed))
    kept = versions[-SINK_VERSIONS_KEPT:]
    set_sink(state, stamp.app, SinkRow(stamp.query_id, stamp.version, kept, outcomes_from))
