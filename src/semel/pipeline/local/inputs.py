"""Classes that read a processor's inputs in advance, wait for messages, and plan steps."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from math import inf
from typing import Final

from semel.client.errors import ProtocolError, StreamGone, StreamNotFound
from semel.client.reading import PageReader, StreamName
from semel.client.stream_calls import StreamCalls
from semel.client.sync.client import Client
from semel.client.sync_driver import Stop
from semel.client.values import START, Message, StreamInfo
from semel.model.offsets import parse_offset, print_offset
from semel.pipeline.error_stream import RETRIES, retry_stream
from semel.pipeline.executor import ProcessorRun
from semel.pipeline.values import Range


class Feed:
    """Reads the messages of one stream, starting at a position, into `ready`.

    The feed reads only messages before the offset `limit`. If `waits_at_end` is True, a fetch at
    the tail waits up to about half a minute for a new message.
    """

    def __init__(
        self,
        client: Client,
        path: str,
        stop: Stop,
        *,
        waits_at_end: bool = False,
        limit: int | None = None,
    ) -> None:
        self.path = path
        self.ready: deque[Message] = deque()
        self._client = client
        self._stop = stop
        self._waits_at_end = waits_at_end
        self._limit = inf if limit is None else limit
        self.place(0, "")

    def place(self, position: int, incarnation: str) -> None:
        """Set the position from which to read, and drop the messages that were read ahead.

        Position 0 means the first message that still exists in the stream.
        """
        self.incarnation = incarnation
        self.position = self._taken = position
        self.ready.clear()
        self.is_over = False
        self._reader = self._reader_at(position)

    def advance(self, to: int) -> None:
        """Set the position to `to`, after a step was committed.

        Messages that were read ahead are kept if they begin at the new position.
        """
        if self._taken != to:
            self.place(to, self.incarnation)
        self.position = to

    @property
    def has_ready(self) -> bool:
        """True if messages for a step are available."""
        return bool(self.ready)

    @property
    def is_at_end(self) -> bool:
        """True if the last response reached the tail of the stream or the offset `limit`."""
        return self._reader.is_at_end or self._reached >= self._limit

    @property
    def lag(self) -> int:
        """The number of offsets between the position and the tail, as of the last response."""
        return max((self._reader.tail or 0) - self.position, 0)

    def fetch(self) -> None:
        """Read the next page of messages into `ready`.

        Do nothing if the feed has reached `limit` or the end of a closed stream.
        """
        if self.is_over or self._reached >= self._limit:
            return
        self.ready.extend(self._next_page(self._limit))

    def take(self, count: int) -> tuple[list[Message], Range]:
        """Remove at most `count` messages from `ready`. Return them and their range."""
        taken = [self.ready.popleft() for _ in range(min(count, len(self.ready)))]
        to = self._taken = _ordinal(taken[-1].next_ordinal) if taken else self._taken
        return taken, Range(self.path, self.incarnation, self.position, to)

    def exactly(self, range: Range) -> list[Message]:
        """Read and return exactly the messages of a range.

        Messages that were read ahead are dropped. The next fetch continues after the range.
        """
        self.place(range.start, range.incarnation)
        messages: list[Message] = []
        while self._reached < range.to and not self.is_over:
            messages.extend(self._next_page(range.to))
        self.place(range.to, range.incarnation)
        self.position = range.start  # `advance` moves it when the range is committed
        return messages

    def info(self) -> StreamInfo:
        """Request information about the stream from the server, and return it."""
        head = StreamCalls(self._client.site, self.path).head()
        return self._client.run_until_stopped(head, self._stop)

    def _next_page(self, end: float) -> list[Message]:
        """Read the next page, and return its messages that are before the offset `end`."""
        page = self._client.run_until_stopped(self._reader.next_page(), self._stop, silence=None)
        self.is_over = page is None
        return [message for message in page or () if _ordinal(message.ordinal) < end]

    @property
    def _reached(self) -> int:
        return parse_offset(self._reader.offset) or 0

    def _reader_at(self, position: int) -> PageReader:
        calls = StreamCalls(self._client.site, self.path)
        offset = print_offset(position) if position else START
        reader = PageReader(calls, offset, is_live=True, waits_at_end=self._waits_at_end)
        reader.source = StreamName(self.path, self.incarnation)
        return reader


class EndFeed(Feed):
    """Asks the server for the end of a stream: the stable offset or `limit`, whichever is smaller.

    This feed returns no messages. It serves engines that read the messages themselves.
    """

    def __init__(self, client: Client, path: str, stop: Stop, *, limit: int | None = None) -> None:
        super().__init__(client, path, stop, limit=limit)
        self._end = 0
        self._first: int | None = None

    @property
    def has_ready(self) -> bool:
        """True if the last known end of the stream is after the position."""
        return self._end > self.position

    @property
    def is_at_end(self) -> bool:
        """True if the position has reached the last known end of the stream."""
        return not self.has_ready

    @property
    def lag(self) -> int:
        """The number of offsets between the position and the last known end of the stream."""
        return max(self._end - self.position, 0)

    def fetch(self) -> None:
        """Ask the server for the end of the stream. The next step can read up to this end.

        Raises StreamGone if the stream was deleted and created again.
        """
        info = self.info()
        if info.incarnation != self.incarnation:
            raise StreamGone(
                f"stream {self.path} was deleted and created again; start the run again to read it"
            )
        end = parse_offset(info.stable_offset or "") or 0
        self._end = int(min(end, self._limit))
        self.is_over = info.closed and self._end == parse_offset(info.next_offset)
        if self.position == 0 and self._end and self._first is None:
            self._first = self._read_head()

    def _read_head(self) -> int:
        """Return the ordinal of the first message that can be read.

        A step at position 0 begins with this message. Therefore `take` counts the offsets of that
        step from this ordinal, not from 0.
        """
        reader = self._reader_at(0)
        page = self._client.run_until_stopped(reader.next_page(), self._stop, silence=None)
        return _ordinal(page[0].ordinal) if page else parse_offset(reader.offset) or 0

    def take(self, count: int) -> tuple[list[Message], Range]:
        """Return an empty list, and a range of up to `count` readable offsets for the next step."""
        start = self.position or self._first or 0
        to = self._taken = max(min(self._end, start + count), self.position)
        return [], Range(self.path, self.incarnation, self.position, to)


def _ordinal(offset: int | str | None) -> int:
    assert isinstance(offset, int), "a message from the server has no offset"
    return offset


# ---- retries -------------------------------------------------------------------------------------


_LOOK_SECONDS: Final = 1.0


class Retries:
    """Finds and reads a processor's retry stream. The first replay of dead letters creates it.

    `feed` is None as long as the stream does not exist. A draining run reads the messages that
    exist at its start. Any other run looks for messages before each read that can wait, and
    otherwise at most once a second.
    """

    def __init__(
        self,
        running: ProcessorRun,
        path: str,
        *,
        reads_ahead: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path = path
        self.feed: Feed | None = None
        self._running = running
        self._make: Callable[..., Feed] = Feed if reads_ahead else EndFeed
        self._clock = clock
        self._next_look = 0.0

    @property
    def has_ready(self) -> bool:
        """True if messages for a step are available."""
        return self.feed is not None and self.feed.has_ready

    @property
    def is_at_end(self) -> bool:
        """True if there is nothing to read, as of the last response."""
        return self.feed is None or (not self.feed.has_ready and self.feed.is_at_end)

    def place(self, position: int) -> None:
        """Start reading at the position of the processor's group, if the stream exists."""
        self.feed = self._found(position)

    def look(self, *, is_due: bool) -> None:
        """Read the next messages, unless there are some already.

        Without `is_due`, do this only if the last look was a second ago.
        """
        is_draining = self._running.is_draining
        if self.has_ready or not (is_due or is_draining or self._next_look <= self._clock()):
            return
        self._next_look = self._clock() + _LOOK_SECONDS
        try:
            if self.feed is not None:
                self.feed.fetch()
                return
        except (StreamNotFound, StreamGone):
            self.feed = None  # it was deleted, and perhaps created again
        if not is_draining:
            self.feed = self._found(0)
            if self.feed is not None:
                self.feed.fetch()

    def _found(self, position: int) -> Feed | None:
        """Return a feed that reads the stream from a position, or None if there is no stream."""
        running = self._running
        feed = self._make(running.client, self.path, running.stop)
        try:
            info = feed.info()
        except (StreamNotFound, StreamGone):
            return None
        if running.is_draining:
            end = parse_offset(info.next_offset)
            feed = self._make(running.client, self.path, running.stop, limit=end)
        feed.place(position, info.incarnation or "")
        return feed


