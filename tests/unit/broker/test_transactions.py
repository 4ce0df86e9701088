"""Transactions on a broker: restarts, checkpoints, readers and deadlines."""

import struct

import pytest

from semel.broker.broker import TAIL, ReadDone
from semel.broker.lookups import affected_txns
from semel.journal.appender import chunks_max
from semel.journal.txn_history import TxnHistory
from semel.journal.verify import verify
from semel.machine.txn import views
from semel.model.commands import (
    ABORTED,
    BY_TIMEOUT,
    COMMITTED,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    TXN_INLINE,
    TXN_STAGED,
    AbortTxn,
    AddStreams,
    Append,
    Batch,
    Begin,
    Commit,
    CommitAppend,
    CommitTxn,
    Create,
    Delete,
    ForkRequest,
    ListedTxn,
    PinSnapshot,
    PositionMove,
    Prepare,
    ProducerOwner,
    ProducerTag,
    Register,
    SetPositions,
    SinkOwner,
    SinkTag,
    SnapshotRange,
    Trim,
    TxnOutcome,
    TxnResult,
    TxnTag,
)
from semel.model.limits import (
    HOUR_MS,
    MIB,
    OUTCOME_HOURS,
    SINK_IDLE_MS,
    TXN_CHUNKS_MAX,
    TXN_PENDING_MAX,
)
from semel.model.outcomes import (
    Appended,
    BatchTooLarge,
    Created,
    InvalidRequest,
    LimitReached,
    OffsetBeyondTail,
    Outcome,
    Registered,
    SubOffsetInvalid,
)
from semel.model.outcomes_txn import (
    AbortDone,
    AlreadyAborted,
    Begun,
    CommitDone,
    InvalidTxnState,
    Staged,
    StaleTransaction,
    StreamRefused,
    TxnTimedOut,
    UnknownTransaction,
)
from semel.model.sink_commands import ForgetSink
from tests.unit.broker.bed import Bed

TEXT = "text/plain"


class TxnBed(Bed):
    """A test bed with the streams s and r, and helpers for transactions."""

    def __init__(self, *, segment_bytes: int = 4096) -> None:
        super().__init__(segment_bytes=segment_bytes)
        for path in ("s", "r"):
            self.execute(self.create(path))

    def begin(self, txn: str = "t", *, kind: str = TXN_INLINE, producer: str = "p") -> Outcome:
        owner = ProducerOwner(producer, 0)
        return self.execute(Begin(self.now_ms, txn, owner, kind, 1_000, (), True))

    def publish(
        self,
        seq: int,
        body: bytes = b"x",
        *,
        txn: str = "t",
        epoch: int = 1,
        path: str = "s",
        producer: str = "p",
    ) -> Outcome:
        tag = ProducerTag(producer, seq, seq, 0)
        return self.execute(
            Append(
                path,
                self.now_ms,
                TEXT,
                Batch(body),
                producer=tag,
                transaction=TxnTag(txn, epoch),
            )
        )

    def chunk(
        self, seq: int, body: bytes, *, txn: str = "t", epoch: int = 1, path: str = "s"
    ) -> Outcome:
        tag = TxnTag(txn, epoch, seq)
        return self.execute(Append(path, self.now_ms, TEXT, Batch(body), transaction=tag))

    def commit(self, txn: str = "t", epoch: int = 1) -> Outcome:
        return self.execute(CommitTxn(self.now_ms, txn, epoch))

    def abort(self, txn: str = "t", epoch: int = 1) -> Outcome:
        return self.execute(AbortTxn(self.now_ms, txn, epoch))

    def read(
        self,
        path: str = "s",
        *,
        offset: int | None = None,
        committed: bool = True,
        bytes_max: int = 1 << 20,
    ) -> ReadDone:
        isolation = READ_COMMITTED if committed else READ_UNCOMMITTED
        got: list[Outcome] = []
        self.broker.read(
            path,
            offset,
            now_ms=self.now_ms,
            reply=got.append,
            bytes_max=bytes_max,
            isolation=isolation,
        )
        assert isinstance(got[0], ReadDone), got
        return got[0]

    def messages(self, path: str = "s", *, committed: bool = True) -> list[tuple[int, bytes]]:
        slices = self.read(path, committed=committed).slices
        return [pair for piece in slices for pair in enumerate(piece.messages(), piece.offset)]

    def fill(self, count: int = 12) -> None:
        """Write enough to start at least one new segment."""
        for _ in range(count):
            self.execute(self.append(bytes(700), "r"))

    def outcome(self, txn: str = "t", epoch: int | None = 1) -> TxnOutcome | Outcome | None:
        got: list[TxnOutcome | Outcome | None] = []
        self.broker.outcome(txn, epoch, reply=got.append)
        return got[0]

    def is_sound(self) -> bool:
        report = verify(self.disk, self.store)
        assert not report.findings, report.findings
        return report.is_sound


