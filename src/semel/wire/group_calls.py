"""Groups: where they stand, and the step they have pinned."""

from collections.abc import Sequence

from msgspec import Struct

from semel.machine.txn_views import PositionView, SnapshotView
from semel.model.offsets import print_offset
from semel.model.outcomes import Outcome
from semel.model.transactions import PinSnapshot, SetPositions, SnapshotRange
from semel.model.txn_outcomes import Pinned, PositionsSet
from semel.wire.commit_requests import Target, read_move
from semel.wire.documents import Offset, read_document, read_offset
from semel.wire.headers import Headers
from semel.wire.problems import BadRequest, Problem
from semel.wire.rendering import Response
from semel.wire.responses import json_response, outcome_response, problem_response
from semel.wire.results import snapshot_document


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
    """Read `{"offsets": {stream: offset | {"from", "to"}}}`."""
    try:
        wanted = read_document(headers, body, _Moves)
        moves = [read_move(group, path, target) for path, target in wanted.offsets.items()]
    except BadRequest as refusal:
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
    except BadRequest as refusal:
        return refusal.problem
    return PinSnapshot(now_ms, group, wanted.number, tuple(ranges), wanted.hash)


def positions_response(group: str, positions: Sequence[PositionView]) -> Response:
    """Tell where a group stands; one nobody has heard of stands nowhere."""
    offsets = {position.path: print_offset(position.offset) for position in positions}
    return json_response(200, {"group": group, "offsets": offsets})


def moved_response(outcome: Outcome, command: SetPositions, group: str) -> Response:
    """Answer a move with where the group stands now in these streams."""
    if not isinstance(outcome, PositionsSet):
        return outcome_response(outcome)
    offsets = {move.path: print_offset(move.to) for move in command.positions}
    return json_response(200, {"group": group, "offsets": offsets})


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
