"""The binary body formats: the batch format for appends, and the frames format for reads.

All numbers are little-endian. `application/vnd.semel.batch` puts many messages into one POST:

    magic "SMB1" | flags u16 (1: has extras) | length of the media type u16 | message count u32
    media type | length of each message, count x u32
    if it has extras: length of the extras u32 | extras
    the messages, one after the other

`application/vnd.semel.frames` returns the messages of a read with their offsets and times:

    magic "SMF1" | flags u16 (1: up to date, 2: closed) | length of the media type u16
    number of slices u32 | next offset u64 | tail u64 | media type
    then for each slice:
        offset u64 | time in ms u64 | message count u32 | length of the payload u32
        flags u32 (1: joined, 2: has extras, 4: has a producer)
        if count > 1: length of each message, count x u32
        if it has extras: length of the extras u32 | extras
        if it has a producer: epoch u64 | first sequence u64 | (last sequence - first sequence) u32
            | length of the id u16 | id
        payload

`application/vnd.semel.topic-batch` puts batches for several partitions of a topic into one POST:

    magic "SMT1" | number of parts u32
    then for each part: partition u32 | length of the batch u32 | the batch, in the batch format

The parts are sorted by partition, and all messages have the same media type.

A slice contains messages of one append. In a joined slice, commas separate the messages. Offsets
increase, and can have gaps between them. Extras are keys, timestamps and headers.
`semel.model.messages` describes their layout.
"""

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from msgspec import Struct

from semel.model.commands import Batch
from semel.model.limits import (
    BATCH_MESSAGES_MAX,
    MEDIA_TYPE_BYTES_MAX,
    PRODUCER_ID_BYTES_MAX,
    TOPIC_PARTITIONS_MAX,
)
from semel.model.messages import (
    Header,
    encode_extras,
    extras_fault_steps,
    find_extras_fault,
    is_json,
)
from semel.model.slices import Slice, SliceProducer
from semel.model.steps import STEP_BYTES, Steps, finish
from semel.wire.json_mode import PARSED_BYTES, TOO_MANY, split_steps

U32: Final = struct.Struct("<I")

FRAMES_MAGIC: Final = b"SMF1"
FRAMES_HEAD: Final = struct.Struct("<4sHHIQQ")
FRAMES_UP_TO_DATE: Final = 1
FRAMES_CLOSED: Final = 2

SLICE_HEAD: Final = struct.Struct("<QQIII")
SLICE_PAYLOAD_BYTES_AT: Final = 20  # where a slice head contains the payload size
SLICE_JOINED: Final = 1
SLICE_EXTRAS: Final = 2
SLICE_PRODUCER: Final = 4
PRODUCER_HEAD: Final = struct.Struct("<QQIH")

_BATCH_MAGIC: Final = b"SMB1"
_BATCH_HEAD: Final = struct.Struct("<4sHHI")
_BATCH_EXTRAS: Final = 1
_TOPIC_MAGIC: Final = b"SMT1"
_TOPIC_HEAD: Final = struct.Struct("<4sI")
_PART_HEAD: Final = struct.Struct("<II")
_SPACE: Final = b" \t\n\r"


class BadFormat(ValueError):
    """Raised if a body does not have the format that its media type requires."""


class Frames(Struct, frozen=True):
    """The decoded body of a response to a read, in the frames format."""

    content_type: str
    slices: list[Slice]
    next_offset: int
    tail: int
    is_up_to_date: bool
    is_closed: bool


class DecodedBatch(Struct, frozen=True, gc=False):
    """A decoded body in the batch format: the media type of the messages, and the batch.

    If the messages are valid, `error` is None. If not, `batch` is None and `error` is the reason.
    """

    content_type: str
    batch: Batch | None
    error: str | None = None


class DecodedParts(Struct, frozen=True, gc=False):
    """A decoded body in the topic-batch format: the media type, and a batch for each partition.

    If the messages are valid, `error` is None. If not, it is the reason.
    """

    content_type: str
    parts: tuple[tuple[int, Batch], ...]
    error: str | None = None


def to_json_array(slices: Iterable[Slice]) -> bytes:
    """Return the JSON messages of all slices as one JSON array."""
    return b"[" + to_bytes(slices, b",") + b"]"


