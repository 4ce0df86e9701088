"""How a producer begins and ends: its first request, its name, and the end of its stream."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import closing, suppress
from http.client import HTTPConnection
from typing import Any

import pytest

from semel import AsyncClient, Client
from semel.client import errors
from semel.client.producer.outcomes import BatchAck
from semel.client.sync.stream import Stream
from semel.model.limits import SESSIONS_REMEMBERED
from semel.testing import FaultPlan, FaultProxy
from tests.integration.both import KINDS
from tests.integration.recorder import Recorder, forwarding
from tests.integration.test_producer import values
from tests.spec.process import PATIENCE_SECONDS, Server


def methods(recorder: Recorder) -> list[str]:
    """Return the methods and paths of the recorded requests."""
    return [" ".join(request.decode().split(" ")[:2]) for request in recorder.requests]


def header(request: bytes, name: str) -> str | None:
    for line in request.partition(b"\r\n\r\n")[0].decode().split("\r\n")[1:]:
        found, _, value = line.partition(": ")
        if found.lower() == name:
            return value
    return None


# ---- instances with the same name ----------------------------------------------------------------


def run_once(stream: Stream, value: Any) -> None:
    with stream.producer("import") as producer:
        producer.append(value)


@pytest.mark.parametrize("runs", [1, SESSIONS_REMEMBERED - 1])
def test_a_late_copy_of_a_first_batch_is_refused_after_newer_runs(
    server: Server, recorder: Recorder, orders: Stream, runs: int
) -> None:
    with Client(recorder.url) as client:
        run_once(client.stream(orders.path), "first")
    (copy,) = [each for each in recorder.requests if each.startswith(b"POST /v1/stream/")]
    for number in range(runs):
        run_once(orders, number)
    live = orders.producer("import")
    live.append("live")
    live.flush()
    with socket.create_connection(("127.0.0.1", server.port)) as line:
        line.sendall(copy)
        assert line.recv(4096).startswith(b"HTTP/1.1 403 ")
    live.append("still live")
    live.close()
    assert values(orders) == ["first", *range(runs), "live", "still live"]


def test_a_first_batch_is_not_stored_again_after_newer_runs(server: Server, orders: Stream) -> None:
    forward, stored, is_open = forwarding(server.port), threading.Event(), threading.Event()

    def answer(request: bytes) -> bytes:
        """Lose the responses to appends, and forward only the first append, until `is_open`."""
        if not request.startswith(b"POST /v1/stream/") or is_open.is_set():
            return forward(request)
        if not stored.is_set():
            forward(request)
            stored.set()
        return b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n"

    with Recorder(answer) as recorder, Client(recorder.url) as client:
        late = client.stream(orders.path).producer("import", content_type="application/json")
        late.append("late")
        assert stored.wait(PATIENCE_SECONDS)
        for number in range(20):
            run_once(orders, number)
        is_open.set()
        with pytest.raises(errors.ProducerFenced):
            late.flush()
        late.close()
    assert values(orders) == ["late", *range(20)]


# ---- the first request ---------------------------------------------------------------------------


# rows: D02
@pytest.mark.parametrize("name", ["shop-1", None], ids=["named", "unnamed"])
@pytest.mark.parametrize("learned", ["option", "head", "create"])
def test_the_first_request_is_the_first_batch(
    server: Server, recorder: Recorder, orders: Stream, name: str | None, learned: str
) -> None:
    with Client(recorder.url) as client:
        stream = client.stream(orders.path)
        options: Any = {}
        if learned == "option":
            options = {"content_type": "application/json"}
        elif learned == "head":
            stream.head()
        else:
            stream.create("application/json", exist_ok=True)
        recorder.requests.clear()
        with stream.producer(name, **options) as producer:
            assert recorder.requests == []
            producer.append({"id": 1})
            producer.flush()
            assert methods(recorder) == [f"POST /v1/stream/{orders.path}"]
            (first,) = recorder.requests
            assert first.endswith(b'[{"id":1}]')
            assert header(first, "producer-seq") == "0"
            assert header(first, "producer-session")
            assert header(first, "producer-epoch") is None
            producer.append({"id": 2})
    assert producer.epoch == 1
    assert values(orders) == [{"id": 1}, {"id": 2}]


# rows: D02
def test_the_first_request_of_an_async_producer_is_the_first_batch(
    recorder: Recorder, orders: Stream
) -> None:
    async def main() -> None:
        async with AsyncClient(recorder.url) as client:
            stream = client.stream(orders.path)
            async with stream.producer("p", content_type="application/json") as producer:
                await producer.append(1)

    asyncio.run(main())
    assert methods(recorder) == [f"POST /v1/stream/{orders.path}"]
    assert values(orders) == [1]


def test_a_media_type_that_is_not_known_is_requested_first(
    recorder: Recorder, orders: Stream
) -> None:
    path = f"/v1/stream/{orders.path}"
    with Client(recorder.url) as client, client.stream(orders.path).producer("p") as producer:
        producer.append(1)
    assert methods(recorder) == [f"HEAD {path}", f"POST {path}"]


def test_no_second_batch_is_sent_before_the_first_response(
    recorder: Recorder, orders: Stream
) -> None:
    options: Any = {"content_type": "application/json", "max_batch_messages": 1}
    with (
        Client(recorder.url) as client,
        client.stream(orders.path).producer("p", **options) as producer,
    ):
        recorder.lock()
        for number in range(5):
            producer.append(number)
        threading.Event().wait(0.3)
        assert len(recorder.requests) == 1
        recorder.unlock()
    assert values(orders) == list(range(5))


def test_a_wrong_media_type_is_refused_and_nothing_is_stored(orders: Stream) -> None:
    producer = orders.producer("p", content_type="text/plain")
    producer.append("a")
    with pytest.raises(errors.ContentTypeConflict):
        producer.close()
    assert values(orders) == []


@pytest.mark.parametrize("fault", ["drop_answer", "bad_gateway_after", "reset"])
def test_a_first_batch_whose_response_is_lost_is_stored_once(
    server: Server, orders: Stream, fault: str
) -> None:
    plan = FaultPlan(script=[fault, "pass", fault], only="POST /v1/stream")
    with FaultProxy(server.url, plan) as proxy, Client(proxy.url) as client:
        stream = client.stream(orders.path)
        for name in ("p", None):
            with stream.producer(name, content_type="application/json") as producer:
                producer.append(name)
            assert producer.stats.retries == producer.stats.duplicates == 1
    assert values(orders) == ["p", None]


# ---- what an earlier instance has stored ---------------------------------------------------------


# rows: P11
@pytest.mark.parametrize(("mode", "last"), [("dense", 1), ("sparse", 40)])
def test_a_new_instance_reads_the_last_sequence_before_it_sends(
    orders: Stream, mode: Any, last: int
) -> None:
    """The application of a sparse producer chooses the sequences; a dense one counts batches."""
    early = orders.producer("import", mode=mode, max_batch_messages=1)
    assert early.last_seq is None
    for seq in (30, 40):
        early.append(seq, seq=seq if mode == "sparse" else None)
    early.close()
    late = orders.producer("import", mode=mode)
    assert late.last_seq == last
    late.close()
    assert values(orders) == [30, 40]


# rows: P11, X02
def test_reading_the_cursor_claims_the_id(recorder: Recorder, orders: Stream) -> None:
    with orders.producer("import") as early:
        early.append(1, cursor="1")
    with Client(recorder.url) as client:
        late = client.stream(orders.path).producer("import", content_type="application/json")
        assert (late.cursor, late.last_seq) == ("1", 0)
        assert methods(recorder) == ["POST /v1/producers/claim"]
        late.append(2, cursor="2")
        late.close()
        assert header(recorder.requests[1], "producer-epoch") == "2"
    assert values(orders) == [1, 2]


# rows: X02
def test_a_cursor_that_is_read_after_the_first_batch_is_that_of_the_earlier_instance(
    orders: Stream,
) -> None:
    with orders.producer("import") as early:
        early.append(1, cursor="1")
    with orders.producer("import") as late:
        late.append("no cursor")
        assert late.cursor == "1"
        assert late.last_seq == 0
        late.append(2, cursor="2")
        late.flush()
        assert late.cursor == "2"
    assert values(orders) == [1, "no cursor", 2]


def test_many_threads_read_the_cursor_while_others_append(orders: Stream) -> None:
    with orders.producer("import") as early:
        early.append("early", cursor="1")
    with orders.producer("import", max_batch_messages=3) as late:
        found: list[str | None] = []
        threads = [threading.Thread(target=lambda: found.append(late.cursor)) for _ in range(5)]
        threads += [threading.Thread(target=late.append, args=(n,)) for n in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_SECONDS)
    assert found == ["1"] * 5
    assert sorted(values(orders)[1:]) == list(range(20))


def test_an_async_producer_reads_the_cursor_after_it_was_opened(
    server: Server, orders: Stream
) -> None:
    with orders.producer("import") as early:
        early.append(1, cursor="1")

    async def main() -> None:
        async with AsyncClient(server.url) as client:
            stream = client.stream(orders.path)
            async with stream.producer("import") as late:
                with pytest.raises(RuntimeError, match=r"await producer\.open\(\)"):
                    _ = late.cursor
                await late.open()
                assert (late.cursor, late.last_seq, late.epoch) == ("1", 0, 2)
                await late.append(2)
            async with stream.producer("import") as later:
                await later.append(3)
                await later.open()
                assert (later.cursor, later.last_seq) == ("1", 0)
            async with stream.producer() as unnamed:
                assert unnamed.cursor is None

    asyncio.run(main())
    assert values(orders) == [1, 2, 3]


def test_a_claim_that_is_refused_is_raised_and_the_producer_goes_on(orders: Stream) -> None:
    with orders.producer("p", mode="sparse") as sparse:
        sparse.append("sparse", seq=7)
    producer = orders.producer("p")
    with pytest.raises(errors.ProducerRefused):
        _ = producer.cursor
    producer.append("dense")
    with pytest.raises(errors.ProducerRefused):
        producer.close()
    assert values(orders) == ["sparse"]


# ---- producers without a name --------------------------------------------------------------------

WRITER = """
import os, sys, threading, semel
url, path, name = sys.argv[1:]
client = semel.Client(url)
stream = client.stream(path)

