"""The producer for asyncio, and what it shares with the producer for threads."""

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Self

from semel.client.errors import ClientClosed, Indeterminate
from semel.client.producer.batches import BatchAck, BatchEvent, ProducerSettings, ProducerStats
from semel.client.producer.core import ProducerCore
from semel.client.producer.opening import (
    PENDING_BYTES_MAX,
    OpenResult,
    ProducerOptions,
    settings_of,
)
from semel.client.producer.pump import BodyEncoder, Pump
from semel.client.transport import FOREVER, Transport, jitter
from semel.client.values import Extra, Headers, Key

_log = logging.getLogger("semel.client")


def _no_body(messages: Sequence[bytes], extras: Mapping[int, Extra]) -> bytes:
    del messages, extras
    raise AssertionError("nothing is sent before the producer is open")


class ProducerFacade:
    """What the producers for threads and for asyncio share: state, callbacks and checks."""

    # Exceptions of a callback that are logged and otherwise ignored.
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
        self._is_ended = False  # and no message is pending
        self._is_raised = False  # the failure was raised
        self._core = ProducerCore(self._settings, _no_body)  # until it is open
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
        """The epoch of this instance; None until the server has assigned one."""
        return self._core.epoch

    @property
    def last_seq(self) -> int | None:
        """The last stored sequence; before the first acknowledgement, of an earlier instance."""
        return self._core.acks.last_seq

    @property
    def cursor(self) -> str | None:
        """The last stored cursor; before the first acknowledgement, of an earlier instance."""
        return self._core.acks.cursor

    @property
    def pending_count(self) -> int:
        """The number of messages that are not acknowledged yet."""
        with self._lock:
            return self._core.pending_count

    @property
    def in_flight_count(self) -> int:
        """The number of batches that are sent and have no response yet."""
        return self._core.in_flight_count

    @property
    def stats(self) -> ProducerStats:
        """Counts since the producer was made."""
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
        except self._survives:  # a bug of the caller's must not stop the producer
            _log.exception("a callback of the producer %s failed", self.id)

    # ---- checks ----------------------------------------------------------------------------------

    def _check(self) -> None:
        """Raise the failure of the producer, or ClientClosed."""
        failure = self._core.failure
        if failure is not None:
            self._is_raised = True
            raise failure
        if self._is_closed:
            raise ClientClosed("the producer is closed")

    def _is_settled(self, goal: int) -> bool:
        return self._reported_count >= goal

    def _check_settled(self, *, is_again: bool) -> None:
        """Raise the failure of the producer, unless `on_error` was called with it.

        `is_again`: even if it was raised before.
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


class AsyncProducer(ProducerFacade):
    """Appends messages to one stream, on the running event loop.

    Messages are gathered into batches, sent without waiting for the responses, and sent again after
    a failure, with sequences by which the server recognises duplicates. Leaving an `async with`
    block waits until all are stored; entering it, or `open`, claims the producer id.

    `on_batch_ack(ack)` and `on_error(error, batch)` are plain functions, called on the loop.
    Without `on_error` the first error is raised by the next `append`, `flush` or `close`. After an
    error nothing more is sent.
    """

    def __init__(
        self,
        producer_id: str | None,
        transport: Transport,
        target: str,
        options: ProducerOptions,
        *,
        ask: Callable[[ProducerSettings], Awaitable[OpenResult]],
        response_timeout: float,
    ) -> None:
        super().__init__(producer_id, transport, target, options, response_timeout=response_timeout)
        self._ask = ask
        self._is_open = False
        self._opening = asyncio.Lock()
        self._changed = asyncio.Event()

    async def open(self) -> Self:
        """Claim the producer id; the first `append` does this if it was not done before."""
        async with self._opening:
            if not self._is_open:
                self._open(await self._ask(self._settings))
                self._is_open = True
        return self

    async def append(
        self,
        value: Any,
        *,
        key: Key = None,
        headers: Headers = None,
        timestamp: datetime | None = None,
        cursor: str | None = None,
        seq: int | None = None,
    ) -> None:
        """Add a message, and return before it is stored; wait while too much is pending.

        `key`, `headers` and `timestamp` are stored with the message, by semel only. `cursor` is a
        string of yours, such as an offset in your input, stored with the message: a later instance
        gets the last one as its `cursor`. `seq` is for mode="sparse". Raises the
        error that has ended the producer, if one has.
        """
        if not self._is_open:
            await self.open()
        raw = self._to_raw(value)
        extra = None
        if key is not None or headers is not None or timestamp is not None:
            extra = self._encoder.checked_extra(raw, key, headers, timestamp)
        self._check()
        while self._core.acks.pending_bytes >= self._pending_bytes_max:
            await self._changed.wait()
            self._check()
        if self._core.append(raw, time.monotonic(), cursor, seq, extra):
            asyncio.get_running_loop().call_soon(self._pump.step)

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until every message appended so far is stored.

        Raises Indeterminate after `timeout` seconds (None: no limit); the messages are still sent.
        """
        if not self._is_open:
            return
        if not await self._drain(timeout):
            raise self._late(timeout)
        self._check_settled(is_again=True)

    async def close(self, timeout: float | None = None) -> None:
        """Wait until every message is stored, and end. After the timeout, give up the others."""
        self._is_closed = True
        if self._is_ended or not self._is_open:
            return
        if not await self._drain(timeout):
            self._give_up(self._late(timeout))
        self._is_ended = True
        self._pump.end()
        await asyncio.sleep(0)  # the loop closes the connection in its next iteration
        self._check_settled(is_again=False)

    async def close_by(self, deadline: float) -> None:
        """Close with a deadline on the monotonic clock."""
        await self.close(None if deadline == FOREVER else max(deadline - time.monotonic(), 0.0))

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_raised = self._is_raised or error is not None  # that one is raised
        await self.close()

    # ---- waiting ---------------------------------------------------------------------------------

    async def _drain(self, timeout: float | None) -> bool:
        goal = self._core.appended_count
        self._core.hurry()
        self._pump.step()
        try:
            async with asyncio.timeout(timeout):
                while not self._is_settled(goal):
                    await self._changed.wait()
        except TimeoutError:
            return False
        return True

    def _give_up(self, error: Indeterminate) -> None:
        self._core.fail(error)
        self._pump.step()

    def _report(self, events: list[BatchEvent]) -> None:
        super()._report(events)
        self._changed.set()
        self._changed = asyncio.Event()
