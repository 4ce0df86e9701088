"""Appends to topics: the choice of partitions, duplicates, and the checks.

The numbers are rows of `docs/reference/topics.md`.
"""

import struct
from zlib import crc32

import pytest
from msgspec.structs import replace

from semel.machine import MachineLimits, apply, topic_receipts
from semel.machine.events import Section, StreamAppended
from semel.machine.topic_receipts import PART_BYTES, unpack_parts
from semel.model.commands import Batch, EngineCommand, ForgetProducer
from semel.model.errors import InvariantBroken
from semel.model.limits import NUMBER_MAX
from semel.model.messages import encode_extras
from semel.model.outcomes import (
    BadBody,
    Claimed,
    ContentTypeConflict,
    InvalidRequest,
    KeyReused,
    LimitReached,
    PayloadMismatch,
    ProducerStateExpired,
    SequenceGap,
    StaleEpoch,
)
from semel.model.outcomes_topics import (
    NoSuchPartition,
    PartitionsChanged,
    TopicGrown,
    TopicStored,
)
from semel.model.partitioners import MURMUR2, partition_of
from semel.model.policies import SetPolicy
from semel.model.producer_commands import RetiredProducer, RetireProducers
from semel.model.slices import Slice
from semel.model.topic_commands import AppendTopic
from tests.unit.machine.builders import (
    JSON,
    TEXT,
    append,
    bury,
    claim,
    dense,
    json_batch,
    reloaded,
    sparse,
    unchanged,
)
from tests.unit.machine.topic_builders import (
    append_parts,
    append_topic,
    create_topic,
    grow,
    keyed_batch,
    stored,
    streams_of,
    topic_machine,
)

LATE = RetiredProducer("p", "t", 0)
TIME_MS = 77
KEYS = [f"key-{number}".encode() for number in range(20)]


def slice_of(section: Section) -> Slice:
    """Return the messages of a section, as readers get them."""
    return Slice(
        section.base,
        section.count,
        section.payload,
        section.lengths,
        section.is_joined,
        TIME_MS,
        section.extras,
    )


# ---- partitions ----------------------------------------------------------------------------------


# T7
@pytest.mark.parametrize("partitioner", ["crc32", "murmur2"])
@pytest.mark.parametrize("kind", [JSON, TEXT])
def test_messages_go_where_their_keys_are_sent_and_keep_their_order(
    partitioner: str, kind: str
) -> None:
    machine = topic_machine(create_topic("u", partitioner=partitioner, kind=kind))
    pairs = [(key, b"%d" % number) for number, key in enumerate(KEYS * 2)]
    outcome = machine.execute(append_topic(*pairs, path="u", kind=kind))
    assert isinstance(outcome, TopicStored)
    expected: dict[int, list[bytes]] = {}
    for key, body in pairs:
        expected.setdefault(partition_of(partitioner, key, 4), []).append(body)
    comma = b"," if kind == JSON else b""
    for partition, bodies in expected.items():
        assert machine.payloads(f"u/{partition}") == [comma.join(bodies)]
    parts = [(p, 0, len(expected[p])) for p in sorted(expected)]
    assert outcome == stored(*parts)
    written = machine.journal[-1]
    for section in written.sections:
        partition = machine.state.by_number[section.stream].row.partition
        keys = slice_of(section).keys()
        assert all(key and partition_of(partitioner, key, 4) == partition for key in keys)
        assert section.is_joined == (kind == JSON and section.count > 1)
    row = machine.stream("u").topic
    assert row is not None
    assert row.is_keyed
    assert machine.stream("u").tail.tail == 40


# T7
def test_a_single_message_goes_where_its_key_is_sent() -> None:
    machine = topic_machine()
    for key in KEYS:
        partition = crc32(key) % 4
        tail = machine.tails()[partition]
        assert machine.execute(append_topic((key, b"1"))) == stored((partition, tail, tail + 1))


