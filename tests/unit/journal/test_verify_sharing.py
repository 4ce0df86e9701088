"""Verification of topics and groups in a checkpoint: planted damage is found and reported."""

import re

import msgspec
import pytest
from msgspec.structs import replace

from semel.journal.verify import verify
from semel.machine.rows import (
    MEMBER_KEY,
    NUMBER_KEY,
    OWNED_KEY,
    GroupRow,
    KeyRow,
    MemberRow,
    ShareRow,
    StreamRow,
    TailRow,
    TopicRow,
)
from semel.model.commands import PositionMove, ProducerTag, SetPositions
from semel.model.outcomes import Refusal
from semel.model.topic_commands import DeleteTopic
from tests.unit.broker.test_transactions import TxnBed
from tests.unit.journal.test_verify_txns import Plant, damaged_rows, planted
from tests.unit.machine.builders import create, fork
from tests.unit.machine.topic_builders import (
    append_topic,
    create_topic,
    expire,
    grow,
    join,
    rebalance,
)

encode = msgspec.msgpack.encode
TOPIC = 3  # its number; the partitions have 4 to 6, and the stream s has 1
MEMBER = MemberRow("m9", ("s",), (), (), 30_000, 30_000, None, "earliest", 1)


def rich_bed() -> TxnBed:
    """Return a bed with a checkpoint of a topic that has grown, and of a group with a member."""
    bed = TxnBed()
    pairs = [(b"key-%d" % number, b"1") for number in range(20)]
    for command in (
        create_topic(partitions=2),
        append_topic(*pairs, by=ProducerTag("p", 0, 0, 0)),
        append_topic(*pairs, key="once"),
        grow(partitions=3, moves=True),
        join("m1", "s", topics=("t",)),
        join("m2", "s", topics=("t",)),
        join("h1", "s", group="h"),
        expire("h1", group="h"),
        SetPositions(0, (PositionMove("g", "s", 0, member="m1", member_epoch=1),)),
        rebalance(),
    ):
        assert not isinstance(bed.execute(command), Refusal), command
    bed.checkpoint()
    return bed


def topic_row(bed: TxnBed) -> TopicRow:
    row = bed.broker.state.by_number[TOPIC].topic
    assert row is not None
    return row


def test_topics_and_groups_are_sound_in_the_checkpoint_and_in_frames() -> None:
    bed = rich_bed()
    for _ in range(2):
        report = verify(bed.disk, bed.store)
        assert (report.is_sound, report.findings) == (True, [])
        bed.execute(grow(partitions=5, moves=True))
        bed.execute(append_topic(*((b"%d" % n, b"1") for n in range(20)), partitions=5))
        bed.execute(create_topic("u", 2))
        bed.execute(append_topic((b"k", b"1"), path="u"))
        bed.execute(rebalance())


def test_topics_and_groups_are_loaded_from_the_checkpoint_and_from_frames() -> None:
    bed = rich_bed()
    bed.execute(grow(partitions=4, moves=True))
    bed.execute(rebalance())
    bed.execute(join("m3", "s", topics=("t",), patterns=("s/*",)))

    def facts() -> object:
        state = bed.broker.state
        shares = {
            name: (share.row, share.members, share.streams, share.matches)
            for name, share in state.shares.items()
        }
        return shares, topic_row(bed), {n: s.row for n, s in state.by_number.items()}

    before = facts()
    bed.restart()
    assert facts() == before
    bed.checkpoint()
    bed.restart()
    assert facts() == before
    repeated = bed.execute(append_topic((b"key-0", b"1"), by=ProducerTag("p", 0, 0, 0)))
    assert getattr(repeated, "parts", None)


def test_a_topic_that_was_deleted_is_gone_from_the_checkpoint() -> None:
    bed = rich_bed()
    bed.execute(DeleteTopic("t", 0))
    bed.checkpoint()
    with bed.store.read() as view:
        assert list(view.scan("topics")) == []
        assert [OWNED_KEY.decode(key)[0] for key, _ in view.scan("shares")] == [1, 1]
    assert verify(bed.disk, bed.store).is_sound


def test_a_topic_that_is_kept_for_a_fork_is_sound() -> None:
    bed = rich_bed()
    bed.execute(fork("f", "t/1"))
    bed.execute(DeleteTopic("t", 0))
    bed.checkpoint()
    assert verify(bed.disk, bed.store).findings == []
    bed.restart()
    assert "t" in bed.broker.state.by_path


def stored_topic(key: int = TOPIC, **fields: object) -> Plant:
    row = TopicRow("crc32", (4, 5, 6), True, ((1, 1),))
    changed = replace(row, **fields)
    return lambda tables: tables.put("topics", NUMBER_KEY.encode(key), encode(changed))


def stored_stream(row: StreamRow) -> Plant:
    def plant(tables):  # type: ignore[no-untyped-def]
        key = NUMBER_KEY.encode(row.number)
        tables.put("streams", key, encode(row))
        tables.put("tails", key, encode(TailRow(0, 0, False, False, None, 0)))

    return plant


