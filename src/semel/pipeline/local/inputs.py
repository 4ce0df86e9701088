"""The inputs of a processor together: when there is enough for a step, and what it takes."""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from math import inf
from typing import Final

from semel.client.errors import ProtocolError, StreamGone
from semel.client.reading import PageReader
from semel.client.stream_calls import StreamCalls
from semel.client.sync.client import Client
from semel.client.sync_driver import Stop
from semel.client.values import START, Message
from semel.model.offsets import parse_offset, print_offset
from semel.pipeline.delivery import Range
from semel.pipeline.graph.processors import Processor

# ---- feeds ---------------------------------------------------------------------------------------
# An input of a processor: where it stands, and what was read ahead of that.


class Feed:
    """Reads one stream from a position on.

    `limit`: what is at or behind it is left alone. `waits_at_end`: at the end of the stream, wait
    until there is more, or for half a minute.
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
        self.incarnation = ""
        self.position = 0
        self.ready: deque[Message] = deque()
        self.is_over = False
        self._client = client
        self._stop = stop
        self._waits_at_end = waits_at_end
        self._limit = inf if limit is None else limit
        self._taken = 0
        self._reader = self._reader_at(0)

    def place(self, position: int, incarnation: str) -> None:
        """Begin at a position; 0 is where the stream begins, also if that is trimmed."""
        self.incarnation = incarnation
        self.position = self._taken = position
        self.ready.clear()
        self.is_over = False
        self._reader = self._reader_at(position)

    def advance(self, to: int) -> None:
        """Stand behind what was committed; what was read ahead of it stays, if it follows."""
        if self._taken != to:
            self.place(to, self.incarnation)
        self.position = to

    @property
    def has_ready(self) -> bool:
        """Whether there is something for a step."""
        return bool(self.ready)

    @property
    def is_at_end(self) -> bool:
        """Whether there was nothing more when the server last answered."""
        return self._reader.is_at_end or self._reached >= self._limit

    @property
    def lag(self) -> int:
        """How many offsets there are between the position and the end, as far as is known."""
        return max((self._reader.tail or 0) - self.position, 0)

    def fetch(self) -> None:
        """Read a page more."""
        if self.is_over or self._reached >= self._limit:
            return
        page = self._client.run_until_stopped(self._reader.next_page(), self._stop, silence=None)
        self.is_over = page is None
        self.ready.extend(one for one in page or () if _ordinal(one.ordinal) < self._limit)

    def take(self, count: int) -> tuple[list[Message], Range]:
        """Take messages that were read ahead, and tell what range of the stream they are."""
        taken = [self.ready.popleft() for _ in range(min(count, len(self.ready)))]
        to = self._taken = _ordinal(taken[-1].next_ordinal) if taken else self._taken
        return taken, Range(self.path, self.incarnation, self.position, to)

    def exactly(self, wanted: Range) -> list[Message]:
        """Read a range once more, whatever was read ahead, and stand behind it."""
        self.place(wanted.start, wanted.incarnation)
        found: list[Message] = []
        while self._reached < wanted.to and not self.is_over:
            page = self._client.run_until_stopped(
                self._reader.next_page(), self._stop, silence=None
            )
            self.is_over = page is None
            found.extend(one for one in page or () if _ordinal(one.ordinal) < wanted.to)
        self.place(wanted.to, wanted.incarnation)
        self.position = wanted.start  # until that is committed
        return found

    @property
    def _reached(self) -> int:
        return parse_offset(self._reader.offset) or 0

    def _reader_at(self, position: int) -> PageReader:
        calls = StreamCalls(self._client.site, self.path)
        offset = print_offset(position) if position else START
        return PageReader(calls, offset, is_live=True, waits_at_end=self._waits_at_end)


class EndFeed(Feed):
    """Only looks where a stream ends: for an engine that reads by itself."""

    def __init__(self, client: Client, path: str, stop: Stop, *, limit: int | None = None) -> None:
        super().__init__(client, path, stop, limit=limit)
        self._end = 0
        self._first: int | None = None

    @property
    def has_ready(self) -> bool:
        """Whether the stream goes on behind the position."""
        return self._end > self.position

    @property
    def is_at_end(self) -> bool:
        """Whether the stream ended at the position when it was last looked at."""
        return not self.has_ready

    @property
    def lag(self) -> int:
        """How many offsets are decided and not processed."""
        return max(self._end - self.position, 0)

    def fetch(self) -> None:
        """Look where the stream ends."""
        calls = self._client.stream(self.path).calls
        found = self._client.run_until_stopped(calls.head(), self._stop)
        if found.incarnation != self.incarnation:
            raise StreamGone(f"{self.path} was deleted and made anew; start again to read it")
        end = parse_offset(found.stable_offset or "") or 0
        self._end = int(min(end, self._limit))
        self.is_over = found.closed and self._end == parse_offset(found.next_offset)
        if self.position == 0 and self._end and self._first is None:
            self._first = self._found_first()

    def _found_first(self) -> int:
        """Find where the stream begins: a step from 0 on counts from there, if that is trimmed."""
        reader = self._reader_at(0)
        page = self._client.run_until_stopped(reader.next_page(), self._stop, silence=None)
        return _ordinal(page[0].ordinal) if page else parse_offset(reader.offset) or 0

    def take(self, count: int) -> tuple[list[Message], Range]:
        """Take a range of at most so many offsets."""
        begin = self.position or self._first or 0
        to = self._taken = max(min(self._end, begin + count), self.position)
        return [], Range(self.path, self.incarnation, self.position, to)


def _ordinal(place: int | str | None) -> int:
    assert isinstance(place, int), "semel tells the offset of each message"
    return place


# ---- inputs --------------------------------------------------------------------------------------


STEP_MESSAGES_MAX: Final = 5_000
_PAUSE_SECONDS_MIN: Final = 0.005
_PAUSE_SECONDS_MAX: Final = 0.25
_DRAINING_PAUSE_SECONDS_MAX: Final = 0.02  # the others are at work

Planned = dict[str, tuple[list[Message], Range]]


class Inputs:
    """The feeds of a processor.

    `is_ending()`: nobody in the graph writes to them any more; then it ends where they end.
    `limits`: for streams that others write to, where to end. Both are for runs that drain.
    """

    def __init__(
        self,
        client: Client,
        processor: Processor,
        stop: Stop,
        *,
        is_draining: bool = False,
        is_ending: Callable[[], bool] = lambda: False,
        limits: Mapping[str, int] | None = None,
        reads_ahead: bool = True,
        step_messages_max: int = STEP_MESSAGES_MAX,
    ) -> None:
        self._client = client
        self.stop = stop
        self._is_join = processor.is_join
        self._is_ending = is_ending
        self._count = step_messages_max
        self._pause_max = _DRAINING_PAUSE_SECONDS_MAX if is_draining else _PAUSE_SECONDS_MAX
        # The i-th messages can only be found by reading: offsets may have holes.
        reads = reads_ahead or processor.is_join
        self._waits_at_end = len(processor.inputs) == 1 and reads and not is_draining
        limits = limits or {}
        self.by_binding = {
            binding: Feed(
                client, path, stop, waits_at_end=self._waits_at_end, limit=limits.get(path)
            )
            if reads
            else EndFeed(client, path, stop, limit=limits.get(path))
            for binding, path in processor.inputs.items()
        }

    @property
    def feeds(self) -> list[Feed]:
        """The feeds, in the order of the bindings."""
        return list(self.by_binding.values())

    @property
    def lag(self) -> int:
        """How many offsets are not processed yet, as far as is known."""
        return sum(feed.lag for feed in self.feeds)

    def place(self, positions: Mapping[str, int]) -> None:
        """Begin where a group stands."""
        for feed in self.feeds:
            calls = self._client.stream(feed.path).calls
            found = self._client.run_until_stopped(calls.head(), self.stop)
            if found.incarnation is None:
                raise ProtocolError("pipelines need semel; this is another server")
            feed.place(positions.get(feed.path, 0), found.incarnation)

    def move(self, ranges: Iterable[Range]) -> None:
        """Stand behind what was committed."""
        ends = {one.stream: one.to for one in ranges}
        for feed in self.feeds:
            feed.advance(ends[feed.path])

    def wait(self, on_idle: Callable[[], None]) -> bool:
        """Wait until there is enough for a step; False if there will never be, or on a stop."""
        pause = _PAUSE_SECONDS_MIN
        while not self.stop.is_set:
            if self._is_enough():
                return True
            is_ending = self._is_ending()  # before reading: what was written until then is read
            for feed in self.feeds:
                if not feed.has_ready:
                    if feed.is_at_end:
                        on_idle()
                    feed.fetch()
            if self._is_enough():
                return True
            if self._is_exhausted(is_ending=is_ending):
                return False
            if not self._waits_at_end and all(
                feed.has_ready or feed.is_at_end for feed in self.feeds
            ):
                self.stop.wait(pause)
                pause = min(2 * pause, self._pause_max)
        return False

    def _is_enough(self) -> bool:
        filled = [feed.has_ready for feed in self.feeds]
        return all(filled) if self._is_join else any(filled)

    def _is_exhausted(self, *, is_ending: bool) -> bool:
        """Whether nothing more can come: of any input of a join, of all alternatives."""
        empty = [
            not feed.has_ready and (feed.is_over or (is_ending and feed.is_at_end))
            for feed in self.feeds
        ]
        return any(empty) if self._is_join else all(empty)

    def plan(self) -> Planned:
        """Take what a step is to be made of: of a join the same count from each input."""
        count = max(self._count // (1 if self._is_join else len(self.feeds)), 1)
        if self._is_join:
            count = min(count, *[len(feed.ready) for feed in self.feeds])
        return {binding: feed.take(count) for binding, feed in self.by_binding.items()}
