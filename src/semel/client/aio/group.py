"""Groups: their positions, their members, and the messages that they have rejected."""

from collections.abc import AsyncIterator, Iterable, Mapping
from typing import TYPE_CHECKING, TypeAlias

from semel.client import group_calls, member_calls
from semel.client.addresses import path_of
from semel.client.async_driver import AsyncLock
from semel.client.dead_letter_calls import DeadLetterCalls, delete_with_retries
from semel.client.dead_letters import DeadLetter, cause_of, reject_message
from semel.client.transport import CLIENT_DEFAULT, Timeout
from semel.client.values import Message, Metadata, Moves, PinnedStep

if TYPE_CHECKING:
    from semel.client.aio.client import AsyncClient
    from semel.client.aio.stream import AsyncStream

    StreamOrPath: TypeAlias = str | AsyncStream


class AsyncGroup:
    """Readers that share one position in each stream. The server stores the positions."""

    def __init__(self, client: "AsyncClient", name: str) -> None:
        self.name = name
        self._client = client

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    # ---- the group as a whole --------------------------------------------------------------------

    async def describe(self, *, timeout: Timeout = CLIENT_DEFAULT) -> member_calls.GroupInfo:
        """Return the group's members, which streams they own, and how far the group is behind.

        Raises GroupNotFound if there is no such group: it has no positions and no members.
        """
        return await self._client.run(
            member_calls.describe_group(self._client.site, self.name), timeout
        )

    async def reset(
        self,
        to: str = "earliest",
        *,
        streams: "Iterable[StreamOrPath]" = (),
        force: bool = False,
        timeout: Timeout = CLIENT_DEFAULT,
    ) -> dict[str, str]:
        """Set the group's positions in all its streams, or only in `streams`. Return them.

        Without `streams`, the retry stream of the group is left out, because it has copies. `to` is
        "earliest", "latest" (the end of what can be read now), or an offset. Raises GroupIsShared
        if members own the streams, unless `force`. With `force`, the members continue at the new
        positions. Raises GroupNotFound if there is no such group.
        """
        client = self._client
        paths = [path_of(stream, client.site.address) for stream in streams]
        flow = group_calls.reset_positions(
            client.site, self.name, to, paths, client.positions, by_operator=force
        )
        return await client.run(flow, timeout)

    async def delete(self, *, timeout: Timeout = CLIENT_DEFAULT) -> None:
        """Delete the group: its positions, and what the server stores about its members.

        Its retry stream, which has copies of dead letters, is deleted after it. Its dead letters
        are kept. Raises GroupInUse if the group has members.
        """
        await self._client.run(delete_with_retries(self._client.site, self.name), timeout)

    # ---- positions -------------------------------------------------------------------------------

    async def offsets(self, *, timeout: Timeout = CLIENT_DEFAULT) -> dict[str, str]:
        """Return the group's positions, as a mapping from each stream to an offset.

        Streams in which the group has no position are left out. This call does not wait for pending
        transactions.
        """
        return await self._client.run(group_calls.positions(self._client.site, self.name), timeout)

    async def metadata(
        self, *, timeout: Timeout = CLIENT_DEFAULT
    ) -> dict[str, dict[str, str | int]]:
        """Return what the last moves stored with the group's positions, for each stream.

        Streams whose position has no metadata are left out.
        """
        return await self._client.run(
            group_calls.group_metadata(self._client.site, self.name), timeout
        )

    async def set(
        self,
        moves: Moves,
        *,
        metadata: Mapping[str, Metadata] | None = None,
        force: bool = False,
        timeout: Timeout = CLIENT_DEFAULT,
    ) -> dict[str, str]:
        """Set the group's positions in all of these streams or in none. Return the new positions.

        `moves` maps each stream to the new offset, or to a tuple with a condition: (from, to),
        (from, to, incarnation) or (from, to, incarnation, version). Raises PositionConflict if the
        group is not at `from`, or if the stream's incarnation or the position's version differs.

        After a move without a condition, messages read before the move can no longer be committed.

        `metadata` maps streams to what is stored with the position: names with texts or 64-bit
        integers, at most 4 KiB as JSON. A position that is moved without metadata has none.

        Raises GroupIsShared if a member of the group owns a stream, unless `force`.
        """
        client = self._client
        flow = group_calls.set_known(
            client.site, self.name, moves, client.positions, metadata, by_operator=force
        )
        return await client.run(flow, timeout)

    async def pin(self, step: PinnedStep, *, timeout: Timeout = CLIENT_DEFAULT) -> PinnedStep:
        """Pin the group's next step: store which messages it will read. Return the pinned step.

        If a step with the same number is already pinned, that step is kept and returned.
        """
        return await self._client.run(group_calls.pin(self._client.site, self.name, step), timeout)

    async def snapshot(self, *, timeout: Timeout = CLIENT_DEFAULT) -> PinnedStep | None:
        """Return the group's last pinned step, or None if no step was ever pinned."""
        return await self._client.run(group_calls.snapshot(self._client.site, self.name), timeout)