# T8
def test_messages_without_keys_go_to_the_hint_or_where_their_checksum_sends_them() -> None:
    machine = topic_machine()
    for body in (b"1", b"22", b"333"):
        partition = crc32(body) % 4
        tail = machine.tails()[partition]
        assert machine.execute(append_topic((None, body))) == stored((partition, tail, tail + 1))
    for hint in (0, 3, 6):
        tail = machine.tails()[hint % 4]
        outcome = machine.execute(append_topic((None, b"1"), hint=hint))
        assert outcome == stored((hint % 4, tail, tail + 1))
    bodies = [b"%d" % number for number in range(30)]
    before = machine.tails()
    machine.execute(append_topic(*((None, body) for body in bodies)))
    counts = [sum(crc32(body) % 4 == partition for body in bodies) for partition in range(4)]
    assert machine.tails() == [a + b for a, b in zip(before, counts, strict=True)]
    row = machine.stream("t").topic
    assert row is not None
    assert not row.is_keyed


# T7, T8
def test_keys_and_missing_keys_are_sent_apart() -> None:
    machine = topic_machine()
    key = next(key for key in KEYS if crc32(key) % 4 == 1)
    outcome = machine.execute(append_topic((key, b"1"), (None, b"2"), (key, b"3"), hint=3))
    assert outcome == stored((1, 0, 2), (3, 0, 1))
    one, three = machine.journal[-1].sections
    assert slice_of(one).keys() == [key, key]
    assert slice_of(three).keys() == [None]


# T9
def test_all_messages_go_to_a_partition_that_is_picked_by_hand() -> None:
    machine = topic_machine()
    pairs = [(key, b"1") for key in KEYS]
    assert machine.execute(append_topic(*pairs, partition=2)) == stored((2, 0, 20))
    assert unchanged(machine, append_topic(*pairs, partition=4)) == NoSuchPartition(4, 4)


# T10
def test_a_client_can_select_the_partitions() -> None:
    machine = topic_machine()
    one, three = keyed_batch((b"a", b"1"), (b"b", b"2")), Batch(b"3")
    outcome = machine.execute(append_parts((1, one), (3, three)))
    assert outcome == stored((1, 0, 2), (3, 0, 1))
    assert machine.payloads("t/1") == [b"1,2"]
    assert machine.payloads("t/3") == [b"3"]
    assert machine.execute(append_parts((3, three))) == stored((3, 1, 2))


# T12, T13
def test_partitions_that_are_not_there_are_refused() -> None:
    machine = topic_machine()
    batch = Batch(b"1")
    changed = PartitionsChanged(4, "crc32")
    assert unchanged(machine, append_parts((0, batch), of=5)) == changed
    assert unchanged(machine, append_topic((b"k", b"1"), partitions=5)) == changed
    assert unchanged(machine, append_parts((0, batch), (4, batch))) == NoSuchPartition(4, 4)
    machine.execute(grow(partitions=5))
    assert unchanged(machine, append_parts((0, batch))) == PartitionsChanged(5, "crc32")
    assert machine.execute(append_parts((4, batch), of=5)) == stored((4, 0, 1))


# T12
def test_partitions_that_another_partitioner_has_selected_are_refused() -> None:
    machine = topic_machine(create_topic("u", partitioner="murmur2"))
    grouped = replace(append_parts((0, Batch(b"1"))), partitioner="murmur2")
    assert unchanged(machine, grouped) == PartitionsChanged(4, "crc32")
    assert unchanged(machine, replace(grouped, path="u", partitioner="crc32")) == PartitionsChanged(
        4, "murmur2"
    )
    assert machine.execute(replace(grouped, path="u")) == stored((0, 0, 1))
    single = append_topic((b"k", b"1"), partitions=4, partitioner="murmur2")
    assert unchanged(machine, single) == PartitionsChanged(4, "crc32")
    partition = crc32(b"k") % 4
    assert machine.execute(replace(single, partitioner="crc32")) == stored((partition, 0, 1))


