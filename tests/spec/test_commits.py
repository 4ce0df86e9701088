"""One-shot commits: one request for many streams, applied once, completely or not at all."""

import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.spec.process import Answer, Server, Stream, offset_of
from tests.spec.txn_calls import Txn, begun, call, commit, committed, fresh, positions, refusal

JSON = "application/json"


@pytest.fixture
def other(server: Server) -> Stream:
    return server.stream()


class Committer:
    """A producer of one-shot commits that counts its sequence."""

    def __init__(self, server: Server, name: str = "", epoch: int = 0) -> None:
        self.server = server
        self.name = name or fresh("p")
        self.epoch = epoch
        self.seq = 0

    def send(self, **document: Any) -> Answer:
        """Send with the next sequence; increment the sequence if the commit was accepted."""
        whole = {
            "producer_id": self.name,
            "producer_epoch": self.epoch,
            "producer_seq": self.seq,
            **document,
        }
        answer = commit(self.server, **whole)
        if answer.status == 200 and "producer_seq" not in document:
            self.seq += 1
        return answer


def append(stream: Stream, *messages: Any) -> dict[str, Any]:
    return {"stream": stream.path, "messages": list(messages)}


@pytest.fixture
def committer(server: Server) -> Committer:
    return Committer(server)


# rows: R13
@pytest.mark.spec("design 7.2")
def test_a_commit_appends_moves_and_answers_again_as_first(
    stream: Stream, other: Stream, committer: Committer
) -> None:
    stream.create(content_type=JSON)
    other.create()
    group = fresh("g")
    document = {
        "appends": [
            append(stream, {"id": 1}, {"id": 2}),
            append(other, "text", {"base64": "AP8="}),
        ],
        "offsets": {group: {stream.path: offset_of(2)}},
        "if": {stream.path: 0, other.path: offset_of(0)},
    }
    first = committer.send(**document)
    assert first.status == 200
    assert first.json == {
        "duplicate": False,
        "streams": {
            stream.path: {
                "first_offset": offset_of(0),
                "next_offset": offset_of(2),
                "messages": 2,
            },
            other.path: {
                "first_offset": offset_of(0),
                "next_offset": offset_of(2),
                "messages": 2,
            },
        },
        "offsets": {group: {stream.path: offset_of(2)}},
        "deleted": [],
        "producer_id": committer.name,
        "producer_epoch": 0,
        "producer_seq": 0,
    }
    again = committer.send(**document, producer_seq=0)
    assert again.json == {**first.json, "duplicate": True}
    assert committed(stream).json == [{"id": 1}, {"id": 2}]
    assert committed(other).body == b"text\x00\xff"
    assert positions(stream.server, group) == {stream.path: offset_of(2)}


def test_below_the_address_of_commits_nothing_is_served(server: Server, stream: Stream) -> None:
    stream.create(content_type=JSON)
    document = {
        "producer_id": fresh("p"),
        "producer_epoch": 0,
        "producer_seq": 0,
        "appends": [{"stream": stream.path, "messages": [1]}],
    }
    for address in ("/v1/commits/x", "/v1/commits/", "/v1/commits/x/y"):
        assert refusal(call(server, "POST", address, document)) == (404, "no_such_address")
    assert stream.tail == offset_of(0)
    assert call(server, "POST", "/v1/commits", document).status == 200
    assert stream.tail == offset_of(1)


@pytest.mark.spec("design 7.2")
def test_json_messages_stay_as_they_were_sent(stream: Stream, committer: Committer) -> None:
    stream.create(content_type=JSON)
    body = (
        b'{"producer_id": "%b", "producer_epoch": 0, "producer_seq": 0,'
        b' "appends": [{"stream": "%b", "messages":'
        b' [ {"b" : 1e2, "a":1,"a":2} , 123456789012345678901234567890 , [1, 2] ]}]}'
    ) % (committer.name.encode(), stream.path.encode())
    assert stream.server.ask("POST", "/v1/commits", body).status == 200
    assert stream.get("offset=-1").body == (
        b'[{"b" : 1e2, "a":1,"a":2},123456789012345678901234567890,[1, 2]]'
    )


def test_order_inside_a_stream_is_that_of_the_request(stream: Stream, committer: Committer) -> None:
    stream.create()
    appends = [append(stream, "a"), append(stream, "b", "c")]
    answer = committer.send(appends=appends)
    assert answer.json["streams"][stream.path]["messages"] == 3
    assert stream.text == "abc"


