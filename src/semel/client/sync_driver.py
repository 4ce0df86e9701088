"""The flow driver for threads. It runs flows with blocking sockets. Threads can share a driver.

`Tail` iterates over a stream's messages. Its constructor asks the server for the tail (to start at
`now`) or for the group's position. So no message that arrives before the first `next` is missed.
While one thread waits for the next message, a different thread can end the wait with `close`.
"""

import contextlib
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Collection, Iterator
from types import CodeType, FrameType
from typing import Any, Final, cast

from msgspec.structs import replace

from semel.client.flows import Flow, Lost, Opened, Pause, Receive, Reply, Send, T
from semel.client.reading import FetchedMessages, MessageReader
from semel.client.requests import render
from semel.client.response_parser import (
    BodyEnd,
    BodyPart,
    ParserEvent,
    Response,
    ResponseCut,
)
from semel.client.transport import (
    FOREVER,
    RECEIVE_BYTES,
    ConnectionPool,
    PooledConnection,
    ProcessOwner,
    Transport,
    connect_error,
    fork_safe_lock,
    jitter,
    reason_of,
    speaks_tls,
    uses_tls,
)
from semel.client.values import Message

SyncLock = fork_safe_lock
sync_caller = threading.get_ident  # identifies the running thread, as long as it exists
_LINGER_SECONDS: Final = 1.0


def is_called(codes: Collection[CodeType], name: str, value: object, frame: object) -> bool:
    """Return True if `frame` or one that it was called from runs one of these functions.

    Only a function whose local variable `name` is `value` counts. So a thread finds out whether it
    is in a signal handler that has interrupted a call, and a thread that waits for another one
    finds out whether that one has ended.
    """
    while isinstance(frame, FrameType):
        if frame.f_code in codes and frame.f_locals.get(name) is value:
            return True
        frame = frame.f_back
    return False


class Stop:
    """A signal that one thread sets to end a call in a different thread."""

    def __init__(self) -> None:
        self._lock = SyncLock()
        self._changed = threading.Condition(self._lock)
        self._is_set = False
        self._socket: socket.socket | None = None
        self._owner = ProcessOwner("a call")

    @property
    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        """End the call. A request in progress counts as lost or not sent, and is not retried."""
        self._is_set = True
        with self._lock:
            self._changed.notify_all()
            if self._socket is not None and not self._owner.is_parent:
                _shut_down(self._socket)

    def watch(self, connection: socket.socket | None) -> None:
        """Record the socket on which the call waits, or None if the call no longer waits.

        `set` ends the call by shutting this socket down. If `set` was already called, the socket is
        shut down immediately.
        """
        with self._lock:
            self._owner.adopt()
            self._socket = connection
            if connection is not None and self.is_set:
                _shut_down(connection)

    def wait(self, seconds: float) -> None:
        """Wait until `set` is called, but at most `seconds` seconds."""
        with self._lock:
            self._changed.wait_for(lambda: self._is_set, seconds)


class _NeverSet(Stop):
    """The signal of a call that nobody can end. All such calls share one."""

    def __init__(self) -> None:
        """Make no event, which would take longer than the rest of a small call."""

    @property
    def is_set(self) -> bool:
        return False

    def watch(self, connection: socket.socket | None) -> None:
        """Forget the connection: nobody will shut it down."""

    def wait(self, seconds: float) -> None:
        time.sleep(seconds)


_NEVER: Final = _NeverSet()


class SyncConnection(PooledConnection):
    """A connection with a blocking socket."""

    def __init__(self, line: socket.socket) -> None:
        super().__init__()
        self.line = line
        self.owner = ProcessOwner("a connection")
        self._poll = select.poll()
        self._poll.register(line, select.POLLIN)

    def is_usable(self) -> bool:
        """Return True if the connection is open and no bytes have arrived since the last response.

        Return False in a forked process, which must not use the connections of its parent.
        """
        if self.owner.is_parent or (isinstance(self.line, ssl.SSLSocket) and self.line.pending()):
            return False
        return not self._poll.poll(0)

    def send(self, data: bytes, deadline: float) -> int:
        """Send `data` and return the number of bytes that were sent.

        The number is less than `len(data)` if the connection fails or the deadline passes.
        """
        sent = 0
        view = memoryview(data)
        while sent < len(data):
            try:
                self.line.settimeout(_seconds_until(deadline))
                sent += self.line.send(view[sent : sent + RECEIVE_BYTES])
            except OSError:
                return sent
        return sent

    def receive(self, deadline: float, silence_seconds: float) -> ParserEvent:
        """Receive bytes until the parser has an event, and return the event.

        Raises OSError or ResponseCut if the connection fails, if the deadline passes, or if the
        server sends no byte for `silence_seconds`.
        """
        while not self.events:
            self.line.settimeout(_seconds_until(min(deadline, time.monotonic() + silence_seconds)))
            self.take(self.line.recv(RECEIVE_BYTES))
        return self.events.popleft()

    def close(self) -> None:
        self.line.close()