# ---- dead letters --------------------------------------------------------------------------------


class AsyncMessageCommitter:
    """The callable that `message.commit()` uses to set a group's position.

    Concurrent commits are sent one after the other.
    """

    def __init__(self, client: "AsyncClient", cursor: group_calls.GroupCursor) -> None:
        self._client = client
        self.cursor = cursor
        self._lock = AsyncLock()

    async def __call__(self, message: Message, metadata: Metadata | None = None) -> None:
        async with self._lock:
            await self._client.run(self.cursor.move(message, metadata))

    async def reject(self, message: Message, reason: str | BaseException) -> None:
        """Store the message as a dead letter, and move the group past it, in one commit."""
        client, cause = self._client, cause_of(reason)
        async with self._lock, client.letters_lock:
            await client.run(reject_message(client.letters, self.cursor, message, cause))

    def crashes(self, message: Message) -> int:
        """Return how often members have crashed when this message was the next one."""
        return self.cursor.crashes(message)


class AsyncDeadLetters:
    """The dead letters of a group: messages that it has rejected, or could not process.

    Iterating yields those that were not replayed or dropped, the oldest first.
    """

    def __init__(
        self, client: "AsyncClient", group: str, stream: "StreamOrPath | None" = None
    ) -> None:
        path = None if stream is None else path_of(stream, client.site.address)
        self.group = group
        self._client = client
        self._calls = DeadLetterCalls(client.site, group, path)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.group!r})"

    @property
    def path(self) -> str:
        """The path of the stream that has the dead letters."""
        return self._calls.path

    def __aiter__(self) -> AsyncIterator[DeadLetter]:
        return self.list()

    async def list(
        self,
        *,
        all: bool = False,
        limit: int | None = None,
        timeout: Timeout = CLIENT_DEFAULT,
    ) -> AsyncIterator[DeadLetter]:
        """Yield the dead letters, the oldest first. With `all`, also those that are done with.

        Messages that are not dead letters of the group are left out. Raises GroupNotFound if there
        is no such group, and StreamNotFound if there is no stream `stream`.
        """
        count = 0
        reader = await self._client.run(self._calls.reader(is_all=all), timeout)
        while reader is not None and (limit is None or count < limit):
            letters = await self._client.run(self._calls.next_letters(reader), timeout)
            if letters is None:
                return
            for letter in letters if limit is None else letters[: limit - count]:
                count += 1
                yield letter

    async def show(self, offset: str, *, timeout: Timeout = CLIENT_DEFAULT) -> DeadLetter:
        """Return the group's dead letter at `offset`. Raises ValueError if there is none."""
        return await self._client.run(self._calls.show(offset), timeout)

    async def replay(
        self,
        *,
        limit: int | None = None,
        until: str | None = None,
        timeout: Timeout = CLIENT_DEFAULT,
    ) -> int:
        """Let the group process its dead letters again, the oldest first. Return their number.

        At most `limit` are replayed, and only those before the offset `until`. Each is copied once
        to the retry stream of the group, which its members read besides their other streams. It is
        never appended to its own stream again, because other groups read that. The messages of one
        key can be processed in another order than they were appended.

        The copies stay there until members read them: workers of `consume` and `process`, but not
        `tail(group=...)` and a `process` without workers. Raises CannotReplay at a message that is
        not a dead letter; those before it are replayed. Raises GroupNotFound and StreamNotFound as
        `list` does.
        """
        client = self._client
        async with client.letters_lock:
            return await client.run(self._calls.replay(client.letters, limit, until), timeout)

    async def drop(
        self,
        *,
        limit: int | None = None,
        until: str | None = None,
        timeout: Timeout = CLIENT_DEFAULT,
    ) -> int:
        """Pass over dead letters without replaying them, the oldest first. Return their number.

        They stay in the stream. `limit` and `until` are as in `replay`. Other messages are passed
        over, too, and are not counted.
        """
        return await self._client.run(self._calls.drop(limit, until), timeout)
