"""Transactions, commits, groups and `process` of both clients, against a real server."""

import asyncio
import inspect
import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import semel
from semel import AsyncClient, Client, errors
from semel.model.limits import BODY_BYTES_MAX
from semel.testing.fault_plan import Action, FaultPlan
from semel.testing.fault_proxy import FaultProxy
from tests.integration.both import client_of
from tests.spec.process import PATIENCE_SECONDS, Server, offset_of
from tests.spec.txn_calls import fresh

UNCOMMITTED = "read_uncommitted"
INPUT_COUNT = 60
KILL_COUNT = 8


@pytest.fixture
def orders(client: Any) -> Any:
    return client.stream(fresh("orders")).create("application/json")


@pytest.fixture
def bills(client: Any) -> Any:
    return client.stream(fresh("bills")).create("application/json")


def values(stream: Any, **options: Any) -> list[Any]:
    return [message.value for message in stream.read(**options)]


def done(client: Any, call: Any) -> Any:
    """Return the result of a commit of a message, with either client."""
    return client.waiting(call) if inspect.iscoroutine(call) else call


# ---- transactions --------------------------------------------------------------------------------


# rows: R14, R18, R19, R20, R31, R32, R33
@pytest.mark.parametrize("style", ["inline", "staged"])
def test_a_transaction_is_seen_all_at_once(
    client: Any, orders: Any, bills: Any, style: str
) -> None:
    group = fresh("g")
    orders.append("before")
    with client.transaction(producer_id=fresh("p"), kind=style) as txn:
        txn.append(orders.path, 1)
        txn.append_many(bills.path, [2, 3], keys=["a", "b"])
        txn.append(orders.path, 4)
        txn.commit_offsets(group, {orders.path: offset_of(1)})
        assert values(orders) == ["before"]
        assert values(bills) == []
        seen = ["before", 1, 4] if style == "inline" else ["before"]
        assert values(orders, isolation=UNCOMMITTED) == seen
        assert client.group(group).offsets() == {}
        assert client.transaction_status(txn.token).state == txn.state == "open"
    assert values(orders) == ["before", 1, 4]
    assert [message.key for message in bills.read()] == [b"a", b"b"]
    assert client.group(group).offsets() == {orders.path: offset_of(1)}
    written = txn.result.streams[orders.path]
    assert (written.first_offset, written.messages) == (offset_of(1), 2)
    assert txn.result.offsets == {group: {orders.path: offset_of(1)}}
    assert txn.commit() == txn.result
    assert client.transaction_status(txn.token).state == txn.state == "committed"


# rows: R20
def test_an_exception_aborts_it(client: Any, orders: Any) -> None:
    group = fresh("g")
    with pytest.raises(KeyError), client.transaction() as txn:
        txn.append(orders.path, "never")
        txn.commit_offsets(group, {orders.path: 0})
        raise KeyError
    assert values(orders) == []
    assert client.group(group).offsets() == {}
    told = client.transaction_status(txn.token)
    assert (txn.state, told.state, told.reason) == ("aborted", "aborted", "abort")
    with pytest.raises(errors.TransactionAborted) as caught:
        txn.commit()
    assert caught.value.reason == "abort"
    with pytest.raises(errors.InvalidTransactionState, match="aborted"):
        txn.append(orders.path, "late")
    # The transaction id and the producer can be used again.
    with client.transaction(txn.id) as txn:
        txn.append(orders.path, "then")
    assert txn.epoch == 2
    assert values(orders) == ["then"]


# rows: R16, R17
def test_only_the_streams_that_were_named_are_written(client: Any, orders: Any, bills: Any) -> None:
    with client.transaction(streams=[orders.path]) as txn:
        txn.append(orders.path, 1)
        with pytest.raises(errors.PartitionNotInTransaction):
            txn.append(bills.path, 2)
        txn.add_streams(bills.path)
        txn.append(bills.path, 3)
    assert (values(orders), values(bills)) == ([1], [3])
    with pytest.raises(errors.StreamNotFound):
        client.transaction(streams=["no/such/stream"]).begin()


