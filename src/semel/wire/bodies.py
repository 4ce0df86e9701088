"""What a read returns and a batch brings, as bytes.

`application/vnd.semel.batch`: many messages of any media type in one POST. Little-endian.

    magic "SMB1" | flags u16: 1 extras | media type bytes u16 | count u32
    media type | count x u32: each message's length
    extras bytes u32, extras: if there are any | the messages, one after the other

`application/vnd.semel.frames`: a read with offsets and times. Little-endian.

    magic "SMF1" | flags u16: 1 up to date, 2 closed | media type bytes u16 | pieces u32
    next offset u64 | tail u64 | media type, then for each piece
    offset u64 | time in ms u64 | count u32 | payload bytes u32
    flags u32: 1 joined, 2 extras, 4 producer
    count x u32: each message's length, if there are several
    extras bytes u32, extras: if there are any
    epoch u64, first sequence u64, last minus first u32, id bytes u16, id: if it has a producer
    payload

The messages of a joined piece are separated by one comma. Offsets grow; there may be gaps. Extras
are keys, timestamps and headers: `semel.model.messages` has their layout.
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from msgspec import Struct

from semel.model.commands import Batch
from semel.model.limits import BATCH_MESSAGES_MAX, MEDIA_TYPE_BYTES_MAX, PRODUCER_ID_BYTES_MAX
from semel.model.media import is_json
from semel.model.messages import Header, encode_extras, find_extras_fault, split_messages
from semel.wire.json_mode import split_json
from semel.wire.pieces import Piece, ProducerLike, SliceLike, SliceProducer

__all__ = [
    "BadFormat",
    "CarriedBatch",
    "Frames",
    "Piece",
    "SliceLike",
    "SliceProducer",
    "decode_batch",
    "decode_frames",
    "encode_batch",
    "encode_frames",
    "messages_of",
    "pack_batch",
    "to_bytes",
    "to_json_array",
]

_BATCH_MAGIC: Final = b"SMB1"
_BATCH_HEAD: Final = struct.Struct("<4sHHI")
_FRAMES_MAGIC: Final = b"SMF1"
_FRAMES_HEAD: Final = struct.Struct("<4sHHIQQ")
_PIECE_HEAD: Final = struct.Struct("<QQIII")
_UP_TO_DATE: Final = 1
_CLOSED: Final = 2
_BATCH_EXTRAS: Final = 1
_JOINED: Final = 1
_EXTRAS: Final = 2
_PRODUCER: Final = 4
_PIECE_FLAGS: Final = _JOINED | _EXTRAS | _PRODUCER
_SIZE: Final = struct.Struct("<I")
_PRODUCER_HEAD: Final = struct.Struct("<QQIH")
_SPACE: Final = b" \t\n\r"


class BadFormat(ValueError):
    """The bytes are not what their media type says."""


class Frames(Struct, frozen=True):
    """A read in the frames format."""

    content_type: str
    pieces: list[Piece]
    next_offset: int
    tail: int
    is_up_to_date: bool
    is_closed: bool


class CarriedBatch(Struct, frozen=True, gc=False):
    """What a batch body carries; `error` is what is wrong with its messages, if anything is."""

    content_type: str
    batch: Batch | None
    error: str | None = None


# ---- plain reads ---------------------------------------------------------------------------------


def to_json_array(slices: Iterable[SliceLike]) -> bytes:
    """Join JSON messages into one array."""
    return b"[" + b",".join([piece.payload for piece in slices]) + b"]"


def to_bytes(slices: Iterable[SliceLike]) -> bytes:
    """Join the messages of a byte stream."""
    return b"".join([piece.payload for piece in slices])


def messages_of(piece: SliceLike) -> Iterator[bytes]:
    """Split a piece into its messages."""
    return split_messages(piece.payload, piece.count, piece.lengths, is_joined=piece.is_joined)


# ---- the batch format ----------------------------------------------------------------------------


def encode_batch(
    content_type: str,
    messages: Sequence[bytes],
    *,
    keys: Sequence[bytes | None] | None = None,
    headers: Sequence[Sequence[Header]] | None = None,
    timestamps: Sequence[int | None] | None = None,
) -> bytes:
    """Pack messages of a stream of this media type, and what each of them carries."""
    count = len(messages)
    extras = encode_extras(count, keys=keys, headers=headers, timestamps=timestamps)
    lengths = struct.pack(f"<{count}I", *map(len, messages))
    return pack_batch(content_type, lengths, messages, extras)


def pack_batch(
    content_type: str, lengths: bytes, payload: Sequence[bytes | memoryview], extras: bytes = b""
) -> bytes:
    """Pack messages whose lengths and extras are packed already; the payload comes in pieces."""
    media_type = content_type.encode("ascii")
    flags = _BATCH_EXTRAS if extras else 0
    head = _BATCH_HEAD.pack(_BATCH_MAGIC, flags, len(media_type), len(lengths) // _SIZE.size)
    beside = _sized(extras) if extras else b""
    return b"".join((head, media_type, lengths, beside, *payload))


def _sized(extras: bytes) -> bytes:
    return _SIZE.pack(len(extras)) + extras


def decode_batch(body: bytes) -> CarriedBatch:
    """Unpack a batch; raises BadFormat if it is none. Its extras are left to the machine."""
    if len(body) < _BATCH_HEAD.size:
        raise BadFormat("the batch is cut short")
    magic, flags, type_bytes, count = _BATCH_HEAD.unpack_from(body)
    if magic != _BATCH_MAGIC or flags & ~_BATCH_EXTRAS:
        raise BadFormat("not a batch of this version")
    if not 0 < count <= BATCH_MESSAGES_MAX:
        raise BadFormat(f"a batch holds 1 to {BATCH_MESSAGES_MAX} messages")
    content_type, at = _take_media_type(body, _BATCH_HEAD.size, type_bytes)
    lengths, at = _take(body, at, 4 * count)
    extras = b""
    if flags & _BATCH_EXTRAS:
        extras, at = _take_extras(body, at)
    sizes = struct.unpack(f"<{count}I", lengths)
    payload = body[at:]
    if sum(sizes) != len(payload):
        raise BadFormat("the lengths do not add up to the batch")
    if not all(sizes):
        return CarriedBatch(content_type, None, "a message is empty")
    if is_json(content_type):
        return _carry_json(content_type, payload, sizes, extras)
    return CarriedBatch(content_type, Batch(payload, count, lengths if count > 1 else b"", extras))


def _carry_json(
    content_type: str, payload: bytes, sizes: Sequence[int], extras: bytes
) -> CarriedBatch:
    """Join JSON messages, if each is one by itself: `1,2` or `[1` beside `2]` are none."""
    messages, at = [], 0
    for size in sizes:
        messages.append(payload[at : at + size].strip(_SPACE))
        at += size
    lengths = struct.pack(f"<{len(sizes)}I", *map(len, messages))
    messages[0] = b"[" + messages[0]  # here, and not around the join, which may be large
    messages[-1] += b"]"
    found = split_json(b",".join(messages))
    if not isinstance(found, Batch):
        return CarriedBatch(content_type, None, found or "a message is empty")
    is_exact = found.count == len(messages) and (found.count == 1 or found.lengths == lengths)
    if not is_exact:
        return CarriedBatch(content_type, None, "a message of the batch is not one JSON value")
    batch = Batch(found.payload, found.count, found.lengths, extras) if extras else found
    return CarriedBatch(content_type, batch)


# ---- the frames format ---------------------------------------------------------------------------


def encode_frames(
    content_type: str,
    slices: Sequence[SliceLike],
    *,
    next_offset: int,
    tail: int,
    is_closed: bool = False,
) -> bytes:
    """Pack a read. `is_closed`: the stream ends at `next_offset`."""
    media_type = content_type.encode("ascii")
    flags = _UP_TO_DATE * (next_offset >= tail) | _CLOSED * is_closed
    head = (_FRAMES_MAGIC, flags, len(media_type), len(slices), next_offset, tail)
    parts = [_FRAMES_HEAD.pack(*head), media_type]
    pack = _PIECE_HEAD.pack
    for piece in slices:
        payload = piece.payload
        flags = _JOINED if piece.is_joined else 0
        beside = b""
        if piece.extras:
            flags |= _EXTRAS
            beside = _sized(piece.extras)
        if piece.producer is not None:
            flags |= _PRODUCER
            beside += _pack_producer(piece.producer)
        parts.append(pack(piece.offset, piece.time_ms, piece.count, len(payload), flags))
        parts.append(piece.lengths + beside)
        parts.append(payload)
    return b"".join(parts)


def _pack_producer(producer: ProducerLike) -> bytes:
    name = producer.id.encode()
    first = producer.first_seq
    return _PRODUCER_HEAD.pack(producer.epoch, first, producer.last_seq - first, len(name)) + name


def decode_frames(body: bytes) -> Frames:
    """Unpack a read; raises BadFormat if it is none."""
    if len(body) < _FRAMES_HEAD.size:
        raise BadFormat("the frames are cut short")
    magic, flags, type_bytes, count, next_offset, tail = _FRAMES_HEAD.unpack_from(body)
    if magic != _FRAMES_MAGIC or flags & ~(_UP_TO_DATE | _CLOSED):
        raise BadFormat("not frames of this version")
    content_type, at = _take_media_type(body, _FRAMES_HEAD.size, type_bytes)
    pieces: list[Piece] = []
    end = 0
    for _ in range(count):
        piece, at = _take_piece(body, at)
        if piece.offset < end:
            raise BadFormat("the offsets do not grow")
        end = piece.offset + piece.count
        pieces.append(piece)
    if at != len(body):
        raise BadFormat("something follows the last frame")
    if not end <= next_offset <= tail or bool(flags & _UP_TO_DATE) != (next_offset == tail):
        raise BadFormat("the offsets contradict each other")
    is_up_to_date, is_closed = bool(flags & _UP_TO_DATE), bool(flags & _CLOSED)
    return Frames(content_type, pieces, next_offset, tail, is_up_to_date, is_closed)


def _take_piece(body: bytes, at: int) -> tuple[Piece, int]:
    head, at = _take(body, at, _PIECE_HEAD.size)
    offset, time_ms, count, payload_bytes, flags = _PIECE_HEAD.unpack(head)
    if not count or flags & ~_PIECE_FLAGS:
        raise BadFormat("a frame's head is not one")
    lengths, at = _take(body, at, 4 * count if count > 1 else 0)
    extras, producer = b"", None
    if flags & _EXTRAS:
        extras, at = _take_extras(body, at)
        fault = find_extras_fault(extras, count)
        if fault is not None:
            raise BadFormat(fault)
    if flags & _PRODUCER:
        producer, at = _take_producer(body, at)
    payload, at = _take(body, at, payload_bytes)
    is_joined = bool(flags & _JOINED)
    if count > 1:
        size = sum(struct.unpack(f"<{count}I", lengths)) + is_joined * (count - 1)
        if size != payload_bytes:
            raise BadFormat("the lengths do not add up to a frame")
    return Piece(offset, count, payload, lengths, is_joined, time_ms, extras, producer), at


def _take_producer(body: bytes, at: int) -> tuple[SliceProducer, int]:
    head, at = _take(body, at, _PRODUCER_HEAD.size)
    epoch, first, span, id_bytes = _PRODUCER_HEAD.unpack(head)
    name, at = _take(body, at, id_bytes)
    if not 0 < id_bytes <= PRODUCER_ID_BYTES_MAX:
        raise BadFormat("a producer's id is not one")
    try:
        return SliceProducer(name.decode(), epoch, first, first + span), at
    except UnicodeDecodeError:
        raise BadFormat("a producer's id is not UTF-8") from None


def _take_extras(body: bytes, at: int) -> tuple[bytes, int]:
    size, at = _take(body, at, _SIZE.size)
    extras, at = _take(body, at, _SIZE.unpack(size)[0])
    if not extras:
        raise BadFormat("extras are claimed and not there")
    return extras, at


def _take(body: bytes, at: int, size: int) -> tuple[bytes, int]:
    end = at + size
    if end > len(body):
        raise BadFormat("the body is cut short")
    return body[at:end], end


def _take_media_type(body: bytes, at: int, size: int) -> tuple[str, int]:
    media_type, at = _take(body, at, size)
    text = media_type.decode("latin-1")
    is_sound = 0 < size <= MEDIA_TYPE_BYTES_MAX and text.isascii() and text.isprintable()
    if not is_sound:
        raise BadFormat("the media type is not one")
    return text, at
