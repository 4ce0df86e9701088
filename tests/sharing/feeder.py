"""Appends the inputs of a run: keyed messages, whose numbers count up for each key."""

from random import Random
from typing import Any, Final

from semel import Client
from tests.sharing.pacing import PacedThread

_IN_FLIGHT: Final = 5


def key_of(index: int) -> str:
    """Return a key. Some keys are long, and some are not ASCII."""
    return (f"order-{index}", f"größe {index}", f"{index}", f"{index:x}" * 40)[index % 4]


class Feeder(PacedThread):
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
        super().__init__()
        self._url = url
        self._topic = topic
        self._keys = [key_of(index) for index in range(keys)]
        self._random = random
        self._poison_of = poison_of or {}

    def feed(self) -> None:
        with Client(self._url) as client:
            topic = client.topic(self._topic)
            with topic.producer("feeder", max_in_flight=_IN_FLIGHT) as producer:
                while self.await_permission():
                    key, value = self._next()
                    producer.append(value, key=key)
                    self.fed += 1
                    if self.fed == self.allowed:
                        producer.flush()

    def _next(self) -> tuple[str, dict[str, Any]]:
        key = self._random.choice(self._keys)
        number = self.appended[key]
        self.appended[key] += 1
        value: dict[str, Any] = {"key": key, "number": number}
        if self.fed in self._poison_of:
            value["poison"] = self._poison_of[self.fed]
        return key, value
