"""What a read returns and a batch brings, as bytes.

`application/vnd.semel.batch`: many messages of any media type in one POST. Little-endian.

    magic "SMB1" | flags u16 = 0 | media type bytes u16 | count u32
    media type | count x u32: each message's length | the messages, one after the other

`application/vnd.semel.frames`: a read with offsets and times. Little-endian.

    magic "SMF1" | flags u16: 1 up to date, 2 closed | media type bytes u16 | pieces u32
    next offset u64 | tail u64 | media type, then for each piece
    offset u64 | time in ms u64 | count u32 | payload bytes u32 | flags u32: 1 joined
    count x u32: each message's length, if there are several | payload

The messages of a joined piece are separated by one comma. Offsets grow; there may be gaps.
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Protocol

from msgspec import Struct

from semel.model.commands import Batch
from semel.model.limits import BATCH_MESSAGES_MAX, MEDIA_TYPE_BYTES_MAX
from semel.model.media import is_json
from semel.model.messages import split_messages
from semel.wire.json_mode import split_json

_BATCH_MAGIC: Final = b"SMB1"
_BATCH_HEAD: Final = struct.Struct("<4sHHI")
_FRAMES_MAGIC: Final = b"SMF1"
_FRAMES_HEAD: Final = struct.Struct("<4sHHIQQ")
_PIECE_HEAD: Final = struct.Struct("<QQIII")
_UP_TO_DATE: Final = 1
_CLOSED: Final = 2
_JOINED: Final = 1
_SPACE: Final = b" \t\n\r"


class BadFormat(ValueError):
    """The bytes are not what their media type says."""


class SliceLike(Protocol):
    """Messages of one append, as the reader hands them out."""

    @property
    def offset(self) -> int:
        """The first message's offset."""
        ...

    @property
    def count(self) -> int:
        """How many messages there are."""
        ...

    @property
    def payload(self) -> bytes:
        """The messages."""
        ...

    @property
    def lengths(self) -> bytes:
        """The length of each as u32, if there are several."""
        ...

    @property
    def is_joined(self) -> bool:
        """Whether commas stand between them."""
        ...

    @property
    def time_ms(self) -> int:
        """When they were written."""
        ...


class Piece(Struct, frozen=True, gc=False):
    """Messages of one append, as read from the frames format."""

    offset: int
    count: int
    payload: bytes
    lengths: bytes
    is_joined: bool
    time_ms: int


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


def encode_batch(content_type: str, messages: Sequence[bytes]) -> bytes:
    """Pack messages of a stream of this media type."""
    media_type = content_type.encode("ascii")
    head = _BATCH_HEAD.pack(_BATCH_MAGIC, 0, len(media_type), len(messages))
    lengths = struct.pack(f"<{len(messages)}I", *map(len, messages))
    return b"".join((head, media_type, lengths, *messages))


def decode_batch(body: bytes) -> CarriedBatch:
    """Unpack a batch; raises BadFormat if it is none."""
    if len(body) < _BATCH_HEAD.size:
        raise BadFormat("the batch is cut short")
    magic, flags, type_bytes, count = _BATCH_HEAD.unpack_from(body)
    if magic != _BATCH_MAGIC or flags:
        raise BadFormat("not a batch of this version")
    if not 0 < count <= BATCH_MESSAGES_MAX:
        raise BadFormat(f"a batch holds 1 to {BATCH_MESSAGES_MAX} messages")
    content_type, at = _take_media_type(body, _BATCH_HEAD.size, type_bytes)
    lengths, at = _take(body, at, 4 * count)
    sizes = struct.unpack(f"<{count}I", lengths)
    payload = body[at:]
    if sum(sizes) != len(payload):
        raise BadFormat("the lengths do not add up to the batch")
    if not all(sizes):
        return CarriedBatch(content_type, None, "a message is empty")
    if is_json(content_type):
        return _carry_json(content_type, payload, sizes)
    return CarriedBatch(content_type, Batch(payload, count, lengths if count > 1 else b""))


def _carry_json(content_type: str, payload: bytes, sizes: Sequence[int]) -> CarriedBatch:
    """Join JSON messages, if each is one by itself: `1,2` or `[1` beside `2]` are none."""
    messages, at = [], 0
    for size in sizes:
        messages.append(payload[at : at + size].strip(_SPACE))
        at += size
    found = split_json(b"[" + b",".join(messages) + b"]")
    if not isinstance(found, Batch):
        return CarriedBatch(content_type, None, found or "a message is empty")
    is_exact = found.count == len(messages) and (
        found.count == 1 or found.lengths == struct.pack(f"<{len(sizes)}I", *map(len, messages))
    )
    if not is_exact:
        return CarriedBatch(content_type, None, "a message of the batch is not one JSON value")
    return CarriedBatch(content_type, found)


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
    for piece in slices:
        payload = piece.payload
        joined = _JOINED * piece.is_joined
        parts.append(
            _PIECE_HEAD.pack(piece.offset, piece.time_ms, piece.count, len(payload), joined)
        )
        parts.append(piece.lengths)
        parts.append(payload)
    return b"".join(parts)


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
    if not count or flags & ~_JOINED:
        raise BadFormat("a frame's head is not one")
    lengths, at = _take(body, at, 4 * count if count > 1 else 0)
    payload, at = _take(body, at, payload_bytes)
    is_joined = bool(flags & _JOINED)
    if count > 1:
        size = sum(struct.unpack(f"<{count}I", lengths)) + is_joined * (count - 1)
        if size != payload_bytes:
            raise BadFormat("the lengths do not add up to a frame")
    return Piece(offset, count, payload, lengths, is_joined, time_ms), at


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
