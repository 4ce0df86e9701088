"""A listening address: it accepts connections, checks their deadlines, and shuts them down."""

import asyncio
import contextlib
import logging
import socket
from collections import deque
from collections.abc import Callable
from ssl import SSLContext
from time import monotonic
from typing import Final

from semel.broker.settings import Clock, SystemClock
from semel.model.limits import KIB
from semel.server.browsers import BrowserPolicy, BrowserRules
from semel.server.connection import ServerConnection
from semel.server.exchange import ConnectionOutput, PrefixCache
from semel.server.http import Handler, HttpRefused, Request
from semel.server.limits_http import HttpLimits, connections_allowed
from semel.server.request_head import HeadCache
from semel.server.unread_budget import UnreadBudget

_HANDSHAKE_SHARE: Final = 4  # a quarter of the connections can be TLS handshakes under way

_STEPS_SECONDS: Final = 0.01  # of one turn of the event loop, for the steps of long requests

# ---- connections ---------------------------------------------------------------------------------


class StepQueue:
    """The steps of requests that are handled in steps, for all connections together.

    On each turn of the event loop, steps run for about 10 ms. If each request had its own step on
    every turn, many long requests at the same time would delay all others.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._steps: deque[Callable[[], None]] = deque()
        self._is_due = False

    def add(self, step: Callable[[], None]) -> None:
        """Call `step` on a later turn, after the steps that were added before."""
        self._steps.append(step)
        self._run_soon()

    def _run_soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._run)

    def _run(self) -> None:
        self._is_due = False
        until = monotonic() + _STEPS_SECONDS
        for _ in range(len(self._steps)):  # a step that is added now runs on a later turn
            self._steps.popleft()()
            if monotonic() >= until:
                break
        if self._steps:
            self._run_soon()


IsStranger = Callable[[Request, ConnectionOutput], bool]


class ConnectionSet:
    """All connections of a listener, and the state that the connections share.

    `held_bytes` is the total size of the bodies of all requests that are not answered yet.
    """

    def __init__(
        self, limits: HttpLimits, clock: Clock, unread: UnreadBudget, policy: BrowserPolicy
    ) -> None:
        self.heads: Final = HeadCache(limits, policy)
        self.is_stranger: IsStranger = lambda _request, _output: False
        self.prefixes: Final = PrefixCache(clock, policy.header_lines())
        self.unread: Final = unread
        self.steps: Final = StepQueue()
        self.held_bytes = 0
        self.is_draining = False
        self.members: Final[set[ServerConnection]] = set()
        self.handshakes: Final[dict[ServerConnection, socket.socket]] = {}  # oldest first
        self.on_empty: Callable[[], None] | None = None
        self._count_max = connections_allowed(limits)
        # Above `_count_max` connections are refused with a response; above this, without one.
        self._refused_max = self._count_max + self._count_max // 8 + 1
        self._handshakes_max = max(1, self._count_max // _HANDSHAKE_SHARE)

    def enter(self, connection: ServerConnection) -> None:
        """Add a connection.

        If there are too many connections, refuse the connection with a response. If there are far
        too many, or if the listener is draining, close the connection immediately.
        """
        self.end_handshake(connection)
        self.members.add(connection)
        self.unread.counts.connections = len(self.members)
        if self.is_draining or len(self.members) > self._refused_max:
            connection.abort()
        elif len(self.members) > self._count_max:
            connection.refuse(
                HttpRefused(
                    503, "too_many_connections", f"all {self._count_max} connections are in use"
                )
            )

    def leave(self, connection: ServerConnection) -> None:
        """Remove a connection. Call `on_empty` if it was the last connection."""
        self.members.discard(connection)
        self.unread.counts.connections = len(self.members)
        if not self.members and self.on_empty is not None:
            self.on_empty()

    def make_room_for_handshake(self) -> bool:
        """Return True if a further TLS handshake can begin.

        If too many are under way, drop the oldest one: a handshake takes milliseconds, so the
        oldest one is that of a client which does not answer. Return False if no file descriptor is
        left for it, because established connections use them.
        """
        while self.handshakes and (
            len(self.handshakes) >= self._handshakes_max
            or len(self.members) + len(self.handshakes) >= self._refused_max
        ):
            oldest, accepted = next(iter(self.handshakes.items()))
            self.end_handshake(oldest)
            # The handshake fails, because the input has ended. If the task were cancelled before
            # the handshake has begun, the connection would stay open.
            with contextlib.suppress(OSError):  # the client is gone
                accepted.shutdown(socket.SHUT_RDWR)
            self.unread.counts.handshakes_dropped += 1
        return len(self.members) < self._refused_max

    def begin_handshake(self, connection: ServerConnection, accepted: socket.socket) -> None:
        """Count a TLS handshake until `end_handshake` is called."""
        self.handshakes[connection] = accepted
        self.unread.counts.handshakes = len(self.handshakes)

    def end_handshake(self, connection: ServerConnection) -> None:
        """Count a handshake no longer, because it succeeded, failed or was dropped."""
        if self.handshakes.pop(connection, None) is not None:
            self.unread.counts.handshakes = len(self.handshakes)

    def sweep(self, now: float) -> None:
        """Update the Date header of responses, and check the deadlines of every connection."""
        self.prefixes.turn()
        for connection in tuple(self.members):
            connection.check(now)
        self.unread.close_stuck(self.members, now)

    def drain(self) -> None:
        """Close each connection as soon as all its owed responses are sent."""
        self.is_draining = True
        for connection in tuple(self.members):
            connection.drain()

    def abort(self) -> None:
        """Close every connection immediately, without completing any response."""
        for connection in tuple(self.members):
            connection.abort()


# ---- listener ------------------------------------------------------------------------------------


_ABORT_SECONDS: Final = 1.0


class Listener:
    """One listening address. All methods must be called on the event loop's thread."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._acceptor = Acceptor()
        self._host = ""
        self._registry: ConnectionSet | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def port(self) -> int:
        return self._acceptor.port

    @property
    def connection_count(self) -> int:
        return len(self._registry.members) if self._registry is not None else 0

    async def bind(self, host: str, port: int) -> int:
        """Bind an address, but do not accept yet. Return the port. Port 0 means any free port.

        Raises OSError if the address is not valid or cannot be bound.
        """
        await self._acceptor.bind(host, port)
        self._host = host
        return self.port

    def start(
        self,
        handler: Handler,
        limits: HttpLimits | None = None,
        *,
        unread: UnreadBudget | None = None,
        ssl: SSLContext | None = None,
        browsers: BrowserRules | None = None,
        is_stranger: IsStranger | None = None,
    ) -> None:
        """Start to accept connections at the bound address. `handler` handles their requests.

        `is_stranger` returns True for a request that the handler refuses whatever its body is.
        A request that is refused by the rules for `browsers` also goes to the handler, which must
        respond with `Head.refusal`.
        """
        limits = limits or HttpLimits()
        policy = BrowserPolicy(browsers, self._host, self._acceptor.addresses)
        registry = ConnectionSet(limits, self._clock, unread or UnreadBudget(limits), policy)
        registry.is_stranger = is_stranger or registry.is_stranger
        self._registry = registry
        self._acceptor.open(
            lambda: ServerConnection(handler, limits, registry),
            registry,
            ssl,
            limits.header_seconds,
        )
        self._sweep_every(limits.sweep_seconds, registry)

    def replace_tls(self, ssl: SSLContext) -> None:
        """Use `ssl` for later connections, instead of the context that `start` gets."""
        self._acceptor.tls = ssl

    def _sweep_every(self, seconds: float, registry: ConnectionSet) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(seconds, self._sweep_every, seconds, registry)
        registry.sweep(loop.time())

    async def drain(self, seconds: float) -> None:
        """Stop accepting, wait at most `seconds` for owed responses, then close all connections."""
        await self._acceptor.shut()
        registry = self._registry
        if registry is None:
            return
        registry.drain()
        if not await _is_empty_within(registry, seconds):
            registry.abort()
            await _is_empty_within(registry, _ABORT_SECONDS)
        if self._timer is not None:
            self._timer.cancel()