def test_a_transaction_that_takes_too_long_is_aborted(client: Any, orders: Any) -> None:
    with (
        pytest.raises(errors.TransactionTimedOut) as caught,
        client.transaction(timeout=0.001) as txn,
    ):
        while True:
            txn.append(orders.path, 1)
    assert caught.value.reason == "timeout"
    assert isinstance(caught.value, errors.TransactionAborted)
    assert values(orders) == []


# rows: R15
def test_an_open_transaction_is_not_joined_by_another_user_of_its_name(
    client: Any, orders: Any
) -> None:
    producer = fresh("p")
    with client.transaction(producer_id=producer) as txn:
        for other in (txn.id, fresh()):
            with pytest.raises(errors.ConcurrentTransactions) as caught:
                client.transaction(other, producer_id=producer).begin()
            assert caught.value.other == txn.id
        txn.append(orders.path, 1)
    assert values(orders) == [1]


# rows: R41, R43
def test_a_newer_instance_fences_the_older_which_does_not_take_it_back(
    kind: str, server: Server, client: Any, orders: Any
) -> None:
    producer = fresh("p")
    with client_of(kind, server.url) as newer:
        with (
            pytest.raises(errors.TransactionFenced),
            client.transaction(producer_id=producer) as txn,
        ):
            txn.append(orders.path, "old")
            with newer.transaction(producer_id=producer) as other:
                other.append(orders.path, "new")
        with pytest.raises(errors.TransactionFenced):
            client.transaction(producer_id=producer).begin()
        with newer.transaction(producer_id=producer) as other:
            other.append(orders.path, "newer")
    assert values(orders) == ["new", "newer"]


def test_a_prepared_one_is_decided_by_anybody(client: Any, orders: Any) -> None:
    producer = fresh("p")
    tokens = []
    for number in range(2):
        with client.transaction(producer_id=producer, timeout=0.5) as txn:
            txn.append(orders.path, number)
            tokens.append(txn.prepare())
            with pytest.raises(errors.InvalidTransactionState):
                txn.append(orders.path, "late")
        assert client.transaction_status(txn.token).state == "prepared"
    assert values(orders) == []
    client.abort_prepared(tokens[1])
    result = client.commit_prepared(tokens[0])
    assert client.commit_prepared(tokens[0]).streams == result.streams
    with pytest.raises(errors.TransactionCommitted):
        client.abort_prepared(tokens[0])
    with pytest.raises(errors.TransactionAborted):
        client.commit_prepared(tokens[1])
    assert values(orders) == [0]


def test_a_commit_that_is_refused_leaves_nothing_open(client: Any, orders: Any) -> None:
    with pytest.raises(errors.StreamClosed), client.transaction(kind="staged") as txn:
        txn.append(orders.path, 1)
        orders.close()
    assert txn.state == "aborted"
    assert client.transaction_status(txn.token).state == "aborted"


