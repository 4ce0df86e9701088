"""From the frames format to columns, without touching a row in Python.

Messages lie in the body in order, with heads, lengths and commas between them. So their starts and
ends, interleaved, are the offsets of an Arrow array in which every second element is a message and
the others are what lies between; taking every second one is one copy in C.
"""

import struct
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from semel.model.messages import Header, headers_of
from semel.wire.bodies import BadFormat

Ints = npt.NDArray[np.int64]

_FRAMES_HEAD: Final = struct.Struct("<4sHHIQQ")
_PIECE_HEAD: Final = struct.Struct("<QQIII")
_U32: Final = struct.Struct("<I")
_ID_BYTES: Final = struct.Struct("<20xH")
_MAGIC: Final = b"SMF1"
_JOINED: Final = 1
_EXTRAS: Final = 2
_BESIDE: Final = 2 | 4  # extras or a producer
_PRODUCER: Final = 4
_KEYS: Final = 1
_TIMESTAMPS: Final = 2
_NO_KEY: Final = 0xFFFF_FFFF
_NO_TIMESTAMP: Final = -(2**63)


class FrameRows(NamedTuple):
    """The messages of a page. `keys` and `headers` are None if no message has any.

    `times_us` are the messages' own times, or else when they were stored, as `stored_ms`.
    """

    values: pa.BinaryArray
    offsets: Ints
    stored_ms: Ints
    times_us: Ints
    keys: pa.BinaryArray | None
    headers: list[list[Header] | None] | None

    def before(self, end: int) -> "FrameRows":
        """Keep the messages before an offset."""
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


class _Slices:
    """Where the pieces of a body are: one element of each list per piece."""

    def __init__(self) -> None:
        self.offsets: list[int] = []
        self.times_ms: list[int] = []
        self.counts: list[int] = []
        self.sizes: list[int] = []
        self.flags: list[int] = []
        self.starts: list[int] = []
        self.lengths: list[bytes] = []
        self.extras: dict[int, tuple[int, int]] = {}  # by piece: where they are, and up to where


def rows_of(body: bytes, *, has_headers: bool = False) -> FrameRows:
    """Take a page apart; raises BadFormat if it is none. Headers only if they are wanted."""
    try:
        pieces = _walk(body)
        return _columns(body, pieces, has_headers=has_headers)
    except (struct.error, ValueError) as error:
        raise BadFormat(f"the frames are cut short or malformed: {error}") from None


def _walk(body: bytes) -> _Slices:
    """Find the pieces. This is the only loop, and it runs once per append."""
    magic, _, type_bytes, count, _, _ = _FRAMES_HEAD.unpack_from(body)
    if magic != _MAGIC:
        raise BadFormat("not frames of this version")
    at = _FRAMES_HEAD.size + type_bytes
    found = _Slices()
    unpack, head_bytes = _PIECE_HEAD.unpack_from, _PIECE_HEAD.size
    for number in range(count):
        offset, time_ms, messages, size, flags = unpack(body, at)
        if messages == 1:
            found.lengths.append(body[at + 20 : at + 24])  # of the payload, and so of the message
            at += head_bytes
        else:
            at += head_bytes
            found.lengths.append(body[at : at + 4 * messages])
            at += 4 * messages
        if flags & _BESIDE:
            at = _pass_beside(body, at, flags, number, found)
        found.offsets.append(offset)
        found.times_ms.append(time_ms)
        found.counts.append(messages)
        found.sizes.append(size)
        found.flags.append(flags)
        found.starts.append(at)
        at += size
    if at != len(body):
        raise BadFormat("the pieces do not add up to the body")
    return found


def _pass_beside(body: bytes, at: int, flags: int, number: int, found: _Slices) -> int:
    if flags & _EXTRAS:
        (size,) = _U32.unpack_from(body, at)
        found.extras[number] = (at + 4, at + 4 + size)
        at += 4 + size
    if flags & _PRODUCER:
        (id_bytes,) = _ID_BYTES.unpack_from(body, at)
        at += _ID_BYTES.size + id_bytes
    return at