def write(name):
    with stream.producer() as producer:
        for number in range(50):
            producer.append([name, number])
            producer.flush()

if name == "fork":
    with stream.producer() as before:
        before.append(["parent", 0])
        before.flush()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                write("fork")
                code = 0
            finally:
                os._exit(code)
        write("parent")
        before.append(["parent", 50])
    assert os.waitpid(child, 0)[1] == 0
else:
    threads = [threading.Thread(target=write, args=(f"{name}-{n}",)) for n in range(3)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
client.close()
"""


# rows: P06
def test_producers_without_a_name_never_fence_each_other(server: Server, orders: Stream) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PRODUCER_ID"}
    programs = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, server.url, orders.path, name],
            env=environment,
            start_new_session=True,
        )
        for name in ("one", "two", "fork")
    ]
    try:
        assert [program.wait(PATIENCE_SECONDS * 3) for program in programs] == [0, 0, 0]
    finally:
        for program in programs:
            with suppress(ProcessLookupError):
                os.killpg(program.pid, signal.SIGKILL)
    found: dict[str, list[int]] = {}
    for name, number in values(orders):
        found.setdefault(name, []).append(number)
    writers = [f"{name}-{number}" for name in ("one", "two") for number in range(3)]
    assert {name: found[name] for name in writers} == {key: list(range(50)) for key in writers}
    assert found["fork"] == list(range(50))
    assert found["parent"] == [0, *range(50), 50]


# rows: P06, D27
def test_a_producer_has_a_name(orders: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PRODUCER_ID", raising=False)
    first, second = orders.producer(), orders.producer()
    assert first.id != second.id
    first.append(1)
    first.flush()
    assert [state.producer_id for state in orders.producers()] == [first.id]
    monkeypatch.setenv("PRODUCER_ID", "till-1")
    with orders.producer() as named:
        assert named.id == "till-1"
        named.append(2)
    assert orders.producers("till-1")[0].last_seq == 0
    first.close()
    second.close()


# ---- the end of the stream -----------------------------------------------------------------------


# rows: D41
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fault", ["pass", "drop_answer", "bad_gateway_after", "duplicate_before"])
def test_a_producer_closes_its_stream_with_its_last_message(
    server: Server, orders: Stream, kind: str, fault: str
) -> None:
    acked: list[BatchAck] = []
    plan = FaultPlan(script=["pass", fault, fault], only="POST /v1/stream")
    options: Any = {"linger_ms": 60_000, "on_batch_ack": acked.append}

    def sync(url: str) -> None:
        with Client(url) as client, client.stream(orders.path).producer("p", **options) as producer:
            producer.append(1)
            producer.flush()
            producer.append(2)
            producer.close_stream(3)
            producer.close_stream()
            with pytest.raises(errors.StreamClosed):
                producer.append(4)

    async def asynchronous(url: str) -> None:
        async with (
            AsyncClient(url) as client,
            client.stream(orders.path).producer("p", **options) as producer,
        ):
            await producer.append(1)
            await producer.flush()
            await producer.append(2)
            await producer.close_stream(3)
            await producer.close_stream()
            with pytest.raises(errors.StreamClosed):
                await producer.append(4)

    with FaultProxy(server.url, plan) as proxy:
        sync(proxy.url) if kind == "sync" else asyncio.run(asynchronous(proxy.url))
        assert proxy.counts[fault] >= 1
    assert values(orders) == [1, 2, 3]
    assert orders.head().closed
    # The last two messages and the close were one append, and it had a sequence.
    assert [(ack.count, ack.seq, ack.closed) for ack in acked] == [(1, 0, False), (2, 1, True)]
    (state,) = orders.producers("p")
    assert (state.last_seq, state.epoch) == (1, 1)


# rows: D41
@pytest.mark.parametrize("fault", ["pass", "drop_answer"])
@pytest.mark.parametrize("before", [0, 1], ids=["first", "later"])
def test_a_close_without_a_message_is_repeated_too(
    server: Server, orders: Stream, fault: str, before: int
) -> None:
    plan = FaultPlan(script=["pass"] * before + [fault], only="POST /v1/stream")
    with FaultProxy(server.url, plan) as proxy, Client(proxy.url) as client:
        with client.stream(orders.path).producer("p") as producer:
            for number in range(before):
                producer.append(number)
                producer.flush()
            producer.close_stream()
            assert orders.head().closed
        assert producer.last_seq == before
    assert values(orders) == list(range(before))


def test_the_last_message_is_appended_without_waiting_and_the_block_waits(orders: Stream) -> None:
    with orders.producer("p") as producer:
        for number in range(100):
            producer.append(number, close=number == 99)
        with pytest.raises(errors.StreamClosed):
            producer.append("late")
    assert values(orders) == list(range(100))
    assert orders.head().closed


def test_a_stream_that_another_client_has_closed(orders: Stream) -> None:
    orders.append(1)
    orders.close()
    with orders.producer("p") as producer:
        producer.close_stream()
    late = orders.producer("q")
    with pytest.raises(errors.StreamClosed):
        late.close_stream("late")
    late.close()
    assert values(orders) == [1]


def test_a_sparse_producer_may_send_all_again_and_close_again(orders: Stream) -> None:
    for _ in range(2):
        with orders.producer("file", mode="sparse") as producer:
            for number in range(10):
                producer.append(number, seq=number * 10, close=number == 9)
    assert values(orders) == list(range(10))
    assert producer.stats.messages_skipped == 10


def test_a_closed_producer_closes_no_stream(orders: Stream) -> None:
    producer = orders.producer("p")
    producer.close()
    with pytest.raises(errors.ClientClosed):
        producer.close_stream()
    assert not orders.head().closed


# ---- sequences that a sparse producer assigns ----------------------------------------------------


# rows: P08
def test_the_first_message_has_the_initial_sequence_and_each_later_one_the_next(
    orders: Stream,
) -> None:
    with orders.producer("p", mode="sparse", initial_seq=1000) as producer:
        producer.append("a")
        producer.flush()
        assert producer.last_seq == 1000
        producer.append("b")
        producer.append("c")
    assert orders.producers("p")[0].last_seq == 1002
    with orders.producer("q", mode="sparse") as producer:
        producer.append("d")
        producer.flush()
        assert producer.last_seq == 0
        producer.append("e")
    assert orders.producers("q")[0].last_seq == 1
    with orders.producer("p", mode="sparse", initial_seq=1001) as producer:
        for value in ("b", "c", "f"):
            producer.append(value)
    assert values(orders) == ["a", "b", "c", "d", "e", "f"]


# rows: P08
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", [{}, {"epoch": True}, {"auto_claim": True}], ids=str)
def test_a_restarted_sparse_producer_without_sequences_loses_no_message(
    server: Server, orders: Stream, kind: str, options: Any
) -> None:
    async def run_async(name: str, **options: Any) -> None:
        async with (
            AsyncClient(server.url) as client,
            client.stream(orders.path).producer("p", **options) as producer,
        ):
            for number in range(3):
                await producer.append([name, number])

    for epoch, name in enumerate(("first", "second", "third")):
        more = {"epoch": epoch} if "epoch" in options else options
        if kind == "async":
            asyncio.run(run_async(name, mode="sparse", **more))
            continue
        with orders.producer("p", mode="sparse", **more) as producer:
            for number in range(3):
                producer.append([name, number])
            producer.flush()
            assert producer.stats.messages_skipped == 0
    expected = [[name, number] for name in ("first", "second", "third") for number in range(3)]
    assert values(orders) == expected
    assert orders.producers("p")[0].last_seq == 8


# rows: P10
def test_sequences_of_the_application_and_assigned_ones_do_not_mix(orders: Stream) -> None:
    with orders.producer("p", mode="sparse", initial_seq=5) as producer:
        with pytest.raises(ValueError, match="with every message or with none"):
            producer.append("a", seq=5)
        producer.append("b")
    with pytest.raises(ValueError, match="only with mode='sparse'"):
        orders.producer("q", initial_seq=5)
    assert values(orders) == ["b"]


# ---- a stream that does not recognise duplicates -------------------------------------------------


def switch_off(stream: Stream) -> None:
    with closing(HTTPConnection("127.0.0.1", stream.client.transport.address.port)) as connection:
        connection.request("PATCH", stream.calls.target, headers={"Stream-Dedup": "off"})
        assert connection.getresponse().status == 204


@pytest.mark.parametrize("fault", ["drop_answer", "reset", "bad_gateway_after"])
@pytest.mark.parametrize("identity", [{}, {"epoch": 1}, {"auto_claim": True}], ids=str)
def test_without_dedup_a_lost_response_is_indeterminate_and_nothing_is_stored_twice(
    server: Server, orders: Stream, fault: str, identity: dict[str, Any]
) -> None:
    plan = FaultPlan(script=[fault], only="POST /v1/stream")
    with FaultProxy(server.url, plan) as proxy, Client(proxy.url) as client:
        producer = client.stream(orders.path).producer("p", **identity)
        switch_off(orders)
        producer.append(1)
        with pytest.raises(errors.Indeterminate, match="Stream-Dedup: off"):
            producer.flush()
        producer.close()
    assert values(orders) == [1]


def test_dedup_that_is_switched_off_under_a_producer_makes_no_copies(
    server: Server, orders: Stream
) -> None:
    plan = FaultPlan(script=["pass", "drop_answer"], only="POST /v1/stream")
    with FaultProxy(server.url, plan) as proxy, Client(proxy.url) as client:
        producer = client.stream(orders.path).producer("p")
        producer.append(1)
        producer.flush()
        switch_off(orders)
        producer.append(2)
        with pytest.raises(errors.Indeterminate):
            producer.flush()
        producer.close()
    assert values(orders) == [1, 2]
