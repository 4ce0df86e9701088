"""Groups of readers, which share positions."""

from typing import TYPE_CHECKING

from semel.client import group_calls
from semel.client.async_driver import AsyncLock
from semel.client.group_calls import GroupCursor
from semel.client.transport import CLIENT_DEFAULT, Timeout
from semel.client.txn_values import Moves, PinnedStep
from semel.client.values import Message

if TYPE_CHECKING:
    from semel.client.aio.client import AsyncClient


class AsyncGroup:
    """A group of readers, with a position in each stream in which it was moved."""

    def __init__(self, client: "AsyncClient", name: str) -> None:
        self.name = name
        self._client = client

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    async def offsets(self, *, timeout: Timeout = CLIENT_DEFAULT) -> dict[str, str]:
        """Return the positions by stream, without streams where the group was never moved.

        This does not wait for transactions, and does not change which position a tail of this
        client sends with its commits.
        """
        return await self._client.run(group_calls.positions(self._client.site, self.name), timeout)

    async def set(self, moves: Moves, *, timeout: Timeout = CLIENT_DEFAULT) -> dict[str, str]:
        """Move positions by stream, all or none, and return the new ones.

        A move is an offset, unconditionally: then no message that anyone has read before can be
        committed, by this client neither. Or it has a condition: (from, to),
        (from, to, incarnation) or (from, to, incarnation, version). Raises PositionConflict if the
        condition does not hold.
        """
        client = self._client
        flow = group_calls.set_known(client.site, self.name, moves, client.positions)
        return await client.run(flow, timeout)

    async def pin(self, step: PinnedStep, *, timeout: Timeout = CLIENT_DEFAULT) -> PinnedStep:
        """Pin the next step and return the pinned one: the first that was sent with its number."""
        return await self._client.run(group_calls.pin(self._client.site, self.name, step), timeout)

    async def snapshot(self, *, timeout: Timeout = CLIENT_DEFAULT) -> PinnedStep | None:
        """Return the pinned step, or None if none was ever pinned."""
        return await self._client.run(group_calls.snapshot(self._client.site, self.name), timeout)


class AsyncMessageCommitter:
    """Moves a group after messages, one at a time: what `message.commit()` calls."""

    def __init__(self, client: "AsyncClient", place: GroupCursor) -> None:
        self._client = client
        self.place = place
        self._lock = AsyncLock()

    async def __call__(self, message: Message) -> None:
        async with self._lock:
            await self._client.run(self.place.move(message))
