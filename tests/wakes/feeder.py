"""Appends the inputs of a run, by plain HTTP: messages whose numbers count up in each stream."""

import threading
from collections import Counter
from random import Random
from time import sleep
from typing import Final

from tests.transactions.raw import Line, Lost

_BATCH_MAX: Final = 4
_AGAIN_SECONDS: Final = 0.02


class Feeder(threading.Thread):
    """Appends messages to random streams, as far as `allow` has allowed.

    A stream is created before its first message, so some are newer than the subscriptions. The
    server may be killed meanwhile. `appended` counts the messages of each stream. It is complete
    when the thread has ended.
    """

    def __init__(self, url: str, streams: list[str], random: Random) -> None:
        super().__init__(name="feeder", daemon=True)
        self.appended: Counter[str] = Counter()
        self.fed = 0
        self.error: Exception | None = None
        self._line = Line(url)
        self._streams = streams
        self._random = random
        self._sequences: Counter[str] = Counter()
        self._allowed = 0
        self._is_over = False
        self._changed = threading.Condition()

    def allow(self, count: int) -> None:
        """Allow the thread to append `count` messages in all."""
        with self._changed:
            self._allowed = max(self._allowed, count)
            self._changed.notify_all()

    def end(self) -> None:
        """Wait until everything that is allowed was appended, and end the thread."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
        self.join()
        self.check()

    def check(self) -> None:
        """Raise the error of the thread, if it has failed."""
        if self.error is not None:
            raise self.error

    def run(self) -> None:
        """Append until `end` is called."""
        try:
            while count := self._await_permission():
                self._append(min(count, self._random.randint(1, _BATCH_MAX)))
        except Exception as error:  # noqa: BLE001 - `check` raises it in the thread of the run
            self.error = error
        finally:
            self._line.close()

    def _await_permission(self) -> int:
        """Wait until more messages are allowed. Return how many, or 0 at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self.fed < self._allowed or self._is_over)
            return self._allowed - self.fed

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
