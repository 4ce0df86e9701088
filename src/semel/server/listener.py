"""Accepts connections, keeps their time, and lets them end in good order."""

import asyncio
import logging
import socket
from collections.abc import Callable
from functools import partial
from ssl import SSLContext
from typing import Final

from semel.broker.clock import Clock, SystemClock
from semel.model.limits import KIB
from semel.server.admission import UnreadBudget
from semel.server.connection import ServerConnection
from semel.server.connections import ConnectionSet
from semel.server.http import Handler
from semel.server.limits_http import HttpLimits

_LAST_WORD_SECONDS: Final = 1.0


class Listener:
    """One listening address. All methods belong to the loop's thread."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._acceptor = Acceptor()
        self._registry: ConnectionSet | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def port(self) -> int:
        """The port that was bound."""
        return self._acceptor.port

    @property
    def connection_count(self) -> int:
        """How many connections there are."""
        return len(self._registry.members) if self._registry is not None else 0

    async def bind(self, host: str, port: int) -> int:
        """Take an address, without serving anybody; the port, a free one if 0 was asked for."""
        await self._acceptor.bind(host, port)
        return self.port

    def start(
        self,
        handler: Handler,
        limits: HttpLimits | None = None,
        *,
        unread: UnreadBudget | None = None,
        ssl: SSLContext | None = None,
    ) -> None:
        """Accept connections at the address that was bound."""
        limits = limits or HttpLimits()
        registry = ConnectionSet(limits, self._clock, unread or UnreadBudget(limits))
        self._registry = registry
        self._acceptor.open(
            lambda: ServerConnection(handler, limits, registry), ssl, limits.header_seconds
        )
        self._sweep_later(registry, limits.sweep_seconds)

    def _sweep_later(self, registry: ConnectionSet, seconds: float) -> None:
        loop = asyncio.get_running_loop()

        def run() -> None:
            self._timer = loop.call_later(seconds, run)
            registry.sweep(loop.time())

        self._timer = loop.call_later(seconds, run)

    async def drain(self, seconds: float) -> None:
        """Accept no more, finish what is under way for at most `seconds`, then cut the rest."""
        await self._acceptor.shut()
        registry = self._registry
        if registry is None:
            return
        registry.drain()
        if not await _is_empty_within(registry, seconds):
            registry.abort()
            await _is_empty_within(registry, _LAST_WORD_SECONDS)
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


# ---- acceptor ------------------------------------------------------------------------------------
# A listening address: bound early, open late, and many connections accepted at a time.
#
# The loop's own server takes one connection per turn. Behind a crowd of new readers, of whom each
# costs its turn a few milliseconds, everybody else would wait at the door for seconds.


_log: Final = logging.getLogger("semel.server")

_BACKLOG: Final = 1024
_ACCEPTS_PER_TURN: Final = 32
_UNSENT_BYTES: Final = 256 * KIB  # inherited by every connection
_REST_SECONDS: Final = 0.1  # until files may be free again

Factory = Callable[[], asyncio.Protocol]


class Acceptor:
    """The sockets of one address. All methods belong to the loop's thread."""

    def __init__(self) -> None:
        self.port = 0
        self._loop: asyncio.AbstractEventLoop
        self._sockets: list[socket.socket] = []
        self._entries: set[asyncio.Task[None]] = set()
        self._has_handshakes = False
        self._is_open = False

    async def bind(self, host: str, port: int) -> None:
        """Take the address, so that nobody else can; whoever connects is still turned away."""
        self._loop = asyncio.get_running_loop()
        found = await self._loop.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        self.port = port
        try:
            for family, kind, protocol, _, address in dict.fromkeys(found):
                listening = socket.socket(family, kind, protocol)
                self._sockets.append(listening)
                listening.setblocking(False)
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                # Of what a client does not read, the kernel may hold little; the rest is counted.
                listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES)
                listening.bind((address[0], self.port, *address[2:]))
                self.port = listening.getsockname()[1]
        except OSError:
            self.close()
            raise

    def open(self, factory: Factory, tls: SSLContext | None, handshake_seconds: float) -> None:
        """Accept connections from now on."""
        self._is_open = True
        self._has_handshakes = tls is not None
        connect = partial(
            self._connect,
            factory,
            tls,
            # Until its handshake is done nobody knows of a connection: TLS minds the time itself.
            None if tls is None else handshake_seconds,
        )
        for listening in self._sockets:
            listening.listen(_BACKLOG)
            self._loop.add_reader(listening.fileno(), self._accept, listening, connect)

    def _accept(
        self, listening: socket.socket, connect: Callable[[socket.socket], asyncio.Task[None]]
    ) -> None:
        for _ in range(_ACCEPTS_PER_TURN):
            try:
                accepted, _address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                _log.warning("cannot accept a connection: %s", error.strerror)
                self._rest(listening, connect)
                return
            accepted.setblocking(False)
            entry = connect(accepted)
            self._entries.add(entry)
            entry.add_done_callback(self._entries.discard)

    def _rest(
        self, listening: socket.socket, connect: Callable[[socket.socket], asyncio.Task[None]]
    ) -> None:
        """Look away for a moment: a connection that cannot be accepted would call at once again."""

        def look() -> None:
            if self._is_open:
                self._loop.add_reader(listening.fileno(), self._accept, listening, connect)

        self._loop.remove_reader(listening.fileno())
        self._loop.call_later(_REST_SECONDS, look)

    def _connect(
        self,
        factory: Factory,
        tls: SSLContext | None,
        seconds: float | None,
        accepted: socket.socket,
    ) -> asyncio.Task[None]:
        async def connect() -> None:
            try:
                await self._loop.connect_accepted_socket(
                    factory, accepted, ssl=tls, ssl_handshake_timeout=seconds
                )
            except OSError as error:
                _log.debug("a connection ended before it began: %s", error)
                accepted.close()

        return self._loop.create_task(connect())

    async def shut(self) -> None:
        """Close the door, and wait until nobody stands in it.

        Only a TLS handshake is broken off. Without one an entry is a turn of the loop from its end,
        and uvloop, when it is cancelled there, never tells the connection that it was lost.
        """
        self.close()
        if self._has_handshakes:
            for entry in self._entries:
                entry.cancel()
        await asyncio.gather(*self._entries, return_exceptions=True)

    def close(self) -> None:
        """Accept no more."""
        self._is_open = False
        for listening in self._sockets:
            if listening.fileno() >= 0:
                self._loop.remove_reader(listening.fileno())
                listening.close()
        self._sockets.clear()
