"""A producer that is killed, and its successor, which continues without duplicates.

The first instance and the server are separate processes, which are killed with SIGKILL.
"""

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from semel import Client, errors
from semel.client.producer.outcomes import BatchAck
from tests.integration.both import KINDS, client_of
from tests.spec.process import Server, offset_of

LINE_COUNT = 300
# It prints its progress and then waits, with messages in flight, until it is killed.
PROGRAM = """
import sys
from semel import Client

url, mode = sys.argv[1:]
with Client(url) as client:
    producer = client.stream("input").producer("import", mode=mode, max_batch_messages=7)
    for line in range(300):
        if mode == "sparse":
            producer.append({"line": line}, seq=line * 10)
        else:
            producer.append({"line": line}, cursor=f"input.csv:{line}")
        if line % 50 == 49:
            producer.flush()
            print(line, flush=True)
        if line == 155:
            sys.stdin.read()
"""


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    it = Server(tmp_path / "data")
    try:
        yield it
    finally:
        it.kill()


def killed_in_the_middle(url: str, mode: str) -> None:
    """Run the first instance until half of the lines are stored, and kill it."""
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, url, mode],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        while process.stdout.readline() != "149\n":
            assert process.poll() is None
        process.kill()


def restarted(server: Server) -> Server:
    """Kill the server, and start a new one with the same data and port."""
    server.signal(signal.SIGKILL)
    server.wait()
    return Server(server.data, port=server.port)


def lines_of(client: Client) -> list[int]:
    return [message.value["line"] for message in client.stream("input").read()]


# rows: X02
@pytest.mark.crash
def test_a_cursor_outlives_the_producer_and_the_server(server: Server) -> None:
    with Client(server.url) as client:
        client.stream("input").create("application/json")
        killed_in_the_middle(server.url, "dense")
        second = restarted(server)
        try:
            stream = client.stream("input")
            with stream.producer("import") as producer:
                assert producer.cursor is not None
                name, _, line = producer.cursor.rpartition(":")
                assert name == "input.csv"
                assert int(line) >= 149
                for number in range(int(line) + 1, LINE_COUNT):
                    producer.append({"line": number}, cursor=f"input.csv:{number}")
            assert producer.epoch == 2
            assert producer.cursor == "input.csv:299"
            assert lines_of(client) == list(range(LINE_COUNT))
            (state,) = stream.producers("import")
            assert state.cursor == "input.csv:299"
        finally:
            second.kill()


# rows: X02
@pytest.mark.crash
def test_a_sparse_producer_sends_all_again_and_nothing_is_stored_twice(server: Server) -> None:
    with Client(server.url) as client:
        client.stream("input").create("application/json")
        killed_in_the_middle(server.url, "sparse")
        second = restarted(server)
        try:
            with client.stream("input").producer("import", mode="sparse") as producer:
                assert producer.last_seq is not None
                assert producer.last_seq >= 1490
                for number in range(LINE_COUNT):
                    producer.append({"line": number}, seq=number * 10)
            assert producer.stats.messages_skipped >= 150
            assert producer.last_seq == 2990
            assert lines_of(client) == list(range(LINE_COUNT))
        finally:
            second.kill()


def test_the_server_tells_what_it_knows_of_producers(kind: str, server: Server) -> None:
    with Client(server.url) as writer:
        stream = writer.stream("a").create("application/json")
        for name in ("p", "q"):
            with stream.producer(name) as producer:
                producer.append(1, cursor=f"at {name}")
    with client_of(kind, server.url) as client:
        stream = client.stream("a")
        found = stream.producers()
        assert [(one.producer_id, one.epoch, one.last_seq) for one in found] == [
            ("p", 1, 0),
            ("q", 1, 0),
        ]
        assert [one.cursor for one in found] == ["at p", "at q"]
        assert found[0].receipts is None
        (one,) = stream.producers("q")
        assert (one.mode, one.last_offset, one.expired) == ("dense", offset_of(2), False)
        assert [(r.first_offset, r.next_offset) for r in one.receipts or ()] == [
            (offset_of(1), offset_of(2))
        ]
        assert stream.producers("nobody") == []
        told = stream.explain("p", 5, epoch=1)
        assert (told["outcome"], told["status"]) == ("producer_seq_conflict", 409)
        assert stream.explain("new", "3-5", mode="sparse", session="s")["status"] == 200
        stream.forget_producer("p")
        assert [one.producer_id for one in stream.producers()] == ["q"]
        with pytest.raises(errors.ProducerRefused) as caught:
            stream.forget_producer("p")
        assert caught.value.code == "UNKNOWN_PRODUCER_ID"
        with pytest.raises(errors.StreamNotFound):
            client.stream("absent").producers()


