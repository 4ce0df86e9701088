"""Topics are created, grown, closed and deleted with all their partitions.

The numbers are rows of `docs/reference/topics.md`.
"""

import pytest
from msgspec.structs import replace

from semel.machine import MachineLimits, validate_and_decide
from semel.machine.rows import TopicRow, is_partition, is_topic
from semel.model.commands import (
    Append,
    Delete,
    EngineCommand,
    Expire,
    PinSnapshot,
    PositionMove,
    SetPositions,
    SnapshotRange,
    SwitchDedup,
    Trim,
)
from semel.model.limits import TOPIC_GROWTHS_MAX
from semel.model.outcomes import (
    ConfigConflict,
    Created,
    Deleted,
    Expired,
    Gone,
    LimitReached,
    NotFound,
    StillAlive,
    StreamClosed,
    Switched,
    Trimmed,
)
from semel.model.outcomes_topics import (
    IsTopic,
    KeysWouldMove,
    StreamExists,
    StreamInTopic,
    TooFewPartitions,
    TopicClosed,
    TopicConflict,
    TopicCreated,
    TopicDeleted,
    TopicGrown,
    TopicNotFound,
)
from semel.model.outcomes_txn import StreamInTransaction, StreamRefused
from semel.model.policies import DedupSource, SetPolicy
from semel.model.topic_commands import CloseTopic, DeleteTopic
from tests.unit.machine.builders import (
    JSON,
    TEXT,
    append,
    create,
    dense,
    fork,
    reloaded,
    unchanged,
)
from tests.unit.machine.topic_builders import (
    append_topic,
    create_topic,
    grow,
    streams_of,
    topic_machine,
)
from tests.unit.machine.txn_builders import begin, commit, publish


def delete(path: str = "t") -> DeleteTopic:
    return DeleteTopic(path, 0)


def close(path: str = "t") -> CloseTopic:
    return CloseTopic(path, 0)


# ---- create --------------------------------------------------------------------------------------


def test_a_topic_is_created_with_all_its_partitions_in_one_frame() -> None:
    machine = topic_machine(partitions=3)
    assert len(machine.journal) == 1
    assert list(machine.state.by_path) == ["t", "t/0", "t/1", "t/2"]
    topic = machine.stream("t")
    assert topic.topic == TopicRow("crc32", (2, 3, 4))
    assert is_topic(topic.row)
    assert not is_partition(topic.row)
    for partition in range(3):
        row = machine.stream(f"t/{partition}").row
        assert (row.topic, row.partition, row.content_type) == (1, partition, JSON)
        assert row.incarnation == f"i-t-0-{partition}"
        assert is_partition(row)
        assert not is_topic(row)
    assert machine.state.next_stream == 5


# T1
def test_the_same_create_again_finds_the_topic() -> None:
    machine = topic_machine(partitions=3)
    again = replace(
        create_topic(partitions=3), incarnation="other", content_type="Application/JSON"
    )
    assert unchanged(machine, again) == TopicCreated(3, "crc32", JSON, "i-t-0", is_new=False)


# T1
@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"content_type": TEXT}, "content_type"),
        ({"partitioner": "murmur2"}, "partitioner"),
        ({"partitions": 5}, "partitions"),
        ({"ttl_ms": 8}, "ttl"),
        ({"ttl_ms": None}, "ttl"),
        ({"expires_at_ms": 5}, "expires_at"),
        ({"dedup": False}, "dedup"),
    ],
)
def test_another_configuration_is_a_conflict(change: dict[str, object], field: str) -> None:
    machine = topic_machine()
    machine.execute(create_topic("u", ttl=9, dedup=True))
    command = replace(create_topic("u", ttl=9, dedup=True), **change)
    assert unchanged(machine, command) == TopicConflict(field)


# T2
def test_a_topic_needs_all_its_paths_and_makes_none_otherwise() -> None:
    machine = topic_machine(create("u/1"), create("u/7"), create("v"))
    assert unchanged(machine, create_topic("u")) == StreamExists(("u/1",))
    assert unchanged(machine, create_topic("u", 8)) == StreamExists(("u/1", "u/7"))
    assert unchanged(machine, create_topic("v")) == StreamExists(("v",))
    reserved = ("__semel/x", "__semel/x/0")
    assert unchanged(machine, create_topic("__semel/x", 1)) == StreamExists(reserved)


# T2
def test_a_soft_deleted_path_is_taken() -> None:
    machine = topic_machine(create("u/1"), fork("f", "u/1"), Delete("u/1", 0))
    assert unchanged(machine, create_topic("u")) == StreamExists(("u/1",))
    machine.execute(Delete("f", 0))
    assert isinstance(machine.execute(create_topic("u")), TopicCreated)


# T3
def test_partitions_count_as_streams() -> None:
    machine = topic_machine(partitions=3, limits=MachineLimits(streams=8))
    full = LimitReached("streams", 8)
    assert unchanged(machine, create_topic("u", 4)) == full
    assert unchanged(machine, grow(partitions=8)) == full
    assert isinstance(machine.execute(create_topic("u", 3)), TopicCreated)
    assert unchanged(machine, create("x")) == full


