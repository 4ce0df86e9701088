"""Topics in transactions: inline, staged, and in one-shot commits.

The numbers are rows of `docs/reference/topics.md`.
"""

from zlib import crc32

import pytest
from msgspec.structs import replace

from semel.machine import MachineLimits
from semel.machine.events import SECTION_CONTROL, SECTION_DATA, SECTION_STAGED, StreamConfigured
from semel.model.commands import (
    TXN_STAGED,
    Append,
    Batch,
    Begin,
    CommitAppend,
    ForgetProducer,
    PositionMove,
    SwitchDedup,
    TxnTag,
)
from semel.model.outcomes import (
    Appended,
    Duplicate,
    InvalidRequest,
    LimitReached,
    NotFound,
    SequenceGap,
)
from semel.model.outcomes_topics import (
    IsTopic,
    KeysWouldMove,
    NoSuchPartition,
    TopicDeleted,
    TopicGrown,
    TopicStored,
)
from semel.model.outcomes_txn import (
    CommitDone,
    PartitionNotInTxn,
    Staged,
    StreamInTransaction,
    StreamRefused,
)
from semel.model.policies import SetPolicy
from semel.model.topic_commands import AppendTopic, DeleteTopic
from tests.unit.machine.builders import JSON, append, create, dense, fork, reloaded, unchanged
from tests.unit.machine.topic_builders import (
    TopicMachine,
    append_parts,
    append_topic,
    create_topic,
    grow,
    keyed_batch,
    stored,
    streams_of,
    topic_machine,
)
from tests.unit.machine.txn_builders import (
    abort,
    add_streams,
    begin,
    by,
    chunk,
    commit,
    one_shot,
    prepare,
    publish,
)

KEYS = [f"key-{number}".encode() for number in range(12)]
PAIRS = [(key, b"%d" % number) for number, key in enumerate(KEYS)]


def inside(
    *pairs: tuple[bytes | None, bytes], seq: int = 0, txn: str = "x", epoch: int = 1
) -> AppendTopic:
    """Return an append to an inline transaction, by producer p at epoch 0."""
    return append_topic(*pairs, by=dense(seq, epoch=0), txn=TxnTag(txn, epoch))


def staged(*pairs: tuple[bytes | None, bytes], seq: int = 0, strict: bool = False) -> AppendTopic:
    return append_topic(*pairs, txn=TxnTag("x", 1, seq, is_strict=strict))


# ---- inline --------------------------------------------------------------------------------------


# T18
def test_the_partitions_of_an_append_join_its_transaction() -> None:
    machine = topic_machine(begin("x", streams=("t",)))
    first = machine.execute(inside(*PAIRS))
    assert isinstance(first, TopicStored)
    assert first.parts is not None
    tails = machine.tails()
    assert sum(tails) == len(PAIRS)
    assert machine.stables() == [0, 0, 0, 0]
    again = unchanged(machine, inside(*PAIRS))
    assert again == replace(first, is_duplicate=True)
    assert isinstance(unchanged(machine, inside(*PAIRS, seq=5)), SequenceGap)
    outcome = machine.execute(commit("x"))
    assert isinstance(outcome, CommitDone)
    touched = {part.partition for part in first.parts}
    assert machine.tails() == [tail + (p in touched) for p, tail in enumerate(tails)]
    assert machine.stables() == machine.tails()
    controls = [s.stream for s in machine.journal[-1].sections if s.kind == SECTION_CONTROL]
    assert controls == [p + 2 for p in sorted(touched)]
    assert [machine.stream(f"t/{p}").tail.controls for p in touched] == [1] * len(touched)
    assert machine.stream("t").tail.controls == 0


# T18
def test_an_aborted_append_leaves_all_its_partitions() -> None:
    machine = topic_machine(begin("x", streams=("t",)))
    machine.execute(inside(*PAIRS))
    machine.execute(abort("x"))
    assert machine.stables() == machine.tails()
    assert {row.stream for row in machine.aborted} == {
        machine.stream(f"t/{p}").row.number for p, tail in enumerate(machine.tails()) if tail
    }


