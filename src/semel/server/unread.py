"""The answers that clients have not read yet: what they may hold together, and who waits for room.

A connection counts here while a long answer is in its buffer, until that is empty. A read counts
from its beginning, because its answer will. Beyond the limit no read is begun. While one waits,
those who have let their answers lie the longest have to go.
"""

from collections.abc import Callable, Iterable
from typing import Protocol

from semel.server.limits_http import HttpLimits


class Holder(Protocol):
    """A connection, as one that holds answers."""

    @property
    def unread_bytes(self) -> int:
        """What it counts for."""

    @property
    def unread_since(self) -> float:
        """Since when, by the loop's time."""

    def abort(self) -> None:
        """Cut the line."""


class Unread:
    """What the answers of all connections of a listener hold together."""

    def __init__(self, limits: HttpLimits | None = None) -> None:
        limits = limits or HttpLimits()
        self.bytes = 0  # in the buffers of connections
        self.reserved_bytes = 0  # for reads under way
        self.wanted_bytes = 0  # by reads that wait for room
        self.on_room: Callable[[], None] | None = None
        self._bytes_max = limits.unread_bytes_max
        self._patience_seconds = limits.crowded_stall_seconds

    @property
    def is_full(self) -> bool:
        """Whether no read may begin now."""
        return self.bytes + self.reserved_bytes >= self._bytes_max

    def add(self, count: int) -> None:
        """Count bytes."""
        self.bytes += count

    def take(self, count: int) -> None:
        """Count them no longer."""
        self.bytes -= count
        self._tell()

    def reserve(self, count: int) -> None:
        """Keep room for what will be counted."""
        self.reserved_bytes += count

    def give_back(self, count: int) -> None:
        """Keep it no longer."""
        self.reserved_bytes -= count
        self._tell()

    def _tell(self) -> None:
        if self.wanted_bytes and self.on_room is not None:
            self.on_room()

    def cut(self, holders: Iterable[Holder], now: float) -> None:
        """Make room for the reads that wait: cut the longest stuck, and no more than needed."""
        enough = self._bytes_max - min(self.wanted_bytes, self._bytes_max // 2)
        if self.bytes <= enough:
            return
        stuck = [
            holder
            for holder in holders
            if holder.unread_bytes and now - holder.unread_since > self._patience_seconds
        ]
        left = self.bytes
        for holder in sorted(stuck, key=lambda each: each.unread_since):
            if left <= enough:
                return
            left -= holder.unread_bytes
            holder.abort()