# T12, T14
def test_a_repeat_is_recognised_in_whatever_way_it_was_grouped() -> None:
    machine = topic_machine()
    command = replace(append_parts((0, Batch(b"1"))), producer=dense(0), partitioner="crc32")
    first = machine.execute(command)
    again = unchanged(machine, replace(command, partitioner="murmur2"))
    assert again == replace(first, is_duplicate=True)


def test_extras_go_with_their_messages() -> None:
    machine = topic_machine()
    keys = [b"a", None, b"b", b"a"]
    times = [1, None, 3, 4]
    headers = [[("n", b"0")], [], [("n", b"2")], [("n", b"3")]]
    extras = encode_extras(4, keys=keys, headers=headers, timestamps=times)
    batch = replace(json_batch(b"0", b"1", b"2", b"3"), extras=extras)
    command = AppendTopic("t", 0, JSON, batch, hint=0)
    machine.execute(command)
    seen: dict[bytes, tuple[object, object, object]] = {}
    for section in machine.journal[-1].sections:
        part = slice_of(section)
        rows = zip(part.messages(), part.keys(), part.timestamps(), part.headers(), strict=True)
        seen.update({body: (key, time, own) for body, key, time, own in rows})
    expected = {b"%d" % n: (keys[n], times[n] or TIME_MS, headers[n]) for n in range(4)}
    assert seen == expected


# ---- the checks ----------------------------------------------------------------------------------


# T11
def test_the_checks_of_an_append_hold_for_a_topic() -> None:
    machine = topic_machine(append_topic((b"k", b"1"), by=dense(0)))
    assert unchanged(machine, append_topic((b"k", b"1"), kind=TEXT)) == ContentTypeConflict(JSON)
    assert unchanged(machine, append_topic(error="no")) == BadBody("no")
    gap = unchanged(machine, append_topic((b"k", b"1"), by=dense(5)))
    assert isinstance(gap, SequenceGap)
    machine.execute(append_topic((b"k", b"1"), by=dense(0, epoch=3)))
    stale = unchanged(machine, append_topic((b"k", b"1"), by=dense(1, epoch=2)))
    assert isinstance(stale, StaleEpoch)


# T11
def test_the_checks_of_partitions_come_after_those_of_the_producer() -> None:
    machine = topic_machine(append_topic((b"k", b"1"), by=dense(0)))
    wrong = append_topic((b"k", b"1"), by=dense(5), partitions=9)
    assert isinstance(unchanged(machine, wrong), SequenceGap)
    assert unchanged(machine, append_topic(error="no", partitions=9)) == PartitionsChanged(
        4, "crc32"
    )
    assert unchanged(machine, append_topic((b"k", b"1"), by=dense(1), partitions=9)) == (
        PartitionsChanged(4, "crc32")
    )


def test_each_part_of_a_client_is_checked() -> None:
    machine = topic_machine(create_topic("u", kind=TEXT))
    good, bad = Batch(b"12", 2, struct.pack("<II", 1, 1)), Batch(b"12", 2, struct.pack("<II", 1, 9))
    refusal = BadBody("the lengths of the messages do not add up to the length of the body")
    parts = append_parts((0, good), (1, bad), path="u", kind=TEXT)
    assert unchanged(machine, parts) == refusal
    extras = encode_extras(2, keys=[b"a", b"b"])
    damaged = replace(good, extras=extras[:-1])
    outcome = unchanged(machine, append_parts((0, good), (1, damaged), path="u", kind=TEXT))
    assert isinstance(outcome, BadBody)
    sound = replace(good, extras=extras)
    done = machine.execute(append_parts((0, good), (1, sound), path="u", kind=TEXT))
    assert done == stored((0, 0, 2), (1, 0, 2))
    one = replace(Batch(b"12"), extras=encode_extras(1, keys=[b"k"]))
    done = machine.execute(append_parts((2, one), (3, Batch(b"")), path="u", kind=TEXT))
    assert done == stored((2, 0, 1), (3, 0, 1))


