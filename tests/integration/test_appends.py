"""Plain appends of the client: they share requests, and a lost response is safe."""

import asyncio
import json
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pytest

from semel import AsyncClient, Client, errors
from semel.client.append_queue import AppendQueue
from semel.client.sync.stream import Stream
from semel.testing import FaultPlan, FaultProxy, local
from tests.integration.both import client_of
from tests.integration.recorder import Recorder, eventually, forwarding
from tests.spec.process import PATIENCE_SECONDS, Server

CONCURRENT: Final = 1_000
REQUESTS_MAX: Final = 20
ROUND_TRIP_SECONDS: Final = 0.02
THREADS: Final = 8
JSON: Final = "application/json"
POST: Final = "POST /v1/stream"
# Faults after which it is unknown whether the server has stored the append.
FAULTS: Final = {
    "drop_request": 0.03,
    "drop_answer": 0.06,
    "reset": 0.03,
    "cut_answer": 0.03,
    "bad_gateway_before": 0.03,
    "bad_gateway_after": 0.06,
    "duplicate_before": 0.03,
    "duplicate_after": 0.03,
    "stale": 0.03,
}


@pytest.fixture
def proxy(server: Server) -> Iterator[FaultProxy]:
    with FaultProxy(server.url) as it:
        yield it


def values(stream: Any) -> list[Any]:
    return [message.value for message in stream.read()]


def post_count(proxy: FaultProxy, run: Callable[[], object]) -> int:
    """Return how many requests the proxy got while `run` ran."""
    before = proxy.counts["requests"]
    run()
    return int(proxy.counts["requests"] - before)


def in_threads(count: int, work: Callable[[int], Any]) -> list[Any]:
    """Run `work` in threads that begin at the same moment. Return the results in order."""
    barrier = threading.Barrier(count)

    def begin(index: int) -> Any:
        barrier.wait()
        return work(index)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(begin, range(count)))


class Held:
    """A stream whose next append is held by the proxy, while others are called."""

    def __init__(self, proxy: FaultProxy, stream: Stream, seconds: float = 0.5) -> None:
        self.stream = stream
        self._proxy = proxy
        self._pool = ThreadPoolExecutor(16)
        self._seconds = seconds

    def __enter__(self) -> "Held":
        self._proxy.plan = FaultPlan(script=["delay"], only=POST, delay_seconds=self._seconds)
        before = self._proxy.counts["requests"]
        self.first = self.call("first")
        assert eventually(lambda: self._proxy.counts["requests"] > before)
        return self

    def __exit__(self, *error: object) -> None:
        self._pool.shutdown()
        self._proxy.plan = FaultPlan()

    def call(self, value: Any, **options: Any) -> "Future[Any]":
        """Append in another thread, and wait until the append is in the queue."""
        queue = self._queue
        before = 0 if queue is None else queue.waiting_count
        future = self._pool.submit(self.stream.append, value, **options)
        if queue is not None:
            assert eventually(lambda: queue.waiting_count > before or future.done())
        return future

    @property
    def _queue(self) -> Any:
        lanes = self.stream.client.appender._lanes._lanes
        lane = lanes.get(self.stream.calls.target)
        return None if lane is None or lane.queue.is_idle else lane.queue


@pytest.fixture
def held(proxy: FaultProxy, request: pytest.FixtureRequest) -> Iterator[Held]:
    with Client(proxy.url) as client:
        stream = client.stream(request.node.name).create(JSON)
        stream.append("before")
        with Held(proxy, stream) as it:
            yield it


# ---- appends share requests ----------------------------------------------------------------------


# rows: D45
def test_a_thousand_appends_of_threads_take_few_requests(server: Server) -> None:
    # The round trip of a network. The threads need about 0.1 s until all of them have begun.
    with (
        FaultProxy(server.url, round_trip_seconds=ROUND_TRIP_SECONDS) as proxy,
        Client(proxy.url) as client,
    ):
        stream = client.stream("threads").create(JSON)
        receipts: list[Any] = []
        count = post_count(proxy, lambda: receipts.extend(in_threads(CONCURRENT, stream.append)))
        stored = {message.value: message.next_offset for message in stream.read()}
    assert count <= REQUESTS_MAX
    assert stored == {number: receipt.next_offset for number, receipt in enumerate(receipts)}


