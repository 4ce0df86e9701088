"""Accepts connections, keeps their time, and lets them end in good order."""

import asyncio
from ssl import SSLContext
from typing import Final

from semel.broker.clock import Clock, SystemClock
from semel.server.acceptor import Acceptor
from semel.server.connection import Connection
from semel.server.connections import Connections
from semel.server.http import Handler
from semel.server.limits_http import HttpLimits
from semel.server.unread import Unread

_LAST_WORD_SECONDS: Final = 1.0


class Listener:
    """One listening address. All methods belong to the loop's thread."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._acceptor = Acceptor()
        self._registry: Connections | None = None
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
        unread: Unread | None = None,
        ssl: SSLContext | None = None,
    ) -> None:
        """Accept connections at the address that was bound."""
        limits = limits or HttpLimits()
        registry = Connections(limits, self._clock, unread or Unread(limits))
        self._registry = registry
        self._acceptor.open(
            lambda: Connection(handler, limits, registry), ssl, limits.header_seconds
        )
        self._sweep_later(registry, limits.sweep_seconds)

    def _sweep_later(self, registry: Connections, seconds: float) -> None:
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


async def _is_empty_within(registry: Connections, seconds: float) -> bool:
    empty = asyncio.Event()
    registry.on_empty = empty.set
    if registry.members:
        try:
            await asyncio.wait_for(empty.wait(), seconds)
        except TimeoutError:
            return False
    return True
