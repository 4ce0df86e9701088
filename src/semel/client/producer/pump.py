"""Sending a producer's batches: the connection, the encoding of bodies, and the pump.

The core decides what to send. The pump sends it, on an event loop's thread. The pump holds the lock
while it uses the core, because other threads can append at the same time.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from typing import Final, cast

from semel.client.computed import callback_failed
from semel.client.errors import (
    ClientError,
    Indeterminate,
    ProtocolError,
    Unavailable,
)
from semel.client.flows import NotSent
from semel.client.producer.batches import ProducerBatch
from semel.client.producer.core import ProducerCore
from semel.client.producer.encoding import BodyEncoder
from semel.client.producer.outcomes import BatchEvent
from semel.client.requests import Request, render
from semel.client.response_parser import ParserEvent, Response, ResponseParser
from semel.client.transport import Transport, connect_error

# ---- the connection ------------------------------------------------------------------------------

# None instead of a batch means the request that shows whether the stream has dedup.
BatchResponses = list[tuple[ProducerBatch | None, Response]]
OnResponses = Callable[["ProducerConnection", BatchResponses, ClientError | None], None]


class ProducerConnection(asyncio.Protocol):
    """A connection that can send a request before the responses to earlier requests have come.

    `on_responses` is called with the connection, the new responses and an error. The error is None
    while the connection is open. When the connection ends, the error says why.

    `quiet_since` is the later of two times: when the wait for a response began, and when the last
    bytes arrived.
    """

    def __init__(self, on_responses: OnResponses) -> None:
        self._on_responses = on_responses
        self._parser = ResponseParser()
        self._sent: deque[ProducerBatch | None] = deque()
        self._loop = asyncio.get_running_loop()
        self._is_over = False
        self.quiet_since = 0.0

    @property
    def is_waiting(self) -> bool:
        """True if a request has no response yet."""
        return bool(self._sent)

    def send(self, batch: ProducerBatch | None, request: bytes) -> None:
        """Send a request. If the connection is already closed, `on_responses` will report that.

        `batch` is None for a request that only checks the stream.
        """
        if not self._sent:
            self.quiet_since = self._loop.time()
        self._sent.append(batch)
        self._parser.expect(is_head=request.startswith(b"HEAD "))
        self._transport.write(request)

    def hang_up(self) -> None:
        """Close the connection. `on_responses` is not called after that."""
        self._is_over = True
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if self._is_over:
            return
        self.quiet_since = self._loop.time()
        responses: BatchResponses = []
        end: ClientError | None = None
        try:
            responses = self._matched(self._parser.feed(data))
        except ProtocolError as error:
            end = error
        if end is None and self._parser.is_closing:
            end = Indeterminate("the server is closing the connection")
        if end is not None:
            self.hang_up()
        if responses or end is not None:
            self._on_responses(self, responses, end)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._is_over:
            return
        self._is_over = True
        responses: BatchResponses = []
        end: ClientError = Indeterminate(
            f"the connection to the server was lost: {exc or 'the server closed it'}"
        )
        try:
            responses = self._matched(self._parser.end())
        except ProtocolError as error:
            end = error
        self._on_responses(self, responses, end)

    def _matched(self, events: list[ParserEvent]) -> BatchResponses:
        matched: BatchResponses = []
        for event in events:
            assert isinstance(event, Response)
            matched.append((self._sent.popleft(), event))
        return matched


# ---- the pump ------------------------------------------------------------------------------------

_LATE_SECONDS: Final = 0.001  # without it, a timer that fires slightly early must be set again

OnEvents = Callable[[list[BatchEvent]], None]


class Pump:
    """Sends the batches of one producer.

    The connection is closed if a response is missing and no byte arrives for `response_timeout`
    seconds. `on_events` is called with the outcomes of batches. It is called on the event loop's
    thread while the lock is not held.
    """

    def __init__(
        self,
        core: ProducerCore,
        encoder: BodyEncoder,
        transport: Transport,
        target: str,
        *,
        lock: threading.Lock,
        on_events: OnEvents,
        response_timeout: float,
    ) -> None:
        self._core = core
        self._encoder = encoder
        self._transport = transport
        self._target = target
        self._lock = lock
        self._on_events = on_events
        self._response_timeout = response_timeout
        self._connection: ProducerConnection | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._computing: asyncio.Task[None] | None = None
        self._uncomputed: deque[tuple[ProducerConnection, ProducerBatch | None, Request]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._is_ended = False
        self._loop: asyncio.AbstractEventLoop | None = None

    def step(self) -> None:
        """Send the batches that can be sent, report outcomes, and set the next timer."""
        if self._is_ended:
            return
        self._loop = loop = asyncio.get_running_loop()
        now = loop.time()
        self._drop_silent_connection(now)
        with self._lock:
            self._core.tick(now)
            is_needed = self._connection is None and self._core.is_ready(now)
            batches = self._choose(now)
            events = self._core.acks.take_events()
            wake_at, expires_at = self._core.wake_at(), self._core.expires_at()
            is_over = self._core.failure is not None
        for batch, request in batches:
            assert self._connection is not None
            if self._transport.computed is None:
                self._connection.send(batch, render(request, self._transport.fixed))
            else:
                self._uncomputed.append((self._connection, batch, request))
        if self._uncomputed and self._computing is None:
            self._computing = loop.create_task(self._send_computed())
        if is_over:
            self.end()
        else:
            if is_needed and self._connecting is None:
                self._connecting = loop.create_task(self._connect())
            self._set_timer(now, wake_at, expires_at)
        if events:
            self._on_events(events)

    def end(self) -> None:
        """Close the connection and stop sending."""
        self._is_ended = True
        if self._timer is not None:
            self._timer.cancel()
        for task in (self._connecting, self._computing):
            if task is not None:
                task.cancel()
        if self._connection is not None:
            self._connection.hang_up()
            self._connection = None

    # ---- sending ---------------------------------------------------------------------------------

    def _choose(self, now: float) -> list[tuple[ProducerBatch | None, Request]]:
        chosen: list[tuple[ProducerBatch | None, Request]] = []
        if self._connection is not None:
            if self._core.starts_check(now):
                return [(None, Request(self._encoder.check_method, self._target))]
            while (batch := self._core.next_to_send(now)) is not None:
                chosen.append((batch, self._request(batch)))
        return chosen

    async def _send_computed(self) -> None:
        """Send requests in their order, each with headers that are computed for it.

        If a function that computes a header fails, the producer fails. A request whose connection
        has ended meanwhile is not sent here: the core sends its batch again.
        """
        computed = self._transport.computed
        assert computed is not None
        while self._uncomputed:
            connection, batch, request = self._uncomputed.popleft()
            try:
                request = await computed.add_to_async(request)
            except Exception as error:  # noqa: BLE001 - whatever the caller's function raises
                with self._lock:
                    self._core.fail(callback_failed(error))
                self._uncomputed.clear()
            else:
                if connection is self._connection:
                    connection.send(batch, render(request, self._transport.fixed))
        self._computing = None
        self.step()

    def _request(self, batch: ProducerBatch) -> Request:
        headers: tuple[tuple[str, str], ...] = tuple(self._core.headers(batch))
        if batch.messages:
            headers = (*self._encoder.fields(batch), *headers)
        return Request("POST", self._target, headers, batch.body)

    def _set_timer(self, now: float, wake_at: float | None, expires_at: float | None) -> None:
        times = [expires_at]
        if self._connecting is None:
            times.append(wake_at)
        if self._connection is not None and self._connection.is_waiting:
            times.append(self._connection.quiet_since + self._response_timeout)
        if self._timer is not None:
            self._timer.cancel()
        soonest = min((time for time in times if time is not None), default=None)
        if soonest is not None:
            assert self._loop is not None
            self._timer = self._loop.call_at(max(soonest, now) + _LATE_SECONDS, self.step)

    # ---- connecting and receiving ----------------------------------------------------------------

    async def _connect(self) -> None:
        address = self._transport.address
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._transport.connect_timeout):
                _, connection = await loop.create_connection(
                    lambda: ProducerConnection(self._on_responses),
                    address.host,
                    address.port,
                    ssl=self._transport.tls,
                )
        except OSError as error:
            self._not_reached(connect_error(self._transport, error), loop.time())
        else:
            self._connection = connection
        self._connecting = None
        self.step()

    def _not_reached(self, failure: NotSent, now: float) -> None:
        with self._lock:
            if failure.is_permanent:
                self._core.fail(Unavailable(failure.reason))
            else:
                self._core.connect_failed(now, Unavailable(failure.reason))

    def _on_responses(
        self, connection: ProducerConnection, responses: BatchResponses, end: ClientError | None
    ) -> None:
        if connection is not self._connection:
            return
        assert self._loop is not None
        now = self._loop.time()
        with self._lock:
            for batch, response in responses:
                self._pass_on(batch, response, now)
            if end is not None:
                self._connection = None
                self._core.connection_lost(now, end)
        self.step()

    def _pass_on(self, batch: ProducerBatch | None, response: Response, now: float) -> None:
        try:
            response = self._encoder.adapt(batch, response)
        except ProtocolError as error:
            self._core.fail(error)
            return
        status, headers, body = response.status, response.headers, response.body
        if batch is None:
            self._core.on_check(status, headers, body, now)
        else:
            self._core.on_response(batch, status, headers, body, now)

    def _drop_silent_connection(self, now: float) -> None:
        connection = self._connection
        if connection is None or not connection.is_waiting:
            return
        if now >= connection.quiet_since + self._response_timeout:
            self._connection = None
            connection.hang_up()
            error = Indeterminate(f"the server sent nothing for {self._response_timeout:g} seconds")
            with self._lock:
                self._core.connection_lost(now, error)