def test_limits_of_producers_hold_for_a_topic() -> None:
    machine = topic_machine(limits=MachineLimits(producers_per_stream=1))
    machine.execute(append_topic((b"k", b"1"), by=dense(0)))
    outcome = unchanged(machine, append_topic((b"k", b"1"), by=dense(0, name="q")))
    assert outcome == LimitReached("producers_per_stream", 1)


# ---- duplicates ----------------------------------------------------------------------------------


# T14
def test_a_repeat_of_a_producer_is_answered_with_the_first_parts() -> None:
    machine = topic_machine()
    pairs = [(key, b"%d" % number) for number, key in enumerate(KEYS)]
    command = append_topic(*pairs, by=dense(0, epoch=0))
    first = machine.execute(command)
    assert isinstance(first, TopicStored)
    assert (first.epoch, first.seq) == (0, 0)
    assert not first.is_duplicate
    machine.execute(append_topic((b"k", b"other"), by=dense(1, epoch=0)))
    again = unchanged(machine, command)
    assert again == replace(first, is_duplicate=True, seq=1)


# T14
def test_a_repeat_goes_nowhere_else_after_a_growth() -> None:
    machine = topic_machine()
    command = append_topic(*((key, b"1") for key in KEYS), by=dense(0), partitions=4)
    first = machine.execute(command)
    assert isinstance(first, TopicStored)
    assert isinstance(machine.execute(grow(partitions=9, moves=True)), TopicGrown)
    assert unchanged(machine, command) == replace(first, is_duplicate=True)
    assert unchanged(machine, replace(command, partitions=9)) == replace(first, is_duplicate=True)
    twin = reloaded(machine.state)
    assert streams_of(twin) == streams_of(machine.state)


# T14
def test_a_repeat_with_other_messages_is_noticed() -> None:
    machine = topic_machine(append_topic((b"k", b"1"), (b"l", b"2"), by=dense(0, epoch=0)))
    changed = append_topic((b"k", b"1"), (b"l", b"3"), by=dense(0, epoch=0))
    outcome = unchanged(machine, changed)
    assert isinstance(outcome, TopicStored)
    assert outcome.is_mismatch
    strict = append_topic((b"k", b"1"), (b"l", b"3"), by=dense(0, epoch=0, strict=True))
    assert isinstance(unchanged(machine, strict), PayloadMismatch)
    equal = append_topic((b"k", b"1"), (b"l", b"2"), by=dense(0, epoch=0, strict=True))
    assert isinstance(unchanged(machine, equal), TopicStored)


# T14
def test_parts_are_kept_as_long_as_receipts() -> None:
    machine = topic_machine(limits=MachineLimits(receipts=4))
    outcomes = [
        machine.execute(append_topic((b"%d" % seq, b"1"), by=dense(seq, epoch=0)))
        for seq in range(60)
    ]
    producers = machine.stream("t").producers
    assert producers is not None
    parts = producers["p"].parts
    assert parts is not None
    assert len(parts) <= 2 * 4 + 16
    known = []
    for seq, first in enumerate(outcomes):
        assert isinstance(first, TopicStored)
        again = unchanged(machine, append_topic((b"%d" % seq, b"1"), by=dense(seq, epoch=0)))
        assert isinstance(again, TopicStored)
        assert again.is_duplicate
        if again.parts is not None:
            known.append(seq)
            assert again.parts == first.parts
    assert known == [0, 56, 57, 58, 59]  # the first, and the newest


# T14
def test_the_parts_of_a_producer_need_a_limited_number_of_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(topic_receipts, "_PARTS_BYTES_MAX", 5 * PART_BYTES)
    machine = topic_machine()
    wide = tuple((key, b"1") for key in KEYS)
    for seq in range(3):
        machine.execute(append_topic(*wide, by=dense(seq, epoch=0)))
        again = unchanged(machine, append_topic(*wide, by=dense(seq, epoch=0)))
        assert isinstance(again, TopicStored)
        assert again.parts is not None, "the newest is always there"
        assert len(again.parts) == 4
    machine.execute(append_topic((b"k", b"1"), by=dense(3, epoch=0)))
    known = []
    for seq in range(4):
        messages = wide if seq < 3 else ((b"k", b"1"),)
        again = unchanged(machine, append_topic(*messages, by=dense(seq, epoch=0)))
        assert isinstance(again, TopicStored)
        assert again.is_duplicate
        known += [seq] if again.parts is not None else []
    assert known == [2, 3]
    assert streams_of(reloaded(machine.state)) == streams_of(machine.state)
    for seq in range(4, 10):
        machine.execute(append_topic((b"k", b"1"), by=dense(seq, epoch=0)))
    producers = machine.stream("t").producers
    assert producers is not None
    assert len(producers["p"].parts or ()) == 5, "no more are dropped than necessary"