# ---- inputs --------------------------------------------------------------------------------------


STEP_MESSAGES_MAX: Final = 5_000
_PAUSE_SECONDS_MIN: Final = 0.005
_PAUSE_SECONDS_MAX: Final = 0.25
# A draining run pauses for a shorter time, because other processors of the graph are still writing.
_DRAINING_PAUSE_SECONDS_MAX: Final = 0.02

Planned = dict[str, tuple[list[Message], Range]]


class Inputs:
    """The feeds of a processor. Each feed reads one input.

    `limits` maps a stream to the offset at which reading stops. Other streams have no limit. A
    processor with an error stream has one more feed while its retry stream exists: that of the
    binding RETRIES.
    """

    def __init__(
        self,
        running: ProcessorRun,
        *,
        limits: Mapping[str, int],
        reads_ahead: bool,
        step_messages_max: int,
    ) -> None:
        processor, is_draining = running.processor, running.is_draining
        self._running = running
        self._count = step_messages_max
        self._pause_max = _DRAINING_PAUSE_SECONDS_MAX if is_draining else _PAUSE_SECONDS_MAX
        # A join pairs the i-th messages of its inputs. To count messages they must be read, because
        # offsets can have gaps.
        reads = reads_ahead or processor.is_join
        self._waits_at_end = len(processor.inputs) == 1 and reads and not is_draining
        make: Callable[..., Feed] = EndFeed
        if reads:
            make = partial(Feed, waits_at_end=self._waits_at_end)
        self._own = {
            binding: make(running.client, path, running.stop, limit=limits.get(path))
            for binding, path in processor.inputs.items()
        }
        self._retries: Retries | None = None
        if running.graph.errors_of(processor) is not None:
            path = retry_stream(running.graph.id, processor.id)
            self._retries = Retries(running, path, reads_ahead=reads)

    @property
    def by_binding(self) -> dict[str, Feed]:
        """The feeds, keyed by binding."""
        if self._retries is None or self._retries.feed is None:
            return self._own
        return {**self._own, RETRIES: self._retries.feed}

    @property
    def feeds(self) -> list[Feed]:
        """The feeds, in the order of the bindings. That of the retry stream is the last."""
        return list(self.by_binding.values())

    @property
    def lag(self) -> int:
        """The number of unprocessed offsets, summed over all inputs.

        The number is computed from the last response for each input.
        """
        return sum(feed.lag for feed in self.feeds)

    def place(self, positions: Mapping[str, int]) -> None:
        """Start reading at the positions of a group. `positions` maps each stream to a position.

        A stream without a position is read from its first message. Raises ProtocolError if the
        server is not semel.
        """
        for feed in self._own.values():
            incarnation = feed.info().incarnation
            if incarnation is None:
                raise ProtocolError("pipelines require a semel server; this server is not semel")
            feed.place(positions.get(feed.path, 0), incarnation)
        if self._retries is not None:
            self._retries.place(positions.get(self._retries.path, 0))

    def move(self, ranges: Iterable[Range]) -> None:
        """Set the position of each feed to the end of its committed range."""
        ends = {range.stream: range.to for range in ranges}
        for feed in self.feeds:
            if feed.path in ends:
                feed.advance(ends[feed.path])

    def wait(self, on_idle: Callable[[], None]) -> bool:
        """Wait until there are messages for a step, and return True.

        Return False if a stop is requested or if no more messages can arrive. `on_idle` is called
        before each read of an input that is at its end.
        """
        pause = _PAUSE_SECONDS_MIN
        while not self._running.stop.is_set:
            if self._is_enough():
                return True
            # Call this before the read. If it returns True, no more messages will be written, and
            # the read gets all that there are.
            is_ending = self._running.is_ending()
            self._fetch(on_idle)
            if self._is_enough():
                return True
            if self._is_exhausted(is_ending=is_ending):
                return False
            if not self._waits_at_end and all(
                feed.has_ready or feed.is_at_end for feed in self._own.values()
            ):
                self._running.stop.wait(pause)
                pause = min(2 * pause, self._pause_max)
        return False

    def _fetch(self, on_idle: Callable[[], None]) -> None:
        """Read the next messages of each input that has none ready."""
        if self._retries is not None:
            (first, *_) = self._own.values()
            self._retries.look(is_due=self._waits_at_end and first.is_at_end)
            if self._retries.has_ready:
                return  # the reads below can wait for messages
        for feed in self._own.values():
            if not feed.has_ready:
                if feed.is_at_end:
                    on_idle()
                feed.fetch()

    def _is_enough(self) -> bool:
        if self._retries is not None and self._retries.has_ready:
            return True
        filled = [feed.has_ready for feed in self._own.values()]
        return all(filled) if self._running.processor.is_join else any(filled)

    def _is_exhausted(self, *, is_ending: bool) -> bool:
        """Return True if no step is possible, because inputs are empty and will stay empty.

        A step of a join needs messages from every input. Any other step needs messages from at
        least one input.
        `is_ending` is True if no processor of the graph will write to the inputs again.
        """
        empty = [
            not feed.has_ready and (feed.is_over or (is_ending and feed.is_at_end))
            for feed in self._own.values()
        ]
        if self._retries is not None and not self._retries.is_at_end:
            return False
        return any(empty) if self._running.processor.is_join else all(empty)

    def plan(self) -> Planned:
        """Take the messages for a step from the feeds.

        Return a mapping from each binding to its messages and their range. A join takes the same
        number of messages from each input, perhaps none if there are messages to process again. The
        retry stream is in a step only if it has messages.
        """
        is_join = self._running.processor.is_join
        has_retries = self._retries is not None and self._retries.has_ready
        count = max(self._count // ((1 if is_join else len(self._own)) + has_retries), 1)
        counts = dict.fromkeys(self._own, count)
        if is_join:
            ready = min(len(feed.ready) for feed in self._own.values())
            counts = dict.fromkeys(self._own, min(count, ready))
        feeds = self.by_binding if has_retries else self._own
        return {binding: feed.take(counts.get(binding, count)) for binding, feed in feeds.items()}
