"""The values that calls on topics return, and values with keys."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from msgspec import Struct

from semel.client.extras import Key
from semel.client.values import Receipt
from semel.model.offsets import parse_offset, print_offset
from semel.wire.schema.topics import TopicPart


class Keyed(Struct, frozen=True):
    """A value to append, and its key. For the appends of `commit` and the outputs of `process`."""

    value: Any
    key: Key


class TopicReceipt(Receipt, frozen=True):
    """The result of an append to a topic. `parts` has the offsets in each partition.

    If all messages went to one partition, `partition`, `offset` and `next_offset` are those of the
    only part. Otherwise they are None. `parts` is empty if the append is part of a staged
    transaction, or if it is a duplicate and the server no longer retains the offsets.
    """

    parts: tuple[TopicPart, ...] = ()

    @property
    def partition(self) -> int | None:
        """The partition that has all messages, or None."""
        return self.parts[0].partition if len(self.parts) == 1 else None

    @property
    def offset(self) -> str | None:
        """The offset of the first message, or None if the messages are in several partitions."""
        return self.parts[0].offset if len(self.parts) == 1 else None


def split_topic_receipt(
    receipt: TopicReceipt, counts: Iterable[int], places: Sequence[int]
) -> Iterator[TopicReceipt]:
    """Yield the receipt of each append that had a part in one request.

    `counts` has the number of messages of each append, and `places` the partition of each message.
    In a partition, the messages are in the order of the request.
    """
    streams = {part.partition: part.stream for part in receipt.parts}
    ends = {part.partition: parse_offset(part.offset) or 0 for part in receipt.parts}
    start = 0
    for count in counts:
        parts = []
        for place, own in sorted(Counter(places[start : start + count]).items()):
            if place in streams:  # there are no parts if the offsets are not known
                first, ends[place] = ends[place], ends[place] + own
                last = print_offset(ends[place])
                parts.append(TopicPart(place, streams[place], print_offset(first), last))
        start += count
        end = parts[0].next_offset if len(parts) == 1 else None
        yield TopicReceipt(end, receipt.duplicate, receipt.closed, parts=tuple(parts))


class TopicPartition(Struct, frozen=True):
    """The state of one partition of a topic. `stream` is the path of its stream.

    A `read_committed` reader stops at `stable_offset`.
    """

    partition: int
    stream: str
    incarnation: str
    first_offset: str
    next_offset: str
    stable_offset: str
    closed: bool = False


class TopicGrowth(Struct, frozen=True):
    """A growth of a topic: how many partitions it had before, and the tail of each of them then."""

    partitions_before: int
    offsets: tuple[str, ...]


class TopicInfo(Struct, frozen=True):
    """The state of a topic when the server responded.

    `keyed` is True if a message with a key was appended. From then on, a growth moves keys to other
    partitions. `growths` lists the growths so far. After `grow`, `moved_at` has the offset in each
    of the earlier partitions from which on keys can be in another partition.

    `appended` is the number of messages that were appended to the topic. `dedup` is "on" if the
    topic recognises duplicates. `dedup_from` is what `appended` was when this was switched on: 0 if
    the topic has always recognised them, and None if it does not. `dedup_source`, `dedup_policy`
    and `dedup_pending` ("on" or "off") are as in `StreamInfo`.
    """

    topic: str
    partitions: tuple[TopicPartition, ...]
    partition_count: int
    partitioner: str
    content_type: str
    incarnation: str
    keyed: bool = False
    closed: bool = False
    created_at_ms: int = 0
    appended: int = 0
    dedup: str = "on"
    dedup_from: int | None = None
    dedup_source: str | None = None
    dedup_policy: str | None = None
    dedup_pending: str | None = None
    growths: tuple[TopicGrowth, ...] = ()
    moved_at: tuple[str, ...] = ()

    @property
    def is_settled(self) -> bool:
        """True if no partition has messages of a transaction that has not ended."""
        return all(each.stable_offset == each.next_offset for each in self.partitions)
