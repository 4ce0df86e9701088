"""Seeded bugs in positions: most let two workers of one group commit the same messages."""

import importlib
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from msgspec.structs import replace

from semel.broker import broker as broker_module
from semel.journal import checkpoint, frame
from semel.machine import commits, positions
from semel.machine.events import (
    DecidedWithMetadata,
    PositionsMovedWithMetadata,
    PositionsNamedWithMetadata,
)
from semel.machine.pending import add_position
from semel.machine.positions import print_mover, stored_position
from semel.machine.rows import NamedPosition, OwnerKey, PositionRow
from semel.machine.state import State, Stream, Txn
from semel.machine.txn import apply_end, decide_end, lookup
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

    def move(
        state: State, moves: Any, time_ms: int, mover: OwnerKey | None = None, metadata: Any = ()
    ) -> None:
        moves = list(moves)
        before = [stored_position(state.by_number[n], group).version for group, n, _ in moves]
        real(state, moves, time_ms, mover, metadata)
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

    def move(
        state: State, moves: Any, time_ms: int, mover: OwnerKey | None = None, metadata: Any = ()
    ) -> None:
        moves = list(moves)
        real(state, moves, time_ms, mover, metadata)
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

    def name(state: State, stream: Stream, position: PositionMove, *rest: Any, **more: Any) -> Any:
        named = real(state, stream, position, *rest, **more)
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
    return _patched_rows("positions", version=0, mover=None)


def lose_metadata_at_a_checkpoint() -> Any:
    """A checkpoint stores the positions, but not their metadata."""
    return _patched_rows("positions", metadata=())


def lose_named_metadata_at_a_checkpoint() -> Any:
    """A checkpoint stores what a transaction has named, but not the metadata."""
    return _patched_rows("transactions", metadata=())


def _patched_rows(name: str, **changes: Any) -> Any:
    """Change the rows of a table that a checkpoint stores."""
    real = checkpoint._put_table

    def put(tables: Any, table: str, rows: Mapping[Any, Any], key_of: Any) -> None:
        if table == name:
            rows = {
                key: None if row is None else replace(row, **changes) for key, row in rows.items()
            }
        real(tables, table, rows, key_of)

    return patch.object(checkpoint, "_put_table", put)


def set_metadata_when_naming() -> Any:
    """The metadata of a transaction's move is stored at once, and so an abort keeps it."""
    module = importlib.import_module("semel.machine.apply")
    real = module._APPLIERS[PositionsNamedWithMetadata]

    def named(state: State, event: PositionsNamedWithMetadata, *rest: Any) -> None:
        real(state, event, *rest)
        for position, metadata in zip(event.positions, event.metadata, strict=True):
            stream = state.by_number[position.stream]
            if stream.positions and position.group in stream.positions:
                row = replace(stream.positions[position.group], metadata=metadata)
                add_position(state, stream, position.group, row)
                state.dirty.positions[position.stream, position.group] = row

    return patch.dict(module._APPLIERS, {PositionsNamedWithMetadata: named})


def keep_metadata_over_a_move() -> Any:
    """A move without metadata keeps the metadata of the move before it."""
    real = positions.move_positions

    def move(state: State, moves: Any, time_ms: int, mover: Any = None, metadata: Any = ()) -> None:
        moves = list(moves)
        noted = list(metadata) or [()] * len(moves)
        kept = [stored_position(state.by_number[n], group).metadata for group, n, _ in moves]
        noted = [new or old for new, old in zip(noted, kept, strict=True)]
        real(state, moves, time_ms, mover, noted)

    return _all(
        patch.object(positions, "move_positions", move),
        patch.object(apply_end, "move_positions", move),
    )


def move_without_metadata_in_the_frame() -> Any:
    """The frame of a move does not contain the metadata."""
    real = frame.encode_meta

    def encode(event: Any) -> bytes:
        if isinstance(event, PositionsMovedWithMetadata | DecidedWithMetadata):
            event = replace(event, metadata=())
        return real(event)

    return patch.object(broker_module, "encode_meta", encode)


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
    lose_metadata_at_a_checkpoint,
    lose_named_metadata_at_a_checkpoint,
    set_metadata_when_naming,
    keep_metadata_over_a_move,
    move_without_metadata_in_the_frame,
)
