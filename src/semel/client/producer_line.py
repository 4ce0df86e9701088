"""One connection of a producer: requests written one behind the other, answers read in order."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import cast

from semel.client.answers import Answer, AnswerParser, Event
from semel.client.errors import ClientError, Indeterminate, ProtocolError
from semel.client.producer_batches import Batch

Answers = list[tuple[Batch, Answer]]
OnHeard = Callable[["Line", Answers, ClientError | None], None]


class Line(asyncio.Protocol):
    """A connection. `quiet_since`: when something was last heard, or asked after a silence.

    `on_heard` is called with answers and, once and at last, with the reason why no more will come.
    """

    def __init__(self, on_heard: OnHeard) -> None:
        self._on_heard = on_heard
        self._parser = AnswerParser()
        self._sent: deque[Batch] = deque()
        self._loop = asyncio.get_running_loop()
        self._is_over = False
        self.quiet_since = 0.0

    @property
    def is_waiting(self) -> bool:
        """Whether an answer is still to come."""
        return bool(self._sent)

    def send(self, batch: Batch, request: bytes) -> None:
        """Write a request; what is written after the end is lost, which is said in time."""
        if not self._sent:
            self.quiet_since = self._loop.time()
        self._sent.append(batch)
        self._parser.expect()
        self._transport.write(request)

    def hang_up(self) -> None:
        """End the connection; nothing more is heard of it."""
        self._is_over = True
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The server has accepted."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Some answers, or pieces of one."""
        if self._is_over:
            return
        self.quiet_since = self._loop.time()
        answers: Answers = []
        trouble: ClientError | None = None
        try:
            answers = self._matched(self._parser.feed(data))
        except ProtocolError as error:
            trouble = error
        if trouble is None and self._parser.is_closing:
            trouble = Indeterminate("the server will answer no more on this connection")
        if trouble is not None:
            self.hang_up()
        if answers or trouble is not None:
            self._on_heard(self, answers, trouble)

    def connection_lost(self, exc: Exception | None) -> None:
        """No more will come."""
        if self._is_over:
            return
        self._is_over = True
        answers: Answers = []
        reason = "the server closed it" if exc is None else str(exc)
        trouble: ClientError = Indeterminate(f"the connection was lost: {reason}")
        try:
            answers = self._matched(self._parser.end())
        except ProtocolError as error:
            trouble = error
        self._on_heard(self, answers, trouble)

    def _matched(self, events: list[Event]) -> Answers:
        matched: Answers = []
        for event in events:
            assert isinstance(event, Answer)
            matched.append((self._sent.popleft(), event))
        return matched
