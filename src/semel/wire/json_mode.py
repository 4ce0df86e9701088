"""Splits the JSON body of an append into messages.

The messages are not parsed into objects. Each message stays as it was sent, with its spaces,
duplicate keys and large integers. Other JSON bodies are documents (see `documents.py`).

A body can have 4 MiB. To check all of it at once would delay every other request. So a list that is
too long is refused before it is read, and long checks are made in steps.
"""

import re
import struct
from collections.abc import Sequence
from functools import cache
from typing import Any, Final, TypeVar

import msgspec
from msgspec import UNSET, Raw, UnsetType

from semel.model.commands import Batch
from semel.model.limits import BATCH_MESSAGES_MAX, MIB
from semel.model.steps import STEP_BYTES, Steps, finish
from semel.wire.json_depth import JSON_DEPTH_MAX, any_deep_steps, may_be_deep

T = TypeVar("T")

EMPTY_ARRAY: Final = "the array of messages is empty"
TOO_MANY: Final = f"a batch can have at most {BATCH_MESSAGES_MAX} messages"
PARSED_BYTES: Final = MIB  # after this number of parsed bytes, other requests get a turn
_SPACE: Final = b" \t\n\r"
_TOO_DEEP: Final = f"JSON must not be nested deeper than {JSON_DEPTH_MAX} levels"
_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
_STAND_IN: Final = rb"\\u0041"

_array: Final = msgspec.json.Decoder(list[Raw])
_value: Final = msgspec.json.Decoder(Raw)


def split_json(body: bytes) -> Batch | str | None:
    """Return the batch in a body. If the body is invalid, return the reason. For `[]`, return None.

    This takes up to 0.3 s for a body of 4 MiB. The server uses `split_steps` for long bodies.
    """
    if len(body) <= STEP_BYTES and body.isascii() and not may_be_deep(body):
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
    parsed = yield from without_surrogates(body)
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


def without_surrogates(body: bytes) -> Steps[bytes]:
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
    return _TOO_DEEP if (yield from any_deep_steps(batch.payload, sizes)) else batch


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
