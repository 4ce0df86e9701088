"""Long events: they are encoded in steps, and other requests are served between two steps."""

import asyncio
import gc
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final
from unittest.mock import patch

import pytest

from semel.model.limits import BODY_BYTES_MAX, MIB
from semel.server.limits_http import HttpLimits
from semel.wire import sse
from tests.http.harness import Client, eventually, get, post
from tests.http.test_unread import TYPED, Bed, a_bed

LINES: Final = "/v1/stream/lines"
BODY: Final = b"\n" * BODY_BYTES_MAX
STEPS: Final = BODY_BYTES_MAX // sse.EVENT_STEP_BYTES


@contextmanager
def a_stream(data: Path) -> Iterator[Bed]:
    """Run a server with an empty stream."""
    with a_bed(data, HttpLimits(), 16 * MIB) as bed:
        with bed.server.connect() as client:
            made = f"PUT {LINES} HTTP/1.1\r\nHost: localhost\r\n{TYPED}\r\n\r\n"
            assert client.ask(made.encode()).status == 201
        yield bed


class Turns:
    """Counts the turns of the event loop, and records in which of them an event is encoded."""

    def __init__(self) -> None:
        self.turn = 0
        self.steps: list[int] = []
        self.on_step: Callable[[], None] = lambda: None
        self._real = sse._with_fields

    def encode(self, lines: bytes) -> bytes:
        if len(lines) >= sse.EVENT_STEP_BYTES:
            if not self.steps:
                self._count()
            self.steps.append(self.turn)
            self.on_step()
        return self._real(lines)

    def _count(self) -> None:
        self.turn += 1
        if len(self.steps) < STEPS:
            asyncio.get_running_loop().call_soon(self._count)


@pytest.fixture
def turns() -> Iterator[Turns]:
    turns = Turns()
    with patch.object(sse, "_with_fields", turns.encode):
        yield turns


def event_of(client: Client, awaited: bytes = b"event: control") -> bytes:
    """Return what a client receives until it has received `awaited`."""
    received = b""
    while awaited not in received:
        received += client.chunk()
    return received


@contextmanager
def reader_at_tail(bed: Bed) -> Iterator[Client]:
    with bed.server.connect() as client:
        client.send(get(f"{LINES}?offset=now&live=sse"))
        assert client.head()[0] == 200
        assert b"upToDate" in event_of(client)
        yield client


def check(received: bytes) -> None:
    data, _, control = received.partition(b"event: control\n")
    assert data == b"event: data\n" + b"data:\n" * (len(BODY) + 1) + b"\n"
    assert b'"upToDate":true' in control


def test_an_event_of_line_ends_takes_one_step_per_turn(tmp_path: Path, turns: Turns) -> None:
    with a_stream(tmp_path) as bed, bed.server.connect() as client:
        assert client.ask(post(BODY, TYPED, path=LINES)).status == 204
        client.send(get(f"{LINES}?offset=-1&live=sse"))
        assert client.head()[0] == 200
        check(event_of(client))
        assert bed.unread.reserved_bytes == 0
    assert len(turns.steps) == len(set(turns.steps)) == STEPS


def test_a_shared_event_of_line_ends_takes_one_step_per_turn(tmp_path: Path, turns: Turns) -> None:
    with a_stream(tmp_path) as bed, ExitStack() as stack:
        readers = [stack.enter_context(reader_at_tail(bed)) for _ in range(3)]
        with bed.server.connect() as writer:
            assert writer.ask(post(BODY, TYPED, path=LINES)).status == 204
            for reader in readers:
                check(event_of(reader))
            # A slow reader first gets a control event, because it has left the group.
            assert writer.ask(post(b"next", TYPED, path=LINES)).status == 204
            for reader in readers:
                event_of(reader, b"data:next")
        assert bed.unread.reserved_bytes == 0
    assert len(turns.steps) == len(set(turns.steps)) == STEPS


def test_a_response_ends_after_the_event_that_is_being_written(
    tmp_path: Path, turns: Turns
) -> None:
    with a_stream(tmp_path) as bed, bed.server.connect() as client:
        assert client.ask(post(BODY, TYPED, path=LINES)).status == 204
        turns.on_step = bed.app._live.drain
        client.send(get(f"{LINES}?offset=-1&live=sse"))
        assert client.head()[0] == 200
        check(event_of(client))
        assert client.chunk() == b""
    assert len(turns.steps) == STEPS


def test_the_steps_end_when_the_client_leaves(tmp_path: Path, turns: Turns) -> None:
    with a_stream(tmp_path) as bed, bed.server.connect() as other:
        assert other.ask(post(BODY, TYPED, path=LINES)).status == 204

        def leave() -> None:
            for reader in list(bed.app._live.readers):
                reader._end()

        turns.on_step = leave
        with bed.server.connect() as client:
            client.send(get(f"{LINES}?offset=-1&live=sse"))
            assert client.head()[0] == 200
            assert eventually(lambda: len(turns.steps) == 1)
        assert eventually(lambda: bed.unread.reserved_bytes == 0)
    assert len(turns.steps) == 1


def test_memory_is_reserved_for_the_longest_event(tmp_path: Path, turns: Turns) -> None:
    """A line end takes six bytes of an event, and the parts of a shared event are kept together."""
    reserved: list[int] = []
    with a_stream(tmp_path) as bed, reader_at_tail(bed) as reader:
        turns.on_step = lambda: reserved.append(bed.unread.reserved_bytes)
        with bed.server.connect() as writer:
            assert writer.ask(post(BODY, TYPED, path=LINES)).status == 204
            check(event_of(reader))
        assert bed.unread.reserved_bytes == 0
    assert len(reserved) == STEPS
    assert min(reserved[1:]) >= 6 * len(BODY)


@pytest.mark.parametrize("size", [0, 1_000, sse.HELD_BYTES_MAX, 2 * sse.HELD_BYTES_MAX])
def test_a_reader_at_the_tail_gets_a_character_that_two_messages_contain(
    tmp_path: Path, size: int
) -> None:
    first, second = b"a" * size + b"\xe2\x82", b"\xac;"
    with a_stream(tmp_path) as bed, ExitStack() as stack:
        readers = [stack.enter_context(reader_at_tail(bed)) for _ in range(2)]
        with bed.server.connect() as writer:
            for body in (first, second):
                assert writer.ask(post(body, TYPED, path=LINES)).status == 204
                if size > sse.HELD_BYTES_MAX and body is first:
                    for reader in readers:
                        assert b"data:" + b"a" * size + b"\n" in event_of(reader, b"upToDate")
            for reader in readers:
                assert "€;\n".encode() in event_of(reader, b";\n")


@pytest.mark.parametrize("read_bytes", [1_000, 5 * BODY_BYTES_MAX // 4], ids=["a part", "all"])
def test_an_ended_event_stream_keeps_no_messages(tmp_path: Path, read_bytes: int) -> None:
    """The server collects garbage rarely, so nothing may depend on it: no cycle of references."""
    rounds = 8
    with a_stream(tmp_path) as bed:
        with bed.server.connect() as client:
            body = b"x" * (BODY_BYTES_MAX - 100)
            assert client.ask(post(body, TYPED, path=LINES)).status == 204
        gc.collect()
        gc.disable()
        tracemalloc.start()
        try:
            for _ in range(rounds):
                with bed.server.connect() as client:
                    client.send(get(f"{LINES}?offset=-1&live=sse"))
                    client.file.read(min(read_bytes, len(body)))
                assert eventually(lambda: bed.count() == 0)
            kept, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
            gc.enable()
    assert kept < 2 * BODY_BYTES_MAX
