"""The positions of groups in the reference model: who may move one, and when.

Written from the section "Positions" of `docs/reference/transactions.md`; the comments name its
rows. Nothing is indexed: the holder of a position is found by a scan of all pending transactions,
and whether a named stream still exists by a lookup of its path.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple, Protocol

from semel.model import commands as ask
from semel.model import outcomes as out
from semel.model import outcomes_txn as txn_out
from semel.model.commands import Owner, ProducerOwner
from semel.model.outcomes import Outcome
from tests.sim.reference_streams import Stream

Key = tuple[str, int]  # a group and a stream number: a path may get another stream
Mover = tuple[bool, str]  # a producer (True) and its id, or a sink and its app


class Stored(NamedTuple):
    """The position of a group in a stream; the defaults apply if nothing is stored."""

    offset: int = 0
    version: int = 0  # how often it was moved
    mover: Mover | None = None  # of the last move that was not a plain set
    metadata: ask.Metadata = ()  # of the last move


class Named(NamedTuple):
    """A move that the commit of a pending transaction will make."""

    path: str
    to: int
    guard: int  # the stored version when the transaction first named the position
    expected: int | None  # `from` of the last call; below, its `version`
    version: int | None
    metadata: ask.Metadata = ()
    member: str | None = None  # of the last call, with its epoch
    member_epoch: int | None = None


Names = Mapping[Key, Named]  # of one transaction, in the order they were first named


class Namer(Protocol):
    """The fields of a pending transaction that the rules of positions use."""

    number: int
    id: str
    epoch: int
    owner: Owner
    is_prepared: bool
    positions: dict[Key, Named]


class Generations(Protocol):
    """The rules of groups whose members share work: table G."""

    def refuse_move(self, move: ask.PositionMove) -> Outcome | None:
        """Return the refusal of a move by somebody who does not own the stream."""

    def refuse_named(self, key: Key, named: Named) -> Outcome | None:
        """Return the same for what an open transaction has named."""


NOBODY: frozenset[int] = frozenset()


def mover_of(owner: Owner) -> Mover:
    """Return the mover in transactions of this owner."""
    is_producer = isinstance(owner, ProducerOwner)
    return is_producer, owner.id if isinstance(owner, ProducerOwner) else owner.app


def _shown(mover: Mover) -> str:
    is_producer, name = mover
    return name if is_producer else f"sink:{name}"


def _called(move: ask.PositionMove) -> Any:
    """Return what a call that names a position says; the same again changes nothing."""
    owner = (move.member, move.member_epoch)
    return (move.to, move.expected, move.version, move.metadata, *owner)


class Positions:
    """The positions stored, and the rules for moving them."""

    def __init__(
        self, streams: dict[str, Stream], undecided: Mapping[str, Namer], groups_max: int
    ) -> None:
        self._streams, self._undecided, self._groups_max = streams, undecided, groups_max
        self.stored: dict[Key, Stored] = {}
        self.generations: Generations | None = None  # set by the model

    # ---- lookups ---------------------------------------------------------------------------------

    def at(self, group: str, path: str) -> Stored:
        """Return what is stored for a group in the stream of a path."""
        return self.stored.get(self.key(group, path), Stored())

    def version(self, key: Key) -> int:
        return self.stored.get(key, Stored()).version

    def key(self, group: str, path: str) -> Key:
        return group, self._streams[path].number

    def is_lost(self, key: Key, named: Named) -> bool:
        """Return whether the stream was deleted or has expired since it was named."""
        stream = self._streams.get(named.path)
        return stream is None or stream.is_deleted or stream.number != key[1]

    def lost(self, names: Names) -> list[tuple[str, str]]:
        """Return group and path of the positions that can no longer be moved, sorted by both."""
        # CHOICE: each once, even if two streams with this path were deleted.
        return sorted({(key[0], n.path) for key, n in names.items() if self.is_lost(key, n)})

    def alive(self, names: Names) -> list[tuple[Key, Named]]:
        """Return the positions that can be moved, in the order they were first named."""
        return [(key, n) for key, n in names.items() if not self.is_lost(key, n)]

    def count(self, names: Names) -> int:
        """Return the number of positions in a transaction; those of deleted streams count."""
        return len(self.alive(names)) + len(self.lost(names))

    def holder(self, key: Key, besides: Collection[int] = NOBODY) -> Namer | None:
        """Return the prepared transaction that holds a position, unless it is one of `besides`."""
        for txn in self._undecided.values():
            if txn.is_prepared and key in txn.positions and txn.number not in besides:
                return txn
        return None

    # ---- naming ----------------------------------------------------------------------------------

    def name(self, txn: Namer, moves: Iterable[ask.PositionMove]) -> dict[Key, Named] | Outcome:
        """Name the positions one by one; return all named positions, or a refusal."""
        names = dict(txn.positions)
        fresh: list[Key] = []  # named earlier in this call, and new to their stream
        for move in moves:
            refusal = self._in_another_stream(move) or self._by_another_owner(move)
            if refusal is not None:
                return refusal  # A2, G
            key, stored = self.key(move.group, move.path), self.at(move.group, move.path)
            if (old := names.get(key)) is None:
                refusal = self._judge_new(txn, move) or self.no_place(move, {}, fresh)
                guard = stored.version  # A9
            elif old[1:2] + old[3:] == _called(move):
                continue  # A3
            else:
                refusal = self._judge_renamed(old, move) or self.past_the_tail(move, {})
                guard = old.guard  # A5
            if refusal is not None:
                return refusal
            to, *rest = _called(move)
            names[key] = Named(move.path, to, guard, *rest)
        return names

    def _judge_renamed(self, old: Named, move: ask.PositionMove) -> Outcome | None:
        if move.expected in (None, old.to):
            return None
        version = self.at(move.group, move.path).version
        why = txn_out.BY_PENDING
        return txn_out.PositionConflict(
            move.group, move.path, old.to, version=version, reason=why
        )  # A4

    def _judge_new(self, txn: Namer, move: ask.PositionMove) -> Outcome | None:
        return (
            self.held(move)  # A6
            or self.moved_elsewhere(move)  # A7
            or self.moved_by_another(move, mover_of(txn.owner))  # A8
        )

    # ---- the rules one by one --------------------------------------------------------------------

    def _conflict(self, move: ask.PositionMove, reason: str) -> txn_out.PositionConflict:
        stored = self.at(move.group, move.path)
        return txn_out.PositionConflict(
            move.group, move.path, stored.offset, version=stored.version, reason=reason
        )

    def _in_another_stream(self, move: ask.PositionMove) -> Outcome | None:
        """A2."""
        incarnation, stored = self._streams[move.path].incarnation, self.at(move.group, move.path)
        if move.incarnation in (None, incarnation):
            return None
        return txn_out.PositionConflict(
            move.group,
            move.path,
            stored.offset,
            incarnation,
            stored.version,
            reason=txn_out.BY_INCARNATION,
        )

    def _by_another_owner(
        self, move: ask.PositionMove, by_operator: bool = False
    ) -> Outcome | None:
        """G: after the incarnation, and before everything that compares positions."""
        if self.generations is None or (by_operator and move.member is None):
            return None
        return self.generations.refuse_move(move)

    def held(self, move: ask.PositionMove, besides: Collection[int] = NOBODY) -> Outcome | None:
        """A6 and A15."""
        holder = self.holder(self.key(move.group, move.path), besides)
        if holder is None:
            return None
        return txn_out.UnstableOffsets(move.group, move.path, holder.id, holder.epoch)

    def moved_elsewhere(self, move: ask.PositionMove) -> Outcome | None:
        """A7."""
        stored = self.at(move.group, move.path)
        if move.expected not in (None, stored.offset):
            return self._conflict(move, txn_out.BY_OFFSET)
        if move.version not in (None, stored.version):
            return self._conflict(move, txn_out.BY_VERSION)
        return None

    def moved_by_another(self, move: ask.PositionMove, mover: Mover) -> Outcome | None:
        """A8."""
        stored = self.at(move.group, move.path)
        if move.expected is not None or stored.mover in (None, mover):
            return None
        assert stored.mover is not None
        return txn_out.PositionConflict(
            move.group,
            move.path,
            stored.offset,
            None,
            stored.version,
            _shown(stored.mover),
            txn_out.BY_MOVER,
        )

    def past_the_tail(self, move: ask.PositionMove, growth: dict[int, int]) -> Outcome | None:
        """A9b, of positions named first or again; `growth` is what the commit itself adds."""
        stream = self._streams[move.path]
        tail = stream.tail + growth.get(stream.number, 0)
        if move.to <= tail:
            return None
        return txn_out.StreamRefused(move.path, out.OffsetBeyondTail(tail))

    def no_place(
        self, move: ask.PositionMove, growth: dict[int, int], fresh: list[Key]
    ) -> Outcome | None:
        """A9b, of positions named first; a group new to its stream is added to `fresh`."""
        if (refusal := self.past_the_tail(move, growth)) is not None:
            return refusal
        key = self.key(move.group, move.path)
        if key in self.stored:
            return None
        known = [k for k in (*self.stored, *fresh) if k[1] == key[1]]
        if len(known) >= self._groups_max:
            return out.LimitReached("groups_per_stream", self._groups_max)
        fresh.append(key)
        return None

    # ---- deciding --------------------------------------------------------------------------------

    def judge_named(self, txn: Namer, besides: Collection[int] = NOBODY) -> Outcome | None:
        """A10 and A14: check what an open transaction has named, before it is moved or held."""
        for group, path in self.lost(txn.positions):
            return txn_out.PositionConflict(group, path, 0, reason=txn_out.BY_DELETION)
        for key, named in self.alive(txn.positions):
            move = ask.PositionMove(key[0], named.path, named.to)
            refusal = None
            if self.generations is not None:
                refusal = self.generations.refuse_named(key, named)
            if refusal is not None:
                return refusal  # G
            if named.guard != self.at(key[0], named.path).version:
                return self._conflict(move, txn_out.BY_MOVE)
            if (refusal := self.held(move, {*besides, txn.number})) is not None:
                return refusal
        return None

    def judge_own(
        self,
        moves: Iterable[ask.PositionMove],
        mover: Mover,
        growth: dict[int, int],
        ending: Collection[int],
    ) -> Outcome | None:
        """A18: check the own positions of a one-shot commit, which ends those in `ending`."""
        fresh: list[Key] = []
        for move in moves:
            refusal = (
                self._in_another_stream(move)  # A2
                or self._by_another_owner(move)  # G
                or self.held(move, ending)  # A6
                or self.moved_elsewhere(move)  # A7
                or self.moved_by_another(move, mover)  # A8
                or self.no_place(move, growth, fresh)  # A9b
            )
            if refusal is not None:
                return refusal
        return None

    def judge_set(
        self, moves: Iterable[ask.PositionMove], by_operator: bool = False
    ) -> Outcome | None:
        """A19: check a plain set; an operator, who is no member, need not own the stream."""
        fresh: list[Key] = []
        for move in moves:
            refusal = (
                self._in_another_stream(move)  # A2
                or self._by_another_owner(move, by_operator)  # G
                or self.moved_elsewhere(move)  # A7
                or self.held(move)  # A15
                or self.no_place(move, {}, fresh)  # A9b
            )
            if refusal is not None:
                return refusal
        return None

    # ---- moving ----------------------------------------------------------------------------------

    def move(self, key: Key, to: int, mover: Mover | None, metadata: ask.Metadata) -> int:
        """Move a position, replace its metadata (A21), and return its new version."""
        old = self.stored.get(key, Stored())
        self.stored[key] = Stored(to, old.version + 1, mover or old.mover, metadata)
        return old.version + 1

    def drop(self, number: int) -> None:
        """Remove the positions of a stream that was deleted or has expired."""
        self.stored = {key: kept for key, kept in self.stored.items() if key[1] != number}
