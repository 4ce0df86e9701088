"""The checks of an append's stream, body and idempotency key.

The comment at a check names the check's row in the table in `docs/reference/machine.md`.
"""

from collections.abc import Iterable
from typing import Final

from semel.machine.events import SECTION_DATA, Section
from semel.machine.rows import KeyRow, ProducerRow
from semel.machine.state import State, Stream
from semel.model.checksum import crc32c, digest_of
from semel.model.commands import Append, Batch, ProducerTag
from semel.model.limits import SEQUENCE_SPAN_MAX
from semel.model.messages import find_extras_fault, is_json, same_media_type
from semel.model.outcomes import (
    BadBody,
    ContentTypeConflict,
    Duplicate,
    InvalidRequest,
    KeyReused,
    LimitReached,
    Outcome,
    PreconditionFailed,
    Refusal,
    StreamClosed,
    StreamSeqConflict,
)
from semel.model.outcomes_topics import StreamInTopic
from semel.model.outcomes_txn import StreamInTransaction

_NO_BODY: Final = digest_of(b"")
_BAD_BODY: Final = -1  # no stored digest has this value


def is_batch_consistent(batch: Batch, *, is_joined: bool) -> bool:
    """Return True if the lengths of the messages add up to the length of the payload.

    The caller must not pass a batch of one message, because its `lengths` is empty. If `is_joined`
    is True, as it is in a JSON stream, the commas between the messages are counted too.
    """
    commas = batch.count - 1 if is_joined else 0
    return sum(memoryview(batch.lengths).cast("I")) + commas == len(batch.payload)


def is_close_only(command: Append) -> bool:
    """Return True if the command has no body and therefore only closes the stream."""
    return command.batch is None and command.body_error is None


def digest_of_append(stream: Stream, command: Append) -> int:
    """Return the digest of an append's payload.

    Return -1 if the body is invalid. No stored digest has this value.
    """
    batch = command.batch
    if batch is None:
        return _NO_BODY if command.body_error is None else _BAD_BODY
    if batch.count > 1 and not is_json(stream.row.content_type):
        # The lengths distinguish the messages `ab`, `c` from the messages `a`, `bc`.
        return digest_of(batch.payload, batch.extras + batch.lengths)
    return digest_of(batch.payload, batch.extras)


def holding_txn(state: State, txn_numbers: Iterable[int]) -> StreamInTransaction:
    """Return a refusal that names the oldest transaction in `txn_numbers`."""
    return StreamInTransaction(state.by_txn[min(txn_numbers)].row.id)


def is_simple(stream: Stream, command: Append) -> bool:
    """Return True if `check_stream` and `check_content` certainly return None.

    That is so for most appends: one message without extras and conditions, to an open stream of the
    same content type. This function saves the calls of all other checks for each of them.
    """
    batch, tail = command.batch, stream.tail
    return (
        batch is not None
        and batch.count == 1
        and not batch.extras
        and command.content_type == stream.row.content_type
        and command.body_error is None
        and not (command.close or tail.is_closed)
        and command.stream_seq is None
        and command.if_match is None
    )


def closed(stream: Stream) -> StreamClosed:
    """Return the refusal of an append to a closed stream or topic. A topic has no offsets."""
    return StreamClosed(None if stream.topic is not None else stream.tail.tail)


def check_stream(state: State, stream: Stream, command: Append) -> Outcome | None:
    """Return a refusal if the state of the stream does not allow the append, otherwise None.

    The stream must be open. An append with a body must have the stream's media type. The append
    must not close the stream while a pending transaction has messages in the stream.
    """
    if stream.tail.is_closed:
        return closed(stream)  # 9
    if command.close and stream.row.partition >= 0:
        return StreamInTopic(state.by_number[stream.row.topic].row.path)  # 9
    if command.close and stream.open:
        return holding_txn(state, stream.open)  # 9
    if command.content_type == stream.row.content_type or is_close_only(command):
        return None
    expected = stream.row.content_type
    is_same = command.content_type and same_media_type(command.content_type, expected)
    return None if is_same else ContentTypeConflict(expected)  # 10


def check_content(stream: Stream, command: Append) -> Outcome | None:
    """Return a refusal if the append's Stream-Seq, expected tail or body is wrong, else None."""
    tail = stream.tail
    last = tail.stream_seq
    # Comparing the strings is the same as comparing their bytes, because UTF-8 preserves the order
    # of code points.
    if command.stream_seq is not None and last is not None and command.stream_seq <= last:
        return StreamSeqConflict(last)  # 12
    if command.if_match is not None and command.if_match != tail.tail:
        return PreconditionFailed(tail.tail)  # 13
    return check_body(command.batch, command.body_error, stream.row.content_type)


