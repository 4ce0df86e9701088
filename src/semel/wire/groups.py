"""Requests and responses of `/v1/groups`: a group's positions and its pinned step."""

from collections.abc import Iterable, Mapping

import msgspec
from msgspec import UNSET, Struct
from msgspec.structs import replace

from semel.machine.txn.views import GroupView, PendingView, SnapshotView
from semel.model.commands import Metadata, PinSnapshot, PositionMove, SetPositions, SnapshotRange
from semel.model.limits import POSITION_METADATA_BYTES_MAX
from semel.model.offsets import print_offset
from semel.model.outcomes_txn import Pinned, PositionsSet, UnstableOffsets
from semel.model.steps import STEP_ROWS, Steps, sort_steps
from semel.model.validation import is_metadata
from semel.wire.documents import (
    MovesPositions,
    check_epochs,
    member_of,
    read_document,
    read_offset,
)
from semel.wire.headers import Headers, print_instant
from semel.wire.paths import parse_query, read_choice
from semel.wire.problems import Problem, bad_request, parser
from semel.wire.rendering import Response
from semel.wire.responses import json_response, problem_response, responds_to
from semel.wire.schema.transactions import (
    MovedPositions,
    MoveRequest,
    PendingMove,
    PinnedRange,
    PinRequest,
    Positions,
    SetPositionsRequest,
    SnapshotResponse,
    Target,
)


class GroupQuery(Struct, frozen=True):
    """A query for the positions of a group.

    If `is_stable` is true, the query is refused while a pending transaction moves one of the
    positions. `transaction` is the id of a pending transaction to ignore. `stream` restricts the
    result to one stream.
    """

    is_stable: bool = False
    stream: str | None = None
    transaction: str | None = None


# ---- requests ------------------------------------------------------------------------------------


@parser
def parse_positions(group: str, headers: Headers, body: bytes, *, now_ms: int) -> SetPositions:
    """Parse a request to set the positions of a group."""
    request = read_document(headers, body, SetPositionsRequest)
    moves = [read_move(group, path, target, request) for path, target in request.offsets.items()]
    check_epochs(request, request.offsets)
    return SetPositions(now_ms, tuple(moves), request.operator)


def read_move(group: str, path: str, target: Target, request: MovesPositions) -> PositionMove:
    """Return a PositionMove that sets the group's position in the stream `path`.

    `target` is the new offset, alone or with conditions. If `request` has an epoch of the stream,
    the move is made by its member. Raises MalformedRequest if the target or the epoch is invalid.
    """
    member, epoch = member_of(request, path)
    if not isinstance(target, MoveRequest):
        to = read_offset(target, "offsets")
        return PositionMove(group, path, to, member=member, member_epoch=epoch)
    return PositionMove(
        group,
        path,
        read_offset(target.to, "to"),
        None if target.start is UNSET else read_offset(target.start, "from"),
        None if target.incarnation is UNSET else target.incarnation,
        None if target.version is UNSET else target.version,
        metadata=() if target.metadata is UNSET else _read_metadata(target.metadata),
        member=member,
        member_epoch=epoch,
    )


def _read_metadata(document: dict[str, str | int]) -> Metadata:
    metadata = tuple(sorted(document.items()))  # a repeat may have them in another order
    if not is_metadata(metadata):
        raise bad_request(
            "invalid_request",
            f"the metadata of a position can have at most {POSITION_METADATA_BYTES_MAX} bytes as"
            " JSON, and its integers at most 64 bits",
            field="metadata",
        )
    return metadata


@parser
def parse_snapshot(group: str, headers: Headers, body: bytes, *, now_ms: int) -> PinSnapshot:
    """Parse a request that pins a step: the step's number and its range in each stream."""
    request = read_document(headers, body, PinRequest)
    ranges = [
        SnapshotRange(
            path,
            part.incarnation,
            read_offset(part.start, "from"),
            read_offset(part.to, "to"),
        )
        for path, part in request.ranges.items()
    ]
    return PinSnapshot(now_ms, group, request.number, tuple(ranges), request.hash)


@parser
def parse_group_query(query: str) -> GroupQuery:
    """Parse the query of a request for positions: `?stable=true&stream=...&transaction=...`."""
    parameters = parse_query(query, ("stable", "stream", "transaction"))
    stable = read_choice(parameters, "stable", ("true", "false"), "false")
    return GroupQuery(stable == "true", parameters.get("stream"), parameters.get("transaction"))


# ---- responses -----------------------------------------------------------------------------------


