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
# One bracket more on each side than is allowed: anything shorter cannot be too deep.
_DEEP_BYTES_MIN: Final = 2 * (JSON_DEPTH_MAX + 1)
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
    if _has_too_deep(body, raws):
        return _TOO_DEEP
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


def _batch_of(body: bytes, messages: Sequence[Raw] | Sequence[bytes]) -> Batch:
    count = len(messages)
    if count == 1:
        return Batch(bytes(messages[0]))
    sizes = list(map(len, messages))
    lengths = struct.pack(f"<{count}I", *sizes)
    if len(body) == sum(sizes) + count + 1:  # no spaces around any: the body is the join
        return Batch(body[1:-1], count, lengths)
    return Batch(b",".join(messages), count, lengths)


# ---- depth ---------------------------------------------------------------------------------------


def _has_too_deep(body: bytes, raws: Sequence[Raw]) -> bool:
    if len(body) < _DEEP_BYTES_MIN or body.count(b"[") + body.count(b"{") <= JSON_DEPTH_MAX:
        return False
    return any(is_too_deep(bytes(raw)) for raw in raws if len(raw) >= _DEEP_BYTES_MIN)


def is_too_deep(message: bytes) -> bool:
    """Count the depth of valid JSON; exactly only where the number of brackets leaves a doubt."""
    if message.count(b"[") + message.count(b"{") <= JSON_DEPTH_MAX:
        return False
    steps = _STRING.sub(b"", message).translate(_TO_STEPS, _NOT_BRACKETS)
    return max(accumulate(memoryview(steps).cast("b")), default=0) > JSON_DEPTH_MAX
