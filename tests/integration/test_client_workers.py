"""Workers that share a group, with default settings of both clients, against a real server."""

import asyncio
import inspect
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest

from semel import AsyncClient, Client, errors
from semel.client.group_calls import group_page
from tests.integration.both import client_of
from tests.spec.process import Server, offset_of
from tests.spec.txn_calls import fresh

COUNT = 15


@pytest.fixture
def other(kind: str, server: Server) -> Iterator[Any]:
    with client_of(kind, server.url) as it:
        yield it


@pytest.fixture
def group() -> str:
    return fresh("g")


@pytest.fixture
def inputs(client: Any) -> str:
    path = fresh("in")
    client.stream(path).create("application/json").append_many(range(COUNT))
    return path


@pytest.fixture
def outputs(client: Any) -> str:
    path = fresh("out")
    client.stream(path).create("application/json")
    return path


def values(client: Any, path: str) -> list[Any]:
    return [message.value for message in client.stream(path).read()]


def done(client: Any, call: Any) -> Any:
    """Return the result of a commit of a message, with either client."""
    return client.waiting(call) if inspect.iscoroutine(call) else call


def batch(client: Any, path: str, group: str, count: int, **options: Any) -> list[Any]:
    with client.stream(path).tail(group=group, **options) as tail:
        return [next(tail) for _ in range(count)]


def versions(server: Server, group: str) -> dict[str, int]:
    with Client(server.url) as client:
        return client.run(group_page(client.site, group)).versions


def commit(
    client: Any, messages: list[Any], outputs: str, group: str, inputs: str, way: str
) -> None:
    """Commit one output for each message, and the group's position after the last one."""
    if way == "one-shot":
        client.commit(
            producer_id=fresh("p"),
            seq=0,
            appends={outputs: [message.value for message in messages]},
            offsets={group: {inputs: messages[-1].next_offset}},
        )
        return
    with client.transaction(kind="staged" if way == "staged" else "inline") as txn:
        txn.append_many(outputs, [message.value for message in messages])
        if way == "message":
            txn.commit_message(messages[-1])
        else:
            txn.commit_offsets(group, {inputs: messages[-1].next_offset})
        if way == "prepared":
            client.commit_prepared(txn.prepare())


WAYS = ("offsets", "message", "staged", "prepared", "one-shot")


# ---- two workers ---------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
def test_two_workers_at_the_defaults_commit_every_input_once(
    client: Any, other: Any, inputs: str, outputs: str, group: str, way: str
) -> None:
    mine, theirs = batch(client, inputs, group, 10), batch(other, inputs, group, COUNT)
    commit(client, mine, outputs, group, inputs, way)
    with pytest.raises(errors.PositionConflict) as caught:
        commit(other, theirs, outputs, group, inputs, way)
    assert (caught.value.offset, caught.value.version) == (offset_of(10), 1)
    assert caught.value.applied == "no"
    assert "tail(group=...)" in caught.value.advice
    rest = batch(other, inputs, group, COUNT - 10)
    commit(other, rest, outputs, group, inputs, way)
    assert values(client, outputs) == list(range(COUNT))
    assert client.group(group).offsets() == {inputs: offset_of(COUNT)}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("counts", [(10, 10), (10, 15), (15, 10)])