# T18
def test_a_transaction_names_the_topic_or_nothing() -> None:
    machine = topic_machine(create("s"), begin("x", streams=("s",)))
    assert unchanged(machine, inside(*PAIRS)) == PartitionNotInTxn()
    machine.execute(begin("y", by("q"), implicit=True, streams=()))
    later = append_topic(*PAIRS, by=dense(0, epoch=0, name="q"), txn=TxnTag("y", 1))
    assert isinstance(machine.execute(later), TopicStored)


# T18
def test_a_transaction_on_a_topic_includes_its_partitions() -> None:
    machine = topic_machine(begin("x", streams=("t",)))
    direct = publish(0, b"1", txn="x", path="t/2", kind=JSON)
    machine.execute(direct)
    assert machine.stream("t/2").open == {1: 0}
    machine.execute(commit("x"))
    assert machine.stables() == [0, 0, 2, 0]


# T18
def test_an_append_in_a_transaction_is_checked_like_others() -> None:
    machine = topic_machine(begin("x", streams=("t",)))
    with_key = replace(inside(*PAIRS), key="k", producer=None)
    assert isinstance(unchanged(machine, with_key), InvalidRequest)
    assert unchanged(machine, replace(inside(*PAIRS), partition=9)) == NoSuchPartition(9, 4)
    invalid = replace(inside(*PAIRS), transaction=TxnTag("", 1))
    assert isinstance(unchanged(machine, invalid), InvalidRequest)


# T19
def test_the_touched_partitions_count_as_streams_of_a_transaction() -> None:
    machine = topic_machine(create("s"), limits=MachineLimits(txn_streams=2))
    machine.execute(begin("x", streams=("t", "s")))  # the topic itself does not count
    full = LimitReached("transaction_streams", 2)
    one = append_topic((None, b"1"), by=dense(0, epoch=0), txn=TxnTag("x", 1), partition=1)
    assert unchanged(machine, inside(*PAIRS)) == full
    assert isinstance(machine.execute(one), TopicStored)
    two = append_topic((None, b"1"), by=dense(1, epoch=0), txn=TxnTag("x", 1), partition=2)
    assert unchanged(machine, two) == full
    again = replace(two, partition=1)
    assert isinstance(machine.execute(again), TopicStored)


# T19
def test_a_staged_transaction_that_names_a_topic_can_write_to_all_its_partitions() -> None:
    machine = topic_machine(begin_staged("t"), limits=MachineLimits(txn_streams=4))
    for partition in range(4):
        assert isinstance(machine.execute(chunk_for(partition)), Staged)
    limited = topic_machine(begin_staged("t"), limits=MachineLimits(txn_streams=3))
    for partition in range(3):
        assert isinstance(limited.execute(chunk_for(partition)), Staged)
    assert unchanged(limited, chunk_for(3)) == LimitReached("transaction_streams", 3)


def chunk_for(partition: int) -> Append:
    return chunk(partition, b"1", txn="x", path=f"t/{partition}", kind=JSON)


def test_a_topic_in_a_transaction_is_deleted_with_what_is_pending() -> None:
    machine = topic_machine(begin("x", streams=("t",)))
    machine.execute(inside(*PAIRS))
    assert machine.execute(DeleteTopic("t", 0)) == TopicDeleted(is_soft=False)
    outcome = machine.execute(commit("x"))
    assert isinstance(outcome, CommitDone)
    assert not machine.state.by_path


def test_a_policy_does_not_switch_a_topic_in_a_transaction() -> None:
    machine = topic_machine(begin("x", streams=("t",)))
    machine.execute(inside(*PAIRS))
    machine.execute(SetPolicy(0, "t", dedup=False))
    machine.execute(append_topic((b"k", b"1")))
    assert machine.stream("t").tail.dedup_from == 0
    refusal = unchanged(machine, SwitchDedup("t", 0, dedup=False))
    assert refusal == StreamInTransaction("x")
    machine.execute(commit("x"))
    machine.execute(append_topic((b"k", b"1")))
    assert machine.stream("t").tail.dedup_from is None