def positions_steps(view: GroupView, query: GroupQuery, now_ms: int) -> Steps[Response]:
    """Return the response with the positions of a group, sorted by path. It is made in steps.

    Streams in which the group's position was never set are left out. The status is 409 if the query
    asks for stable positions and a pending transaction moves a position.
    """
    pending: dict[str, PendingMove] = {}
    for move in view.pending:
        pending[move.path] = _pending_move(move, now_ms)
        if len(pending) % STEP_ROWS == 0:
            yield
    if query.is_stable and pending:
        first = view.pending[0]
        return problem_response(
            Problem(
                409,
                UnstableOffsets.code,
                f"the pending transaction {first.id} moves the position of group {view.group} in"
                f" {first.path}; send the request again later, or without stable=true",
                {"group": view.group, "pending": pending},
                [("Retry-After", "1")],
            )
        )
    rows = view.positions
    if len(rows) > STEP_ROWS:
        return (yield from _long_response(view, pending))
    paths = sorted(rows)
    offsets = {path: print_offset(rows[path].offset) for path in paths}
    versions = {path: rows[path].version for path in paths}
    metadata = _metadata_of(view, paths) or UNSET
    return json_response(200, Positions(view.group, offsets, versions, pending, metadata))


def _metadata_of(view: GroupView, paths: Iterable[str]) -> dict[str, dict[str, str | int]]:
    rows = view.positions
    return {path: dict(rows[path].metadata) for path in paths if rows[path].metadata}


def _long_response(view: GroupView, pending: dict[str, PendingMove]) -> Steps[Response]:
    """Return the same response for very many positions. Its document is encoded in parts."""
    rows = view.positions
    paths = yield from sort_steps(rows)
    offsets: list[bytes] = []
    versions: list[bytes] = []
    metadata: list[bytes] = []
    for start in range(0, len(paths), STEP_ROWS):
        part = paths[start : start + STEP_ROWS]
        comma = b"," if start else b""
        offsets.append(comma + _members({path: print_offset(rows[path].offset) for path in part}))
        versions.append(comma + _members({path: rows[path].version for path in part}))
        noted = _metadata_of(view, part)
        if noted:
            metadata.append((b"," if metadata else b"") + _members(noted))
        yield
    # The parts are joined only once, because there can be 100 MiB of them.
    body = (b'{"group":', msgspec.json.encode(view.group), b',"offsets":{', *offsets)
    body += (b'},"versions":{', *versions, b'},"pending":', msgspec.json.encode(pending))
    if metadata:
        body += (b',"metadata":{', *metadata, b"}")
    body += (b"}",)
    return replace(json_response(200, None), body=b"".join(body))


def _members(part: Mapping[str, object]) -> bytes:
    """Return the members of a JSON object, without its braces."""
    return msgspec.json.encode(part)[1:-1]


def _pending_move(move: PendingView, now_ms: int) -> PendingMove:
    return PendingMove(
        transaction_id=move.id,
        transaction_epoch=move.epoch,
        state=move.state,
        to=print_offset(move.to),
        deadline=None if move.due_ms is None else print_instant(move.due_ms),
        remaining_ms=None if move.due_ms is None else max(0, move.due_ms - now_ms),
    )


@responds_to(PositionsSet)
def moved_response(outcome: PositionsSet, command: SetPositions, group: str) -> Response:
    """Return the response with the group's new position in each stream that `command` names."""
    offsets = {move.path: print_offset(move.to) for move in command.positions}
    versions = dict(zip(offsets, outcome.versions, strict=True))
    return json_response(200, MovedPositions(group, offsets, versions))


@responds_to(Pinned)
def pinned_response(outcome: Pinned, group: str) -> Response:
    """Return the response with the pinned step: the stored ranges that a processor works on.

    The status is 201 if this request pinned the step, and 200 if the step was pinned before.
    """
    return json_response(201 if outcome.is_new else 200, _snapshot(group, outcome))


def snapshot_response(view: SnapshotView | None) -> Response:
    """Return the response with a group's pinned step, or with 404 if no step is pinned."""
    if view is None:
        return problem_response(Problem(404, "snapshot_not_found", "the group has no pinned step"))
    return json_response(200, _snapshot(view.group, view))


def _snapshot(group: str, step: Pinned | SnapshotView) -> SnapshotResponse:
    ranges = {
        part.path: PinnedRange(part.incarnation, print_offset(part.start), print_offset(part.end))
        for part in step.ranges
    }
    return SnapshotResponse(group, step.number, ranges, step.hash)