def stored_member(key: tuple[str, str] = ("g", "m9"), **fields: object) -> Plant:
    row = replace(MEMBER, **fields)
    return lambda tables: tables.put("members", MEMBER_KEY.encode(key), encode(row))


def stored_share(row: ShareRow, key: tuple[int, str] = (1, "g")) -> Plant:
    return lambda tables: tables.put("shares", OWNED_KEY.encode(key), encode(row))


def stored_key(parts: bytes, number: int = TOPIC) -> Plant:
    row = KeyRow(9, 0, 0, 0, 1, 0, parts)
    return lambda tables: tables.put("keys", OWNED_KEY.encode((number, "k")), encode(row))


CASES: list[tuple[str, Plant]] = [
    ("a topic that does not exist", stored_topic(1)),
    ("a topic that does not exist", stored_topic(77)),
    ("the partitioner 'fnv' is unknown", stored_topic(partitioner="fnv")),
    ("a partition of the topic does not exist", stored_topic(partitions=(4, 5, 6, 77))),
    ("stream 5 is not the partition 0", stored_topic(partitions=(5, 4, 6))),
    ("stream 1 is not the partition 3", stored_topic(partitions=(4, 5, 6, 1))),
    ("the topic did not grow to", stored_topic(fences=((1, 1, 1),))),
    ("the topic did not grow to", stored_topic(fences=((1, 1), (1, 1)))),
    ("the topic did not grow to", stored_topic(fences=((),))),
    ("grew at an offset that a partition does not have", stored_topic(fences=((1, 99),))),
    ("the row is missing or damaged", lambda t: t.delete("topics", NUMBER_KEY.encode(TOPIC))),
    (
        "the row is missing or damaged",
        stored_stream(StreamRow(9, "x", "i", "text/plain", 0, topic=9)),
    ),
    (
        "no topic has this partition",
        stored_stream(StreamRow(9, "t/9", "i", "text/plain", 0, topic=TOPIC, partition=9)),
    ),
    (
        "no topic has this partition",
        stored_stream(StreamRow(9, "x/9", "i", "text/plain", 0, topic=77, partition=9)),
    ),
    ("has the parts of an append to a topic", stored_key(bytes(16), 1)),
    ("the parts of an append have a wrong size", stored_key(bytes(15))),
    ("a part in the partition 3, which is missing", stored_key(b"\x03" + bytes(15))),
    ("cannot be decoded", lambda tables: tables.put("topics", NUMBER_KEY.encode(9), encode(1))),
    ("cannot be decoded", lambda tables: tables.put("groups", b"x", encode(1))),
    ("a group that does not exist: none", stored_member(("none", "m9"))),
    ("the key is wrong for the member m9", stored_member(("g", "m8"))),
    ("the field `streams` of the member", stored_member(streams=())),
    ("the field `session_timeout_ms` of the member", stored_member(session_timeout_ms=1)),
    ("the field `patterns` of the member", stored_member(patterns=("a//b",))),
    ("a stream that does not exist", stored_share(ShareRow(None, 1), (77, "g"))),
    ("a group that does not exist: none", stored_share(ShareRow(None, 1), (1, "none"))),
    ("the epoch or the number of starts", stored_share(ShareRow("m1", 0))),
    ("the epoch or the number of starts", stored_share(ShareRow("m1", 1, starts=-1))),
    ("starts were counted at version 9", stored_share(ShareRow("m1", 1, counted_version=9))),
    ("nobody owns the stream that must be", stored_share(ShareRow(None, 1, is_revoking=True))),
    ("the owner is not a member of the group: m9", stored_share(ShareRow("m9", 1))),
]


@pytest.mark.parametrize(("message", "plant"), CASES)
def test_planted_damage_is_found(message: str, plant: Plant) -> None:
    findings = planted(rich_bed(), plant)
    assert any(message in finding for finding in findings), findings
    assert all(re.match(r"table \w+, row [0-9a-f]+: ", finding) for finding in findings)


@pytest.mark.parametrize(
    "plant",
    [
        stored_topic(is_keyed=False),
        stored_member(),
        stored_share(ShareRow("m1", 5, starts=3, counted_version=1)),
        stored_share(ShareRow("gone", 5, is_revoking=True)),
        stored_key(bytes(32)),
        lambda tables: tables.put("groups", "é".encode(), encode(GroupRow(1, 2))),
    ],
)
def test_what_a_command_could_have_stored_is_sound(plant: Plant) -> None:
    assert planted(rich_bed(), plant) == []


@pytest.mark.parametrize("table", ["topics", "groups", "members", "shares"])
def test_a_damaged_or_missing_row_is_found(table: str) -> None:
    for findings in damaged_rows(rich_bed, table):
        assert any(each.startswith(f"table {table}") for each in findings), findings


def test_a_stream_that_is_no_partition_is_left_alone() -> None:
    bed = rich_bed()
    bed.execute(create("x", now=bed.now_ms))
    bed.checkpoint()
    assert verify(bed.disk, bed.store).is_sound
