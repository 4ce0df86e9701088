"""What an append to a topic changes: the tails of its partitions, and the receipt of the append.

A receipt of a topic has the numbers that the topic's tail row counts. The offsets in the partitions
are stored next to it, packed. Only `apply` calls the functions that change the state.
"""

from collections.abc import Iterable
from struct import Struct as Layout
from typing import Final

from msgspec.structs import replace

from semel.machine.events import Section
from semel.machine.producers import RECEIPT_BYTES, unpack_receipt
from semel.machine.rows import ProducerRow
from semel.machine.state import State, Stream, advance_tail
from semel.model.errors import InvariantBroken
from semel.model.limits import KIB
from semel.model.messages import HAS_KEYS
from semel.model.outcomes_topics import PartResult, Parts

_PART: Final = Layout("<IQI")  # partition, first offset, number of messages
PART_BYTES: Final = _PART.size
_SLACK: Final = 16  # parts without a receipt that a row may have
# The parts of the oldest receipts are dropped if a producer needs more. An append over 1,000
# partitions needs 16,000 bytes.
_PARTS_BYTES_MAX: Final = 64 * KIB


def unpack_parts(packed: bytes) -> Parts:
    """Return the parts of an append from their packed form."""
    return tuple(
        PartResult(partition, first, first + count)
        for partition, first, count in _PART.iter_unpack(packed)
    )


def find_partition(state: State, topic: Stream, section: Section) -> Stream:
    """Return the partition of a section. Raises InvariantBroken if it does not fit the state."""
    stream = state.by_number[section.stream]
    tail = stream.tail
    is_next = stream.row.topic == topic.row.number and stream is not topic
    if not is_next or section.base != tail.tail or tail.is_closed or tail.is_deleted:
        raise InvariantBroken("a section does not begin at the tail of an open partition")
    return stream


def note_key(state: State, section: Section) -> None:
    """Remember that a topic has messages with keys, if the section has some."""
    if not section.extras or not section.extras[0] & HAS_KEYS:
        return
    topic = state.by_number.get(state.by_number[section.stream].row.topic)
    if topic is not None and topic.topic is not None and not topic.topic.is_keyed:
        topic.topic = state.dirty.topics[topic.row.number] = replace(topic.topic, is_keyed=True)


def append_sections(
    state: State, topic: Stream, sections: Iterable[Section], time_ms: int
) -> list[Stream]:
    """Move the tails of a topic and of its partitions past the messages of an append.

    The append is outside transactions. Return the topic and the partitions.
    """
    changed, tail, row = [topic], topic.tail.tail, topic.topic
    for section in sections:
        stream = find_partition(state, topic, section)
        advance_tail(state, stream, section.base + section.count, time_ms)
        tail += section.count
        changed.append(stream)
        if section.extras and not (row is not None and row.is_keyed):  # saves most calls
            note_key(state, section)
    advance_tail(state, topic, tail, time_ms)
    return changed


def pack_parts(state: State, sections: Iterable[Section]) -> bytes:
    """Return the parts of an append outside transactions, packed."""
    return b"".join([pack_part(state.by_number[each.stream], each) for each in sections])


def pack_part(stream: Stream, section: Section) -> bytes:
    """Return the part of an append in one partition, packed."""
    return _PART.pack(stream.row.partition, section.base, section.count)


def store_parts(
    state: State, row: ProducerRow, old: ProducerRow | None, next_number: int, packed: bytes
) -> None:
    """Store the parts of an append next to its receipt.

    `row` has the receipt, and no checkpoint refers to it. `old` is the row before the append: the
    same row if it was changed in place. The parts of another row are copied, because a checkpoint
    can refer to that row.
    """
    parts = None if old is None else old.parts
    if parts is None:
        parts = {}
    elif row is not old:
        parts = parts.copy()
    parts[next_number] = packed
    if len(parts) > 2 * state.limits.receipts + _SLACK:
        rings = (row.receipts, row.first_receipt, row.txn_receipts)
        kept = {
            unpack_receipt(ring, index).next_offset
            for ring in rings
            for index in range(len(ring) // RECEIPT_BYTES)
        }
        parts = {number: parts[number] for number in parts if number in kept}
    if len(packed) * len(parts) > _PARTS_BYTES_MAX:
        _drop_oldest(parts)
    row.parts = parts


def _drop_oldest(parts: dict[int, bytes]) -> None:
    """Drop the oldest parts until all need at most _PARTS_BYTES_MAX. The newest stay."""
    size = sum(map(len, parts.values()))
    *older, _newest = sorted(parts)
    for number in older:
        if size <= _PARTS_BYTES_MAX:
            break
        size -= len(parts.pop(number))
