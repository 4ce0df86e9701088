"""Up to which offsets a group may read the partitions of topics that have grown.

If a topic grows, keys move to other partitions. So messages after the growth may only be read when
the group has read all messages before it, in all partitions. Otherwise, a later message of a key
could be processed before an earlier one.
"""

from semel.machine.rows import NamedPosition, PositionRow, TopicRow
from semel.machine.state import State, Stream
from semel.model.commands import PositionMove
from semel.model.outcomes_txn import BY_GROWTH, PositionConflict

_NEVER_MOVED = PositionRow(0, 0)


class GrowthLimits:
    """The limits of one group. They hold until the next event."""

    def __init__(self, state: State, group: str) -> None:
        self._state = state
        self._group = group
        self._fences: dict[int, tuple[int, ...] | None] = {}

    def of(self, stream: Stream) -> int | None:
        """Return the offset up to which a stream may be read, or None if there is no limit."""
        row = stream.row
        if row.partition < 0:
            return None
        if row.topic not in self._fences:
            topic = self._state.by_number[row.topic].topic
            assert topic is not None
            self._fences[row.topic] = self._find_fence(topic)
        fence = self._fences[row.topic]
        if fence is None:
            return None
        return fence[row.partition] if row.partition < len(fence) else 0

    def _find_fence(self, topic: TopicRow) -> tuple[int, ...] | None:
        """Return the first fence of a topic that the group has not passed in all partitions.

        Who has passed the newest one has passed all. So a commit of a member, which asks for the
        limit, usually looks at one fence.
        """
        fences = topic.fences
        if not fences or self._is_passed(topic, fences[-1]):
            return None
        return next(fence for fence in fences if not self._is_passed(topic, fence))

    def _is_passed(self, topic: TopicRow, fence: tuple[int, ...]) -> bool:
        by_number = self._state.by_number
        return all(
            self._reached(by_number[number]) >= offset
            for number, offset in zip(topic.partitions, fence, strict=False)
        )

    def _reached(self, stream: Stream) -> int:
        """Return the group's position in a stream, or the first offset that the stream has."""
        return max(_stored(stream, self._group).offset, stream.tail.head)


def refuse_growth(
    state: State, stream: Stream, move: PositionMove | NamedPosition
) -> PositionConflict | None:
    """Return a refusal if a member moves past a growth of the topic too early, otherwise None.

    The member may have read the messages before it could hear of the growth.
    """
    limit = GrowthLimits(state, move.group).of(stream)
    if limit is None or move.to <= limit:
        return None
    stored = _stored(stream, move.group)
    return PositionConflict(
        move.group, stream.row.path, stored.offset, version=stored.version, reason=BY_GROWTH
    )


def _stored(stream: Stream, group: str) -> PositionRow:
    return (stream.positions or {}).get(group, _NEVER_MOVED)
