"""The metadata of a group's position over HTTP.

The words of the promise are those of a cursor: `markDelete(position)`, `markDelete(position,
properties)` and `getProperties()`. Each move replaces what the move before it has stored.
"""

import signal
from pathlib import Path
from typing import Any

import pytest

from semel import Client
from tests.spec.process import Answer, Server, Stream, offset_of
from tests.spec.txn_calls import Txn, call, commit, fresh

NOTE = {"batch": 7, "worker": "é", "lowest": -(2**63), "highest": 2**63 - 1}


def mark_delete(stream: Stream, group: str, to: int, properties: Any = None) -> Answer:
    move: Any = to if properties is None else {"to": to, "metadata": properties}
    document = {"offsets": {stream.path: move}}
    return call(stream.server, "POST", f"/v1/groups/{group}/offsets", document)


def get_properties(stream: Stream, group: str) -> Any:
    """Return the metadata of the group's position in the stream; None if there is none."""
    answer = call(stream.server, "GET", f"/v1/groups/{group}/offsets")
    assert answer.status == 200
    return answer.json.get("metadata", {}).get(stream.path)


@pytest.fixture
def stream(server: Server) -> Stream:
    stream = server.stream()
    stream.create(b"a")
    for text in (b"b", b"c"):
        assert stream.post(text).status == 204
    return stream


# rows: P17
def test_a_position_is_marked_with_properties_and_they_are_read_again(stream: Stream) -> None:
    group = fresh("g")
    assert mark_delete(stream, group, 1).status == 200
    assert get_properties(stream, group) is None
    assert mark_delete(stream, group, 2, NOTE).status == 200
    assert get_properties(stream, group) == NOTE
    answer = call(stream.server, "GET", f"/v1/groups/{group}/offsets")
    assert answer.json["offsets"] == {stream.path: offset_of(2)}
    assert mark_delete(stream, group, 2, {"batch": 8}).status == 200
    assert get_properties(stream, group) == {"batch": 8}
    assert mark_delete(stream, group, 3).status == 200  # without properties: they are cleared
    assert get_properties(stream, group) is None
    assert mark_delete(stream, group, 3, {}).status == 200
    assert "metadata" not in call(stream.server, "GET", f"/v1/groups/{group}/offsets").json


# rows: P17
def test_the_names_in_metadata_are_sorted_in_whatever_order_they_were_sent(stream: Stream) -> None:
    group = fresh("g")
    for to, names in enumerate(("cab", "bca"), 1):
        assert mark_delete(stream, group, to, dict.fromkeys(names, to)).status == 200
        assert list(get_properties(stream, group)) == ["a", "b", "c"]


def test_a_refused_move_leaves_the_metadata_alone(stream: Stream) -> None:
    group = fresh("g")
    assert mark_delete(stream, group, 1, NOTE).status == 200
    move = {"from": 0, "to": 2, "metadata": {"batch": 8}}
    document = {"offsets": {stream.path: move}}
    answer = call(stream.server, "POST", f"/v1/groups/{group}/offsets", document)
    assert (answer.status, answer.code) == (409, "position_conflict")
    assert get_properties(stream, group) == NOTE


@pytest.mark.parametrize(
    ("wrong", "code", "words"),
    [
        ({"n": "x" * 4096}, "invalid_request", "at most 4096 bytes"),
        ({"n": 2**63}, "invalid_request", "at most 64 bits"),
        ({"n": -(2**63) - 1}, "invalid_request", "at most 64 bits"),
        ({"n": 1.5}, "bad_body", "metadata"),
        ({"n": True}, "bad_body", "metadata"),
        ({"n": None}, "bad_body", "metadata"),
        ({"n": {}}, "bad_body", "metadata"),
        ("text", "bad_body", "metadata"),
        (7, "bad_body", "metadata"),
        ([], "bad_body", "metadata"),
        (None, "bad_body", "metadata"),
    ],
)
def test_metadata_of_a_wrong_type_or_size_is_refused(
    stream: Stream, wrong: Any, code: str, words: str
) -> None:
    group = fresh("g")
    document = {"offsets": {stream.path: {"to": 1, "metadata": wrong}}}
    answer = call(stream.server, "POST", f"/v1/groups/{group}/offsets", document)
    assert (answer.status, answer.code, answer.json["applied"]) == (400, code, "no")
    assert words in answer.json["message"]
    assert call(stream.server, "GET", f"/v1/groups/{group}/offsets").json["offsets"] == {}


def test_metadata_of_exactly_4_kib_is_stored(stream: Stream) -> None:
    group = fresh("g")
    full = {"n": "x" * (4096 - len('{"n":""}'))}
    assert mark_delete(stream, group, 1, full).status == 200
    assert get_properties(stream, group) == full


# ---- transactions and commits --------------------------------------------------------------------


def moving(stream: Stream, group: str, properties: Any) -> Txn:
    """Return an open transaction that moves the group to 2."""
    txn = Txn(stream.server)
    assert txn.begin(streams=[stream.path]).status == 201
    move = {"from": 1, "to": 2, "metadata": properties}
    assert txn.call("offsets", group=group, offsets={stream.path: move}).status == 200
    return txn


