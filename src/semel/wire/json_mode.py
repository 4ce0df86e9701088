"""Parses two kinds of JSON bodies: appends and documents.

The body of an append is split into messages, but the messages are not parsed into objects. Each
message stays as it was sent, with its spaces, duplicate keys and large integers.

All other JSON request bodies are documents. Their structs are in `semel.wire.schema`.

A body can have 4 MiB. To check all of it at once would delay every other request. So a list that is
too long is refused before it is read, and long checks are made in steps.
"""

import re
import struct
from collections.abc import Sequence
from functools import cache
from itertools import accumulate
from typing import Any, Final, TypeVar

import msgspec
from msgspec import UNSET, Raw, UnsetType

from semel.model.commands import Batch
from semel.model.limits import BATCH_MESSAGES_MAX, MIB, NUMBER_MAX, TXN_LIST_MAX
from semel.model.offsets import parse_offset
from semel.model.steps import STEP_BYTES, Steps, finish
from semel.wire.headers import Headers, require_json
from semel.wire.problems import MalformedRequest, bad_request
from semel.wire.schema.transactions import Offset

T = TypeVar("T")

JSON_DEPTH_MAX: Final = 64
EMPTY_ARRAY: Final = "the array of messages is empty"
TOO_MANY: Final = f"a batch can have at most {BATCH_MESSAGES_MAX} messages"
PARSED_BYTES: Final = MIB  # after so many bytes were parsed, it is time for a pause
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
_WHOLE_STRINGS: Final = re.compile(rb'(?:[^"]++|"[^"\\]*+(?:\\.[^"\\]*+)*+")*+', re.DOTALL)
# Translates an opening bracket into the signed byte 1, and a closing bracket into -1.
_TO_STEPS: Final = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
_NOT_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))
_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
_STAND_IN: Final = rb"\\u0041"

_array: Final = msgspec.json.Decoder(list[Raw])
_value: Final = msgspec.json.Decoder(Raw)


def split_json(body: bytes) -> Batch | str | None:
    """Return the batch in a body. If the body is invalid, return the reason. For `[]`, return None.

    This takes up to 0.3 s for a body of 4 MiB. The server uses `split_steps` for long bodies.
    """
    if len(body) <= STEP_BYTES and body.isascii() and not _may_be_deep(body):
        try:
            return _split_small(body)
        except msgspec.DecodeError:
            pass  # `split_steps` finds out why
    return finish(split_steps(body))


def _split_small(body: bytes) -> Batch | str | None:
    """Do the same as `split_json`, for a body in which no message can be nested too deep.

    Raises DecodeError if the body is not JSON, or has an escaped lone surrogate.
    """
    if not body.lstrip(_SPACE).startswith(b"["):
        _value.decode(body)
        return Batch(body.strip(_SPACE))
    messages = first_elements(body, BATCH_MESSAGES_MAX)
    if messages is None:
        return TOO_MANY
    return _pack(body, messages)[0] if messages else None


def split_steps(body: bytes) -> Steps[Batch | str | None]:
    """Do the same as `split_json`, in steps."""
    if not body.isascii():
        try:
            body.decode()
        except UnicodeDecodeError as error:
            return f"JSON must be UTF-8; byte {error.start} is invalid"
    try:
        return (yield from _split(body, body))
    except RecursionError:
        return _TOO_DEEP
    except msgspec.DecodeError as error:
        reason = _not_json(error)
    # An escaped lone surrogate is valid JSON, but the parser refuses it. So it is replaced.
    parsed = yield from _without_surrogates(body)
    if parsed == body:
        return reason
    try:
        return (yield from _split(body, parsed))
    except RecursionError:
        return _TOO_DEEP
    except msgspec.DecodeError as error:
        return _not_json(error)


def _not_json(error: msgspec.DecodeError) -> str:
    return f"the text is not JSON: {str(error).removeprefix('JSON is malformed: ')}"


def _without_surrogates(body: bytes) -> Steps[bytes]:
    """Return a copy of the body in which each escaped surrogate is replaced by an escaped letter.

    Every message has the same position in the copy, because every such escape has six bytes.
    """
    parts, start = [], 0
    while start < len(body):
        end = min(start + STEP_BYTES, len(body))
        if end < len(body):  # no escape may be cut in two
            escape = body.rfind(b"\\", end - 5, end)
            end = end if escape < 0 else escape
        parts.append(_SURROGATE.sub(_STAND_IN, body[start:end]))
        start = end
        yield
    return b"".join(parts)


def _split(body: bytes, parsed: bytes) -> Steps[Batch | str | None]:
    messages = _messages(body, parsed)
    if messages is None:
        return TOO_MANY
    if not messages:
        return None
    if len(body) > PARSED_BYTES:
        yield
    batch, sizes = _pack(body, messages)
    return _TOO_DEEP if (yield from _any_deep_steps(batch.payload, sizes)) else batch


def _messages(body: bytes, parsed: bytes) -> Sequence[Raw] | Sequence[bytes] | None:
    """Return the messages in a body, or None if there are too many.

    Raises DecodeError or RecursionError if `parsed` is not JSON, or is nested too deep for msgspec.
    """
    if not parsed.lstrip(_SPACE).startswith(b"["):
        _value.decode(parsed)
        return [body.strip(_SPACE)]
    raws = first_elements(parsed, BATCH_MESSAGES_MAX)
    return raws if raws is None or body is parsed else _originals(body, parsed, raws)


def first_elements(array: bytes, limit: int) -> Sequence[Raw] | None:
    """Return the elements of a JSON array, or None if it has more than `limit` elements.

    Elements after the limit are not read. Raises DecodeError or RecursionError as msgspec does.
    """
    if array.count(b",") < limit:
        return _array.decode(array)
    try:
        found = _limited_array(limit).decode(array)
    except msgspec.ValidationError:
        return None
    return [each for each in msgspec.structs.astuple(found) if each is not UNSET]


