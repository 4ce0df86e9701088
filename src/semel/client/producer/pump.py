"""Sending a producer's batches: the connection, the pump, and the base class of both producers.

The core decides what to send. The pump sends it, on an event loop's thread. The pump holds the lock
while it uses the core, because other threads can append at the same time.
"""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, cast

from semel.client.computed import callback_failed
from semel.client.errors import (
    ClientClosed,
    ClientError,
    Indeterminate,
    ProtocolError,
    Unavailable,
)
from semel.client.flows import NotSent
from semel.client.producer.batches import (
    BatchAck,
    BatchEvent,
    ProducerBatch,
    ProducerStats,
)
from semel.client.producer.core import ProducerCore
from semel.client.producer.opening import (
    PENDING_BYTES_MAX,
    BodyEncoder,
    OpenResult,
    ProducerOptions,
    settings_of,
)
from semel.client.requests import Request, render
from semel.client.response_parser import ParserEvent, Response, ResponseParser
from semel.client.transport import Transport, connect_error, jitter
from semel.client.values import Extra

# ---- the connection ------------------------------------------------------------------------------

BatchResponses = list[tuple[ProducerBatch, Response]]
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
        self._sent: deque[ProducerBatch] = deque()
        self._loop = asyncio.get_running_loop()
        self._is_over = False
        self.quiet_since = 0.0

    @property
    def is_waiting(self) -> bool:
        """True if a request has no response yet."""
        return bool(self._sent)

    def send(self, batch: ProducerBatch, request: bytes) -> None:
        """Send a request. If the connection is already closed, `on_responses` will report that."""
        if not self._sent:
            self.quiet_since = self._loop.time()
        self._sent.append(batch)
        self._parser.expect()
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
        self._uncomputed: deque[tuple[ProducerConnection, ProducerBatch, Request]] = deque()
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

    def _choose(self, now: float) -> list[tuple[ProducerBatch, Request]]:
        chosen: list[tuple[ProducerBatch, Request]] = []
        if self._connection is not None:
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
        headers = (
            ("Content-Type", self._encoder.content_type(batch.count, batch.extras)),
            *self._core.headers(batch),
        )
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
                self._core.on_response(batch, response.status, response.headers, response.body, now)
            if end is not None:
                self._connection = None
                self._core.connection_lost(now, end)
        self.step()

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


# ---- the base class of both producers ------------------------------------------------------------

_log = logging.getLogger("semel.client")


def _no_body(messages: Sequence[bytes], extras: Mapping[int, Extra]) -> bytes:
    del messages, extras
    raise AssertionError("a batch was sent before the producer was open")


class ProducerFacade:
    """Base class for the threaded and the asyncio producer: state, callbacks and checks."""

    # If a callback raises an exception of this type, it is logged and otherwise ignored.
    _survives: type[BaseException] = Exception

    def __init__(
        self,
        producer_id: str | None,
        transport: Transport,
        target: str,
        options: ProducerOptions,
        *,
        response_timeout: float,
    ) -> None:
        self._settings = settings_of(producer_id, options)
        self._transport = transport
        self._target = target
        self._response_timeout = response_timeout
        self._pending_bytes_max = options.get("max_pending_bytes", PENDING_BYTES_MAX)
        self._on_batch_ack = options.get("on_batch_ack")
        self._on_error = options.get("on_error")
        if self._pending_bytes_max < 1:
            raise ValueError("max_pending_bytes must be at least 1")
        self._lock = threading.Lock()
        self._reported_count = 0  # messages whose callbacks have returned
        self._is_closed = False  # `append` is refused
        self._is_ended = False  # the producer is closed, and no message is pending
        self._is_raised = False  # the failure was already raised to the caller
        self._core = ProducerCore(self._settings, _no_body)  # replaced by `_open`
        self._pump: Pump
        self._encoder: BodyEncoder
        self._to_raw: Callable[[Any], bytes]

    def _open(self, opening: OpenResult) -> None:
        encoder = BodyEncoder(opening.content_type, is_semel=opening.is_semel)
        self._encoder, self._to_raw = encoder, encoder.to_raw
        self._core = ProducerCore(
            self._settings, encoder.body, jitter, is_counting=opening.is_semel
        )
        if opening.claim is not None:
            claim = opening.claim
            self._core.take_over(claim.producer_epoch, claim.last_seq, claim.cursor)
        elif opening.past:
            (state,) = opening.past
            self._core.resume(state.epoch, state.last_seq, state.cursor)
        elif opening.past is not None:
            self._core.resume(None, None, None)
        self._pump = Pump(
            self._core,
            encoder,
            self._transport,
            self._target,
            lock=self._lock,
            on_events=self._report,
            response_timeout=self._response_timeout,
        )

    # ---- state -----------------------------------------------------------------------------------

    @property
    def id(self) -> str:
        return self._settings.id

    @property
    def epoch(self) -> int | None:
        """The epoch of this instance, or None until the server has assigned one."""
        return self._core.epoch

    @property
    def last_seq(self) -> int | None:
        """The last stored sequence.

        Before the first acknowledgement, this is the last sequence that an earlier instance stored,
        or None if no sequence is known.
        """
        return self._core.acks.last_seq

    @property
    def cursor(self) -> str | None:
        """The last stored cursor.

        Until a cursor of this instance is stored, this is the last cursor that an earlier instance
        stored, or None if no cursor is known.
        """
        return self._core.acks.cursor

    @property
    def pending_count(self) -> int:
        """The number of messages that are not acknowledged yet."""
        with self._lock:
            return self._core.pending_count

    @property
    def in_flight_count(self) -> int:
        """The number of batches that were sent and have no response yet."""
        return self._core.in_flight_count

    @property
    def stats(self) -> ProducerStats:
        """The producer's counters, from the time it was opened."""
        return self._core.acks.stats

    # ---- callbacks -------------------------------------------------------------------------------

    def _report(self, events: list[BatchEvent]) -> None:
        failure = self._core.failure
        for event in events:
            if isinstance(event, BatchAck):
                if self._on_batch_ack is not None:
                    self._call(self._on_batch_ack, event)
            elif self._on_error is not None:
                assert failure is not None
                self._call(self._on_error, failure, event)
        with self._lock:
            self._reported_count += sum(event.count for event in events)

    def _call(self, callback: Callable[..., object], *arguments: object) -> None:
        try:
            callback(*arguments)
        except self._survives:  # an error in a callback must not stop the producer
            _log.exception("a callback of the producer %s failed", self.id)

    # ---- checks ----------------------------------------------------------------------------------

    def _check(self) -> None:
        """If the producer has failed, raise its failure. If it is closed, raise ClientClosed."""
        failure = self._core.failure
        if failure is not None:
            self._is_raised = True
            raise failure
        if self._is_closed:
            raise ClientClosed("the producer is closed")

    def _check_settled(self, *, is_again: bool) -> None:
        """Raise the failure if the producer has failed and the caller has set no `on_error`.

        A failure that was already raised is raised again only if `is_again` is True.
        """
        failure = self._core.failure
        if failure is None or self._on_error is not None or (self._is_raised and not is_again):
            return
        self._is_raised = True
        raise failure

    def _late(self, timeout: float | None) -> Indeterminate:
        with self._lock:
            count = self._core.appended_count - self._reported_count
        return Indeterminate(f"{count} messages are not acknowledged after {timeout:g} seconds")