def slow_restart(bed: TxnBed) -> None:
    bed.restart()


def quick_restart(bed: TxnBed) -> None:
    bed.checkpoint()
    bed.restart()


RESTARTS = pytest.mark.parametrize("again", [slow_restart, quick_restart])


# ---- invalid ids and epochs ----------------------------------------------------------------------


@pytest.mark.parametrize("epoch", [-1, 2**53, 2**64])
@pytest.mark.parametrize("call", [CommitTxn, AbortTxn, Prepare])
def test_an_epoch_out_of_bounds_is_refused(
    call: type[CommitTxn | AbortTxn | Prepare], epoch: int
) -> None:
    bed = TxnBed()
    assert bed.execute(call(bed.now_ms, "t", epoch)) == InvalidRequest("transaction_epoch")
    assert bed.outcome("t", epoch) is None
    assert bed.chunk(0, b"x", epoch=epoch) == InvalidRequest("transaction_epoch")
    listed = (ListedTxn("t", epoch),)
    commit = Commit(bed.now_ms, "p", 0, 0, transactions=listed)
    assert bed.execute(commit) == InvalidRequest("transactions")


@pytest.mark.parametrize("txn", ["", "t" * 257, "t" * 70_000, "\udc80"])
def test_an_id_out_of_bounds_is_refused(txn: str) -> None:
    bed = TxnBed()
    assert bed.begin(txn) == InvalidRequest("transaction_id")
    assert bed.commit(txn) == InvalidRequest("transaction_id")
    assert bed.outcome(txn) is None
    assert bed.outcome(txn, None) is None


# ---- visibility for readers ----------------------------------------------------------------------


def test_the_log_of_the_seed_reads_as_it_says() -> None:
    """0 and 2 are plain, 1 is in a transaction, 3 is its abort marker, and 4 is plain again."""
    bed = TxnBed()
    bed.execute(bed.append(b"0"))
    bed.begin()
    bed.publish(0, b"1")
    bed.execute(bed.append(b"2"))
    bed.abort()
    bed.begin("u")
    bed.commit("u")
    bed.execute(bed.append(b"4"))
    assert [offset for offset, _ in bed.messages(committed=False)] == [0, 1, 2, 4]
    assert [offset for offset, _ in bed.messages()] == [0, 2, 4]


@RESTARTS
def test_an_open_transaction_is_not_read_before_its_decision(again: object) -> None:
    bed = TxnBed()
    bed.execute(bed.append(b"a"))
    bed.begin()
    bed.publish(0, b"b")
    bed.execute(bed.append(b"c"))
    again(bed)  # type: ignore[operator]
    assert bed.messages() == [(0, b"a")]
    done = bed.read()
    assert (done.next_offset, done.tail.stable, done.tail.tail) == (1, 1, 3)
    assert bed.messages(committed=False) == [(0, b"a"), (1, b"b"), (2, b"c")]
    assert bed.publish(1, b"d") == Appended(3, 4, False, 0, 1)
    assert isinstance(bed.commit(), CommitDone)
    again(bed)  # type: ignore[operator]
    assert bed.messages() == [(0, b"a"), (1, b"b"), (2, b"c"), (3, b"d")]
    assert bed.read().next_offset == 5
    assert bed.is_sound()


@RESTARTS
def test_what_was_aborted_is_never_read_at_read_committed(again: object) -> None:
    bed = TxnBed()
    bed.begin()
    bed.publish(0, b"a")
    bed.execute(bed.append(b"b"))
    bed.publish(1, b"c")
    bed.abort()
    bed.execute(bed.append(b"d"))
    again(bed)  # type: ignore[operator]
    assert bed.messages() == [(1, b"b"), (4, b"d")]
    assert bed.messages(committed=False) == [(0, b"a"), (1, b"b"), (2, b"c"), (4, b"d")]
    bed.begin("u")
    bed.publish(0, b"e", txn="u")
    bed.abort("u")
    again(bed)  # type: ignore[operator]
    assert bed.read(offset=5).next_offset == 7
    assert bed.read(offset=TAIL).next_offset == 7
    assert bed.is_sound()