def test_a_path_of_a_topic_or_of_its_partition_is_taken_for_streams() -> None:
    machine = topic_machine(partitions=1)
    assert unchanged(machine, create("t", kind=JSON)) == IsTopic()
    outcome = unchanged(machine, create("t/0", kind=JSON))
    assert outcome == Created("i-t-0-0", JSON, 0, False, is_new=False)
    assert isinstance(machine.execute(create("t/1")), Created)
    assert unchanged(machine, grow(partitions=3)) == StreamExists(("t/1",))


# ---- grow ----------------------------------------------------------------------------------------


# T5
def test_a_topic_gets_more_partitions_never_fewer() -> None:
    machine = topic_machine(append_topic((None, b"1"), partition=1))
    assert unchanged(machine, grow(partitions=3)) == TooFewPartitions(4)
    assert unchanged(machine, grow(partitions=4)) == TopicGrown(4, (), is_new=False)
    assert machine.execute(grow(partitions=6)) == TopicGrown(6, (0, 1, 0, 0), is_new=True)
    assert machine.stream("t/5").row.incarnation == "g-t-0-5"
    assert machine.stream("t/5").row.content_type == JSON
    assert unchanged(machine, grow(partitions=6)) == TopicGrown(6, (0, 1, 0, 0), is_new=False)
    machine.execute(append_topic((None, b"2"), partition=5))
    assert machine.execute(grow(partitions=7)) == TopicGrown(7, (0, 1, 0, 0, 0, 1), is_new=True)
    assert unchanged(machine, grow(partitions=7)) == TopicGrown(7, (0, 1, 0, 0, 0, 1), is_new=False)
    row = machine.stream("t").topic
    assert row is not None
    assert row.fences == ((0, 1, 0, 0), (0, 1, 0, 0, 0, 1))


# T6
def test_keys_move_only_if_the_caller_allows_it() -> None:
    machine = topic_machine(append_topic((None, b"1")), grow(partitions=5))
    machine.execute(append_topic((b"k", b"1")))
    assert unchanged(machine, grow()) == KeysWouldMove()
    assert isinstance(machine.execute(grow(moves=True)), TopicGrown)
    assert unchanged(machine, grow(partitions=7)) == KeysWouldMove()


def test_a_closed_topic_does_not_grow() -> None:
    machine = topic_machine(append_topic((b"k", b"1")), close())
    assert unchanged(machine, grow()) == StreamClosed(None)


def test_a_topic_grows_a_limited_number_of_times() -> None:
    machine = topic_machine(partitions=1)
    for count in range(2, TOPIC_GROWTHS_MAX + 2):
        assert isinstance(machine.execute(grow(partitions=count)), TopicGrown)
    refusal = LimitReached("topic_growths", TOPIC_GROWTHS_MAX)
    assert unchanged(machine, grow(partitions=500)) == refusal


def test_policies_decide_on_new_partitions_and_on_the_topic() -> None:
    machine = topic_machine(SetPolicy(0, "u", dedup=False), SetPolicy(0, "u/1", dedup=True))
    source = DedupSource(prefix="u")
    created = TopicCreated(2, "crc32", JSON, "i-u-0", True, None, source)
    assert machine.execute(create_topic("u", 2)) == created
    assert unchanged(machine, create_topic("u", 2)) == replace(created, is_new=False)
    assert machine.stream("u/0").tail.dedup_from is None
    assert machine.stream("u/1").tail.dedup_from == 0
    assert not machine.stream("u/0").tail.dedup_own
    machine.execute(SetPolicy(0, "u/3", dedup=True))
    machine.execute(grow("u", 4))
    assert machine.stream("u/2").tail.dedup_from is None
    assert machine.stream("u/3").tail.dedup_from == 0


def test_a_topic_can_have_its_own_setting_for_duplicates() -> None:
    machine = topic_machine()
    own = DedupSource(is_own=True)
    off = machine.execute(create_topic("u", dedup=False))
    assert off == TopicCreated(4, "crc32", JSON, "i-u-0", True, None, own)
    assert machine.execute(SwitchDedup("u", 0, dedup=True)) == Switched(0, 0, own)
    assert unchanged(machine, SwitchDedup("u/0", 0, dedup=False)) == StreamInTopic("u")


# ---- close and delete ----------------------------------------------------------------------------


def test_a_topic_is_closed_with_all_its_partitions() -> None:
    machine = topic_machine()
    assert machine.execute(close()) == TopicClosed()
    assert unchanged(machine, close()) == TopicClosed()
    assert unchanged(machine, append_topic((None, b"1"))) == StreamClosed(None)
    assert unchanged(machine, append(b"1", path="t/0", kind=JSON)) == StreamClosed(0)
    assert unchanged(machine, close("u")) == TopicNotFound()


def test_a_topic_is_not_closed_while_a_transaction_has_messages_in_it() -> None:
    machine = topic_machine(begin("x", streams=("t/1",)))
    machine.execute(publish(txn="x", path="t/1", body=b"1", kind=JSON))
    assert unchanged(machine, close()) == StreamInTransaction("x")
    machine.execute(commit("x"))
    assert machine.execute(close()) == TopicClosed()


