"""All connections of a listener: how many there may be, and what they hold together."""

from collections.abc import Callable
from typing import Final, Protocol

from semel.broker.clock import Clock
from semel.server.admission import UnreadBudget
from semel.server.exchange import PrefixCache
from semel.server.http import HttpRefused
from semel.server.limits_http import HttpLimits, connection_room
from semel.server.request_head import HeadCache


class ConnectionLike(Protocol):
    """What the registry needs of a connection."""

    def refuse(self, refused: HttpRefused) -> None:
        """Answer what cannot be served, and end."""

    def check(self, now: float) -> None:
        """Look whether the client lets us wait too long."""

    def drain(self) -> None:
        """End once nothing is owed."""

    def abort(self) -> None:
        """Cut the line."""

    @property
    def unread_bytes(self) -> int:
        """What its long answers count for until they are read."""

    @property
    def unread_since(self) -> float:
        """Since when, by the loop's time."""


class ConnectionSet:
    """All connections of a listener, and what they hold together."""

    def __init__(self, limits: HttpLimits, clock: Clock, unread: UnreadBudget) -> None:
        self.heads: Final = HeadCache(limits)
        self.starts: Final = PrefixCache(clock)
        self.unread: Final = unread
        self.held_bytes = 0
        self.is_draining = False
        self.members: Final[set[ConnectionLike]] = set()
        self.on_empty: Callable[[], None] | None = None
        self._room = connection_room(limits)

    def enter(self, connection: ConnectionLike) -> None:
        """Take a new connection in, or refuse it."""
        self.members.add(connection)
        if self.is_draining or len(self.members) > self._room + self._room // 8 + 1:
            connection.abort()
        elif len(self.members) > self._room:
            connection.refuse(
                HttpRefused(
                    503, "too_many_connections", f"there are {self._room} connections already"
                )
            )

    def leave(self, connection: ConnectionLike) -> None:
        """It has ended."""
        self.members.discard(connection)
        if not self.members and self.on_empty is not None:
            self.on_empty()

    def sweep(self, now: float) -> None:
        """Look at the clock, and at every deadline."""
        self.starts.turn()
        for connection in tuple(self.members):
            connection.check(now)
        self.unread.close_stalled(self.members, now)

    def drain(self) -> None:
        """Let every connection end as soon as it owes nothing."""
        self.is_draining = True
        for connection in tuple(self.members):
            connection.drain()

    def abort(self) -> None:
        """Cut every connection."""
        for connection in tuple(self.members):
            connection.abort()
