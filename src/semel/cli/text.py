"""Text for a terminal: safe to print, easy to read."""

from typing import Final

_UNITS: Final = ("bytes", "KiB", "MiB", "GiB", "TiB")


def printable(text: str) -> str:
    """Escape what could move the cursor or lie about the line: data is not to be trusted."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def size_text(count: int) -> str:
    """Print a number of bytes with three digits that matter."""
    value, unit = float(count), 0
    while value >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{count} bytes" if unit == 0 else f"{value:.1f} {_UNITS[unit]}"
