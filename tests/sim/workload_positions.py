"""The moves of positions that the simulated clients send.

Most move a position that a transaction has already named or moved, as two workers of one group do.
The conditions of a move are mostly true, because otherwise few transactions would be committed.
"""

from collections.abc import Callable, Sequence
from random import Random
from typing import TypeVar

from semel.model.commands import Create, Delete, EngineCommand, Metadata, PositionMove
from tests.sim.letters import GROUP as LETTERS
from tests.sim.letters import REPLAYS, is_of_letters
from tests.sim.reference import Model
from tests.sim.reference_positions import Key, Named
from tests.sim.reference_txn import Txn

T = TypeVar("T")

GROUPS = ("g0", "g0", "g0", "g1", "g2")  # most workers are of one group
ELSEWHERE = "i0"  # an incarnation that no stream has


class PositionWorkload:
    """A seeded generator of moves."""

    def __init__(self, rng: Random, path: Callable[[Model], str]) -> None:
        self._rng, self._path = rng, path
        self._count = 0
        self._notes = Random(0)  # draws metadata, without a change of what the seed draws

    # ---- requests --------------------------------------------------------------------------------

    def naming(self, model: Model, txn: Txn | None) -> tuple[PositionMove, ...]:
        """Draw the moves of a call that names positions: new, known, twice, or a repeat."""
        rng = self._rng
        if txn is not None and txn.positions and rng.random() < 0.15:
            key, named = rng.choice(list(txn.positions.items()))
            metadata = named.metadata if self._notes.random() < 0.7 else self._metadata()
            call = PositionMove(
                key[0], named.path, named.to, named.expected, None, named.version, metadata
            )
            return (call,)
        near = [] if txn is None else [txn]
        moves = [self._one(model, near, txn) for _ in range(rng.choice([1, 1, 1, 2, 3]))]
        if rng.random() < 0.08:
            first = moves[0]
            expected = rng.choice([first.to, first.to, first.expected, None])
            to = self._to(model, first)
            moves.append(
                PositionMove(first.group, first.path, to, expected, metadata=self._metadata())
            )
        return tuple(moves)

    def own(self, model: Model, near: Sequence[Txn]) -> tuple[PositionMove, ...]:
        """Draw the moves of a one-shot commit; the transactions `near` have named some of them."""
        count = self._rng.choice([0, 0, 0, 1, 1, 2])
        return _distinct([self._one(model, near, None) for _ in range(count)])

    def setting(self, model: Model) -> tuple[PositionMove, ...]:
        """Draw a plain set: a rewind of a stored position, or any moves."""
        rng, stored = self._rng, _stored(model)
        if stored and rng.random() < 0.35:
            group, number = rng.choice(stored)
            return (PositionMove(group, model.txns.by_number(number)[0], 0),)
        return _distinct([self._one(model, [], None) for _ in range(rng.choice([1, 1, 2]))])

    def ending(self, model: Model, now_ms: int) -> EngineCommand | None:
        """Delete a stream in which a transaction has named a position, or create it again."""
        rng = self._rng
        every = [n for t in model.txns.open.values() for n in t.positions.values()]
        names = [named for named in every if not is_of_letters(named.path)]
        if not names:
            return None
        path = rng.choice(names).path
        if path in model.streams:
            return Delete(path, now_ms)
        self._count += 1
        return Create(path, now_ms, f"anew{self._count}", "text/plain")

    # ---- one move --------------------------------------------------------------------------------

    def _often(self, usual: T, *others: T, rate: float) -> T:
        return usual if self._rng.random() < rate else self._rng.choice(others)

    def _one(self, model: Model, near: Sequence[Txn], txn: Txn | None) -> PositionMove:
        group, path = self._where(model, near)
        if path not in model.streams:
            return PositionMove(group, path, self._rng.randint(0, 3))
        named = None
        if txn is not None:
            named = txn.positions.get(model.txns.positions.key(group, path))
        return self._move(model, group, path, named)

    def _where(self, model: Model, near: Sequence[Txn]) -> tuple[str, str]:
        """Choose a group and a path: named by `near`, named or moved by any transaction, or any."""
        rng = self._rng
        luck = rng.random()
        if luck < 0.3:
            txns = near
        elif luck < 0.6:
            txns = list(model.txns.open.values())
        else:
            txns = []
        names = [(key[0], n.path) for txn in txns for key, n in txn.positions.items()]
        if not names and luck < 0.8:
            names = [(group, model.txns.by_number(number)[0]) for group, number in _stored(model)]
        return rng.choice(names) if names else (rng.choice(GROUPS), self._path(model))

    def _move(self, model: Model, group: str, path: str, named: Named | None) -> PositionMove:
        """Draw a move of a position; `named` is what this transaction has named before."""
        rng, stream, stored = self._rng, model.streams[path], model.txns.positions.at(group, path)
        expected = incarnation = version = None
        if rng.random() < 0.7:
            right = stored.offset if named is None else named.to
            expected = self._often(right, right + 1, 0, stored.offset, rate=0.85)
        if rng.random() < 0.3:
            version = self._often(
                stored.version, stored.version + 1, max(0, stored.version - 1), rate=0.8
            )
        if rng.random() < 0.3:
            incarnation = self._often(stream.incarnation, ELSEWHERE, rate=0.88)
        to = self._to(model, PositionMove(group, path, 0))
        return PositionMove(group, path, to, expected, incarnation, version, self._metadata())

    def _metadata(self) -> Metadata:
        """Draw the metadata of a move: mostly none, otherwise one or two values."""
        notes = self._notes
        if notes.random() < 0.6:
            return ()
        number = ("number", notes.getrandbits(64) - 2**63)
        return (number,) if notes.random() < 0.7 else (number, ("worker", notes.choice(GROUPS)))

    def _to(self, model: Model, move: PositionMove) -> int:
        """Choose an offset: mostly not before the stored one, and rarely past the tail."""
        rng, stream = self._rng, model.streams.get(move.path)
        if stream is None:
            return rng.randint(0, 3)
        stored = model.txns.positions.at(move.group, move.path)
        first = stored.offset if rng.random() < 0.8 else 0
        return rng.randint(min(first, stream.tail), stream.tail) + (rng.random() < 0.03)


def _distinct(moves: list[PositionMove]) -> tuple[PositionMove, ...]:
    """Keep only the last move of each position."""
    return tuple({(move.group, move.path): move for move in moves}.values())


def _stored(model: Model) -> list[Key]:
    """Return the positions that are stored, without those that only some workers move."""
    return [key for key in model.txns.positions.stored if key[0] not in (LETTERS, REPLAYS)]
