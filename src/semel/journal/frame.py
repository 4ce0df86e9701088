"""Encoding and decoding of frames, without I/O. A frame is the unit of writing to the journal.

    offset  size  field
    0       4     magic "SML1"
    4       4     CRC32C of bytes 8 to the end, seeded with the directory's identity
    8       1     version
    9       1     kind
    10      2     number of sections
    12      4     length of the whole frame in bytes, a multiple of 8
    16      4     length of the meta in bytes
    20      4     checksum of the previous frame
    24      8     LSN: the frame's own position in the journal
    32      8     durable watermark: an LSN below which all frames were already durable
    40      8     time, ms since 1970
    48            meta (msgpack), then the sections, then zeros up to a multiple of 8

A section has a header of 32 bytes, a list of message lengths, the extras (keys, headers and
timestamps), and the payload. The details are in `docs/reference/format.md`.
"""

import re
from struct import Struct as Layout
from typing import Any, Final

import msgspec
from msgspec import Struct

from semel.machine import access_events, events, shared_events, subscription_events
from semel.machine.events import SECTION_CONTROL, SECTION_STAGED, Section
from semel.model.checksum import Ranges, crc32c
from semel.model.limits import KIB

MAGIC: Final = b"SML1"
VERSION: Final = 1
ALIGN: Final = 8

_START: Final = Layout("<4sI")
_REST: Final = Layout("<BBHIIIQQQ")
_SECTION: Final = Layout("<QQIIII")
_FIND_MAGIC: Final = re.compile(re.escape(MAGIC)).finditer
# Of a header: the checksum, the length, the LSN and the watermark.
_CLAIM: Final = Layout("<4xI4xI8xQQ")
CHECKSUM_FROM: Final = _START.size
HEADER_BYTES: Final = _START.size + _REST.size
SECTION_BYTES: Final = _SECTION.size
_IS_JOINED: Final = 1
_HAS_EXTRAS: Final = 2
_KINDS: Final = SECTION_CONTROL | SECTION_STAGED
_FLAGS: Final = _IS_JOINED | _HAS_EXTRAS | _KINDS
# A frame that is larger than this is written as several buffers, to avoid a copy into one buffer.
_COPY_BYTES_MAX: Final = 16 * KIB

assert HEADER_BYTES == 48
assert SECTION_BYTES == 32


class SegmentStarted(Struct, frozen=True, gc=False, array_like=True):
    """The first frame of every segment. It states the allocated size of the segment's file."""

    capacity_bytes: int


class WatermarkMoved(Struct, frozen=True, gc=False, array_like=True):
    """A frame without content. It stores a newer durable watermark in its header."""


class SegmentEnded(Struct, frozen=True, gc=False, array_like=True):
    """The last frame of a segment. It proves that the next segment must exist.

    This frame uses up no LSNs: the first frame of the next segment has the same LSN.
    """


Record = events.Event | SegmentStarted | SegmentEnded | WatermarkMoved

KINDS: Final[dict[type, int]] = {
    SegmentStarted: 1,
    WatermarkMoved: 2,
    SegmentEnded: 3,
    events.StreamCreated: 16,
    events.StreamAppended: 17,
    events.StreamDeleted: 18,
    events.StreamExpired: 19,
    events.StreamTrimmed: 20,
    events.DedupSwitched: 21,
    events.UnguardedCreated: 22,
    events.PolicyChanged: 23,
    events.StreamConfigured: 24,
    events.ProducerRegistered: 32,
    events.ProducerForgotten: 33,
    events.ProducerExpired: 34,
    events.ProducerClaimed: 35,
    events.HourPassed: 36,
    events.ProducersRetired: 37,
    events.TombstonesDropped: 38,
    events.ProducerDeclared: 39,
    events.TxnBegun: 48,
    events.TxnExtended: 49,
    events.ChunkStaged: 50,
    events.TxnPrepared: 51,
    events.Decided: 52,
    events.TxnPublished: 53,
    events.ProducerRaised: 54,
    events.PositionsNamed: 55,
    events.PositionsMoved: 64,
    events.SnapshotPinned: 65,
    events.SinkRebound: 66,
    events.SinkForgotten: 67,
    events.PositionsMovedWithMetadata: 68,
    events.PositionsNamedWithMetadata: 69,
    events.DecidedWithMetadata: 70,
    events.PositionsNamedByMembers: 71,
    access_events.TokenCreated: 80,
    access_events.TokensRevoked: 81,
    access_events.TokensUsed: 82,
    access_events.OwnersChanged: 83,
    shared_events.TopicAdded: 96,
    shared_events.PartitionsAdded: 97,
    shared_events.PartitionsClosed: 98,
    shared_events.TopicRemoved: 99,
    shared_events.GroupChanged: 112,
    shared_events.GroupForgotten: 113,
    subscription_events.Subscribed: 128,
    subscription_events.Unsubscribed: 129,
    subscription_events.Linked: 130,
    subscription_events.Unlinked: 131,
    subscription_events.WakeIssued: 132,
    subscription_events.Claimed: 133,
    subscription_events.Acked: 134,
    subscription_events.WakeEnded: 135,
    subscription_events.DeliveryNoted: 136,
    events.DecidedWithAcks: 137,
}
_DECODERS: Final[dict[int, msgspec.msgpack.Decoder[Any]]] = {
    kind: msgspec.msgpack.Decoder(type_) for type_, kind in KINDS.items()
}
encode_meta: Final = msgspec.msgpack.Encoder().encode  # returns the meta of a record