@pytest.mark.spec("design 7.2")
def test_staged_transactions_of_the_producer_enter_in_list_order(
    stream: Stream, committer: Committer
) -> None:
    stream.create()
    staged = []
    for body in (b"1", b"2"):
        txn = Txn(stream.server, committer.name)
        assert txn.begin(kind="staged", streams=[stream.path]).status == 201
        assert txn.stage(stream, body, 0).status == 200
        staged.append(txn)
    listed = [{"id": txn.id, "epoch": 1} for txn in reversed(staged)]
    answer = committer.send(appends=[append(stream, "0")], transactions=listed)
    assert answer.status == 200
    assert stream.text == "021"
    assert [txn.status().json["state"] for txn in staged] == ["committed", "committed"]


def test_transactions_of_others_and_inline_ones_are_not_taken(
    stream: Stream, committer: Committer
) -> None:
    stream.create()
    strange = begun(stream, kind="staged")
    inline = Txn(stream.server, committer.name)
    inline.begin(streams=[stream.path])
    for named, expected in (
        ({"id": strange.id, "epoch": 1}, (403, "PRODUCER_FENCED")),
        ({"id": inline.id, "epoch": 1}, (409, "INVALID_TXN_STATE")),
        ({"id": fresh(), "epoch": 1}, (404, "INVALID_TXN_ID")),
    ):
        assert refusal(committer.send(transactions=[named])) == expected
    own = Txn(stream.server, committer.name)
    own.begin(kind="staged", streams=[stream.path])
    twice = [{"id": own.id, "epoch": 1}] * 2
    assert refusal(committer.send(transactions=twice)) == (400, "invalid_request")


# ---- sequences -----------------------------------------------------------------------------------


# rows: R08, R09, R11
@pytest.mark.spec("design 7.2")
def test_commits_are_numbered_by_their_producer(stream: Stream, committer: Committer) -> None:
    stream.create()
    appends = [append(stream, "x")]
    assert refusal(committer.send(appends=appends, producer_seq=1)) == (
        400,
        "epoch_must_start_at_zero",
    )
    assert committer.send(appends=appends).status == 200
    gap = committer.send(appends=appends, producer_seq=2)
    assert refusal(gap) == (409, "OUT_OF_ORDER_SEQUENCE")
    assert gap.json["expected_seq"] == 1
    newer = Committer(stream.server, committer.name, epoch=1)
    assert newer.send(appends=appends).status == 200
    stale = committer.send(appends=appends)
    assert refusal(stale) == (403, "PRODUCER_FENCED")
    assert stale.json["current_epoch"] == 1
    assert "with epoch 1; the received epoch is 0" in stale.json["message"]
    assert stream.text == "xx"


# rows: R05, R06
def test_a_repeat_below_the_kept_results_is_still_one(stream: Stream, committer: Committer) -> None:
    stream.create()
    for _ in range(66):
        assert committer.send(appends=[append(stream, "x")]).status == 200
    old = committer.send(appends=[append(stream, "x")], producer_seq=0)
    assert (old.json["duplicate"], old.json["streams"]) == (True, None)
    held = committer.send(appends=[append(stream, "x")], producer_seq=2)
    assert held.json["streams"][stream.path]["first_offset"] == offset_of(2)
    assert len(stream.text) == 66


def test_another_commit_under_a_used_sequence_is_told_and_not_applied(
    stream: Stream, committer: Committer
) -> None:
    stream.create()
    group = fresh("g")
    offsets = {group: {stream.path: 1}}
    first = committer.send(
        appends=[append(stream, "x")], offsets=offsets, **{"if": {stream.path: 0}}
    )
    again = committer.send(appends=[append(stream, "x")], offsets=offsets, producer_seq=0)
    assert again.json == {**first.json, "duplicate": True}, "preconditions may differ"
    assert "producer-payload-mismatch" not in again.headers
    for other in (
        {"appends": [append(stream, "y")], "offsets": offsets},
        {"appends": [append(stream, "x")]},
        {"appends": [append(stream, "x")], "offsets": {group: {stream.path: 0}}},
    ):
        answer = committer.send(**other, producer_seq=0)
        assert answer.headers["producer-payload-mismatch"] == "true"
        assert answer.json["duplicate"]
        assert "a different commit" in answer.json["warning"]
    assert stream.text == "x"
    assert positions(stream.server, group) == {stream.path: offset_of(1)}


