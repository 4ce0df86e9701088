"""Long computations in steps, so that the event loop can serve other requests in between."""

from collections.abc import Generator
from typing import Final, TypeVar

from semel.model.limits import KIB

T = TypeVar("T")

# A computation that yields after each step and returns its result. A step takes a few milliseconds.
# The server runs one step per turn of its event loop; `finish` runs all steps at once.
Steps = Generator[None, None, T]

STEP_BYTES: Final = 64 * KIB  # one step looks at this number of bytes in detail


def finish(steps: Steps[T]) -> T:
    """Run all remaining steps, and return the result."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            result: T = done.value
            return result
