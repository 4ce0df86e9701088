"""Decodes the frames format into columns, without a Python loop over messages.

The body contains the messages in order, with other bytes between them. An Arrow array uses the body
as its buffer. The elements 0, 2, 4 and so on are the messages. The elements 1, 3, 5 and so on are
the bytes between two messages. One Arrow call copies all messages.

Only headers are decoded message by message, because headers are rare.
"""

import struct
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from semel.model.messages import HAS_KEYS, HAS_TIMESTAMPS, NO_KEY, NO_TIMESTAMP, Header, headers_of
from semel.wire.bodies import (
    FRAMES_HEAD,
    FRAMES_MAGIC,
    PRODUCER_HEAD,
    SLICE_EXTRAS,
    SLICE_HEAD,
    SLICE_JOINED,
    SLICE_PAYLOAD_BYTES_AT,
    SLICE_PRODUCER,
    U32,
    BadFormat,
)

Ints = npt.NDArray[np.int64]


class FrameRows(NamedTuple):
    """The messages of one page. Each field is a column with one item for each message."""

    values: pa.BinaryArray
    offsets: Ints
    stored_ms: Ints  # the time at which each message was stored
    times_us: Ints  # the timestamp of each message; without a timestamp, its stored time
    keys: pa.BinaryArray | None  # None if no message has a key
    headers: list[list[Header] | None] | None  # None if not requested, or without any extras

    def before(self, end: int) -> "FrameRows":
        """Return the messages before the offset `end`."""
        count = int(np.searchsorted(self.offsets, end))
        if count == len(self.offsets):
            return self
        return FrameRows(
            self.values[:count],
            self.offsets[:count],
            self.stored_ms[:count],
            self.times_us[:count],
            None if self.keys is None else self.keys[:count],
            None if self.headers is None else self.headers[:count],
        )


class _Slices(NamedTuple):
    """The heads of all slices in a body. A slice contains messages of one append.

    Each field except `extras` has one item for each slice. For example:

    - `counts`: the number of messages.
    - `sizes`: the total size of the messages.
    - `starts`: the position of the first message in the body.
    - `lengths`: the length of each message, in encoded form.

    `extras` has an item only for a slice with keys, headers or timestamps.
    """

    offsets: Ints
    times_ms: Ints
    counts: Ints
    sizes: Ints
    flags: Ints
    starts: Ints
    lengths: list[bytes]
    extras: dict[int, tuple[int, int]]  # maps the index of a slice to the bounds of its extras


def rows_of(body: bytes, *, has_headers: bool = False) -> FrameRows:
    """Decode the messages of a page. Headers are decoded only if `has_headers` is true.

    Raises BadFormat if `body` is not in the frames format.
    """
    try:
        return _columns(body, _find_slices(body), has_headers=has_headers)
    except (struct.error, OverflowError, ValueError) as error:
        raise BadFormat(f"the frames in the response are truncated or malformed: {error}") from None


def _find_slices(body: bytes) -> _Slices:
    """Read the head of each slice in `body`. Raises BadFormat if `body` is malformed."""
    magic, _, type_bytes, count, _, _ = FRAMES_HEAD.unpack_from(body)
    if magic != FRAMES_MAGIC:
        raise BadFormat("the body is not in a known version of the frames format")
    at = FRAMES_HEAD.size + type_bytes
    numbers: list[int] = []  # six per slice
    lengths: list[bytes] = []
    extras: dict[int, tuple[int, int]] = {}
    unpack, head_bytes = SLICE_HEAD.unpack_from, SLICE_HEAD.size
    for number in range(count):
        offset, time_ms, messages, size, flags = unpack(body, at)
        # A slice with one message has no list of lengths. The payload size in the slice head is the
        # length of the message.
        lengths_at = at + (SLICE_PAYLOAD_BYTES_AT if messages == 1 else head_bytes)
        lengths.append(body[lengths_at : lengths_at + 4 * messages])
        at += head_bytes + (4 * messages if messages != 1 else 0)
        if flags & SLICE_EXTRAS:
            start = at + U32.size
            at = start + U32.unpack_from(body, at)[0]
            extras[number] = start, at
        if flags & SLICE_PRODUCER:
            at += PRODUCER_HEAD.size + PRODUCER_HEAD.unpack_from(body, at)[-1]
        numbers += (offset, time_ms, messages, size, flags, at)
        at += size
    if at != len(body):
        raise BadFormat("the total size of the slices differs from the size of the body")
    offsets, times_ms, counts, sizes, flags, starts = np.array(numbers, np.int64).reshape(-1, 6).T
    return _Slices(
        offsets, times_ms, counts, sizes, flags=flags, starts=starts, lengths=lengths, extras=extras
    )


