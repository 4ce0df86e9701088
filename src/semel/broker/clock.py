"""Time and randomness, as a component: nothing else asks the operating system for them."""

import os
import time
from typing import Protocol


class Clock(Protocol):
    """A source of time and randomness."""

    def now_ms(self) -> int:
        """Return the wall time in milliseconds since 1970."""

    def random_bytes(self, count: int) -> bytes:
        """Return bytes that cannot be guessed."""


class SystemClock:
    """The operating system's clock and entropy."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def random_bytes(self, count: int) -> bytes:
        return os.urandom(count)
