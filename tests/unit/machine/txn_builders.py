"""Helpers that build transaction commands, and a machine that keeps the outcomes."""

from msgspec import Struct
from msgspec.structs import replace

from semel.machine import MachineLimits, apply
from semel.machine.rows import AbortedRow, OutcomeRow
from semel.machine.txn.draft import extents_of
from semel.machine.txn.lookup import is_outcome_retained
from semel.model.commands import (
    TXN_INLINE,
    TXN_STAGED,
    AbortTxn,
    AddPositions,
    AddStreams,
    Append,
    Batch,
    Begin,
    Commit,
    CommitAppend,
    CommitTxn,
    EngineCommand,
    FenceTxn,
    ListedTxn,
    Owner,
    PositionMove,
    Prepare,
    ProducerOwner,
    ProducerTag,
    SinkOwner,
    SinkTag,
    TxnCall,
    TxnOutcome,
    TxnTag,
)
from semel.model.outcomes import Outcome, Refusal
from semel.model.outcomes_txn import Begun
from tests.unit.machine.builders import TEXT, Machine, Written, create, dense

FRAME_BYTES = 64  # assumed in these tests


class PlacedChunk(Struct):
    """A chunk to which a decision frame has assigned offsets."""

    lsn: int
    stream: int
    base: int
    count: int


class TxnMachine(Machine):
    """A machine that keeps outcomes and aborted ranges, and adds the outcomes to commands."""

    def __init__(self, limits: MachineLimits | None = None) -> None:
        super().__init__(limits)
        self.outcomes: dict[tuple[str, int], OutcomeRow] = {}
        self.aborted: list[AbortedRow] = []
        self.placed: list[PlacedChunk] = []

    def execute(self, command: EngineCommand) -> Outcome:
        return super().execute(self.with_facts(command))

    def replay(self, written: Written) -> None:
        self.journal.append(written)
        effects = apply(self.state, *written, len(self.journal) * FRAME_BYTES)
        for row in effects.outcomes:
            self.outcomes[row.outcome.id, row.outcome.epoch] = row
        self.aborted += effects.aborted
        self.placed += [PlacedChunk(*extent) for extent in extents_of(effects.placed)]

    def facts(self, txn_id: str, epoch: int) -> tuple[TxnOutcome | None, int]:
        held = {k: row for k, row in self.outcomes.items() if is_outcome_retained(self.state, row)}
        row = held.get((txn_id, epoch))
        epochs = [known for name, known in held if name == txn_id]
        return None if row is None else row.outcome, max(epochs, default=0)

    def with_facts(self, command: EngineCommand) -> EngineCommand:
        if isinstance(command, Begin):
            return replace(command, last_epoch=self.facts(command.id, 0)[1])
        if isinstance(command, TxnCall):
            remembered, last = self.facts(command.id, command.epoch)
            return replace(command, remembered=remembered, last_epoch=last)
        if isinstance(command, Append) and command.transaction is not None:
            tag = command.transaction
            remembered, last = self.facts(tag.id, tag.epoch)
            tag = replace(tag, remembered=remembered, last_epoch=last)
            return replace(command, transaction=tag)
        if isinstance(command, Commit):
            listed = tuple(self._listed(named) for named in command.transactions)
            return replace(command, transactions=listed)
        return command

    def _listed(self, named: ListedTxn) -> ListedTxn:
        remembered, last = self.facts(named.id, named.epoch)
        return replace(named, remembered=remembered, last_epoch=last)

    def stable(self, path: str = "s") -> int:
        return self.stream(path).tail.stable


def txn_machine(*commands: EngineCommand, limits: MachineLimits | None = None) -> TxnMachine:
    """Return a machine with the streams s and r that has executed the given commands."""
    machine = TxnMachine(limits)
    for command in (create(), create("r"), *commands):
        outcome = machine.execute(command)
        assert not isinstance(outcome, Refusal), (command, outcome)
    return machine


def by(name: str = "p", epoch: int = 0) -> ProducerOwner:
    return ProducerOwner(name, epoch)