# rows: P17
def test_a_transaction_sets_metadata_when_it_commits_and_not_when_it_aborts(
    stream: Stream,
) -> None:
    group = fresh("g")
    assert mark_delete(stream, group, 1, NOTE).status == 200
    txn = moving(stream, group, {"batch": 8})
    assert get_properties(stream, group) == NOTE
    assert txn.abort().status == 200
    assert get_properties(stream, group) == NOTE
    txn = moving(stream, group, {"batch": 9})
    assert txn.commit().status == 200
    assert get_properties(stream, group) == {"batch": 9}


def test_naming_a_position_again_replaces_its_metadata(stream: Stream) -> None:
    group = fresh("g")
    assert mark_delete(stream, group, 1).status == 200
    txn = moving(stream, group, {"batch": 8})
    again = {"from": 1, "to": 2, "metadata": {"batch": 8}}
    for move in (again, {"from": 2, "to": 3, "metadata": {"batch": 9}}):
        assert txn.call("offsets", group=group, offsets={stream.path: move}).status == 200
    assert txn.call("offsets", group=group, offsets={stream.path: 3}).status == 200
    assert txn.commit().status == 200
    assert get_properties(stream, group) is None


# rows: P17
def test_a_one_shot_commit_sets_metadata_and_a_repeat_must_have_the_same(stream: Stream) -> None:
    group, producer = fresh("g"), fresh("p")

    def send(properties: Any) -> Answer:
        move = {"from": 0, "to": 2, "metadata": properties}
        return commit(
            stream.server,
            producer_id=producer,
            producer_epoch=0,
            producer_seq=0,
            offsets={group: {stream.path: move}},
        )

    assert send({"batch": 1}).status == 200
    assert get_properties(stream, group) == {"batch": 1}
    repeat = send({"batch": 1})
    assert (repeat.status, repeat.json["duplicate"]) == (200, True)
    other = send({"batch": 2})
    assert other.headers.get("producer-payload-mismatch") == "true"
    assert get_properties(stream, group) == {"batch": 1}


# ---- restarts ------------------------------------------------------------------------------------


# rows: P17
@pytest.mark.crash
def test_metadata_outlives_a_kill_and_a_clean_end(tmp_path: Path) -> None:
    server = Server(tmp_path / "data")
    try:
        stream = server.stream("s")
        stream.create(b"a")
        assert stream.post(b"b").status == 204
        assert mark_delete(stream, "g", 1, NOTE).status == 200
        txn = moving(stream, "g", {"batch": 8})
        for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGKILL):  # SIGTERM: a checkpoint
            server.signal(number)
            server.wait()
            server.kill()  # closes the output of the ended process
            server = Server(tmp_path / "data")
            stream = server.stream("s")
            assert get_properties(stream, "g") == NOTE
        txn.server = server
        assert txn.commit().status == 200
        server.kill()
        server = Server(tmp_path / "data")
        assert get_properties(server.stream("s"), "g") == {"batch": 8}
    finally:
        server.kill()


# ---- the Python client ---------------------------------------------------------------------------


# rows: P17
def test_the_client_sets_metadata_wherever_it_moves_a_position(stream: Stream) -> None:
    path, name = stream.path, fresh("g")
    with Client(stream.server.url) as client:
        group = client.group(name)
        group.set({path: 0}, metadata={path: {"batch": 1}})
        assert group.metadata() == {path: {"batch": 1}}
        with client.stream(path).tail(group=name) as tail:
            first, second = next(tail), next(tail)
            first.commit(metadata={"batch": 2})
            assert group.metadata() == {path: {"batch": 2}}
            first.commit(metadata={"batch": 3})  # the same position with other metadata
            assert group.metadata() == {path: {"batch": 3}}
            with client.transaction(fresh("p")) as txn:
                txn.commit_message(second, metadata={"worker": "w"})
            assert group.metadata() == {path: {"worker": "w"}}
            third = next(tail)
            third.commit()
            assert group.metadata() == {}
        with client.transaction(fresh("p")) as txn:
            txn.commit_offsets(name, {path: (3, 2)}, metadata={path: {"batch": 4}})
        assert group.metadata() == {path: {"batch": 4}}
        moves, metadata = {name: {path: (2, 3)}}, {name: {path: {"batch": 5}}}
        client.commit(producer_id=fresh("p"), seq=0, offsets=moves, metadata=metadata)
        assert group.metadata() == {path: {"batch": 5}}
        moves, metadata = {name: {path: (3, 1)}}, {name: {path: {"version": 0}}}
        client.sink(fresh("app")).commit(0, offsets=moves, metadata=metadata)
        assert group.metadata() == {path: {"version": 0}}
        with pytest.raises(ValueError, match="no offset, for other"):
            group.set({path: 0}, metadata={"other": {"batch": 1}})
        with pytest.raises(ValueError, match="no offset"):
            client.commit(producer_id=fresh("p"), seq=0, metadata=metadata)
