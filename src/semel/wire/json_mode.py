"""Parses two kinds of JSON bodies: appends and documents.

The body of an append is split into messages, but the messages are not parsed into objects. Each
message stays as it was sent, with its spaces, duplicate keys and large integers.

All other JSON request bodies are documents. Their structs are in `semel.wire.schema`.
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
from semel.wire.headers import Headers, refuse_encoding, require_json
from semel.wire.problems import bad_request
from semel.wire.schema.transactions import Offset

T = TypeVar("T")

JSON_DEPTH_MAX: Final = 64
EMPTY_ARRAY: Final = "the array of messages is empty"
_SPACE: Final = b" \t\n\r"
_TOO_DEEP: Final = f"JSON must not be nested deeper than {JSON_DEPTH_MAX} levels"
_DOCUMENT_TOO_DEEP: Final = "the JSON is nested too deeply"
# The length of the shortest JSON that is nested too deep. For arrays, it is one opening and one
# closing bracket more than the allowed depth. For objects, it is longer, because every object
# except the innermost also contains a name and a colon: `{"":`.
_DEEP_BYTES_MIN: Final = 2 * (JSON_DEPTH_MAX + 1)
_DEEP_OBJECTS_BYTES_MIN: Final = 5 * JSON_DEPTH_MAX + 2
_TOGETHER_MAX: Final = 32
_STRING: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
# Translates an opening bracket into the signed byte 1, and a closing bracket into -1.
_TO_STEPS: Final = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
_NOT_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))
_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
_STAND_IN: Final = rb"\\u0041"

_array: Final = msgspec.json.Decoder(list[Raw])
_value: Final = msgspec.json.Decoder(Raw)


def split_json(body: bytes, parsed: bytes | None = None) -> Batch | str | None:
    """Return the batch in a body. If the body is invalid, return the reason. For `[]`, return None.

    Callers pass only `body`. An escaped lone surrogate is valid JSON, but the parser refuses it. In
    this case, the function calls itself with `parsed`, a copy of `body` in which an escaped letter
    replaces each escaped surrogate. Each message has the same position in `body` and `parsed`.
    """
    if not body.isascii():
        try:
            body.decode()
        except UnicodeDecodeError as error:
            return f"JSON must be UTF-8; byte {error.start} is invalid"
    try:
        return _split(body, body if parsed is None else parsed)
    except RecursionError:
        return _TOO_DEEP
    except msgspec.DecodeError as error:
        without = _without_surrogates(body) if parsed is None else body
        if without != body:
            return split_json(body, without)
        return f"the text is not JSON: {str(error).removeprefix('JSON is malformed: ')}"


def _without_surrogates(body: bytes) -> bytes:
    """Return a copy of the body in which each escaped surrogate is replaced by an escaped letter.

    The copy has the same length, because every such escape has six bytes.
    """
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
        return f"a batch can have at most {BATCH_MESSAGES_MAX} messages"
    return _batch_of(body, raws if body is parsed else _originals(body, parsed, raws))


def _originals(body: bytes, parsed: bytes, raws: Sequence[Raw]) -> list[bytes]:
    """Return the messages of `body`. `raws` are the messages of `parsed`, without surrogates.

    Each message has the same position and the same length in `body` and in `parsed`.
    """
    at = parsed.index(b"[") + 1
    messages = []
    for raw in raws:
        # `index` finds the message itself, because only spaces and a comma precede it, and no
        # message begins with a space or a comma.
        at = parsed.index(raw, at)
        messages.append(body[at : at + len(raw)])
        at += len(raw)
    return messages


def _batch_of(body: bytes, messages: Sequence[Raw] | Sequence[bytes]) -> Batch | str:
    count = len(messages)
    sizes = list(map(len, messages))
    # If there are no spaces around the messages, the payload is the body without its two brackets.
    is_join = len(body) == sum(sizes) + count + 1
    payload = body[1:-1] if is_join else b",".join(messages)
    if _has_too_deep(payload, sizes):
        return _TOO_DEEP
    return Batch(payload, count, struct.pack(f"<{count}I", *sizes) if count > 1 else b"")


def _has_too_deep(payload: bytes, sizes: Sequence[int]) -> bool:
    """Return True if any message is nested too deep.

    To save time, messages are checked in groups. A group with few brackets cannot contain a message
    that is nested too deep. A group with many brackets is divided into smaller groups.
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
    """Return True if `message`, which must be valid JSON, is nested too deep.

    To save time, the depth is computed only if the message has more than JSON_DEPTH_MAX opening
    brackets.
    """
    if message.count(b"[") + message.count(b"{") <= JSON_DEPTH_MAX:
        return False
    steps = _STRING.sub(b"", message).translate(_TO_STEPS, _NOT_BRACKETS)
    return max(accumulate(memoryview(steps).cast("b")), default=0) > JSON_DEPTH_MAX


# ---- documents -----------------------------------------------------------------------------------


def read_document(headers: Headers, body: bytes, kind: type[T]) -> T:
    """Return the JSON document in a body, as an instance of `kind`.

    An empty body counts as `{}`. Raises MalformedRequest if the body does not match `kind`, or has
    another media type than JSON.
    """
    refuse_encoding(headers)
    require_json(headers, body)
    try:
        return msgspec.json.decode(body or b"{}", type=kind)
    except RecursionError:
        reason = _DOCUMENT_TOO_DEEP
    except (msgspec.ValidationError, UnicodeDecodeError) as error:
        reason = str(error)
    except msgspec.DecodeError as error:
        reason = _fault_without_surrogates(body) or str(error)
    raise bad_request("bad_body", f"the body is not valid for this request: {reason}")


def _fault_without_surrogates(body: bytes) -> str | None:
    """Return what is wrong with a body that the parser refused, if surrogates may be the cause.

    Return None if the body is not JSON, even without its escaped surrogates.
    """
    try:
        _value.decode(_without_surrogates(body))
    except RecursionError:
        return _DOCUMENT_TOO_DEEP
    except msgspec.DecodeError:
        return None
    return "a string contains an escaped lone surrogate"


def read_offset(value: Offset, field: str) -> int:
    """Return the ordinal (integer value) of an offset in a JSON document.

    `field` is the member that contains `value`. Raises MalformedRequest if `value` is invalid.
    """
    ordinal = parse_offset(value) if isinstance(value, str) else value
    if ordinal is None or not 0 <= ordinal <= NUMBER_MAX:
        message = f"'{field}' must be an offset or an integer"
        raise bad_request("invalid_offset", message, field=field)
    return ordinal


def check_name(value: str, field: str, bytes_max: int) -> str:
    """Return `value` if it has 1 to `bytes_max` characters, all of them printable ASCII.

    Otherwise raises MalformedRequest. Names are restricted to printable ASCII because headers must
    be able to contain them.
    """
    if not (0 < len(value) <= bytes_max and value.isascii() and value.isprintable()):
        message = f"'{field}' must have 1 to {bytes_max} printable ASCII characters"
        raise bad_request("invalid_request", message, field=field)
    return value