def test_the_same_commit_sent_at_once_by_many_is_applied_once(
    stream: Stream, committer: Committer
) -> None:
    stream.create()
    answers: list[Answer] = []

    def send() -> None:
        answers.append(committer.send(appends=[append(stream, "x")], producer_seq=0))

    threads = [threading.Thread(target=send) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [answer.status for answer in answers] == [200] * 8
    assert sorted(answer.json["duplicate"] for answer in answers) == [False] + [True] * 7
    assert stream.text == "x"


# ---- refusals ------------------------------------------------------------------------------------


@pytest.mark.spec("design 7.2")
def test_one_bad_part_spoils_it_all(stream: Stream, other: Stream, committer: Committer) -> None:
    stream.create(b"0")
    other.create(content_type=JSON)
    closed, missing = stream.server.stream(), stream.server.stream()
    closed.create(stream_closed="true")
    group, good = fresh("g"), append(stream, "good")
    cases: list[tuple[dict[str, Any], tuple[int, str], str | None]] = [
        ({"appends": [good, append(missing, "x")]}, (404, "stream_not_found"), missing.path),
        ({"appends": [good, append(closed, "x")]}, (409, "stream_closed"), closed.path),
        ({"appends": [good], "if": {stream.path: 0}}, (412, "precondition_failed"), stream.path),
        ({"appends": [good], "if": {missing.path: 0}}, (404, "stream_not_found"), missing.path),
        (
            {"appends": [good], "offsets": {group: {stream.path: 3}}},
            (400, "OFFSET_BEYOND_TAIL"),
            stream.path,
        ),
        (
            {"appends": [good], "offsets": {group: {stream.path: {"from": 1, "to": 1}}}},
            (409, "position_conflict"),
            stream.path,
        ),
        ({"appends": [good, append(stream, 7)]}, (400, "bad_body"), stream.path),
        ({"appends": [good, append(stream)]}, (400, "bad_body"), stream.path),
        ({"appends": [good, append(stream, "")]}, (400, "bad_body"), stream.path),
        ({"appends": [good, append(stream, {"base64": "?"})]}, (400, "bad_body"), stream.path),
        ({"appends": [good, append(other)]}, (400, "bad_body"), other.path),
        (
            {"appends": [good, {"stream": other.path, "messages": {"no": "array"}}]},
            (400, "bad_body"),
            other.path,
        ),
    ]
    for document, expected, path in cases:
        answer = committer.send(**document)
        assert refusal(answer) == expected, document
        assert answer.json["stream"] == path
        assert answer.json["applied"] == "no"
    assert (stream.text, stream.tail) == ("0", offset_of(1))
    assert positions(stream.server, group) == {}
    assert committer.send(appends=[good]).status == 200, "the sequence is still unused"


@pytest.mark.spec("design 7.2")
@pytest.mark.parametrize(
    ("document", "code"),
    [
        ({}, "invalid_request"),
        ({"appends": []}, "invalid_request"),
        ({"appends": "x"}, "bad_body"),
        ({"appends": [{"stream": "s"}]}, "bad_body"),
        ({"appends": [{"stream": "s", "messages": [], "key": 1}]}, "bad_body"),
        ({"appends": [{"stream": "", "messages": ["x"]}]}, "invalid_request"),
        ({"if": {"s": "-1"}}, "invalid_offset"),
        ({"if": {"s": -1}}, "invalid_offset"),
        ({"offsets": {"g": {"s": {"from": 0}}}}, "bad_body"),
        ({"offsets": {"g": {"s": {"from": 0, "to": "x"}}}}, "invalid_offset"),
        ({"offsets": {"": {"s": 0}}}, "invalid_request"),
        ({"transactions": [{"id": "", "epoch": 1}]}, "invalid_request"),
        ({"unless": {}}, "bad_body"),
        ({"if": {f"s{n}": 0 for n in range(1001)}}, "invalid_request"),
    ],
)
def test_a_commit_that_means_nothing_is_refused(
    committer: Committer, document: dict[str, Any], code: str
) -> None:
    assert refusal(committer.send(**document)) == (400, code)


def test_a_commit_needs_one_identity(server: Server, stream: Stream) -> None:
    stream.create()
    appends = [append(stream, "x")]
    sink = {"app": fresh("app"), "query_id": "q", "version": 0}
    whole = {"producer_id": fresh("p"), "producer_epoch": 0, "producer_seq": 0}
    assert refusal(commit(server, appends=appends)) == (400, "invalid_request")
    assert refusal(commit(server, appends=appends, producer_id="p")) == (400, "invalid_request")
    both = commit(server, appends=appends, sink=sink, **whole)
    assert refusal(both) == (400, "invalid_request")
    assert stream.text == ""


@pytest.mark.parametrize("body", [b"[", b"[]", b"\xff", b"7", b'{"appends": ' + b"[" * 100_000])
def test_a_body_that_is_no_document_is_refused(server: Server, body: bytes) -> None:
    answer = server.ask("POST", "/v1/commits", body)
    assert refusal(answer) == (400, "bad_body")


HALVES = {
    "escaped": rb"\ud800",
    "escaped low": rb"a\udc00",
    "before something else": rb"\ud800\u0041",
    "as bytes": b"\xed\xa0\x80",
}
PLACES = {
    "message": b'"appends": [{"stream": "%s", "messages": ["%s"]}]',
    "base64": b'"appends": [{"stream": "%s", "messages": [{"base64": "%s"}]}]',
    "if": b'"if": {"%s": 0, "%s": 0}',
    "group": b'"offsets": {"%.0s%s": {}}',
    "transaction": b'"transactions": [{"id": "%.0s%s", "epoch": 1}]',
}


def is_kept(half: str, place: str, kind: str) -> bool:
    """A message of a JSON stream can contain what a plain append can contain: escapes."""
    is_message = place in {"message", "base64"}  # for a JSON stream, base64 is any other object
    return is_message and kind == "application/json" and half != "as bytes"


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("kind", ["text/plain", "application/json"])
def test_half_a_surrogate_pair_is_kept_in_a_json_message_and_refused_elsewhere(
    stream: Stream, half: str, place: str, kind: str
) -> None:
    stream.create(content_type=kind)
    who = b'"producer_id": "%s", "producer_epoch": 0, "producer_seq": 0' % fresh("p").encode()
    what = PLACES[place] % (stream.path.encode(), HALVES[half])
    body = b"{%s, %s}" % (who, what)
    answer = stream.server.ask("POST", "/v1/commits", body)
    if is_kept(half, place, kind):
        assert (answer.status, answer.json["duplicate"]) == (200, False)
        assert HALVES[half] in stream.get().body
        assert stream.server.ask("POST", "/v1/commits", body).json["duplicate"] is True
    else:
        assert refusal(answer) == (400, "bad_body")
        assert stream.tail == offset_of(0)


def test_halves_of_surrogate_pairs_keep_their_places_in_a_commit(
    stream: Stream, other: Stream
) -> None:
    stream.create(content_type="application/json")
    other.create(content_type="application/json")
    first = rb'["\ud800", "\\ud800", "\ud83d\ude00", "\\\udfff"]'
    second = rb'[{"\uDBFF": "\ue000"}, "\ue001\udc00"]'
    filler = b"[%s]" % b",".join([b'"%s"' % (b"x" * 1000)] * 2000)  # a body of several steps
    appends = b",".join(
        b'{"stream": "%s", "messages": %s}' % (target.path.encode(), messages)
        for target, messages in ((stream, first), (other, filler), (other, second))
    )
    who = b'"producer_id": "%s", "producer_epoch": 0, "producer_seq": 0' % fresh("p").encode()
    answer = stream.server.ask("POST", "/v1/commits", b'{%s, "appends": [%s]}' % (who, appends))
    assert answer.status == 200
    assert stream.get().body == first.replace(b", ", b",")
    assert other.get(f"offset={offset_of(2000)}").body == second.replace(b", ", b",")


def test_a_commit_with_all_placeholders_and_half_a_surrogate_pair_is_refused(
    stream: Stream,
) -> None:
    stream.create(content_type="application/json")
    private = b",".join(b'"\\u%04x"' % code for code in range(0xE000, 0xE010))
    what = b'"appends": [{"stream": "%s", "messages": ["\\ud800", %s]}]'
    who = b'"producer_id": "%s", "producer_epoch": 0, "producer_seq": 0' % fresh("p").encode()
    body = b"{%s, %s}" % (who, what % (stream.path.encode(), private))
    assert refusal(stream.server.ask("POST", "/v1/commits", body)) == (400, "bad_body")


# ---- positions -----------------------------------------------------------------------------------


@pytest.mark.spec("design 7.2")
def test_of_two_that_compare_and_set_one_wins(stream: Stream, other: Stream) -> None:
    stream.create(b"x")
    other.create()
    group = fresh("g")
    move = {group: {stream.path: {"from": 0, "to": 1}}}
    winner, loser = Committer(stream.server), Committer(stream.server)
    assert winner.send(appends=[append(other, "w")], offsets=move).status == 200
    answer = loser.send(appends=[append(other, "l")], offsets=move)
    assert refusal(answer) == (409, "position_conflict")
    assert (answer.json["group"], answer.json["offset"]) == (group, offset_of(1))
    assert other.text == "w"


# rows: R40
@pytest.mark.crash
def test_a_commit_and_its_answer_outlive_a_kill(tmp_path: Path) -> None:
    server = Server(tmp_path / "data")
    try:
        streams = [server.stream(name) for name in ("a", "b")]
        for stream in streams:
            stream.create(b"x")
        committer = Committer(server)
        document = {
            "appends": [append(stream, "1", "2") for stream in streams],
            "offsets": {"g": {"a": 1}},
        }
        first = committer.send(**document)
        server.kill()
        server = committer.server = Server(tmp_path / "data")
        again = committer.send(**document, producer_seq=0)
        assert again.json == {**first.json, "duplicate": True}
        assert [server.stream(name).text for name in ("a", "b")] == ["x12", "x12"]
        assert positions(server, "g") == {"a": offset_of(1)}
    finally:
        server.kill()


class Lossy:
    """A server that is killed during every request and restarted."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self.server = Server(data)

    def send(self, method: str, target: str, document: Any) -> Answer:
        """Send, kill the server before the response is read, then send again to a new process."""
        body = msgspec.json.encode(document)
        connection = self.server.connect()
        connection.request(method, target, body)
        self.server.kill()
        connection.close()
        self.server = Server(self._data)
        return self.server.ask(method, target, body)


# rows: R40
@pytest.mark.crash
def test_every_input_has_its_effect_once_though_each_commit_is_killed(tmp_path: Path) -> None:
    lossy = Lossy(tmp_path / "data")
    try:
        lossy.server.stream("in").create(b"0", content_type=JSON)
        for value in (b"1", b"2", b"3", b"4"):
            lossy.server.stream("in").post(value, content_type=JSON)
        lossy.server.stream("out").create(content_type=JSON)
        while True:
            at = positions(lossy.server, "doubler").get("in", offset_of(0))
            page = committed(lossy.server.stream("in"), f"offset={at}")
            if not page.json:
                break
            number = int(at[-16:])
            document = {
                "producer_id": "doubler",
                "producer_epoch": 0,
                "producer_seq": number,
                "appends": [{"stream": "out", "messages": [2 * page.json[0]]}],
                "offsets": {"doubler": {"in": {"from": number, "to": number + 1}}},
            }
            assert lossy.send("POST", "/v1/commits", document).status == 200
        assert committed(lossy.server.stream("out")).json == [0, 2, 4, 6, 8]
    finally:
        lossy.server.kill()


# rows: R40
@pytest.mark.crash
def test_every_input_has_its_effect_once_though_every_step_is_killed(tmp_path: Path) -> None:
    lossy = Lossy(tmp_path / "data")
    try:
        for name in ("in", "out"):
            lossy.server.stream(name).create(content_type=JSON)
        for value in (b"1", b"2"):
            lossy.server.stream("in").post(value, content_type=JSON)
        who = {"producer_id": "doubler", "producer_epoch": 0}
        for number in range(2):
            value = committed(lossy.server.stream("in"), f"offset={offset_of(number)}").json[0]
            begin = {"transaction_id": f"t{number}", **who, "kind": "staged", "streams": ["out"]}
            lossy.send("POST", "/v1/transactions", begin)
            headers = {"transaction_id": f"t{number}", "transaction_epoch": 1, "transaction_seq": 0}
            body, out = b"%d" % (2 * value), lossy.server.stream("out")
            assert out.post(body, content_type=JSON, **headers).status == 200
            call_on = f"/v1/transactions/t{number}"
            moves = {"group": "g", "offsets": {"in": number + 1}}
            for action, more in (("offsets", moves), ("prepare", {"chunks": 1}), ("commit", {})):
                document = {**who, "transaction_epoch": 1, **more}
                assert lossy.send("POST", f"{call_on}/{action}", document).status == 200
        assert committed(lossy.server.stream("out")).json == [2, 4]
        assert positions(lossy.server, "g") == {"in": offset_of(2)}
    finally:
        lossy.server.kill()


def test_a_deleted_stream_refuses_by_its_name(stream: Stream, committer: Committer) -> None:
    stream.create()
    fork = stream.server.stream()
    assert fork.put(stream_forked_from=stream.target).status == 201
    stream.delete()
    answer = committer.send(appends=[append(stream, "x")])
    assert refusal(answer) == (410, "stream_gone")
    assert answer.json["stream"] == stream.path


def test_a_compressed_body_is_refused(server: Server) -> None:
    for target in ("/v1/commits", "/v1/transactions", "/v1/groups/g/offsets"):
        answer = server.ask("POST", target, b"x", content_encoding="gzip")
        assert refusal(answer) == (415, "unsupported_encoding")


def test_an_empty_body_names_what_is_missing(server: Server) -> None:
    answer = call(server, "POST", "/v1/transactions")
    assert refusal(answer) == (400, "bad_body")
    assert "transaction_id" in answer.json["message"]