def test_a_producer_with_pending_messages_in_a_topic_is_not_forgotten() -> None:
    machine = topic_machine(begin("x", streams=("t",)))
    machine.execute(inside(*PAIRS))
    assert unchanged(machine, ForgetProducer("t", 0, "p")) == StreamInTransaction("x")


def test_a_higher_epoch_fences_the_transaction_in_the_same_frame() -> None:
    machine = topic_machine(begin("x", streams=("t",)))
    machine.execute(inside(*PAIRS))
    before = machine.tails()
    raised = machine.execute(append_topic(*PAIRS, by=dense(0, epoch=1)))
    assert isinstance(raised, TopicStored)
    assert raised.parts is not None
    sections = machine.journal[-1].sections
    data = [s for s in sections if s.kind == SECTION_DATA]
    controls = [s for s in sections if s.kind == SECTION_CONTROL]
    assert len(data) == len(raised.parts)
    assert [part.first_offset for part in raised.parts] == [
        before[part.partition] for part in raised.parts
    ]
    assert {s.stream for s in controls} == {s.stream for s in data}
    assert machine.stables() == machine.tails()
    assert streams_of(reloaded(machine.state)) == streams_of(machine.state)


@pytest.mark.parametrize("expires", [0, 60_000])
def test_the_first_append_to_another_topic_fences_too(expires: int) -> None:
    machine = topic_machine(create_topic("u"), begin("x", streams=("t",)))
    machine.execute(inside(*PAIRS))
    tag = replace(dense(0, epoch=1), expires_ms=expires)
    raised = machine.execute(append_topic(*PAIRS, path="u", by=tag))
    assert isinstance(raised, TopicStored)
    assert machine.stables() == machine.tails()
    assert sum(machine.tails("u")) == len(PAIRS)


def test_an_append_that_switches_detection_on_fences_too() -> None:
    machine = topic_machine(
        SetPolicy(0, "u", dedup=False),
        create_topic("u"),
        SetPolicy(0, "u", dedup=True),
        begin("x", streams=("t",)),
    )
    machine.execute(inside(*PAIRS))
    raised = machine.execute(append_topic(*PAIRS, path="u", by=dense(0, epoch=1)))
    assert isinstance(raised, TopicStored)
    assert isinstance(machine.journal[-1].event, StreamConfigured)
    assert machine.stables() == machine.tails()
    assert machine.stream("u").tail.dedup_from == 0


def test_an_aborted_transaction_leaves_the_receipts_of_a_topic() -> None:
    machine = topic_machine(begin("x", streams=("t",)))
    outcomes = [machine.execute(inside(*PAIRS, seq=seq)) for seq in range(3)]
    machine.execute(commit("x"))
    assert streams_of(reloaded(machine.state)) == streams_of(machine.state)
    machine.execute(begin("x", streams=("t",)))
    for seq, first in enumerate(outcomes):
        later = machine.execute(inside(*PAIRS, seq=seq, epoch=2))
        assert isinstance(later, TopicStored)
        assert isinstance(first, TopicStored)
        assert not later.is_duplicate
        assert later.parts != first.parts


def test_the_parts_of_the_first_append_of_a_transaction_are_kept() -> None:
    machine = topic_machine(
        append_topic((b"k", b"0"), by=dense(0, epoch=0)),
        begin("x", streams=("t",)),
        limits=MachineLimits(receipts=4),
    )
    first = machine.execute(inside((b"k", b"1"), seq=1))
    for seq in range(2, 50):
        machine.execute(inside((b"k", b"1"), seq=seq))
    again = unchanged(machine, inside((b"k", b"1"), seq=1))
    assert isinstance(first, TopicStored)
    assert isinstance(again, TopicStored)
    assert (again.parts, again.is_duplicate) == (first.parts, True)


# ---- staged --------------------------------------------------------------------------------------


def begin_staged(*streams: str) -> Begin:
    return begin("x", kind=TXN_STAGED, streams=streams or ("t",))


