"""How deep JSON is nested.

Many parsers fail on JSON that is nested deeply. So a message that is nested too deep is refused,
before it is stored. The JSON is valid, and is not parsed again: only its brackets are counted.
"""

import re
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

from semel.model.steps import STEP_BYTES, Steps, finish

JSON_DEPTH_MAX: Final = 64
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


def any_deep_steps(payload: bytes, sizes: Sequence[int]) -> Steps[bool]:
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


def may_be_deep(text: bytes) -> bool:
    """Return False if a text has too few brackets to be nested too deep."""
    return text.count(b"[") + text.count(b"{") > JSON_DEPTH_MAX


def _deep_steps(message: bytes) -> Steps[bool]:
    """Do the same as `is_too_deep`, in steps.

    To save time, the depth is computed only if the message has more than JSON_DEPTH_MAX opening
    brackets.
    """
    if not may_be_deep(message):
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