def to_bytes(slices: Iterable[Slice], separator: bytes = b"") -> bytes:
    """Return the payloads of all slices, joined with `separator`."""
    return separator.join([each.payload for each in slices])


# ---- the batch format ----------------------------------------------------------------------------


def encode_batch(
    content_type: str,
    messages: Sequence[bytes],
    *,
    keys: Sequence[bytes | None] | None = None,
    headers: Sequence[Sequence[Header]] | None = None,
    timestamps: Sequence[int | None] | None = None,
) -> bytes:
    """Encode messages in the batch format, with their keys, headers and timestamps.

    `content_type` is the media type of the messages.
    """
    count = len(messages)
    extras = encode_extras(count, keys=keys, headers=headers, timestamps=timestamps)
    lengths = struct.pack(f"<{count}I", *map(len, messages))
    return pack_batch(content_type, lengths, messages, extras)


def pack_batch(
    content_type: str, lengths: bytes, payload: Sequence[bytes | memoryview], extras: bytes = b""
) -> bytes:
    """Encode a batch whose parts are already encoded.

    `lengths` contains the length of each message as u32. `payload` contains all messages, in any
    number of parts. `extras` contains the encoded keys, headers and timestamps.
    """
    media_type = content_type.encode("ascii")
    flags = _BATCH_EXTRAS if extras else 0
    head = _BATCH_HEAD.pack(_BATCH_MAGIC, flags, len(media_type), len(lengths) // U32.size)
    return b"".join((head, media_type, lengths, _sized(extras), *payload))


def _sized(extras: bytes) -> bytes:
    return U32.pack(len(extras)) + extras if extras else b""


def decode_batch(body: bytes) -> DecodedBatch:
    """Decode a body in the batch format. Raises BadFormat if the body is malformed.

    The extras (keys, headers and timestamps) are checked only if they are long. Otherwise the
    engine checks them.
    """
    return finish(decode_batch_steps(body))


def decode_batch_steps(body: bytes) -> Steps[DecodedBatch]:
    """Do the same as `decode_batch`, in steps."""
    if len(body) < _BATCH_HEAD.size:
        raise BadFormat("the batch is truncated")
    magic, flags, type_bytes, count = _BATCH_HEAD.unpack_from(body)
    if magic != _BATCH_MAGIC or flags & ~_BATCH_EXTRAS:
        raise BadFormat("the body is not a batch, or has an unknown version")
    if not 0 < count <= BATCH_MESSAGES_MAX:
        raise BadFormat(f"a batch must have 1 to {BATCH_MESSAGES_MAX} messages")
    content_type, at = _take_media_type(body, _BATCH_HEAD.size, type_bytes)
    lengths, at = _take(body, at, 4 * count)
    extras = b""
    if flags & _BATCH_EXTRAS:
        extras, at = _take_extras(body, at)
    sizes = struct.unpack(f"<{count}I", lengths)
    payload = body[at:]
    if sum(sizes) != len(payload):
        raise BadFormat("the message lengths do not match the size of the batch")
    if not all(sizes):
        return DecodedBatch(content_type, None, "a message is empty")
    is_checked = len(extras) > STEP_BYTES
    fault = (yield from extras_fault_steps(extras, count)) if is_checked else None
    if fault is not None:
        return DecodedBatch(content_type, None, fault)
    if is_json(content_type):
        decoded = yield from _decode_json(content_type, payload, sizes)
    else:
        lengths = lengths if count > 1 else b""
        decoded = DecodedBatch(content_type, Batch(payload, count, lengths))
    batch = decoded.batch
    if extras and batch is not None:
        batch = Batch(batch.payload, count, batch.lengths, extras, is_checked)
    return DecodedBatch(content_type, batch, decoded.error)


def _decode_json(content_type: str, payload: bytes, sizes: Sequence[int]) -> Steps[DecodedBatch]:
    """Make a batch of JSON messages. Each message must be exactly one JSON value.

    For example, the message `1,2` is refused, and so are the messages `[1` and `2]`.
    """
    messages, at = [], 0
    for size in sizes:
        messages.append(payload[at : at + size].strip(_SPACE))
        at += size
    lengths = struct.pack(f"<{len(sizes)}I", *map(len, messages))
    # Add the brackets before the join, because adding them afterwards would copy the whole batch.
    messages[0] = b"[" + messages[0]
    messages[-1] += b"]"
    if len(payload) > PARSED_BYTES:
        yield
    batch = yield from split_steps(b",".join(messages))
    if not isinstance(batch, Batch):
        return DecodedBatch(content_type, None, batch or "a message is empty")
    if batch.count != len(messages) or (batch.count > 1 and batch.lengths != lengths):
        return DecodedBatch(content_type, None, "a message is not exactly one JSON value")
    return DecodedBatch(content_type, batch)


# ---- the topic-batch format ----------------------------------------------------------------------


def encode_parts(parts: Mapping[int, bytes]) -> bytes:
    """Return a body in the topic-batch format. `parts` maps partitions to encoded batches."""
    pieces = [_TOPIC_HEAD.pack(_TOPIC_MAGIC, len(parts))]
    for partition in sorted(parts):
        pieces += (_PART_HEAD.pack(partition, len(parts[partition])), parts[partition])
    return b"".join(pieces)


def decode_parts_steps(body: bytes) -> Steps[DecodedParts]:
    """Decode a body in the topic-batch format, in steps. Raises BadFormat if it is malformed."""
    content_type, error = "", None
    parts: list[tuple[int, Batch]] = []
    unpaused_bytes = 0
    for partition, part in _split_parts(body):
        decoded = yield from decode_batch_steps(part)
        if decoded.content_type != (content_type or decoded.content_type):
            raise BadFormat("all parts must have the same media type")
        content_type = decoded.content_type
        if decoded.batch is not None:
            parts.append((partition, decoded.batch))
        elif error is None:
            error = f"the part for partition {partition}: {decoded.error}"
        unpaused_bytes += len(part)
        if unpaused_bytes > STEP_BYTES:
            unpaused_bytes = 0
            yield
    if sum(batch.count for _, batch in parts) > BATCH_MESSAGES_MAX:
        raise BadFormat(TOO_MANY)
    return DecodedParts(content_type, tuple(parts), error)


def _split_parts(body: bytes) -> list[tuple[int, bytes]]:
    """Return the partitions of a body in the topic-batch format, and the batch for each."""
    if len(body) < _TOPIC_HEAD.size:
        raise BadFormat("the topic batch is truncated")
    magic, count = _TOPIC_HEAD.unpack_from(body)
    if magic != _TOPIC_MAGIC:
        raise BadFormat("the body is not a topic batch, or has an unknown version")
    if not 0 < count <= TOPIC_PARTITIONS_MAX:
        raise BadFormat(f"a topic batch must have 1 to {TOPIC_PARTITIONS_MAX} parts")
    at, last = _TOPIC_HEAD.size, -1
    parts: list[tuple[int, bytes]] = []
    for _ in range(count):
        head, at = _take(body, at, _PART_HEAD.size)
        partition, size = _PART_HEAD.unpack(head)
        if partition <= last:
            raise BadFormat("the parts must be sorted by partition, each partition once")
        part, at = _take(body, at, size)
        parts.append((partition, part))
        last = partition
    if at != len(body):
        raise BadFormat("the body continues after the last part")
    return parts


# ---- the frames format ---------------------------------------------------------------------------


def encode_frames(
    content_type: str,
    slices: Sequence[Slice],
    *,
    next_offset: int,
    tail: int,
    is_closed: bool = False,
) -> bytes:
    """Encode the result of a read in the frames format.

    `is_closed` means that the stream is closed and ends at `next_offset`.
    """
    media_type = content_type.encode("ascii")
    flags = FRAMES_UP_TO_DATE * (next_offset >= tail) | FRAMES_CLOSED * is_closed
    head = (FRAMES_MAGIC, flags, len(media_type), len(slices), next_offset, tail)
    parts = [FRAMES_HEAD.pack(*head), media_type]
    pack = SLICE_HEAD.pack
    for each in slices:
        payload = each.payload
        flags = SLICE_JOINED if each.is_joined else 0
        optional = b""
        if each.extras:
            flags |= SLICE_EXTRAS
            optional = _sized(each.extras)
        if each.producer is not None:
            flags |= SLICE_PRODUCER
            optional += _pack_producer(each.producer)
        parts.append(pack(each.offset, each.time_ms, each.count, len(payload), flags))
        parts.append(each.lengths + optional)
        parts.append(payload)
    return b"".join(parts)


def _pack_producer(producer: SliceProducer) -> bytes:
    name = producer.id.encode()
    first = producer.first_seq
    return PRODUCER_HEAD.pack(producer.epoch, first, producer.last_seq - first, len(name)) + name


def decode_frames(body: bytes) -> Frames:
    """Decode a body in the frames format. Raises BadFormat if the body is malformed."""
    if len(body) < FRAMES_HEAD.size:
        raise BadFormat("the frames are truncated")
    magic, flags, type_bytes, count, next_offset, tail = FRAMES_HEAD.unpack_from(body)
    if magic != FRAMES_MAGIC or flags & ~(FRAMES_UP_TO_DATE | FRAMES_CLOSED):
        raise BadFormat("the body is not in the frames format, or has an unknown version")
    content_type, at = _take_media_type(body, FRAMES_HEAD.size, type_bytes)
    slices: list[Slice] = []
    end = 0
    for _ in range(count):
        part, at = _take_slice(body, at)
        if part.offset < end:
            raise BadFormat("the offsets of the frames do not increase")
        end = part.next_offset
        slices.append(part)
    if at != len(body):
        raise BadFormat("the body continues after the last frame")
    is_up_to_date, is_closed = bool(flags & FRAMES_UP_TO_DATE), bool(flags & FRAMES_CLOSED)
    if not end <= next_offset <= tail or is_up_to_date != (next_offset == tail):
        raise BadFormat("the next offset contradicts the frames, the tail or the up-to-date flag")
    return Frames(content_type, slices, next_offset, tail, is_up_to_date, is_closed)


def _take_slice(body: bytes, at: int) -> tuple[Slice, int]:
    head, at = _take(body, at, SLICE_HEAD.size)
    offset, time_ms, count, payload_bytes, flags = SLICE_HEAD.unpack(head)
    if not count or flags & ~(SLICE_JOINED | SLICE_EXTRAS | SLICE_PRODUCER):
        raise BadFormat("the head of a frame is malformed")
    lengths, at = _take(body, at, 4 * count if count > 1 else 0)
    extras, producer = b"", None
    if flags & SLICE_EXTRAS:
        extras, at = _take_extras(body, at)
        fault = find_extras_fault(extras, count)
        if fault is not None:
            raise BadFormat(fault)
    if flags & SLICE_PRODUCER:
        producer, at = _take_producer(body, at)
    payload, at = _take(body, at, payload_bytes)
    is_joined = bool(flags & SLICE_JOINED)
    if count > 1:
        size = sum(struct.unpack(f"<{count}I", lengths)) + is_joined * (count - 1)
        if size != payload_bytes:
            raise BadFormat("the message lengths do not match the size of a frame")
    return Slice(offset, count, payload, lengths, is_joined, time_ms, extras, producer), at


def _take_producer(body: bytes, at: int) -> tuple[SliceProducer, int]:
    head, at = _take(body, at, PRODUCER_HEAD.size)
    epoch, first, span, id_bytes = PRODUCER_HEAD.unpack(head)
    name, at = _take(body, at, id_bytes)
    if not 0 < id_bytes <= PRODUCER_ID_BYTES_MAX:
        raise BadFormat(f"a producer id needs 1 to {PRODUCER_ID_BYTES_MAX} bytes, not {id_bytes}")
    try:
        return SliceProducer(name.decode(), epoch, first, first + span), at
    except UnicodeDecodeError:
        raise BadFormat("a producer id is not UTF-8") from None


def _take_extras(body: bytes, at: int) -> tuple[bytes, int]:
    size, at = _take(body, at, U32.size)
    extras, at = _take(body, at, U32.unpack(size)[0])
    if not extras:
        raise BadFormat("a flag says that keys, headers or timestamps follow, but there are none")
    return extras, at


def _take(body: bytes, at: int, size: int) -> tuple[bytes, int]:
    end = at + size
    if end > len(body):
        raise BadFormat("the body is truncated")
    return body[at:end], end


def _take_media_type(body: bytes, at: int, size: int) -> tuple[str, int]:
    media_type, at = _take(body, at, size)
    text = media_type.decode("latin-1")
    if not (0 < size <= MEDIA_TYPE_BYTES_MAX and text.isascii() and text.isprintable()):
        raise BadFormat("the media type is malformed")
    return text, at
