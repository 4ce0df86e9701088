"""Offsets: ordinals of a stream's messages, and how they are printed."""

from typing import Final

from semel.model.limits import NUMBER_MAX

OFFSET_DIGITS: Final = 16
OFFSET_CHARS: Final = 2 * OFFSET_DIGITS + 1
_PREFIX: Final = "0" * OFFSET_DIGITS + "_"


def print_offset(ordinal: int) -> str:
    """Print an ordinal as the protocol's sortable offset."""
    return f"{_PREFIX}{ordinal:016d}"


def parse_offset(text: str) -> int | None:
    """Read a printed offset; None if it is not one.

    The left half is always zero in ours. A foreign offset with another left half is well formed and
    lies beyond every tail, so it reads as the largest ordinal.
    """
    left, underscore, right = text.partition("_")
    if not underscore or len(left) != OFFSET_DIGITS or len(right) != OFFSET_DIGITS:
        return None
    if not (text.isascii() and left.isdigit() and right.isdigit()):
        return None
    return NUMBER_MAX if int(left) else min(int(right), NUMBER_MAX)