def test_ids_are_registered_and_their_epochs_raised(kind: str, server: Server) -> None:
    with client_of(kind, server.url) as client:
        given = client.register_producer()
        assert given.producer_epoch == 0
        assert client.register_producer(given.producer_id).producer_epoch == 1


def test_a_claim_begins_above_what_idleness_has_left(tmp_path: Path) -> None:
    server = Server(tmp_path / "data", "--producer-idle-seconds", "0.01")
    try:
        with Client(server.url) as client:
            stream = client.stream("a").create("application/json")
            with stream.producer("p", epoch=4) as producer:
                producer.append("old", cursor="1")
            buried = threading.Event()
            while not stream.producers("p")[0].expired:
                buried.wait(0.05)
            with stream.producer("p", auto_claim=True) as producer:
                assert producer.cursor == "1"
                producer.append("new")
            assert producer.epoch == 5
            assert [message.value for message in stream.read()] == ["old", "new"]
    finally:
        server.kill()


# ---- keys, headers and timestamps ----------------------------------------------------------------


@pytest.mark.parametrize("media_type", ["application/json", "text/plain"])
def test_a_producer_stores_keys_headers_and_times(server: Server, media_type: str) -> None:
    moment = datetime(2001, 2, 3, 4, 5, 6, tzinfo=UTC)
    acked: list[BatchAck] = []
    with Client(server.url) as client:
        stream = client.stream("a").create(media_type, body="first")
        with stream.producer("p", linger_ms=60_000, on_batch_ack=acked.append) as producer:
            producer.append("plain")
            producer.append("keyed", key="k", headers={"h": b"\xff"}, timestamp=moment)
            with pytest.raises(ValueError, match="a message key can have"):
                producer.append("wrong", key=b"k" * 100_000)
        first, plain, keyed = stream.read()
        assert [first.value, plain.value, keyed.value] == ["first", "plain", "keyed"]
        assert (keyed.key, list(keyed.headers), keyed.timestamp) == (b"k", [("h", b"\xff")], moment)
        assert (plain.key, list(plain.headers)) == (None, [])
        assert plain.timestamp != moment
        (ack,) = acked
        assert (ack.offset, ack.next_offset) == (offset_of(1), offset_of(3))
        (keyed,) = stream.read(offset_of(2))
        assert keyed.key == b"k"


# ---- closing a client ----------------------------------------------------------------------------


def test_a_client_that_closes_drains_its_producers(kind: str, server: Server) -> None:
    with Client(server.url) as reader:
        stream = reader.stream("a").create("application/json")
        if kind == "sync":
            client = Client(server.url)
            producer: Any = client.stream("a").producer("p", linger_ms=60_000)
            for number in range(100):
                producer.append(number)
            client.close()
            with pytest.raises(errors.ClientClosed):
                producer.append("late")
        else:
            with client_of(kind, server.url) as both:
                producer = both.stream("a").producer("p", linger_ms=60_000)
                append = both.waiting(producer.append)
                for number in range(100):
                    append(number)
        assert [message.value for message in stream.read()] == list(range(100))


def test_a_client_gives_up_on_its_producers_in_time(server: Server) -> None:
    client = Client(server.url)
    producer = client.stream("a").create().producer("p")
    server.signal(signal.SIGSTOP)
    producer.append(b"x")
    with pytest.raises(errors.Indeterminate, match="not acknowledged"):
        client.close(timeout=0.2)
    with pytest.raises(errors.ClientClosed):
        client.health()
    server.signal(signal.SIGCONT)