def test_threads_and_tasks_may_share_one(server: Server) -> None:
    path = fresh("shared")
    with Client(server.url) as client:
        stream = client.stream(path).create("application/json")
        with client.transaction() as txn:
            threads = [
                threading.Thread(target=txn.append, args=(path, number)) for number in range(8)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(PATIENCE_SECONDS)
        assert sorted(values(stream)) == list(range(8))

    async def main() -> None:
        async with AsyncClient(server.url) as client, client.transaction(kind="staged") as txn:
            await asyncio.gather(*(txn.append(path, number) for number in range(8, 16)))

    asyncio.run(main())
    with Client(server.url) as client:
        assert sorted(values(client.stream(path))) == list(range(16))


def test_a_task_that_is_cancelled_while_it_waits_to_commit_ends_at_once(server: Server) -> None:
    async def main() -> None:
        async with AsyncClient(server.url) as client:
            txn, is_busy = client.transaction(), asyncio.Event()

            async def work() -> None:
                async with txn:
                    await txn._lock.__aenter__()  # like a call of another task
                    is_busy.set()

            task = asyncio.create_task(work())
            await is_busy.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asyncio.wait_for(task, PATIENCE_SECONDS)
            await txn._lock.__aexit__()
            await txn.abort()

    asyncio.run(main())


def test_many_transactions_at_once_need_no_names(server: Server) -> None:
    path = fresh("crowd")

    async def one(client: AsyncClient, number: int) -> None:
        async with client.transaction() as txn:
            await txn.append(path, number)

    async def main() -> None:
        async with AsyncClient(server.url) as client:
            await client.stream(path).create("application/json")
            for start in (0, 8):
                await asyncio.gather(*(one(client, start + number) for number in range(8)))

    asyncio.run(main())
    with Client(server.url) as client:
        assert sorted(values(client.stream(path))) == list(range(16))
        # Ids are reused: the second eight transactions have the ids of the first eight.
        assert len(client.stream(path).producers()) <= 8


# rows: R18, R20
@pytest.mark.parametrize(
    "action", [Action.DROP_ANSWER, Action.DUPLICATE_BEFORE, Action.DROP_REQUEST]
)
def test_every_call_is_repeated_safely(kind: str, server: Server, action: Action) -> None:
    path, group = fresh("faulty"), fresh("g")
    with Client(server.url) as direct:
        stream = direct.stream(path).create("application/json")
        plan = FaultPlan(script=[action, Action.PASS] * 20)
        with FaultProxy(server.url, plan) as proxy, client_of(kind, proxy.url) as client:
            with client.transaction(producer_id=fresh("p")) as txn:
                txn.append(path, 1)
                txn.append(path, 2)
                txn.commit_offsets(group, {path: 1})
            with client.transaction(kind="staged") as txn:
                txn.append(path, 3)
            assert client.commit(producer_id=fresh("p"), seq=0, appends={path: [4]}).streams
            assert client.group(group).set({path: (1, 2)}) == {path: offset_of(2)}
        assert proxy.counts[action.value]
        assert values(stream) == [1, 2, 3, 4]
        assert direct.group(group).offsets() == {path: offset_of(2)}


def test_a_commit_without_an_answer_says_how_to_find_out(
    kind: str, server: Server, orders: Any
) -> None:
    plan = FaultPlan()
    with FaultProxy(server.url, plan) as proxy, client_of(kind, proxy.url) as client:
        txn = client.transaction()
        txn.begin()
        txn.append(orders.path, 1)
        proxy.plan = FaultPlan(script=[Action.DROP_ANSWER] * 100)
        with pytest.raises(errors.Indeterminate, match="transaction_status") as caught:
            txn.commit(timeout=0.3)
        assert caught.value.applied == "unknown"
        assert txn.state == "deciding"
        proxy.plan = FaultPlan()
        assert client.transaction_status(txn.token).state == "committed"
        assert txn.commit().streams[orders.path].messages == 1
    assert values(orders) == [1]


# ---- one-shot commits ----------------------------------------------------------------------------


def test_one_commit_does_all_or_nothing(client: Any, orders: Any, bills: Any) -> None:
    notes = client.stream(fresh("notes")).create("text/plain")
    raw = client.stream(fresh("raw")).create()
    producer, group = fresh("p"), fresh("g")
    parts: dict[str, Any] = {
        "appends": {
            orders.path: [1, b"[2]"],
            bills.path: [{"id": 3}],
            notes.path: ["text"],
            raw.path: [b"\xff\x00", b"plain"],
        },
        "offsets": {group: {orders.path: (0, 1), notes.path: 0}},
        "if_": {bills.path: 0},
    }
    result = client.commit(producer_id=producer, seq=0, **parts)
    assert not result.duplicate
    assert result.streams[orders.path].next_offset == offset_of(2)
    again = client.commit(producer_id=producer, seq=0, **parts)
    assert (again.duplicate, again.streams) == (True, result.streams)
    with pytest.raises(errors.PayloadMismatch):
        client.commit(producer_id=producer, seq=0, appends={orders.path: [4]})
    assert (values(orders), values(bills)) == ([1, [2]], [{"id": 3}])
    assert (values(notes), values(raw)) == (["text"], [b"\xff\x00", b"plain"])
    assert client.group(group).offsets() == {orders.path: offset_of(1), notes.path: offset_of(0)}
    with pytest.raises(errors.PreconditionFailed):
        client.commit(producer_id=producer, seq=1, **{**parts, "offsets": {}})
    with pytest.raises(errors.PositionConflict) as caught:
        client.commit(producer_id=producer, seq=1, **{**parts, "if_": {}})
    assert caught.value.offset == offset_of(1)
    with pytest.raises(errors.SequenceGap):
        client.commit(producer_id=producer, seq=2, appends={orders.path: ["never"]})
    with pytest.raises(errors.ProducerFenced):
        client.register_producer(producer)
        client.commit(producer_id=producer, seq=1, appends={orders.path: ["never"]})
    assert values(orders) == [1, [2]]


def test_staged_transactions_are_committed_together(client: Any, orders: Any, bills: Any) -> None:
    producer = fresh("p")
    staged = []
    for number in range(2):
        txn = client.transaction(producer_id=producer, producer_epoch=0, kind="staged")
        txn.begin()
        txn.append(orders.path, number)
        txn.append(bills.path, number)
        staged.append(txn.token)
    client.commit(producer_id=producer, seq=0, transactions=staged, appends={orders.path: ["a"]})
    assert (values(orders), values(bills)) == (["a", 0, 1], [0, 1])


# ---- groups --------------------------------------------------------------------------------------


def test_a_tail_goes_on_where_its_group_stands(client: Any, orders: Any) -> None:
    group = fresh("g")
    orders.append_many([1, 2, 3, 4])
    with orders.tail(group=group) as tail:
        first, second, third = next(tail), next(tail), next(tail)
        assert client.group(group).offsets() == {}
        done(client, second.commit())
        done(client, first.commit())  # already committed with the second
        assert third.value == 3
    assert client.group(group).offsets() == {orders.path: offset_of(2)}
    with orders.tail(group=group) as tail, orders.tail(group=group) as rival:
        message, same = next(tail), next(rival)
        assert message.value == same.value == 3
        done(client, same.commit())
        with pytest.raises(errors.PositionConflict):
            done(client, message.commit())
    assert client.group(group).set({orders.path: 0}) == {orders.path: offset_of(0)}
    with orders.tail(group=group) as tail:
        assert next(tail).value == 1
    with orders.tail(offset_of(3), group=fresh("g")) as tail:
        assert next(tail).value == 4
    with pytest.raises(ValueError, match="sse"):
        orders.tail(group=group, live="sse")


def test_a_tail_passes_what_is_aborted_and_waits_for_what_is_open(client: Any, orders: Any) -> None:
    with pytest.raises(KeyError), client.transaction() as txn:
        txn.append(orders.path, "aborted")
        raise KeyError
    orders.append("plain")
    with orders.tail() as tail, orders.tail(live="sse") as pushed:
        assert next(tail).value == next(pushed).value == "plain"
        with client.transaction() as txn:
            txn.append(orders.path, "open")
            orders.append("behind")
            assert values(orders) == ["plain"]
        assert [next(tail).value, next(tail).value] == ["open", "behind"]
        assert [next(pushed).value, next(pushed).value] == ["open", "behind"]


# ---- processing ----------------------------------------------------------------------------------


# rows: R40
def test_inputs_are_processed_once_and_a_second_run_finds_nothing(
    client: Any, orders: Any, bills: Any
) -> None:
    group = fresh("g")

    def run(**options: Any) -> Any:
        def double(batch: Any) -> Any:
            return {bills.path: [message.value * 2 for message in batch]}

        return client.process(group, [orders.path], double, live=False, **options)

    orders.append_many(list(range(10)))
    with client.transaction() as txn:
        txn.append(orders.path, 10)
        assert run(max_messages=3) == 10
    assert (run(), run()) == (1, 0)
    assert values(bills) == [number * 2 for number in range(11)]
    # The position of the group is also after the control record of the transaction.
    assert client.group(group).offsets() == {orders.path: offset_of(12)}


def test_several_inputs_are_processed_until_they_are_closed(
    client: Any, orders: Any, bills: Any
) -> None:
    outs = client.stream(fresh("outs")).create("application/json")
    orders.append_many([1, 2])
    bills.append(3)
    orders.close()
    bills.close()
    made = client.process(
        fresh("g"),
        [orders.path, bills.path],
        lambda batch: {outs.path: [[batch.stream, each.value] for each in batch]},
    )
    assert made == 3
    assert sorted(values(outs)) == sorted([[orders.path, 1], [orders.path, 2], [bills.path, 3]])


def test_what_the_function_raises_leaves_no_trace(client: Any, orders: Any, bills: Any) -> None:
    group = fresh("g")
    orders.append_many([1, 0])

    def invert(batch: Any) -> Any:
        return {bills.path: [1 // message.value for message in batch]}

    with pytest.raises(ZeroDivisionError):
        client.process(group, orders.path, invert, live=False)
    assert values(bills) == []
    with pytest.raises(ZeroDivisionError):
        client.process(group, orders.path, invert, live=False, max_messages=1)
    assert values(bills) == [1]
    assert client.group(group).offsets() == {orders.path: offset_of(1)}


def test_a_function_may_be_awaited(server: Server) -> None:
    async def main() -> list[Any]:
        async with AsyncClient(server.url) as client:
            source = await client.stream(fresh("in")).create("application/json", body=1)
            target = await client.stream(fresh("out")).create("application/json")

            async def double(batch: Any) -> Any:
                await asyncio.sleep(0)
                return {target.path: [message.value * 2 for message in batch]}

            assert await client.process("g", source.path, double, live=False) == 1
            return [message.value async for message in target.read()]

    assert asyncio.run(main()) == [2]


# rows: R40, R41
@pytest.mark.parametrize("is_same", [True, False])
def test_two_instances_cannot_both_make_progress(
    kind: str, server: Server, client: Any, orders: Any, bills: Any, is_same: bool
) -> None:
    group = fresh("g")
    orders.append_many([1, 2])
    rivals = []

    def copy(batch: Any) -> Any:
        return {bills.path: [message.value for message in batch]}

    def overtaken(batch: Any) -> Any:
        # During this call another instance starts and processes everything.
        name = None if is_same else fresh("p")
        with client_of("sync", server.url) as other:
            rivals.append(other.process(group, orders.path, copy, live=False, producer_id=name))
        return copy(batch)

    expected = errors.TransactionFenced if is_same else errors.PositionConflict
    if kind == "sync":
        with pytest.raises(expected):
            client.process(group, orders.path, overtaken, live=False)
    else:
        with pytest.raises(expected):
            client.process(
                group, orders.path, lambda batch: asyncio.to_thread(overtaken, batch), live=False
            )
    assert rivals == [2]
    assert values(bills) == [1, 2]


def test_outputs_larger_than_one_commit_are_made_of_fewer_inputs(
    client: Any, orders: Any, bills: Any
) -> None:
    group = fresh("g")
    orders.append_many(range(16))
    sizes = []

    def swell(batch: Any) -> Any:
        sizes.append(len(batch))
        return {bills.path: [str(each.value) * (BODY_BYTES_MAX // 40) for each in batch] * 5}

    assert client.process(group, orders.path, swell, live=False) == 16
    assert sizes[0] == 16
    assert len(sizes) < 16
    assert {each[0] for each in values(bills)} <= set("0123456789")
    assert len(values(bills)) == 16 * 5
    orders.append("too much")

    def burst(_batch: Any) -> Any:
        return {bills.path: ["x" * BODY_BYTES_MAX]}

    with pytest.raises(errors.TooLarge, match="too large for one commit"):
        client.process(group, orders.path, burst, live=False)
    assert client.group(group).offsets() == {orders.path: offset_of(16)}


# rows: R40
def test_an_input_made_anew_while_it_is_processed_is_not_skipped(
    kind: str, server: Server, client: Any, orders: Any, bills: Any
) -> None:
    group = fresh("g")
    orders.append_many([1, 2])

    def replaced(batch: Any) -> Any:
        with client_of("sync", server.url) as other:
            stream = other.stream(orders.path)
            stream.delete()
            stream.create("application/json").append_many([3, 4])
        return {bills.path: [message.value for message in batch]}

    def work(batch: Any) -> Any:
        return replaced(batch) if kind == "sync" else asyncio.to_thread(replaced, batch)

    with pytest.raises(errors.PositionConflict) as caught:
        client.process(group, orders.path, work, live=False)
    assert caught.value.incarnation == orders.head().incarnation
    assert (values(bills), client.group(group).offsets()) == ([], {})
    copied = client.process(
        group, orders.path, lambda batch: {bills.path: [each.value for each in batch]}, live=False
    )
    assert (copied, values(bills)) == (2, [3, 4])


# rows: R41
def test_a_message_of_a_stream_that_is_gone_moves_no_group(client: Any, orders: Any) -> None:
    group = fresh("g")
    orders.append(1)
    with orders.tail(group=group) as tail:
        message = next(tail)
        orders.delete()
        orders.create("application/json").append("new")
        with pytest.raises(errors.PositionConflict):
            done(client, message.commit())
    assert client.group(group).offsets() == {}


WORKER = """
import sys
import semel
url, group, source, target, kind = sys.argv[1:]
def double(batch):
    return {target: [message.value * 2 for message in batch]}
if kind == "sync":
    with semel.Client(url) as client:
        client.process(group, source, double, max_messages=3)
else:
    import asyncio
    async def main():
        async with semel.AsyncClient(url) as client:
            await client.process(group, source, double, max_messages=3)
    asyncio.run(main())
"""


# rows: R40
def test_a_worker_killed_again_and_again_does_each_input_once(
    kind: str, server: Server, tmp_path: Path
) -> None:
    """A short test; the long one kills at random moments, and kills the server too."""
    chance = random.Random(7)
    source, target, group = fresh("in"), fresh("out"), fresh("g")
    worker = tmp_path / "worker.py"
    worker.write_text(WORKER)
    command = [sys.executable, str(worker), server.url, group, source, target, kind]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with Client(server.url) as client:
        inputs = client.stream(source).create("application/json")
        outputs = client.stream(target).create("application/json")
        seen = 0
        for number in range(KILL_COUNT):
            inputs.append_many(range(number * INPUT_COUNT, (number + 1) * INPUT_COUNT))
            process = subprocess.Popen(command, env=environment)
            # Kill the worker after a part of its inputs, at any point.
            seen += chance.randrange(1, INPUT_COUNT)
            with outputs.tail(timeout=PATIENCE_SECONDS) as tail:
                for _ in range(seen):
                    next(tail)
            process.send_signal(signal.SIGKILL)
            process.wait(PATIENCE_SECONDS)
            seen = len(values(outputs))
        inputs.close()
        subprocess.run(command, env=environment, check=True, timeout=PATIENCE_SECONDS)
        assert values(outputs) == [each * 2 for each in range(KILL_COUNT * INPUT_COUNT)]
        assert client.group(group).offsets() == {source: inputs.head().next_offset}


def test_the_words_are_where_people_look_for_them() -> None:
    assert issubclass(semel.errors.TransactionTimedOut, semel.errors.TransactionAborted)
    for name in ("PositionConflict", "CheckpointDiverged", "InvalidTransactionState"):
        assert issubclass(getattr(semel.errors, name), semel.errors.Refused)
