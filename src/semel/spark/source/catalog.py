"""Asks the server which streams a read covers, and at which offsets the read starts and ends."""

import re
from collections.abc import Callable, Collection, Mapping
from itertools import islice
from typing import Final, TypeVar

from msgspec import Struct

from semel.client.errors import (
    IsTopic,
    NotSupported,
    ProtocolError,
    StreamGone,
    StreamNotFound,
    TopicNotFound,
    Unavailable,
)
from semel.client.reading import FramesPage, frames_page
from semel.client.server_calls import list_streams
from semel.client.sync.client import Client
from semel.model.offsets import parse_offset, print_offset
from semel.spark.errors import (
    FIRST_SECONDS,
    StreamMissing,
    TopicMissing,
    not_a_semel_server,
    server_unreachable,
    similar_names,
    topic_missing,
)
from semel.spark.offsets import EARLIEST_NUMBER, LATEST_NUMBER, StartOffsets
from semel.spark.options import SourceOptions, SparkOptionError, client_for
from semel.spark.source.frames import FrameRows, rows_of
from semel.spark.topics import partition_number, show_topic, topic_names

T = TypeVar("T")
_LITERAL: Final = re.compile(r"[\w/-]*")
_SIMILAR_FROM: Final = 5_000  # how many paths are searched for a similar path
# Times are not exactly in the order of offsets, because a staged message keeps the time of its
# staging but gets its offset only at the commit. If a message was staged longer than this before
# its commit, a read with startingTimestamp can miss messages.
_STAGED_MS_MAX: Final = 3_600_000


class StreamPosition(Struct, frozen=True, order=True):
    """The next offset to read in a stream. `id` changes if the stream is created again."""

    id: str
    next: int


class StreamEnd(Struct, frozen=True):
    """The end of a stream. `id` changes if the stream is created again.

    Reads of committed messages end at `stable`. Other reads end at `tail`.
    """

    id: str
    stable: int
    tail: int


