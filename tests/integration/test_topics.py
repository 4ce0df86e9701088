"""Topics, with both clients, against a real server."""

import json
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import pytest

from semel import Client, Keyed, errors
from semel.client.producer.outcomes import BatchAck
from semel.model.partitioners import HASHES
from semel.testing import FaultPlan, FaultProxy
from semel.testing.fault_plan import Action
from tests.integration.test_client_workers import done
from tests.spec.process import Server, offset_of
from tests.spec.txn_calls import fresh

JSON: Final = "application/json"
KEYS: Final = [f"k{number}" for number in range(30)]


@pytest.fixture
def name() -> str:
    return fresh("topic")


def place(key: str | bytes | None, partitions: int, partitioner: str = "crc32") -> int:
    """Return the partition of a key."""
    assert key is not None
    raw = key.encode() if isinstance(key, str) else key
    return HASHES[partitioner](raw) % partitions


# ---- topics as a whole ---------------------------------------------------------------------------


def test_the_first_use_creates_a_topic(client: Any, name: str) -> None:
    topic = client.topic(name, 4, JSON)
    assert not client.topic(name).exists()
    receipt = topic.append({"n": 1}, key="a")
    assert receipt.partition == place("a", 4)
    assert (receipt.offset, receipt.next_offset) == (offset_of(0), offset_of(1))
    info = client.topic(name, 4, JSON).describe()
    assert (info.partition_count, info.partitioner, info.content_type) == (4, "crc32", JSON)
    assert info.keyed
    assert client.topic(name).exists()


def test_another_configuration_is_a_conflict(client: Any, name: str) -> None:
    client.topic(name).create(4, JSON)
    client.topic(name, 3, JSON).describe()  # it has more partitions, because it may have grown
    for options in ({"partitions": 5}, {"partitions": 4, "partitioner": "murmur2"}):
        with pytest.raises(errors.TopicConflict):
            client.topic(name, **options).append(1)
    with pytest.raises(errors.TopicConflict):
        client.topic(name).create(4, "text/plain")
    with pytest.raises(errors.TopicConflict):
        client.topic(name).create(5, JSON, exist_ok=True)
    with pytest.raises(errors.StreamExists):
        client.topic(name).create(4, JSON)
    client.topic(name).create(2, JSON, exist_ok=True)


def test_a_path_that_is_in_use_prevents_the_topic(client: Any, name: str) -> None:
    client.stream(f"{name}/2").create()
    with pytest.raises(errors.StreamExists) as caught:
        client.topic(name).create(3, exist_ok=True)
    assert caught.value.paths == [f"{name}/2"]
    assert not client.topic(name).exists()
    assert not client.stream(f"{name}/0").exists()


def test_a_missing_topic_is_an_error(client: Any, name: str) -> None:
    for call in (
        lambda: client.topic(name).append(1),
        lambda: client.topic(name).describe(),
        lambda: client.topic(name).grow(3),
        lambda: list(client.topic(name).read()),
        lambda: client.topic(name).delete(),
    ):
        with pytest.raises(errors.TopicNotFound):
            call()


def test_topics_are_listed_and_deleted(client: Any) -> None:
    base = fresh("list")
    for number in range(3):
        client.topic(f"{base}/{number}x").create(2)
    assert [each.topic for each in client.topics(f"{base}/")] == [f"{base}/{n}x" for n in range(3)]
    client.topic(f"{base}/1x").delete()
    assert [each.topic for each in client.topics(f"{base}/")] == [f"{base}/0x", f"{base}/2x"]
    assert not client.stream(f"{base}/1x/0").exists()


def test_what_belongs_to_the_topic_is_refused_for_one_partition(client: Any, name: str) -> None:
    topic = client.topic(name).create(2, JSON)
    with pytest.raises(errors.StreamInTopic):
        topic.partition(0).delete()
    with pytest.raises(errors.StreamInTopic):
        topic.partition(0).close()
    with pytest.raises(errors.IsTopic):
        client.stream(name).append(1)
    topic.partition(1).append("directly")
    assert [each.value for each in topic.read()] == ["directly"]


