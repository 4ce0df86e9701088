"""The calls for groups and sinks: requests and responses."""

import json
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from semel.machine.rows import PositionRow
from semel.machine.txn.views import (
    GroupView,
    PendingView,
    SinkView,
    SnapshotView,
)
from semel.model.commands import PinSnapshot, PositionMove, SetPositions, SnapshotRange
from semel.model.offsets import print_offset
from semel.model.outcomes_txn import (
    Pinned,
    PositionConflict,
    PositionsSet,
    SinkChanged,
    SnapshotConflict,
    UnknownSink,
)
from semel.model.sink_commands import RebindSink
from semel.model.steps import STEP_ROWS, finish
from semel.wire.commits import parse_rebind, rebound_response, sink_steps, sinks_response
from semel.wire.groups import (
    GroupQuery,
    moved_response,
    parse_group_query,
    parse_positions,
    parse_snapshot,
    pinned_response,
    positions_steps,
    snapshot_response,
)
from semel.wire.rendering import Response
from tests.unit.wire.builders import JSON, refused

RANGE = {"incarnation": "i", "from": 1, "to": print_offset(2)}


def body(document: Any) -> bytes:
    return msgspec.json.encode(document)


def reply(response: Response) -> tuple[int, Any]:
    return response.status, json.loads(response.body)


# ---- groups --------------------------------------------------------------------------------------


def test_a_group_is_set_or_moved_from_where_it_stands() -> None:
    offsets = {"a": 7, "b": {"from": print_offset(1), "to": 2}}
    found = parse_positions("g", JSON, body({"offsets": offsets}), now_ms=5)
    assert found == SetPositions(5, (PositionMove("g", "a", 7), PositionMove("g", "b", 2, 1)))


def test_a_move_may_have_metadata() -> None:
    offsets = {"a": {"to": 7, "metadata": {"n": 1, "é": "x"}}, "b": {"to": 2, "metadata": {}}}
    found = parse_positions("g", JSON, body({"offsets": offsets}), now_ms=5)
    noted = PositionMove("g", "a", 7, metadata=(("n", 1), ("é", "x")))
    assert found == SetPositions(5, (noted, PositionMove("g", "b", 2)))
    view = GroupView("g", {"a": PositionRow(7, 0, 1, None, noted.metadata)}, ())
    shown = reply(positions_of(view, GroupQuery(), 0))[1]
    assert shown["metadata"] == {"a": {"n": 1, "é": "x"}}


@pytest.mark.parametrize(
    ("document", "code"),
    [
        ({}, "bad_body"),
        ({"offsets": {}, "group": "g"}, "bad_body"),
        ({"offsets": {"a": None}}, "bad_body"),
        ({"offsets": {"a": "x"}}, "invalid_offset"),
        ({"offsets": {"a": {"to": 1, "metadata": "x"}}}, "bad_body"),
        ({"offsets": {"a": {"to": 1, "metadata": {"n": 2**63}}}}, "invalid_request"),
    ],
)
def test_positions_that_mean_nothing_are_refused(document: Any, code: str) -> None:
    assert refused(parse_positions("g", JSON, body(document), now_ms=5)) == (400, code)


def positions_of(view: GroupView, query: GroupQuery, now_ms: int) -> Response:
    return finish(positions_steps(view, query, now_ms))


def test_many_positions_are_shown_in_steps() -> None:
    """A step handles STEP_ROWS positions, so the number of steps is a measure of each."""
    count = 3 * STEP_ROWS + 1
    numbers = sorted(range(count), key=lambda number: number * 7919 % count)
    rows = {f'"s{number:06}': PositionRow(number, 0, number + 1) for number in numbers}
    move = PendingView("a", "t", 2, "open", 9, None)
    view = GroupView("g", rows, (move,))
    # It is sorted, merged and encoded in four steps each.
    assert len(list(positions_steps(view, GroupQuery(), 0))) == 12
    response = positions_of(view, GroupQuery(), 0)
    paths = sorted(rows)
    pending = reply(positions_of(GroupView("g", {}, (move,)), GroupQuery(), 0))[1]["pending"]
    document = {
        "group": "g",
        "offsets": {path: print_offset(rows[path].offset) for path in paths},
        "versions": {path: rows[path].version for path in paths},
        "pending": pending,
    }
    assert response.body == msgspec.json.encode(document)  # also in the same order
    noted = {path: replace(rows[path], metadata=(("n", 1),)) for path in (*paths[:2], paths[-1])}
    response = positions_of(GroupView("g", rows | noted, (move,)), GroupQuery(), 0)
    document["metadata"] = {path: {"n": 1} for path in noted}
    assert response.body == msgspec.json.encode(document)
    few = GroupView("g", dict(list(rows.items())[:STEP_ROWS]), ())
    assert not list(positions_steps(few, GroupQuery(), 0))
    assert list(reply(positions_of(few, GroupQuery(), 0))[1]["offsets"]) == sorted(few.positions)


def test_many_pending_moves_are_shown_in_steps() -> None:
    moves = tuple(PendingView(f"s{n:06}", "t", 1, "open", n, None) for n in range(3 * STEP_ROWS))
    steps = positions_steps(GroupView("g", {}, moves), GroupQuery(), 0)
    assert len(list(steps)) == 3


