"""A thread that appends the inputs of a run, no faster than the run allows."""

import threading
from collections import Counter


class PacedThread(threading.Thread):
    """Appends messages as far as `allow` has allowed. A subclass implements `feed`.

    `appended` counts the messages of each series. It is complete when the thread has ended.
    """

    def __init__(self) -> None:
        super().__init__(name="feeder", daemon=True)
        self.appended: Counter[str] = Counter()
        self.fed = 0
        self.error: Exception | None = None
        self.allowed = 0
        self._is_over = False
        self._changed = threading.Condition()

    def allow(self, count: int) -> None:
        """Allow the thread to append `count` messages in all."""
        with self._changed:
            self.allowed = max(self.allowed, count)
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
            self.feed()
        except Exception as error:  # noqa: BLE001 - `check` raises it in the thread of the run
            self.error = error

    def feed(self) -> None:
        """Append messages, and count them, as long as `await_permission` returns a number."""
        raise NotImplementedError

    def await_permission(self) -> int:
        """Wait until more messages are allowed. Return how many, or 0 at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self.fed < self.allowed or self._is_over)
            return self.allowed - self.fed
