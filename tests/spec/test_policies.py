"""Policies over HTTP: settings that hold for every stream below a prefix, now and later."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.spec.process import Answer, Server, Stream, offset_of
from tests.spec.test_producers import dense

OFF = b'{"dedup":"off"}'
ON = b'{"dedup":"on"}'


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Server]:
    """A server of this test alone: a policy of the root would change the streams of others."""
    server = Server(tmp_path / "data")
    yield server
    server.kill()


def put(server: Server, prefix: str, body: bytes = OFF) -> Answer:
    return server.ask("PUT", f"/v1/policies?prefix={prefix}", body)


def patched(stream: Stream, value: str) -> Answer:
    return stream.server.ask("PATCH", stream.target, stream_dedup=value)


def made(server: Server, path: str, **headers: Any) -> Stream:
    stream = server.stream(path)
    stream.create(**headers)
    return stream


def dedup(stream: Stream) -> dict[str, str]:
    """Return the headers of HEAD about duplicates, without their common beginning."""
    found = stream.head().headers
    name = "stream-dedup"
    return {key[len(name) :].strip("-"): v for key, v in found.items() if key.startswith(name)}


def is_recognised(stream: Stream) -> bool:
    """Append twice with the same sequence; return whether the repeat was recognised."""
    name = uuid4().hex
    tag = {"producer_id": name, "producer_epoch": 0, "producer_seq": 0}
    first, second = (stream.post(b"x", **tag) for _ in range(2))
    assert first.status == 200
    return second.status == 204


# rows: P19
@pytest.mark.spec("machine: policies")
def test_a_policy_is_set_shown_listed_and_deleted(own: Server) -> None:
    assert own.ask("GET", "/v1/policies").json == {"policies": []}
    new = put(own, "orders")
    assert (new.status, new.json["prefix"], new.json["dedup"]) == (201, "orders", "off")
    again = put(own, "orders")
    assert (again.status, again.json) == (200, new.json)
    changed = put(own, "orders", ON)
    assert (changed.status, changed.json["dedup"]) == (200, "on")
    put(own, "")
    assert own.ask("GET", "/v1/policies?prefix=orders").json == changed.json
    listed = own.ask("GET", "/v1/policies").json["policies"]
    assert [policy["prefix"] for policy in listed] == ["", "orders"]
    assert "semel_policies 2\n" in own.ask("GET", "/metrics").body.decode()
    assert own.ask("DELETE", "/v1/policies?prefix=orders").status == 204
    for method in ("GET", "DELETE"):
        assert own.ask(method, "/v1/policies?prefix=orders").code == "policy_not_found"
    assert own.ask("GET", "/v1/policies?prefix=").json["dedup"] == "off"


@pytest.mark.spec("machine: policies")
def test_what_is_no_policy_is_refused(own: Server) -> None:
    for query in ("", "?prefix=a/", "?prefix=/a", f"?prefix={'a' * 501}"):
        assert own.ask("PUT", f"/v1/policies{query}", OFF).code == "invalid_query"
    for body in (b"", b"{}", b'{"dedup":"inherit"}', b'{"retention":"1d"}'):
        assert put(own, "a", body).code == "bad_body"
    assert put(own, "a", b"x").code == "bad_body"
    assert own.ask("POST", "/v1/policies").status == 405
    assert own.ask("GET", "/v1/policies").json == {"policies": []}


@pytest.mark.spec("machine: policies")
def test_a_prefix_that_is_not_utf_8_is_refused_with_the_reason(own: Server) -> None:
    for method, prefix in (("PUT", "%FF"), ("GET", "orders/%C3"), ("DELETE", "%ED%A0%80")):
        answer = own.ask(method, f"/v1/policies?prefix={prefix}", OFF if method == "PUT" else b"")
        assert (answer.status, answer.code) == (400, "invalid_query")
        assert "it is not UTF-8" in answer.json["message"]
    assert put(own, "%C3%A9").json["prefix"] == "\u00e9"
    assert [row["prefix"] for row in own.ask("GET", "/v1/policies").json["policies"]] == ["\u00e9"]


# rows: P19
@pytest.mark.spec("machine: policies")
def test_a_prefix_is_switched_off_and_on_for_streams_that_are_there_and_later_ones(
    own: Server,
) -> None:
    there, beside = made(own, "orders/eu"), made(own, "orders2")
    assert is_recognised(there)
    put(own, "orders")
    assert dedup(there) == {"source": "policy", "policy": '"orders"', "pending": "off"}
    answer = dense(there, b"x", 0, 0)
    assert (answer.status, answer.headers["producer-dedup"]) == (200, "off")
    assert dedup(there) == {"": "off", "source": "policy", "policy": '"orders"'}
    later, itself = made(own, "orders/us"), made(own, "orders")
    for stream in (there, later, itself):
        assert not is_recognised(stream)
    assert is_recognised(beside)
    assert dedup(beside) == {}
    put(own, "orders", ON)
    for stream in (there, later, itself):
        assert dedup(stream)["pending"] == "on"
        assert is_recognised(stream)
    assert is_recognised(made(own, "orders/new"))


# rows: P19, P26
@pytest.mark.spec("machine: policies")
def test_the_whole_server_is_switched_with_the_streams_it_has_and_a_kill_changes_nothing(
    own: Server, tmp_path: Path
) -> None:
    streams = [made(own, f"s/{number}") for number in range(3)]
    for stream in streams:
        assert dense(stream, b"x", 0, 0).status == 200
    put(own, "")
    dense(streams[0], b"x", 0, 0)
    own.kill()
    server = Server(tmp_path / "data")
    try:
        one, two, three = (server.stream(f"s/{number}") for number in range(3))
        assert dedup(one) == {"": "off", "source": "policy", "policy": '""'}
        assert dedup(two)["pending"] == "off"
        assert not is_recognised(one)
        assert not is_recognised(two)
        put(server, "", ON)
        tail = one.head().next_offset
        assert dense(one, b"y", 0, 0).status == 200
        assert dedup(one)["from"] == tail, "the first append that is recognised"
        server.kill()
        server = Server(tmp_path / "data")
        one, three = server.stream("s/0"), server.stream("s/2")
        assert dense(one, b"y", 0, 0).status == 204
        assert dedup(one)["from"] == tail
        assert dense(three, b"x", 0, 0).status == 204, "nothing was appended while it was off"
    finally:
        server.kill()


# rows: P26
@pytest.mark.spec("machine: policies")
def test_a_producer_s_append_after_the_switch_on_reports_from_where_it_holds(own: Server) -> None:
    put(own, "o")
    stream = made(own, "o/s")
    dense(stream, b"a", 0, 0)
    dense(stream, b"a", 0, 0)
    own.ask("DELETE", "/v1/policies?prefix=o")
    assert dedup(stream) == {"": "off", "source": "built-in", "pending": "on"}
    assert dense(stream, b"b", 0, 0).status == 200
    assert dense(stream, b"b", 0, 0).status == 204
    assert dedup(stream) == {"from": offset_of(2), "source": "built-in"}
    assert stream.text == "aab"


# rows: P19
@pytest.mark.spec("machine: policies")
def test_the_longest_prefix_wins_and_a_stream_s_own_setting_wins_over_all(own: Server) -> None:
    put(own, "")
    put(own, "a/b", ON)
    put(own, "a/b/c")
    for path, is_on in (("a", False), ("a/b", True), ("a/b/x", True), ("a/b/c/d", False)):
        assert is_recognised(made(own, path)) is is_on
    mine = made(own, "mine", stream_dedup="on")
    assert is_recognised(mine)
    assert dedup(mine) == {"source": "own"}
    given_up = patched(mine, "inherit")
    assert given_up.headers["stream-dedup"] == "on"
    assert given_up.headers["stream-dedup-pending"] == "off"
    assert not is_recognised(mine)
    patched(mine, "on")
    assert is_recognised(mine)


@pytest.mark.spec("machine: policies")
def test_a_patch_to_the_value_it_has_makes_it_the_stream_s_own(own: Server) -> None:
    stream = made(own, "s")
    assert dense(stream, b"x", 0, 0).status == 200
    assert patched(stream, "on").status == 204
    put(own, "")
    assert dense(stream, b"x", 0, 0).status == 204


@pytest.mark.spec("machine: policies")
def test_the_list_of_streams_says_where_the_setting_comes_from(own: Server) -> None:
    made(own, "a")
    made(own, "own", stream_dedup="off")
    put(own, "a")
    listed = own.ask("GET", "/v1/streams").json["streams"]
    names = ("dedup", "dedup_source", "dedup_policy", "dedup_pending")
    assert [[entry[name] for name in names] for entry in listed] == [
        ["on", "policy", "a", "off"],
        ["off", "own", None, None],
    ]


# rows: P19
@pytest.mark.spec("machine: policies")
def test_the_flag_sets_the_policy_of_the_root_and_without_it_nothing_changes(
    tmp_path: Path,
) -> None:
    server = Server(tmp_path / "data")
    try:
        stream = made(server, "s")
        assert is_recognised(stream)
        for options, is_on in (
            (("--dedup", "off"), False),
            ((), False),
            (("--dedup", "off"), False),
            (("--dedup", "on"), True),
        ):
            server.kill()
            server = Server(tmp_path / "data", *options)
            policy = server.ask("GET", "/v1/policies?prefix=").json
            assert policy["dedup"] == ("on" if is_on else "off")
            assert is_recognised(server.stream("s")) is is_on
        changed_at = policy["changed_at"]
        server.kill()
        server = Server(tmp_path / "data", "--dedup", "on")
        assert server.ask("GET", "/v1/policies?prefix=").json["changed_at"] == changed_at
    finally:
        server.kill()


@pytest.mark.spec("machine: policies")
def test_an_open_transaction_continues_with_the_switch_it_had(own: Server) -> None:
    stream = made(own, "s")
    epoch = own.ask("POST", "/v1/producers", b'{"producer_id":"w"}').json["producer_epoch"]
    begin = {"transaction_id": "t", "producer_id": "w", "producer_epoch": epoch, "streams": ["s"]}
    number = own.ask("POST", "/v1/transactions", json.dumps(begin).encode()).json[
        "transaction_epoch"
    ]

    def publish(seq: int) -> Answer:
        return stream.post(
            b"t",
            producer_id="w",
            producer_epoch=epoch,
            producer_seq=seq,
            transaction_id="t",
            transaction_epoch=number,
        )

    assert publish(0).status == 200
    put(own, "")
    assert dense(stream, b"x", 0, 0).status == 200
    assert dense(stream, b"x", 0, 0).status == 204, "the switch waits for the transaction"
    assert (publish(1).status, publish(1).status) == (200, 204)
    end = json.dumps({"transaction_epoch": number, "producer_id": "w", "producer_epoch": epoch})
    assert own.ask("POST", "/v1/transactions/t/commit", end.encode()).status == 200
    assert dense(stream, b"x", 0, 0).headers["producer-dedup"] == "off"


@pytest.mark.spec("machine: policies")
def test_a_creation_returns_what_head_returns_about_duplicates(own: Server) -> None:
    def shown(answer: Answer) -> dict[str, str]:
        names = ("stream-dedup", "stream-incarnation", "content-type", "stream-next-offset")
        return {name: value for name, value in answer.headers.items() if name.startswith(names)}

    def both(path: str, status: int, **headers: Any) -> dict[str, str]:
        stream = own.stream(path)
        created = own.ask("PUT", stream.target, content_type="text/plain", **headers)
        assert created.status == status
        head = shown(stream.head())
        head.pop("stream-stable-offset", None)
        assert shown(created) == head
        return head

    assert not any("dedup" in name for name in both("a", 201))
    assert both("b", 201, stream_dedup="off")["stream-dedup-source"] == "own"
    put(own, "orders")
    inherited = both("orders/1", 201)
    assert (inherited["stream-dedup"], inherited["stream-dedup-policy"]) == ("off", '"orders"')
    put(own, "orders", ON)
    assert both("orders/1", 200)["stream-dedup-pending"] == "on"


# rows: P19
@pytest.mark.spec("machine: policies")
@pytest.mark.parametrize("streams", [10, 2_000])
def test_a_policy_costs_the_same_however_many_streams_there_are(own: Server, streams: int) -> None:
    connection = own.connect()
    for number in range(streams):
        connection.request("PUT", f"/v1/stream/many/{number}", headers={"Content-Type": "a/b"})
        connection.getresponse().read()
    connection.close()

    def journal_end() -> int:
        lines = own.ask("GET", "/metrics").body.decode().splitlines()
        (value,) = (line.split()[1] for line in lines if line.startswith("semel_journal_end_bytes"))
        return int(float(value))

    before = journal_end()
    put(own, "many")
    assert 0 < journal_end() - before <= 256, "one frame, and the watermark after it"