async def _is_empty_within(registry: ConnectionSet, seconds: float) -> bool:
    empty = asyncio.Event()
    registry.on_empty = empty.set
    if registry.members:
        try:
            await asyncio.wait_for(empty.wait(), seconds)
        except TimeoutError:
            return False
    return True


# ---- the acceptor --------------------------------------------------------------------------------
# asyncio's own server accepts only one connection per turn of the event loop. If many new readers
# each use a few milliseconds of a turn, other clients would wait for seconds until they are
# accepted. Therefore this class accepts many connections per turn.


_log: Final = logging.getLogger("semel.server")

_BACKLOG: Final = 1024
_ACCEPTS_PER_TURN: Final = 32
_UNSENT_BYTES: Final = 256 * KIB  # in the kernel; connections inherit the setting
_PAUSE_SECONDS: Final = 0.1  # the pause after an error such as "too many open files"

Factory = Callable[[], ServerConnection]


class Acceptor:
    """The listening sockets of one address. Methods must be called on the event loop's thread."""

    def __init__(self) -> None:
        self.port = 0
        self._loop: asyncio.AbstractEventLoop
        self._sockets: list[socket.socket] = []
        self._entries: set[asyncio.Task[None]] = set()
        self._factory: Factory
        self._registry: ConnectionSet
        self.tls: SSLContext | None = None
        self._handshake_seconds: float | None = None
        self._is_open = False

    @property
    def addresses(self) -> list[str]:
        """The IP addresses of the listening sockets."""
        return [each.getsockname()[0].partition("%")[0] for each in self._sockets]

    async def bind(self, host: str, port: int) -> None:
        """Bind the address, to reserve it. Until `open` is called, connections are refused.

        Raises OSError if the address is not valid or cannot be bound.
        """
        self._loop = asyncio.get_running_loop()
        try:
            addresses = await self._loop.getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
        except ValueError as error:  # a name that cannot be encoded, such as a..b
            raise socket.gaierror(socket.EAI_NONAME, "not a valid host name") from error
        self.port = port
        try:
            for family, kind, protocol, _, address in dict.fromkeys(addresses):
                listening = socket.socket(family, kind, protocol)
                self._sockets.append(listening)
                listening.setblocking(False)
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                # Keep only few unread bytes in the kernel, because UnreadBudget cannot count those.
                listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES)
                listening.bind((address[0], self.port, *address[2:]))
                self.port = listening.getsockname()[1]
        except OSError:
            self.close()
            raise

    def open(
        self,
        factory: Factory,
        registry: ConnectionSet,
        tls: SSLContext | None,
        handshake_seconds: float,
    ) -> None:
        """Start to accept connections. If `tls` is set, connections use TLS."""
        self._is_open = True
        self._factory = factory
        self._registry = registry
        if tls is not None:
            # The TLS handshake has its own timeout. The other deadlines begin after the handshake.
            self.tls, self._handshake_seconds = self.tls or tls, handshake_seconds
        for listening in self._sockets:
            listening.listen(_BACKLOG)
            self._watch(listening)

    def _watch(self, listening: socket.socket) -> None:
        if self._is_open:
            self._loop.add_reader(listening.fileno(), self._accept, listening)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_ACCEPTS_PER_TURN):
            try:
                accepted, _address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                _log.warning("the server cannot accept a connection: %s", error.strerror)
                # Pause, because the next attempt would immediately fail with the same error.
                self._loop.remove_reader(listening.fileno())
                self._loop.call_later(_PAUSE_SECONDS, self._watch, listening)
                return
            accepted.setblocking(False)
            if self.tls is not None and not self._registry.make_room_for_handshake():
                accepted.close()
                continue
            connection = self._factory()
            if self.tls is not None:
                self._registry.begin_handshake(connection, accepted)
            entry = self._loop.create_task(self._enter(connection, accepted))
            self._entries.add(entry)
            entry.add_done_callback(self._entries.discard)

    async def _enter(self, connection: ServerConnection, accepted: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(
                lambda: connection,
                accepted,
                ssl=self.tls,
                ssl_handshake_timeout=self._handshake_seconds,
            )
        except OSError as error:
            _log.debug("a connection failed before its first request: %s", error)
            accepted.close()
        finally:
            self._registry.end_handshake(connection)

    async def shut(self) -> None:
        """Stop accepting. Some accepted connections may still be in setup; wait until none is.

        With TLS, their setup is cancelled, because a handshake can be slow. Without TLS, their
        setup is completed on the next turn of the event loop.
        """
        self.close()
        # If a task without TLS were cancelled, uvloop would never call `connection_lost`.
        if self.tls is not None:
            for entry in self._entries:
                entry.cancel()
        await asyncio.gather(*self._entries, return_exceptions=True)

    def close(self) -> None:
        """Stop accepting, and close the listening sockets."""
        self._is_open = False
        for listening in self._sockets:
            if listening.fileno() >= 0:
                self._loop.remove_reader(listening.fileno())
                listening.close()
        self._sockets.clear()