def test_the_parts_of_a_row_that_a_checkpoint_refers_to_do_not_change() -> None:
    machine = topic_machine(append_topic((b"k", b"1"), by=dense(0, epoch=0)))
    producers = machine.stream("t").producers
    assert producers is not None
    row = producers["p"]
    assert row.parts is not None
    before = dict(row.parts)
    machine.state.cuts += 1  # a checkpoint was taken
    machine.execute(append_topic((b"k", b"1"), by=dense(1)))
    assert row.parts == before
    assert producers["p"].parts != before


# T14
@pytest.mark.parametrize("end", [bury(path="t"), RetireProducers(0, (LATE,))])
def test_a_repeat_of_a_producer_that_has_ended_is_refused(end: EngineCommand) -> None:
    machine = topic_machine(append_topic((b"k", b"1"), by=dense(0, epoch=0)), end)
    again = unchanged(machine, append_topic((b"k", b"1"), by=dense(0, epoch=0)))
    assert again == ProducerStateExpired(0)
    producers = machine.stream("t").producers
    assert producers is not None
    assert producers["p"].parts is None


# T15
def test_an_idempotency_key_is_answered_with_the_first_parts() -> None:
    machine = topic_machine()
    pairs = [(key, b"1") for key in KEYS]
    first = machine.execute(append_topic(*pairs, key="once"))
    assert isinstance(first, TopicStored)
    machine.execute(grow(partitions=9, moves=True))
    assert unchanged(machine, append_topic(*pairs, key="once")) == replace(first, is_duplicate=True)
    assert unchanged(machine, append_topic((b"k", b"9"), key="once")) == KeyReused()
    keys = machine.stream("t").keys
    assert keys is not None
    assert unpack_parts(keys["once"].parts) == first.parts


def test_a_sparse_producer_and_a_session_belong_to_the_topic() -> None:
    machine = topic_machine()
    command = append_topic((b"k", b"1"), by=sparse(5, 9, name="q"))
    first = machine.execute(command)
    assert unchanged(machine, command) == replace(first, is_duplicate=True)
    outcome = machine.execute(claim("s1", path="t"))
    assert isinstance(outcome, Claimed)
    append = append_topic((b"k", b"1"), by=dense(0, epoch=outcome.epoch, session="s1"))
    assert isinstance(machine.execute(append), TopicStored)
    machine.execute(ForgetProducer("t", 0, "p"))
    assert "p" not in (machine.stream("t").producers or {})


def test_a_claim_keeps_the_parts_of_the_producer() -> None:
    machine = topic_machine(append_topic((b"k", b"1"), by=dense(0, epoch=0)))
    machine.execute(claim("s1", path="t"))
    producers = machine.stream("t").producers
    assert producers is not None
    assert producers["p"].parts


def test_a_producer_of_a_partition_is_another_one() -> None:
    machine = topic_machine(append_topic((b"k", b"1"), by=dense(0)))
    direct = append(b"1", path="t/0", kind=JSON, by=dense(0))
    machine.execute(direct)
    assert machine.stream("t/0").producers is not None
    row = machine.stream("t").producers
    assert row is not None
    assert row["p"].last_seq == 0


# ---- duplicate detection is off ------------------------------------------------------------------