# T20
def test_a_staged_append_has_a_chunk_for_each_partition_and_one_sequence() -> None:
    machine = topic_machine(begin_staged())
    assert isinstance(machine.execute(staged(*PAIRS)), Staged)
    assert {section.kind for section in machine.journal[-1].sections} == {SECTION_STAGED}
    assert machine.tails() == [0, 0, 0, 0]
    assert unchanged(machine, staged(*PAIRS)) == TopicStored(None, is_duplicate=True)
    assert unchanged(machine, staged(*PAIRS, seq=5)) == SequenceGap(1, 5)
    row = machine.stream("t").topic
    assert row is not None
    assert row.is_keyed
    assert isinstance(machine.execute(staged(*PAIRS, seq=1)), Staged)
    machine.execute(prepare("x"))
    assert isinstance(machine.execute(commit("x")), CommitDone)
    counts = [2 * sum(crc32(key) % 4 == p for key in KEYS) for p in range(4)]
    assert [placed_in(machine, p) for p in range(4)] == counts
    assert machine.stables() == machine.tails()
    assert machine.stream("t").tail.tail == 0


def placed_in(machine: TopicMachine, partition: int) -> int:
    """Return the number of messages that decisions have placed in a partition."""
    number = machine.stream(f"t/{partition}").row.number
    return sum(chunk.count for chunk in machine.placed if chunk.stream == number)


# T20
def test_chunks_of_topics_are_not_compared() -> None:
    machine = topic_machine(create("s"), begin_staged("t", "s"))
    first, second = chunk(0, b"plain", txn="x"), chunk(2, b"plain", txn="x")
    machine.execute(first)
    other = chunk(0, b"other", txn="x")
    seen = unchanged(machine, other)
    assert isinstance(seen, Duplicate)
    assert seen.is_mismatch
    machine.execute(staged(*PAIRS, seq=1))
    machine.execute(second)
    for seq in (0, 2):
        seen = unchanged(machine, chunk(seq, b"other", txn="x"))
        assert isinstance(seen, Duplicate)
        assert not seen.is_mismatch
    assert unchanged(machine, staged((b"k", b"9"), seq=1)) == TopicStored(None, is_duplicate=True)
    strict = staged((b"k", b"9"), seq=1, strict=True)
    assert unchanged(machine, strict) == TopicStored(None, is_duplicate=True)


# T19
def test_the_chunks_of_all_partitions_count() -> None:
    machine = topic_machine(begin_staged(), limits=MachineLimits(chunks=5))
    two = staged((b"key-0", b"1"), (b"key-1", b"2"), (b"key-2", b"2"), (b"key-3", b"2"))
    parts = len({crc32(key) % 4 for key in (b"key-0", b"key-1", b"key-2", b"key-3")})
    assert 2 <= parts < 5
    seq = 0
    while (seq + 1) * parts <= 5:
        tag = TxnTag("x", 1, seq)
        assert isinstance(machine.execute(replace(two, transaction=tag)), Staged)
        seq += 1
    full = unchanged(machine, replace(two, transaction=TxnTag("x", 1, seq)))
    assert full == LimitReached("chunks", 5)


# ---- one-shot commits ----------------------------------------------------------------------------


# T21
def test_a_one_shot_commit_appends_to_topics() -> None:
    machine = topic_machine(create("s"), append(b"in"))
    commit_append = CommitAppend("t", JSON, keyed_batch(*PAIRS))
    command = replace(
        one_shot(("s", b"x"), positions=(PositionMove("g", "s", 1),)),
        appends=(commit_append, CommitAppend("s", "text/plain", Batch(b"x"))),
    )
    done = machine.execute(command)
    assert isinstance(done, CommitDone)
    counts = [sum(crc32(key) % 4 == p for key in KEYS) for p in range(4)]
    assert machine.tails() == counts
    assert done.result is not None
    results = {result.path: result.messages for result in done.result.streams}
    expected = {f"t/{p}": count for p, count in enumerate(counts) if count}
    assert {path: results[path] for path in expected} == expected
    row = machine.stream("t").topic
    assert row is not None
    assert row.is_keyed
    assert unchanged(machine, command) == replace(done, is_duplicate=True)


