"""Seeded bugs in positions: most let two workers of one group commit the same messages."""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from msgspec.structs import replace

from semel.journal import checkpoint
from semel.machine import commits, positions
from semel.machine.positions import print_mover, stored_position
from semel.machine.rows import NamedPosition, OwnerKey, PositionRow
from semel.machine.state import State, Stream, Txn
from semel.machine.txn import decide_end, lookup
from semel.model.commands import COMMITTED, CommitTxn, PositionMove, TxnOutcome
from semel.model.outcomes import Outcome, Refusal
from semel.model.outcomes_txn import BY_MOVE, PositionConflict

Refuse = Callable[..., Refusal | None]


def compare_nothing() -> Any:
    """Guards, `from`, `version` and mover are not compared."""
    return _all(
        _patched_guards(lambda *_: None),
        patch.object(positions, "_refuse_from", lambda *_: None),
        patch.object(positions, "_refuse_mover", lambda *_: None),
    )


def compare_only_when_naming() -> Any:
    """A commit does not check whether a position was moved since it was named."""
    real = positions.refuse_guards

    def refuse(state: State, txn: Txn, ending: Collection[int] = ()) -> Refusal | None:
        now = tuple(
            replace(named, guard=stored_position(stream, named.group).version)
            for named in txn.row.positions
            for stream in (state.by_number[named.stream],)
        )
        return real(
            state, Txn(replace(txn.row, positions=now), txn.streams, txn.chunk_blocks), ending
        )

    return _patched_guards(refuse)


def compare_a_repeated_commit() -> Any:
    """A repeated commit is refused if its positions have been moved since."""
    real = lookup.find_for_call

    def find(state: State, call: Any) -> Any:
        found = real(state, call)
        if isinstance(call, CommitTxn) and isinstance(found, TxnOutcome):
            return _moved_on(state, found) or found
        return found

    return patch.object(decide_end, "find_for_call", find)


def _moved_on(state: State, found: TxnOutcome) -> Outcome | None:
    for moved in found.result.positions if found.decision == COMMITTED else ():
        stream = state.by_path.get(moved.path)
        stored = None if stream is None else stored_position(stream, moved.group)
        if stored is not None and stored.offset != moved.offset:
            return PositionConflict(moved.group, moved.path, stored.offset, reason=BY_MOVE)
    return None


def hold_nothing() -> Any:
    """A prepared transaction does not hold the positions it names."""
    return patch.object(positions, "refuse_held", lambda *_: None)


def drop_a_position_with_its_stream() -> Any:
    """A commit succeeds without the positions of streams that were deleted."""
    real = positions.refuse_guards

    def refuse(state: State, txn: Txn, ending: Collection[int] = ()) -> Refusal | None:
        kept = Txn(replace(txn.row, lost=()), txn.streams, txn.chunk_blocks)
        return real(state, kept, ending)

    return _patched_guards(refuse)


def leave_guards_alone_in_a_rewind() -> Any:
    """A plain set does not increase the version."""
    real = positions.move_positions

    def move(state: State, moves: Any, time_ms: int, mover: OwnerKey | None = None) -> None:
        moves = list(moves)
        before = [stored_position(state.by_number[n], group).version for group, n, _ in moves]
        real(state, moves, time_ms, mover)
        for (group, number, _), version in zip(moves, before, strict=True):
            stream = state.by_number[number]
            assert stream.positions is not None
            row = replace(stream.positions[group], version=version)
            stream.positions[group] = state.dirty.positions[number, group] = row

    return patch.object(positions, "move_positions", move)


def forget_the_mover() -> Any:
    """Without `from`, a position may be moved although another producer moved it last."""
    return patch.object(positions, "_refuse_mover", lambda *_: None)


def clear_the_mover_by_a_plain_set() -> Any:
    """A plain set clears the mover, so that anybody may move the position without `from`."""
    real = positions.move_positions

    def move(state: State, moves: Any, time_ms: int, mover: OwnerKey | None = None) -> None:
        moves = list(moves)
        real(state, moves, time_ms, mover)
        for group, number, _ in moves:
            stream = state.by_number[number]
            assert stream.positions is not None
            row = replace(stream.positions[group], mover=mover)
            stream.positions[group] = state.dirty.positions[number, group] = row

    return patch.object(positions, "move_positions", move)


def take_a_sink_for_a_producer() -> Any:
    """Two movers are treated as one if they are printed the same way."""
    real = positions._refuse_mover

    def refuse(position: PositionMove, stored: PositionRow, mover: OwnerKey) -> Refusal | None:
        is_alike = stored.mover is not None and print_mover(stored.mover) == print_mover(mover)
        return None if is_alike else real(position, stored, mover)

    return patch.object(positions, "_refuse_mover", refuse)


def take_a_new_guard_when_renaming() -> Any:
    """Naming a position again replaces its guard."""
    real = positions._name

    def name(state: State, stream: Stream, position: PositionMove, *rest: Any) -> Any:
        named = real(state, stream, position, *rest)
        if rest[0] is None or not isinstance(named, NamedPosition) or named is rest[0]:
            return named
        return replace(named, guard=stored_position(stream, position.group).version)

    return patch.object(positions, "_name", name)


def hold_against_what_the_commit_ends() -> Any:
    """A one-shot commit is refused because a transaction that it ends holds a position."""
    return patch.object(commits, "_ending", lambda *_: set())


def move_one_position_twice() -> Any:
    """A one-shot commit may move a position that a listed transaction moves too."""
    real = commits._refuse_positions

    def refuse(state: State, command: Any, draft: Any, streams: Any, listed: list[Txn]) -> Any:
        own = {(move.group, streams[move.path].row.number) for move in command.positions}
        rest = [_without(txn, own) for txn in listed]
        return real(state, command, draft, streams, rest)

    return patch.object(commits, "_refuse_positions", refuse)


def _without(txn: Txn, keys: Collection[tuple[str, int]]) -> Txn:
    kept = tuple(n for n in txn.row.positions if (n.group, n.stream) not in keys)
    return Txn(replace(txn.row, positions=kept), txn.streams, txn.chunk_blocks)


def lose_versions_at_a_checkpoint() -> Any:
    """A checkpoint stores the offsets of positions, but not their versions and movers."""
    real = checkpoint._put_table

    def put(tables: Any, table: str, rows: Mapping[Any, Any], key_of: Any) -> None:
        if table == "positions":
            rows = {
                name: None if row is None else PositionRow(row.offset, row.time_ms)
                for name, row in rows.items()
            }
        real(tables, table, rows, key_of)

    return patch.object(checkpoint, "_put_table", put)


def _patched_guards(refuse: Refuse) -> Any:
    return _all(
        patch.object(commits, "refuse_guards", refuse),
        patch.object(decide_end, "refuse_guards", refuse),
    )


@contextmanager
def _all(*patches: Any) -> Iterator[None]:
    with ExitStack() as stack:
        for each in patches:
            stack.enter_context(each)
        yield


POSITION_MUTANTS: tuple[Callable[[], Any], ...] = (
    compare_nothing,
    compare_only_when_naming,
    compare_a_repeated_commit,
    hold_nothing,
    drop_a_position_with_its_stream,
    leave_guards_alone_in_a_rewind,
    forget_the_mover,
    clear_the_mover_by_a_plain_set,
    take_a_sink_for_a_producer,
    take_a_new_guard_when_renaming,
    hold_against_what_the_commit_ends,
    move_one_position_twice,
    lose_versions_at_a_checkpoint,
)
