"""The producers against a real server: confirmed messages are stored once and in order."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from semel import AsyncClient, Client
from semel.client import errors
from semel.client.producer.opening import ProducerOptions
from semel.client.producer.outcomes import BatchAck, FailedBatch
from semel.client.sync.stream import Stream
from semel.model.limits import RECEIPTS_DEFAULT
from semel.testing import FaultPlan, FaultProxy
from tests.integration.both import KINDS, client_of
from tests.spec.process import PATIENCE_SECONDS, Server


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.url) as it:
        yield it


def values(stream: Stream) -> list[Any]:
    return [message.value for message in stream.read()]


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def fence(stream: Stream, producer_id: str) -> None:
    """Fence the producer by a second instance."""
    with stream.producer(producer_id) as rival:
        rival.append("rival")


# ---- without failures ------------------------------------------------------------------------


# rows: D22, D23
def test_messages_are_stored_in_order_when_the_block_ends(orders: Stream) -> None:
    with orders.producer("p") as producer:
        for number in range(1000):
            producer.append({"id": number})
        assert producer.pending_count > 0
    assert values(orders) == [{"id": number} for number in range(1000)]
    assert producer.pending_count == 0
    assert producer.in_flight_count == 0
    assert producer.epoch == 1
    assert producer.id == "p"


# rows: D22, D23
def test_flush_waits_for_all_so_far(orders: Stream) -> None:
    acked: list[BatchAck] = []
    with orders.producer("p", on_batch_ack=acked.append) as producer:
        producer.append([1, 2])
        producer.append(b'{"ready": true}')
        producer.flush()
        assert values(orders) == [[1, 2], {"ready": True}]
        assert sum(ack.count for ack in acked) == 2
        assert acked[-1].next_offset == orders.head().next_offset
        assert [ack.seq for ack in acked] == list(range(len(acked)))


# rows: X28
def test_sixteen_threads_share_one_producer_and_lose_nothing(orders: Stream) -> None:
    count = 500
    with orders.producer("p", max_batch_messages=50) as producer:

        def work(thread: int) -> None:
            for number in range(count):
                producer.append([thread, number])

        threads = [threading.Thread(target=work, args=(number,)) for number in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    found = values(orders)
    assert len(found) == 16 * count
    for thread_number in range(16):
        assert [n for t, n in found if t == thread_number] == list(range(count))


def test_byte_messages_keep_their_bounds(server: Server, client: Client) -> None:
    stream = client.stream(server.stream().path).create()
    with stream.producer("p", linger_ms=20) as producer:
        for number in range(100):
            producer.append(b"%d" % number)
    assert [message.raw for message in stream.read()] == [b"%d" % n for n in range(100)]


def test_what_no_stream_can_hold_is_refused_before_it_spoils_a_batch(
    server: Server, client: Client, orders: Stream
) -> None:
    deep = "[" * 65 + "]" * 65
    stream = client.stream(server.stream().path).create()
    with orders.producer("p") as producer, stream.producer("p") as plain:
        for wrong in (b"1,2", b"", b"{", deep.encode()):
            with pytest.raises(ValueError, match="cannot store this message as JSON"):
                producer.append(wrong)
        with pytest.raises(errors.TooLarge):
            producer.append("x" * (4 * 1024 * 1024))
        with pytest.raises(TypeError):
            producer.append(object())
        with pytest.raises(ValueError, match="empty"):
            plain.append(b"")
        with pytest.raises(TypeError):
            plain.append({"a": 1})
        producer.append("fine")
    assert values(orders) == ["fine"]


# rows: D21
def test_lingering_makes_one_batch_of_what_comes_apart(orders: Stream) -> None:
    acked: list[BatchAck] = []
    with orders.producer("p", linger_ms=60_000, on_batch_ack=acked.append) as producer:
        for number in range(10):
            producer.append(number)
        assert not acked
    assert [ack.count for ack in acked] == [10]


def test_a_message_too_large_for_any_batch_goes_alone(orders: Stream) -> None:
    acked: list[BatchAck] = []
    options: Any = {"max_batch_bytes": 100, "linger_ms": 60_000, "on_batch_ack": acked.append}
    with orders.producer("p", **options) as producer:
        for value in ("a", "b" * 1000, "c"):
            producer.append(value)
    assert [ack.count for ack in acked] == [1, 1, 1]


# rows: D26
def test_append_waits_while_too_much_is_pending(orders: Stream) -> None:
    held = threading.Event()
    acked: list[BatchAck] = []

    def hold(ack: BatchAck) -> None:
        acked.append(ack)
        assert held.wait(PATIENCE_SECONDS)

    with orders.producer("p", max_pending_bytes=10, on_batch_ack=hold) as producer:
        appended = []

        def work() -> None:
            for number in range(100):
                producer.append(number + 1_000_000)
                appended.append(number)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join(0.3)
        assert thread.is_alive()
        assert len(appended) < 100
        held.set()
        thread.join(PATIENCE_SECONDS)
        assert len(appended) == 100
    assert len(values(orders)) == 100


def test_a_callback_may_append_but_not_flush(orders: Stream) -> None:
    raised: list[BaseException] = []

    def echo(ack: BatchAck) -> None:
        if ack.seq == 0:
            producer.append("echo")
            try:
                producer.flush()
            except RuntimeError as error:
                raised.append(error)

    with orders.producer("p", max_pending_bytes=1, on_batch_ack=echo) as producer:
        producer.append("call")
        producer.flush()
    assert values(orders) == ["call", "echo"]
    assert len(raised) == 1


def test_a_callback_that_fails_stops_nothing(
    orders: Stream, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(ack: BatchAck) -> None:
        raise ValueError("my own fault")

    with orders.producer("p", on_batch_ack=fail) as producer:
        producer.append(1)
    assert values(orders) == [1]
    assert "my own fault" in caplog.text


def test_a_callback_cannot_end_the_thread_all_producers_share(
    orders: Stream, caplog: pytest.LogCaptureFixture
) -> None:
    def leave(ack: BatchAck) -> None:
        sys.exit(1)

    with orders.producer("p", on_batch_ack=leave) as producer:
        producer.append(1)
        producer.flush(PATIENCE_SECONDS)
    assert values(orders) == [1]
    assert "SystemExit" in caplog.text


def test_an_option_that_does_not_exist_is_refused(orders: Stream) -> None:
    with pytest.raises(TypeError, match="max_inflight"):
        orders.producer("p", max_inflight=1)  # type: ignore[call-arg]


FORGETFUL = """
import sys, semel
producer = semel.Client(sys.argv[1]).stream(sys.argv[2]).producer("p")
for number in range(1000):
    producer.append(number)
