"""One client's connection through a `FaultProxy`.

A session has two tasks. The first task reads requests, draws an action for each request, and
forwards the requests to the server. The second task forwards the responses.

A request with the action `pass` or `delay` does not wait for earlier responses, so pipelined
requests stay pipelined. A request with any other action waits until the proxy has handled all
earlier responses, so the action does not affect the earlier requests.
"""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any, Final

from msgspec import Struct

from semel.testing.fault_connections import (
    Broken,
    ConnectionRegistry,
    MessageHead,
    Outlet,
    WatchedReader,
    read_body,
    read_request_head,
    read_response_head,
    read_whole,
)
from semel.testing.fault_plan import Action, FaultPlan

_PIPELINE_MAX: Final = 256
_WHOLE_CHUNKS_MAX: Final = 3
_SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_LAST_CHUNK: Final = re.compile(rb"0+[ \t]*[;\r]")
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_BAD_GATEWAY_HEAD: Final = (
    b"HTTP/1.1 502 Bad Gateway\r\nContent-Type: text/plain\r\nContent-Length: 12\r\n\r\n"
)
_BAD_GATEWAY_BODY: Final = b"bad gateway\n"


class ProxiedExchange(Struct):
    """A request and its action.

    `response` is a response that the proxy made itself, or got on a separate connection. If it is
    None, the session reads the response from its own connection to the server.
    """

    number: int
    method: str
    request: bytes
    head_bytes: int
    action: Action = Action.PASS
    response: bytes | None = None
    is_sent: bool = False