def _columns(body: bytes, pieces: _Slices, *, has_headers: bool) -> FrameRows:
    if not pieces.counts:
        empty = np.zeros(0, np.int64)
        return FrameRows(pa.array([], pa.binary()), empty, empty, empty, None, None)
    lengths = _numbers(pieces.lengths)
    counts = np.array(pieces.counts)
    firsts = np.cumsum(counts) - counts
    if counts.min() < 1 or len(lengths) != counts.sum():
        raise BadFormat("a piece has not as many lengths as messages")
    joined = np.array(pieces.flags) & _JOINED
    sizes = np.add.reduceat(lengths, firsts) + joined * (counts - 1)
    if not np.array_equal(sizes, pieces.sizes):
        raise BadFormat("the lengths do not add up to a piece")
    within = _within(lengths + np.repeat(joined, counts), counts, firsts)
    starts = np.repeat(np.array(pieces.starts), counts) + within
    rank = np.arange(len(lengths)) - np.repeat(firsts, counts)
    stored_ms = times_ms = np.repeat(np.array(pieces.times_ms), counts)
    keys = headers = None
    if pieces.extras:
        times_ms = stored_ms.copy()
        _set_times(body, pieces, firsts, times_ms)
        keys = _keys(body, pieces, counts, firsts)
        headers = _headers(body, pieces) if has_headers else None
    return FrameRows(
        _gather(body, starts, lengths),
        np.repeat(np.array(pieces.offsets), counts) + rank,
        stored_ms,
        times_ms * 1000,
        keys,
        headers,
    )


def _numbers(parts: list[bytes]) -> Ints:
    return np.frombuffer(b"".join(parts), "<u4").astype(np.int64)


def _within(sizes: Ints, counts: Ints, firsts: Ints) -> Ints:
    """Where each element begins, counted from the beginning of its piece."""
    begins: Ints = np.cumsum(sizes) - sizes
    return begins - np.repeat(begins[firsts], counts)


def _gather(body: bytes, starts: Ints, lengths: Ints) -> pa.BinaryArray:
    """Take out the spans, which are in order and do not overlap."""
    count = len(starts)
    edges = np.empty(2 * count, np.int32)
    edges[0::2] = starts
    edges[1::2] = starts + lengths
    buffers = [None, pa.py_buffer(edges), pa.py_buffer(body)]
    spans = pa.Array.from_buffers(pa.binary(), 2 * count - 1, buffers)
    return spans.take(pa.array(np.arange(0, 2 * count - 1, 2)))


# ---- extras --------------------------------------------------------------------------------------


def _set_times(body: bytes, pieces: _Slices, firsts: Ints, times_ms: Ints) -> None:
    """Put the messages' own times in the place of when they were stored."""
    for number, (at, end) in pieces.extras.items():
        if _U32.unpack_from(body, at)[0] & _TIMESTAMPS:
            count, first = pieces.counts[number], firsts[number]
            _require(at + 4 + 8 * count <= end)
            own = np.frombuffer(body, "<i8", count, at + 4)
            np.copyto(times_ms[first : first + count], own, where=own != _NO_TIMESTAMP)


def _keys(body: bytes, pieces: _Slices, counts: Ints, firsts: Ints) -> pa.BinaryArray | None:
    """Take out the keys, which lie in the extras end to end."""
    parts: list[bytes] = []
    starts = list(pieces.starts)
    ends = list(pieces.starts)
    has_any = False
    for number, count in enumerate(pieces.counts):
        at, end = pieces.extras.get(number, (0, 0))
        columns: int = _U32.unpack_from(body, at)[0] if end else 0
        if not columns & _KEYS:
            parts.append(b"\xff" * (4 * count))
            continue
        has_any = True
        at += 4 + (8 * count if columns & _TIMESTAMPS else 0)
        parts.append(body[at : at + 4 * count])
        starts[number], ends[number] = at + 4 * count, end
    if not has_any:
        return None
    found = _numbers(parts)
    is_there = found != _NO_KEY
    lengths = np.where(is_there, found, 0)
    totals = np.add.reduceat(lengths, firsts)
    _require(bool(np.all(np.array(starts) + totals <= np.array(ends))))
    spans = _gather(
        body, np.repeat(np.array(starts), counts) + _within(lengths, counts, firsts), lengths
    )
    return pc.if_else(pa.array(is_there), spans, pa.scalar(None, pa.binary()))


def _headers(body: bytes, pieces: _Slices) -> list[list[Header] | None]:
    """Take out the headers, message by message: they are rare, and asked for."""
    found: list[list[Header] | None] = []
    for number, count in enumerate(pieces.counts):
        at, end = pieces.extras.get(number, (0, 0))
        if end:
            found += [pairs or None for pairs in headers_of(body[at:end], count)]
        else:
            found += [None] * count
    return found


def _require(is_sound: Any) -> None:
    if not is_sound:
        raise BadFormat("the extras are cut short")
