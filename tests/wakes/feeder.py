"""Appends the inputs of a run, by plain HTTP: messages whose numbers count up in each stream."""

from collections import Counter
from random import Random
from time import sleep
from typing import Final

from tests.sharing.pacing import PacedThread
from tests.transactions.raw import Line, Lost

_BATCH_MAX: Final = 4
_AGAIN_SECONDS: Final = 0.02


class Feeder(PacedThread):
    """Appends messages to random streams, as far as `allow` has allowed.

    A stream is created before its first message, so some are newer than the subscriptions. The
    server may be killed meanwhile. `appended` counts the messages of each stream. It is complete
    when the thread has ended.
    """

    def __init__(self, url: str, streams: list[str], random: Random) -> None:
        super().__init__()
        self._line = Line(url)
        self._streams = streams
        self._random = random
        self._sequences: Counter[str] = Counter()

    def feed(self) -> None:
        try:
            while count := self.await_permission():
                self._append(min(count, self._random.randint(1, _BATCH_MAX)))
        finally:
            self._line.close()

    def _append(self, count: int) -> None:
        stream = self._random.choice(self._streams)
        target = f"/v1/stream/{stream}"
        if stream not in self._sequences:
            self._ask("PUT", target, [])
        start = self.appended[stream]
        values = [{"key": stream, "number": start + index} for index in range(count)]
        self._ask(
            "POST",
            target,
            values,
            Producer_Id="feeder",
            Producer_Epoch=0,
            Producer_Seq=self._sequences[stream],
        )
        self._sequences[stream] += 1
        self.appended[stream] += count
        self.fed += count

    def _ask(
        self, method: str, target: str, values: list[dict[str, object]], **more: object
    ) -> None:
        """Send a request until there is a response."""
        while True:
            try:
                self._line.ask(method, target, values, **more)
            except Lost:
                sleep(_AGAIN_SECONDS)
            else:
                return
