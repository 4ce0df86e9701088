"""Groups of readers, for asyncio."""

import asyncio
from typing import Protocol, TypeVar

from semel.client import group_calls
from semel.client.flows import Flow
from semel.client.group_calls import GroupCursor
from semel.client.positions import KnownPositions
from semel.client.stream_calls import ServerConfig
from semel.client.txn_values import Moves, PinnedStep
from semel.client.values import Message

T = TypeVar("T")


class AsyncRunFlow(Protocol):
    """Carries out a flow within a time, or that of the client."""

    async def __call__(self, flow: Flow[T], timeout: float | None = None, /) -> T:
        """Carry it out."""


class AsyncGroup:
    """A group of readers: it has a position in each stream it was moved in."""

    def __init__(
        self, site: ServerConfig, run: AsyncRunFlow, name: str, positions: KnownPositions
    ) -> None:
        self.name = name
        self._site = site
        self._run = run
        self._positions = positions

    def __repr__(self) -> str:
        return f"AsyncGroup({self.name!r})"

    async def offsets(self, *, timeout: float | None = None) -> dict[str, str]:
        """Return where it is, by stream, without those where it was never moved.

        It never waits for transactions, and what a reader was told stays as it is.
        """
        return await self._run(group_calls.positions(self._site, self.name), timeout)

    async def set(self, moves: Moves, *, timeout: float | None = None) -> dict[str, str]:
        """Move it, by stream; all or nothing. Returns where it is then.

        To an offset, wherever it is now: what anybody has read before can then no longer be
        committed, by this client neither. Or only if it is where the caller believes: (from, to),
        (from, to, incarnation) or (from, to, incarnation, version).
        """
        flow = group_calls.set_known(self._site, self.name, moves, self._positions)
        return await self._run(flow, timeout)

    async def pin(self, step: PinnedStep, *, timeout: float | None = None) -> PinnedStep:
        """Pin the next step; the first one of its number wins, and is what is returned."""
        return await self._run(group_calls.pin(self._site, self.name, step), timeout)

    async def snapshot(self, *, timeout: float | None = None) -> PinnedStep | None:
        """Ask for the step it has pinned; None if it never has."""
        return await self._run(group_calls.snapshot(self._site, self.name), timeout)


class AsyncMessageCommitter:
    """Moves a group after messages, one at a time."""

    def __init__(self, run: AsyncRunFlow, place: GroupCursor) -> None:
        self._run = run
        self.place = place
        self._lock = asyncio.Lock()

    async def __call__(self, message: Message) -> None:
        """Move the group after a message."""
        async with self._lock:
            await self._run(self.place.move(message))