def _columns(body: bytes, slices: _Slices, *, has_headers: bool) -> FrameRows:
    if not slices.lengths:
        empty = np.zeros(0, np.int64)
        return FrameRows(pa.array([], pa.binary()), empty, empty, empty, None, None)
    lengths = _numbers(slices.lengths)
    counts = slices.counts
    firsts = np.cumsum(counts) - counts
    if counts.min() < 1 or len(lengths) != counts.sum():
        raise BadFormat("a slice must have one length for each message")
    joined = slices.flags & SLICE_JOINED
    sizes = np.add.reduceat(lengths, firsts) + joined * (counts - 1)
    if not np.array_equal(sizes, slices.sizes):
        raise BadFormat("the total length of the messages differs from the size of their slice")
    within = _within(lengths + np.repeat(joined, counts), counts, firsts)
    starts = np.repeat(slices.starts, counts) + within
    rank = np.arange(len(lengths)) - np.repeat(firsts, counts)
    stored_ms = times_ms = np.repeat(slices.times_ms, counts)
    keys = headers = None
    if slices.extras:
        times_ms = stored_ms.copy()
        _set_times(body, slices, firsts, times_ms)
        keys = _keys(body, slices, counts, firsts)
        headers = _headers(body, slices) if has_headers else None
    return FrameRows(
        _gather(body, starts, lengths),
        np.repeat(slices.offsets, counts) + rank,
        stored_ms,
        times_ms * 1000,
        keys,
        headers,
    )


def _numbers(parts: list[bytes]) -> Ints:
    return np.frombuffer(b"".join(parts), "<u4").astype(np.int64)


def _within(sizes: Ints, counts: Ints, firsts: Ints) -> Ints:
    """Return the distance in bytes of each message from the first message of its slice.

    `sizes` has the size of each message. For each slice, `counts` has the number of messages, and
    `firsts` has the index of the first message. To get the distances of keys, pass their sizes.
    """
    begins: Ints = np.cumsum(sizes) - sizes
    return begins - np.repeat(begins[firsts], counts)


def _gather(body: bytes, starts: Ints, lengths: Ints) -> pa.BinaryArray:
    """Copy parts of `body` into an array. The parts must be in order and must not overlap."""
    count = len(starts)
    edges = np.empty(2 * count, np.int32)
    edges[0::2] = starts
    edges[1::2] = starts + lengths
    buffers = [None, pa.py_buffer(edges), pa.py_buffer(body)]
    spans = pa.Array.from_buffers(pa.binary(), 2 * count - 1, buffers)
    return spans.take(pa.array(np.arange(0, 2 * count - 1, 2)))


def _set_times(body: bytes, slices: _Slices, firsts: Ints, times_ms: Ints) -> None:
    """For each message that has a timestamp, write the timestamp into `times_ms`.

    The other items of `times_ms` keep the time at which the message was stored. `firsts` has the
    index of the first message of each slice.
    """
    for number, (at, end) in slices.extras.items():
        if U32.unpack_from(body, at)[0] & HAS_TIMESTAMPS:
            count, first = slices.counts[number], firsts[number]
            _require(at + 4 + 8 * count <= end)
            own = np.frombuffer(body, "<i8", count, at + 4)
            np.copyto(times_ms[first : first + count], own, where=own != NO_TIMESTAMP)


def _keys(body: bytes, slices: _Slices, counts: Ints, firsts: Ints) -> pa.BinaryArray | None:
    """Return the keys of all messages, or None if no message has a key.

    The array contains null for each message without a key.
    """
    parts: list[bytes] = []
    starts, ends = slices.starts.copy(), slices.starts.copy()
    has_any = False
    for number, count in enumerate(counts.tolist()):
        at, end = slices.extras.get(number, (0, 0))
        columns: int = U32.unpack_from(body, at)[0] if end else 0
        if not columns & HAS_KEYS:
            parts.append(b"\xff" * (4 * count))
            continue
        has_any = True
        at += 4 + (8 * count if columns & HAS_TIMESTAMPS else 0)
        parts.append(body[at : at + 4 * count])
        starts[number], ends[number] = at + 4 * count, end
    if not has_any:
        return None
    lengths = _numbers(parts)
    has_key = lengths != NO_KEY
    lengths = np.where(has_key, lengths, 0)
    totals = np.add.reduceat(lengths, firsts)
    _require(bool(np.all(starts + totals <= ends)))
    spans = _gather(body, np.repeat(starts, counts) + _within(lengths, counts, firsts), lengths)
    return pc.if_else(pa.array(has_key), spans, pa.scalar(None, pa.binary()))


def _headers(body: bytes, slices: _Slices) -> list[list[Header] | None]:
    """Return a list with the headers of each message, and None for a message without headers."""
    headers: list[list[Header] | None] = []
    for number, count in enumerate(slices.counts.tolist()):
        at, end = slices.extras.get(number, (0, 0))
        if end:
            headers += [pairs or None for pairs in headers_of(body[at:end], count)]
        else:
            headers += [None] * count
    return headers


def _require(is_sound: Any) -> None:
    if not is_sound:
        raise BadFormat("the keys or timestamps of a slice are truncated")
