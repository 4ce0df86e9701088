"""The three things every bound is made of: a name, a number, a batch."""

from semel.model.commands import Batch
from semel.model.limits import BATCH_MESSAGES_MAX, NUMBER_MAX


def is_name(text: str, bytes_max: int) -> bool:
    """Tell whether a text is neither empty nor too long, and can be written as UTF-8."""
    if not 0 < len(text) <= bytes_max:
        return False
    if text.isascii():
        return True
    try:
        return len(text.encode()) <= bytes_max
    except UnicodeEncodeError:
        return False


def is_number(number: int) -> bool:
    """Tell whether a number survives every JSON parser, and is none below zero."""
    return 0 <= number <= NUMBER_MAX


def is_batch(batch: Batch) -> bool:
    """Tell whether a batch has as many lengths as it needs."""
    if batch.count == 1:
        return not batch.lengths
    return 1 < batch.count <= BATCH_MESSAGES_MAX and len(batch.lengths) == 4 * batch.count
