"""The crash points of a transaction, T1 to T12, one by one, in every crash mode.

There is one decision frame, so that T4, T5 and T6 (ended, but control records, offsets or positions
not applied yet) are one point: the frame is durable or it is not.
"""

from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from semel.broker.broker import Broker
from semel.model import outcomes_txn as txn_out
from semel.model.commands import (
    READ_UNCOMMITTED,
    TXN_INLINE,
    TXN_STAGED,
    AbortTxn,
    AddPositions,
    Append,
    Batch,
    Begin,
    CommitTxn,
    Create,
    EngineCommand,
    PositionMove,
    Prepare,
    ProducerOwner,
    ProducerTag,
    TxnTag,
)
from semel.model.errors import CorruptData, CorruptRead
from semel.testing import CRASH_MODES, Fail, Fault, Killed, VirtualDisk, VirtualStore
from tests.sim.demands import Violation
from tests.sim.exhaustive import check_all
from tests.sim.mutants_txn import unlink_the_segment_of_a_chunk
from tests.sim.script import Script

KILL = "kill"
STREAMS = ("a", "b", "c")
WAYS = pytest.mark.parametrize("way", [*CRASH_MODES, KILL])
KINDS = pytest.mark.parametrize("kind", [TXN_INLINE, TXN_STAGED])
CHECKPOINTS = pytest.mark.parametrize("is_cut", [False, True], ids=["journal", "checkpoint"])


def new_script() -> Script:
    script = Script()
    for path in STREAMS:
        script.done(Create(path, script.now_ms, f"i-{path}", "text/plain"))
    return script


def begin(script: Script, kind: str, timeout_ms: int = 60_000) -> Begin:
    return Begin(script.now_ms, "t", ProducerOwner("p", 0), kind, timeout_ms, is_implicit=True)


def messages(script: Script, kind: str, epoch: int = 1) -> Iterator[EngineCommand]:
    """Yield an append of the transaction to each stream, and a move of a position."""
    for number, path in enumerate(STREAMS):
        tag = TxnTag("t", epoch, number if kind == TXN_STAGED else None)
        by = ProducerTag("p", 0, 0, 0) if kind == TXN_INLINE else None
        body = Batch(path.encode())
        now = script.now_ms
        yield Append(path, now, "text/plain", body, producer=by, transaction=tag)
    yield AddPositions(script.now_ms, "t", epoch, positions=(PositionMove("g", "a", 0),))


def commit(script: Script) -> CommitTxn:
    return CommitTxn(script.now_ms, "t", 1, "p", 0)


def crash(script: Script, way: str) -> None:
    if way == KILL:
        script.crash(is_power=False)
    else:
        script.lose_power(way)  # type: ignore[arg-type]


def seen(script: Script) -> list[list[bytes]]:
    return [script.bodies(path) for path in STREAMS]


def demand_all(script: Script) -> None:
    """Check that messages, position and outcome of the transaction are there."""
    assert seen(script) == [[b"a"], [b"b"], [b"c"]]
    assert script.model.txns.positions.stored == {("g", 1): (0, 1, (True, "p"), ())}
    answer = script.do(commit(script))
    assert isinstance(answer, txn_out.CommitDone)
    assert answer.is_duplicate


def demand_nothing(script: Script) -> None:
    assert seen(script) == [[], [], []]
    assert script.model.txns.positions.stored == {}


def open_with_messages(kind: str, timeout_ms: int = 60_000) -> Script:
    script = new_script()
    script.done(begin(script, kind, timeout_ms), *messages(script, kind))
    return script


@pytest.mark.sim
@pytest.mark.parametrize("way", CRASH_MODES)
def test_t1_a_begin_that_was_not_durable_never_was(way: str) -> None:
    script = new_script()
    assert script.send(begin(script, TXN_INLINE)) == []
    crash(script, way)
    assert script.do(commit(script)) == txn_out.UnknownTransaction()
    script.done(begin(script, TXN_INLINE))


# rows: X04
@pytest.mark.sim
@WAYS
@KINDS
@CHECKPOINTS
def test_t2_an_open_transaction_is_still_open_after_a_crash(
    way: str, kind: str, is_cut: bool
) -> None:
    script = open_with_messages(kind)
    if is_cut:
        script.take_checkpoint()
    crash(script, way)
    demand_nothing(script)
    script.done(commit(script))
    demand_all(script)


@pytest.mark.sim
@WAYS
@KINDS
def test_t2_an_open_transaction_times_out_after_a_crash(way: str, kind: str) -> None:
    script = open_with_messages(kind, timeout_ms=100)
    crash(script, way)
    script.let_pass(100)
    assert script.do(commit(script)) == txn_out.TxnTimedOut()
    demand_nothing(script)
    assert [script.stable(path) for path in STREAMS] == [2 * (kind == TXN_INLINE)] * 3


# rows: X04
@pytest.mark.sim
@WAYS
@KINDS
@CHECKPOINTS
def test_t3_a_prepared_transaction_waits_for_its_decision(
    way: str, kind: str, is_cut: bool
) -> None:
    script = open_with_messages(kind, timeout_ms=100)
    script.done(Prepare(script.now_ms, "t", 1))
    if is_cut:
        script.take_checkpoint()
    crash(script, way)
    script.let_pass(1_000_000)
    script.tick()
    script.done(commit(script))
    demand_all(script)


# rows: R29, X24
@pytest.mark.sim
@WAYS
@KINDS
@CHECKPOINTS
def test_t4_to_t6_a_durable_decision_is_whole(way: str, kind: str, is_cut: bool) -> None:
    script = open_with_messages(kind)
    if is_cut:
        script.take_checkpoint()
    got = script.send(commit(script))
    script.until(script.is_all_synced)
    assert got == []  # not acknowledged yet
    crash(script, way)
    demand_all(script)


