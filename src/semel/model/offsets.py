"""Conversion between ordinals (integers) and offsets (the sortable strings that clients see)."""

from typing import Final

from semel.model.limits import NUMBER_MAX

OFFSET_DIGITS: Final = 16
OFFSET_CHARS: Final = 2 * OFFSET_DIGITS + 1
OFFSET_PREFIX: Final = "0" * OFFSET_DIGITS + "_"


def print_offset(ordinal: int) -> str:
    """Return the string form of an ordinal."""
    return f"{OFFSET_PREFIX}{ordinal:016d}"


def parse_offset(text: str) -> int | None:
    """Return the ordinal of an offset, or None if `text` is not an offset.

    This server's offsets begin with 16 zeros. An offset with other digits there is from a different
    server. To have the server refuse such an offset, return NUMBER_MAX, which is after the tail of
    every stream.
    """
    high, underscore, low = text.partition("_")
    if not underscore or len(high) != OFFSET_DIGITS or len(low) != OFFSET_DIGITS:
        return None
    if not (text.isascii() and high.isdigit() and low.isdigit()):
        return None
    return NUMBER_MAX if int(high) else min(int(low), NUMBER_MAX)
