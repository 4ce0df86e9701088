"""Carrying out flows on the running event loop."""

import asyncio
import time
from collections import deque
from typing import Any, TypeVar

from semel.client.errors import ClientClosed
from semel.client.flows import Flow, Lost, NotSent, Opened, Pause, Receive, Reply, RetrySafety, Send
from semel.client.requests import render
from semel.client.response_parser import (
    BodyEnd,
    BodyPart,
    ParserEvent,
    Response,
    ResponseCut,
    ResponseParser,
)
from semel.client.transport import (
    FOREVER,
    IDLE_COUNT_MAX,
    IDLE_SECONDS_MAX,
    RECEIVE_BYTES,
    Transport,
    connect_error,
    jitter,
)

T = TypeVar("T")


class AsyncConnection:
    """One connection, and the answers on it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.loop = asyncio.get_running_loop()
        self.parser = ResponseParser()
        self.idle_since = 0.0
        self.is_reused = False
        self.events: deque[ParserEvent] = deque()
        self._reader = reader
        self._writer = writer

    def is_quiet(self) -> bool:
        """Whether the other side has not closed it, as far as the loop has heard."""
        return not (self._reader.at_eof() or self._writer.transport.is_closing())

    def send(self, data: bytes) -> None:
        """Hand bytes to the loop."""
        self._writer.write(data)

    def has_unsent(self) -> bool:
        """Whether a part of the request has not left; it never will if the line is closed now."""
        return self._writer.transport.get_write_buffer_size() > 0

    async def receive(self, deadline: float, silence_seconds: float) -> ParserEvent:
        """Wait for the next event; OSError or AnswerCut if there will be none."""
        while not self.events:
            until = min(deadline, time.monotonic() + silence_seconds)
            async with asyncio.timeout(_left(until)):
                data = await self._reader.read(RECEIVE_BYTES)
            if data:
                self.events.extend(self.parser.feed(data))
                continue
            self.events.extend(self.parser.end())
            if not self.events:
                raise ConnectionResetError("the connection was closed")
        return self.events.popleft()

    def close(self) -> None:
        """Hang up, at once."""
        if not self.loop.is_closed():
            self._writer.transport.abort()


class AsyncDriver:
    """Runs flows, on connections that are kept for the next ones."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._idle: list[AsyncConnection] = []
        self._is_closed = False

    async def run(self, flow: Flow[T], timeout: float | None) -> T:
        """Carry out a flow and return what it does; None: it may take as long as it wants."""
        deadline = time.monotonic() + timeout if timeout is not None else FOREVER
        reply: Any = None
        while True:
            try:
                step = flow.send(reply)
            except StopIteration as end:
                value: T = end.value
                return value
            if isinstance(step, Send):
                reply = await self._send(step, deadline)
            elif isinstance(step, Receive):
                reply = await self._receive(step, deadline)
            elif isinstance(step, Pause):
                reply = await self._pause(step, deadline)
            else:
                self.hang(step.channel)
                reply = None

    async def close(self) -> None:
        """Close what is idle; calls under way go on to their end, and no other begins."""
        self._is_closed = True
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()
        await asyncio.sleep(0)  # the loop closes them in its next turn

    def hang(self, connection: AsyncConnection) -> None:
        """Let a streamed answer go."""
        self._give_back(connection, is_whole=True)

    # ---- steps -----------------------------------------------------------------------------------

    async def _send(self, step: Send, deadline: float) -> Reply:
        if self._is_closed:
            raise ClientClosed("the client is closed")
        connection = self._take(step.kind)
        if connection is None:
            try:
                connection = await self._connect(deadline)
            except OSError as error:
                return connect_error(self._transport, error)
        reply: Reply | None = None
        try:
            reply = await self._exchange(connection, step, deadline)
            return reply
        finally:
            if not isinstance(reply, Opened):
                self._give_back(connection, is_whole=isinstance(reply, Response))

    async def _exchange(self, connection: AsyncConnection, step: Send, deadline: float) -> Reply:
        request = step.request
        connection.parser.expect(is_head=request.method == "HEAD", is_streamed=request.is_streamed)
        connection.send(render(request, self._transport.fixed))
        try:
            event = await connection.receive(deadline, step.silence_seconds)
        except (OSError, ResponseCut) as error:
            reason = (
                f"no answer from {self._transport.address.url}: {str(error) or 'the time is over'}"
            )
            if connection.has_unsent():
                return NotSent(f"{reason}; the request was not sent whole")
            is_stale = connection.is_reused and not connection.parser.has_begun
            return Lost(reason, is_stale and not isinstance(error, TimeoutError))
        assert isinstance(event, Response)
        return Opened(event, connection) if event.is_streamed else event

    async def _receive(self, step: Receive, deadline: float) -> BodyPart | BodyEnd | Lost:
        connection: AsyncConnection = step.channel
        try:
            event = await connection.receive(deadline, step.silence_seconds)
        except (OSError, ResponseCut) as error:
            return Lost(f"the connection broke: {error}")
        assert not isinstance(event, Response)
        return event

    async def _pause(self, step: Pause, deadline: float) -> bool:
        seconds = max(step.at_least, jitter(step.seconds))
        if time.monotonic() + seconds >= deadline:
            return False
        await asyncio.sleep(seconds)
        return True

    # ---- connections -----------------------------------------------------------------------------

    def _take(self, kind: RetrySafety) -> AsyncConnection | None:
        """Take a connection that is idle and still good; None if there is none.

        One that has been idle for long may be closed by the server just now. What must not be sent
        twice does not take that risk.
        """
        loop = asyncio.get_running_loop()
        while self._idle:
            connection = self._idle.pop()
            idle_seconds = time.monotonic() - connection.idle_since
            is_ours = connection.loop is loop  # a client may outlive its loop
            if is_ours and idle_seconds < IDLE_SECONDS_MAX[kind] and connection.is_quiet():
                connection.is_reused = True
                return connection
            connection.close()
        return None

    def _give_back(self, connection: AsyncConnection, *, is_whole: bool) -> None:
        is_good = is_whole and connection.parser.is_reusable and not connection.events
        if is_good and not self._is_closed and len(self._idle) < IDLE_COUNT_MAX:
            connection.idle_since = time.monotonic()
            self._idle.append(connection)
        else:
            connection.close()

    async def _connect(self, deadline: float) -> AsyncConnection:
        transport, address = self._transport, self._transport.address
        left = min(deadline - time.monotonic(), transport.connect_timeout)
        async with asyncio.timeout(max(left, 0)):
            reader, writer = await asyncio.open_connection(
                address.host, address.port, ssl=transport.tls, limit=2 * RECEIVE_BYTES
            )
        return AsyncConnection(reader, writer)


def _left(deadline: float) -> float | None:
    return None if deadline == FOREVER else max(deadline - time.monotonic(), 0)
