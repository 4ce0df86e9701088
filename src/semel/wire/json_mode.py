"""JSON mode: a body split into its messages, byte for byte, without building objects.

The text of each message is kept as it was sent: spacing inside, duplicate keys, large integers.
Only what stands around the elements of the top-level array is dropped.
"""

import re
import struct
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

import msgspec
from msgspec import Raw

from semel.model.commands import Batch
from semel.model.limits import BATCH_MESSAGES_MAX

JSON_DEPTH_MAX: Final = 64
_SPACE: Final = b" \t\n\r"
_TOO_DEEP: Final = f"JSON is nested deeper than {JSON_DEPTH_MAX}"
# One bracket more on each side than is allowed: anything shorter cannot be too deep. An object
# around another one has a name and a colon, too: `{"":`.
_DEEP_BYTES_MIN: Final = 2 * (JSON_DEPTH_MAX + 1)
_DEEP_OBJECTS_BYTES_MIN: Final = 5 * JSON_DEPTH_MAX + 2
_TOGETHER_MAX: Final = 32
_STRING: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_TO_STEPS: Final = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")  # 1 and, signed, -1
_NOT_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))
_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
_STAND_IN: Final = rb"\\u0041"

_many: Final = msgspec.json.Decoder(list[Raw])
_one: Final = msgspec.json.Decoder(Raw)


def split_json(body: bytes) -> Batch | str | None:
    """Split a body: the batch, or what is wrong with it, or None for an empty array."""
    if not body.isascii():
        try:
            body.decode()
        except UnicodeDecodeError as error:
            return f"JSON must be UTF-8 (byte {error.start})"
    try:
        return _split(body, body)
    except RecursionError:
        return _TOO_DEEP
    except msgspec.DecodeError as error:
        return _split_with_surrogates(body) or _reason(error)


def without_surrogates(body: bytes) -> bytes:
    """Give a text of the same length in which every escape of a surrogate names a letter."""
    return _SURROGATE.sub(_STAND_IN, body)


def _split_with_surrogates(body: bytes) -> Batch | str | None:
    """Split a body refused for a lone surrogate escape, which is legal JSON.

    The parser judges a text of the same length in which every such escape names a letter.
    """
    judged = without_surrogates(body)
    if judged == body:
        return None
    try:
        return _split(body, judged)
    except RecursionError:
        return _TOO_DEEP
    except msgspec.DecodeError as error:
        return _reason(error)


def _reason(error: msgspec.DecodeError) -> str:
    return f"not JSON: {str(error).removeprefix('JSON is malformed: ')}"


def _split(body: bytes, judged: bytes) -> Batch | str | None:
    if not judged.lstrip(_SPACE).startswith(b"["):
        _one.decode(judged)
        message = body.strip(_SPACE)
        return _TOO_DEEP if is_too_deep(message) else Batch(message)
    raws = _many.decode(judged)
    if not raws:
        return None
    if len(raws) > BATCH_MESSAGES_MAX:
        return f"more than {BATCH_MESSAGES_MAX} messages in one batch"
    return _batch_of(body, raws if body is judged else _originals(body, judged, raws))


def _originals(body: bytes, judged: bytes, raws: Sequence[Raw]) -> list[bytes]:
    """Find the messages in the body that stand where the judged ones stand."""
    at = judged.index(b"[") + 1
    messages = []
    for raw in raws:
        # Between two messages are only spaces and a comma, with which no message begins.
        at = judged.index(raw, at)
        messages.append(body[at : at + len(raw)])
        at += len(raw)
    return messages


def _batch_of(body: bytes, messages: Sequence[Raw] | Sequence[bytes]) -> Batch | str:
    count = len(messages)
    sizes = list(map(len, messages))
    # With no spaces around any the body is the join.
    is_join = len(body) == sum(sizes) + count + 1
    payload = body[1:-1] if is_join else b",".join(messages)
    if _has_too_deep(payload, sizes):
        return _TOO_DEEP
    return Batch(payload, count, struct.pack(f"<{count}I", *sizes) if count > 1 else b"")


# ---- depth ---------------------------------------------------------------------------------------


def _has_too_deep(payload: bytes, sizes: Sequence[int]) -> bool:
    """Look at the messages of a join: as many at once as have few enough brackets together."""
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
    """Count the depth of valid JSON; exactly only where the number of brackets leaves a doubt."""
    if message.count(b"[") + message.count(b"{") <= JSON_DEPTH_MAX:
        return False
    steps = _STRING.sub(b"", message).translate(_TO_STEPS, _NOT_BRACKETS)
    return max(accumulate(memoryview(steps).cast("b")), default=0) > JSON_DEPTH_MAX
