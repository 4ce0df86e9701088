"""Long computations in steps, so that the event loop can serve other requests in between."""

import heapq
from collections.abc import Collection, Generator
from itertools import islice
from typing import Final, TypeVar

from semel.model.limits import KIB

T = TypeVar("T")

# A computation that yields after each step and returns its result. A step takes a few milliseconds.
# The server runs one step per turn of its event loop; `finish` runs all steps at once.
Steps = Generator[None, None, T]

STEP_BYTES: Final = 64 * KIB  # one step looks at this number of bytes in detail
STEP_ROWS: Final = 2_000  # one step handles this number of rows of a list


def finish(steps: Steps[T]) -> T:
    """Run all remaining steps, and return the result."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            result: T = done.value
            return result


def sort_steps(texts: Collection[str]) -> Steps[list[str]]:
    """Return the texts in sorted order, in steps.

    Parts of the list are sorted first, and then merged.
    """
    unsorted = iter(texts)
    parts: list[list[str]] = []
    while part := sorted(islice(unsorted, STEP_ROWS)):
        parts.append(part)
        if len(texts) > STEP_ROWS:
            yield
    if len(parts) <= 1:
        return parts[0] if parts else []
    merged = heapq.merge(*parts)
    found: list[str] = []
    while part := list(islice(merged, STEP_ROWS)):
        found += part
        yield
    return found