def test_a_topic_is_deleted_with_all_its_partitions() -> None:
    machine = topic_machine(append_topic((b"k", b"1"), by=dense(0)), create("s"))
    assert machine.execute(delete()) == TopicDeleted(is_soft=False)
    assert list(machine.state.by_path) == ["s"]
    assert machine.state.dirty.topics == {}
    assert unchanged(machine, delete()) == TopicNotFound()
    assert isinstance(machine.execute(create_topic()), TopicCreated)
    assert machine.tails() == [0, 0, 0, 0]


def test_partitions_with_forks_are_kept_and_so_is_the_topic() -> None:
    machine = topic_machine(append_topic((None, b"1"), partition=1), fork("f", "t/1", 1))
    assert machine.execute(delete()) == TopicDeleted(is_soft=True)
    assert list(machine.state.by_path) == ["t", "t/1", "f"]
    for command in (delete(), close(), grow(), append_topic((None, b"1"))):
        assert unchanged(machine, command) == Gone()
    assert unchanged(machine, create_topic()) == StreamExists(("t", "t/1"))
    assert unchanged(machine, create("t")) == ConfigConflict("deleted")
    assert streams_of(reloaded(machine.state)) == streams_of(machine.state)
    assert machine.execute(Delete("f", 0)) == Deleted(is_soft=False)
    assert not machine.state.by_path
    assert isinstance(machine.execute(create_topic()), TopicCreated)


def test_a_topic_expires_with_all_its_partitions() -> None:
    machine = topic_machine(create_topic("u", ttl=5))
    assert unchanged(machine, Expire("u", 0, 4)) == StillAlive()
    assert unchanged(machine, Expire("u/0", 0, 9)) == StillAlive()
    assert machine.execute(Expire("u", 0, 5)) == Expired()
    assert "u" not in machine.state.by_path
    assert "u/3" not in machine.state.by_path


# ---- a topic is not a stream, and a partition belongs to its topic -------------------------------


def test_a_topic_is_no_stream() -> None:
    machine = topic_machine(append_topic((None, b"1"), partition=0))
    commands: list[EngineCommand] = [
        append(path="t"),
        Delete("t", 0),
        Trim("t", 0, 0),
        fork("f", "t"),
        Append("t", 0, None, close=True),
    ]
    for command in commands:
        assert unchanged(machine, command) == IsTopic(), command
    listed = StreamRefused("t", IsTopic())
    positions = SetPositions(0, (PositionMove("g", "t", 0),))
    assert unchanged(machine, positions) == listed
    pin = PinSnapshot(0, "g", 1, (SnapshotRange("t", "i-t-0", 0, 0),), "x")
    assert unchanged(machine, pin) == listed


def test_a_partition_is_deleted_and_closed_only_with_its_topic() -> None:
    machine = topic_machine()
    refusal = StreamInTopic("t")
    assert unchanged(machine, Delete("t/1", 0)) == refusal
    assert unchanged(machine, append(None, path="t/1", close=True)) == refusal
    assert unchanged(machine, append(b"1", path="t/1", kind=JSON, close=True)) == refusal


def test_a_partition_is_otherwise_a_stream() -> None:
    machine = topic_machine(append(b"1", path="t/1", kind=JSON), fork("f", "t/1"))
    assert machine.tails() == [0, 1, 0, 0]
    assert machine.execute(Trim("t/1", 0, 1)) == Trimmed(1)
    moved = SetPositions(0, (PositionMove("g", "t/1", 1),))
    machine.execute(moved)
    assert machine.stream("t/1").positions is not None
    assert machine.stream("f").row.topic == 0


def test_topics_are_found_before_anything_else() -> None:
    machine = topic_machine(create("s"))
    for path in ("s", "none"):
        for command in (
            grow(path),
            close(path),
            delete(path),
            append_topic((None, b"1"), path=path),
        ):
            assert unchanged(machine, command) == TopicNotFound()
    assert unchanged(machine, create_topic("s")) == StreamExists(("s",))
    assert unchanged(machine, Delete("none", 0)) == NotFound()


def test_the_next_frame_does_not_depend_on_a_reload() -> None:
    machine = topic_machine(append_topic((b"k", b"1"), by=dense(0)), grow(partitions=5, moves=True))
    twin = reloaded(machine.state)
    command = append_topic((b"k", b"2"), (None, b"3"), by=dense(1))
    assert validate_and_decide(twin, command) == validate_and_decide(machine.state, command)
    assert streams_of(twin) == streams_of(machine.state)


def test_rows_of_a_topic_that_do_not_belong_together_are_not_loaded() -> None:
    machine = topic_machine()
    machine.stream("t").topic = None
    with pytest.raises(KeyError):
        reloaded(machine.state)
    machine.stream("t/0").topic = TopicRow("crc32", (2,))
    with pytest.raises(KeyError):
        reloaded(machine.state)