@cache
def _limited_array(limit: int) -> msgspec.json.Decoder[Any]:
    """Return a decoder that raises ValidationError as soon as an array passes the limit.

    msgspec checks the length of a list only after it has read the list. But it reads a struct, here
    one with a field for each element, only up to the last field.
    """
    fields = [(f"element_{index}", Raw | UnsetType, UNSET) for index in range(limit)]
    array = msgspec.defstruct("LimitedArray", fields, array_like=True, forbid_unknown_fields=True)
    return msgspec.json.Decoder(array)


def prepare_limits() -> None:
    """Create what the first long array would need, because that takes 50 ms."""
    _limited_array(BATCH_MESSAGES_MAX)


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


def _pack(body: bytes, messages: Sequence[Raw] | Sequence[bytes]) -> tuple[Batch, Sequence[int]]:
    """Return the batch of the messages in a body, and the size of each message."""
    count = len(messages)
    sizes = list(map(len, messages))
    # If there are no spaces around the messages, the payload is the body without its two brackets.
    is_join = len(body) == sum(sizes) + count + 1
    payload = body[1:-1] if is_join else b",".join(messages)
    return Batch(payload, count, struct.pack(f"<{count}I", *sizes) if count > 1 else b""), sizes


def _any_deep_steps(payload: bytes, sizes: Sequence[int]) -> Steps[bool]:
    """Return True if any message is nested too deep.

    To save time, messages are checked in groups. A group with few brackets cannot contain a message
    that is nested too deep. A group with many brackets is divided into smaller groups.
    """
    kinds = [kind for kind in (b"[", b"{") if kind in payload]
    if max(sizes) < (_DEEP_BYTES_MIN if b"[" in kinds else _DEEP_OBJECTS_BYTES_MIN):
        return False
    before = [0, *accumulate(sizes)]
    first, count, step = 0, len(sizes), _TOGETHER_MAX
    unpaused_bytes = 0
    while first < count:
        last = min(first + step, count)
        start, end = before[first] + first, before[last] + last
        if sum([payload.count(kind, start, end) for kind in kinds]) <= JSON_DEPTH_MAX:
            first = last
        elif step > 1:
            step //= 2
        else:
            if unpaused_bytes > STEP_BYTES:
                unpaused_bytes = 0
                yield
            if (yield from _deep_steps(payload[start : end - 1])):
                return True
            unpaused_bytes += end - start
            first = last
    return False


def is_too_deep(message: bytes) -> bool:
    """Return True if `message`, which must be valid JSON, is nested too deep."""
    return finish(_deep_steps(message))


def _may_be_deep(text: bytes) -> bool:
    return text.count(b"[") + text.count(b"{") > JSON_DEPTH_MAX


def _deep_steps(message: bytes) -> Steps[bool]:
    """Do the same as `is_too_deep`, in steps.

    To save time, the depth is computed only if the message has more than JSON_DEPTH_MAX opening
    brackets.
    """
    if not _may_be_deep(message):
        return False
    depth, start, size = 0, 0, STEP_BYTES
    while start < len(message):
        # The part ends where a string begins that goes on after it.
        part = _WHOLE_STRINGS.match(message, start, start + size)
        assert part is not None  # the pattern matches nothing at all, too
        end = part.end()
        if end == start:
            if start + size >= len(message):
                return False  # not JSON: a string does not end
            size *= 2
            continue
        steps = _STRING.sub(b"", message[start:end]).translate(_TO_STEPS, _NOT_BRACKETS)
        depths = list(accumulate(memoryview(steps).cast("b"), initial=depth))
        if max(depths) > JSON_DEPTH_MAX:
            return True
        depth, start, size = depths[-1], end, STEP_BYTES
        if start < len(message):
            yield
    return False


# ---- documents -----------------------------------------------------------------------------------


# The strings and commas of a document. The longest documents that can be valid have about 20,000:
# lists of 1,000 entries, each with up to 12 of them.
_TOKENS_MAX: Final = 50_000
_TOO_LONG: Final = re.compile(
    rb'(?:[^",]*+(?:,|"[^"\\]*+(?:\\.[^"\\]*+)*+")){%d}' % (_TOKENS_MAX + 1), re.DOTALL
)


def read_document(headers: Headers, body: bytes, kind: type[T]) -> T:
    """Return the JSON document in a body, as an instance of `kind`.

    An empty body counts as `{}`. Raises MalformedRequest if the body does not match `kind`, has
    another media type than JSON, or is so long that one of its lists must have too many entries.
    """
    require_json(headers, body)
    refuse_long_list(body)
    return decode_document(body, kind)


def refuse_long_list(text: bytes) -> None:
    """Raise MalformedRequest if a text has too many entries for a document. It is not parsed."""
    if len(text) > _TOKENS_MAX and _TOO_LONG.match(text) is not None:
        raise too_many_entries()


def too_many_entries() -> MalformedRequest:
    """Return the exception for a document with a list that has too many entries."""
    message = f"a list in the body has too many entries; the maximum is {TXN_LIST_MAX:,}"
    return bad_request("invalid_request", message)


def decode_document(body: bytes, kind: type[T]) -> T:
    """Return the JSON document in a body. Raises MalformedRequest if it does not match `kind`.

    An empty body counts as `{}`.
    """
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

    Return None if the body is not JSON, even without its escaped surrogates, or if it is long.
    """
    if len(body) > STEP_BYTES:
        return None
    try:
        _value.decode(finish(_without_surrogates(body)))
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
