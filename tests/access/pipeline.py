"""A connection that appends with several requests at once, on a thread of its own."""

import threading
from collections.abc import Callable
from typing import Final

from tests.access.rig import AccessServer, request_bytes, status_of
from tests.spec.process import PATIENCE_SECONDS

BATCH: Final = 20
NO_RESPONSE: Final = 0  # the server has closed the connection before the response


class Pipeline:
    """Sends numbered appends with the same head, again and again.

    The body of each append is its number. `statuses` are those of the responses, in order.
    `first_after` is the number of the first append that was sent after `mark` had returned. The
    server closes the connection if a request is refused before its body has arrived. The appends
    that have no response then are sent again, on a new connection.
    """

    def __init__(
        self,
        server: AccessServer,
        path: str,
        token: str,
        *,
        width: int = 8,
        producer: str = "",
        batch: int = BATCH,
    ) -> None:
        self._server = server
        self._token = token
        self._path = path
        self._width = width
        self._batch = batch
        self._producer = producer
        self._is_marked = threading.Event()
        self._is_over = threading.Event()
        self.sent = 0
        self.first_after: int | None = None
        self.statuses: list[int] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def mark(self) -> None:
        """Note that every append that is sent from now on is sent later than this call."""
        self._is_marked.set()

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Wait until the condition is true. Fails after a long time."""
        pause = threading.Event()
        for _ in range(int(PATIENCE_SECONDS / 0.002)):
            if condition():
                return
            pause.wait(0.002)
        raise AssertionError(f"{self.sent} sent, {len(self.statuses)} responses")

    def wait_for_responses(self, count: int) -> None:
        """Wait for this many responses."""
        self.wait_for(lambda: len(self.statuses) >= count)

    def wait_for_late(self, count: int) -> None:
        """Wait until this many appends are sent after `mark`."""
        self.wait_for(
            lambda: self.first_after is not None and self.sent >= self.first_after + count
        )

    def stop(self) -> None:
        """Stop sending, and wait for all responses."""
        self._is_over.set()
        self._thread.join(PATIENCE_SECONDS)
        assert len(self.statuses) == self.sent

    def accepted(self) -> list[bytes]:
        """Return the bodies of the appends that were accepted."""
        return [
            self.body(number) for number, status in enumerate(self.statuses) if status in (200, 204)
        ]

    def body(self, number: int) -> bytes:
        return b"%0*d;" % (self._width - 1, number)

    def _run(self) -> None:
        with self._server.line() as line:
            while not self._is_over.is_set():
                if self._is_marked.is_set() and self.first_after is None:
                    self.first_after = self.sent
                numbers = range(self.sent, self.sent + self._batch)
                self.sent += self._batch
                responses = line.ask_all([("POST", self._request(number)) for number in numbers])
                self.statuses += [
                    NO_RESPONSE if response is None else status_of(response)
                    for response in responses
                ]

    def _request(self, number: int) -> bytes:
        headers = [("Authorization", f"Bearer {self._token}"), ("Content-Type", "text/plain")]
        if self._producer:
            headers += [("Producer-Id", self._producer), ("Producer-Epoch", "0")]
            headers.append(("Producer-Seq", str(number)))
        return request_bytes("POST", f"/v1/stream/{self._path}", headers, self.body(number))
