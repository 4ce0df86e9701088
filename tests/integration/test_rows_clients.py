"""Rows of docs/reference/seeds.md that the client keeps, each with a real server process."""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from semel import Client, errors
from semel.client.producer.outcomes import BatchAck, FailedBatch
from semel.testing.fault_proxy import FaultProxy
from tests.spec.process import PATIENCE_SECONDS, Server, sound_server

JSON: Final = "application/json"
ROUND_TRIP_SECONDS: Final = 0.08
BATCHES: Final = 25
FASTER_MIN: Final = 3.5  # 4.9 on an idle machine
SETTLE_SECONDS: Final = 0.1  # in which a sixth batch would be sent
APPENDS: Final = 200
ROUNDS: Final = 5
DEDUP_COST_MAX: Final = 1.4  # 1.05 on an idle machine


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Server]:
    """A server for one test."""
    with sound_server(tmp_path / "data") as it:
        yield it


@contextmanager
def stopped(server: Server) -> Iterator[None]:
    """Stop the process of a server for a while, so that nothing is answered."""
    server.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        server.signal(signal.SIGCONT)


def eventually(is_so: Any) -> bool:
    end = time.monotonic() + PATIENCE_SECONDS
    while not is_so() and time.monotonic() < end:
        time.sleep(0.005)
    return bool(is_so())


# rows: D23
def test_every_batch_and_error_is_called_back_and_what_is_pending_is_counted(own: Server) -> None:
    acks: list[BatchAck] = []
    failures: list[tuple[errors.ClientError, FailedBatch]] = []
    with Client(own.url) as client:
        stream = client.stream("s").create(JSON)
        producer = stream.producer(
            "p",
            max_batch_messages=2,
            on_batch_ack=acks.append,
            on_error=lambda error, batch: failures.append((error, batch)),
        )
        producer.append(0)
        producer.flush()
        assert (producer.pending_count, producer.in_flight_count) == (0, 0)
        with stopped(own):
            for number in range(1, 7):
                producer.append(number)
            assert eventually(lambda: producer.in_flight_count >= 3)
            assert producer.pending_count == 6
        producer.flush()
        assert (producer.pending_count, producer.in_flight_count) == (0, 0)
        assert sum(ack.count for ack in acks) == 7
        assert [ack.seq for ack in acks] == list(range(len(acks)))
        assert acks[-1].next_offset == stream.head().next_offset
        assert failures == []
        stream.close()
        producer.append("late")
        producer.flush()
        ((error, batch),) = failures
        assert isinstance(error, errors.StreamClosed)
        assert (batch.count, batch.values) == (1, [b'"late"'])
        producer.close()


# rows: D21, D26
def test_by_default_five_batches_of_a_megabyte_are_in_flight_and_nothing_lingers(
    own: Server,
) -> None:
    half = "x" * 600_000  # two of them do not fit into a batch
    acks: list[BatchAck] = []
    with Client(own.url) as client:
        stream = client.stream("s").create(JSON)
        with stream.producer("p", on_batch_ack=acks.append) as producer:
            producer.append("first")
            assert eventually(lambda: len(acks) == 1), "it was sent at once, without a flush"
            with stopped(own):
                for _ in range(8):
                    producer.append(half)
                assert eventually(lambda: producer.in_flight_count == 5)
                time.sleep(SETTLE_SECONDS)
                assert (producer.in_flight_count, producer.pending_count) == (5, 8)
        assert [ack.count for ack in acks] == [1] * 9
        assert len(list(stream.read())) == 9


# rows: D25
def test_a_gap_that_cannot_be_closed_is_reported_as_a_gap(own: Server) -> None:
    with Client(own.url) as client:
        stream = client.stream("s").create(JSON)
        producer = stream.producer("p", epoch=0)
        producer.append(1)
        producer.flush()
        stream.delete()  # and with it the rows of the producer
        stream.create(JSON)
        producer.append(2)
        with pytest.raises(errors.SequenceGap) as gap:
            producer.flush()
        assert gap.value.expected == 0
        producer.close()


# rows: D35
def test_five_in_flight_are_five_times_as_fast_where_the_round_trip_dominates(own: Server) -> None:
    with FaultProxy(own.url, round_trip_seconds=ROUND_TRIP_SECONDS) as line:
        seconds = {count: seconds_of(line.url, count) for count in (1, 5)}
    assert seconds[1] >= BATCHES * ROUND_TRIP_SECONDS
    assert seconds[1] / seconds[5] >= FASTER_MIN, seconds


def seconds_of(url: str, max_in_flight: int) -> float:
    """Return how long the batches of one producer take with this number in flight."""
    with Client(url) as client:
        stream = client.stream("s").create(JSON, exist_ok=True)
        name = f"p-{max_in_flight}"
        with stream.producer(name, max_in_flight=max_in_flight, max_batch_messages=1) as producer:
            producer.append("connect")  # the first batch of a producer is always sent alone
            producer.flush()
            began = time.monotonic()
            for number in range(BATCHES):
                producer.append(number)
            producer.flush()
            return time.monotonic() - began


# rows: D35
def test_the_recognition_of_duplicates_costs_little(own: Server) -> None:
    on, off = own.stream("on"), own.stream("off")
    on.create()
    off.create(stream_dedup="off")
    costs: dict[str, list[int]] = {"on": [], "off": []}
    for number in range(ROUNDS):
        for path in ("on", "off"):
            costs[path].append(cpu_of_appends(own, path, number))
    assert min(costs["on"]) <= DEDUP_COST_MAX * min(costs["off"]), costs


def cpu_of_appends(server: Server, path: str, epoch: int) -> int:
    """Return the CPU time that the server needs for appends of a producer, in nanoseconds."""
    connection = server.connect()
    before = cpu_ns(server)
    for seq in range(APPENDS):
        headers = {"Producer-Id": "p", "Producer-Epoch": str(epoch), "Producer-Seq": str(seq)}
        headers["Content-Type"] = "text/plain"
        connection.request("POST", f"/v1/stream/{path}", b"x" * 100, headers)
        assert connection.getresponse().read() == b""
    connection.close()
    return cpu_ns(server) - before


def cpu_ns(server: Server) -> int:
    tasks = Path(f"/proc/{server.process.pid}/task")
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks.iterdir())
