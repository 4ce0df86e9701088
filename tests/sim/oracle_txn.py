"""The engine's transactions, groups and sinks in the form of the reference model."""

from semel.broker.broker import Broker
from semel.machine import State
from semel.machine.state import Txn
from semel.machine.txn.draft import chunk_at, chunk_count, chunks_in, unpack_result
from semel.model.commands import COMMITTED, TXN_STAGED, TxnOutcome
from semel.model.outcomes import Outcome
from tests.sim.demands import demand, demand_equal
from tests.sim.reference import Model


def txn_state_view(state: State) -> dict[str, object]:
    """Dump the transaction tables in the form of the model."""
    demand_derived(state)
    seqs = {name: row.commit_seq for name, row in state.registry.items() if row.commit_seq >= 0}
    return {
        "next": state.next_txn,
        "open": {name: _txn_view(txn) for name, txn in sorted(state.transactions.items())},
        "positions": {
            (group, number): (row.offset, row.version, row.mover, row.metadata)
            for number, stream in state.by_number.items()
            for group, row in (stream.positions or {}).items()
        },
        "seqs": seqs,
        "results": {
            name: tuple(
                (seqs[name] - len(row.results) + 1 + i, unpack_result(packed), digest)
                for i, (packed, digest) in enumerate(zip(row.results, row.digests, strict=True))
            )
            for name, row in state.registry.items()
            if row.commit_seq >= 0
        },
        "sinks": {
            app: (
                row.query_id,
                row.last_version,
                tuple((v.version, v.input, unpack_result(v.result)) for v in row.versions),
            )
            for app, row in state.sinks.items()
        },
        "snapshots": {
            group: (row.number, row.ranges, row.hash) for group, row in state.snapshots.items()
        },
    }


def _chunks(txn: Txn) -> int:
    return chunk_count(txn.chunk_blocks) if txn.row.kind == TXN_STAGED else 0


def _txn_view(txn: Txn) -> dict[str, object]:
    row = txn.row
    return {
        "number": row.number,
        "id": row.id,
        "epoch": row.epoch,
        "kind": row.kind,
        "owner": row.owner,
        "is_implicit": row.is_implicit,
        "timeout_ms": row.timeout_ms,
        "deadline_ms": row.deadline_ms,
        "touched_ms": row.touched_ms,
        "is_prepared": row.is_prepared,
        "next_seq": row.next_seq,
        "positions": [
            (n.group, n.stream, n.to, n.guard, n.expected, n.version) for n in row.positions
        ],
        "metadata": {(group, number): metadata for group, number, metadata in row.metadata},
        "members": {
            (n.group, n.stream): (n.member, n.member_epoch) for n in row.positions if n.member
        },
        "lost": list(row.lost),
        "deleted": row.deleted,
        "sent": [chunk_at(txn.chunk_blocks, seq) for seq in range(_chunks(txn))],
        "streams": {
            number: (known.first, known.messages, known.chunks)
            for number, known in txn.streams.items()
        },
    }


def demand_derived(state: State) -> None:
    """Compare the indexes of named and held positions with the transactions."""
    named: dict[str, dict[int, set[int]]] = {}
    holds: dict[int, dict[str, int]] = {}
    for number, txn in sorted(state.by_txn.items()):
        for position in txn.row.positions:
            group, stream = position.group, position.stream
            named.setdefault(group, {}).setdefault(stream, set()).add(number)
            if txn.row.is_prepared:
                taken = holds.setdefault(stream, {}).setdefault(group, number)
                demand(taken == number, f"{group} in {stream} is held by {taken} and {number}")
    demand_equal(state.named, named, "index of named positions and transactions")
    found = {number: stream.holds for number, stream in state.by_number.items() if stream.holds}
    demand_equal(found, holds, "index of held positions and transactions")


def parts_view(state: State) -> dict[int, list[tuple[int, int, int]]]:
    """Return where the chunks of pending transactions are; the model does not know this."""
    return {number: list(chunks_in(txn.chunk_blocks)) for number, txn in state.by_txn.items()}


def demand_outcomes(broker: Broker, model: Model) -> None:
    """Compare every retained transaction outcome; everything must be durable."""
    for note in model.txns.notes:
        got: list[TxnOutcome | Outcome | None] = []
        broker.outcome(note.id, note.epoch, reply=got.append)
        what = f"the outcome of {note.id}, {note.epoch}: {got}"
        if note not in model.txns.notes_of(note.id):
            continue  # it has expired
        found = got[0]
        assert isinstance(found, TxnOutcome), what
        is_equal = (found.decision, found.reason) == (note.decision, note.reason)
        demand(is_equal and found.time_ms == note.time_ms, what)
        demand(note.decision != COMMITTED or found.result == note.result, what)


def demand_chunks_kept(
    state: State, segments: tuple[tuple[int, int], ...], dead: list[int]
) -> None:
    """Check that no segment is removed that contains a chunk of a pending transaction."""
    removed = [(first, end) for first, end in segments if first in dead]
    for txn in state.by_txn.values():
        for lsn, _, _ in chunks_in(txn.chunk_blocks) if txn.row.kind == TXN_STAGED else ():
            is_kept = not any(first <= lsn < end for first, end in removed)
            demand(is_kept, f"the segment of a chunk of {txn.row.id} is removed")
