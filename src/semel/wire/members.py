"""Requests and responses of `/v1/groups` about groups whose members share work.

The rules are in `docs/reference/groups.md`.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from msgspec import UNSET, Struct
from msgspec.structs import replace

from semel.machine.group_views import NO_LAG, Lag, MemberView, SharedStreamView, ShareView
from semel.model.group_commands import EARLIEST, LATEST, JoinGroup, ReleaseStreams
from semel.model.limits import NUMBER_MAX, SESSION_TIMEOUT_MS_MAX, SESSION_TIMEOUT_MS_MIN
from semel.model.offsets import print_offset
from semel.model.outcomes_groups import UnknownGroup
from semel.model.patterns import pattern_problem
from semel.model.steps import STEP_ROWS, Steps
from semel.wire.documents import read_document
from semel.wire.headers import Headers
from semel.wire.paths import parse_query, read_limit
from semel.wire.problems import bad_request, parser
from semel.wire.rendering import Response
from semel.wire.responses import json_response, outcome_response
from semel.wire.schema.groups import (
    AssignedEntry,
    GroupDescription,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinRequest,
    JoinResponse,
    MemberEntry,
    SharedStreamEntry,
)

_HEARTBEATS: Final = 3  # heartbeats in one session timeout


class Heartbeat(Struct, frozen=True):
    """A heartbeat. `version` is the state that the member knows, or None.

    `suspects` are the streams whose next message it processes alone, or None if it does not say.
    """

    released: tuple[str, ...] = ()
    wait_ms: int = 0
    version: str | None = None
    suspects: tuple[str, ...] | None = None


class GroupsQuery(Struct, frozen=True):
    """A query for a page of groups: those after `after` whose names begin with `prefix`."""

    prefix: str
    after: str
    limit: int


# ---- requests ------------------------------------------------------------------------------------


@parser
def parse_join(group: str, headers: Headers, body: bytes, *, now_ms: int, member: str) -> JoinGroup:
    """Parse a request to join a group. `member` is the id of the new member."""
    request = read_document(headers, body, JoinRequest)
    if not (request.streams or request.topics or request.patterns):
        message = "there is nothing to read; give at least one of 'streams', 'topics', 'patterns'"
        raise bad_request("invalid_request", message, field="streams")
    for pattern in request.patterns:
        problem = pattern_problem(pattern)
        if problem is not None:
            raise bad_request("invalid_request", problem, field="patterns")
    session_ms = request.session_timeout_ms
    rebalance_ms = request.rebalance_timeout_ms
    start = EARLIEST if request.start is UNSET else request.start
    if start not in (EARLIEST, LATEST):
        message = f"'start' must be {EARLIEST!r} or {LATEST!r}"
        raise bad_request("invalid_request", message, field="start")
    for field, value in (
        ("session_timeout_ms", session_ms),
        ("rebalance_timeout_ms", rebalance_ms),
    ):
        if value is not UNSET and not SESSION_TIMEOUT_MS_MIN <= value <= SESSION_TIMEOUT_MS_MAX:
            message = f"'{field}' must be from {SESSION_TIMEOUT_MS_MIN} to {SESSION_TIMEOUT_MS_MAX}"
            raise bad_request("invalid_request", message, field=field)
    command = JoinGroup(
        now_ms,
        group,
        member,
        _unique(request.streams),
        _unique(request.topics),
        _unique(request.patterns),
        rebalance_timeout_ms=None if rebalance_ms is UNSET else rebalance_ms,
        instance=None if request.instance is UNSET else request.instance,
        start=start,
        names_suspects=request.names_suspects,
    )
    return command if session_ms is UNSET else replace(command, session_timeout_ms=session_ms)


def _unique(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))


@parser
def parse_heartbeat(headers: Headers, body: bytes) -> Heartbeat:
    """Parse a heartbeat. An empty body is one that releases nothing and does not wait."""
    if not body:
        return Heartbeat()
    request = read_document(headers, body, HeartbeatRequest)
    if not 0 <= request.wait_ms <= NUMBER_MAX:
        message = f"'wait_ms' must be an integer from 0 to {NUMBER_MAX}"
        raise bad_request("invalid_request", message, field="wait_ms")
    version = None if request.version is UNSET else request.version
    suspects = None if request.suspects is UNSET else _unique(request.suspects)
    return Heartbeat(_unique(request.released), request.wait_ms, version, suspects)


def release_of(group: str, member: str, heartbeat: Heartbeat, *, now_ms: int) -> ReleaseStreams:
    """Return the command by which a heartbeat releases streams."""
    return ReleaseStreams(now_ms, group, member, heartbeat.released)


@parser
def parse_groups_query(query: str) -> GroupsQuery:
    """Parse the query of a request that lists groups: `?prefix=...&after=...&limit=...`."""
    parameters = parse_query(query, ("prefix", "after", "limit"))
    return GroupsQuery(
        parameters.get("prefix", ""),
        parameters.get("after", ""),
        read_limit(parameters.get("limit")),
    )


# ---- responses to members ------------------------------------------------------------------------


def heartbeat_every_ms(session_timeout_ms: int) -> int:
    """Return how often a member should send a heartbeat."""
    return session_timeout_ms // _HEARTBEATS


def join_response(view: MemberView) -> Response:
    """Return the response to a join."""
    timeout_ms = view.member.session_timeout_ms
    response = JoinResponse(
        version=view.signature,
        assigned=_assigned(view),
        release=list(view.release),
        group=view.group,
        member=view.member.id,
        heartbeat_ms=heartbeat_every_ms(timeout_ms),
        session_timeout_ms=timeout_ms,
    )
    return json_response(201, response)


def heartbeat_response(view: MemberView) -> Response:
    """Return the response to a heartbeat."""
    return json_response(
        200, HeartbeatResponse(view.signature, _assigned(view), list(view.release))
    )


def _assigned(view: MemberView) -> list[AssignedEntry]:
    return [
        AssignedEntry(
            stream=each.path,
            incarnation=each.incarnation,
            epoch=each.epoch,
            position=print_offset(each.position),
            version=each.version,
            starts=each.starts,
            limit=None if each.limit is None else print_offset(each.limit),
        )
        for each in view.assigned
    ]


# ---- descriptions --------------------------------------------------------------------------------


def group_steps(
    view: ShareView | None, lags: Mapping[int, Lag], heard_ms_ago: Mapping[str, int | None]
) -> Steps[Response]:
    """Return the response that describes a group, in steps. If `view` is None, it is a 404.

    `lags` has the lag in each stream that has one, keyed by the stream's number. `heard_ms_ago` has
    the time since the last heartbeat of each member.
    """
    if view is None:
        return outcome_response(UnknownGroup())
    owned: dict[str, list[str]] = {member.id: [] for member in view.members}
    entries: list[SharedStreamEntry] = []
    for count, stream in enumerate(view.streams, 1):
        entries.append(_stream_entry(stream, lags.get(stream.number, NO_LAG)))
        if stream.owner in owned:
            owned[stream.owner].append(stream.path)
        if count % STEP_ROWS == 0:
            yield
    members = [
        MemberEntry(
            member.id,
            member.instance,
            member.session_timeout_ms,
            heard_ms_ago.get(member.id),
            owned[member.id],
        )
        for member in view.members
    ]
    total = total_lag(lags.values())
    description = GroupDescription(
        group=view.group,
        version=view.version,
        members=members,
        streams=entries,
        lag=total.messages,
        lag_bound=total.bound,
        lag_seconds=total.seconds,
    )
    return json_response(200, description)


def _stream_entry(view: SharedStreamView, lag: Lag) -> SharedStreamEntry:
    return SharedStreamEntry(
        stream=view.path,
        owner=view.owner,
        epoch=view.epoch,
        phase=view.phase,
        starts=view.starts,
        position=print_offset(view.position),
        version=view.version,
        end=print_offset(view.end),
        lag=lag.messages,
        lag_bound=lag.bound,
        lag_seconds=lag.seconds,
    )


def total_lag(lags: Iterable[Lag]) -> Lag:
    """Return the lag of a group in all its streams. It is not known if it is unknown in one."""
    messages: int | None = 0
    seconds: float | None = 0.0
    bound = 0
    for lag in lags:
        bound += lag.bound
        messages = None if messages is None or lag.messages is None else messages + lag.messages
        if seconds is not None:
            seconds = None if lag.seconds is None else max(seconds, lag.seconds)
    return Lag(messages, bound, seconds)
