"""Members of groups: requests, responses, descriptions."""

import json
from typing import Any

import msgspec
import pytest

from semel.machine.group_views import (
    FREE,
    OWNED,
    AssignedView,
    Lag,
    MemberView,
    SharedStreamView,
    ShareView,
)
from semel.machine.rows import MemberRow
from semel.model.commands import AddPositions, PositionMove, SetPositions
from semel.model.group_commands import JoinGroup, ReleaseStreams
from semel.model.limits import NUMBER_MAX
from semel.model.offsets import print_offset
from semel.model.outcomes_groups import GroupInUse
from semel.model.steps import STEP_ROWS, finish
from semel.wire.groups import parse_positions
from semel.wire.members import (
    GroupsQuery,
    Heartbeat,
    group_steps,
    heartbeat_every_ms,
    heartbeat_response,
    join_response,
    parse_groups_query,
    parse_heartbeat,
    parse_join,
    release_of,
    total_lag,
)
from semel.wire.rendering import problem_of
from semel.wire.transactions import parse_call
from tests.unit.wire.builders import JSON, refused

ROW = MemberRow("m", ("a",), (), (), 9_000, 9_000, None, "earliest", 5)


def body(document: Any) -> bytes:
    return msgspec.json.encode(document)


def joined(**document: Any) -> Any:
    return parse_join("g", JSON, body(document), now_ms=5, member="m")


# ---- requests ------------------------------------------------------------------------------------


def test_a_join_has_defaults() -> None:
    assert joined(streams=["a", "b", "a"]) == JoinGroup(5, "g", "m", ("a", "b"))


def test_a_join_names_everything() -> None:
    command = joined(
        topics=["t"],
        patterns=["a/*", "a/*"],
        session_timeout_ms=1_000,
        rebalance_timeout_ms=1_800_000,
        instance="i",
        start="latest",
    )
    assert command == JoinGroup(5, "g", "m", (), ("t",), ("a/*",), 1_000, 1_800_000, "i", "latest")


@pytest.mark.parametrize(
    ("document", "field"),
    [
        ({"session_timeout_ms": 999}, "session_timeout_ms"),
        ({"session_timeout_ms": 1_800_001}, "session_timeout_ms"),
        ({"rebalance_timeout_ms": 0}, "rebalance_timeout_ms"),
        ({"start": "now"}, "start"),
    ],
)
def test_a_bad_join_names_the_field(document: dict[str, Any], field: str) -> None:
    problem = joined(streams=["a"], **document)
    assert refused(problem) == (400, "invalid_request")
    assert problem.facts == {"field": field}


@pytest.mark.parametrize(
    ("document", "field", "words"),
    [
        ({}, "streams", "give at least one of 'streams', 'topics', 'patterns'"),
        ({"streams": []}, "streams", "there is nothing to read"),
        ({"patterns": ["t*"]}, "patterns", "* must be a whole segment"),
        ({"patterns": ["__semel/**"]}, "patterns", "matches nothing"),
    ],
)
def test_a_join_that_can_read_nothing_says_why(
    document: dict[str, Any], field: str, words: str
) -> None:
    problem = joined(**document)
    assert refused(problem) == (400, "invalid_request")
    assert problem.facts == {"field": field}
    assert words in problem.message


def test_a_heartbeat_is_parsed() -> None:
    assert parse_heartbeat({}, b"") == Heartbeat()
    assert parse_heartbeat(JSON, b"{}") == Heartbeat()
    document = {"released": ["a", "b", "a"], "wait_ms": 7, "version": "v"}
    assert parse_heartbeat(JSON, body(document)) == Heartbeat(("a", "b"), 7, "v")
    suspects = parse_heartbeat(JSON, body({"suspects": ["a", "a", "b"]}))
    assert suspects == Heartbeat(suspects=("a", "b"))
    assert parse_heartbeat(JSON, body({"suspects": []})) == Heartbeat(suspects=())
    for wait_ms in (-1, NUMBER_MAX + 1):
        problem = parse_heartbeat(JSON, body({"wait_ms": wait_ms}))
        assert refused(problem) == (400, "invalid_request")
    assert refused(parse_heartbeat(JSON, b'{"wait": 1}')) == (400, "bad_body")


def test_a_heartbeat_releases_streams() -> None:
    heartbeat = Heartbeat(("a",))
    assert release_of("g", "m", heartbeat, now_ms=5) == ReleaseStreams(5, "g", "m", ("a",))


def test_the_query_of_a_list_is_parsed() -> None:
    assert parse_groups_query("") == GroupsQuery("", "", 100)
    assert parse_groups_query("prefix=a&after=ab&limit=7") == GroupsQuery("a", "ab", 7)
    assert refused(parse_groups_query("limit=0")) == (400, "invalid_query")


# ---- positions of members ------------------------------------------------------------------------


def test_positions_are_moved_by_a_member() -> None:
    document = {
        "offsets": {"a": 1, "b": {"from": 0, "to": 2}, "c": 3},
        "member": "m",
        "epochs": {"a": 7, "b": 8},
        "operator": True,
    }
    moves = (
        PositionMove("g", "a", 1, member="m", member_epoch=7),
        PositionMove("g", "b", 2, 0, member="m", member_epoch=8),
        PositionMove("g", "c", 3),
    )
    assert parse_positions("g", JSON, body(document), now_ms=5) == SetPositions(5, moves, True)


