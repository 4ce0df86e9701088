"""Positions of groups, and pinned steps."""

from pathlib import Path
from typing import Any

import pytest

from tests.spec.process import Answer, Server, Stream, offset_of
from tests.spec.txn_calls import call, fresh, positions, refusal


@pytest.fixture
def group() -> str:
    return fresh("g")


def move(stream: Stream, group: str, to: Any) -> Answer:
    document = {"offsets": {stream.path: to}}
    return call(stream.server, "POST", f"/v1/groups/{group}/offsets", document)


def pin(server: Server, group: str, number: int, ranges: Any = None, digest: str = "h") -> Answer:
    document = {"number": number, "ranges": ranges or {}, "hash": digest}
    return call(server, "POST", f"/v1/groups/{group}/snapshot", document)


# rows: R19
@pytest.mark.spec("design 7.2")
def test_a_group_stands_where_it_was_set(stream: Stream, group: str) -> None:
    stream.create(b"x")
    assert positions(stream.server, group) == {}
    answer = move(stream, group, offset_of(1))
    expected = {
        "group": group,
        "offsets": {stream.path: offset_of(1)},
        "versions": {stream.path: 1},
    }
    assert (answer.status, answer.json) == (200, expected)
    found = call(stream.server, "GET", f"/v1/groups/{group}/offsets").json
    assert found == {**expected, "pending": {}}
    assert move(stream, group, 0).status == 200, "a group may move back"
    assert positions(stream.server, group) == {stream.path: offset_of(0)}
    assert positions(stream.server, fresh("g")) == {}


@pytest.mark.spec("design 7.2")
def test_a_group_moves_only_from_where_it_is_expected(stream: Stream, group: str) -> None:
    stream.create(b"x")
    assert move(stream, group, {"from": 0, "to": 1}).status == 200
    answer = move(stream, group, {"from": offset_of(0), "to": offset_of(1)})
    assert refusal(answer) == (409, "position_conflict")
    assert answer.json["offset"] == offset_of(1)
    assert answer.json["stream"] == stream.path
    assert move(stream, group, {"from": 1, "to": 0}).status == 200


def test_a_position_belongs_to_one_incarnation(stream: Stream, group: str) -> None:
    stream.create(b"x")
    old = stream.head().headers["stream-incarnation"]
    assert move(stream, group, {"from": 0, "to": 1, "incarnation": old}).status == 200
    stream.delete()
    stream.create(b"y")
    assert positions(stream.server, group) == {}, "the position was deleted with the stream"
    answer = move(stream, group, {"from": 0, "to": 1, "incarnation": old})
    assert refusal(answer) == (409, "position_conflict")
    new = stream.head().headers["stream-incarnation"]
    assert answer.json["incarnation"] == new
    assert move(stream, group, {"to": 1, "incarnation": old}).status == 409
    assert move(stream, group, {"to": 1, "incarnation": new}).status == 200
    assert refusal(move(stream, group, {"from": None, "to": 1})) == (400, "bad_body")


def test_a_position_that_cannot_be_is_refused(stream: Stream, group: str) -> None:
    missing = stream.server.stream()
    stream.create(b"x")
    assert refusal(move(missing, group, 0)) == (404, "stream_not_found")
    assert refusal(move(stream, group, 2)) == (400, "OFFSET_BEYOND_TAIL")
    assert refusal(move(stream, group, "now")) == (400, "invalid_offset")
    assert refusal(move(stream, group, None)) == (400, "bad_body")
    assert refusal(move(stream, "g" * 257, 0)) == (400, "invalid_request")
    nothing = call(stream.server, "POST", f"/v1/groups/{group}/offsets", {"offsets": {}})
    assert refusal(nothing) == (400, "invalid_request")
    assert positions(stream.server, group) == {}


def test_a_position_goes_with_its_stream(stream: Stream, group: str) -> None:
    stream.create(b"x")
    move(stream, group, 1)
    stream.delete()
    stream.create(b"y")
    assert positions(stream.server, group) == {}


def test_a_name_may_hold_anything(stream: Stream) -> None:
    stream.create(b"x")
    group = "caf%C3%A9%2Fgroup%20one"
    assert move(stream, group, 1).json["group"] == "café/group one"
    assert positions(stream.server, group) == {stream.path: offset_of(1)}


# ---- steps ---------------------------------------------------------------------------------------


@pytest.mark.spec("design 7.2")
def test_of_two_that_pin_a_step_the_first_wins(stream: Stream, group: str) -> None:
    stream.create(b"x")
    server = stream.server
    incarnation = stream.head().headers["stream-incarnation"]
    ranges = {stream.path: {"incarnation": incarnation, "from": 0, "to": offset_of(1)}}
    first = pin(server, group, 0, ranges, "first")
    assert first.status == 201
    assert first.json == {
        "group": group,
        "number": 0,
        "ranges": {
            stream.path: {
                "incarnation": incarnation,
                "from": offset_of(0),
                "to": offset_of(1),
            }
        },
        "hash": "first",
    }
    second = pin(server, group, 0, {}, "second")
    assert (second.status, second.json) == (200, first.json)
    assert call(server, "GET", f"/v1/groups/{group}/snapshot").json == first.json
    assert pin(server, group, 1, {}, "next").status == 201
    late = pin(server, group, 0, ranges, "first")
    assert refusal(late) == (409, "snapshot_conflict")
    assert late.json["number"] == 1
    assert refusal(pin(server, group, 3)) == (409, "snapshot_conflict")


def test_a_step_names_streams_as_they_are(stream: Stream, group: str) -> None:
    stream.create(b"x")
    strange = {stream.path: {"incarnation": "other", "from": 0, "to": 1}}
    answer = pin(stream.server, group, 0, strange)
    assert refusal(answer) == (409, "incarnation_conflict")
    assert answer.json["stream"] == stream.path
    missing = {fresh("s"): {"incarnation": "i", "from": 0, "to": 1}}
    assert refusal(pin(stream.server, group, 0, missing)) == (404, "stream_not_found")
    backward = {stream.path: {"incarnation": "i", "from": 1, "to": 0}}
    assert refusal(pin(stream.server, group, 0, backward)) == (400, "invalid_request")
    none = call(stream.server, "GET", f"/v1/groups/{group}/snapshot")
    assert refusal(none) == (404, "snapshot_not_found")


@pytest.mark.crash
def test_positions_and_steps_outlive_a_kill(tmp_path: Path) -> None:
    server = Server(tmp_path / "data")
    try:
        stream = server.stream("s")
        stream.create(b"x")
        assert move(stream, "g", 1).status == 200
        assert pin(server, "g", 4).status == 201
        server.kill()
        server = Server(tmp_path / "data")
        assert positions(server, "g") == {"s": offset_of(1)}
        assert pin(server, "g", 4, {}, "other").json["hash"] == "h"
    finally:
        server.kill()


@pytest.mark.parametrize(
    ("method", "target", "status"),
    [
        ("GET", "/v1/groups/g/other", 404),
        ("DELETE", "/v1/groups/g/offsets", 405),
        ("GET", "/v1/groups/%f/offsets", 400),
    ],
)
def test_addresses_and_methods_that_are_not_there(
    server: Server, method: str, target: str, status: int
) -> None:
    answer = call(server, method, target)
    assert answer.status == status
    assert answer.code
