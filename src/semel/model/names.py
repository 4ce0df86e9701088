"""Names and numbers: whether they are within the limits of the engine."""

from semel.model.limits import NUMBER_MAX


def is_name(text: str, bytes_max: int) -> bool:
    """Return True if `text` is not empty and has at most `bytes_max` bytes as UTF-8."""
    if not 0 < len(text) <= bytes_max:
        return False
    if text.isascii():
        return True
    try:
        return len(text.encode()) <= bytes_max
    except UnicodeEncodeError:
        return False


def is_number(number: int) -> bool:
    """Return True if `number` is in 0..NUMBER_MAX, which every JSON parser represents exactly."""
    return 0 <= number <= NUMBER_MAX