# rows: D45
def test_a_thousand_appends_of_tasks_take_few_requests(proxy: FaultProxy) -> None:
    async def run() -> None:
        async with AsyncClient(proxy.url) as client:
            stream = await client.stream("tasks").create(JSON)
            before = proxy.counts["requests"]
            receipts = await asyncio.gather(*[stream.append(n) for n in range(CONCURRENT)])
            assert proxy.counts["requests"] - before <= REQUESTS_MAX
            stored = [message async for message in stream.read()]
        assert [message.value for message in stored] == list(range(CONCURRENT))
        assert [message.next_offset for message in stored] == [
            receipt.next_offset for receipt in receipts
        ]

    asyncio.run(run())


def test_streams_of_one_path_share_requests_and_extras_ride_along(proxy: FaultProxy) -> None:
    async def run() -> None:
        async with AsyncClient(proxy.url) as client:
            stream = await client.stream("extras").create("text/plain")
            before = proxy.counts["requests"]
            await asyncio.gather(
                *[client.stream("extras").append(f"p{n}") for n in range(50)],
                *[stream.append(f"k{n}", key=f"key{n}") for n in range(50)],
                *[stream.append_many(["a", "b"], headers=[{"h": "v"}, None]) for _ in range(50)],
            )
            assert proxy.counts["requests"] - before <= REQUESTS_MAX
            found = [message async for message in stream.read()]
        assert [message.key for message in found[50:100]] == [b"key%d" % n for n in range(50)]
        assert [message.headers for message in found[100:102]] == [[("h", b"v")], []]
        assert len(found) == 200

    asyncio.run(run())


def test_appends_keep_the_order_of_the_calls_over_all_threads(held: Held) -> None:
    futures = [held.call(number) for number in range(10)]
    assert [future.result().next_offset for future in futures] == sorted(
        future.result().next_offset for future in futures
    )
    assert values(held.stream) == ["before", "first", *range(10)]


def test_an_append_with_a_condition_waits_for_those_before_it_and_goes_alone(held: Held) -> None:
    one = held.call(1)
    tail = f"{3:016d}"
    alone = held.call(2, if_match=f"{0:016d}_{tail}")
    last = held.call(3)
    assert alone.result().next_offset > one.result().next_offset
    assert last.result().next_offset > alone.result().next_offset
    assert values(held.stream) == ["before", "first", 1, 2, 3]


@pytest.mark.parametrize(
    "options", [{"seq": "a"}, {"idempotency_key": "k"}, {"close": True}], ids=str
)
def test_what_has_an_option_of_its_own_shares_no_request(
    held: Held, proxy: FaultProxy, options: dict[str, Any]
) -> None:
    before = proxy.counts["requests"]
    one, alone, last = held.call(1), held.call(2, **options), held.call(3)
    assert one.result().next_offset < alone.result().next_offset
    if "close" in options:
        assert isinstance(last.exception(), errors.StreamClosed)
    else:
        assert alone.result().next_offset < last.result().next_offset
    assert proxy.counts["requests"] - before == 3
    expected = ["before", "first", 1, 2, *([] if "close" in options else [3])]
    assert values(held.stream) == expected


def test_another_server_than_semel_gets_each_append_in_a_plain_request_of_its_own(
    server: Server,
) -> None:
    """The recorder removes the headers by which the client recognises semel."""
    forward = forwarding(server.port)

    def as_another_server(request: bytes) -> bytes:
        head, _, body = forward(request).partition(b"\r\n\r\n")
        lines = [line for line in head.split(b"\r\n") if b"incarnation" not in line.lower()]
        return b"\r\n".join([*lines, b"", body])

    stream = server.stream()
    stream.create(content_type=JSON)
    with Recorder(as_another_server) as recorder, Client(recorder.url) as client:
        other = client.stream(stream.path)
        assert other.head().incarnation is None
        recorder.requests.clear()
        in_threads(THREADS, other.append)
        posts = recorder.requests
        assert len(posts) == THREADS
        assert not any(b"producer-" in post.lower() for post in posts)
    assert sorted(json.loads(stream.text)) == list(range(THREADS))