# rows: X05
@pytest.mark.sim
@WAYS
@KINDS
@CHECKPOINTS
def test_t7_a_commit_whose_answer_was_lost_is_told_again(way: str, kind: str, is_cut: bool) -> None:
    script = open_with_messages(kind)
    first = script.done(commit(script))
    if is_cut:
        script.take_checkpoint()
    crash(script, way)
    again = script.do(commit(script))
    assert isinstance(first, txn_out.CommitDone)
    assert isinstance(again, txn_out.CommitDone)
    assert again.is_duplicate
    assert again.result == first.result
    assert script.do(AbortTxn(script.now_ms, "t", 1)) == txn_out.AlreadyCommitted()


# rows: R28
@pytest.mark.sim
@WAYS
@KINDS
@CHECKPOINTS
def test_t8_an_abort_stays_one(way: str, kind: str, is_cut: bool) -> None:
    script = open_with_messages(kind)
    script.done(AbortTxn(script.now_ms, "t", 1))
    if is_cut:
        script.take_checkpoint()
    crash(script, way)
    demand_nothing(script)
    assert script.do(commit(script)) == txn_out.AlreadyAborted("abort")
    if kind == TXN_INLINE:
        assert script.offsets("a", READ_UNCOMMITTED) == [0]


@pytest.mark.sim
@pytest.mark.parametrize("way", CRASH_MODES)
@KINDS
@pytest.mark.parametrize("seed", range(5))
def test_t9_a_torn_decision_is_all_or_nothing(way: str, kind: str, seed: int) -> None:
    script = open_with_messages(kind)
    script.rng.seed(seed)
    script.send(commit(script))
    group = script.broker.next_group()
    assert group is not None
    script.disk.faults = _DieBeforeSync()
    with pytest.raises(Killed):
        script.writer.write(group)
    script.disk.faults = script.injector
    crash(script, way)
    if seen(script) == [[], [], []]:
        demand_nothing(script)
        script.done(commit(script))
    demand_all(script)


# rows: X22
@pytest.mark.sim
def test_t10_recovery_itself_may_crash() -> None:
    # Every image is recovered three times, and some recoveries are killed too.
    assert check_all(1002, txn_share=0.8) > 300


@pytest.mark.sim
@KINDS
def test_t11_damage_to_the_rows_of_a_transaction_is_found(kind: str) -> None:
    script = open_with_messages(kind)
    script.take_checkpoint()
    count = 0
    for table in ("transactions", "txn_streams", "parts", "registry", "tails"):
        with script.store.read() as view:
            rows = list(view.scan(table))
        for key, value in rows:
            disk, store = killed_copy(script)
            writer = store.write()
            writer.put(table, key, bytes([value[0] ^ 1]) + value[1:])
            writer.commit()
            with pytest.raises(CorruptData):
                script.recover(disk, store)
            count += 1
    assert count >= 9


@pytest.mark.sim
@CHECKPOINTS
@KINDS
def test_t12_damaged_messages_of_a_decided_transaction_are_never_left_out(
    is_cut: bool, kind: str
) -> None:
    script = new_script()
    script.done(begin(script, kind))
    for command in messages(script, kind):
        if isinstance(command, Append):
            assert command.batch is not None
            batch = Batch(b"find me " + command.batch.payload)
            script.done(replace(command, batch=batch))
    script.done(commit(script))
    if is_cut:
        script.take_checkpoint()
    for path in STREAMS:
        disk, store = killed_copy(script)
        needle = b"find me " + path.encode()
        [name] = [name for name, data in disk.files().items() if needle in data]
        disk.flip(name, disk.files()[name].index(needle), 3)
        with pytest.raises((CorruptData, CorruptRead)):
            read_again(script, disk, store, path)


@pytest.mark.sim
@WAYS
def test_an_open_transaction_keeps_the_segments_of_its_chunks(way: str) -> None:
    script = fill_segments_with_chunks()
    crash(script, way)
    script.done(commit(script))
    assert len(script.bodies("a")) == 40


@pytest.mark.sim
def test_without_that_rule_chunks_would_be_lost() -> None:
    with unlink_the_segment_of_a_chunk(), pytest.raises((Violation, CorruptRead, KeyError)):
        script = fill_segments_with_chunks()
        script.done(commit(script))
        script.bodies("a")


def fill_segments_with_chunks() -> Script:
    """Fill whole segments with chunks of an open transaction only, below a checkpoint."""
    script = new_script()
    script.done(begin(script, TXN_STAGED))
    for seq in range(40):
        tag, body = TxnTag("t", 1, seq), Batch(b"%03d" % seq * 100)
        script.done(Append("a", script.now_ms, "text/plain", body, transaction=tag))
    script.take_checkpoint()
    script.done(Create("later", script.now_ms, "i-later", "text/plain"))
    script.take_checkpoint()
    return script


def killed_copy(script: Script) -> tuple[VirtualDisk, VirtualStore]:
    """Return copies of the disk and the store after a kill."""
    disk, store = script.disk.copy(), script.store.copy()
    disk.kill()
    store.kill()
    disk.lock()
    return disk, store


def read_again(script: Script, disk: VirtualDisk, store: VirtualStore, path: str) -> None:
    recovered = script.recover(disk, store)
    broker = Broker(recovered, monotonic_ms=lambda: 0, segment_bytes=script.segment_bytes)
    view = broker.durable_view.by_path[path]
    assert view.tail is not None
    broker.reader.read_on(view, 0, view.tail.stable, 1 << 20, is_committed=True)


class _DieBeforeSync:
    """Kills the process between a write and its sync."""

    def before(self, operation: str, _name: str, _size: int) -> Fault | None:
        return Fail(Killed()) if operation == "sync" else None