def sunk(version: int = 1, partition: int = 0, app: str = "app") -> SinkOwner:
    return SinkOwner(app, version, partition)


def begin(
    txn_id: str = "t",
    owner: Owner | None = None,
    *,
    kind: str = TXN_INLINE,
    streams: tuple[str, ...] = ("s", "r"),
    implicit: bool = False,
    timeout: int | None = None,
    now: int = 0,
) -> Begin:
    return Begin(now, txn_id, owner or by(), kind, timeout, streams, implicit)


def stage(txn_id: str = "t", owner: Owner | None = None, *, now: int = 0) -> Begin:
    """Return a command that begins a staged transaction."""
    return begin(txn_id, owner, kind=TXN_STAGED, now=now)


def publish(
    seq: int = 0,
    body: bytes | Batch | None = b"x",
    *,
    txn: str = "t",
    epoch: int = 1,
    path: str = "s",
    tag: ProducerTag | None = None,
    now: int = 0,
    kind: str | None = TEXT,
    error: str | None = None,
    if_match: int | None = None,
    stream_seq: str | None = None,
    key: str | None = None,
    close: bool = False,
) -> Append:
    """Return an append to an inline transaction, by default of producer p at epoch 0."""
    batch = Batch(body) if isinstance(body, bytes) else body
    return Append(
        path,
        now,
        kind,
        batch,
        error,
        close,
        tag or dense(seq, epoch=0),
        stream_seq,
        if_match,
        key,
        TxnTag(txn, epoch),
    )


def chunk(
    seq: int | None = 0,
    body: bytes | Batch | None = b"x",
    *,
    txn: str = "t",
    epoch: int = 1,
    path: str = "s",
    now: int = 0,
    kind: str | None = TEXT,
    error: str | None = None,
    if_match: int | None = None,
) -> Append:
    batch = Batch(body) if isinstance(body, bytes) else body
    tag = TxnTag(txn, epoch, seq)
    return Append(path, now, kind, batch, error, if_match=if_match, transaction=tag)


def commit(txn: str = "t", epoch: int = 1, *, now: int = 0, **more: object) -> CommitTxn:
    return CommitTxn(now, txn, epoch, **more)  # type: ignore[arg-type]


def abort(txn: str = "t", epoch: int = 1, *, now: int = 0, **more: object) -> AbortTxn:
    return AbortTxn(now, txn, epoch, **more)  # type: ignore[arg-type]


def fence(txn: str = "t", epoch: int = 1, *, now: int = 0) -> FenceTxn:
    return FenceTxn(now, txn, epoch, by_operator=True)


def prepare(txn: str = "t", epoch: int = 1, *, now: int = 0, **more: object) -> Prepare:
    return Prepare(now, txn, epoch, **more)  # type: ignore[arg-type]


def add_streams(*paths: str, txn: str = "t", epoch: int = 1) -> AddStreams:
    return AddStreams(0, txn, epoch, streams=paths)


def add_positions(*moves: tuple[str, int], txn: str = "t", group: str = "g") -> AddPositions:
    positions = tuple(PositionMove(group, path, to) for path, to in moves)
    return AddPositions(0, txn, 1, positions=positions)


def one_shot(
    *bodies: tuple[str, bytes],
    seq: int = 0,
    epoch: int = 0,
    producer: str | None = "p",
    sink: SinkTag | None = None,
    listed: tuple[tuple[str, int], ...] = (),
    positions: tuple[PositionMove, ...] = (),
    expects: tuple[tuple[str, int], ...] = (),
    now: int = 0,
) -> Commit:
    is_sunk = sink is not None
    return Commit(
        now,
        None if is_sunk else producer,
        None if is_sunk else epoch,
        None if is_sunk else seq,
        sink,
        tuple(CommitAppend(path, TEXT, Batch(body)) for path, body in bodies),
        tuple(ListedTxn(txn_id, known) for txn_id, known in listed),
        positions,
        expects,
    )


def epoch_of(outcome: Outcome) -> int:
    assert isinstance(outcome, Begun), outcome
    return outcome.epoch
