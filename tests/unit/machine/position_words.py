"""Helpers that build stories about positions."""

from typing import NamedTuple

from semel.model import commands as ask
from semel.model.commands import (
    TXN_INLINE,
    TXN_STAGED,
    EngineCommand,
    PositionMove,
    PositionResult,
    SinkTag,
    TxnResult,
)
from semel.model.outcomes import OffsetBeyondTail, Outcome, Refusal
from semel.model.outcomes_txn import (
    BY_INCARNATION,
    CommitDone,
    ExtendDone,
    PositionConflict,
    StreamRefused,
    UnstableOffsets,
)
from tests.unit.machine.builders import append
from tests.unit.machine.txn_builders import begin, by, commit, one_shot, prepare, sunk


class Expected(NamedTuple):
    """A command and its outcome. With `is_still`, or if refused, it must write nothing."""

    command: EngineCommand
    outcome: Outcome
    is_still: bool = False

    @property
    def leaves_no_trace(self) -> bool:
        return self.is_still or isinstance(self.outcome, Refusal)


Step = EngineCommand | Expected


class Story(NamedTuple):
    row: str
    name: str
    steps: tuple[Step, ...]


# ---- helpers -------------------------------------------------------------------------------------

THREE = (append(), append(), append())  # in s, whose tail is then 3
SEEN = "i-s-0"  # the first incarnation of the stream s


def start(
    txn: str = "t", producer: str = "p", kind: str = TXN_INLINE, *, epoch: int = 0
) -> ask.Begin:
    return begin(txn, by(producer, epoch), kind=kind, streams=(), implicit=True)


def start_sink(txn: str, version: int = 1) -> ask.Begin:
    return begin(txn, sunk(version), kind=TXN_STAGED, streams=(), implicit=True)


def move(
    to: int,
    expected: int | None = None,
    *,
    version: int | None = None,
    incarnation: str | None = None,
    group: str = "g",
    path: str = "s",
    metadata: ask.Metadata = (),
) -> PositionMove:
    return PositionMove(group, path, to, expected, incarnation, version, metadata)


def name(*moves: PositionMove, txn: str = "t", epoch: int = 1) -> ask.AddPositions:
    return ask.AddPositions(0, txn, epoch, positions=moves)


def sets(*moves: PositionMove) -> ask.SetPositions:
    return ask.SetPositions(0, moves)


def conflict(
    offset: int,
    version: int,
    reason: str,
    *,
    path: str = "s",
    group: str = "g",
    incarnation: str | None = None,
    mover: str | None = None,
) -> PositionConflict:
    return PositionConflict(group, path, offset, incarnation, version, mover, reason)


def held(txn: str = "u", path: str = "s") -> UnstableOffsets:
    return UnstableOffsets("g", path, txn, 1)


def named(count: int = 1, txn: str = "t") -> ExtendDone:
    return ExtendDone(txn, count)


def done(txn: str, *offsets: tuple[str, int], deleted: tuple[str, ...] = ()) -> CommitDone:
    return CommitDone(txn, 1, result_of(offsets, deleted))


def one_done(*offsets: tuple[str, int], deleted: tuple[str, ...] = ()) -> CommitDone:
    return CommitDone(None, None, result_of(offsets, deleted))


def result_of(offsets: tuple[tuple[str, int], ...], deleted: tuple[str, ...]) -> TxnResult:
    moved = tuple(PositionResult("g", path, offset) for path, offset in offsets)
    return TxnResult((), moved, deleted)


def once(
    *moves: PositionMove, seq: int = 0, producer: str = "p", listed: str = "", epoch: int = 0
) -> ask.Commit:
    """Return a one-shot commit by a producer. Each letter of `listed` is a transaction id."""
    known = tuple((txn, 1) for txn in listed)
    return one_shot(seq=seq, producer=producer, positions=moves, listed=known, epoch=epoch)


def version_of(number: int, *moves: PositionMove, listed: str = "") -> ask.Commit:
    """Return a one-shot commit by a sink."""
    known = tuple((txn, 1) for txn in listed)
    return one_shot(
        sink=SinkTag("app", "query", number, "in"), positions=moves, listed=known, producer=None
    )


# The producer q has moved the group to 2, which is version 1.
MOVED_BY_Q = (start("u", "q"), name(move(2), txn="u"), commit("u"))
# The transaction u of q holds the position, which is at 0.
HELD_BY_U = (start("u", "q"), name(move(2), txn="u"), prepare("u"))

# OTHER: read in another incarnation. BEYOND: the offset is past the tail of 3 messages.
OTHER = conflict(0, 0, BY_INCARNATION, incarnation=SEEN)
BEYOND = StreamRefused("s", OffsetBeyondTail(3))