def test_positions_in_a_transaction_are_moved_by_a_member() -> None:
    document = {
        "transaction_epoch": 1,
        "group": "g",
        "offsets": {"a": 1},
        "member": "m",
        "epochs": {"a": 7},
    }
    command = parse_call("t", "offsets", JSON, body(document), now_ms=5)
    assert isinstance(command, AddPositions)
    assert command.positions == (PositionMove("g", "a", 1, member="m", member_epoch=7),)


@pytest.mark.parametrize(
    ("members", "field"),
    [
        ({"epochs": {"a": 1}}, "member"),
        ({"member": "m"}, "epochs"),
        ({"member": "m", "epochs": {"b": 1}}, "epochs"),
        ({"member": "m", "epochs": {"a": -1}}, "epochs"),
        ({"member": "m", "epochs": {"a": NUMBER_MAX + 1}}, "epochs"),
    ],
)
def test_a_member_and_its_epochs_belong_together(members: dict[str, Any], field: str) -> None:
    document = {"offsets": {"a": 1}, **members}
    problem: Any = parse_positions("g", JSON, body(document), now_ms=5)
    assert refused(problem) == (400, "invalid_request")
    assert problem.facts == {"field": field}


# ---- responses -----------------------------------------------------------------------------------


def test_a_member_hears_what_it_owns() -> None:
    assigned = (
        AssignedView("a", "i", 2, 3, 4, 5, None),
        AssignedView("b", "j", 1, 0, 0, 0, 9),
    )
    view = MemberView("g", ROW, assigned, ("b",), "v")
    state = {
        "version": "v",
        "assigned": [
            {
                "stream": "a",
                "incarnation": "i",
                "epoch": 2,
                "position": print_offset(3),
                "version": 4,
                "starts": 5,
                "limit": None,
            },
            {
                "stream": "b",
                "incarnation": "j",
                "epoch": 1,
                "position": print_offset(0),
                "version": 0,
                "starts": 0,
                "limit": print_offset(9),
            },
        ],
        "release": ["b"],
    }
    response = heartbeat_response(view)
    assert (response.status, json.loads(response.body)) == (200, state)
    response = join_response(view)
    assert (response.status, json.loads(response.body)) == (
        201,
        {
            **state,
            "group": "g",
            "member": "m",
            "heartbeat_ms": 3_000,
            "session_timeout_ms": 9_000,
        },
    )
    assert heartbeat_every_ms(1_000) == 333


def shared(number: int, owner: str | None) -> SharedStreamView:
    phase = FREE if owner is None else OWNED
    return SharedStreamView(f"s{number}", number, owner, 1, phase, 0, 1, 2, 0, 4, 0)


def test_a_group_is_described() -> None:
    view = ShareView("g", 3, (ROW,), (shared(1, "m"), shared(2, None), shared(3, "gone")))
    lags = {1: Lag(2, 3, 1.5), 3: Lag(None, 3, 2.5)}
    response = finish(group_steps(view, lags, {"m": 70}))
    found = json.loads(response.body)
    assert response.status == 200
    assert found["members"] == [
        {
            "member": "m",
            "instance": None,
            "session_timeout_ms": 9_000,
            "heard_ms_ago": 70,
            "streams": ["s1"],
        }
    ]
    assert found["streams"][0] == {
        "stream": "s1",
        "owner": "m",
        "epoch": 1,
        "phase": "owned",
        "starts": 0,
        "position": print_offset(1),
        "version": 2,
        "end": print_offset(4),
        "lag": 2,
        "lag_bound": 3,
        "lag_seconds": 1.5,
    }
    assert [each["lag"] for each in found["streams"]] == [2, 0, None]
    assert (found["group"], found["version"]) == ("g", 3)
    assert (found["lag"], found["lag_bound"], found["lag_seconds"]) == (None, 6, 2.5)


def test_an_unknown_group_is_an_error() -> None:
    response = finish(group_steps(None, {}, {}))
    assert (response.status, json.loads(response.body)["code"]) == (404, "group_not_found")


def test_a_long_description_is_made_in_steps() -> None:
    view = ShareView("g", 1, (), tuple(shared(number, None) for number in range(STEP_ROWS + 1)))
    steps = group_steps(view, {}, {})
    next(steps)
    response = finish(steps)
    assert len(json.loads(response.body)["streams"]) == STEP_ROWS + 1


def test_lags_are_added_up() -> None:
    assert total_lag([]) == Lag(0, 0, 0.0)
    assert total_lag([Lag(1, 2, 3.0), Lag(4, 5, 1.0)]) == Lag(5, 7, 3.0)
    assert total_lag([Lag(None, 2, 3.0), Lag(4, 5, None)]) == Lag(None, 7, None)
    assert total_lag([Lag(1, 2, None), Lag(4, 5, 1.0)]) == Lag(5, 7, None)


@pytest.mark.parametrize(("members", "words"), [(0, "pending transaction"), (2, "members")])
def test_a_group_in_use_says_why(members: int, words: str) -> None:
    assert words in problem_of(GroupInUse(members)).message