def test_a_shared_body_that_is_too_large_is_sent_again_one_by_one(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with (
        local(tmp_path / "data", body_bytes_max=1_000) as server,
        FaultProxy(server.url) as proxy,
        Client(proxy.url) as client,
    ):
        stream = client.stream(request.node.name).create(JSON)
        stream.append("before")
        with Held(proxy, stream) as held:
            good = ["a" * 400, "b" * 400, "c" * 400]
            futures = [held.call(value) for value in good]
            too_large = held.call("d" * 2_000)
            last = held.call("last")
            assert isinstance(too_large.exception(), errors.TooLarge)
            for future in (*futures, last):
                future.result()
        assert values(stream) == ["before", "first", *good, "last"]


def test_a_lost_response_without_numbers_is_indeterminate_for_every_caller(
    proxy: FaultProxy, request: pytest.FixtureRequest
) -> None:
    with Client(proxy.url, retry_appends=False) as client:
        stream = client.stream(request.node.name).create(JSON)
        stream.append("before")
        with Held(proxy, stream) as held:
            proxy.plan = FaultPlan(script=["drop_answer"], only=POST)
            before = proxy.counts["requests"]
            futures = [held.call(number) for number in range(3)]
            found = [future.exception() for future in futures]
        assert all(isinstance(error, errors.Indeterminate) for error in found)
        assert len(set(map(id, found))) == 3
        assert proxy.counts["requests"] - before == 1
        assert values(stream) == ["before", "first", 0, 1, 2]


def test_a_stream_that_was_closed_refuses_each_caller_with_its_own_exception(held: Held) -> None:
    closing = held.call("last", close=True)
    futures = [held.call(number) for number in range(5)]
    assert closing.result().closed
    found = [future.exception() for future in futures]
    assert all(isinstance(error, errors.StreamClosed) for error in found)
    assert len(set(map(id, found))) == 5


def test_only_the_append_that_the_server_cannot_store_fails(held: Held) -> None:
    deep: Any = 1
    for _ in range(100):
        deep = [deep]
    good = [held.call(number) for number in range(3)]
    guilty = held.call(deep)
    more = held.call(3)
    assert isinstance(guilty.exception(), errors.BadRequest)
    for future in (*good, more):
        future.result()
    assert values(held.stream) == ["before", "first", 0, 1, 2, 3]


def test_bytes_that_are_no_json_value_cannot_change_their_neighbours(held: Held) -> None:
    parts = [held.call(b'{"a":1'), held.call(b'"b":2}'), held.call(b"1"), held.call(5)]
    assert [type(part.exception()) for part in parts] == [
        errors.BadRequest,
        errors.BadRequest,
        type(None),
        type(None),
    ]
    assert values(held.stream) == ["before", "first", 1, 5]


def test_what_cannot_be_encoded_is_raised_at_once(held: Held) -> None:
    with pytest.raises(TypeError):
        held.stream.append(object())
    with pytest.raises(errors.TooLarge):
        held.stream.append("x" * 5_000_000)
    assert not held.first.done()


# ---- timeouts, cancellation, close, fork ---------------------------------------------------------


def test_a_timeout_ends_one_wait_and_no_other(held: Held) -> None:
    impatient = held.call("impatient", timeout=0.1)
    patient = held.call("patient")
    error = impatient.exception()
    assert isinstance(error, errors.Unavailable)  # it was not sent
    assert not held.first.done()
    patient.result()
    assert values(held.stream) == ["before", "first", "patient"]


def test_a_cancelled_task_ends_its_wait_and_no_other(proxy: FaultProxy) -> None:
    async def run() -> None:
        async with AsyncClient(proxy.url) as client:
            stream = await client.stream("cancelled").create(JSON)
            await stream.append("before")
            proxy.plan = FaultPlan(script=["delay"], only=POST, delay_seconds=0.3)
            first = asyncio.create_task(stream.append("first"))
            await asyncio.sleep(0.05)
            queued = [asyncio.create_task(stream.append(n)) for n in range(3)]
            await asyncio.sleep(0)
            queued[1].cancel()
            await asyncio.gather(first, queued[0], queued[2])
            assert queued[1].cancelled()
            proxy.plan = FaultPlan(script=["delay"], only=POST, delay_seconds=0.3)
            sending = asyncio.create_task(stream.append("sending"))
            await asyncio.sleep(0.05)
            waiting = asyncio.create_task(stream.append("waiting"))
            await asyncio.sleep(0)
            sending.cancel()
            await waiting
            found = [message.value async for message in stream.read()]
        assert [value for value in found if value != "sending"] == [
            "before",
            "first",
            0,
            2,
            "waiting",
        ]

    asyncio.run(run())


def test_a_task_in_a_shared_request_can_be_cancelled(proxy: FaultProxy) -> None:
    async def run() -> None:
        async with AsyncClient(proxy.url) as client:
            stream = await client.stream("shared").create(JSON)
            await stream.append("before")
            proxy.plan = FaultPlan(script=["delay", "delay"], only=POST, delay_seconds=0.2)
            first = asyncio.create_task(stream.append("first"))
            await asyncio.sleep(0.05)
            shared = [asyncio.create_task(stream.append(n)) for n in range(5)]
            await first
            await asyncio.sleep(0.05)
            shared[4].cancel()  # it has the latest deadline
            impatient = asyncio.create_task(stream.append("late", timeout=0.05))
            await asyncio.gather(*shared[:4])
            with pytest.raises(errors.Unavailable):
                await impatient
            found = [message.value async for message in stream.read()]
        assert found == ["before", "first", 0, 1, 2, 3, 4]

    asyncio.run(run())


def test_a_client_can_be_used_in_another_event_loop(proxy: FaultProxy) -> None:
    client = AsyncClient(proxy.url)

    async def run(value: int) -> None:
        stream = client.stream("loops")
        await stream.create(JSON, exist_ok=True)
        await stream.append(value)
        for connection in client.driver._pool._idle:
            connection.close()
        await asyncio.sleep(0)

    asyncio.run(run(0))
    asyncio.run(run(1))
    with Client(proxy.url) as reader:
        assert values(reader.stream("loops")) == [0, 1]


def test_when_the_sending_thread_is_interrupted_another_one_sends(
    held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    appender = held.stream.client.appender
    run = appender._driver.run
    interrupted = threading.Event()

    def interrupt_once(flow: Any, timeout: float) -> Any:
        result = run(flow, timeout)
        if not interrupted.is_set():
            interrupted.set()
            raise KeyboardInterrupt  # the request is stored, and the thread has no response
        return result

    futures = [held.call(number) for number in range(5)]
    monkeypatch.setattr(appender._driver, "run", interrupt_once)
    found = Counter(type(future.exception()) for future in futures)
    assert found == {type(None): 4, KeyboardInterrupt: 1}
    assert values(held.stream) == ["before", "first", *range(5)]


def test_close_sends_what_is_queued(held: Held) -> None:
    futures = [held.call(number) for number in range(5)]
    client = held.stream.client
    client.close()
    assert all(future.done() for future in futures) or eventually(
        lambda: all(future.done() for future in futures)
    )
    for future in futures:
        future.result()
    with pytest.raises(errors.ClientClosed):
        held.stream.append("late")


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_begins_with_an_empty_queue_and_a_producer_of_its_own(
    held: Held,
) -> None:
    queued = held.call("of the parent")
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            held.stream.append("of the child", timeout=PATIENCE_SECONDS)
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    assert status == 0
    queued.result()
    assert Counter(values(held.stream)) == Counter(
        ["before", "first", "of the parent", "of the child"]
    )


# ---- lost responses ------------------------------------------------------------------------------


# rows: D46
@pytest.mark.parametrize("fault", ["drop_answer", "bad_gateway_after", "reset", "cut_answer"])
def test_an_append_whose_response_is_lost_is_stored_once(
    kind: str, proxy: FaultProxy, fault: str
) -> None:
    with client_of(kind, proxy.url) as client:
        stream = client.stream(f"lost-{kind}-{fault}").create(JSON)
        proxy.plan = FaultPlan(script=["pass", fault, "pass", fault], only=POST)
        for number in range(4):
            receipt = stream.append(number)
            assert not receipt.duplicate
        assert values(stream) == [0, 1, 2, 3]
        assert proxy.dropped_after_commit >= 2


def test_with_the_switch_off_a_lost_response_is_indeterminate(kind: str, proxy: FaultProxy) -> None:
    with client_of(kind, proxy.url, retry_appends=False) as client:
        stream = client.stream(f"off-{kind}").create(JSON)
        proxy.plan = FaultPlan(script=["drop_answer"], only=POST)
        with pytest.raises(errors.Indeterminate):
            stream.append(1)
        assert values(stream) == [1]
        assert stream.producers() == []


def test_in_a_stream_without_dedup_a_lost_response_is_indeterminate(
    kind: str, proxy: FaultProxy, server: Server
) -> None:
    with client_of(kind, proxy.url) as client:
        path = f"no-dedup-{kind}"
        assert server.stream(path).put(content_type=JSON, stream_dedup="off").status == 201
        proxy.plan = FaultPlan(script=["drop_answer"], only=POST)
        with pytest.raises(errors.Indeterminate):
            client.stream(path).append(1)
        assert values(client.stream(path)) == [1]


def test_after_a_timeout_a_late_copy_of_the_request_is_refused(
    kind: str, proxy: FaultProxy
) -> None:
    with client_of(kind, proxy.url) as client:
        stream = client.stream(f"late-{kind}").create(JSON)
        stream.append("before")
        proxy.plan = FaultPlan(script=["delay"], only=POST, delay_seconds=0.5)
        with pytest.raises(errors.Indeterminate):
            stream.append("late", timeout=0.1)  # the proxy holds it, and delivers it later
        stream.append("after")
        time.sleep(0.7)
        assert values(stream) == ["before", "after"]


def test_a_stream_that_was_deleted_and_created_again_gets_the_appends_of_the_same_client(
    kind: str, proxy: FaultProxy
) -> None:
    with client_of(kind, proxy.url) as client:
        stream = client.stream(f"again-{kind}").create(JSON)
        for number in range(3):
            stream.append(number)
        stream.delete()
        with pytest.raises(errors.StreamNotFound):
            stream.append("nowhere")
        stream.create("text/plain")
        stream.append("text")
        assert values(stream) == ["text"]


def test_a_condition_is_definite_after_a_lost_response(kind: str, proxy: FaultProxy) -> None:
    with client_of(kind, proxy.url) as client:
        stream = client.stream(f"condition-{kind}").create(JSON)
        end = stream.append(0).next_offset
        proxy.plan = FaultPlan(script=["drop_answer", "drop_request"], only=POST)
        assert stream.append(1, if_match=end).next_offset > end
        with pytest.raises(errors.PreconditionFailed):
            stream.append(2, if_match=end)
        proxy.plan = FaultPlan(script=["drop_answer"], only=POST)
        assert stream.append(3, close=True).closed
        assert values(stream) == [0, 1, 3]


# ---- the producers of plain appends --------------------------------------------------------------


def test_the_producer_of_plain_appends_expires_and_is_retired_on_close(
    kind: str, server: Server
) -> None:
    path = f"lives-{kind}"
    with Client(server.url) as operator:
        orders = operator.stream(path).create(JSON)
        with client_of(kind, server.url) as client:
            client.stream(path).append(1)
            (alive,) = orders.producers()
            assert (alive.state, alive.expires) == ("expiring", 600)
            entries = server.ask("GET", f"/v1/producers?stream={path}").json["producers"]
            assert entries[0]["producer_id"].startswith("append-")
        (ended,) = orders.producers()
        assert (ended.state, ended.producer_id) == ("retired", alive.producer_id)


def test_two_clients_append_to_one_stream_without_fencing_each_other(
    kind: str, server: Server
) -> None:
    with client_of(kind, server.url) as one, client_of(kind, server.url) as two:
        stream = one.stream(f"two-{kind}").create(JSON)
        other = two.stream(f"two-{kind}")
        for number in range(3):
            stream.append(number)
            other.append(number)
        assert values(stream) == [0, 0, 1, 1, 2, 2]
        assert len(stream.producers()) == 2


def test_an_expired_producer_is_replaced_and_nothing_is_lost(kind: str, server: Server) -> None:
    with client_of(kind, server.url) as client, Client(server.url) as operator:
        stream = client.stream(f"forgotten-{kind}").create(JSON)
        for number in range(3):
            stream.append(number)
        (state,) = stream.producers()
        operator.stream(stream.path).forget_producer(state.producer_id)
        stream.append(3)  # the server no longer has the sequence before it
        assert values(stream) == [0, 1, 2, 3]


# ---- many appends, many faults, kill -9 ----------------------------------------------------------


def append_until(stop: threading.Event, stream: Stream, name: int, stored: list[str]) -> None:
    number = 0
    while not stop.is_set():
        value = f"{name}-{number}"
        stream.append(value, timeout=60)
        stored.append(value)
        number += 1


async def append_all(url: str, path: str, tasks: int, count: int) -> list[str]:
    async with AsyncClient(url) as client:
        stream = client.stream(path)

        async def work(name: int) -> list[str]:
            found = []
            for number in range(count):
                value = f"task{name}-{number}"
                await stream.append(value, timeout=60)
                found.append(value)
            return found

        found = await asyncio.gather(*[work(name) for name in range(tasks)])
    return [value for each in found for value in each]


def test_thousands_of_appends_with_faults_and_kills_are_stored_once(tmp_path: Path) -> None:
    with local(tmp_path / "data") as server, FaultProxy(server.url) as proxy:
        server.stream("many").create(JSON)
        proxy.plan = FaultPlan(FAULTS, only=POST, seed=7)
        stop = threading.Event()
        stored: list[str] = []
        with Client(proxy.url) as client, ThreadPoolExecutor(THREADS + 1) as pool:
            stream = client.stream("many")
            threads = [
                pool.submit(append_until, stop, stream, name, stored) for name in range(THREADS)
            ]
            tasks = pool.submit(lambda: asyncio.run(append_all(proxy.url, "many", 50, 40)))
            try:
                for _ in range(3):
                    goal = len(stored) + 300
                    assert eventually(lambda goal=goal: len(stored) > goal)  # type: ignore[misc]
                    server.kill()
                    server.restart()
                stored += tasks.result(PATIENCE_SECONDS)
            finally:
                stop.set()
            for thread in threads:
                thread.result(PATIENCE_SECONDS)
        found = Counter(values(server.stream("many")))
        assert proxy.dropped_after_commit > 20
    assert len(stored) > 2_500
    assert found == Counter(stored)


# ---- interruptions and errors of callers ---------------------------------------------------------


def test_an_interruption_while_a_result_is_recorded_does_not_stop_the_stream(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    pass_turn = AppendQueue._pass_turn

    def interrupted(queue: AppendQueue) -> None:
        monkeypatch.setattr(AppendQueue, "_pass_turn", pass_turn)
        raise KeyboardInterrupt

    with Client(server.url) as client:
        stream = client.stream(server.stream().path).create("application/json")
        stream.append(0)
        monkeypatch.setattr(AppendQueue, "_pass_turn", interrupted)
        with pytest.raises(KeyboardInterrupt):
            stream.append(1)
        stream.append(2)
        assert [message.value for message in stream.read()] == [0, 1, 2]


class Uncopied(Exception):
    """An exception that `copy` cannot copy."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(f"{one} {two}")


def test_an_error_of_the_token_function_is_raised_to_every_caller(server: Server) -> None:
    is_failing = threading.Event()

    def token() -> str:
        time.sleep(0.02)
        if is_failing.is_set():
            raise Uncopied("no", "token")
        return "token"

    with Client(server.url, token=token) as client, ThreadPoolExecutor(6) as pool:
        stream = client.stream(server.stream().path).create("application/json")
        stream.append(0)
        is_failing.set()
        callers = [pool.submit(stream.append, number) for number in range(6)]
        found = [caller.exception() for caller in callers]
        assert [type(error) for error in found] == [Uncopied] * 6
        # Closing the client would need a token to retire its producer. It is left to expire.


def test_tasks_get_the_error_of_the_token_function(server: Server) -> None:
    calls = 0

    async def token() -> str:
        nonlocal calls
        calls += 1
        await asyncio.sleep(0.005)
        if calls > 2:  # the creation and the first append
            raise Uncopied("no", "token")
        return "token"

    async def run() -> None:
        async with AsyncClient(server.url, token=token) as client:
            stream = client.stream(server.stream().path)
            await stream.create("application/json")
            await stream.append(0)
            tasks = [asyncio.create_task(stream.append(number)) for number in range(6)]
            found = await asyncio.gather(*tasks, return_exceptions=True)
            assert {type(error) for error in found} == {Uncopied}
            assert calls < 12

    asyncio.run(run())