@RESTARTS
def test_aborted_offsets_are_looked_for_only_where_there_may_be_some(
    again: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    bed = TxnBed()
    bed.begin()
    bed.publish(0)
    bed.abort()
    bed.execute(bed.append(b"clean"))
    bed.execute(bed.append(b"clean", "r"))
    again(bed)  # type: ignore[operator]
    looked: list[tuple[int, int]] = []
    look = TxnHistory.next_aborted

    def noted(self: TxnHistory, stream: int, offset: int) -> tuple[int, int] | None:
        looked.append((stream, offset))
        return look(self, stream, offset)

    monkeypatch.setattr(TxnHistory, "next_aborted", noted)
    assert bed.messages("r") == [(0, b"clean")]
    assert [piece.offset for piece in bed.read(offset=2).slices] == [2]
    assert looked == []
    assert bed.messages() == [(2, b"clean")]
    assert looked == [(1, 0)]


def test_a_reader_behind_what_is_stable_stays_where_it_is() -> None:
    bed = TxnBed()
    bed.begin()
    bed.publish(0)
    bed.execute(bed.append())
    assert bed.read(offset=2).next_offset == 2
    assert bed.read(offset=TAIL).next_offset == 0
    assert bed.read(offset=TAIL, committed=False).next_offset == 2


def test_small_reads_pass_what_is_skipped() -> None:
    bed = TxnBed()
    for number in range(5):
        txn = f"t{number}"
        bed.begin(txn)
        bed.publish(number, b"n", txn=txn)
        bed.execute(bed.append(b"%d" % number))
        bed.abort(txn)
    found, offset = [], 0
    while offset < 15:
        done = bed.read(offset=offset, bytes_max=1)
        found += [piece.payload for piece in done.slices]
        assert done.next_offset > offset
        offset = done.next_offset
    assert found == [b"0", b"1", b"2", b"3", b"4"]


def test_a_fork_sees_what_its_source_aborted_as_its_source_does() -> None:
    bed = TxnBed()
    bed.begin()
    bed.publish(0, b"a")
    bed.execute(bed.append(b"b"))
    bed.abort()
    bed.execute(Create("f", bed.now_ms, "if", None, fork=ForkRequest("s")))
    bed.execute(bed.append(b"own", "f"))
    assert bed.messages("f") == [(1, b"b"), (3, b"own")]
    bed.execute(Delete("s", bed.now_ms))
    bed.checkpoint()
    assert bed.messages("f") == [(1, b"b"), (3, b"own")]


def test_an_aborted_message_does_not_come_back_to_life_in_a_fork() -> None:
    bed = TxnBed()
    bed.begin()
    bed.publish(0, b"abc")
    bed.abort()
    bed.execute(bed.append(b"def"))
    for offset in (0, 1):
        fork = ForkRequest("s", offset, 1)
        created = bed.execute(Create("f", bed.now_ms, "if", None, fork=fork))
        assert created == SubOffsetInvalid()
    fork = ForkRequest("s", 2, 1)
    created = bed.execute(Create("f", bed.now_ms, "if", None, fork=fork))
    assert isinstance(created, Created)
    assert bed.messages("f") == [(2, b"d")]


def test_a_fork_that_divides_an_append_waits_for_its_decision_to_be_durable() -> None:
    bed = TxnBed()
    bed.begin()
    bed.publish(0, b"abc")
    decided = bed.submit(CommitTxn(bed.now_ms, "t", 1))
    fork = ForkRequest("s", 0, 1)
    created = bed.submit(Create("f", bed.now_ms, "if", None, fork=fork))
    assert not created
    bed.flush()
    assert isinstance(decided[0], CommitDone)
    assert isinstance(created[0], Created)


# ---- waiting readers -----------------------------------------------------------------------------


def test_a_waiter_is_woken_by_what_it_may_read() -> None:
    bed = TxnBed()
    woken: list[str] = []
    assert bed.broker.durable_view.wait("s", 0, lambda: woken.append("all"), READ_UNCOMMITTED)
    assert bed.broker.durable_view.wait("s", 0, lambda: woken.append("committed"), READ_COMMITTED)
    bed.begin()
    bed.publish(0)
    assert woken == ["all"]
    assert bed.broker.durable_view.wait("s", 0, lambda: None, READ_COMMITTED)
    bed.commit()
    assert woken == ["all", "committed"]
    assert bed.broker.durable_view.wait("s", 1, lambda: None, READ_COMMITTED) is None
    assert bed.broker.durable_view.wait("s", 2, lambda: None, READ_COMMITTED)


# ---- staged --------------------------------------------------------------------------------------


@RESTARTS
def test_chunks_get_their_offsets_from_the_decision_and_keep_their_segments(again: object) -> None:
    bed = TxnBed()
    bed.begin(kind=TXN_STAGED)
    bed.chunk(0, b"one")
    bed.fill()
    again(bed)  # type: ignore[operator]
    bed.now_ms += 500
    bed.chunk(1, b"two" * 100)
    bed.execute(bed.append(b"before"))
    bed.execute(Trim("r", bed.now_ms, 12))
    bed.fill()
    again(bed)  # type: ignore[operator]
    assert bed.chunk(2, b"three", path="r") == Staged(3)
    committed = bed.commit()
    assert isinstance(committed, CommitDone)
    again(bed)  # type: ignore[operator]
    assert bed.messages() == [(0, b"before"), (1, b"one"), (2, b"two" * 100)]
    assert bed.messages("r")[-1] == (24, b"three")
    bed.execute(bed.append(b"after"))
    assert bed.read(offset=2, bytes_max=1).slices[0].payload == b"two" * 100
    assert bed.is_sound()


def test_a_segment_with_undecided_chunks_outlives_everything_else_in_it() -> None:
    bed = TxnBed()
    bed.begin(kind=TXN_STAGED)
    bed.chunk(0, b"kept")
    bed.fill()
    bed.execute(Trim("r", bed.now_ms, 12))
    first = bed.broker._segments.firsts[0]
    dead = bed.checkpoint()
    assert first not in dead
    assert dead, "segments without chunks are deleted"
    bed.restart()
    bed.abort()
    bed.fill(1)
    assert first in bed.checkpoint()
    assert bed.is_sound()


def test_a_committed_chunk_keeps_its_segment_until_it_is_trimmed() -> None:
    bed = TxnBed()
    bed.begin(kind=TXN_STAGED)
    bed.chunk(0, b"kept")
    bed.fill()
    bed.execute(Trim("r", bed.now_ms, 12))
    first = bed.broker._segments.firsts[0]
    bed.checkpoint()
    bed.commit()
    assert first not in bed.checkpoint()
    bed.restart()
    assert bed.messages() == [(0, b"kept")]
    bed.execute(Trim("s", bed.now_ms, 1))
    assert first in bed.checkpoint()


def test_a_checkpoint_that_found_no_room_takes_everything_back() -> None:
    bed = TxnBed()
    bed.begin()
    bed.publish(0, b"a")
    bed.abort()
    cut = bed.broker.cut()
    assert cut is not None
    bed.begin("u")
    bed.publish(0, b"b", txn="u")
    bed.abort("u")
    bed.begin("v")
    bed.commit("v")
    assert bed.outcome() is not None
    assert bed.read().next_offset == 4
    bed.broker.cut_failed(cut)
    bed.checkpoint()
    bed.restart()
    assert [bed.outcome(txn) is not None for txn in "tuv"] == [True] * 3
    assert bed.messages() == []
    assert bed.is_sound()


# ---- outcomes ------------------------------------------------------------------------------------


@RESTARTS
def test_an_outcome_is_remembered_across_restarts(again: object) -> None:
    bed = TxnBed()
    bed.begin()
    first = bed.commit()
    bed.begin()
    bed.abort(epoch=2)
    again(bed)  # type: ignore[operator]
    assert isinstance(first, CommitDone)
    assert bed.commit() == CommitDone("t", 1, first.result, is_duplicate=True)
    assert bed.commit(epoch=2) == AlreadyAborted("abort")
    assert bed.commit(epoch=3) == UnknownTransaction()
    assert bed.commit("t2") == UnknownTransaction()
    assert bed.begin() == Begun("t", 3, bed.now_ms + 1_000, is_new=True)
    assert bed.publish(0, epoch=1) == InvalidTxnState(COMMITTED)
    assert bed.commit(epoch=4) == UnknownTransaction()
    found = bed.outcome(epoch=None)
    assert isinstance(found, TxnOutcome)
    assert (found.epoch, found.decision) == (2, ABORTED)
    assert bed.outcome("nope", None) is None


@RESTARTS
def test_an_outcome_is_forgotten_after_a_week(again: object) -> None:
    bed = TxnBed()
    bed.begin()
    bed.commit()
    again(bed)  # type: ignore[operator]
    bed.jump(520 * OUTCOME_HOURS * HOUR_MS)
    assert isinstance(bed.commit(), CommitDone)
    bed.run_for(OUTCOME_HOURS + 1)
    assert bed.commit() == UnknownTransaction()
    assert bed.begin() == Begun("t", 1, bed.now_ms + 1_000, is_new=True)
    bed.abort()
    again(bed)  # type: ignore[operator]
    assert bed.commit() == AlreadyAborted("abort")
    bed.checkpoint()
    with bed.store.read() as view:
        for table in ("outcomes", "outcome_order", "outcome_owners"):
            assert len(list(view.scan(table))) == 1
    assert bed.is_sound()


def test_old_outcomes_leave_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("semel.journal.txn_history.OUTCOMES_PER_PRODUCER_MAX", 3)
    bed = TxnBed()
    for number in range(5):
        bed.begin(f"t{number}")
        bed.commit(f"t{number}")
        bed.checkpoint()
    with bed.store.read() as view:
        assert len(list(view.scan("outcomes"))) == 3
    bed.run_for(OUTCOME_HOURS + 1)
    bed.execute(bed.append())
    bed.checkpoint()
    with bed.store.read() as view:
        assert not list(view.scan("outcomes"))
    assert bed.is_sound()


# rows: X25
@RESTARTS
def test_a_late_end_of_a_forgotten_transaction_ends_no_later_one(
    again: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("journal.txn_history", "machine.txn.lookup"):
        monkeypatch.setattr(f"semel.{module}.OUTCOMES_PER_PRODUCER_MAX", 1)
    bed = TxnBed()
    for name in ("t", "u"):
        bed.begin(name)
        bed.commit(name)
    again(bed)  # type: ignore[operator]
    begun = bed.begin()
    assert isinstance(begun, Begun)
    assert begun.epoch == 2
    assert bed.abort() == StaleTransaction(2)
    assert isinstance(bed.commit(epoch=2), CommitDone)


def sink_round(bed: TxnBed, version: int, *, epoch: int = 1) -> Outcome:
    name = f"b{version}"
    owner = SinkOwner("app", version, 0)
    bed.execute(Begin(bed.now_ms, name, owner, TXN_STAGED, None, (), True))
    bed.chunk(0, b"v%d" % version, txn=name, epoch=epoch)
    bed.execute(Prepare(bed.now_ms, name, epoch, chunks=1))
    sink = SinkTag("app", "q", version, f"i{version}")
    return bed.execute(Commit(bed.now_ms, sink=sink, transactions=(ListedTxn(name, epoch),)))


@RESTARTS
def test_a_sinks_outcomes_last_until_its_next_commit(again: object) -> None:
    bed = TxnBed()
    for version in (1, 2, 3):
        assert isinstance(sink_round(bed, version), CommitDone)
        again(bed)  # type: ignore[operator]
    assert bed.messages() == [(0, b"v1"), (1, b"v2"), (2, b"v3")]
    assert bed.outcome("b2") is None
    assert bed.outcome("b3") is not None
    again_told = sink_round(bed, 2)
    assert isinstance(again_told, CommitDone)
    assert again_told.is_duplicate
    bed.checkpoint()
    with bed.store.read() as view:
        assert len(list(view.scan("outcomes"))) == 1
    assert bed.is_sound()


@RESTARTS
def test_an_id_counts_on_from_the_newest_outcome_still_remembered(again: object) -> None:
    bed = TxnBed()
    for epoch in (1, 2):
        bed.begin("b1")
        bed.abort("b1", epoch)
    sink_round(bed, 1, epoch=3)
    again(bed)  # type: ignore[operator]
    assert bed.outcome("b1", None) is not None
    sink_round(bed, 2)  # removes the outcome of b1 at epoch 3
    assert bed.outcome("b1", 3) is None
    assert bed.begin("b1") == Begun("b1", 3, bed.now_ms + 1_000, is_new=True)
    assert bed.commit("b1", 1) == AlreadyAborted("abort")  # late, changes nothing
    assert bed.commit("b1", 2) == AlreadyAborted("abort")
    bed.abort("b1", 3)
    again(bed)  # type: ignore[operator]
    assert bed.begin("b1") == Begun("b1", 4, bed.now_ms + 1_000, is_new=True)


def test_the_newest_outcome_is_found_behind_a_checkpoint_that_did_not_happen() -> None:
    bed = TxnBed()
    bed.begin("b1")
    bed.abort("b1")
    sink_round(bed, 1, epoch=2)
    sink_round(bed, 2)
    cut = bed.broker.cut()
    bed.flush()
    assert cut is not None
    bed.begin("b1")
    bed.abort("b1", 2)  # another outcome
    bed.broker.cut_failed(cut)
    assert bed.begin("b1") == Begun("b1", 3, bed.now_ms + 1_000, is_new=True)


@RESTARTS
def test_a_forgotten_sink_does_not_bring_back_what_it_let_go(again: object) -> None:
    bed = TxnBed()
    for version in (1, 2):
        sink_round(bed, version)
    bed.execute(ForgetSink(bed.now_ms, "app"))
    assert bed.outcome("b1") is None
    assert bed.outcome("b2") is not None
    again(bed)  # type: ignore[operator]
    assert bed.outcome("b1") is None
    assert bed.outcome("b2") is not None
    bed.checkpoint()
    with bed.store.read() as view:
        assert len(list(view.scan("outcomes"))) == 1


def test_what_a_forgotten_sink_let_go_stays_gone_when_a_checkpoint_finds_no_room() -> None:
    bed = TxnBed()
    for version in (1, 2):
        sink_round(bed, version)
    bed.execute(ForgetSink(bed.now_ms, "app"))
    cut = bed.broker.cut()
    bed.flush()
    assert cut is not None
    bed.broker.cut_failed(cut)
    bed.execute(bed.append())
    bed.checkpoint()
    bed.restart()
    assert bed.outcome("b1") is None
    assert bed.outcome("b2") is not None


# ---- deadlines -----------------------------------------------------------------------------------


def test_a_call_that_meets_a_transaction_after_its_time_finds_it_aborted() -> None:
    bed = TxnBed()
    bed.begin()
    bed.publish(0)
    bed.now_ms += 1_000
    assert bed.publish(1) == TxnTimedOut()
    assert bed.commit() == TxnTimedOut()
    assert bed.abort() == AbortDone("t", 1, BY_TIMEOUT)
    assert bed.messages() == []


def test_a_begin_meets_what_its_producer_left_open() -> None:
    bed = TxnBed()
    bed.begin()
    bed.now_ms += 1_000
    assert bed.begin("u") == Begun("u", 1, bed.now_ms + 1_000, is_new=True)
    bed.now_ms += 1_000
    assert bed.begin("u") == Begun("u", 2, bed.now_ms + 1_000, is_new=True)


def test_the_sweeper_ends_what_nobody_calls() -> None:
    bed = TxnBed()
    bed.begin()
    bed.publish(0)
    bed.begin("k", kind=TXN_STAGED, producer="q")
    bed.now_ms += 900
    bed.chunk(0, b"renewed", txn="k")
    bed.now_ms += 100
    assert bed.sweep(count_max=10) == 1
    bed.flush()
    assert bed.read().next_offset == 2
    assert bed.sweep(count_max=10) == 0
    bed.now_ms += 900
    assert bed.sweep(count_max=10) == 1
    bed.flush()
    assert not bed.broker.state.transactions


@RESTARTS
def test_every_timeout_starts_again_with_the_process(again: object) -> None:
    """The new process cannot know how much time has passed. So it ends things late, not early."""
    bed = TxnBed()
    bed.begin()
    bed.publish(0)
    bed.execute(Begin(bed.now_ms, "k", SinkOwner("app", 1, 0), TXN_STAGED))
    bed.now_ms += 999
    again(bed)  # type: ignore[operator]
    bed.now_ms += 999
    assert bed.sweep(count_max=10) == 0
    bed.now_ms += 1
    assert bed.sweep(count_max=10) == 1
    bed.flush()
    assert bed.read().next_offset == 2
    bed.now_ms += SINK_IDLE_MS - 1_001
    assert bed.sweep(count_max=10) == 0
    bed.now_ms += 1
    assert bed.sweep(count_max=10) == 1
    bed.flush()
    assert not bed.broker.state.transactions


def test_prepared_ones_wait_and_a_sinks_are_reaped() -> None:
    bed = TxnBed()
    bed.begin()
    bed.execute(Prepare(bed.now_ms, "t", 1))
    owner = SinkOwner("app", 1, 0)
    bed.execute(Begin(bed.now_ms, "k", owner, TXN_STAGED))
    bed.now_ms += SINK_IDLE_MS
    assert bed.sweep(count_max=10) == 1
    bed.flush()
    assert list(bed.broker.state.transactions) == ["t"]
    assert isinstance(bed.commit(), CommitDone)


# ---- other cases ---------------------------------------------------------------------------------


@RESTARTS
def test_groups_snapshots_and_one_shot_commits_survive(again: object) -> None:
    bed = TxnBed()
    bed.execute(bed.append())
    bed.execute(SetPositions(bed.now_ms, (PositionMove("g", "s", 1),)))
    pinned = SnapshotRange("s", "is", 0, 1)
    bed.execute(PinSnapshot(bed.now_ms, "g", 0, (pinned,), "h"))
    appends = (CommitAppend("s", TEXT, Batch(b"a")), CommitAppend("r", TEXT, Batch(b"b")))
    move = (PositionMove("g", "s", 2, 1),)
    one_shot = Commit(bed.now_ms, "p", 0, 0, appends=appends, positions=move)
    first = bed.execute(one_shot)
    assert isinstance(first, CommitDone)
    again(bed)  # type: ignore[operator]
    assert bed.execute(one_shot) == CommitDone(None, None, first.result, is_duplicate=True)
    assert bed.messages() == [(0, b"x"), (1, b"a")]
    assert bed.messages("r") == [(0, b"b")]
    got: list[object] = []
    bed.broker.ask(lambda state: views.group_view(state, "g"), got.append)
    (found,) = got[0].positions.values()  # type: ignore[attr-defined]
    assert (found.offset, found.version) == (2, 2)
    assert bed.is_sound()


@pytest.mark.parametrize(("segment_bytes", "chunks"), [(4096, 32), (16_384, 128)])
def test_what_was_accepted_chunk_by_chunk_can_be_committed(segment_bytes: int, chunks: int) -> None:
    bed = TxnBed(segment_bytes=segment_bytes)
    bed.begin(kind=TXN_STAGED)
    for seq in range(chunks):
        assert bed.chunk(seq, b"c") == Staged(seq + 1)
    assert bed.chunk(chunks, b"c") == LimitReached("chunks", chunks)
    assert isinstance(bed.commit(), CommitDone)
    assert len(bed.messages()) == chunks


def test_a_large_segment_takes_a_quarter_of_a_million_chunks() -> None:
    assert chunks_max(16 * MIB) >= TXN_CHUNKS_MAX
    assert TxnBed(segment_bytes=16 * MIB).broker.state.limits.chunks == TXN_CHUNKS_MAX


@pytest.mark.parametrize(("segment_bytes", "count"), [(4096, 4), (65_536, 64)])
def test_whatever_was_added_can_be_ended(segment_bytes: int, count: int) -> None:
    bed = TxnBed(segment_bytes=segment_bytes)
    paths = tuple(f"s{number}" for number in range(count + 1))
    for path in paths:
        bed.execute(bed.create(path))
    limit = LimitReached("transaction_streams", count)
    assert bed.execute(Begin(bed.now_ms, "x", ProducerOwner("p", 0), streams=paths)) == limit
    for number in range(TXN_PENDING_MAX):
        name = f"t{number}"
        bed.begin(name)
        for path in paths[:-1]:
            assert isinstance(bed.publish(0, path=path, txn=name), Appended)
        assert bed.publish(0, path=paths[-1], txn=name) == limit
        more = AddStreams(bed.now_ms, name, 1, streams=paths[-1:])
        assert bed.execute(more) == limit
        bed.execute(Prepare(bed.now_ms, name, 1))
    assert isinstance(bed.execute(Register(bed.now_ms, "p")), Registered)
    for path in paths[:-1]:
        assert bed.messages(path) == []
    assert bed.is_sound()


def test_a_commit_too_large_for_smaller_segments_is_refused_and_stays_open() -> None:
    bed = TxnBed(segment_bytes=16_384)
    bed.begin(kind=TXN_STAGED)
    for seq in range(70):
        bed.chunk(seq, b"c")
    bed.restart(segment_bytes=4096)
    assert isinstance(bed.commit(), BatchTooLarge)
    assert bed.messages() == []
    bed.restart(segment_bytes=16_384)
    assert isinstance(bed.commit(), CommitDone)


def test_a_transaction_too_large_for_smaller_segments_can_be_aborted() -> None:
    bed = TxnBed(segment_bytes=16_384)
    bed.begin(kind=TXN_STAGED)
    for seq in range(70):
        bed.chunk(seq, b"c")
    bed.restart(segment_bytes=4096)
    assert isinstance(bed.abort(), AbortDone)


def test_streams_whose_time_is_over_end_before_a_transaction_meets_them() -> None:
    bed = TxnBed()
    bed.execute(bed.create("m", ttl_ms=10))
    bed.begin()
    bed.now_ms += 10
    added = bed.execute(AddStreams(bed.now_ms, "t", 1, streams=("m",)))
    assert isinstance(added, StreamRefused)
    appends = (CommitAppend("m", TEXT, Batch(b"a")),)
    refused = bed.execute(Commit(bed.now_ms, "q", 0, 0, appends=appends))
    assert isinstance(refused, StreamRefused)


def test_a_late_call_of_an_earlier_transaction_touches_nothing() -> None:
    bed = TxnBed()
    bed.begin()
    bed.commit()
    bed.begin()
    bed.publish(0, epoch=2)
    assert isinstance(bed.commit(epoch=1), CommitDone)
    assert bed.read().tail.stable == 0
    bed.run_for(OUTCOME_HOURS + 1)
    assert isinstance(bed.commit(epoch=1), StaleTransaction | UnknownTransaction)


def test_a_read_beyond_the_tail_is_refused_at_any_isolation() -> None:
    bed = TxnBed()
    got: list[Outcome] = []
    bed.broker.read("s", 1, now_ms=0, reply=got.append, isolation=READ_COMMITTED)
    assert got == [OffsetBeyondTail(0)]


def test_a_message_of_several_in_a_chunk_is_found_by_its_offset() -> None:
    bed = TxnBed()
    bed.begin(kind=TXN_STAGED)
    batch = Batch(b"abc", 3, struct.pack("<3I", 1, 1, 1))
    tag = TxnTag("t", 1, 0)
    bed.execute(Append("s", bed.now_ms, TEXT, batch, transaction=tag))
    bed.execute(bed.append(b"0"))
    bed.commit()
    done = bed.read(offset=2)
    assert [list(piece.messages()) for piece in done.slices] == [[b"b", b"c"]]
    assert done.slices[0].offset == 2


def test_a_result_holds_what_a_transaction_did() -> None:
    bed = TxnBed()
    bed.begin()
    committed = bed.commit()
    assert committed == CommitDone("t", 1, TxnResult())


@RESTARTS
def test_every_call_that_adds_to_a_transaction_touches_it(again: object) -> None:
    bed = TxnBed()
    bed.begin()
    bed.begin("u", kind=TXN_STAGED)
    for seq in range(3):
        bed.now_ms += 100
        bed.publish(seq)
        bed.chunk(seq, b"x", txn="u")
    again(bed)  # type: ignore[operator]
    seen = [txn.touched_ms for txn in views.transactions(bed.broker.state)]
    assert seen == [bed.now_ms, bed.now_ms]


# ---- many transactions ---------------------------------------------------------------------------


def test_a_begin_of_a_sink_looks_at_no_other_transaction_of_it() -> None:
    bed = TxnBed()
    for number in range(3):
        bed.execute(Begin(bed.now_ms, f"t{number}", SinkOwner("a", 0, number), TXN_STAGED))
        bed.begin(f"p{number}", kind=TXN_STAGED)
    next_of_sink = Begin(bed.now_ms, "t", SinkOwner("a", 0, 3), TXN_STAGED)
    assert affected_txns(bed.broker.state, next_of_sink) == []
    next_of_producer = Begin(bed.now_ms, "p", ProducerOwner("p", 0), TXN_STAGED)
    assert len(affected_txns(bed.broker.state, next_of_producer)) == 3


def test_decided_transactions_do_not_wait_for_their_deadline_in_memory() -> None:
    bed = TxnBed(segment_bytes=MIB)
    deadlines = bed.broker.deadlines
    bed.execute(Begin(bed.now_ms, "kept", SinkOwner("b", 0, 0), TXN_STAGED))
    for number in range(3_000):
        bed.submit(Begin(bed.now_ms, "t", SinkOwner("a", number, 0), TXN_STAGED))
        bed.submit(AbortTxn(bed.now_ms, "t", number + 1))
    bed.flush()
    assert len(deadlines) < 1_100
    assert len(deadlines._uses) < 1_100
    bed.now_ms += SINK_IDLE_MS
    assert [txn.row.id for txn in deadlines.due(10)] == ["kept"]
