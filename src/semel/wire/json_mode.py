"""JSON bodies: appends, which are split into their messages, and documents.

An append is split without building objects. Each message stays as it was sent, with its spaces,
duplicate keys and large integers. Only the brackets, commas and spaces around the elements of the
top-level array are dropped. Documents are the bodies of all other requests; `semel.wire.schema` has
their structs.
"""

import re
import struct
from collections.abc import Sequence
from itertools import accumulate
from typing import Final, TypeVar

import msgspec
from msgspec import Raw

from semel.model.commands import Batch
from semel.model.limits import BATCH_MESSAGES_MAX, NUMBER_MAX
from semel.model.offsets import parse_offset
from semel.wire.headers import Headers, refuse_encoding
from semel.wire.problems import bad_request
from semel.wire.schema.transactions import Offset

T = TypeVar("T")

JSON_DEPTH_MAX: Final = 64
EMPTY_ARRAY: Final = "an empty array contains no message"
_SPACE: Final = b" \t\n\r"
_TOO_DEEP: Final = f"JSON is nested deeper than {JSON_DEPTH_MAX}"
# The minimum length of JSON that is nested too deep: one bracket more on each side than is allowed.
# Nested objects are longer, because each one but the innermost also has a name and a colon: `{"":`.
_DEEP_BYTES_MIN: Final = 2 * (JSON_DEPTH_MAX + 1)
_DEEP_OBJECTS_BYTES_MIN: Final = 5 * JSON_DEPTH_MAX + 2
_TOGETHER_MAX: Final = 32
_STRING: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_TO_STEPS: Final = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")  # 1 and, signed, -1
_NOT_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))
_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
_STAND_IN: Final = rb"\\u0041"

_array: Final = msgspec.json.Decoder(list[Raw])
_value: Final = msgspec.json.Decoder(Raw)


def split_json(body: bytes, parsed: bytes | None = None) -> Batch | str | None:
    """Return the batch of a body, the reason why it is invalid, or None for an empty array.

    The escape of a lone surrogate is valid JSON, but the parser refuses it. Then `parsed` is parsed
    instead of the body: it has the escape of a letter in place of the escape of each surrogate, so
    all messages have the same position and length in both.
    """
    if not body.isascii():
        try:
            body.decode()
        except UnicodeDecodeError as error:
            return f"JSON must be UTF-8 (byte {error.start})"
    try:
        return _split(body, body if parsed is None else parsed)
    except RecursionError:
        return _TOO_DEEP
    except msgspec.DecodeError as error:
        without = _without_surrogates(body) if parsed is None else body
        if without != body:
            return split_json(body, without)
        return f"not JSON: {str(error).removeprefix('JSON is malformed: ')}"


def _without_surrogates(body: bytes) -> bytes:
    """Return a body of the same length, with the escapes of surrogates replaced by a letter's."""
    return _SURROGATE.sub(_STAND_IN, body)


def _split(body: bytes, parsed: bytes) -> Batch | str | None:
    if not parsed.lstrip(_SPACE).startswith(b"["):
        _value.decode(parsed)
        message = body.strip(_SPACE)
        return _TOO_DEEP if is_too_deep(message) else Batch(message)
    raws = _array.decode(parsed)
    if not raws:
        return None
    if len(raws) > BATCH_MESSAGES_MAX:
        return f"more than {BATCH_MESSAGES_MAX} messages in one batch"
    return _batch_of(body, raws if body is parsed else _originals(body, parsed, raws))


def _originals(body: bytes, parsed: bytes, raws: Sequence[Raw]) -> list[bytes]:
    """Return the messages in the body that have the positions of the messages in `parsed`."""
    at = parsed.index(b"[") + 1
    messages = []
    for raw in raws:
        # Only spaces and a comma are between two messages, and no message begins with these.
        at = parsed.index(raw, at)
        messages.append(body[at : at + len(raw)])
        at += len(raw)
    return messages


def _batch_of(body: bytes, messages: Sequence[Raw] | Sequence[bytes]) -> Batch | str:
    count = len(messages)
    sizes = list(map(len, messages))
    # Without spaces between the messages, the body without its brackets is the payload.
    is_join = len(body) == sum(sizes) + count + 1
    payload = body[1:-1] if is_join else b",".join(messages)
    if _has_too_deep(payload, sizes):
        return _TOO_DEEP
    return Batch(payload, count, struct.pack(f"<{count}I", *sizes) if count > 1 else b"")


def _has_too_deep(payload: bytes, sizes: Sequence[int]) -> bool:
    """Return whether any message is nested too deep.

    Messages with few brackets are checked together, which is faster.
    """
    kinds = [kind for kind in (b"[", b"{") if kind in payload]
    if max(sizes) < (_DEEP_BYTES_MIN if b"[" in kinds else _DEEP_OBJECTS_BYTES_MIN):
        return False
    before = [0, *accumulate(sizes)]
    first, count, step = 0, len(sizes), _TOGETHER_MAX
    while first < count:
        last = min(first + step, count)
        start, end = before[first] + first, before[last] + last
        if sum([payload.count(kind, start, end) for kind in kinds]) <= JSON_DEPTH_MAX:
            first = last
        elif step > 1:
            step //= 2
        elif is_too_deep(payload[start:end]):
            return True
        else:
            first = last
    return False


def is_too_deep(message: bytes) -> bool:
    """Return whether valid JSON is nested too deep.

    The depth is counted only if there are enough brackets.
    """
    if message.count(b"[") + message.count(b"{") <= JSON_DEPTH_MAX:
        return False
    steps = _STRING.sub(b"", message).translate(_TO_STEPS, _NOT_BRACKETS)
    return max(accumulate(memoryview(steps).cast("b")), default=0) > JSON_DEPTH_MAX


# ---- documents -----------------------------------------------------------------------------------


def read_document(headers: Headers, body: bytes, kind: type[T]) -> T:
    """Return the document in a body; an empty body counts as `{}`. Raises MalformedRequest."""
    refuse_encoding(headers)
    try:
        return msgspec.json.decode(body or b"{}", type=kind)
    except RecursionError:
        reason = "it is nested too deep"
    except (msgspec.ValidationError, UnicodeDecodeError) as error:
        reason = str(error)
    except msgspec.DecodeError as error:
        reason = str(error)
        if _is_json_without_surrogates(body):
            reason = "a string in it has the escape of a lone surrogate"
    raise bad_request("bad_body", f"the body is not what this request accepts: {reason}")


def _is_json_without_surrogates(body: bytes) -> bool:
    try:
        msgspec.json.decode(_without_surrogates(body), type=Raw)
    except msgspec.DecodeError:
        return False
    return True


def read_offset(value: Offset, field: str) -> int:
    """Return the ordinal of an offset in a document. Raises MalformedRequest."""
    ordinal = parse_offset(value) if isinstance(value, str) else value
    if ordinal is None or not 0 <= ordinal <= NUMBER_MAX:
        message = f"{field} must be an offset or its integer"
        raise bad_request("invalid_offset", message, field=field)
    return ordinal


def check_name(value: str, field: str, bytes_max: int) -> str:
    """Return `value` if it is printable ASCII and not too long, so that headers can contain it.

    Otherwise raises MalformedRequest.
    """
    if not (0 < len(value) <= bytes_max and value.isascii() and value.isprintable()):
        message = f"{field} must have 1 to {bytes_max} printable ASCII characters"
        raise bad_request("invalid_request", message, field=field)
    return value