class SyncDriver:
    """Runs flows, and keeps their connections open for later flows."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        # Until the first response, the server at an http:// address can be one that uses TLS.
        self._may_use_tls = not transport.address.is_tls
        self._pool: ConnectionPool[SyncConnection] = ConnectionPool()

    def run(
        self,
        flow: Flow[T],
        timeout: float = FOREVER,
        stop: Stop | None = None,
        *,
        silence_seconds: float = FOREVER,
    ) -> T:
        """Run a flow and return its result. Exceptions of the flow are passed on.

        After `timeout` seconds, or once `stop` is set, requests fail. A pause ends early if `stop`
        is set, and is skipped if it would exceed the timeout. The flow then receives False as the
        result of the pause, and does not retry.

        A response counts as lost if the server sends no byte for `silence_seconds`. Without this
        limit, a failure of the server's machine would not be noticed.
        """
        deadline = time.monotonic() + timeout
        stop = stop or _NEVER
        reply: Any = None
        while True:
            try:
                step = flow.send(reply)
            except StopIteration as end:
                return cast("T", end.value)
            if isinstance(step, Send):
                reply = self._send(step, deadline, stop, silence_seconds)
            elif isinstance(step, Receive):
                reply = self._receive(step, deadline, stop)
            elif isinstance(step, Pause):
                reply = self._pause(step, deadline, stop)
            else:
                self._pool.give_back(step.channel, is_whole=True)
                reply = None

    def close(self) -> None:
        """Close the idle connections.

        Requests in progress continue. Later requests raise ClientClosed.
        """
        self._pool.close()

    # ---- steps -----------------------------------------------------------------------------------

    def _send(self, step: Send, deadline: float, stop: Stop, silence_seconds: float) -> Reply:
        computed = self._transport.computed
        if computed is None:
            return self._attempt(step, deadline, stop, silence_seconds)
        first = computed.add_to(step.request)
        reply = self._attempt(replace(step, request=first), deadline, stop, silence_seconds)
        if computed.is_token_refused(reply):
            again = computed.add_to(step.request)
            if again.authorization != first.authorization:
                again_step = replace(step, request=again)
                reply = self._attempt(again_step, deadline, stop, silence_seconds)
        return reply

    def _attempt(self, step: Send, deadline: float, stop: Stop, silence_seconds: float) -> Reply:
        connection = self._pool.take(step.kind)
        if connection is None:
            try:
                connection = self._connect(deadline)
            except OSError as error:
                return connect_error(self._transport, error)
        stop.watch(connection.line)
        reply: Reply | None = None
        try:
            reply = self._exchange(connection, step, deadline, silence_seconds)
            return reply
        finally:
            stop.watch(None)
            if not isinstance(reply, Opened):
                self._pool.give_back(connection, is_whole=isinstance(reply, Response))

    def _exchange(
        self, connection: SyncConnection, step: Send, deadline: float, silence_seconds: float
    ) -> Reply:
        request = step.request
        data = render(request, self._transport.fixed)
        connection.parser.expect(is_head=request.method == "HEAD", is_streamed=request.is_streamed)
        is_sent = connection.send(data, deadline) == len(data)
        if not is_sent:
            # A server can refuse a request before it has received all of it. So wait briefly for a
            # response.
            deadline = min(time.monotonic() + _LINGER_SECONDS, deadline)
        try:
            event = connection.receive(deadline, min(silence_seconds, step.silence_seconds))
        except (OSError, ResponseCut) as error:
            if self._may_use_tls and connection.was_refused(error):
                self._may_use_tls = False
                if speaks_tls(self._transport, deadline):
                    return uses_tls(self._transport)
            return connection.failure(error, self._transport.address.url, is_sent=is_sent)
        assert isinstance(event, Response)
        self._may_use_tls = False
        if not is_sent:
            connection.parser.is_closing = True
        return Opened(event, connection) if event.is_streamed else event

    def _receive(self, step: Receive, deadline: float, stop: Stop) -> BodyPart | BodyEnd | Lost:
        connection: SyncConnection = step.channel
        if connection.owner.is_parent:
            return Lost("the connection belongs to the parent of this process")
        stop.watch(connection.line)
        try:
            event = connection.receive(deadline, step.silence_seconds)
        except (OSError, ResponseCut) as error:
            return Lost(f"the connection to the server was lost: {reason_of(error)}")
        finally:
            stop.watch(None)
        assert not isinstance(event, Response)
        return event

    def _pause(self, step: Pause, deadline: float, stop: Stop) -> bool:
        seconds = max(step.at_least, jitter(step.seconds))
        if stop.is_set or time.monotonic() + seconds >= deadline:
            return False
        stop.wait(seconds)
        return not stop.is_set

    def _connect(self, deadline: float) -> SyncConnection:
        transport, address = self._transport, self._transport.address
        deadline = min(deadline, time.monotonic() + transport.connect_timeout)
        line = socket.create_connection((address.host, address.port), _seconds_until(deadline))
        try:
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if address.is_tls:
                assert transport.tls is not None
                line.settimeout(_seconds_until(deadline))
                line = transport.tls.wrap_socket(line, server_hostname=address.host)
        except BaseException:
            line.close()
            raise
        return SyncConnection(line)


def _seconds_until(deadline: float) -> float | None:
    """Return the seconds until the deadline as a socket timeout. None means no timeout.

    Raises TimeoutError if the deadline has passed.
    """
    seconds = deadline - time.monotonic()
    if seconds <= 0:
        raise TimeoutError("timed out")
    return None if seconds == FOREVER else seconds


def _shut_down(line: socket.socket) -> None:
    with contextlib.suppress(OSError):  # raised if the socket is already closed
        line.shutdown(socket.SHUT_RDWR)


# ---- the iterators that `read` and `tail` return -------------------------------------------------


class Read(FetchedMessages, Iterator[Message]):
    """The object that `read` returns: an iterator over the messages up to the present tail.

    Its attributes also have a value if there was no message: `next_offset` is where to continue,
    `up_to_date` says that the tail was reached, and `closed` that no more messages will come.
    """

    def __init__(
        self, driver: SyncDriver, reader: MessageReader, limit: int | None, timeout: float
    ) -> None:
        super().__init__(reader)
        self._driver = driver
        self._limit = limit
        self._timeout = timeout
        self._lock = SyncLock()  # held while a page is fetched
        self._is_over = limit is not None and limit <= 0

    def __iter__(self) -> "Read":
        return self

    def __next__(self) -> Message:
        while (message := self._take()) is None:
            if self._is_over:
                raise StopIteration
            with self._lock:
                if not self._ready and not self._is_over:
                    self._fetch()
        return message

    def _fetch(self) -> None:
        start = self._reader.offset
        page = self._driver.run(self._reader.next_page(), self._timeout)
        self._is_over = page is None
        if page is None:
            return
        self._add(page, start, self._limit)
        if self._limit is not None:
            self._limit -= len(page)
            self._is_over = self._limit <= 0


class Tail(FetchedMessages, Iterator[Message]):
    """An iterator over a stream's messages that waits for new messages at the tail.

    The iteration ends after the last message of a closed stream, or when `close` is called. While a
    thread waits for a message, another thread can use the attributes `next_offset`, `up_to_date`
    and `closed`.
    """

    def __init__(
        self,
        driver: SyncDriver,
        reader: MessageReader,
        timeout: float,
        before: Callable[[], object] | None = None,
    ) -> None:
        super().__init__(reader)
        self._driver = driver
        self._timeout = timeout
        self._stop = Stop()
        self._lock = SyncLock()  # held while a page is fetched
        if before is not None:
            before()
        driver.run(reader.begin(), timeout, self._stop)

    def __iter__(self) -> "Tail":
        return self

    def __next__(self) -> Message:
        while (message := self._take()) is None:
            if self._stop.is_set:
                raise StopIteration
            with self._lock:
                if not self._ready and not self._stop.is_set:
                    self._fetch()
        return message

    def __enter__(self) -> "Tail":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def offset(self) -> str:
        """The offset after all messages that were fetched so far.

        This offset can be ahead of `next_offset`.
        """
        return self._reader.offset

    def close(self) -> None:
        """End the iteration. Any thread can call this, even while a different thread waits.

        Messages that were fetched and not returned are dropped. To read them, begin at
        `next_offset`.
        """
        self._stop.set()
        self._drop()
        if self._lock.acquire(blocking=False):
            self._hang_up()
            self._lock.release()

    def _fetch(self) -> None:
        start = self._reader.offset
        timeout = FOREVER if self._reader.has_begun else self._timeout
        try:
            page = self._driver.run(self._reader.next_page(), timeout, self._stop)
        except BaseException:
            self._hang_up()
            if self._stop.is_set:
                return
            raise
        self._add(page or [], start)
        if page is None:
            self._stop.set()
        elif self._stop.is_set:  # `close` was called when the page arrived
            self._drop()
        if self._stop.is_set:
            self._hang_up()

    def _hang_up(self) -> None:
        self._driver.run(self._reader.hang_up())