class BadFrame(Exception):
    """Raised if the bytes are not a valid frame of this journal at this LSN."""


class UnknownVersion(Exception):
    """Raised if a frame is intact, but its format is unknown because a newer semel wrote it."""


class Frame(Struct, frozen=True):
    """A decoded frame."""

    lsn: int
    end: int
    crc: int
    previous_crc: int
    watermark: int
    time_ms: int
    record: Record
    sections: tuple[Section, ...]


class Encoded(Struct, frozen=True, gc=False):
    """An encoded frame that is ready to be written."""

    buffers: tuple[bytes, ...]
    length: int
    crc: int


def checksum_seed(identity: bytes) -> int:
    """Return the seed for the frame checksums of a directory with this identity."""
    return crc32c(identity)


def frame_bytes(meta: bytes, sections: tuple[Section, ...]) -> int:
    """Return the length that a frame with this meta and these sections will have."""
    total = HEADER_BYTES + len(meta)
    for section in sections:
        total += SECTION_BYTES + len(section.lengths) + len(section.payload)
        if section.extras:
            total += len(section.extras)
    return (total + ALIGN - 1) & -ALIGN


def encode(  # noqa: PLR0913 - one argument per field of the header
    kind: int,
    meta: bytes,
    sections: tuple[Section, ...],
    *,
    length: int,
    lsn: int,
    watermark: int,
    time_ms: int,
    previous_crc: int,
    seed: int,
) -> Encoded:
    """Return the bytes of a frame. `length` must be the result of `frame_bytes`."""
    parts = [
        _REST.pack(
            VERSION, kind, len(sections), length, len(meta), previous_crc, lsn, watermark, time_ms
        ),
        meta,
    ]
    for section in sections:
        payload, lengths = section.payload, section.lengths
        flags = section.kind
        if section.is_joined:
            flags |= _IS_JOINED
        if section.extras:
            lengths += section.extras
            flags |= _HAS_EXTRAS
        head = _SECTION.pack(
            section.stream,
            section.base,
            section.count,
            len(payload),
            len(lengths),
            flags,
        )
        parts += (head, lengths, payload)
    if length > _COPY_BYTES_MAX:
        return _encode_large(parts, length, seed)
    body = b"".join(parts).ljust(length - CHECKSUM_FROM, b"\0")
    crc = crc32c(body, seed)
    return Encoded((_START.pack(MAGIC, crc) + body,), length, crc)


def _encode_large(parts: list[bytes], length: int, seed: int) -> Encoded:
    parts.append(bytes(length - CHECKSUM_FROM - sum(map(len, parts))))
    crc = seed
    for part in parts:
        crc = crc32c(part, crc)
    return Encoded((_START.pack(MAGIC, crc), *parts), length, crc)


def peek_length(data: bytes, at: int) -> int | None:
    """Return the frame length that the header at index `at` states.

    Return None if there is no header at `at`, or if its length is not valid.
    """
    if data[at : at + 4] != MAGIC or len(data) - at < HEADER_BYTES:
        return None
    length: int = _REST.unpack_from(data, at + CHECKSUM_FROM)[3]
    return length if length >= HEADER_BYTES and length % ALIGN == 0 else None


