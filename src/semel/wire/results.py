"""What transactions, commits, groups and sinks look like in a document."""

from collections.abc import Iterable, Mapping
from typing import Final

from semel.machine.txn.views import PositionView, SinkView, TxnStreamView, TxnView
from semel.model.limits import TXN_TIMEOUT_MS_MAX
from semel.model.offsets import print_offset
from semel.model.outcomes import Outcome
from semel.model.outcomes_txn import AbortDone, Begun, CommitDone, ExtendDone, Prepared
from semel.model.transactions import AddStreams, Commit, Owner, SinkOwner, SnapshotRange, TxnCall
from semel.model.txn_outcome import (
    ABORTED,
    BY_TIMEOUT,
    COMMITTED,
    PositionResult,
    TxnOutcome,
    TxnResult,
)
from semel.wire.headers import print_instant
from semel.wire.rendering import Response
from semel.wire.responses import json_response, outcome_response

Document = dict[str, object]

# What the states are called where transactions come from.
_PHASES: Final[Mapping[str, str]] = {
    "open": "Ongoing",
    "prepared": "Prepared",
    COMMITTED: "CompleteCommit",
    ABORTED: "CompleteAbort",
}
_DEAD: Final = "Dead"


def result_document(result: TxnResult) -> Document:
    """Describe what a decision did."""
    streams = {
        done.path: {
            "first_offset": print_offset(done.first_offset),
            "next_offset": print_offset(done.next_offset),
            "messages": done.messages,
        }
        for done in result.streams
    }
    return {
        "streams": streams,
        "offsets": offsets_document(result.positions),
        "deleted": list(result.deleted),
    }


def offsets_document(positions: Iterable[PositionResult | PositionView]) -> Document:
    """Describe positions: by group, then by stream."""
    groups: dict[str, dict[str, str]] = {}
    for position in positions:
        groups.setdefault(position.group, {})[position.path] = print_offset(position.offset)
    return dict(groups)


def outcome_document(known: TxnOutcome) -> Document:
    """Describe a transaction that is decided."""
    is_dead = known.decision == ABORTED and known.reason == BY_TIMEOUT
    return {
        "transaction_id": known.id,
        "transaction_epoch": known.epoch,
        "state": known.decision,
        "phase": _DEAD if is_dead else _PHASES[known.decision],
        "reason": known.reason if known.decision == ABORTED else None,
        "decided_at": print_instant(known.time_ms),
        **result_document(known.result),
    }


def transaction_document(view: TxnView, now_ms: int) -> Document:
    """Describe a transaction that is not decided."""
    return {
        "transaction_id": view.id,
        "transaction_epoch": view.epoch,
        "number": view.number,
        "kind": view.kind,
        "state": view.state,
        "phase": _PHASES[view.state],
        "stuck": is_stuck(view, now_ms),
        **_owner_document(view.owner),
        "implicit": view.is_implicit,
        "begun_at": print_instant(view.begun_ms),
        "age_ms": max(0, now_ms - view.begun_ms),
        "idle_ms": max(0, now_ms - view.touched_ms),
        "deadline": None if view.due_ms is None else print_instant(view.due_ms),
        "chunks": view.chunks,
        "next_seq": view.next_seq,
        "streams": {stream.path: _stream_document(stream) for stream in view.streams},
        "offsets": offsets_document(view.positions),
        "deleted": list(view.deleted),
    }


def is_stuck(view: TxnView, now_ms: int) -> bool:
    """Tell whether nobody touched a transaction for longer than any deadline allows."""
    return now_ms - view.touched_ms >= TXN_TIMEOUT_MS_MAX


def _owner_document(owner: Owner) -> Document:
    if isinstance(owner, SinkOwner):
        sink = {"app": owner.app, "version": owner.version, "partition": owner.partition}
        return {"sink": sink}
    return {"producer_id": owner.id, "producer_epoch": owner.epoch}


def _stream_document(stream: TxnStreamView) -> Document:
    first = stream.first_offset
    return {
        "first_offset": None if first is None else print_offset(first),
        "messages": stream.messages,
        "chunks": stream.chunks,
    }


def snapshot_document(
    group: str, number: int, ranges: Iterable[SnapshotRange], digest: str
) -> Document:
    """Describe a pinned step."""
    return {
        "group": group,
        "number": number,
        "ranges": {
            part.path: {
                "incarnation": part.incarnation,
                "from": print_offset(part.start),
                "to": print_offset(part.end),
            }
            for part in ranges
        },
        "hash": digest,
    }


def sink_document(view: SinkView, *, is_full: bool = False) -> Document:
    """Describe a sink; in full with what its kept versions did."""
    shown: Document = {
        "app": view.app,
        "query_id": view.query_id,
        "last_version": view.last_version,
        "open_transactions": view.open_transactions,
    }
    if is_full:
        shown["versions"] = [
            {"version": known.version, "input": known.input, **result_document(known.result)}
            for known in view.versions
        ]
    return shown


# ---- txn answers ---------------------------------------------------------------------------------
# What calls on transactions and one-shot commits are answered.


_UNCHECKED = "without digests of the input nobody can tell that this is the same batch"
_MISMATCH = "this producer_seq was used for another commit, which stays; nothing of this is applied"


def begin_response(outcome: Outcome) -> Response:
    """Answer a begin: 201, or 200 if it was open already."""
    if not isinstance(outcome, Begun):
        return outcome_response(outcome)
    deadline_ms = outcome.deadline_ms
    found = {
        "transaction_id": outcome.id,
        "transaction_epoch": outcome.epoch,
        "state": "open",
        "deadline": None if deadline_ms is None else print_instant(deadline_ms),
    }
    return json_response(201 if outcome.is_new else 200, found)


def call_response(outcome: Outcome, command: TxnCall) -> Response:
    """Answer any other call on a transaction."""
    common: Document = {"transaction_id": command.id, "transaction_epoch": command.epoch}
    if isinstance(outcome, ExtendDone):
        name = "stream_count" if isinstance(command, AddStreams) else "offset_count"
        return json_response(200, {**common, name: outcome.count})
    if isinstance(outcome, Prepared):
        return json_response(200, {**common, "state": "prepared", "token": outcome.token})
    if isinstance(outcome, AbortDone):
        return json_response(200, {**common, "state": "aborted", "reason": outcome.reason})
    if isinstance(outcome, CommitDone):
        told = {**common, "state": "committed", "duplicate": outcome.is_duplicate}
        return json_response(200, {**told, **_done(outcome)})
    return outcome_response(outcome)


def commit_response(outcome: Outcome, command: Commit) -> Response:
    """Answer a one-shot commit."""
    if not isinstance(outcome, CommitDone):
        return outcome_response(outcome)
    found: Document = {"duplicate": outcome.is_duplicate, **_done(outcome)}
    sink = command.sink
    if sink is not None:
        found["sink"] = {"app": sink.app, "version": sink.version}
    else:
        found["producer_id"] = command.producer_id
        found["producer_epoch"] = command.producer_epoch
        found["producer_seq"] = command.producer_seq
    if outcome.is_unchecked:
        found["warning"] = _UNCHECKED
    if outcome.is_mismatch:
        found["warning"] = _MISMATCH
    more = [("Producer-Payload-Mismatch", "true")] if outcome.is_mismatch else []
    return json_response(200, found, more)


def _done(outcome: CommitDone) -> Document:
    """Describe what was done; null where that is no longer held."""
    if outcome.result is None:
        return {"streams": None, "offsets": None, "deleted": None}
    return result_document(outcome.result)
