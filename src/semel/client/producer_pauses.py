"""How long to wait before trying again."""

from collections.abc import Callable
from typing import Final

from semel.client.errors import ClientError

Jitter = Callable[[float], float]

_SECONDS_MIN: Final = 0.05
_SECONDS_MAX: Final = 5.0
_DOUBLINGS_MAX: Final = 10


class Pauses:
    """Pauses that double with every trouble in a row, shortened by `jitter`."""

    def __init__(self, jitter: Jitter) -> None:
        self._jitter = jitter
        self._troubles = 0
        self.trouble: ClientError | None = None  # the last one
        self.ends_at = 0.0

    def begin(self, now: float, trouble: ClientError, at_least: float | None = None) -> None:
        """Wait after a trouble, and not less than the server asked for."""
        seconds = min(_SECONDS_MAX, _SECONDS_MIN * 2 ** min(self._troubles, _DOUBLINGS_MAX))
        self._troubles += 1
        self.trouble = trouble
        self.ends_at = max(self.ends_at, now + max(self._jitter(seconds), at_least or 0.0))

    def forget(self) -> None:
        """Begin anew: something went well."""
        self._troubles = 0
