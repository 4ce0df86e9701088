"""Fields of commands: whether names and numbers are within the limits of the engine."""

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


def is_optional_name(text: str | None, bytes_max: int) -> bool:
    """Return True if `text` is None or a name."""
    return text is None or is_name(text, bytes_max)


def is_optional_number(number: int | None) -> bool:
    """Return True if `number` is None or in 0..NUMBER_MAX."""
    return number is None or is_number(number)


def first_invalid(*checks: tuple[str, bool]) -> str | None:
    """Return the name of the first field that is not valid, or None if all are valid.

    Each check is a pair of a field's name and a bool. The bool is True if the field is valid.
    """
    return next((field for field, is_valid in checks if not is_valid), None)