def test_a_topic_without_detection_stores_everything() -> None:
    machine = topic_machine(create_topic("u", dedup=False))
    for number in range(2):
        first = machine.execute(append_topic((b"k", b"1"), path="u", by=dense(0)))
        partition = crc32(b"k") % 4
        assert first == stored(
            (partition, number, number + 1), epoch=None, seq=0, is_unguarded=True
        )
    again = machine.execute(append_topic((b"k", b"1"), path="u", key="k"))
    assert isinstance(again, TopicStored)
    assert again.is_unguarded
    assert machine.stream("u").producers is None


def test_a_policy_that_is_due_switches_the_topic_with_an_append() -> None:
    machine = topic_machine(append_topic((b"k", b"1"), by=dense(0)))
    machine.execute(SetPolicy(0, "t", dedup=False))
    machine.execute(append_topic((b"k", b"1")))
    assert machine.stream("t").tail.dedup_from is None
    assert not machine.stream("t").producers
    machine.execute(SetPolicy(0, "t", dedup=True))
    command = append_topic((b"k", b"1"), by=dense(0))
    first = machine.execute(command)
    assert machine.stream("t").tail.dedup_from == 2
    assert unchanged(machine, command) == replace(first, is_duplicate=True)
    plain = unchanged(machine, append_topic(error="no", key="k"))
    assert plain == BadBody("no")


# ---- invalid commands and frames -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"path": ""}, "topic"),
        ({"path": "x" * 501}, "topic"),
        ({"batch": Batch(b"12", 2, b"")}, "batch"),
        ({"batch": Batch(b"1"), "parts": ((0, Batch(b"1")),)}, "batch"),
        ({"batch": None}, "batch"),
        ({"batch": None, "parts": ((1, Batch(b"1")), (0, Batch(b"1"))), "partitions": 4}, "parts"),
        ({"batch": None, "parts": ((1, Batch(b"1")), (1, Batch(b"1"))), "partitions": 4}, "parts"),
        ({"batch": None, "parts": ((1, Batch(b"1")),)}, "partitions"),
        ({"partition": -1}, "partition"),
        ({"hint": NUMBER_MAX + 1}, "partition"),
        ({"partitions": -1}, "partition"),
        ({"partitioner": "md5"}, "partitioner"),
        ({"key": ""}, "idempotency_key"),
        ({"producer": dense(-1)}, "producer_seq"),
    ],
)
def test_an_invalid_append_names_its_field(change: dict[str, object], field: str) -> None:
    command = replace(append_topic((b"k", b"1")), **change)
    assert unchanged(topic_machine(), command) == InvalidRequest(field)


def test_too_many_messages_over_all_parts_are_invalid() -> None:
    many = Batch(b",".join([b"1"] * 6_000), 6_000, struct.pack("<I", 1) * 6_000)
    command = append_parts((0, many), (1, many))
    assert unchanged(topic_machine(), command) == InvalidRequest("parts")


@pytest.mark.parametrize(
    "change",
    [{"stream": 1}, {"stream": 6}, {"base": 1}],
    ids=["the topic", "another stream", "a gap"],
)
def test_a_section_that_does_not_fit_its_topic_is_not_applied(change: dict[str, int]) -> None:
    machine = topic_machine(create_topic("u", 1))
    section = replace(Section(2, 0, 1, b"1"), **change)
    with pytest.raises(InvariantBroken):
        apply(machine.state, StreamAppended(1), (section,), 0)


def test_nothing_is_applied_to_a_closed_topic() -> None:
    machine = topic_machine()
    topic = machine.stream("t")
    topic.tail = replace(topic.tail, is_closed=True)
    with pytest.raises(InvariantBroken):
        apply(machine.state, StreamAppended(1), (Section(2, 0, 1, b"1"),), 0)


def test_murmur2_is_fixed_at_the_creation_of_a_topic() -> None:
    machine = topic_machine(create_topic("u", 7, partitioner=MURMUR2))
    machine.execute(append_topic(*((key, b"1") for key in KEYS), path="u"))
    counts = [sum(partition_of(MURMUR2, key, 7) == n for key in KEYS) for n in range(7)]
    assert machine.tails("u") == counts
