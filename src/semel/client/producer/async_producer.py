"""The producer for programs that use asyncio."""

import asyncio
import time
from contextlib import suppress
from datetime import datetime
from types import TracebackType
from typing import Any, Protocol, Self

from semel.client.errors import Indeterminate
from semel.client.extras import Headers, Key
from semel.client.flows import Flow, T
from semel.client.producer.facade import ProducerFacade, retire_seconds
from semel.client.producer.opening import Past, ProducerOptions, open_producer, read_past
from semel.client.producer.outcomes import BatchEvent
from semel.client.stream_calls import StreamCalls
from semel.client.transport import CLIENT_DEFAULT, FOREVER, Timeout, Transport


class AsyncRun(Protocol):
    """Runs a flow: the method `run` of an AsyncClient."""

    async def __call__(self, flow: Flow[T], timeout: Timeout = CLIENT_DEFAULT) -> T: ...


class AsyncProducer(ProducerFacade):
    """Appends messages to one stream, on the running event loop.

    Messages are gathered into batches, and several batches can be in flight at the same time. After
    a temporary failure, a batch is sent again. The server recognises duplicates by their sequence.

    The first batch that is stored fences earlier instances with the same id, and so does `open`.
    Leaving an `async with` block waits until all messages are stored.

    `on_batch_ack(ack)` and `on_error(error, batch)` are plain functions, called on the event loop.

    After a permanent failure, the producer ends and sends nothing more. From then on, `append`
    raises the error. If `on_error` is not set, `flush` raises the error too, and `close` raises it
    unless an earlier call has already done so.
    """

    def __init__(
        self,
        producer_id: str | None,
        calls: StreamCalls,
        transport: Transport,
        options: ProducerOptions,
        *,
        run: AsyncRun,
        response_timeout: float,
    ) -> None:
        super().__init__(producer_id, calls, transport, options, response_timeout=response_timeout)
        self._run = run
        self._is_open = False
        self._opening = asyncio.Lock()
        self._reading = asyncio.Lock()
        self._changed = asyncio.Event()

    async def open(self) -> Self:
        """Claim the producer's id, and return the producer.

        This fences earlier instances. Then `cursor` and `last_seq` are what they have stored. You
        need not call `open` if you do not use these two: the first batch fences too.
        """
        await self._learn_type()
        async with self._reading:
            if not self._is_past_known:
                is_held = self._core.hold()
                while not (is_held or self._core.is_established or self._core.failure):
                    await self._changed.wait()
                self._check()
                past = Past()
                flow = read_past(self._calls, self._settings, is_claiming=is_held)
                try:
                    past = await self._run(flow)
                finally:
                    self._set_past(past)
                self._is_past_known = True
                self._pump.step()
        return self

    async def _learn_type(self) -> None:
        """Find out how messages are encoded. This needs no request if the media type is known."""
        async with self._opening:
            if not self._is_open:
                self._open(await self._run(open_producer(self._calls, self._settings)))
                self._is_open = True

    def _read_past(self) -> None:
        raise RuntimeError(
            "it is not known what earlier instances have stored; call `await producer.open()`"
            " before you read `cursor` or `last_seq`"
        )

    async def append(
        self,
        value: Any,
        *,
        key: Key = None,
        headers: Headers = None,
        timestamp: datetime | None = None,
        cursor: str | None = None,
        seq: int | None = None,
        close: bool = False,
    ) -> None:
        """Add a message, and return before the message is stored.

        Waits while `max_pending_bytes` or more are pending. If the producer has failed, raises the
        error that ended it.

        `key`, `headers` and `timestamp` are stored with the message. Only semel supports them.
        `seq` is the message's sequence, for mode="sparse" only. `cursor` is a string of your
        choice, such as an offset in your input. A later instance finds the last stored cursor in
        its `cursor` attribute. With `close`, this is the stream's last message: the stream is
        closed in the same step that stores the message.
        """
        if not self._is_open:
            await self._learn_type()
        if close:
            self._check_closable()
        raw = self._to_raw(value)
        extra = None
        if key is not None or headers is not None or timestamp is not None:
            extra = self._encoder.checked_extra(raw, key, headers, timestamp)
        self._check()
        while self._core.acks.pending_bytes >= self._pending_bytes_max:
            await self._changed.wait()
            self._check()
        must_wake = self._core.append(raw, time.monotonic(), cursor, seq, extra)
        if close:
            self._core.close_stream(time.monotonic())
            self._is_closed = True
        if must_wake or close:
            asyncio.get_running_loop().call_soon(self._pump.step)

    async def close_stream(self, value: Any = None, *, timeout: float | None = None) -> None:
        """Close the stream permanently, and wait until it is closed.

        If `value` is not None, it becomes the last message, in the same step. Messages that were
        appended before are stored first. After this call, `append` raises StreamClosed. The call
        can be repeated.

        Raises Indeterminate after `timeout` seconds (None: no limit), but sending continues.
        """
        if not self._is_open:
            await self._learn_type()
        self._check_closable()
        if value is not None:
            await self.append(value, close=True)
        elif not self._core.is_closing:
            self._check()
            self._core.close_stream(time.monotonic())
            self._is_closed = True
        await self.flush(timeout)

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

        If the producer has no `id`, the server is told to forget it.
        """
        self._is_closed = True
        if self._is_ended or not self._is_open:
            return
        deadline = None if timeout is None else time.monotonic() + timeout
        if not await self._drain(timeout):
            self._give_up(self._late(timeout))
        self._is_ended = True
        self._pump.end()
        await asyncio.sleep(0)  # gives the event loop the iteration that closes the connection
        if self._is_to_retire:
            with suppress(Exception):  # it expires by itself, whatever fails here
                await self._run(self._retirement(), retire_seconds(deadline))
        self._check_settled(is_again=False)

    async def close_by(self, deadline: float) -> None:
        """Close the producer as `close` does, with a deadline in monotonic clock time."""
        await self.close(None if deadline == FOREVER else max(deadline - time.monotonic(), 0.0))

    async def __aenter__(self) -> Self:
        await self._learn_type()
        return self

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