def test_threads_of_one_client_are_workers_of_their_own(
    server: Server, way: str, counts: tuple[int, int]
) -> None:
    group, inputs, outputs = fresh("g"), fresh("in"), fresh("out")
    barrier = threading.Barrier(2)
    refused: list[errors.PositionConflict] = []

    def work(count: int, is_first: bool) -> None:
        messages = batch(client, inputs, group, count)
        barrier.wait(30)
        if not is_first:
            barrier.wait(30)
        try:
            commit(client, messages, outputs, group, inputs, way)
        except errors.PositionConflict as error:
            refused.append(error)
        if is_first:
            barrier.wait(30)

    with Client(server.url) as client:
        client.stream(inputs).create("application/json").append_many(range(COUNT))
        client.stream(outputs).create("application/json")
        threads = [
            threading.Thread(target=work, args=(count, not number))
            for number, count in enumerate(counts)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(refused) == 1
        assert values(client, outputs) == list(range(counts[0]))


def test_tasks_of_one_client_are_workers_of_their_own(server: Server) -> None:
    group, inputs, outputs = fresh("g"), fresh("in"), fresh("out")

    async def work(client: AsyncClient, turn: asyncio.Event, after: asyncio.Event) -> str:
        async with client.stream(inputs).tail(group=group) as tail:
            # A wait with a timeout runs in its own task.
            messages = [await asyncio.wait_for(anext(tail), 30) for _ in range(10)]
        await turn.wait()
        try:
            async with client.transaction() as txn:
                await txn.append_many(outputs, [message.value for message in messages])
                move = txn.commit_offsets(group, {inputs: messages[-1].next_offset or 0})
                await asyncio.wait_for(move, 30)
        except errors.PositionConflict as error:
            return error.code
        finally:
            after.set()
        return "committed"

    async def both() -> tuple[list[str], list[Any]]:
        async with AsyncClient(server.url) as client:
            await client.stream(inputs).create("application/json")
            await client.stream(inputs).append_many(range(COUNT))
            await client.stream(outputs).create("application/json")
            first, second = asyncio.Event(), asyncio.Event()
            tasks = [
                asyncio.create_task(work(client, first, second)),
                asyncio.create_task(work(client, second, asyncio.Event())),
            ]
            await asyncio.sleep(0)
            first.set()
            ends = list(await asyncio.gather(*tasks))
            return ends, [message.value async for message in client.stream(outputs).read()]

    ends, found = asyncio.run(both())
    assert ends == ["committed", "position_conflict"]
    assert found == list(range(10))


@pytest.mark.parametrize(
    ("way", "source"),
    [
        *((way, "tail") for way in WAYS),
        *((way, "read") for way in WAYS if way != "message"),
    ],
)
def test_two_batches_of_one_thread_are_told_apart(
    client: Any, inputs: str, outputs: str, group: str, way: str, source: str
) -> None:
    def take(count: int) -> list[Any]:
        if source == "read":
            return list(client.stream(inputs).read(limit=count))
        return batch(client, inputs, group, count)

    longer, shorter = take(COUNT), take(10)
    commit(client, shorter, outputs, group, inputs, way)
    with pytest.raises(errors.PositionConflict):
        commit(client, longer, outputs, group, inputs, way)
    assert values(client, outputs) == list(range(10))
    rest = batch(client, inputs, group, 5)
    commit(client, rest, outputs, group, inputs, way)
    assert values(client, outputs) == list(range(COUNT))


def test_a_thread_pool_may_read_in_one_place_and_commit_in_another(
    server: Server,
) -> None:
    group, inputs, outputs = fresh("g"), fresh("in"), fresh("out")
    with Client(server.url) as client, ThreadPoolExecutor(3) as pool:
        client.stream(inputs).create("application/json").append_many(range(COUNT))
        client.stream(outputs).create("application/json")

        def read(count: int) -> list[Any]:
            return pool.submit(batch, client, inputs, group, count).result()

        def store(messages: list[Any], way: str) -> None:
            pool.submit(commit, client, messages, outputs, group, inputs, way).result()

        for way in WAYS:
            longer, shorter = read(3), read(2)
            store(shorter, way)
            with pytest.raises(errors.PositionConflict):
                store(longer, way)
        assert values(client, outputs) == list(range(2 * len(WAYS)))


def test_a_number_is_committed_only_if_one_reader_can_be_meant(
    client: Any, inputs: str, group: str
) -> None:
    batch(client, inputs, group, 3)
    with client.transaction() as txn:
        txn.commit_offsets(group, {inputs: 3})
    batch(client, inputs, group, 3)
    with pytest.raises(ValueError, match="commit_message"), client.transaction() as txn:
        txn.commit_offsets(group, {inputs: 6})
    with client.transaction() as txn:
        txn.commit_offsets(group, {inputs: (3, 6)})
    assert client.group(group).offsets() == {inputs: offset_of(6)}


def test_a_worker_that_never_asked_is_refused_once_the_group_was_moved(
    client: Any, other: Any, inputs: str, outputs: str, group: str
) -> None:
    read = list(client.stream(inputs).read(limit=3))
    commit(client, read, outputs, group, inputs, "offsets")
    again = list(other.stream(inputs).read(limit=5))
    with pytest.raises(errors.PositionConflict):
        commit(other, again, outputs, group, inputs, "offsets")
    at = other.group(group).offsets()[inputs]
    with other.transaction() as txn:
        txn.append(outputs, "told")
        txn.commit_offsets(group, {inputs: (at, 4)})
    with other.transaction() as txn:
        txn.append(outputs, "known")
        txn.commit_offsets(group, {inputs: 5})  # after the last move of this client
    assert values(client, outputs) == [0, 1, 2, "told", "known"]


def test_to_look_at_a_group_does_not_change_what_a_reader_was_told(
    client: Any, other: Any, inputs: str, outputs: str, group: str
) -> None:
    mine, theirs = batch(client, inputs, group, 10), batch(other, inputs, group, COUNT)
    commit(client, mine, outputs, group, inputs, "offsets")
    assert other.group(group).offsets() == {inputs: offset_of(10)}
    with pytest.raises(errors.PositionConflict):
        commit(other, theirs, outputs, group, inputs, "offsets")


# ---- deleted inputs, rewinds ---------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
def test_an_input_that_was_made_anew_is_another_one(
    client: Any, other: Any, inputs: str, outputs: str, group: str, way: str
) -> None:
    mine, theirs = batch(client, inputs, group, 10), batch(other, inputs, group, 10)
    commit(client, mine, outputs, group, inputs, way)
    client.stream(inputs).delete()
    client.stream(inputs).create("application/json").append_many(range(COUNT))
    with pytest.raises(errors.PositionConflict) as caught:
        commit(other, theirs, outputs, group, inputs, way)
    assert caught.value.reason == "incarnation"
    assert values(client, outputs) == list(range(10))


def test_who_only_read_is_told_apart_from_the_stream_made_anew_too(
    client: Any, other: Any, inputs: str, outputs: str, group: str
) -> None:
    read = list(other.stream(inputs).read(limit=3))
    client.stream(inputs).delete()
    client.stream(inputs).create("application/json").append_many(range(COUNT))
    with pytest.raises(errors.PositionConflict):
        commit(other, read, outputs, group, inputs, "offsets")


@pytest.mark.parametrize("is_own", [True, False])
def test_a_rewind_by_an_operator_is_not_undone(
    client: Any, other: Any, inputs: str, outputs: str, group: str, is_own: bool
) -> None:
    commit(client, batch(client, inputs, group, 5), outputs, group, inputs, "offsets")
    rest = batch(client, inputs, group, 5)
    operator = client if is_own else other
    with pytest.raises(errors.PositionConflict) as caught, client.transaction() as txn:
        txn.append_many(outputs, [message.value for message in rest])
        txn.commit_message(rest[-1])
        operator.group(group).set({inputs: 0})
    assert caught.value.reason == "moved"
    assert txn.state == "aborted"
    for way in WAYS:
        with pytest.raises(errors.PositionConflict):
            commit(client, rest, outputs, group, inputs, way)
    assert client.group(group).offsets() == {inputs: offset_of(0)}
    commit(client, batch(client, inputs, group, 5), outputs, group, inputs, "offsets")
    assert values(client, outputs) == [*range(5), *range(5)]


def test_a_move_on_conditions_does_not_let_an_older_reader_in(
    client: Any, other: Any, inputs: str, outputs: str, group: str
) -> None:
    mine = batch(client, inputs, group, COUNT)
    commit(other, batch(other, inputs, group, 10), outputs, group, inputs, "offsets")
    with client.transaction() as txn:
        txn.commit_offsets(group, {inputs: (10, 12)})
    client.group(group).set({inputs: 12})
    for way in WAYS:
        with pytest.raises(errors.PositionConflict):
            commit(client, mine, outputs, group, inputs, way)
    assert values(client, outputs) == list(range(10))


def test_a_transaction_that_was_refused_a_position_is_not_committed(
    client: Any, other: Any, inputs: str, outputs: str, group: str
) -> None:
    mine, theirs = batch(client, inputs, group, 10), batch(other, inputs, group, COUNT)
    commit(client, mine, outputs, group, inputs, "offsets")
    refused = pytest.raises(
        errors.InvalidTransactionState, match="has not confirmed a group's new position"
    )
    with refused, other.transaction() as txn:
        txn.append_many(outputs, [message.value for message in theirs])
        with suppress(errors.PositionConflict):
            txn.commit_message(theirs[-1])
    assert txn.state == "aborted"
    assert values(client, outputs) == list(range(10))


def test_messages_named_out_of_order_move_the_group_after_the_last(
    client: Any, inputs: str, outputs: str, group: str
) -> None:
    messages = batch(client, inputs, group, 10)
    with client.transaction() as txn:
        for message in [*messages[5:], *messages[:5]]:
            txn.append(outputs, message.value)
            txn.commit_message(message)
    assert client.group(group).offsets() == {inputs: offset_of(10)}


def test_who_reads_from_elsewhere_than_the_position_is_refused(
    client: Any, inputs: str, outputs: str, group: str
) -> None:
    commit(client, batch(client, inputs, group, 5), outputs, group, inputs, "offsets")
    for count in (3, 10):
        late = list(client.stream(inputs).read(limit=count))
        with pytest.raises(errors.PositionConflict):
            commit(client, late, outputs, group, inputs, "offsets")
    for _ in range(2):  # also for a stream that was recreated
        at = client.group(group).offsets().get(inputs, "-1")
        right = list(client.stream(inputs).read(at, limit=3))
        commit(client, right, outputs, group, inputs, "offsets")
        client.stream(inputs).delete()
        client.stream(inputs).create("application/json").append_many(range(COUNT))
    assert values(client, outputs) == [0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2]


def test_a_transaction_is_not_begun_twice(client: Any, inputs: str, group: str) -> None:
    txn = client.transaction(timeout=0.05)
    txn.begin()
    txn.commit_offsets(group, {inputs: 3})
    time.sleep(0.2)
    with pytest.raises(errors.TransactionTimedOut):
        txn.commit()
    with pytest.raises(errors.InvalidTransactionState, match="create a new transaction"):
        txn.begin()


def test_a_sink_that_moves_a_group_says_what_it_has_read(
    client: Any, other: Any, inputs: str, outputs: str, group: str
) -> None:
    mine, theirs = batch(client, inputs, group, 10), batch(other, inputs, group, COUNT)
    sinks = [client.sink(fresh("app")), other.sink(fresh("app"))]
    for sink, messages in zip(sinks, (mine, theirs), strict=True):
        appends = {outputs: [message.value for message in messages]}
        moves = {group: {inputs: messages[-1].next_offset}}
        if sink is sinks[0]:
            sink.commit(0, appends=appends, offsets=moves)
            continue
        with pytest.raises(errors.PositionConflict):
            sink.commit(0, appends=appends, offsets=moves)
    assert values(client, outputs) == list(range(10))
    with client.transaction() as txn:  # it knows the move of the sink
        txn.append(outputs, "next")
        txn.commit_offsets(group, {inputs: 11})


# ---- one worker ----------------------------------------------------------------------------------


def test_what_one_worker_moves_in_any_way_is_known_to_the_others(
    client: Any, server: Server, inputs: str, outputs: str, group: str
) -> None:
    with client.stream(inputs).tail(group=group) as tail:
        first, second, third = next(tail), next(tail), next(tail)
        with client.transaction() as txn:
            txn.append(outputs, 1)
            txn.commit_offsets(group, {inputs: first.next_offset})
        done(client, second.commit())  # skipped: no output for this message
        with client.transaction() as txn:
            txn.append(outputs, 2)
            txn.commit_message(third)
        fourth = next(tail)
        client.commit(
            producer_id=fresh("p"),
            seq=0,
            appends={outputs: [3]},
            offsets={group: {inputs: fourth.next_offset}},
        )
        with client.transaction() as txn:
            txn.append(outputs, 4)
            txn.commit_offsets(group, {inputs: next(tail).next_offset})
            txn.commit_offsets(group, {inputs: 8})
        name = fresh("p")
        with client.transaction(producer_id=name, producer_epoch=0, kind="staged") as staged:
            staged.append(outputs, 5)
            staged.commit_offsets(group, {inputs: 9})
            client.commit(producer_id=name, seq=0, transactions=[staged.token])
        with client.transaction() as txn:
            txn.append(outputs, 6)
            txn.commit_offsets(group, {inputs: 10})
    assert values(client, outputs) == [1, 2, 3, 4, 5, 6]
    assert versions(server, group) == {inputs: 7}


def test_a_message_of_before_moves_nothing_back(
    client: Any, inputs: str, outputs: str, group: str
) -> None:
    messages = batch(client, inputs, group, 5)
    commit(client, messages, outputs, group, inputs, "message")
    with pytest.raises(errors.PositionConflict), client.transaction() as txn:
        txn.append(outputs, "again")
        txn.commit_message(messages[2])
    done(client, messages[2].commit())
    assert client.group(group).offsets() == {inputs: offset_of(5)}
    with (
        pytest.raises(ValueError, match="tail"),
        client.transaction() as txn,
    ):
        txn.commit_message(next(iter(client.stream(inputs).read())))


# ---- waiting -------------------------------------------------------------------------------------


def pending(client: Any, inputs: str, group: str, **options: Any) -> Any:
    """Make a transaction that moves the group, and leave it undecided."""
    txn = client.transaction(**options)
    txn.begin()
    txn.commit_offsets(group, {inputs: 3})
    return txn


def test_a_tail_waits_for_a_transaction_that_may_move_its_group(
    client: Any, server: Server, inputs: str, group: str
) -> None:
    with Client(server.url) as other:
        txn = pending(other, inputs, group)
        timer = threading.Timer(0.5, txn.commit)
        timer.start()
        assert batch(client, inputs, group, 1)[0].offset == offset_of(3)
        timer.join()


def test_a_tail_goes_on_when_the_deadline_is_over(
    client: Any, other: Any, inputs: str, outputs: str, group: str
) -> None:
    pending(other, inputs, group, timeout=0.5)
    messages = batch(client, inputs, group, 1)
    assert messages[0].offset == offset_of(0)
    commit(client, messages, outputs, group, inputs, "message")


def test_a_tail_goes_on_after_a_while_and_the_guard_keeps_it_safe(
    client: Any, other: Any, inputs: str, outputs: str, group: str
) -> None:
    txn = pending(other, inputs, group)
    token = txn.prepare()
    started = time.monotonic()
    messages = batch(client, inputs, group, 1, timeout=2.0)
    assert time.monotonic() - started >= 0.9
    assert messages[0].offset == offset_of(0)
    with pytest.raises(errors.UnstableOffsets) as caught:
        commit(client, messages, outputs, group, inputs, "message")
    assert (caught.value.transaction_id, caught.value.group) == (txn.id, group)
    assert (caught.value.stream, caught.value.transaction_epoch) == (inputs, txn.epoch)
    with pytest.raises(errors.UnstableOffsets):
        done(client, messages[0].commit())
    other.commit_prepared(token)
    with pytest.raises(errors.PositionConflict):
        commit(client, messages, outputs, group, inputs, "message")


def test_nobody_waits_for_its_own_transaction(client: Any, inputs: str, group: str) -> None:
    txn = pending(client, inputs, group)
    started = time.monotonic()
    assert batch(client, inputs, group, 1)[0].offset == offset_of(0)
    assert time.monotonic() - started < 4
    txn.abort()


def test_a_worker_that_comes_back_fences_itself_first(
    client: Any, other: Any, inputs: str, outputs: str, group: str
) -> None:
    name = fresh("worker")
    dead = pending(other, inputs, group, producer_id=name)
    dead.append(outputs, "never")
    started = time.monotonic()
    messages = batch(client, inputs, group, 1, producer_id=name)
    assert time.monotonic() - started < 4, "there is nothing to wait for"
    with pytest.raises(errors.TransactionFenced):
        dead.commit()
    with client.transaction(producer_id=name) as txn:
        txn.append(outputs, "once")
        txn.commit_message(messages[0])
    assert values(client, outputs) == ["once"]


def test_process_waits_and_goes_on_from_there(
    client: Any, server: Server, inputs: str, outputs: str, group: str
) -> None:
    with Client(server.url) as other:
        txn = pending(other, inputs, group)
        timer = threading.Timer(0.3, txn.commit)
        timer.start()
        count = client.process(
            group, inputs, lambda found: {outputs: [each.value for each in found]}, live=False
        )
        timer.join()
    assert count == COUNT - 3
    assert values(client, outputs) == list(range(3, COUNT))
    assert versions(server, group) == {inputs: 2}
