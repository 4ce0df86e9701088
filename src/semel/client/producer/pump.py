"""Moving batches between a producer's core and the server, on an event loop.

The core decides, the pump carries out. All of it runs on the loop's thread; the lock is held
whenever the core is touched, for others append to it from their own threads.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from typing import Final, cast

from semel.client.errors import ClientError, Indeterminate, ProtocolError, Unavailable
from semel.client.flows import NotSent
from semel.client.producer.batches import BatchEvent, ProducerBatch
from semel.client.producer.core import ProducerCore
from semel.client.producer.gather import BodyEncoder
from semel.client.requests import Request, render
from semel.client.response_parser import ParserEvent as AnswerEvent
from semel.client.response_parser import Response, ResponseParser
from semel.client.transport import Transport, connect_error

# ---- producer line -------------------------------------------------------------------------------
# One connection of a producer: requests written one behind the other, answers read in order.


BatchResponses = list[tuple[ProducerBatch, Response]]
OnResponses = Callable[["ProducerConnection", BatchResponses, ClientError | None], None]


class ProducerConnection(asyncio.Protocol):
    """A connection. `quiet_since`: when something was last heard, or asked after a silence.

    `on_heard` is called with answers and, once and at last, with the reason why no more will come.
    """

    def __init__(self, on_heard: OnResponses) -> None:
        self._on_heard = on_heard
        self._parser = ResponseParser()
        self._sent: deque[ProducerBatch] = deque()
        self._loop = asyncio.get_running_loop()
        self._is_over = False
        self.quiet_since = 0.0

    @property
    def is_waiting(self) -> bool:
        """Whether an answer is still to come."""
        return bool(self._sent)

    def send(self, batch: ProducerBatch, request: bytes) -> None:
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
        answers: BatchResponses = []
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
        answers: BatchResponses = []
        reason = "the server closed it" if exc is None else str(exc)
        trouble: ClientError = Indeterminate(f"the connection was lost: {reason}")
        try:
            answers = self._matched(self._parser.end())
        except ProtocolError as error:
            trouble = error
        self._on_heard(self, answers, trouble)

    def _matched(self, events: list[AnswerEvent]) -> BatchResponses:
        matched: BatchResponses = []
        for event in events:
            assert isinstance(event, Response)
            matched.append((self._sent.popleft(), event))
        return matched


# ---- producer pump -------------------------------------------------------------------------------


_SOON_SECONDS: Final = 0.001  # timers are not exact: better a little late than twice

OnEvents = Callable[[list[BatchEvent]], None]


class Pump:
    """One producer's way to the server. `answer_timeout` is how long it may be silent.

    `on_events` is called on the loop's thread, without the lock, with what became of batches.
    """

    def __init__(
        self,
        core: ProducerCore,
        packing: BodyEncoder,
        transport: Transport,
        target: str,
        *,
        lock: threading.Lock,
        on_events: OnEvents,
        answer_timeout: float,
    ) -> None:
        self._core = core
        self._packing = packing
        self._transport = transport
        self._target = target
        self._lock = lock
        self._on_events = on_events
        self._answer_timeout = answer_timeout
        self._line: ProducerConnection | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_ended = False
        self._loop: asyncio.AbstractEventLoop | None = None

    def step(self) -> None:
        """Send what may be sent, report what is settled, and see when to look again."""
        if self._is_ended:
            return
        self._loop = loop = asyncio.get_running_loop()
        now = loop.time()
        self._drop_silent_line(now)
        with self._lock:
            self._core.tick(now)
            is_needed = self._line is None and self._core.is_ready(now)
            batches = self._choose(now)
            events = self._core.ledger.take_events()
            wake_at, expires_at = self._core.wake_at(), self._core.expires_at()
            is_over = self._core.failure is not None
        for batch, request in batches:
            assert self._line is not None
            self._line.send(batch, request)
        if is_over:
            self.end()
        else:
            if is_needed and self._connecting is None:
                self._connecting = loop.create_task(self._connect())
            self._set_timer(now, wake_at, expires_at)
        if events:
            self._on_events(events)

    def end(self) -> None:
        """Hang up and do nothing any more."""
        self._is_ended = True
        if self._timer is not None:
            self._timer.cancel()
        if self._connecting is not None:
            self._connecting.cancel()
        if self._line is not None:
            self._line.hang_up()
            self._line = None

    # ---- sending ---------------------------------------------------------------------------------

    def _choose(self, now: float) -> list[tuple[ProducerBatch, bytes]]:
        chosen: list[tuple[ProducerBatch, bytes]] = []
        if self._line is not None:
            while (batch := self._core.next_to_send(now)) is not None:
                chosen.append((batch, self._render(batch)))
        return chosen

    def _render(self, batch: ProducerBatch) -> bytes:
        media_type = self._packing.content_type(batch.count, batch.extras)
        headers = (("Content-Type", media_type), *self._core.headers(batch))
        return render(Request("POST", self._target, headers, batch.body), self._transport.fixed)

    def _set_timer(self, now: float, wake_at: float | None, expires_at: float | None) -> None:
        times = [expires_at]
        if self._connecting is None:
            times.append(wake_at)
        if self._line is not None and self._line.is_waiting:
            times.append(self._line.quiet_since + self._answer_timeout)
        if self._timer is not None:
            self._timer.cancel()
        given = [time for time in times if time is not None]
        if given:
            assert self._loop is not None
            self._timer = self._loop.call_at(max(min(given), now) + _SOON_SECONDS, self.step)

    # ---- the connection --------------------------------------------------------------------------

    async def _connect(self) -> None:
        address = self._transport.address
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._transport.connect_timeout):
                _, line = await loop.create_connection(
                    lambda: ProducerConnection(self._on_heard),
                    address.host,
                    address.port,
                    ssl=self._transport.tls,
                )
        except OSError as error:
            self._not_reached(connect_error(self._transport, error), loop.time())
        else:
            self._line = line
        self._connecting = None
        self.step()

    def _not_reached(self, failure: NotSent, now: float) -> None:
        with self._lock:
            if failure.is_hopeless:
                self._core.fail(Unavailable(failure.reason))
            else:
                self._core.connect_failed(now, Unavailable(failure.reason))

    def _on_heard(
        self, line: ProducerConnection, answers: BatchResponses, trouble: ClientError | None
    ) -> None:
        if line is not self._line:
            return
        assert self._loop is not None
        now = self._loop.time()
        with self._lock:
            for batch, answer in answers:
                self._core.answered(batch, answer.status, answer.headers, answer.body, now)
            if trouble is not None:
                self._line = None
                self._core.connection_lost(now, trouble)
        self.step()

    def _drop_silent_line(self, now: float) -> None:
        line = self._line
        if line is None or not line.is_waiting:
            return
        if now >= line.quiet_since + self._answer_timeout:
            seconds = self._answer_timeout
            self._line = None
            line.hang_up()
            with self._lock:
                error = Indeterminate(f"no answer within {seconds:g} seconds")
                self._core.connection_lost(now, error)
