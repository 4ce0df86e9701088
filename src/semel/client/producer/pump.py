"""Moving batches between a producer's core and the server, on an event loop.

The core decides, the pump carries out. All of it runs on the loop's thread; the lock is held
whenever the core is touched, for others append to it from their own threads.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, cast

from semel.client.errors import (
    ClientError,
    Indeterminate,
    NotSupported,
    ProtocolError,
    TooLarge,
    Unavailable,
)
from semel.client.flows import NotSent
from semel.client.producer.batches import BatchEvent, ProducerBatch
from semel.client.producer.core import ProducerCore
from semel.client.requests import Request, render
from semel.client.response_parser import ParserEvent, Response, ResponseParser
from semel.client.transport import Transport, connect_error
from semel.client.values import (
    PREENCODED,
    Extra,
    Headers,
    Key,
    columns_of,
    encode,
    encode_json,
    extra_of,
)
from semel.model.commands import Batch as Payloads
from semel.model.limits import BODY_BYTES_MAX
from semel.model.media import is_json
from semel.wire.bodies import encode_batch
from semel.wire.headers import BATCH
from semel.wire.json_mode import JSON_DEPTH_MAX, split_json

# ---- encoding ------------------------------------------------------------------------------------

_FRAME_BYTES: Final = 512  # around one message: brackets, or the head of a batch
_DEEP_BYTES_MIN: Final = 2 * (JSON_DEPTH_MAX + 1)


class BodyEncoder:
    """How messages travel to a stream of some media type.

    JSON goes as an array. Other messages keep their bounds in semel's batch format; a server that
    does not know it gets them one after the other, as all Durable Streams servers understand it.
    What messages carry beside their values goes in the batch format, too.
    """

    def __init__(self, content_type: str, *, is_semel: bool) -> None:
        self._content_type = content_type
        self._is_json = is_json(content_type)
        self._is_batching = is_semel and not self._is_json
        self._is_semel = is_semel
        self.to_raw: Callable[[Any], bytes] = self._to_json if self._is_json else self._to_bytes

    def content_type(self, count: int, extras: Mapping[int, Extra]) -> str:
        """Name the media type of a body of so many messages."""
        is_batch = extras or (self._is_batching and count > 1)
        return BATCH if is_batch else self._content_type

    def body(self, messages: Sequence[bytes], extras: Mapping[int, Extra]) -> bytes:
        """Make the body of an append."""
        if extras:
            columns = columns_of(len(messages), extras)
            return encode_batch(
                self._content_type,
                messages,
                keys=columns.keys,
                headers=columns.headers,
                timestamps=columns.timestamps,
            )
        if self._is_json:
            return b"[" + b",".join(messages) + b"]"
        if self._is_batching and len(messages) > 1:
            return encode_batch(self._content_type, messages)
        return b"".join(messages)

    def carried(
        self, raw: bytes, key: Key, headers: Headers, timestamp: datetime | None
    ) -> Extra | None:
        """Take what a message carries; refused if no semel is there to store it."""
        extra = extra_of(key, headers, timestamp)
        if extra is None:
            return None
        if not self._is_semel:
            raise NotSupported("this server does not know keys, headers and timestamps")
        self._check_size(len(raw) + extra.size)
        return extra

    def _to_json(self, value: Any) -> bytes:
        """Encode; what would spoil a whole batch is refused here."""
        raw = encode_json(value)
        if len(raw) >= _DEEP_BYTES_MIN or isinstance(value, PREENCODED):
            self._check_json(raw, is_ready=isinstance(value, PREENCODED))
        return raw

    def _check_json(self, raw: bytes, *, is_ready: bool) -> None:
        if is_ready or raw.count(b"[") + raw.count(b"{") > JSON_DEPTH_MAX:
            found = split_json(b"[" + raw + b"]")
            if not isinstance(found, Payloads) or found.count != 1:
                reason = found if isinstance(found, str) else "not exactly one value"
                raise ValueError(f"the message is no JSON a stream can hold: {reason}")
        self._check_size(len(raw))

    def _to_bytes(self, value: Any) -> bytes:
        raw = encode(value, self._content_type)
        if not raw:
            raise ValueError("an empty message cannot be stored")
        self._check_size(len(raw))
        return raw

    def _check_size(self, size: int) -> None:
        if size > BODY_BYTES_MAX - _FRAME_BYTES and self._is_semel:
            raise TooLarge(f"a message may have {BODY_BYTES_MAX - _FRAME_BYTES} bytes")


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

    def _matched(self, events: list[ParserEvent]) -> BatchResponses:
        matched: BatchResponses = []
        for event in events:
            assert isinstance(event, Response)
            matched.append((self._sent.popleft(), event))
        return matched


# ---- producer pump -------------------------------------------------------------------------------


_SOON_SECONDS: Final = 0.001  # timers are not exact: better a little late than twice

OnEvents = Callable[[list[BatchEvent]], None]


class Pump:
    """One producer's way to the server. `response_timeout` is how long it may be silent.

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
        response_timeout: float,
    ) -> None:
        self._core = core
        self._packing = packing
        self._transport = transport
        self._target = target
        self._lock = lock
        self._on_events = on_events
        self._response_timeout = response_timeout
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
            times.append(self._line.quiet_since + self._response_timeout)
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
        if now >= line.quiet_since + self._response_timeout:
            seconds = self._response_timeout
            self._line = None
            line.hang_up()
            with self._lock:
                error = Indeterminate(f"no answer within {seconds:g} seconds")
                self._core.connection_lost(now, error)
