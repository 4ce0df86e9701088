"""Who may move the position of a group whose members share work, and how far.

Only the member that owns a stream may move the position in it: table G of
`docs/reference/groups.md`.

If a topic grows, keys move to other partitions. So messages after the growth may only be read in a
partition when the group has read all messages before it in the other partitions that its members
share. Otherwise, a later message of a key could be processed before an earlier one.
"""

from bisect import bisect_left
from itertools import islice

from semel.machine.rows import NamedPosition, PositionRow, TopicRow
from semel.machine.state import State, Stream
from semel.model.commands import PositionMove
from semel.model.outcomes import Refusal
from semel.model.outcomes_groups import GroupIsShared, IllegalGeneration
from semel.model.outcomes_txn import BY_GROWTH, PositionConflict

_NEVER_MOVED = PositionRow(0, 0)

Fence = tuple[int, ...]  # where each partition ended when its topic grew


class GrowthLimits:
    """The limits of one group. They hold until the next event."""

    def __init__(self, state: State, group: str) -> None:
        self._state = state
        self._group = group
        self._share = state.shares.get(group)
        self._waits: dict[int, list[tuple[Fence, list[int]]]] = {}  # by the number of the topic

    def of(self, stream: Stream) -> int | None:
        """Return the offset up to which a stream may be read, or None if there is no limit."""
        row = stream.row
        if row.partition < 0:
            return None
        waits = self._waits.get(row.topic)
        if waits is None:
            topic = self._state.by_number[row.topic].topic
            assert topic is not None
            waits = self._waits[row.topic] = self._find_waits(topic)
        for fence, waiting in waits:
            if waiting != [row.partition]:
                return fence[row.partition] if row.partition < len(fence) else 0
        return None

    def refuse(self, stream: Stream, move: PositionMove | NamedPosition) -> PositionConflict | None:
        """Return a refusal if a member moves past a growth of the topic too early, or None.

        The member may have read the messages before it could hear of the growth.
        """
        limit = self.of(stream)
        if limit is None or move.to <= limit:
            return None
        stored = _stored(stream, move.group)
        return PositionConflict(
            move.group, stream.row.path, stored.offset, version=stored.version, reason=BY_GROWTH
        )

    def _find_waits(self, topic: TopicRow) -> list[tuple[Fence, list[int]]]:
        """Return the fences that the group has not passed, with partitions that it waits for.

        They are in order and end with the first fence for which the group waits in two partitions,
        because such a fence limits every partition. Who has passed a fence has passed all earlier
        ones, so usually one fence is looked at.
        """
        fences = topic.fences
        found: list[tuple[Fence, list[int]]] = []
        if not fences or not self._waiting(topic, fences[-1]):
            return found
        first = bisect_left(fences, 1, key=lambda fence: len(self._waiting(topic, fence)))
        for fence in fences[first:]:
            waiting = self._waiting(topic, fence)
            found.append((fence, waiting))
            if len(waiting) > 1:
                break
        return found

    def _waiting(self, topic: TopicRow, fence: Fence) -> list[int]:
        """Return the first two partitions in which the group has not passed a fence."""
        by_number = self._state.by_number
        offsets = zip(topic.partitions, fence, strict=False)
        waiting = (
            partition
            for partition, (number, offset) in enumerate(offsets)
            if self._is_before(by_number[number], offset)
        )
        return [*islice(waiting, 2)]

    def _is_before(self, stream: Stream, offset: int) -> bool:
        """Return True if the group must still read a partition up to an offset."""
        reached = max(_stored(stream, self._group).offset, stream.tail.head)
        return reached < offset and self._is_shared(stream)

    def _is_shared(self, stream: Stream) -> bool:
        """Return True if members share a partition, or have shared it.

        If the member that owned it has left, another one will continue there.
        """
        share, number, path = self._share, stream.row.number, stream.row.path
        if share is None or number in share.streams:
            return share is not None
        topic = self._state.by_number[stream.row.topic].row.path
        return any(
            topic in member.topics or path in member.streams for member in share.members.values()
        ) or any(number in numbers for numbers in share.matches.values())


class Growths:
    """The limits of all groups, while one decision is made."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._by_group: dict[str, GrowthLimits] = {}

    def of(self, group: str) -> GrowthLimits:
        """Return the limits of a group."""
        limits = self._by_group.get(group)
        if limits is None:
            limits = self._by_group[group] = GrowthLimits(self._state, group)
        return limits


def refuse_generation(
    state: State,
    stream: Stream,
    move: PositionMove | NamedPosition,
    *,
    growths: Growths,
    by_operator: bool = False,
) -> Refusal | None:
    """Return a refusal if a move must come from another member of the group, otherwise None.

    If a member of the group owns the stream, only that member can move the position, and only with
    the epoch at which it owns the stream (table G in `docs/reference/groups.md`).
    """
    if not state.shares and move.member is None:
        return None
    share, path = state.shares.get(move.group), stream.row.path
    row = None if share is None else share.streams.get(stream.row.number)
    if move.member is None:
        is_owned = share is not None and share.members and row is not None and row.owner is not None
        return GroupIsShared(move.group, path) if is_owned and not by_operator else None  # G4
    if share is None or row is None:
        return IllegalGeneration(move.group, path, 0, move.member_epoch)  # G3
    is_owner = (row.owner, row.epoch) == (move.member, move.member_epoch)
    if is_owner and move.member in share.members:
        return growths.of(move.group).refuse(stream, move)  # G1
    return IllegalGeneration(move.group, path, row.epoch, move.member_epoch)  # G2, G3


def _stored(stream: Stream, group: str) -> PositionRow:
    return (stream.positions or {}).get(group, _NEVER_MOVED)