def test_a_closed_topic_takes_no_messages(client: Any, name: str) -> None:
    topic = client.topic(name).create(2, JSON)
    topic.append(1)
    assert topic.close().closed
    with pytest.raises(errors.StreamClosed):
        topic.append(2)
    with topic.tail() as tail:
        assert [each.value for each in tail] == [1]


# ---- appending -----------------------------------------------------------------------------------


@pytest.mark.parametrize("partitioner", ["crc32", "murmur2"])
def test_each_key_has_its_partition(client: Any, name: str, partitioner: str) -> None:
    topic = client.topic(name, 5, JSON, partitioner=partitioner)
    keys: list[Any] = [*KEYS, "ü", b"\xff\x00", "", 17]
    receipt = topic.append_many(list(range(len(keys))), keys=keys)
    assert sum(int(part.next_offset[-4:]) for part in receipt.parts) == len(keys)
    for message in topic.read():
        assert message.partition == place(message.key, 5, partitioner)
        assert message.stream == f"{name}/{message.partition}"
    found = {each.value: each.key for each in topic.read()}
    assert found[len(keys) - 1] == b"17"
    assert found[len(keys) - 2] == b""


def test_messages_without_keys_are_spread(client: Any, name: str) -> None:
    topic = client.topic(name, 3, JSON)
    used = [topic.append(number).partition for number in range(6)]
    assert Counter(used) == {0: 2, 1: 2, 2: 2}
    many = topic.append_many(range(10))
    assert len(many.parts) == 1  # one request has one part


def test_a_partition_can_be_chosen(client: Any, name: str) -> None:
    topic = client.topic(name, 3, JSON)
    assert topic.append(1, key="a", partition=2).partition == 2
    with pytest.raises(errors.PartitionNotFound) as caught:
        topic.append(1, partition=3)
    assert (caught.value.partition, caught.value.partitions) == (3, 3)


@pytest.mark.parametrize(
    ("partition", "kind"),
    [
        *((-1, ValueError), (1000, ValueError), (2**40, ValueError)),
        *(("a", TypeError), (1.0, TypeError), (True, TypeError)),
    ],
)
def test_a_number_that_no_partition_has_is_refused_before_anything_is_sent(
    client: Any, name: str, partition: Any, kind: type[Exception]
) -> None:
    topic = client.topic(name)  # it does not exist: nothing is sent
    with pytest.raises(kind, match="partition"):
        topic.append(1, partition=partition)
    with pytest.raises(kind, match="partition"):
        topic.append_many([1, 2], partition=partition)


@pytest.mark.parametrize("partition", [-1, 2, "a"])
def test_a_wrong_partition_does_not_fail_the_appends_of_other_callers(
    server: Server, name: str, partition: Any
) -> None:
    with Client(server.url) as client:
        topic = client.topic(name).create(2, JSON)

        def append_wrongly(_: int) -> None:
            with pytest.raises((ValueError, TypeError, errors.PartitionNotFound)):
                topic.append(-1, partition=partition)

        with ThreadPoolExecutor(6) as pool:
            wrong = [pool.submit(append_wrongly, number) for number in range(60)]
            right = [pool.submit(topic.append, number, key="k") for number in range(60)]
            for each in wrong:
                each.result()
            assert {each.result().partition for each in right} == {place("k", 2)}
        assert sorted(message.value for message in topic.read()) == list(range(60))


