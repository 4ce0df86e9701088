"""Flows that read the partitions of a topic, a page of each partition in turn. They do no I/O.

The messages of one partition come in their order. There is no order between partitions. After the
topic has grown, messages with one key can be in two partitions, and a reader can then return the
later ones first. Only the members of a group keep the order of such messages.
"""

from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

from msgspec.structs import replace

from semel.client import errors
from semel.client.flows import Flow, Pause, backoff_seconds
from semel.client.positions import ReadPosition
from semel.client.reading import FetchedMessages, PageReader
from semel.client.stream_calls import ServerConfig, StreamCalls
from semel.client.topic_calls import TopicCalls
from semel.client.topic_values import TopicInfo, TopicPartition
from semel.client.values import NOW, READ_COMMITTED, START, Message, Offset, offset_of
from semel.model.offsets import parse_offset

_PAUSE_SECONDS_MIN: Final = 0.02
_PAUSE_SECONDS_MAX: Final = 0.25

# Returns the source of the messages that a reader returns, for a path and the offset of the start.
MakeSource = Callable[[str, str], ReadPosition]


class TopicReader:
    """Reads a topic. The flow `next_page` returns messages of one partition, or None at the end.

    Reading begins at `offsets`, which maps partitions to offsets, and in all other partitions at
    `start`: the first message, or `now`. A reader that is not live ends when it has reached the
    tail of each partition. A live reader asks the server how far the partitions are, and reads
    those that have grown. It also reads new partitions, from their first message on.

    `current` is the partition of the last page, and `page_start` the offset at which it began.
    """

    offset = ""  # a topic has no offset of its own: see `offsets`

    def __init__(
        self,
        calls: TopicCalls,
        offsets: Mapping[int, Offset] | None,
        make_source: MakeSource,
        *,
        start: str = START,
        is_live: bool = False,
        isolation: str = READ_COMMITTED,
    ) -> None:
        if start not in (START, NOW):
            raise ValueError(
                f"{start!r} is not a place where all partitions can be read; expected {START!r} or"
                f" {NOW!r}, or pass offsets= for each partition"
            )
        self.has_begun = False
        self.is_closed = False
        self.current: int | None = None
        self.page_start = START
        self._calls = calls
        self._given = {_number(key): _offset(each) for key, each in (offsets or {}).items()}
        self._start = start
        self._make_source = make_source
        self._is_live = is_live
        self._isolation = isolation
        self._incarnation: str | None = None
        self._readers: dict[int, PageReader] = {}
        self._ends: dict[int, int] = {}  # how far each partition is, as the server last said
        self._noted: dict[int, int] = {}
        self._turns: deque[int] = deque()  # the partitions to read, the next one first
        self._empty_rounds = 0

    @property
    def offsets(self) -> dict[int, str]:
        """The offset after the last page of each partition. It is empty before the first page."""
        return {number: reader.offset for number, reader in self._readers.items()}

    @property
    def is_at_end(self) -> bool:
        """True if each partition was read to its tail, as far as the last responses show it."""
        if self._is_live:
            return self.has_begun and not any(map(self._has_more, self._readers))
        return self.has_begun and not self._turns

    def begin(self) -> Flow[None]:
        """Learn which partitions the topic has, and how far they are."""
        if self.has_begun:
            return
        info = yield from self._calls.show()
        wrong = [number for number in self._given if not 0 <= number < info.partition_count]
        if wrong:
            raise errors.PartitionNotFound(
                f"the topic {self._calls.path} has {info.partition_count} partitions; it has no"
                f" partition {wrong[0]}",
                facts={"partition": wrong[0], "partitions": info.partition_count},
            )
        self._note(info)
        self.has_begun = True

    def next_page(self) -> Flow[list[Message] | None]:
        """Return the next messages, or None if the read has ended. The list can be empty."""
        yield from self.begin()
        while True:
            for _ in range(len(self._turns)):
                page = yield from self._take_turn()
                if page:
                    self._empty_rounds = 0
                    return page
            if not self._is_live:
                if self._turns:
                    continue
                return None
            has_changed = self._note((yield from self._calls.show()))
            if self.is_closed and self.is_at_end:
                return None
            if not has_changed and not (yield self._pause()):
                return []

    def hang_up(self) -> Flow[None]:
        """Do nothing: no connection is kept between two pages."""
        yield from ()

    def _take_turn(self) -> Flow[list[Message] | None]:
        """Read one page of the next partition, if it can have messages."""
        number = self._turns.popleft()
        reader = self._readers[number]
        if self._is_live and not self._has_more(number):
            self._turns.append(number)
            return None
        start = reader.offset
        page = yield from reader.next_page()
        if page is None:  # only a reader that is not live ends
            return None
        self._turns.append(number)
        if page:
            self.current, self.page_start = number, start
        elif reader.offset == start:
            self._ends[number] = 0  # nothing is there yet: ask the server before the next try
        return page

    def _has_more(self, number: int) -> bool:
        return (parse_offset(self._readers[number].offset) or 0) < self._ends[number]

    def _note(self, info: TopicInfo) -> bool:
        """Record how far the partitions are. Return True if that has changed since the last call.

        Begin to read partitions that are new.
        """
        if self._incarnation not in (None, info.incarnation):
            raise errors.StreamGone(
                f"the topic {info.topic} was deleted and created again; read it from the start"
            )
        self._incarnation = info.incarnation
        self.is_closed = info.closed
        for partition in info.partitions:
            number, end = partition.partition, self._end(partition)
            self._ends[number] = parse_offset(end) or 0
            if number not in self._readers:
                self._readers[number] = self._reader(partition, end)
                self._turns.append(number)
        before, self._noted = self._noted, dict(self._ends)
        return before != self._noted

    def _end(self, partition: TopicPartition) -> str:
        is_committed = self._isolation == READ_COMMITTED
        return partition.stable_offset if is_committed else partition.next_offset

    def _reader(self, partition: TopicPartition, end: str) -> PageReader:
        offset = self._given.get(partition.partition)
        if offset is None:
            is_at_tail = self._start == NOW and not self.has_begun
            offset = end if is_at_tail else START
        reader = PageReader(
            StreamCalls(self._site, partition.stream),
            offset,
            is_live=self._is_live,
            waits_at_end=False,
            isolation=self._isolation,
        )
        reader.source = source = self._make_source(partition.stream, offset)
        source.partition = partition.partition
        return reader

    @property
    def _site(self) -> ServerConfig:
        site = self._calls.site
        return replace(site, retries=None) if self._is_live else site

    def _pause(self) -> Pause:
        seconds = backoff_seconds(self._empty_rounds, _PAUSE_SECONDS_MIN, _PAUSE_SECONDS_MAX)
        self._empty_rounds += 1
        return Pause(seconds)


