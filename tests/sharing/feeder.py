"""Appends the inputs of a run: keyed messages, whose numbers count up for each key."""

import threading
from collections import Counter
from random import Random
from typing import Any, Final

from semel import Client

_IN_FLIGHT: Final = 5


def key_of(index: int) -> str:
    """Return a key. Some keys are long, and some are not ASCII."""
    return (f"order-{index}", f"größe {index}", f"{index}", f"{index:x}" * 40)[index % 4]


class Feeder(threading.Thread):
    """Appends messages with the client's pipelined producer, as far as `allow` has allowed.

    The server may be killed meanwhile, and the topic may grow. `appended` counts the messages of
    each key. It is complete when the thread has ended. `poison_of` marks messages by their index.
    """

    def __init__(
        self,
        url: str,
        topic: str,
        *,
        keys: int,
        random: Random,
        poison_of: dict[int, str] | None = None,
    ) -> None:
        super().__init__(name="feeder", daemon=True)
        self.appended: Counter[str] = Counter()
        self.fed = 0
        self.error: Exception | None = None
        self._url = url
        self._topic = topic
        self._keys = [key_of(index) for index in range(keys)]
        self._random = random
        self._poison_of = poison_of or {}
        self._allowed = 0
        self._is_over = False
        self._changed = threading.Condition()

    @property
    def allowed(self) -> int:
        return self._allowed

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
            with Client(self._url) as client:
                topic = client.topic(self._topic)
                with topic.producer("feeder", max_in_flight=_IN_FLIGHT) as producer:
                    while self._await_permission():
                        key, value = self._next()
                        producer.append(value, key=key)
                        self.fed += 1
                        if self.fed == self._allowed:
                            producer.flush()
        except Exception as error:  # noqa: BLE001 - `check` raises it in the thread of the run
            self.error = error

    def _await_permission(self) -> bool:
        """Wait until another message is allowed. Return False at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self.fed < self._allowed or self._is_over)
            return self.fed < self._allowed

    def _next(self) -> tuple[str, dict[str, Any]]:
        key = self._random.choice(self._keys)
        number = self.appended[key]
        self.appended[key] += 1
        value: dict[str, Any] = {"key": key, "number": number}
        if self.fed in self._poison_of:
            value["poison"] = self._poison_of[self.fed]
        return key, value
