"""Patterns of stream paths.

In a pattern, the segment `*` stands for exactly one segment, and the segment `**` for any number of
segments, also none. All other segments stand for themselves: `*` inside a segment is an ordinary
character. No pattern matches a reserved path.
"""

import re
from functools import lru_cache
from typing import Final

from semel.model.limits import PATTERN_BYTES_MAX
from semel.model.names import is_name
from semel.model.rights import RESERVED

DEEP_MAX: Final = 2


@lru_cache(maxsize=4_096)
def compile_pattern(pattern: str) -> re.Pattern[str]:
    """Return a regular expression that fully matches the paths that the pattern matches."""
    parts: list[str] = []
    for segment in pattern.split("/"):
        if segment == "**":
            parts.append("(?:/[^/]*)*")
        elif segment == "*":
            parts.append("/[^/]*")
        else:
            parts.append("/" + re.escape(segment))
    return re.compile("".join(parts))


def matches(pattern: str, path: str) -> bool:
    """Return True if the pattern matches the path."""
    if path.startswith(RESERVED):
        return False
    return compile_pattern(pattern).fullmatch("/" + path) is not None


def literal_prefix(pattern: str) -> str:
    """Return what all paths that match the pattern begin with."""
    literal: list[str] = []
    for segment in pattern.split("/"):
        if segment in ("*", "**"):
            prefix = "/".join(literal)
            return f"{prefix}/" if literal and segment == "*" else prefix
        literal.append(segment)
    return pattern


def is_pattern(text: str) -> bool:
    """Return True if the text is a pattern. More `**` than DEEP_MAX would take long to match."""
    segments = text.split("/")
    return is_name(text, PATTERN_BYTES_MAX) and all(segments) and segments.count("**") <= DEEP_MAX