def claimed_ranges(
    data: bytes, at: int, stop: int, segment: int, proven: int | None = None
) -> Ranges:
    """Return the bytes that each frame header covers, and the checksum it states for them.

    Included are the headers from index `at` up to, but not including, `stop` that have the LSN of
    their place in the segment, and that state a length which is possible there. With `proven`, only
    those whose watermark is above this LSN, and not above their own. No checksum is computed, so a
    header can also be a part of a message.
    """
    starts, ends, checksums = ranges = Ranges([], [], [])
    size = len(data)
    stop = max(0, min(stop, size - HEADER_BYTES + len(MAGIC)))
    last = data.rfind(MAGIC, at, stop)  # fast, and often most of the segment is empty
    for match in _FIND_MAGIC(data, at, last + len(MAGIC)):
        at = match.start()
        checksum, length, lsn, watermark = _CLAIM.unpack_from(data, at)
        is_length = HEADER_BYTES <= length <= size - at and length % ALIGN == 0
        if lsn != segment + at or at % ALIGN or not is_length:
            continue
        if proven is None or proven < watermark <= lsn:
            starts.append(at + CHECKSUM_FROM)
            ends.append(at + length)
            checksums.append(checksum)
    return ranges


def decode(data: bytes, at: int, *, lsn: int, seed: int) -> Frame:
    """Return the frame at index `at` of `data`. The frame must have the LSN `lsn`.

    Raises BadFrame if the frame is invalid. Raises UnknownVersion if the frame is intact, but its
    format is unknown.
    """
    length = peek_length(data, at)
    if length is None:
        raise BadFrame("there is no frame header")
    if length > len(data) - at:
        raise BadFrame("the frame extends past the end of the file")
    version, kind, count, _, meta_bytes, previous_crc, own_lsn, watermark, time_ms = (
        _REST.unpack_from(data, at + CHECKSUM_FROM)
    )
    crc: int = _START.unpack_from(data, at)[1]
    if crc32c(memoryview(data)[at + CHECKSUM_FROM : at + length], seed) != crc:
        raise BadFrame("the frame does not match its checksum")
    if own_lsn != lsn:
        raise BadFrame(f"the frame was written for a different position, LSN {own_lsn}")
    if version != VERSION:
        raise UnknownVersion(f"the frame has version {version}; this semel reads version {VERSION}")
    meta_from = at + HEADER_BYTES
    if meta_from + meta_bytes > at + length:
        raise BadFrame("the metadata extends past the end of the frame")
    record = _decode_record(kind, data[meta_from : meta_from + meta_bytes])
    sections = _decode_sections(data, meta_from + meta_bytes, count, at + length)
    # Positional arguments are faster, and this runs for every frame of a replay.
    return Frame(lsn, lsn + length, crc, previous_crc, watermark, time_ms, record, sections)


def _decode_record(kind: int, meta: bytes) -> Record:
    decoder = _DECODERS.get(kind)
    if decoder is None:
        raise UnknownVersion(f"this version of semel does not know frame kind {kind}")
    try:
        record: Any = decoder.decode(meta)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadFrame(f"the metadata of the frame cannot be decoded: {error}") from error
    return record  # type: ignore[no-any-return]


def _decode_sections(data: bytes, at: int, count: int, end: int) -> tuple[Section, ...]:
    sections = []
    for _ in range(count):
        if at + SECTION_BYTES > end:
            raise BadFrame("a section extends past the end of the frame")
        stream, base, messages, payload_bytes, lengths_bytes, flags = _SECTION.unpack_from(data, at)
        at += SECTION_BYTES
        payload_from = at + lengths_bytes
        if payload_from + payload_bytes > end:
            raise BadFrame("a section extends past the end of the frame")
        lengths = data[at:payload_from]
        at = payload_from + payload_bytes
        payload = data[payload_from:at]
        if flags > _FLAGS or flags & _KINDS == _KINDS:
            raise UnknownVersion(f"this version of semel does not know section flags {flags}")
        extras = b""
        if flags & _HAS_EXTRAS:
            extras_from = 4 * messages if messages > 1 else 0
            if extras_from >= len(lengths):
                raise BadFrame("a section has no extras, although its flags announce extras")
            lengths, extras = lengths[:extras_from], lengths[extras_from:]
        is_joined = bool(flags & _IS_JOINED)
        sections.append(
            Section(stream, base, messages, payload, lengths, is_joined, extras, flags & _KINDS)
        )
    return tuple(sections)