"""


def test_a_program_that_forgets_to_close_still_delivers(server: Server, orders: Stream) -> None:
    with FaultProxy(server.url, FaultPlan({"delay": 1.0}, delay_seconds=0.2)) as proxy:
        command = [sys.executable, "-c", FORGETFUL, proxy.url, orders.path]
        ended = subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE_SECONDS)
    assert values(orders) == list(range(1000))
    assert not ended.stderr


def test_a_program_that_forgets_to_close_is_told_what_is_lost(
    server: Server, orders: Stream
) -> None:
    plan = FaultPlan({"drop_request": 1.0}, only="POST")
    with FaultProxy(server.url, plan) as proxy:
        command = [sys.executable, "-c", FORGETFUL, proxy.url, orders.path]
        ended = subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE_SECONDS)
    assert b"1000 messages are not acknowledged" in ended.stderr


# A separate program: after an error in a fork, the child must not continue as a second pytest.
FORKING = """
import os, sys, semel

def refused(call, *arguments):
    try:
        call(*arguments)
    except RuntimeError:
        return 1
    return 0

def ports():
    return [line.line.getsockname()[1] for line in client.driver._pool._idle]

client = semel.Client(sys.argv[1])
orders = client.stream(sys.argv[2])
with orders.producer("p") as producer:
    producer.append("parent")
    producer.flush()
    before = ports()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            count = refused(producer.append, 1) + refused(producer.append, 1)
            count += refused(producer.flush)
            orders.append("child")
            print("refused", count, "own", not set(ports()) & set(before), flush=True)
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    producer.append("parent again")
print("had", len(before), "ended", status)
"""


def test_a_fork_refuses_its_parents_producer_and_makes_its_own_connections(
    server: Server, orders: Stream
) -> None:
    command = [sys.executable, "-c", FORKING, server.url, orders.path]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as program:
        try:
            said, _ = program.communicate(timeout=PATIENCE_SECONDS)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(program.pid, signal.SIGKILL)  # including a fork that hangs
    assert said.splitlines() == ["refused 3 own True", "had 1 ended 0"]
    assert values(orders) == ["parent", "child", "parent again"]


# ---- retries and restarts --------------------------------------------------------------------


# rows: D01, D28, P20, X19
def test_a_killed_server_costs_neither_a_message_nor_a_copy(tmp_path: Path) -> None:
    server = Server(tmp_path / "data")
    try:
        with Client(server.url) as client:
            stream = client.stream("orders").create("application/json")
            acked: list[BatchAck] = []
            some = threading.Event()

            def count(ack: BatchAck) -> None:
                acked.append(ack)
                some.set()

            with stream.producer("p", max_batch_messages=20, on_batch_ack=count) as producer:
                for round_number in range(3):
                    some.clear()
                    for number in range(2000):
                        producer.append([round_number, number])
                    assert some.wait(PATIENCE_SECONDS)
                    server.kill()
                    server = Server(tmp_path / "data", port=server.port)
            found = values(stream)
            assert found == [[turn, number] for turn in range(3) for number in range(2000)]
            assert sum(ack.count for ack in acked) == 6000
            assert producer.stats.retries > 0
    finally:
        server.kill()


# rows: D11, D25, P07, X13
def test_a_restarted_producer_takes_the_next_epoch_and_fences_the_old_one(orders: Stream) -> None:
    first = orders.producer("p")
    first.append(1)
    first.flush()
    second = orders.producer("p")
    second.append(2)
    second.flush()
    assert (first.epoch, second.epoch) == (1, 2)
    first.append(3)
    with pytest.raises(errors.ProducerFenced) as caught:
        first.flush()
    assert caught.value.current_epoch == 2
    with pytest.raises(errors.ProducerFenced):
        first.append(4)
    first.close()  # the error was raised before
    second.append(5)
    second.close()
    assert values(orders) == [1, 2, 5]


def test_a_declared_epoch_is_used_and_a_lower_one_is_fenced(orders: Stream) -> None:
    with orders.producer("p", epoch=7) as producer:
        producer.append(1)
    assert producer.epoch == 7
    with pytest.raises(errors.ProducerFenced), orders.producer("p", epoch=6) as late:
        late.append(2)
    assert values(orders) == [1]


# rows: D24
def test_the_same_epoch_again_with_the_same_messages_is_a_duplicate(orders: Stream) -> None:
    acked: list[BatchAck] = []
    for _ in range(2):
        with orders.producer("p", epoch=1, on_batch_ack=acked.append) as producer:
            producer.append("once")
    assert values(orders) == ["once"]
    assert [ack.duplicate for ack in acked] == [False, True]
    assert acked[0].next_offset == acked[1].next_offset


# rows: D37
def test_the_same_epoch_again_with_other_messages_is_fatal(orders: Stream) -> None:
    with orders.producer("p", epoch=1) as producer:
        producer.append("first")
    with pytest.raises(errors.PayloadMismatch), orders.producer("p", epoch=1) as other:
        other.append("second")
    assert values(orders) == ["first"]


# rows: D40
def test_the_same_epoch_again_never_has_a_message_swallowed(orders: Stream) -> None:
    with orders.producer("p", epoch=1, max_batch_messages=1) as first:
        first.append("start")
        for number in range(2 * RECEIPTS_DEFAULT):
            first.append(["old", number])
    acked: list[BatchAck] = []
    again = orders.producer("p", epoch=1, max_batch_messages=1, on_batch_ack=acked.append)
    again.append("start")
    again.flush()
    again.append("new")
    with pytest.raises(errors.Indeterminate, match="higher epoch"):
        again.flush()
    assert [ack.seq for ack in acked] == [0]


def test_a_request_sent_twice_on_the_way_is_stored_once_under_a_claim(
    server: Server, orders: Stream
) -> None:
    plan = FaultPlan(script=["duplicate_before"], only="POST /v1/stream")
    with FaultProxy(server.url, plan) as proxy, Client(proxy.url) as client:
        with client.stream(orders.path).producer("p", auto_claim=True) as producer:
            producer.append(1)
        assert plan.draw() == "pass", "the plan was not carried out"
    assert values(orders) == [1]


def test_auto_claim_takes_the_epoch_above(orders: Stream) -> None:
    for number in range(3):
        with orders.producer("p", auto_claim=True) as producer:
            producer.append(number)
        assert producer.epoch == number + 1
    assert values(orders) == [0, 1, 2]


# rows: P09, P11, X02
def test_a_sparse_producer_resumes_by_the_places_in_its_file(
    orders: Stream, tmp_path: Path
) -> None:
    file = tmp_path / "input"
    file.write_bytes(b"".join(b"line %d\n" % number for number in range(300)))

    def send(lines: int) -> None:
        producer = orders.producer("file", mode="sparse", max_batch_messages=7)
        with file.open("rb") as source, producer:
            for _ in range(lines):
                place = source.tell()
                producer.append(source.readline().decode().strip(), seq=place)

    send(100)
    send(250)
    send(300)
    assert values(orders) == [f"line {number}" for number in range(300)]


def test_a_late_request_of_an_earlier_sparse_instance_makes_no_copy(orders: Stream) -> None:
    old = orders.producer("file", mode="sparse")
    old.append("one", seq=1)
    old.flush()
    new = orders.producer("file", mode="sparse")
    old.append("two", seq=2)
    with pytest.raises(errors.ProducerFenced):
        old.flush()
    for seq, value in enumerate(("one", "two", "three"), start=1):
        new.append(value, seq=seq)
    new.close()
    assert values(orders) == ["one", "two", "three"]


def test_a_sequence_below_the_window_fails_and_says_that_it_may_be_stored(orders: Stream) -> None:
    """An epoch of its own: the producer does not know what another one stores after its start."""
    late = orders.producer("p", mode="sparse", epoch=1)
    with orders.producer("p", mode="sparse", epoch=1, max_batch_messages=1) as other:
        for seq in (10, *range(100, 101 + RECEIPTS_DEFAULT)):
            other.append(seq, seq=seq)
    late.append("never stored", seq=99)
    with pytest.raises(errors.SequenceExpired, match="not known whether") as caught:
        late.flush()
    error = caught.value
    assert (error.applied, error.last_seq, error.expired_seq) == ("unknown", 164, 100)
    assert "look for the messages in the stream" in error.advice
    assert "never stored" not in values(orders)
    with pytest.raises(errors.SequenceExpired):
        late.append("more", seq=200)


# rows: P09, X02
@pytest.mark.parametrize("options", [{}, {"auto_claim": True}], ids=["session", "auto_claim"])
def test_a_request_that_was_under_way_while_a_cursor_was_read_makes_no_copy(
    server: Server, orders: Stream, options: ProducerOptions
) -> None:
    plan = FaultPlan(script=["pass", "delay"], only="POST /v1/stream", delay_seconds=1.0)
    with FaultProxy(server.url, plan) as proxy, Client(proxy.url) as far:
        old = far.stream(orders.path).producer("import", **options)
        old.append(1, cursor="1")
        old.flush()
        old.append(2, cursor="2")  # its last request is delayed in the network
        wait_until(lambda: proxy.counts["delay"] == 1)
        new = orders.producer("import", **options)
        assert new.cursor is not None
        rest = range(int(new.cursor) + 1, 4)
        with suppress(errors.ProducerFenced):
            old.flush()  # now the request has arrived
        for number in rest:
            new.append(number, cursor=str(number))
        new.close()
    assert values(orders) == [1, 2, 3]


def test_an_instance_that_opens_and_does_not_write_leaves_the_cursor_to_the_next(
    orders: Stream,
) -> None:
    with orders.producer("import") as first:
        first.append(1, cursor="1")
    for epoch in (2, 3):
        idle = orders.producer("import")
        assert (idle.cursor, idle.last_seq, idle.epoch) == ("1", 0, epoch)
        idle.close()
    with orders.producer("import") as last:
        last.append(2, cursor="2")
    assert values(orders) == [1, 2]


# rows: P10
def test_sparse_and_dense_numbers_do_not_mix(orders: Stream) -> None:
    with orders.producer("p", mode="sparse") as sparse:
        sparse.append(1, seq=10)
        with pytest.raises(ValueError, match="with every message or with none"):
            sparse.append(1)
        with pytest.raises(ValueError, match="above 10"):
            sparse.append(1, seq=10)
    with orders.producer("q") as dense, pytest.raises(ValueError, match="sequences itself"):
        dense.append(1, seq=0)
    with pytest.raises(errors.ProducerRefused), orders.producer("p") as other:
        other.append(2)


def test_a_cursor_is_known_to_this_producer_at_least(orders: Stream) -> None:
    with orders.producer("p") as producer:
        producer.append(1, cursor="file.csv:120")
        producer.append(2, cursor="file.csv:240")
        producer.flush()
        assert producer.cursor == "file.csv:240"


# ---- errors ----------------------------------------------------------------------------------


def test_a_missing_stream_is_named_when_the_producer_is_made(
    server: Server, client: Client
) -> None:
    with pytest.raises(errors.StreamNotFound):
        client.stream(server.stream().path).producer("p")


def test_a_stream_deleted_under_a_producer_is_fatal(orders: Stream) -> None:
    producer = orders.producer("p")
    orders.delete()
    producer.append(1)
    with pytest.raises(errors.StreamNotFound, match=orders.path):
        producer.close()


# rows: D23
@pytest.mark.parametrize("identity", [{}, {"epoch": 1}, {"auto_claim": True}], ids=str)
def test_a_stream_that_recognises_no_duplicates_is_fatal(
    orders: Stream, identity: dict[str, Any]
) -> None:
    connection = HTTPConnection("127.0.0.1", orders.client.transport.address.port)
    with closing(connection):
        connection.request("PATCH", orders.calls.target, headers={"Stream-Dedup": "off"})
        assert connection.getresponse().status == 204
    with pytest.raises(errors.ProtocolError, match="Stream-Dedup"):
        producer = orders.producer("p", **identity)
        producer.append(1)
        producer.flush()
    # Without a request before the first batch, the response to that batch shows it.
    assert len(list(orders.read())) == (not identity)


def test_a_stream_that_recognises_duplicates_no_longer_is_fatal(orders: Stream) -> None:
    producer = orders.producer("p")
    orders.set_dedup(False)
    producer.append(1)
    with pytest.raises(errors.ProtocolError, match="Stream-Dedup"):
        producer.flush()


def test_a_stream_that_recognises_duplicates_from_its_next_append_on_is_written_to(
    orders: Stream,
) -> None:
    orders.set_dedup(False)
    assert orders.set_dedup(None).dedup_pending is True
    with orders.producer("p") as producer:
        producer.append(1)
    assert orders.head().dedup
    assert orders.producers()[0].last_seq == 0


def test_what_would_happen_is_told_for_sparse_numbers_too(orders: Stream) -> None:
    with orders.producer("p", mode="sparse", linger_ms=1000) as producer:
        producer.append("a", seq=3)
        producer.append("b", seq=5)
    assert orders.explain("p", "3-5", mode="sparse")["outcome"] == "duplicate"
    assert orders.explain("p", 9, mode="sparse", session="new")["outcome"] == "ok"


def test_a_closed_stream_fails_every_batch_and_on_error_is_told_of_each(orders: Stream) -> None:
    failed: list[tuple[errors.ClientError, FailedBatch]] = []
    options: Any = {"max_batch_messages": 2, "on_error": lambda *told: failed.append(told)}
    with orders.producer("p", **options) as producer:
        producer.append(1)
        producer.flush()
        orders.close()
        for number in (2, 3, 4):
            try:
                producer.append(number)
            except errors.StreamClosed:
                failed.append((errors.StreamClosed(""), FailedBatch(1, [b"%d" % number])))
        producer.flush()  # on_error has been called
        with pytest.raises(errors.StreamClosed):
            producer.append(5)
    assert all(isinstance(error, errors.StreamClosed) for error, _ in failed)
    assert [raw for _, batch in failed for raw in batch.values] == [b"2", b"3", b"4"]
    assert {batch.applied for _, batch in failed} == {"no"}
    assert values(orders) == [1]


def test_an_error_inside_the_block_is_not_masked_and_messages_are_still_sent(
    orders: Stream,
) -> None:
    with pytest.raises(ZeroDivisionError), orders.producer("p") as producer:
        producer.append(1)
        raise ZeroDivisionError
    assert values(orders) == [1]
    with pytest.raises(ZeroDivisionError), orders.producer("p") as fenced:
        fenced.append(2)
        fenced.flush()
        fence(orders, "p")
        fenced.append(3)
        raise ZeroDivisionError


def test_an_error_ends_the_block_if_nothing_else_does(orders: Stream) -> None:
    with pytest.raises(errors.ProducerFenced), orders.producer("p") as producer:
        producer.append(1)
        producer.flush()
        fence(orders, "p")
        producer.append(2)


def test_flush_ends_by_its_timeout_and_the_messages_are_still_sent(tmp_path: Path) -> None:
    server = Server(tmp_path / "data")
    try:
        with Client(server.url) as client:
            stream = client.stream("orders").create("application/json")
            producer = stream.producer("p")
            server.kill()
            producer.append(1)
            with pytest.raises(errors.Indeterminate, match="1 messages"):
                producer.flush(timeout=0.1)
            assert producer.pending_count == 1
            server = Server(tmp_path / "data", port=server.port)
            producer.close()
            assert values(stream) == [1]
    finally:
        server.kill()


def test_close_gives_up_after_its_timeout_and_says_so(tmp_path: Path) -> None:
    server = Server(tmp_path / "data")
    try:
        with Client(server.url) as client:
            failed: list[FailedBatch] = []
            stream = client.stream("orders").create("application/json")
            quiet = stream.producer("p", on_error=lambda error, batch: failed.append(batch))
            loud = stream.producer("q")
            server.kill()
            quiet.append(1)
            loud.append(2)
            quiet.close(timeout=0.1)
            assert [batch.values for batch in failed] == [[b"1"]]
            assert failed[0].applied == "no"
            with pytest.raises(errors.Indeterminate):
                loud.close(timeout=0.1)
            with pytest.raises(errors.ClientError):
                loud.append(3)
    finally:
        server.kill()


def test_a_server_that_stays_away_is_given_up_after_the_delivery_timeout(tmp_path: Path) -> None:
    server = Server(tmp_path / "data")
    with Client(server.url) as client:
        stream = client.stream("orders").create("application/json")
        producer = stream.producer("p", delivery_timeout=0.3)
        server.kill()
        producer.append(1)
        with pytest.raises(errors.Unavailable, match="cannot be reached"):
            producer.flush()


@pytest.mark.parametrize("kind", KINDS)
def test_a_client_without_a_limit_closes_its_producers(
    kind: str, server: Server, orders: Stream
) -> None:
    with client_of(kind, server.url, timeout=None) as client:
        producer = client.stream(orders.path).producer("unlimited", linger_ms=60_000)
        producer.append(1)
    assert [message.value for message in orders.read()] == [1]


def test_a_closed_producer_takes_no_more(orders: Stream) -> None:
    producer = orders.producer("p")
    producer.close()
    producer.close()
    with pytest.raises(errors.ClientClosed):
        producer.append(1)


# ---- async -----------------------------------------------------------------------------------


def test_the_async_producer_stores_in_order(server: Server, orders: Stream) -> None:
    acked: list[BatchAck] = []

    async def main() -> None:
        async with AsyncClient(server.url) as client:
            stream = client.stream(orders.path)
            async with stream.producer("p", on_batch_ack=acked.append) as producer:
                for number in range(500):
                    await producer.append(number)
                await producer.flush()
                assert sum(ack.count for ack in acked) == 500
                await producer.append(500)
            lazy = stream.producer("q", max_pending_bytes=10)
            for number in range(501, 600):
                await lazy.append(number)
            await lazy.close()
            await lazy.close()
            await stream.producer("unused").close()
            await stream.producer("unused").flush()

    asyncio.run(main())
    assert values(orders) == list(range(600))


def test_the_async_producer_survives_a_kill(tmp_path: Path) -> None:
    async def main() -> list[Any]:
        server = Server(tmp_path / "data")
        try:
            async with AsyncClient(server.url) as client:
                stream = client.stream("orders")
                await stream.create("application/json")
                async with stream.producer("p", max_batch_messages=20) as producer:
                    for number in range(1000):
                        await producer.append(number)
                        if number == 500:
                            await asyncio.sleep(0.01)
                            server.kill()
                            server = Server(tmp_path / "data", port=server.port)
                return [message.value async for message in stream.read()]
        finally:
            server.kill()

    assert asyncio.run(main()) == list(range(1000))


def test_a_close_that_was_cancelled_may_be_made_again(server: Server, orders: Stream) -> None:
    async def scene() -> None:
        async with AsyncClient(server.url) as client:
            producer = await client.stream(orders.path).producer("p").open()
            for number in range(1000):
                await producer.append(number)
            closing = asyncio.create_task(producer.close())
            await asyncio.sleep(0)
            closing.cancel()
            await asyncio.wait([closing])
            assert closing.cancelled()
            await producer.close()
            assert producer.pending_count == 0

    asyncio.run(scene())
    assert values(orders) == list(range(1000))


def test_the_async_producer_raises_what_went_wrong(server: Server, orders: Stream) -> None:
    async def main() -> None:
        async with AsyncClient(server.url) as client:
            stream = client.stream(orders.path)
            with pytest.raises(errors.ProducerFenced):
                async with stream.producer("p") as producer:
                    await producer.append(1)
                    await producer.flush()
                    await asyncio.to_thread(fence, orders, "p")
                    await producer.append(2)
            with pytest.raises(errors.ProducerFenced):
                await producer.append(3)
            with pytest.raises(errors.StreamNotFound):
                await client.stream(server.stream().path).producer("p").append(1)

    asyncio.run(main())


def test_the_async_producer_gives_up_in_time(tmp_path: Path) -> None:
    async def main() -> None:
        server = Server(tmp_path / "data")
        async with AsyncClient(server.url) as client:
            stream = client.stream("orders")
            await stream.create("application/json")
            producer = await stream.producer("p").open()
            server.kill()
            await producer.append(1)
            with pytest.raises(errors.Indeterminate):
                await producer.flush(timeout=0.1)
            with pytest.raises(errors.Indeterminate):
                await producer.close(timeout=0.1)

    asyncio.run(main())
