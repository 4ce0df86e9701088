"""What a client reports about an append is true, even if the server is killed."""

import threading
from collections import Counter
from pathlib import Path
from typing import Any, Final

import pytest

from semel import Client, errors
from tests.integration.both import KINDS, client_of
from tests.spec.process import PATIENCE_SECONDS, Server

KILLS: Final = 4
WRITERS: Final = 4
APPENDS_PER_RUN: Final = 60
IMPATIENCE_SECONDS: Final = 0.1


class Writers:
    """Threads that append unique values, and record the result of each call."""

    def __init__(self, kind: str, url: str) -> None:
        self.verdicts: dict[str, str] = {}
        self.moved = threading.Condition()
        self._kind = kind
        self._url = url
        self._is_over = threading.Event()
        self._threads = [
            threading.Thread(target=self._write, args=(number,)) for number in range(WRITERS)
        ]
        for thread in self._threads:
            thread.start()

    def wait(self, count: int) -> None:
        """Wait until `count` more calls have ended."""
        with self.moved:
            goal = len(self.verdicts) + count
            assert self.moved.wait_for(lambda: len(self.verdicts) >= goal, PATIENCE_SECONDS)

    def end(self) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join(PATIENCE_SECONDS)

    def _write(self, writer: int) -> None:
        with client_of(self._kind, self._url, timeout=PATIENCE_SECONDS) as client:
            stream = client.stream("orders")
            number = 0
            while not self._is_over.is_set():
                number += 1
                value = f"{writer}-{number}"
                verdict = self._append(stream, value, number)
                with self.moved:
                    self.verdicts[value] = verdict
                    self.moved.notify_all()

    def _append(self, stream: Any, value: str, number: int) -> str:
        key = value if number % 3 == 0 else None
        timeout = IMPATIENCE_SECONDS if number % 7 == 0 else None
        try:
            stream.append(value, idempotency_key=key, timeout=timeout)
        except (errors.Refused, errors.Unavailable, errors.Indeterminate) as error:
            return error.applied
        return "yes"


@pytest.mark.crash
@pytest.mark.parametrize("kind", KINDS)
def test_appends_are_stored_as_the_client_says_across_kills(kind: str, tmp_path: Path) -> None:
    server = Server(tmp_path / "data")
    try:
        with Client(server.url) as client:
            orders = client.stream("orders").create("application/json")
            writers = Writers(kind, server.url)
            try:
                for _ in range(KILLS):
                    writers.wait(APPENDS_PER_RUN)
                    server.kill()
                    server = Server(tmp_path / "data", port=server.port)
                writers.wait(APPENDS_PER_RUN)
            finally:
                writers.end()
            stored = Counter(message.value for message in orders.read())
    finally:
        server.kill()
    allowed = {"yes": {1}, "no": {0}, "unknown": {0, 1}}
    wrong = {
        value: (verdict, stored[value])
        for value, verdict in writers.verdicts.items()
        if stored[value] not in allowed[verdict]
    }
    assert wrong == {}
    assert set(stored) <= set(writers.verdicts)
    assert Counter(writers.verdicts.values())["yes"] > KILLS * APPENDS_PER_RUN // 2