# T21
def test_only_the_appends_of_a_one_shot_commit_can_name_topics() -> None:
    machine = topic_machine(create("s"))
    missing = StreamRefused("none", NotFound())
    assert unchanged(machine, one_shot(("none", b"x"))) == missing
    moved = one_shot(("s", b"x"), positions=(PositionMove("g", "t", 0),))
    assert unchanged(machine, moved) == StreamRefused("t", IsTopic())
    expected = one_shot(("s", b"x"), expects=(("t", 0),))
    assert unchanged(machine, expected) == StreamRefused("t", IsTopic())


def test_a_topic_without_detection_takes_part_in_transactions() -> None:
    machine = topic_machine(create_topic("u", dedup=False), begin("x", streams=("u",)))
    for number in range(2):
        done = machine.execute(replace(inside(*PAIRS), path="u"))
        assert isinstance(done, TopicStored)
        assert (done.is_unguarded, done.is_duplicate) == (True, False)
        assert sum(machine.tails("u")) == (number + 1) * len(PAIRS)
    machine.execute(commit("x"))
    assert machine.stables("u") == machine.tails("u")


def test_a_fork_of_a_stream_with_control_records_does_not_know_how_many_it_has() -> None:
    machine = topic_machine(create("s"), fork("f0", "s"), begin("x", streams=("s", "f0")))
    for path in ("s", "f0"):
        machine.execute(publish(0, txn="x", path=path))
    machine.execute(commit("x"))
    machine.execute(fork("f1", "s"))
    assert [machine.stream(path).tail.controls for path in ("s", "f0", "f1")] == [1, 1, -1]
    machine.execute(begin("y", streams=("f1",)))
    assert isinstance(machine.execute(publish(0, txn="y", path="f1")), Appended)
    machine.execute(commit("y"))
    assert machine.stream("f1").tail.controls == -1


# T18
def test_streams_and_topics_are_added_to_a_transaction() -> None:
    machine = topic_machine(create("s"), begin("x", streams=("s",)), add_streams("t", txn="x"))
    assert isinstance(machine.execute(inside(*PAIRS)), TopicStored)
    assert unchanged(machine, add_streams("none", txn="x")) == StreamRefused("none", NotFound())


# T25
def test_a_keyed_topic_does_not_grow_while_messages_for_it_are_staged() -> None:
    machine = topic_machine(begin_staged(), begin("y", streams=("t",)))
    machine.execute(staged(*PAIRS))
    assert unchanged(machine, grow(partitions=6, moves=True)) == StreamInTransaction("x")
    assert unchanged(machine, grow(partitions=6)) == KeysWouldMove()
    machine.execute(commit("x"))
    assert isinstance(machine.execute(grow(partitions=6, moves=True)), TopicGrown)


def test_a_topic_without_keys_grows_beside_staged_messages_for_a_partition() -> None:
    machine = topic_machine(begin_staged("t/1"))
    machine.execute(chunk(0, b"1", txn="x", path="t/1", kind=JSON))
    assert isinstance(machine.execute(grow(partitions=6)), TopicGrown)


# T25
def test_a_topic_does_not_grow_while_a_staged_transaction_names_it() -> None:
    machine = topic_machine(begin_staged("t"), begin("y", streams=("t",)))
    assert unchanged(machine, grow(partitions=6)) == StreamInTransaction("x")
    machine.execute(abort("x"))
    assert isinstance(machine.execute(grow(partitions=6)), TopicGrown)


def test_a_topic_grows_while_a_transaction_is_pending() -> None:
    machine = topic_machine(begin("x", streams=("t",)))
    machine.execute(inside(*PAIRS))
    machine.execute(grow(partitions=6, moves=True))
    later = append_parts((5, Batch(b"1")), of=6, by=dense(1, epoch=0), txn=TxnTag("x", 1))
    assert machine.execute(later) == stored((5, 0, 1), epoch=0, seq=1)
    machine.execute(commit("x"))
    assert machine.stables() == machine.tails()
