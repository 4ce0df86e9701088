"""What calls on transactions and one-shot commits are answered."""

from semel.model.outcomes import Outcome
from semel.model.transactions import AddStreams, Commit, TxnCall
from semel.model.txn_outcomes import Aborted, Begun, Committed, Prepared, TxnExtended
from semel.wire.headers import print_instant
from semel.wire.rendering import Response
from semel.wire.responses import json_response, outcome_response
from semel.wire.results import Document, result_document

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
    if isinstance(outcome, TxnExtended):
        name = "stream_count" if isinstance(command, AddStreams) else "offset_count"
        return json_response(200, {**common, name: outcome.count})
    if isinstance(outcome, Prepared):
        return json_response(200, {**common, "state": "prepared", "token": outcome.token})
    if isinstance(outcome, Aborted):
        return json_response(200, {**common, "state": "aborted", "reason": outcome.reason})
    if isinstance(outcome, Committed):
        told = {**common, "state": "committed", "duplicate": outcome.is_duplicate}
        return json_response(200, {**told, **_done(outcome)})
    return outcome_response(outcome)


def commit_response(outcome: Outcome, command: Commit) -> Response:
    """Answer a one-shot commit."""
    if not isinstance(outcome, Committed):
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


def _done(outcome: Committed) -> Document:
    """Describe what was done; null where that is no longer held."""
    if outcome.result is None:
        return {"streams": None, "offsets": None, "deleted": None}
    return result_document(outcome.result)
