"""Time and entropy, as a component: the only place that asks the operating system for either."""

import os
import time
from typing import Protocol


class Clock(Protocol):
    """Where time and randomness come from."""

    def now_ms(self) -> int:
        """Wall time, ms since 1970."""

    def random_bytes(self, count: int) -> bytes:
        """Bytes nobody can guess."""


class SystemClock:
    """The operating system's clock and entropy."""

    def now_ms(self) -> int:
        """Ask the system."""
        return time.time_ns() // 1_000_000

    def random_bytes(self, count: int) -> bytes:
        """Ask the system."""
        return os.urandom(count)
