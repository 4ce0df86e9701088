"""Accepts connections, keeps their time, and lets them end in good order."""

import asyncio
from ssl import SSLContext
from typing import Final

from semel.broker.clock import Clock, SystemClock
from semel.server.connection import Connection
from semel.server.connections import Connections
from semel.server.http import Handler
from semel.server.limits_http import HttpLimits

_BACKLOG: Final = 1024
_LAST_WORD_SECONDS: Final = 1.0


class Listener:
    """One listening address. All methods belong to the loop's thread."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.port = 0
        self._clock = clock or SystemClock()
        self._server: asyncio.Server | None = None
        self._registry: Connections | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def connection_count(self) -> int:
        """How many connections there are."""
        return len(self._registry.members) if self._registry is not None else 0

    async def start(
        self,
        host: str,
        port: int,
        handler: Handler,
        limits: HttpLimits | None = None,
        *,
        ssl: SSLContext | None = None,
    ) -> int:
        """Accept connections; the port, which is a free one if 0 was asked for."""
        limits = limits or HttpLimits()
        registry = Connections(limits, self._clock)
        loop = asyncio.get_running_loop()
        # Until its handshake is done nobody knows of a connection: TLS has to mind the time itself.
        handshake_seconds = None if ssl is None else limits.header_seconds
        self._server = await loop.create_server(
            lambda: Connection(handler, limits, registry),
            host,
            port,
            backlog=_BACKLOG,
            ssl=ssl,
            ssl_handshake_timeout=handshake_seconds,
        )
        self._registry = registry
        self.port = self._server.sockets[0].getsockname()[1]
        self._sweep_later(registry, limits.sweep_seconds)
        return self.port

    def _sweep_later(self, registry: Connections, seconds: float) -> None:
        loop = asyncio.get_running_loop()

        def run() -> None:
            self._timer = loop.call_later(seconds, run)
            registry.sweep(loop.time())

        self._timer = loop.call_later(seconds, run)

    async def drain(self, seconds: float) -> None:
        """Accept no more, finish what is under way for at most `seconds`, then cut the rest."""
        if self._server is None or self._registry is None:
            return
        self._server.close()
        self._registry.drain()
        if not await _is_empty_within(self._registry, seconds):
            self._registry.abort()
            await _is_empty_within(self._registry, _LAST_WORD_SECONDS)
        if self._timer is not None:
            self._timer.cancel()
        self._server = None


async def _is_empty_within(registry: Connections, seconds: float) -> bool:
    empty = asyncio.Event()
    registry.on_empty = empty.set
    if registry.members:
        try:
            await asyncio.wait_for(empty.wait(), seconds)
        except TimeoutError:
            return False
    return True
