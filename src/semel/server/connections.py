"""All connections of a listener: their number, their memory, and what they share."""

from collections.abc import Callable
from typing import Final, Protocol

from semel.broker.settings import Clock
from semel.server.admission import UnreadBudget, UnreadHolder
from semel.server.exchange import PrefixCache
from semel.server.http import HttpRefused
from semel.server.limits_http import HttpLimits, connections_allowed
from semel.server.request_head import HeadCache


class ConnectionLike(UnreadHolder, Protocol):
    """A connection, as the set of all connections uses it."""

    def refuse(self, refused: HttpRefused) -> None:
        """Send a refusal after all responses that are owed, and close the connection."""

    def check(self, now: float) -> None:
        """Refuse or close the connection if a deadline has passed."""

    def drain(self) -> None:
        """Close the connection once no response is owed and no request is incomplete."""


class ConnectionSet:
    """All connections of a listener; `held_bytes` is the size of bodies that wait to be stored."""

    def __init__(self, limits: HttpLimits, clock: Clock, unread: UnreadBudget) -> None:
        self.heads: Final = HeadCache(limits)
        self.starts: Final = PrefixCache(clock)
        self.unread: Final = unread
        self.held_bytes = 0
        self.is_draining = False
        self.members: Final[set[ConnectionLike]] = set()
        self.on_empty: Callable[[], None] | None = None
        self._count_max = connections_allowed(limits)

    def enter(self, connection: ConnectionLike) -> None:
        """Add a connection; refuse it, or close it, if there are too many."""
        self.members.add(connection)
        if self.is_draining or len(self.members) > self._count_max + self._count_max // 8 + 1:
            connection.abort()
        elif len(self.members) > self._count_max:
            connection.refuse(
                HttpRefused(
                    503, "too_many_connections", f"there are {self._count_max} connections already"
                )
            )

    def leave(self, connection: ConnectionLike) -> None:
        """Remove a connection; call `on_empty` after the last one."""
        self.members.discard(connection)
        if not self.members and self.on_empty is not None:
            self.on_empty()

    def sweep(self, now: float) -> None:
        """Update the date of responses, and check every deadline."""
        self.starts.turn()
        for connection in tuple(self.members):
            connection.check(now)
        self.unread.close_stalled(self.members, now)

    def drain(self) -> None:
        """Close every connection as soon as it owes no response."""
        self.is_draining = True
        for connection in tuple(self.members):
            connection.drain()

    def abort(self) -> None:
        """Close every connection at once."""
        for connection in tuple(self.members):
            connection.abort()