class ProxySession:
    """A client's connection to the proxy, and the matching connection to the server."""

    def __init__(
        self, wires: ConnectionRegistry, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._wires = wires
        self._reader = reader
        self._writer = writer
        self._client = Outlet(writer, wires.one_way_seconds)
        self._server: Outlet
        self._responses: WatchedReader
        self._pending: asyncio.Queue[ProxiedExchange | None] = asyncio.Queue(_PIPELINE_MAX)
        self._open_count = 0
        self._calm = asyncio.Event()
        self._ahead: asyncio.Task[ProxiedExchange | None] | None = None
        self._unread: AsyncIterator[bytes] | None = None
        self._forwarding: asyncio.Task[None] | None = None
        self._is_reset = False

    @property
    def _plan(self) -> FaultPlan:
        return self._wires.plan

    async def run(self) -> None:
        """Forward requests and responses until the connection ends."""
        with ExitStack() as stack:
            stack.callback(self._client.abort)
            try:
                self._responses, writer = await self._wires.connect()
            except OSError:
                self._wires.counts["unreachable"] += 1
                await self._client.close()
                return
            self._server = Outlet(writer, self._wires.one_way_seconds)
            stack.callback(self._server.abort)
            self._responses.on_end = self._end_if_idle
            self._forwarding = asyncio.create_task(self._forward())
            try:
                await self._relay()
            finally:
                await self._cancel_tasks()
                await self._client.close(is_reset=self._is_reset)
                await self._count_leftovers()
                await self._server.close(is_reset=self._is_reset)

    async def _cancel_tasks(self) -> None:
        tasks = [task for task in (self._forwarding, self._ahead) if task is not None]
        for task in tasks:
            task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(result, Exception) and not isinstance(result, OSError | Broken):
                raise result  # a bug in the proxy

    def _end_if_idle(self) -> None:
        if not self._open_count:
            self._pending.put_nowait(None)

    # ---- towards the server ----------------------------------------------------------------------

    async def _forward(self) -> None:
        with suppress(OSError, Broken):
            while (exchange := await (self._ahead or self._read_request())) is not None:
                self._ahead = None
                exchange.action = self._plan.draw(exchange.request)
                if exchange.action is not Action.REORDER:
                    self._wires.counts[exchange.action.value] += 1
                if not await self._carry_out(exchange):
                    break
            else:
                await self._server.end()
        await self._pending.put(None)

    async def _read_request(self) -> ProxiedExchange | None:
        head = await read_request_head(self._reader)
        if head is None:
            return None
        if head.expects_continue:
            await self._client.write(_CONTINUE)
        request = await read_whole(self._reader, head)
        self._wires.counts["requests"] += 1
        return ProxiedExchange(next(self._wires.numbers), head.method, request, len(head.data))

    async def _carry_out(self, exchange: ProxiedExchange) -> bool:
        """Carry out the action of a request. Return True if more requests are to be read."""
        if exchange.action not in (Action.PASS, Action.DELAY):
            await self._all_responded()
        match exchange.action:
            case Action.DROP_REQUEST:
                return False
            case Action.HALF_OPEN_BEFORE:
                await self._stall()
                return False
            case Action.CUT_REQUEST:
                await self._server.write(self._part_of(exchange))
                return False
            case Action.BAD_GATEWAY_BEFORE:
                exchange.response = _bad_gateway(exchange)
                await self._expect(exchange)
                return True
            case Action.REORDER:
                await self._reorder(exchange)
                return True
            case Action.DELAY:
                await asyncio.sleep(self._plan.draw_delay())
            case Action.DUPLICATE_BEFORE:
                await self._wires.send_aside(exchange.request, exchange.method)
        await self._send(exchange)
        return exchange.action is not Action.HALF_OPEN_AFTER

    async def _send(self, exchange: ProxiedExchange) -> None:
        # Expect the response before the write, because the server sometimes responds before it has
        # read the whole request.
        await self._expect(exchange)
        if exchange.action is Action.TRICKLE:
            await self._trickle(self._server, exchange.request)
        else:
            await self._server.write(exchange.request)
        exchange.is_sent = True

    async def _expect(self, exchange: ProxiedExchange) -> None:
        self._open_count += 1
        await self._pending.put(exchange)

    async def _all_responded(self) -> None:
        while self._open_count:
            self._calm.clear()
            await self._calm.wait()

    async def _reorder(self, exchange: ProxiedExchange) -> None:
        """Wait until a later request overtakes this request, then send this request.

        The later request is the next request on this connection, or any request on a different
        connection. If no request overtakes this request in time, this request is sent anyway.
        """
        self._ahead = asyncio.create_task(self._read_request())
        overtaken = self._wires.hold(exchange.number)
        either: set[asyncio.Future[Any]] = {self._ahead, overtaken}
        await asyncio.wait(
            either, timeout=self._plan.reorder_seconds, return_when=asyncio.FIRST_COMPLETED
        )
        is_overtaken = overtaken.done()
        self._wires.release(exchange.number)
        later = None if is_overtaken else _result_of(self._ahead)
        is_alone = later is None and not is_overtaken
        self._wires.counts["reorder_alone" if is_alone else "reorder"] += 1
        if later is not None:
            # Send the later request first, on a separate connection. The client still gets the
            # responses in the order of its requests.
            self._ahead = None
            later.response = await self._wires.send_aside(later.request, later.method)
        await self._send(exchange)
        if later is not None:
            if later.response is None:
                raise Broken(
                    "the proxy sent a later request first, and the server did not respond to it"
                )
            await self._expect(later)

    def _part_of(self, exchange: ProxiedExchange) -> bytes:
        has_body = len(exchange.request) > exchange.head_bytes
        first = exchange.head_bytes if has_body else 1
        return exchange.request[: self._plan.random.randrange(first, len(exchange.request))]

    # ---- towards the client ----------------------------------------------------------------------

    async def _relay(self) -> None:
        while (exchange := await self._pending.get()) is not None:
            is_last = not await self._respond(exchange)
            self._open_count -= 1
            self._calm.set()
            self._wires.responded(exchange.number)
            if exchange.action is Action.DUPLICATE_AFTER:
                await self._wires.send_aside(exchange.request, exchange.method)
            if is_last or self._responses.at_eof():
                return

    async def _respond(self, exchange: ProxiedExchange) -> bool:
        """Forward the response, or carry out the action that replaces it.

        Return False if the connection must end.
        """
        if exchange.response is not None:
            status = _status_of(exchange.response)
            is_complete = continues = await self._write(exchange.response)
        else:
            try:
                head = await read_response_head(self._responses, exchange.method)
            except (OSError, Broken):
                return False
            if head is None:
                return False
            status = head.status
            self._unread = read_body(self._responses, head)
            is_complete, continues = await self._forward_response(exchange, head, self._unread)
        if not is_complete:
            self._count_lost(exchange, status)
        return continues

    async def _forward_response(
        self, exchange: ProxiedExchange, head: MessageHead, body: AsyncIterator[bytes]
    ) -> tuple[bool, bool]:
        """Forward the server's response, or carry out the action of `exchange` instead.

        Return two values. The first is True if the client got the whole response. The second is
        True if the connection stays open.
        """
        action = exchange.action
        match action:
            case Action.DROP_ANSWER | Action.RESET:
                await self._drain(body)
                self._is_reset = action is Action.RESET
                return False, False
            case Action.HALF_OPEN_AFTER:
                await self._drain(body)
                await self._stall()
                return False, False
            case Action.BAD_GATEWAY_AFTER:
                await self._drain(body)
                return False, await self._write(_bad_gateway(exchange))
            case Action.CUT_ANSWER:
                await self._cut(head, body)
                return False, False
        write = self._client.write
        if action is Action.TRICKLE:
            write = partial(self._trickle, self._client)
        try:
            await write(head.data)
            async for piece in body:
                await write(piece)
        except (OSError, Broken):
            return False, False
        self._unread = None
        return True, action is not Action.STALE and (head.length is not None or head.is_chunked)

    async def _write(self, data: bytes) -> bool:
        """Write to the client. Return False if the client's connection is closed."""
        try:
            await self._client.write(data)
        except OSError:
            return False
        return True

    async def _cut(self, head: MessageHead, body: AsyncIterator[bytes]) -> None:
        """Forward the head of a response and a part of its body.

        If the body is empty, forward only a part of the head. If the body is chunked, forward a few
        whole chunks or none, and then a part of the next chunk.
        """
        random = self._plan.random
        if head.length == 0:
            await self._write(head.data[: random.randrange(1, len(head.data))])
            return
        await self._write(head.data)
        whole = random.randint(0, _WHOLE_CHUNKS_MAX) if head.is_chunked else 0
        with suppress(OSError, Broken):
            async for piece in body:
                if whole == 0 or _LAST_CHUNK.match(piece):
                    await self._write(piece[: random.randrange(len(piece))])
                    return
                await self._client.write(piece)
                whole -= 1

    async def _trickle(self, outlet: Outlet, data: bytes) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + self._plan.stall_seconds
        sent = 0
        while sent < len(data) and loop.time() < until:
            await outlet.write(data[sent : sent + 1])
            sent += 1
            await asyncio.sleep(self._plan.trickle_seconds)
        await outlet.write(data[sent:])

    async def _stall(self) -> None:
        """Keep the connection open for a time, without reading from or writing to the client."""
        with suppress(RuntimeError):  # raised if reading is already paused
            self._writer.transport.pause_reading()  # type: ignore[attr-defined]
        await asyncio.sleep(self._plan.stall_seconds)

    async def _drain(self, body: AsyncIterator[bytes]) -> None:
        with suppress(OSError, Broken):
            async with asyncio.timeout(self._plan.stall_seconds):
                async for _ in body:
                    pass
        self._unread = None

    # ---- lost responses --------------------------------------------------------------------------

    def _count_lost(self, exchange: ProxiedExchange, status: int) -> None:
        if 200 <= status < 300 and exchange.method not in _SAFE:
            self._wires.counts["dropped_after_commit"] += 1

    async def _count_leftovers(self) -> None:
        """Read the remaining responses, and count the responses to successful writes as lost.

        The client does not get these responses, because its connection has ended.
        """
        left = [self._pending.get_nowait() for _ in range(self._pending.qsize())]
        with suppress(OSError, Broken):
            async with asyncio.timeout(self._plan.stall_seconds):
                for exchange in left:
                    if exchange is not None and exchange.response is not None:
                        self._count_lost(exchange, _status_of(exchange.response))
                    elif exchange is not None and exchange.is_sent:
                        self._count_lost(exchange, await self._skip_response(exchange.method))

    async def _skip_response(self, method: str) -> int:
        """Read the next response, drop it, and return its status.

        Raises Broken if the server has closed the connection.
        """
        if self._unread is not None:
            await self._drain(self._unread)
        head = await read_response_head(self._responses, method)
        if head is None:
            raise Broken("the server closed the connection")
        self._unread = read_body(self._responses, head)
        return head.status


def _bad_gateway(exchange: ProxiedExchange) -> bytes:
    return _BAD_GATEWAY_HEAD + (b"" if exchange.method == "HEAD" else _BAD_GATEWAY_BODY)


def _status_of(response: bytes) -> int:
    return int(response[9:12])


def _result_of(task: asyncio.Task[ProxiedExchange | None]) -> ProxiedExchange | None:
    """Return the result of a task, or None if the task is still running or has failed.

    If the task has failed, its error is raised later, when the task is awaited.
    """
    return task.result() if task.done() and task.exception() is None else None