def check_body(batch: Batch | None, error: str | None, content_type: str) -> Refusal | None:
    """Return a refusal if the body is not valid for the stream's content type, otherwise None.

    `error` is the fault that was found when the body was decoded, or None.
    """
    if error is not None:
        return BadBody(error)  # 14
    if batch is None:
        return None
    if batch.count > 1 and not is_batch_consistent(batch, is_joined=is_json(content_type)):
        return InvalidRequest("batch")
    if batch.extras and not batch.is_checked:
        fault = find_extras_fault(batch.extras, batch.count)
        return None if fault is None else BadBody(fault)  # 14
    return None


def check_room(
    state: State, stream: Stream, tag: ProducerTag, row: ProducerRow | None
) -> Outcome | None:
    """Return a refusal if the receipt of an append cannot be stored, otherwise None.

    The reason is either that the append spans too many sequences, or that the stream already has
    too many producers. `row` is the producer's row in the stream.
    """
    if tag.last_seq - tag.first_seq > SEQUENCE_SPAN_MAX:
        return LimitReached("sequence_span", SEQUENCE_SPAN_MAX)  # 15
    if row is not None and not row.is_expired and (row.expires_ms or not tag.expires_ms):
        return None
    return refuse_producer_room(
        state, stream, idle_time_of(state, row, tag.id, tag.expires_ms)
    )  # 15


def refuse_producer_room(state: State, stream: Stream, expires_ms: int) -> LimitReached | None:
    """Return a refusal if the stream has no room for one more producer with this idle time.

    Expiring producers, the others and tombstones are counted apart. Tombstones have no limit here.
    """
    producers, limits = stream.producers, state.limits
    if expires_ms:
        maximum = limits.expiring_producers_per_stream
        is_full = producers is not None and producers.expiring >= maximum
        return LimitReached("expiring_producers_per_stream", maximum) if is_full else None
    maximum = limits.producers_per_stream
    is_full = producers is not None and producers.lasting >= maximum
    return LimitReached("producers_per_stream", maximum) if is_full else None


def idle_time_of(state: State, row: ProducerRow | None, producer_id: str, asked_ms: int) -> int:
    """Return the idle time that a producer has after an append or a claim, or 0 if it has none.

    `asked_ms` is the idle time in the request, or 0. A producer that is new in the stream gets
    over that of its registration: otherwise the registration could end while the producer appends.
    """
    if asked_ms:
        return asked_ms
    if row is not None and not row.is_expired:
        return row.expires_ms
    registered = state.registry.get(producer_id)
    return 0 if registered is None else registered.expires_ms


# ---- sections ------------------------------------------------------------------------------------


def section_of(
    number: int, base: int, batch: Batch, content_type: str, kind: int = SECTION_DATA
) -> Section:
    """Return a batch as a section of stream `number`. The first message has the offset `base`.

    A section of kind SECTION_STAGED has no offsets, so `base` is not used.
    """
    is_joined = batch.count > 1 and is_json(content_type)
    return Section(  # positional arguments are faster, and this runs for every append
        number, base, batch.count, batch.payload, batch.lengths, is_joined, batch.extras, kind
    )


def digest_of_chunk(section: Section) -> int:
    """Return the digest that is stored for a chunk.

    It is the upper 32 bits of the digest of the append that staged the chunk.
    """
    has_bounds = section.count > 1 and not section.is_joined
    rest = section.extras + section.lengths if has_bounds else section.extras
    return crc32c(rest, crc32c(section.payload))


# ---- idempotency keys ----------------------------------------------------------------------------


def check_key(state: State, stream: Stream, key: str, *, digest: int) -> Outcome | None:
    """Return the outcome of an append that reuses a retained idempotency key.

    Return None if the key is not retained. In that case, the append is new.
    """
    row = stream.keys.get(key) if stream.keys else None
    if row is None or is_key_expired(state, row):
        return None
    if row.digest != digest:
        return KeyReused()
    return Duplicate(row.first_offset, row.next_offset, stream.tail.is_closed)


def is_key_expired(state: State, row: KeyRow) -> bool:
    """Return True if the idempotency key has expired.

    The hour in which the key was used does not count, because a part of it was before the use.
    """
    return state.hours > row.hour + state.limits.key_hours


def store_key(state: State, stream: Stream, key: str, row: KeyRow) -> None:
    """Store an idempotency key. Drop the oldest keys if they have expired or there are too many.

    This function changes the state, so only `apply` may call it.
    """
    if stream.keys is None:
        stream.keys = {}
    keys, number = stream.keys, stream.row.number
    keys.pop(key, None)
    keys[key] = row
    stream.next_key = row.number + 1
    state.dirty.keys[number, key] = row
    while True:
        oldest = next(iter(keys))
        if len(keys) <= state.limits.keys and not is_key_expired(state, keys[oldest]):
            return
        del keys[oldest]
        state.dirty.keys[number, oldest] = None
