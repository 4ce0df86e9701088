"""Consumers that share the streams of a group, with both clients, against a real server."""

import asyncio
import gc
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest

from semel import AsyncClient, Client, Keyed, errors
from semel.client.member_calls import GroupInfo
from semel.model.rights import retries_of
from tests.integration.test_client_workers import done, values
from tests.spec.process import Server
from tests.spec.txn_calls import fresh

KEYS: Final = 12
COUNT: Final = 120
SECONDS_MAX: Final = 60


@pytest.fixture
def group() -> str:
    return fresh("g")


@pytest.fixture
def topic(client: Any) -> str:
    """A topic with 4 partitions and 120 messages. Those of a key are numbered."""
    name = fresh("topic")
    documents = [{"key": f"k{index % KEYS}", "number": index // KEYS} for index in range(COUNT)]
    client.topic(name, 4, "application/json").append_many(
        documents, keys=[each["key"] for each in documents]
    )
    return name


@pytest.fixture
def output(client: Any) -> str:
    path = fresh("out")
    client.stream(path).create("application/json")
    return path


@pytest.fixture
def plain(server: Server) -> Iterator[Client]:
    with Client(server.url) as it:
        yield it


def until(is_so: Callable[[], Any]) -> None:
    """Wait until something is so."""
    end = time.monotonic() + SECONDS_MAX
    while not is_so():
        assert time.monotonic() < end, "it has not happened"
        time.sleep(0.02)


def numbers_by_key(documents: list[Any]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for each in documents:
        found.setdefault(each["key"], []).append(each["number"])
    return found


EXPECTED: Final = {f"k{key}": list(range(COUNT // KEYS)) for key in range(KEYS)}


def owners(info: GroupInfo) -> dict[str, int]:
    """Return how many streams each member owns."""
    return {each.member: len(each.streams) for each in info.members}


# ---- one member ----------------------------------------------------------------------------------


def test_a_consumer_gets_every_message_and_each_key_in_order(
    client: Any, topic: str, group: str
) -> None:
    got = []
    with client.consume(topic, group=group, live=False) as consumer:
        for message in consumer:
            assert message.partition == int(message.stream.rpartition("/")[2])
            got.append(message.value)
            done(client, message.commit())
        assert len(consumer.streams) == 4
    assert numbers_by_key(got) == EXPECTED
    assert client.group(group).describe().lag == 0


def test_what_is_not_committed_is_delivered_again(client: Any, topic: str, group: str) -> None:
    with client.consume([topic], group=group, live=False) as consumer:
        first = [message.value for message in consumer]
    with client.consume([topic], group=group, live=False) as consumer:
        again = [message.value for message in consumer]
    assert len(first) == COUNT
    assert sorted(map(str, first)) == sorted(map(str, again))
    assert client.group(group).describe().lag == COUNT


def test_streams_topics_and_patterns_can_be_read_together(client: Any, group: str) -> None:
    base = fresh("mixed")
    client.topic(f"{base}/t", 2, "application/json").append(1, partition=1)
    client.stream(f"{base}/a").create("application/json").append(2)
    client.stream(f"{base}/deep/b").create("application/json").append(3)
    consumer = client.consume(
        [f"{base}/t", f"{base}/a"], group=group, patterns=[f"{base}/deep/*"], live=False
    )
    with consumer:
        assert sorted(message.value for message in consumer) == [1, 2, 3]


def test_new_streams_of_a_pattern_are_read(plain: Client, group: str) -> None:
    base = fresh("pattern")
    with plain.consume([f"{base}/*"], group=group) as consumer:
        plain.stream(f"{base}/new").create("application/json").append(7)
        assert next(consumer).value == 7
        assert consumer.streams == [f"{base}/new"]


def test_a_consumer_of_closed_streams_ends(client: Any, topic: str, group: str) -> None:
    client.topic(topic).close()
    with client.consume([topic], group=group) as consumer:
        count = 0
        for message in consumer:
            done(client, message.commit())
            count += 1
    assert count == COUNT


def test_the_group_can_begin_at_the_latest_messages(client: Any, topic: str, group: str) -> None:
    with client.consume([topic], group=group, start="latest", live=False) as consumer:
        assert list(consumer) == []
    client.topic(topic).append({"key": "new"}, key="new")
    with client.consume([topic], group=group, live=False) as consumer:
        assert [message.value for message in consumer] == [{"key": "new"}]


def test_wrong_arguments_are_refused(client: Any, group: str) -> None:
    with pytest.raises(ValueError, match="nothing to read"):
        client.consume([], group=group)
    with pytest.raises(TypeError, match="there is no option 'session'"):
        client.consume(["a"], group=group, session=1)
    with pytest.raises(ValueError, match="start='first'"):
        client.consume(["a"], group=group, start="first")
    with pytest.raises(ValueError, match="session_timeout=0"):
        client.consume(["a"], group=group, session_timeout=0)
    with pytest.raises(errors.StreamNotFound):
        client.consume([fresh("missing")], group=group).next_batch()


# ---- several members -----------------------------------------------------------------------------


def test_two_members_share_the_partitions_evenly(plain: Client, server: Server) -> None:
    topic, group, calls = fresh("t"), fresh("g"), []
    plain.topic(topic).create(4, "application/json")
    first = plain.consume(
        topic,
        group=group,
        on_assigned=lambda streams: calls.append(("assigned", len(streams))),
        on_revoked=lambda streams: calls.append(("revoked", len(streams))),
    )
    got: dict[str, list[int]] = {"first": [], "second": []}

    def consume(name: str, consumer: Any) -> None:
        for message in consumer:
            got[name].append(message.value)
            message.commit()

    threads = [threading.Thread(target=consume, args=("first", first), daemon=True)]
    threads[0].start()
    until(lambda: len(first.streams) == 4)
    with Client(server.url) as other:
        second = other.consume(topic, group=group)
        threads.append(threading.Thread(target=consume, args=("second", second), daemon=True))
        threads[1].start()
        until(lambda: len(first.streams) == len(second.streams) == 2)
        assert calls == [("assigned", 4), ("revoked", 2)]
        plain.topic(topic).append_many(range(200), keys=[str(each) for each in range(200)])
        until(lambda: len(got["first"]) + len(got["second"]) == 200)
        assert got["first"]
        assert got["second"]
        assert sorted(got["first"] + got["second"]) == list(range(200))
        second.close()
    until(lambda: len(first.streams) == 4)
    first.close()
    for thread in threads:
        thread.join(SECONDS_MAX)
    assert owners(plain.group(group).describe()) == {}


def test_a_stream_is_released_when_its_messages_are_committed(plain: Client) -> None:
    topic, group = fresh("t"), fresh("g")
    revoked: list[str] = []
    plain.topic(topic, 2, "application/json").append_many([1, 2], keys=["a", "c"])
    first = plain.consume(topic, group=group, on_revoked=revoked.extend)
    held = [next(first), next(first)]
    with plain.consume(topic, group=group) as second:
        assert second.streams == []
        # The first member still owns both streams, because its messages are not committed.
        waiting = threading.Thread(target=lambda: next(first, None), daemon=True)
        waiting.start()
        until(lambda: revoked)
        assert second.streams == []
        for message in held:
            message.commit()
        second_thread = threading.Thread(target=lambda: next(second, None), daemon=True)
        second_thread.start()
        until(lambda: second.streams == revoked)
        first.close()
        second.close()
        waiting.join(SECONDS_MAX)
        second_thread.join(SECONDS_MAX)


def test_a_member_that_expires_cannot_commit_and_joins_again(server: Server, plain: Client) -> None:
    topic, group, output = fresh("t"), fresh("g"), fresh("out")
    lost: list[str] = []
    plain.topic(topic, 1, "application/json").append_many([1, 2])
    plain.stream(output).create("application/json")

    async def run() -> None:
        async with AsyncClient(server.url) as client:
            consumer = client.consume(
                topic, group=group, session_timeout=1, on_lost=lost.extend, live=False
            )
            async with consumer:
                message = await anext(consumer)
                time.sleep(2.5)  # noqa: ASYNC251 - the loop stands still, and so do heartbeats
                with pytest.raises((errors.IllegalGeneration, errors.TransactionAborted)):
                    async with client.transaction() as txn:
                        await txn.append(output, "never")
                        await txn.commit_message(message)
                values = []
                async for message in consumer:
                    values.append(message.value)
                    await message.commit()
                assert values == [1, 2]

    asyncio.run(run())
    assert lost == [f"{topic}/0"]
    assert values(plain, output) == []


def test_a_message_can_take_longer_than_the_session_timeout(plain: Client) -> None:
    topic, group = fresh("t"), fresh("g")
    lost: list[str] = []
    plain.topic(topic, 1, "application/json").append_many([1, 2])
    consumer = plain.consume(topic, group=group, session_timeout=1, on_lost=lost.extend, live=False)
    for message in consumer:
        if message.value == 1:
            time.sleep(2.5)
        message.commit()
    consumer.close()
    assert lost == []
    (stream,) = plain.group(group).describe().streams
    assert (stream.lag, stream.epoch, stream.starts) == (0, 1, 0)


def test_a_consumer_that_is_no_longer_used_leaves_its_group(plain: Client) -> None:
    topic, group = fresh("t"), fresh("g")
    plain.topic(topic, 1, "application/json").append(1)
    for message in plain.consume(topic, group=group):
        message.commit()
        break
    del message
    gc.collect()
    until(lambda: not plain.group(group).describe().members)


def test_the_instance_takes_over_the_streams_of_the_one_before(plain: Client) -> None:
    topic, group = fresh("t"), fresh("g")
    plain.topic(topic, 3, "application/json").append(1)
    old = plain.consume(topic, group=group, instance="worker-1")
    message = next(old)
    new = plain.consume(topic, group=group, instance="worker-1", live=False)
    assert next(new).value == 1
    assert len(new.streams) == 3
    with pytest.raises(errors.IllegalGeneration):
        message.commit()
    with pytest.raises(errors.InstanceReplaced):  # joining again would replace the new one
        next(old)
    assert [each.instance for each in plain.group(group).describe().members] == ["worker-1"]
    assert new.member == plain.group(group).describe().members[0].member
    new.close()
    old.close()


def test_an_instance_that_has_expired_joins_again(plain: Client, server: Server) -> None:
    topic, group = fresh("t"), fresh("g")
    plain.topic(topic, 1, "application/json").append_many([1, 2])
    with plain.consume(topic, group=group, instance="worker-1", session_timeout=1) as consumer:
        next(consumer)
        (first,) = plain.group(group).describe().members
        assert server.ask("DELETE", f"/v1/groups/{group}/members/{first.member}").status == 204
        assert 1 in [next(consumer).value for _ in range(2)], "it gets its stream again"
        (second,) = plain.group(group).describe().members
        assert first.member != second.member


def test_an_operator_can_move_a_group_that_has_members(client: Any, group: str) -> None:
    topic = fresh("t")
    client.topic(topic, 1, "application/json").append_many(range(5))
    with client.consume(topic, group=group, live=False) as consumer:
        done(client, next(consumer).commit())
        message = next(consumer)
        with pytest.raises(errors.GroupIsShared):
            client.group(group).reset("earliest")
        client.group(group).reset("earliest", force=True)
        with pytest.raises(errors.PositionConflict):
            done(client, message.commit())
        got = []
        for message in consumer:
            got.append(message.value)
            done(client, message.commit())
        assert got == list(range(5))


# ---- growth --------------------------------------------------------------------------------------


def test_a_member_that_waits_hears_of_a_reset(plain: Client, group: str) -> None:
    topic = fresh("t")
    plain.topic(topic, 3, "application/json").append_many(range(30), keys=[*map(str, range(30))])
    found: list[int] = []

    def consume() -> None:
        with plain.consume(topic, group=group) as messages:
            for message in messages:
                found.append(message.value)
                message.commit()

    consumer = threading.Thread(target=consume)
    consumer.start()
    until(lambda: len(found) == 30 and plain.group(group).describe().lag == 0)
    plain.group(group).reset("earliest", force=True)
    until(lambda: len(found) == 60)
    plain.topic(topic).close()
    consumer.join(SECONDS_MAX)
    assert sorted(found) == sorted([*range(30)] * 2)


def test_members_keep_the_order_of_each_key_when_the_topic_grows(
    client: Any, topic: str, group: str
) -> None:
    more = [
        {"key": f"k{index % KEYS}", "number": (COUNT + index) // KEYS} for index in range(COUNT)
    ]
    client.topic(topic).grow(7, keys_may_move=True)
    client.topic(topic).append_many(more, keys=[each["key"] for each in more])
    got = []
    with client.consume([topic], group=group, live=False) as consumer:
        for message in consumer:
            got.append(message.value)
            done(client, message.commit())
    assert numbers_by_key(got) == {key: list(range(2 * COUNT // KEYS)) for key in EXPECTED}


# ---- process -------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 3])
def test_workers_process_every_message_once(
    client: Any, topic: str, group: str, output: str, workers: int
) -> None:
    count = client.process(
        group,
        [topic],
        lambda batch: {output: [message.value for message in batch]},
        workers=workers,
        live=False,
        max_messages=7,
    )
    assert count == COUNT
    assert numbers_by_key(values(client, output)) == EXPECTED


def test_a_topic_is_processed_with_a_worker_by_itself(client: Any, topic: str, group: str) -> None:
    copies = fresh("copies")
    client.topic(copies).create(3, "application/json")
    count = client.process(
        group,
        topic,
        lambda batch: {copies: [Keyed(each.value, each.key) for each in batch]},
        live=False,
    )
    assert count == COUNT
    found = list(client.topic(copies).read())
    assert numbers_by_key([each.value for each in found]) == EXPECTED
    assert all(each.key == each.value["key"].encode() for each in found)


def test_an_error_of_a_worker_ends_all_of_them(client: Any, topic: str, group: str) -> None:
    def fail(batch: Any) -> None:
        raise RuntimeError("it is broken")

    with pytest.raises(RuntimeError, match="it is broken"):
        client.process(group, [topic], fail, workers=2, max_attempts=None)
    assert owners(client.group(group).describe()) == {}
    assert client.group(group).describe().lag == COUNT


def test_outputs_that_do_not_fit_are_made_of_fewer_messages(
    client: Any, topic: str, group: str, output: str
) -> None:
    sizes = []

    def blow_up(batch: Any) -> dict[str, list[Any]]:
        sizes.append(len(batch))
        return {output: ["x" * 600_000 for _ in batch]}

    assert client.process(group, [topic], blow_up, workers=1, live=False) == COUNT
    assert len(values(client, output)) == COUNT
    assert max(sizes) > 7 > min(sizes)


# ---- crashes -------------------------------------------------------------------------------------

WORKER: Final = """
import os, sys
from semel import Client

url, topic, group, output, name = sys.argv[1:]

def copy(batch):
    for message in batch:
        if message.value.get("poison") and os.environ.get("POISONED"):
            os.kill(os.getpid(), 9)
    return {output: [{**message.value, "worker": name} for message in batch]}

with Client(url) as client:
    client.process(group, [topic], copy, workers=1, session_timeout=1, max_messages=2,
                   max_attempts=3, instance=None)
"""


def start_worker(server: Server, *arguments: str, **environment: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", WORKER, server.url, *arguments], env=environment or None
    )


def test_a_killed_worker_loses_its_streams_and_nothing_is_lost_or_doubled(
    server: Server, plain: Client
) -> None:
    topic, group, output = fresh("t"), fresh("g"), fresh("out")
    plain.topic(topic).create(6, "application/json")
    plain.stream(output).create("application/json")
    workers = [start_worker(server, topic, group, output, str(number)) for number in range(2)]
    try:
        until(lambda: _owned(plain, group) == [3, 3])
        documents = [{"key": f"k{each % KEYS}", "number": each // KEYS} for each in range(COUNT)]
        for start in range(0, COUNT, KEYS):
            part = documents[start : start + KEYS]
            plain.topic(topic).append_many(part, keys=[str(each["key"]) for each in part])
            if start == COUNT // 2:
                workers[0].kill()
        until(lambda: len(values(plain, output)) >= COUNT)
        assert _owned(plain, group) == [6]
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    assert numbers_by_key(values(plain, output)) == EXPECTED


def _owned(client: Client, group: str) -> list[int]:
    try:
        return sorted(owners(client.group(group).describe()).values())
    except errors.GroupNotFound:
        return []


def test_a_message_that_kills_its_workers_becomes_a_dead_letter(
    server: Server, plain: Client
) -> None:
    topic, group, output = fresh("t"), fresh("g"), fresh("out")
    plain.stream(output).create("application/json")
    documents = [{"number": each, "poison": each == 5} for each in range(10)]
    plain.topic(topic, 2, "application/json").append_many(
        documents, keys=[str(each["number"]) for each in documents]
    )
    deaths = 0
    worker = start_worker(server, topic, group, output, "w", POISONED="1")
    try:

        def is_processed() -> bool:
            nonlocal deaths, worker
            if worker.poll() is not None:
                assert worker.returncode == -signal.SIGKILL
                deaths += 1
                worker = start_worker(server, topic, group, output, "w", POISONED="1")
            return len(values(plain, output)) == 9 and plain.group(group).describe().lag == 0

        until(is_processed)
    finally:
        worker.kill()
        worker.wait()
    # The first crash is perhaps counted for the message before it, in the same batch.
    assert deaths in (3, 4)
    (letter,) = plain.dead_letters(group)
    assert letter.value == {"number": 5, "poison": True}
    assert letter.attempts == 3
    assert "crashed" in letter.cause
    assert sorted(each["number"] for each in values(plain, output)) == [0, 1, 2, 3, 4, 6, 7, 8, 9]
    # A worker that can process it gets it by a replay.
    assert plain.dead_letters(group).replay() == 1
    worker = start_worker(server, topic, group, output, "w")
    until(lambda: len(values(plain, output)) == 10)
    worker.kill()
    worker.wait()
    (retry,) = plain.stream(retries_of(group)).read()
    assert retry.value["value"] == letter.value
