"""The first lines of every answer: the status, the date, and what is the same on all of them.

Nothing of it is made per answer: a line is made once per status and second, when it is needed.
"""

from email.utils import formatdate
from http import HTTPStatus
from typing import Final

from semel.broker.clock import Clock
from semel.wire.rendering import CONSTANT_LINES, EXPOSED_LINE

_STATUS_LINES: Final = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n" for status in HTTPStatus
}


class Lines(dict[int, bytes]):
    """The first lines of an answer, by its status."""

    def __init__(self, constant: str) -> None:
        super().__init__()
        self._constant = constant
        self._date = ""

    def __missing__(self, status: int) -> bytes:
        line = _STATUS_LINES.get(status) or f"HTTP/1.1 {status} \r\n"
        return self.setdefault(status, (line + self._date + self._constant).encode("ascii"))

    def turn(self, date: str) -> None:
        """Begin another second."""
        self._date = date
        self.clear()


class Starts:
    """The first lines of all answers of a listener; `turn` must be called every second."""

    def __init__(self, clock: Clock) -> None:
        self.plain: Final = Lines(CONSTANT_LINES)
        self.exposed: Final = Lines(CONSTANT_LINES + EXPOSED_LINE)
        self._clock = clock
        self._second = -1
        self.turn()

    def turn(self) -> None:
        """Look whether another second has begun."""
        second = self._clock.now_ms() // 1000
        if second != self._second:
            self._second = second
            date = f"Date: {formatdate(second, usegmt=True)}\r\n"
            self.plain.turn(date)
            self.exposed.turn(date)