class StreamCatalog:
    """Asks the server for the streams of one read and for their offsets.

    Every method that sends a request raises ServerUnreachable if the server does not respond, or
    if the server is not a semel server.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._has_responded = False

    def ends(self) -> dict[str, StreamEnd]:
        """Return the end of each stream of this read. Streams that do not exist are left out.

        The streams of a topic are its current partitions, so this also finds new partitions.
        """
        if self._options.topic is not None:
            return self._topic_ends(self._options.topic)
        ends = {stream: self._end(stream) for stream in self._paths()}
        return {stream: end for stream, end in ends.items() if end is not None}

    def require(self, existing: Collection[str], positions: Collection[str] = ()) -> None:
        """Raise StreamMissing if a stream named in the options is in neither argument.

        `existing` contains the streams that exist. `positions` contains the streams in which the
        query already has a position. The streams in `positions` need not exist. Raises TopicMissing
        if the options name a topic, and both arguments are empty.
        """
        topic = self._options.topic
        if topic is not None and not existing and not positions:
            raise self._topic_missing(topic)
        for stream in self._options.streams:
            if stream not in existing and stream not in positions:
                raise self._missing(stream)

    def reads(self, stream: str) -> bool:
        """Return True if the options name or match this stream, or if it is in their topic."""
        topic, pattern = self._options.topic, self._options.pattern
        if topic is not None:
            return partition_number(topic, stream) is not None
        if pattern is None:
            return stream in self._options.streams
        return re.fullmatch(pattern, stream) is not None

    def first(self, stream: str) -> int:
        """Return the first offset of a stream. Raises StreamMissing if there is no such stream."""
        page = self._ask(lambda client: client.run(list_streams(client.site, stream, None, 1)))
        for entry in page.streams:
            if entry.path == stream:
                return _ordinal(entry.first_offset)
        raise self._missing(stream)

    def starts(self, ends: Mapping[str, StreamEnd]) -> dict[str, StreamPosition]:
        """Return the start position of each stream in `ends`, as set by the options.

        Raises StreamMissing if a stream no longer exists. Raises SparkOptionError if a start
        position is after the tail of its stream, or is for a partition that the topic lacks.
        """
        self.require_partitions("startingOffsets", self._options.starts, ends)
        return {
            stream: StreamPosition(end.id, self._start(stream, end)) for stream, end in ends.items()
        }

    def require_partitions(
        self, option: str, offsets: StartOffsets, existing: Collection[str]
    ) -> None:
        """Raise SparkOptionError if an option has the offset of a partition that does not exist."""
        if self._options.topic is None:
            return
        for stream in sorted(offsets.by_stream):
            if stream not in existing:
                raise SparkOptionError(
                    f"{option}: there is no {stream}, because {self._options.topic} has"
                    f" {len(existing)} partitions: remove its offset"
                )

    def _start(self, stream: str, end: StreamEnd) -> int:
        since_ms = self._options.starting_timestamp_ms
        if since_ms is not None:
            low = self._halved(stream, since_ms - _STAGED_MS_MAX, self.first(stream), end.stable)
            return self._scanned(stream, since_ms, low, end.stable)
        start = self._options.starts.of(stream)
        if start == EARLIEST_NUMBER:
            return self.first(stream)
        if start == LATEST_NUMBER:
            return end.stable
        if start > end.tail:
            raise SparkOptionError(
                f"startingOffsets: for {stream}, the offset {start} is after the tail {end.tail}:"
                " use a smaller offset, or -1 (latest)"
            )
        return start

    def _scanned(self, stream: str, since_ms: int, low: int, high: int) -> int:
        """Return the offset of the first message that was stored at or after `since_ms`.

        This is a linear scan from `low`. Return `high` if there is no such message before `high`.
        """
        while low < high:
            rows = self._rows(stream, low, high)
            late = rows.stored_ms >= since_ms
            if late.any():
                return min(int(rows.offsets[late.argmax()]), high)
            low = int(rows.offsets[-1]) + 1 if len(late) else high
        return high

    def _halved(self, stream: str, since_ms: int, low: int, high: int) -> int:
        """Return the approximate offset of the first message stored at or after `since_ms`.

        This is a bisection from `low` to `high`. It is not exact, because the times do not always
        increase with the offsets.
        """
        while low < high:
            middle = (low + high) // 2
            rows = self._rows(stream, middle, high)
            late = rows.stored_ms >= since_ms
            if not len(late) or late[0]:
                high = middle
            elif late.any():
                return int(rows.offsets[late.argmax()])
            else:
                low = int(rows.offsets[-1]) + 1
        return low

    def _rows(self, stream: str, offset: int, end: int) -> FrameRows:
        """Return a page of messages, starting at `offset`.

        The page is empty only if there are no messages from `offset` up to `end`.
        """
        while True:
            page = self._page(stream, offset)
            rows = rows_of(page.body)
            if len(rows.offsets) or not offset < page.next_offset < end:
                return rows
            offset = page.next_offset  # the page contains no messages, only skipped offsets

    def _page(self, stream: str, offset: int) -> FramesPage:
        at = print_offset(offset)
        return self._ask(lambda client: client.run(frames_page(client.stream(stream).calls, at)))

    def _paths(self) -> list[str]:
        options = self._options
        if options.pattern is None:
            return list(options.streams)
        prefix = _literal_prefix(options.pattern)
        timeout = self._first_timeout()
        entries = self._ask(lambda client: list(client.streams(prefix, timeout=timeout)))
        return [entry.path for entry in entries if self.reads(entry.path)]

    def _topic_ends(self, topic: str) -> dict[str, StreamEnd]:
        """Return the ends of the partitions of a topic, or nothing if there is no such topic."""
        timeout = self._first_timeout()
        try:
            found = self._ask(lambda client: client.run(show_topic(client.site, topic), timeout))
        except TopicNotFound:
            return {}
        return {
            entry.stream: StreamEnd(
                entry.incarnation, _ordinal(entry.stable_offset), _ordinal(entry.next_offset)
            )
            for entry in found.partitions
        }

    def _topic_missing(self, topic: str) -> TopicMissing:
        names = self._ask(lambda client: client.run(topic_names(client.site)))
        return topic_missing(self._options.url, topic, names)

    def _end(self, stream: str) -> StreamEnd | None:
        """Return the end of a stream, or None if the stream does not exist."""
        timeout = self._first_timeout()
        try:
            info = self._ask(lambda client: client.stream(stream).head(timeout=timeout))
        except (StreamNotFound, StreamGone):
            return None
        except IsTopic:
            raise SparkOptionError(
                f"{stream} is a topic, not a stream: use the option 'topic'"
            ) from None
        if info.incarnation is None or info.stable_offset is None:
            raise not_a_semel_server(self._options.url)
        return StreamEnd(info.incarnation, _ordinal(info.stable_offset), _ordinal(info.next_offset))

    def _ask(self, call: Callable[[Client], T]) -> T:
        try:
            result = call(client_for(self._options))
        except Unavailable as error:
            raise server_unreachable(error) from None
        except (NotSupported, ProtocolError) as error:
            raise not_a_semel_server(self._options.url, error) from None
        self._has_responded = True
        return result

    def _first_timeout(self) -> float:
        seconds = self._options.retry_seconds
        return seconds if self._has_responded else min(seconds, FIRST_SECONDS)

    def _missing(self, stream: str) -> StreamMissing:
        """Return the error for a stream that does not exist. Its message suggests similar paths."""
        entries = self._ask(lambda client: list(islice(client.streams(), _SIMILAR_FROM)))
        names = [entry.path for entry in entries]
        listed = f"the server has {', '.join(names[:3]) or 'no streams'};"
        hint = similar_names(stream, names) or listed
        return StreamMissing(
            f"there is no stream {stream} at {self._options.url}: {hint}"
            f" `semel create {stream}` creates this stream"
        )


def _ordinal(offset: str) -> int:
    ordinal = parse_offset(offset)
    assert ordinal is not None, offset
    return ordinal


def _literal_prefix(pattern: str) -> str:
    """Return the literal start of a pattern. Every matching path starts with this text."""
    if "|" in pattern:
        return ""
    match = _LITERAL.match(pattern)
    assert match is not None
    literal, rest = match[0], pattern[match.end() :]
    # A quantifier makes the character before it optional, so that character is not part of the
    # prefix.
    return literal[:-1] if rest and rest[0] in "*?{" else literal
