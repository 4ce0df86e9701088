"""Conversion between ordinals (integers) and offsets (the sortable strings that clients see)."""

from typing import Final

from semel.model.limits import NUMBER_MAX

OFFSET_DIGITS: Final = 16
OFFSET_CHARS: Final = 2 * OFFSET_DIGITS + 1
_PREFIX: Final = "0" * OFFSET_DIGITS + "_"


def print_offset(ordinal: int) -> str:
    """Return the string form of an ordinal."""
    return f"{_PREFIX}{ordinal:016d}"


def parse_offset(text: str) -> int | None:
    """Return the ordinal of an offset, or None if `text` is not an offset.

    In every offset that this server returns, the first half is zero. An offset from a different
    server can have a first half that is not zero. Such an offset is well formed, but it is after
    the tail of every stream here. The function therefore returns NUMBER_MAX for it.
    """
    high, underscore, low = text.partition("_")
    if not underscore or len(high) != OFFSET_DIGITS or len(low) != OFFSET_DIGITS:
        return None
    if not (text.isascii() and high.isdigit() and low.isdigit()):
        return None
    return NUMBER_MAX if int(high) else min(int(low), NUMBER_MAX)
