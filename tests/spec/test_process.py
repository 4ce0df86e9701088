"""The server process: durability after SIGKILL, shutdown, and failed starts."""

import http.client
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from semel.model.slices import SliceProducer
from semel.wire.bodies import decode_frames, encode_batch
from semel.wire.headers import BATCH, FRAMES
from tests.spec.process import Later, Server, Stream, offset_of

PRODUCER: Final[dict[str, Any]] = {"producer_id": "p", "producer_epoch": 0}


class Runs:
    """Starts servers on one directory, one after another."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.servers: list[Server] = []

    def start(self, *options: str, port: int = 0) -> Server:
        self.servers.append(Server(self.data, *options, port=port))
        return self.servers[-1]

    def end(self) -> None:
        for server in self.servers:
            server.kill()


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Runs]:
    it = Runs(tmp_path / "data")
    try:
        yield it
    finally:
        it.end()


# ---- kill -9 -------------------------------------------------------------------------------------


# rows: D15, P05, P20, P21, U14, X18, X19
@pytest.mark.crash
@pytest.mark.spec("design 7.2")
def test_a_repeat_after_a_kill_carries_the_offset_of_the_first_answer(runs: Runs) -> None:
    stream = runs.start().stream("a")
    stream.create()
    first = [stream.post(b"%d" % seq, producer_seq=seq, **PRODUCER) for seq in range(5)]
    keyed = stream.post(b"k", idempotency_key="k")
    bare = stream.post(b"x", x_producer_id="x", x_producer_seq=0)
    runs.servers[-1].kill()
    stream = runs.start().stream("a")
    again = [stream.post(b"%d" % seq, producer_seq=seq, **PRODUCER) for seq in range(5)]
    assert [answer.status for answer in again] == [204] * 5
    assert [answer.next_offset for answer in again] == [answer.next_offset for answer in first]
    assert "producer-payload-mismatch" not in again[0].headers
    assert stream.post(b"k", idempotency_key="k").next_offset == keyed.next_offset
    other = stream.post(b"?", idempotency_key="k")
    assert other.status == 422
    bare_again = stream.post(b"x", x_producer_id="x", x_producer_seq=0)
    assert bare_again.status == 204
    assert bare_again.headers["x-stream-offset"] == bare.headers["x-stream-offset"]
    assert stream.post(b"5", producer_seq=5, **PRODUCER).status == 200
    assert stream.text == "01234kx5"


# rows: D01, P20, P25, X19
@pytest.mark.crash
@pytest.mark.spec("design 7.2")
def test_appends_that_were_acknowledged_survive_kills_and_none_is_doubled(runs: Runs) -> None:
    """One producer and five kills; an append without a response is sent again."""
    server = runs.start()
    stream = server.stream("log")
    stream.create(b"", "application/json")
    seq = 0
    for run in range(5):
        timer = threading.Timer(0.15, server.kill)
        timer.start()
        while True:
            try:
                answer = append_number(stream, seq)
            except (OSError, http.client.HTTPException):
                break
            assert answer in (200, 204)
            seq += 1
        timer.join()
        server = runs.start()
        stream = server.stream("log")
        assert append_number(stream, seq) in (200, 204), f"run {run}"
        seq += 1
    pages = [msgspec.json.decode(page, type=list[int]) for page in stream.pages()]
    assert [number for page in pages for number in page] == list(range(seq))
    assert stream.tail == offset_of(seq)


@pytest.mark.crash
@pytest.mark.spec("design 7.2; D01")
def test_keys_headers_and_timestamps_survive_a_kill_and_are_known_to_a_retry(runs: Runs) -> None:
    rich = encode_batch(
        "text/plain",
        [b"1", b"2"],
        keys=[b"k", None],
        headers=[[], [("n", b"v")]],
        timestamps=[7, 8],
    )
    stream = runs.start().stream("a")
    stream.create()
    first = stream.post(rich, content_type=BATCH, producer_seq=0, **PRODUCER)
    before = stream.get(accept=FRAMES).body
    runs.servers[-1].kill()
    stream = runs.start().stream("a")
    again = stream.post(rich, content_type=BATCH, producer_seq=0, **PRODUCER)
    assert (first.status, again.status) == (200, 204)
    assert again.next_offset == first.next_offset
    assert "producer-payload-mismatch" not in again.headers
    assert stream.get(accept=FRAMES).body == before
    (piece,) = decode_frames(before).slices
    assert piece.producer == SliceProducer("p", 0, 0, 0)
    assert (piece.keys(), piece.headers()) == ([b"k", None], [[], [("n", b"v")]])
    assert piece.timestamps() == [7, 8]


def append_number(stream: Stream, seq: int) -> int:
    body = b"%d" % seq
    return stream.post(body, content_type="application/json", producer_seq=seq, **PRODUCER).status


@pytest.mark.crash
@pytest.mark.spec("design 5")
def test_everything_about_a_stream_survives_a_kill(runs: Runs) -> None:
    server = runs.start()
    open_, closed, source, fork, gone, expired = (server.stream(name) for name in "abcdef")
    open_.create(b"[1]", "application/json; charset=utf-8", stream_ttl=600)
    open_.post(b"[2]", content_type="application/json", stream_seq="5")
    closed.create(b"x", stream_expires_at="2099-01-01T00:00:00Z", stream_closed="true")
    source.create(b"y")
    fork.put(b"z", stream_forked_from=source.target)
    source.delete()
    gone.create()
    gone.delete()
    expired.create(stream_ttl=0)
    streams = (open_, closed, source, fork, gone, expired)
    before = [(stream.head(), stream.get()) for stream in streams]
    server.kill()
    server = runs.start()
    for stream in streams:
        stream.server = server
    assert [(stream.head(), stream.get()) for stream in streams] == before
    conflict = open_.post(b"[3]", content_type="application/json", stream_seq="5")
    assert conflict.code == "stream_seq_conflict"


# ---- shutdown ------------------------------------------------------------------------------------


@pytest.mark.spec("design 7.1")
def test_sigterm_answers_what_is_under_way_and_exits_0(runs: Runs) -> None:
    server = runs.start("--long-poll-timeout", "60")
    stream = server.stream("a")
    stream.create(b"a")
    waiting = Later(stream, f"offset={offset_of(1)}&live=long-poll")
    line = server.dial()
    head = f"POST {stream.target} HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\n"
    line.sendall(f"{head}Content-Length: 2\r\n\r\nb".encode())
    time.sleep(0.5)  # both requests have arrived
    server.signal(signal.SIGTERM)
    time.sleep(0.2)
    line.sendall(b"c")
    assert line.recv(1000).startswith(b"HTTP/1.1 204 ")
    line.close()
    assert waiting.answer().status in (200, 204), "the long poll must not wait for its timeout"
    assert server.wait() == 0
    assert server.stderr == ""
    assert runs.start().stream("a").text == "abc"


@pytest.mark.spec("design 7.1")
def test_sigterm_refuses_new_connections_and_ends_idle_ones(runs: Runs) -> None:
    server = runs.start()
    idle = server.dial()
    assert server.is_sound()
    server.signal(signal.SIGTERM)
    assert idle.recv(1) == b""
    idle.close()
    assert server.wait() == 0
    with pytest.raises(ConnectionRefusedError):
        server.dial()


@pytest.mark.spec("design 7.1")
def test_sigterm_ends_event_streams(runs: Runs) -> None:
    server = runs.start()
    stream = server.stream("a")
    stream.create()
    with stream.listen() as events:
        assert events.next() is not None
        server.signal(signal.SIGTERM)
        assert events.rest() == [], "the response must be complete"
    assert server.wait() == 0


@pytest.mark.spec("design 7.1")
def test_sigint_exits_0_too(runs: Runs) -> None:
    server = runs.start()
    server.signal(signal.SIGINT)
    assert server.wait() == 0


@pytest.mark.spec("design 7.1")
def test_sighup_does_not_end_the_server_and_sigterm_still_makes_a_checkpoint(runs: Runs) -> None:
    server = runs.start()
    stream = server.stream("a")
    stream.create(b"a")
    for _ in range(3):
        server.signal(signal.SIGHUP)
        assert stream.post(b"b").status == 204
    assert stream.text == "abbb"
    assert server.process.poll() is None
    assert "SIGHUP is ignored; send SIGTERM to stop the server" in server.stderr
    server.signal(signal.SIGTERM)
    assert server.wait() == 0
    after = runs.start()
    assert after.stream("a").text == "abbb"
    assert "semel_replayed_bytes 0\n" in after.ask("GET", "/metrics").body.decode()


# ---- start ---------------------------------------------------------------------------------------


@pytest.mark.spec("design 7.1")
def test_the_one_line_it_prints_is_where_it_listens(runs: Runs) -> None:
    server = runs.start()
    assert server.greeting == f"listening on http://127.0.0.1:{server.port}\n"
    server.signal(signal.SIGTERM)
    assert server.wait() == 0
    assert server.process.stdout is not None
    assert server.process.stdout.read() == b""


@pytest.mark.spec("design 5")
def test_a_second_server_on_a_directory_exits_73_and_harms_nobody(runs: Runs) -> None:
    first = runs.start()
    second = runs.start()
    assert second.wait() == 73
    assert second.stderr == f"semel: {second.data}: another process owns this directory\n"
    first.stream("a").create(b"x")
    assert first.is_sound()


@pytest.mark.spec("design 7.1")
def test_a_port_in_use_is_said_plainly(runs: Runs) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = runs.start(port=port)
        assert server.wait() != 0
    assert f"cannot listen on 127.0.0.1:{port}" in server.stderr
    assert "Traceback" not in server.stderr
    assert not Path(server.data).exists(), "a failed start must not create the directory"
    assert runs.start().is_sound(), "the directory must be unlocked"