def _number(key: object) -> int:
    """Return the number of a partition. In offsets that were stored as JSON, it is a string."""
    if isinstance(key, int) and not isinstance(key, bool):
        return key
    if isinstance(key, str) and key.isascii() and key.isdigit():
        return int(key)
    raise TypeError(f"offsets= must map the numbers of partitions to offsets; {key!r} is no number")


def _offset(offset: Offset) -> str:
    """Return a printed offset. A partition of which nothing was read yet has START."""
    return START if offset == START else offset_of(offset)


class FetchedPartitions(FetchedMessages):
    """What the iterators over a topic have in common: how far they are in each partition."""

    _reader: TopicReader

    @property
    def offsets(self) -> dict[int, str]:
        """The offset at which to continue in each partition. It is empty before the first message.

        Pass it as `offsets=` to a later read, which continues after the messages returned so far.
        """
        offsets, current = self._reader.offsets, self._reader.current
        if current is not None and (self._ready or self._is_cut):
            known = None if self._returned is None else self._returned.next_offset
            offsets[current] = self._reader.page_start if known is None else str(known)
        return offsets

    @property
    def next_offset(self) -> str:
        """Raise AttributeError, because a topic has an offset for each partition."""
        raise AttributeError("a topic has an offset for each partition; use `offsets`")
