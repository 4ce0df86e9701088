"""Patterns of stream paths.

In a pattern, the segment `*` stands for exactly one segment, and the segment `**` for any number of
segments, also none. All other segments stand for themselves, and have no `*`. No pattern matches a
reserved path.
"""

import re
from itertools import takewhile
from typing import Final

from semel.model.limits import PATTERN_BYTES_MAX
from semel.model.names import is_name
from semel.model.rights import RESERVED

DEEP_MAX: Final = 2
_WILDCARDS: Final = ("*", "**")
_ANY: Final = "\0"  # a segment that every literal segment of a pattern for children matches


class Pattern:
    """A pattern that is compiled once, to be compared with many paths.

    `first` and `last` are the first and the last segment of all paths that it matches, or None if
    they have different ones. `parent` are the segments before its first wildcard, or all if it has
    none: every path that it matches is `parent`, or is below it.
    """

    __slots__ = ("_children", "_paths", "first", "last", "parent")

    def __init__(self, text: str) -> None:
        segments = text.split("/")
        self.first: Final = None if segments[0] in _WILDCARDS else segments[0]
        self.last: Final = None if segments[-1] in _WILDCARDS else segments[-1]
        self.parent: Final = "/".join(takewhile(lambda each: each not in _WILDCARDS, segments))
        self._paths = _compile(segments, "/{}")
        self._children = _compile(segments, f"/(?:{{}}|{_ANY})")

    def matches(self, path: str) -> bool:
        """Return True if the pattern matches the path."""
        return self._paths.fullmatch("/" + path) is not None and not path.startswith(RESERVED)

    def can_match_below(self, parent: str) -> bool:
        """Return True if the pattern matches a path with one segment more than `parent`."""
        return self._children.fullmatch(f"/{parent}/{_ANY}") is not None


def _compile(segments: list[str], literal: str) -> re.Pattern[str]:
    """Return the regular expression of a pattern. `literal` is that of a literal segment."""
    parts: list[str] = []
    for segment in segments:
        if segment == "**":
            parts.append("(?:/[^/]*)*")
        elif segment == "*":
            parts.append("/[^/]*")
        else:
            parts.append(literal.format(re.escape(segment)))
    return re.compile("".join(parts))


def matched_names(pattern: str) -> tuple[str | None, str | None]:
    """Return a path and a prefix: a pattern matches only this path, and paths with this prefix.

    The path is None unless the pattern matches it: `orders/**` matches `orders`, and `orders/*`
    does not. The prefix is what precedes the first wildcard, and None without a wildcard.
    """
    segments = pattern.split("/")
    literal = list(takewhile(lambda each: each not in _WILDCARDS, segments))
    rest, parent = segments[len(literal) :], "/".join(literal)
    is_matched = bool(literal) and all(each == "**" for each in rest)
    prefix = f"{parent}/" if literal else ""
    return (parent if is_matched else None), (prefix if rest else None)


def is_pattern(text: str) -> bool:
    """Return True if the text is a pattern."""
    return pattern_problem(text) is None


def pattern_problem(text: str) -> str | None:
    """Return why the text is not a pattern, or None if it is one.

    More `**` than DEEP_MAX would take long to match. A pattern that matches only reserved paths, or
    whose author expects `*` to match a part of a segment, would match nothing and look valid.
    """
    segments = text.split("/")
    if not is_name(text, PATTERN_BYTES_MAX):
        return f"a pattern has 1 to {PATTERN_BYTES_MAX} bytes as UTF-8"
    if not all(segments):
        return f"the pattern {text!r} has an empty segment"
    if segments.count("**") > DEEP_MAX:
        return f"the pattern {text!r} has more than {DEEP_MAX} segments **"
    if any("*" in segment and segment not in _WILDCARDS for segment in segments):
        return f"in the pattern {text!r}, * must be a whole segment, as in orders/* or **/eu"
    if text.startswith(RESERVED):
        return f"the pattern {text!r} matches nothing: no pattern matches a path below {RESERVED}"
    return None