def test_a_group_tells_where_it_stands() -> None:
    shown = {"group": "g", "offsets": {"a": print_offset(7)}, "versions": {"a": 3}}
    view = GroupView("g", {"a": PositionRow(7, 0, 3)}, ())
    every = GroupQuery()
    assert reply(positions_of(view, every, 0)) == (200, {**shown, "pending": {}})
    nowhere = {"group": "g", "offsets": {}, "versions": {}, "pending": {}}
    assert reply(positions_of(GroupView("g", {}, ()), every, 0)) == (200, nowhere)
    command = SetPositions(5, (PositionMove("g", "a", 7),))
    assert reply(moved_response(PositionsSet((3,)), command, "g")) == (200, shown)
    assert moved_response(PositionConflict("g", "a", 1), command, "g").status == 409


def test_a_group_shows_what_is_pending() -> None:
    moves = (
        PendingView("a", "t", 2, "open", 9, 5_000),
        PendingView("b", "u", 1, "prepared", 1, None),
    )
    view = GroupView("g", {}, moves)
    pending = {
        "a": {
            "transaction_id": "t",
            "transaction_epoch": 2,
            "state": "open",
            "to": print_offset(9),
            "deadline": "1970-01-01T00:00:05.000Z",
            "remaining_ms": 3_000,
        },
        "b": {
            "transaction_id": "u",
            "transaction_epoch": 1,
            "state": "prepared",
            "to": print_offset(1),
            "deadline": None,
            "remaining_ms": None,
        },
    }
    status, shown = reply(positions_of(view, GroupQuery(), 2_000))
    assert (status, shown["pending"]) == (200, pending)
    stable = positions_of(view, GroupQuery(is_stable=True), 2_000)
    status, problem = reply(stable)
    assert (status, problem["code"]) == (409, "unstable_offsets")
    assert (problem["group"], problem["pending"]) == ("g", pending)
    assert ("Retry-After", "1") in stable.headers
    nothing = GroupView("g", {}, ())
    assert positions_of(nothing, GroupQuery(is_stable=True), 2_000).status == 200
    assert reply(positions_of(view, GroupQuery(), 9_000))[1]["pending"]["a"]["remaining_ms"] == 0


def test_how_a_group_is_looked_at() -> None:
    assert parse_group_query("") == GroupQuery()
    assert parse_group_query("stable=false&more=1") == GroupQuery()
    look = parse_group_query("stable=true&stream=a%2Fb&transaction=t")
    assert look == GroupQuery(True, "a/b", "t")
    for query in ("stable=yes", "stable=", "stable=true&stable=true"):
        assert refused(parse_group_query(query)) == (400, "invalid_query")


def test_a_step_names_what_it_reads() -> None:
    document = {"number": 4, "ranges": {"s": RANGE}, "hash": "h"}
    found = parse_snapshot("g", JSON, body(document), now_ms=5)
    assert found == PinSnapshot(5, "g", 4, (SnapshotRange("s", "i", 1, 2),), "h")
    for wrong, code in (
        ({"number": 4, "ranges": {}}, "bad_body"),
        ({**document, "number": "4"}, "bad_body"),
        ({**document, "ranges": {"s": {**RANGE, "more": 1}}}, "bad_body"),
        ({**document, "ranges": {"s": {**RANGE, "from": "x"}}}, "invalid_offset"),
        ({**document, "ranges": {"s": {**RANGE, "to": -1}}}, "invalid_offset"),
    ):
        assert refused(parse_snapshot("g", JSON, body(wrong), now_ms=5)) == (400, code)


def test_a_pin_is_201_the_first_time_and_then_200() -> None:
    ranges = (SnapshotRange("s", "i", 1, 2),)
    status, first = reply(pinned_response(Pinned(4, ranges, "h", True), "g"))
    assert status == 201
    assert reply(pinned_response(Pinned(4, ranges, "h", False), "g")) == (200, first)
    assert reply(snapshot_response(SnapshotView("g", 4, ranges, "h"))) == (200, first)
    assert pinned_response(SnapshotConflict(5), "g").status == 409
    status, none = reply(snapshot_response(None))
    assert (status, none["code"]) == (404, "snapshot_not_found")


# ---- sinks ---------------------------------------------------------------------------------------


def test_a_sink_is_given_to_another_query() -> None:
    document = {"query_id": "R", "last_version": 3}
    command = parse_rebind("A", JSON, body(document), now_ms=5)
    assert command == RebindSink(5, "A", "R", 3)
    assert reply(rebound_response(SinkChanged(), command)) == (200, {"app": "A", **document})
    assert rebound_response(UnknownSink(), command).status == 404
    for wrong in ({}, {"query_id": "R"}, {**document, "more": 1}, {**document, "query_id": 1}):
        assert refused(parse_rebind("A", JSON, body(wrong), now_ms=5)) == (400, "bad_body")


def test_sinks_are_listed_and_shown() -> None:
    view = SinkView("A", "Q", 3, (), 0)
    short = {"app": "A", "query_id": "Q", "last_version": 3, "open_transactions": 0}
    assert reply(sinks_response([view])) == (200, {"sinks": [short]})
    assert reply(finish(sink_steps(view))) == (200, {**short, "versions": []})
    status, none = reply(finish(sink_steps(None)))
    assert (status, none["code"]) == (404, "unknown_sink")
