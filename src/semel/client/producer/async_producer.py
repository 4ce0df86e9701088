"""The producer for programs that use asyncio."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import datetime
from types import TracebackType
from typing import Any, Self

from semel.client.errors import Indeterminate
from semel.client.producer.batches import BatchEvent, ProducerSettings
from semel.client.producer.opening import (
    OpenResult,
    ProducerOptions,
)
from semel.client.producer.pump import ProducerFacade
from semel.client.transport import FOREVER, Transport
from semel.client.values import Headers, Key


class AsyncProducer(ProducerFacade):
    """Appends messages to one stream, on the running event loop.

    Messages are gathered into batches, and several batches can be in flight at the same time. After
    a temporary failure, a batch is sent again. The server recognises duplicates by their sequence.

    Entering an `async with` block, or calling `open`, opens the producer. By default this fences
    earlier instances. Leaving the block waits until all messages are stored.

    `on_batch_ack(ack)` and `on_error(error, batch)` are plain functions, called on the event loop.

    After a permanent failure, the producer ends and sends nothing more. From then on, `append`
    raises the error. If `on_error` is not set, `flush` raises the error too, and `close` raises it
    unless an earlier call has already done so.
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
        """Open the producer and return it. By default this fences earlier instances.

        If `open` is not called, the first `append` opens the producer.
        """
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
        """Add a message, and return before the message is stored.

        Waits while `max_pending_bytes` or more are pending. If the producer has failed, raises the
        error that ended it.

        `key`, `headers` and `timestamp` are stored with the message. Only semel supports them.
        `seq` is the message's sequence, for mode="sparse" only. `cursor` is a string of your
        choice, such as an offset in your input. A later instance finds the last stored cursor in
        its `cursor` attribute.
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

        Raises Indeterminate after `timeout` seconds (None: no limit), but sending continues. If the
        producer has failed and has no `on_error`, raises the error that ended it.
        """
        if not self._is_open:
            return
        if not await self._drain(timeout):
            raise self._late(timeout)
        self._check_settled(is_again=True)

    async def close(self, timeout: float | None = None) -> None:
        """Wait until every message is stored, and then end the producer.

        After `timeout` seconds, the producer abandons the remaining messages and fails with
        Indeterminate. If the producer has failed, this call raises its error, unless `on_error` is
        set or an earlier call has raised it.
        """
        self._is_closed = True
        if self._is_ended or not self._is_open:
            return
        if not await self._drain(timeout):
            self._give_up(self._late(timeout))
        self._is_ended = True
        self._pump.end()
        await asyncio.sleep(0)  # gives the event loop the iteration that closes the connection
        self._check_settled(is_again=False)

    async def close_by(self, deadline: float) -> None:
        """Close the producer as `close` does, with a deadline in monotonic clock time."""
        await self.close(None if deadline == FOREVER else max(deadline - time.monotonic(), 0.0))

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # If the block raised an error, `close` must not raise the producer's failure instead.
        self._is_raised = self._is_raised or error is not None
        await self.close()

    # ---- waiting ---------------------------------------------------------------------------------

    async def _drain(self, timeout: float | None) -> bool:
        goal = self._core.appended_count
        self._core.hurry()
        self._pump.step()
        try:
            async with asyncio.timeout(timeout):
                while self._reported_count < goal:
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