def test_concurrent_appends_share_requests_and_get_their_own_offsets(
    server: Server, name: str
) -> None:
    with Client(server.url) as client:
        topic = client.topic(name, 4, JSON)
        receipts: dict[int, Any] = {}

        def append(number: int) -> None:
            receipts[number] = topic.append(number, key=KEYS[number % 7])

        threads = [threading.Thread(target=append, args=(number,)) for number in range(60)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        stored = {each.value: (each.partition, each.offset) for each in topic.read()}
        assert len(stored) == 60
        for number, receipt in receipts.items():
            assert stored[number] == (receipt.partition, receipt.offset)


def test_an_idempotency_key_is_recognised_after_a_growth(client: Any, name: str) -> None:
    topic = client.topic(name, 4, JSON)
    first = topic.append_many([1, 2, 3], keys=["a", "b", "c"], idempotency_key="once")
    topic.grow(9, keys_may_move=True)
    again = topic.append_many([1, 2, 3], keys=["a", "b", "c"], idempotency_key="once")
    assert again.duplicate
    assert again.parts == first.parts
    assert len(list(topic.read())) == 3


def test_a_client_that_knows_the_old_number_of_partitions_regroups(
    client: Any, server: Server, name: str
) -> None:
    topic = client.topic(name, 3, JSON)
    topic.append_many(KEYS, keys=KEYS)
    with Client(server.url) as other:
        other.topic(name).grow(8, keys_may_move=True)
    receipt = topic.append_many(KEYS, keys=KEYS)
    assert [part.partition for part in receipt.parts] == sorted({place(key, 8) for key in KEYS})
    assert len(list(topic.read())) == 2 * len(KEYS)


@pytest.mark.parametrize("count", [8, 5])
def test_a_client_that_knows_an_earlier_topic_with_this_name_regroups(
    server: Server, name: str, count: int
) -> None:
    with Client(server.url) as old, Client(server.url) as new:
        topic, after = old.topic(name, 8, JSON), new.topic(name)
        with topic.producer(linger_ms=0) as producer:
            producer.append(0, key="a")
            producer.flush()
            topic.append(0, key="a")
            after.delete()
            after.create(count, JSON, partitioner="murmur2")
            receipts = [topic.append(1, key=key) for key in KEYS]
        many = topic.append_many([2] * len(KEYS), keys=KEYS)
        with topic.producer(fresh("p")) as producer, old.transaction() as txn:
            for key in KEYS:
                producer.append(3, key=key)
                txn.append(name, 4, key=key)
        wanted = [place(key, count, "murmur2") for key in KEYS]
        assert [each.partition for each in receipts] == wanted
        assert {each.partition for each in many.parts} == set(wanted)
        for message in after.read():
            assert message.partition == place(message.key, count, "murmur2")
        assert sum(1 for _ in after.read()) == 4 * len(KEYS)


def test_a_producer_continues_with_another_topic_of_the_same_name(
    server: Server, name: str
) -> None:
    with Client(server.url) as old, Client(server.url) as new:
        topic, after = old.topic(name, 8, JSON), new.topic(name)
        topic.describe()
        producer = topic.producer(linger_ms=0)
        after.delete()
        after.create(8, JSON, partitioner="murmur2")
        with producer:
            for number, key in enumerate(KEYS):
                producer.append(number, key=key)
        for message in after.read():
            assert message.partition == place(message.key, 8, "murmur2")
        assert sorted(message.value for message in after.read()) == list(range(len(KEYS)))


def test_a_growth_needs_permission_to_move_keys(client: Any, name: str) -> None:
    topic = client.topic(name, 3, JSON)
    topic.append(1)
    assert topic.grow(4).partition_count == 4
    topic.append(2, key="a")
    with pytest.raises(errors.KeysWouldMove):
        topic.grow(5)
    grown = topic.grow(5, keys_may_move=True)
    assert len(grown.moved_at) == 4
    with pytest.raises(errors.TooFewPartitions):
        topic.grow(4)


# ---- reading -------------------------------------------------------------------------------------


def test_a_read_continues_where_another_one_has_stopped(client: Any, name: str) -> None:
    topic = client.topic(name, 3, JSON)
    topic.append_many(range(20), keys=[str(number) for number in range(20)])
    first = topic.read(limit=7)
    values = [each.value for each in first]
    assert len(values) == 7
    rest = [each.value for each in topic.read(first.offsets)]
    assert sorted(values + rest) == list(range(20))
    with pytest.raises(errors.PartitionNotFound):
        list(topic.read({9: offset_of(0)}))


def test_offsets_that_were_stored_as_json_are_read_from(client: Any, name: str) -> None:
    topic = client.topic(name).create(3, JSON)
    topic.append_many([1, 2, 3, 4], keys=["a", "b", "c", "d"])
    read = topic.read()
    assert len(list(read)) == 4
    stored = json.loads(json.dumps(read.offsets))
    topic.append(5, key="a")
    assert [message.value for message in topic.read(stored)] == [5]
    for key in ("x", "-1", "", True, None, 1.0):
        with pytest.raises(TypeError, match="numbers of partitions"):
            topic.read({key: stored["0"]})


def test_a_tail_reads_new_messages_and_new_partitions(client: Any, name: str) -> None:
    topic = client.topic(name, 2, JSON)
    topic.append("old", partition=1)
    with topic.tail(start="now") as tail:
        topic.append("new", partition=1)
        assert next(tail).value == "new"
        topic.grow(5)
        topic.append("newest", partition=4)
        assert next(tail).value == "newest"


# ---- transactions and commits --------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["inline", "staged"])
def test_a_transaction_writes_to_a_topic_as_a_whole(client: Any, name: str, kind: str) -> None:
    topic = client.topic(name, 3, JSON)
    topic.describe()
    other = fresh("s")
    client.stream(other).create(JSON)
    with client.transaction(kind=kind) as txn:
        txn.append_many(name, KEYS, keys=KEYS)
        txn.append(other, "beside")
        assert list(topic.read()) == []
    assert sorted(each.value for each in topic.read()) == sorted(KEYS)
    with pytest.raises(ZeroDivisionError), client.transaction(kind=kind) as txn:
        txn.append(name, 1, key="a")
        raise ZeroDivisionError
    assert len(list(topic.read())) == len(KEYS)


def test_a_transaction_continues_after_a_growth(server: Server, name: str) -> None:
    with Client(server.url) as client, Client(server.url) as other:
        topic = client.topic(name, 3, JSON)
        topic.append("first", key="a")
        with client.transaction() as txn:
            txn.append_many(topic, KEYS, keys=KEYS)
            other.topic(name).grow(7, keys_may_move=True)
            txn.append_many(topic, KEYS, keys=KEYS)
        assert len(list(topic.read())) == 2 * len(KEYS) + 1


def test_a_growth_waits_until_staged_messages_have_their_offsets(server: Server, name: str) -> None:
    """Otherwise, they would come after the growth in a partition that their key has left."""
    with Client(server.url) as client, Client(server.url) as other:
        topic, members = client.topic(name, 2, JSON), 4
        topic.append(0, key="a")
        with client.transaction(kind="staged") as txn:
            txn.append_many(name, [1, 2], keys=["a", "a"])
            with pytest.raises(errors.StreamInTransaction):
                other.topic(name).grow(members, keys_may_move=True, timeout=0.3)
            growing = ThreadPoolExecutor().submit(
                other.topic(name).grow, members, keys_may_move=True
            )
        assert growing.result(60).partition_count == members
        topic.append(3, key="a")
        with client.consume([name], group=fresh("g"), live=False) as first:
            assert [(message.value, message.commit())[0] for message in first] == [0, 1, 2, 3]


def test_a_group_that_shares_one_partition_passes_a_growth(client: Any, name: str) -> None:
    topic = client.topic(name, 2, JSON)
    topic.append(0, key="a", partition=0)
    topic.append(1, key="a", partition=1)
    topic.grow(4, keys_may_move=True)
    topic.append(2, key="a", partition=1)
    with client.consume([f"{name}/1"], group=fresh("g"), live=False) as messages:
        assert [(message.value, done(client, message.commit()))[0] for message in messages] == [
            1,
            2,
        ]


@pytest.mark.timeout(60)
def test_a_consumer_that_has_read_everything_ends_when_the_topic_is_closed(
    server: Server, name: str
) -> None:
    with Client(server.url) as client, Client(server.url) as other:
        topic, is_idle = client.topic(name, 3, JSON), threading.Event()
        topic.append_many(KEYS, keys=KEYS)

        def close() -> None:
            is_idle.wait(30)
            other.topic(name).close()

        closing = threading.Thread(target=close)
        closing.start()
        with client.consume([name], group=fresh("g")) as messages:
            for number, message in enumerate(messages, 1):
                message.commit()
                if number == len(KEYS):
                    threading.Timer(1.0, is_idle.set).start()  # it waits for more by then
        closing.join()
        assert number == len(KEYS)


def test_a_commit_routes_values_by_their_keys(client: Any, name: str) -> None:
    topic = client.topic(name, 4, JSON)
    topic.describe()
    producer = fresh("p")
    appends = {name: [Keyed(key, key) for key in KEYS]}
    result = client.commit(producer_id=producer, seq=0, appends=appends)
    assert not result.duplicate
    assert client.commit(producer_id=producer, seq=0, appends=appends).duplicate
    found = list(topic.read())
    assert len(found) == len(KEYS)
    assert all(each.partition == place(each.value, 4) for each in found)


# ---- producers -----------------------------------------------------------------------------------


def test_a_producer_stores_every_message_once_in_the_partition_of_its_key(
    client: Any, name: str
) -> None:
    topic = client.topic(name, 6, JSON)
    acks: list[BatchAck] = []
    with topic.producer("p", max_batch_messages=50, on_batch_ack=acks.append) as producer:
        for number in range(1000):
            done(client, producer.append(number, key=KEYS[number % len(KEYS)]))
    assert sum(ack.count for ack in acks) == 1000
    found = list(topic.read())
    assert all(each.partition == place(each.key, 6) for each in found)
    by_key: dict[bytes | None, list[int]] = {}
    for each in found:
        by_key.setdefault(each.key, []).append(each.value)
    assert sum(map(len, by_key.values())) == 1000
    assert all(values == sorted(values) for values in by_key.values())
    ends = {part.partition: part.next_offset for ack in acks for part in ack.parts}
    assert ends == topic_ends(topic)
    (state,) = topic.producers("p")
    assert state.last_seq == acks[-1].seq


def topic_ends(topic: Any) -> dict[int, str]:
    return {each.partition: each.next_offset for each in topic.describe().partitions}


def test_a_producer_continues_after_the_topic_has_grown(server: Server, name: str) -> None:
    with Client(server.url) as client, Client(server.url) as other:
        topic = client.topic(name, 3, JSON)
        with topic.producer(max_batch_messages=10) as producer:
            for number in range(3000):
                producer.append(number, key=KEYS[number % len(KEYS)])
                if number % 500 == 499:
                    count = other.topic(name).describe().partition_count
                    other.topic(name).grow(count + 2, keys_may_move=True)
        assert producer.stats.messages_acked == 3000
        assert producer.stats.duplicates == 0
        info = topic.describe()
        assert info.partition_count == 15
        found = list(topic.read())
        assert sorted(each.value for each in found) == list(range(3000))
        last = {each.key: each.partition for each in sorted(found, key=lambda each: each.value)}
        assert last == {key.encode(): place(key, 13) for key in KEYS} or last == {
            key.encode(): place(key, 15) for key in KEYS
        }


def test_a_new_instance_of_a_producer_fences_the_old_one(client: Any, name: str) -> None:
    topic = client.topic(name, 2, JSON)
    old = topic.producer("p")
    done(client, old.append(1, key="a"))
    done(client, old.flush())
    with topic.producer("p") as new:
        done(client, new.append(2, key="a"))
        done(client, new.flush())
        done(client, old.append(3, key="a"))
        with pytest.raises(errors.ProducerFenced):
            done(client, old.flush())
    assert [each.value for each in topic.read()] == [1, 2]


def test_a_repeat_by_a_later_instance_is_recognised(client: Any, name: str) -> None:
    topic = client.topic(name, 3, JSON)
    for _ in range(2):
        with topic.producer("p", mode="sparse", epoch=1) as producer:
            for seq in range(5):
                done(client, producer.append(seq, key=KEYS[seq], seq=seq))
    assert sorted(each.value for each in topic.read()) == list(range(5))


@pytest.mark.parametrize("options", [{"epoch": 7}, {"mode": "sparse", "initial_seq": 100}])
def test_a_repeat_of_messages_without_keys_by_a_later_instance_is_recognised(
    client: Any, name: str, options: dict[str, Any]
) -> None:
    topic, producer_id = client.topic(name).create(5, JSON), fresh("p")
    keys = ["a", None, "b", None]
    for _ in range(6):
        with client.topic(name).producer(producer_id, linger_ms=500, **options) as producer:
            for number, key in enumerate(keys):
                producer.append(number, key=key)
    assert sorted(message.value for message in topic.read()) == [0, 1, 2, 3]


def test_a_producer_cannot_close_a_topic(client: Any, name: str) -> None:
    with client.topic(name, 2, JSON).producer() as producer:
        done(client, producer.append(1))
        with pytest.raises(errors.NotSupported, match="close a topic"):
            done(client, producer.close_stream())


def test_messages_survive_a_restart_of_the_server_in_the_middle(tmp_path: Any) -> None:
    data = tmp_path / "data"
    server = Server(data)
    port = int(server.url.rpartition(":")[2])
    with Client(server.url) as client:
        topic = client.topic("orders", 4, JSON)
        with topic.producer("p", max_batch_messages=20) as producer:
            for number in range(4000):
                producer.append(number, key=KEYS[number % len(KEYS)])
                if number in (1000, 2500):
                    server.kill()
                    server = Server(data, port=port)
                time.sleep(0.0002)
        found = [each.value for each in topic.read()]
        assert sorted(found) == list(range(4000))
    server.kill()


# ---- duplicate detection that is switched while an answer is lost --------------------------------


class LostThen(FaultPlan):
    """Drops the first answer to an append, and then switches duplicate detection off."""

    def __init__(self, switch: Callable[[], None]) -> None:
        super().__init__()
        self._switch = switch
        self._is_lost = self._has_switched = False

    def draw(self, request: bytes = b"") -> Action:
        if request.startswith(b"POST /v1/topics/") and not self._is_lost:
            self._is_lost = True
            return Action.DROP_ANSWER
        if self._is_lost and not self._has_switched:
            self._has_switched = True
            self._switch()
        return Action.PASS


def append_with(topic: Any, how: str) -> None:
    if how == "plain":
        topic.append(1, key="k")
    elif how == "many":
        topic.append_many([1, 2], keys=["k", "l"])
    elif how == "idempotency key":
        topic.append(1, key="k", idempotency_key=fresh("once"))
    else:
        options: Any = {"epoch": {"epoch": 3}, "sparse": {"mode": "sparse"}}.get(how, {})
        with topic.producer(fresh("p"), **options) as producer:
            producer.append(1, key="k")


WAYS = ("plain", "many", "idempotency key", "session", "epoch", "sparse")


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("by_policy", [False, True], ids=["off and on", "by a policy"])
def test_a_lost_answer_is_not_stored_twice_after_a_switch(
    server: Server, name: str, how: str, by_policy: bool
) -> None:
    with Client(server.url) as direct:
        topic = direct.topic(name).create(2, JSON)

        def switch() -> None:
            if by_policy:
                direct.set_policy(name, dedup=False)
            else:
                topic.set_dedup(False)
                topic.set_dedup(True)

        with (
            FaultProxy(server.url, LostThen(switch)) as proxy,
            Client(proxy.url) as client,
            pytest.raises(errors.Indeterminate),
        ):
            append_with(client.topic(name), how)
        stored = sorted(each.value for each in topic.read())
        assert stored == ([1, 2] if how == "many" else [1])
