"""When a processor looks at its retry stream. Nothing is read from a server."""

from types import SimpleNamespace
from typing import Any

import pytest

from semel.client.errors import StreamGone, StreamNotFound
from semel.pipeline.local.inputs import Retries


class Stream:
    """A retry stream that may not exist, and the requests that were made of it."""

    def __init__(self) -> None:
        self.incarnation: str | None = None
        self.count = 0
        self.heads = self.fetches = 0

    def create(self, incarnation: str, count: int) -> None:
        self.incarnation, self.count = incarnation, count


class FakeFeed:
    """Replaces a feed: each fetch makes all messages of the stream ready."""

    def __init__(self, stream: Stream, limit: int | None = None) -> None:
        self._stream = stream
        self.limit = limit
        self.taken = self.ready = 0
        self.incarnation = ""

    def info(self) -> Any:
        self._stream.heads += 1
        if self._stream.incarnation is None:
            raise StreamNotFound("there is no stream")
        end = f"{0:016d}_{self._stream.count:016d}"
        return SimpleNamespace(incarnation=self._stream.incarnation, next_offset=end)

    def place(self, position: int, incarnation: str) -> None:
        self.taken, self.incarnation = position, incarnation

    def fetch(self) -> None:
        self._stream.fetches += 1
        if self._stream.incarnation != self.incarnation:
            raise StreamGone("the stream was deleted and created again")
        self.ready = self._stream.count - self.taken

    def take(self) -> None:
        self.taken, self.ready = self.taken + self.ready, 0

    @property
    def has_ready(self) -> bool:
        return self.ready > 0

    @property
    def is_at_end(self) -> bool:
        return not self.ready


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def stream() -> Stream:
    return Stream()


@pytest.fixture
def clock() -> Clock:
    return Clock()


def retries_of(stream: Stream, clock: Clock, *, is_draining: bool = False) -> Retries:
    running: Any = SimpleNamespace(client=None, stop=None, is_draining=is_draining)
    made = Retries(running, "retries", reads_ahead=True, clock=clock)
    make: Any = lambda _client, _path, _stop, limit=None: FakeFeed(stream, limit)  # noqa: E731
    made._make = make
    return made


def feed_of(retries: Retries) -> Any:
    assert retries.feed is not None
    return retries.feed


def test_a_busy_processor_looks_once_a_second_and_before_it_waits(
    stream: Stream, clock: Clock
) -> None:
    retries = retries_of(stream, clock)
    retries.place(0)
    assert (retries.has_ready, retries.is_at_end, stream.heads) == (False, True, 1)
    retries.look(is_due=False)
    retries.look(is_due=False)
    assert stream.heads == 2
    stream.create("a", 3)
    clock.now += 0.9
    retries.look(is_due=False)
    assert retries.feed is None
    clock.now += 0.2
    retries.look(is_due=False)
    assert (feed_of(retries).ready, retries.is_at_end) == (3, False)
    feed_of(retries).take()
    retries.look(is_due=False)
    assert stream.fetches == 1
    retries.look(is_due=True)
    assert stream.fetches == 2


def test_messages_that_are_ready_are_taken_before_more_are_read(
    stream: Stream, clock: Clock
) -> None:
    stream.create("a", 2)
    retries = retries_of(stream, clock)
    retries.place(1)
    retries.look(is_due=True)
    assert feed_of(retries).ready == 1
    retries.look(is_due=True)
    assert stream.fetches == 1


def test_a_stream_that_is_created_again_is_read_from_its_start_at_once(
    stream: Stream, clock: Clock
) -> None:
    stream.create("a", 2)
    retries = retries_of(stream, clock)
    retries.place(2)
    retries.look(is_due=True)
    assert not retries.has_ready
    stream.create("b", 5)
    retries.look(is_due=True)
    assert (feed_of(retries).incarnation, feed_of(retries).ready) == ("b", 5)


def test_a_draining_run_reads_only_what_exists_at_its_start(stream: Stream, clock: Clock) -> None:
    retries = retries_of(stream, clock, is_draining=True)
    retries.place(0)
    stream.create("a", 2)
    retries.look(is_due=True)
    assert (retries.has_ready, stream.heads) == (False, 1)
    retries = retries_of(stream, clock, is_draining=True)
    retries.place(0)
    assert feed_of(retries).limit == 2
    for _ in range(2):  # it does not wait a second
        retries.look(is_due=False)
        feed_of(retries).take()
    assert stream.fetches == 2
