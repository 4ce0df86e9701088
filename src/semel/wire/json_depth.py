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
# The inside of a string, without its end. An escape of which a part is missing is left out.
_IN_STRING: Final = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)
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
    depth = start = 0
    is_in_string = False
    while start < len(message):
        if is_in_string:
            # The part ends before the quotation mark that ends the string, if it has one.
            end = _end_of(_IN_STRING, message, start)
            is_in_string = message[end : end + 1] != b'"'
            if end == start and is_in_string:
                return False  # not JSON: the text ends with a backslash
            end += not is_in_string
        else:
            # The part ends where a string begins that goes on after it.
            end = _end_of(_WHOLE_STRINGS, message, start)
            steps = _STRING.sub(b"", message[start:end]).translate(_TO_STEPS, _NOT_BRACKETS)
            depths = list(accumulate(memoryview(steps).cast("b"), initial=depth))
            if max(depths) > JSON_DEPTH_MAX:
                return True
            depth = depths[-1]
            if end == start:
                is_in_string = True
                end += 1
        start = end
        if start < len(message):
            yield
    return False


def _end_of(pattern: re.Pattern[bytes], message: bytes, start: int) -> int:
    """Return where the match of `pattern` at `start` ends, at most STEP_BYTES after `start`."""
    found = pattern.match(message, start, start + STEP_BYTES)
    assert found is not None  # the pattern matches nothing at all, too
    return found.end()
