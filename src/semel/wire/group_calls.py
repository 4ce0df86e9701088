"""Groups: where they stand, and the step they have pinned."""

from typing import Final

from msgspec import Struct

from semel.machine.txn.views import GroupView, PendingView, SnapshotView
from semel.model.offsets import print_offset
from semel.model.outcomes import Outcome
from semel.model.outcomes_txn import Pinned, PositionsSet, UnstableOffsets
from semel.model.transactions import PinSnapshot, SetPositions, SnapshotRange
from semel.wire.documents import Offset, read_document, read_offset
from semel.wire.headers import Headers, print_instant
from semel.wire.problems import MalformedRequest, Problem, bad_request
from semel.wire.queries import parse_query
from semel.wire.rendering import Response
from semel.wire.responses import json_response, outcome_response, problem_response
from semel.wire.results import snapshot_document
from semel.wire.txn_requests import Target, read_move

_QUERY: Final = frozenset({"stable", "stream", "transaction"})


class GroupQuery(Struct, frozen=True):
    """How a group is looked at: what is pending in `transaction` is left out."""

    is_stable: bool = False
    stream: str | None = None
    transaction: str | None = None


class _Moves(Struct, forbid_unknown_fields=True):
    offsets: dict[str, Target]


class _Range(Struct, forbid_unknown_fields=True, rename={"start": "from"}):
    incarnation: str
    start: Offset
    to: Offset


class _Step(Struct, forbid_unknown_fields=True):
    number: int
    ranges: dict[str, _Range]
    hash: str


def parse_positions(
    group: str, headers: Headers, body: bytes, *, now_ms: int
) -> SetPositions | Problem:
    """Read `{"offsets": {stream: offset | {"from", "to", "incarnation", "version"}}}`."""
    try:
        wanted = read_document(headers, body, _Moves)
        moves = [read_move(group, path, target) for path, target in wanted.offsets.items()]
    except MalformedRequest as refusal:
        return refusal.problem
    return SetPositions(now_ms, tuple(moves))


def parse_snapshot(
    group: str, headers: Headers, body: bytes, *, now_ms: int
) -> PinSnapshot | Problem:
    """Read `{"number", "ranges": {stream: {"incarnation", "from", "to"}}, "hash"}`."""
    try:
        wanted = read_document(headers, body, _Step)
        ranges = [
            SnapshotRange(
                path,
                part.incarnation,
                read_offset(part.start, "from"),
                read_offset(part.to, "to"),
            )
            for path, part in wanted.ranges.items()
        ]
    except MalformedRequest as refusal:
        return refusal.problem
    return PinSnapshot(now_ms, group, wanted.number, tuple(ranges), wanted.hash)


def parse_group_query(query: str) -> GroupQuery | Problem:
    """Read `?stable=true&stream=...&transaction=...`."""
    try:
        given = parse_query(query, _QUERY)
    except MalformedRequest as refusal:
        return refusal.problem
    stable = given.get("stable", "false")
    if stable not in ("true", "false"):
        message = "stable must be true or false"
        return bad_request("invalid_query", message, field="stable").problem
    return GroupQuery(stable == "true", given.get("stream"), given.get("transaction"))


def positions_response(view: GroupView, look: GroupQuery, now_ms: int) -> Response:
    """Return where a group is: nowhere, if nobody has moved it.

    409 if only a stable answer will do, and a transaction that may still move it is not decided.
    """
    pending = {move.path: _pending_document(move, now_ms) for move in view.pending}
    if look.is_stable and pending:
        first = view.pending[0]
        problem = Problem(
            409,
            UnstableOffsets.code,
            f"the transaction {first.id} moves the group {view.group} in {first.path} and is not"
            " decided; ask again, or without stable=true",
            {"group": view.group, "pending": pending},
            [("Retry-After", "1")],
        )
        return problem_response(problem)
    found = {
        "group": view.group,
        "offsets": {move.path: print_offset(move.offset) for move in view.positions},
        "versions": {move.path: move.version for move in view.positions},
        "pending": pending,
    }
    return json_response(200, found)


def _pending_document(move: PendingView, now_ms: int) -> dict[str, object]:
    due_ms = move.due_ms
    return {
        "transaction_id": move.id,
        "transaction_epoch": move.epoch,
        "state": move.state,
        "to": print_offset(move.to),
        "deadline": None if due_ms is None else print_instant(due_ms),
        "remaining_ms": None if due_ms is None else max(0, due_ms - now_ms),
    }


def moved_response(outcome: Outcome, command: SetPositions, group: str) -> Response:
    """Answer a move with where the group is now in these streams."""
    if not isinstance(outcome, PositionsSet):
        return outcome_response(outcome)
    moves = command.positions
    found = {
        "group": group,
        "offsets": {move.path: print_offset(move.to) for move in moves},
        "versions": {
            move.path: version for move, version in zip(moves, outcome.versions, strict=True)
        },
    }
    return json_response(200, found)


def pinned_response(outcome: Outcome, group: str) -> Response:
    """Answer a pin with what is pinned: 201 if it was this one, 200 if it was there before."""
    if not isinstance(outcome, Pinned):
        return outcome_response(outcome)
    found = snapshot_document(group, outcome.number, outcome.ranges, outcome.hash)
    return json_response(201 if outcome.is_new else 200, found)


def snapshot_response(view: SnapshotView | None) -> Response:
    """Tell the step a group has pinned."""
    if view is None:
        return problem_response(Problem(404, "snapshot_not_found", "the group has pinned no step"))
    return json_response(200, snapshot_document(view.group, view.number, view.ranges, view.hash))
