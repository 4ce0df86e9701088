"""The API for producers, and the server settings for producers."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.spec.process import PATIENCE_SECONDS, Answer, Server, Stream, offset_of
from tests.spec.test_producers import dense
from tests.spec.txn_calls import Txn


def register(server: Server, body: bytes = b"") -> Answer:
    return server.ask("POST", "/v1/producers", body)


def look(server: Server, **query: Any) -> Answer:
    return server.ask("GET", f"/v1/producers?{urlencode(query)}")


def explain(stream: Stream, **query: Any) -> dict[str, Any]:
    query = {"stream": stream.path, "id": "p", **query}
    answer = stream.server.ask("GET", f"/v1/producers/explain?{urlencode(query)}")
    assert answer.status == 200, answer
    found: dict[str, Any] = answer.json
    return found


def forget(stream: Stream, producer_id: str = "p") -> Answer:
    query = urlencode({"stream": stream.path, "id": producer_id})
    return stream.server.ask("DELETE", f"/v1/producers?{query}")


def claim(stream: Stream, session: str, **fields: str) -> Answer:
    wanted = {"stream": stream.path, "producer_id": "p", "session": session, **fields}
    return stream.server.ask("POST", "/v1/producers/claim", json.dumps(wanted).encode())


def producers(stream: Stream, **query: Any) -> list[dict[str, Any]]:
    answer = look(stream.server, stream=stream.path, **query)
    assert answer.status == 200, answer
    found: list[dict[str, Any]] = answer.json["producers"]
    return found


# ---- identities ----------------------------------------------------------------------------------


# rows: D18, P06, R01
@pytest.mark.spec("design 7.2")
def test_the_server_gives_out_ids_and_each_is_another(server: Server) -> None:
    answers = [register(server), register(server, b"{}")]
    assert [answer.status for answer in answers] == [201, 201]
    ids = {answer.json["producer_id"] for answer in answers}
    assert len(ids) == 2
    assert all(answer.json["producer_epoch"] == 0 for answer in answers)


# rows: D11, P07
@pytest.mark.spec("design 6")
def test_registering_again_raises_the_epoch_and_fences_the_older_instance(stream: Stream) -> None:
    server, name = stream.server, f"till-{stream.path}"
    body = f'{{"producer_id": "{name}"}}'.encode()
    stream.create()
    assert register(server, body).json == {"producer_id": name, "producer_epoch": 0}
    old = {"producer_id": name, "producer_epoch": 0}
    assert stream.post(b"a", **old, producer_seq=0).status == 200
    again = register(server, body)
    assert (again.status, again.json["producer_epoch"]) == (200, 1)
    stale = stream.post(b"b", **old, producer_seq=1)
    assert (stale.status, stale.code) == (403, "PRODUCER_FENCED")
    assert stream.post(b"c", producer_id=name, producer_epoch=1, producer_seq=0).status == 200
    assert stream.text == "ac"


# rows: D11, P07
@pytest.mark.spec("machine: registry")
def test_a_first_registration_is_above_the_epochs_that_streams_have_of_the_name(
    stream: Stream,
) -> None:
    name = f"old-{stream.path}"
    stream.create()
    assert stream.post(b"a", producer_id=name, producer_epoch=7, producer_seq=0).status == 200
    made = register(stream.server, f'{{"producer_id": "{name}"}}'.encode())
    assert (made.status, made.json["producer_epoch"]) == (200, 8)
    assert stream.post(b"b", producer_id=name, producer_epoch=8, producer_seq=0).status == 200
    late = stream.post(b"c", producer_id=name, producer_epoch=7, producer_seq=1)
    assert (late.status, late.code) == (403, "PRODUCER_FENCED")
    assert stream.text == "ab"


@pytest.mark.spec("design 7.2")
@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"[", 400, "bad_body"),
        (b'{"producer_id": ""}', 400, "invalid_header"),
        (b'{"producer_id": "987654321"}', 404, "UNKNOWN_PRODUCER_ID"),
    ],
)
def test_an_id_that_cannot_be_is_refused(
    server: Server, body: bytes, status: int, code: str
) -> None:
    answer = register(server, body)
    assert (answer.status, answer.code) == (status, code)


# rows: D04, D18
@pytest.mark.spec("design 7.2")
def test_a_stream_s_producer_call_gives_an_id_for_both_dialects(stream: Stream) -> None:
    stream.create()
    names = []
    for _ in range(2):
        answer = stream.server.ask("POST", f"{stream.target}/producer")
        assert answer.status == 201
        assert answer.json == {"producerId": answer.json["producerId"], "epoch": 1}
        names.append(answer.json["producerId"])
    assert names[0] != names[1]
    bare = stream.post(b"a", x_producer_id=names[0], x_producer_seq=0)
    assert (bare.status, bare.headers["x-producer-epoch"]) == (201, "1")
    ours = stream.post(b"b", producer_id=names[1], producer_epoch=1, producer_seq=0)
    assert (ours.status, ours.headers["producer-epoch"]) == (200, "1")
    assert stream.text == "ab"


# rows: D18, D33
@pytest.mark.spec("protocol 1.2")
def test_a_stream_that_is_named_producer_is_a_stream_like_any(stream: Stream) -> None:
    stream.create()
    below = stream.server.stream(f"{stream.path}/producer")
    missing = below.post(b"x")
    assert (missing.status, missing.code) == (404, "stream_not_found"), "a body means an append"
    closing = below.post(stream_closed="true", content_type=None)
    assert closing.code == "stream_not_found", "a close is an append too"
    below.create()
    assert below.post(b"x").status == 204
    empty = below.post(content_type=None)
    assert (empty.status, empty.code) == (400, "empty_body"), "an append, as the stream exists"
    assert below.text == "x"


# rows: D18
@pytest.mark.spec("design 7.2")
def test_a_producer_call_is_one_again_when_the_stream_of_that_name_is_gone(stream: Stream) -> None:
    stream.create()
    below = stream.server.stream(f"{stream.path}/producer")
    below.create()
    for _ in range(4):  # often enough for a cached request head
        assert below.post(b"x").status == 204
    below.delete()
    assert below.post().status == 201


# rows: D18
@pytest.mark.spec("design 7.2")
def test_a_producer_call_needs_the_stream_before_it(stream: Stream) -> None:
    for target in (f"{stream.target}/producer", "/v1/stream/producer"):
        answer = stream.server.ask("POST", target)
        assert (answer.status, answer.code) == (400, "empty_body")
    stream.create()
    stream.server.stream(f"{stream.path}-fork").create(
        stream_forked_from=stream.target, content_type="text/plain"
    )
    stream.delete()
    assert stream.server.ask("POST", f"{stream.target}/producer").code == "empty_body"


# ---- claims --------------------------------------------------------------------------------------


# rows: D11
@pytest.mark.spec("machine: claim")
def test_a_claim_fences_the_older_instance_and_tells_what_it_stored(stream: Stream) -> None:
    stream.create()
    old = {"producer_id": "p", "producer_session": "old"}
    assert stream.post(b"a", **old, producer_seq=0, producer_cursor="1").status == 200
    told = claim(stream, "new")
    assert told.status == 200
    assert told.json == {
        "stream": stream.path,
        "producer_id": "p",
        "producer_epoch": 2,
        "last_seq": 0,
        "last_offset": offset_of(1),
        "cursor": "1",
    }
    late = stream.post(b"b", **old, producer_seq=1, producer_cursor="2")
    assert (late.status, late.code) == (403, "stale_session")
    assert claim(stream, "new").json == told.json
    new = {"producer_id": "p", "producer_epoch": 2, "producer_session": "new"}
    assert stream.post(b"b", **new, producer_seq=0, producer_cursor="2").status == 200
    assert stream.text == "ab"
    again = claim(stream, "new")
    assert (again.status, again.code) == (403, "session_conflict")


@pytest.mark.spec("machine: claim")
def test_a_producer_that_only_claimed_is_shown_without_a_last_append(stream: Stream) -> None:
    stream.create()
    dense(stream, b"a", 7, 0)
    assert claim(stream, "new").json["producer_epoch"] == 8
    (shown,) = producers(stream, id="p")
    assert (shown["epoch"], shown["session"]) == (8, "new")
    assert (shown["last_seq"], shown["last_offset"], shown["receipts"]) == (None, None, [])
    told = explain(stream, session="other", seq=1)
    assert (told["outcome"], told["facts"]["last_seq"]) == ("session_unknown", None)
    assert "first append since" in explain(stream, epoch=8, seq=0)["reason"]


@pytest.mark.spec("machine: claim")
def test_what_cannot_be_claimed_is_refused(stream: Stream) -> None:
    assert claim(stream, "x").code == "stream_not_found"
    stream.create(stream_dedup="off")
    off = claim(stream, "x")
    assert (off.status, off.code) == (409, "dedup_off")
    assert stream.server.ask("POST", "/v1/producers/claim", b"{}").code == "bad_body"
    put = stream.server.ask("PUT", "/v1/producers/claim")
    assert (put.status, put.headers["allow"]) == (405, "POST, OPTIONS")


# ---- producer state ------------------------------------------------------------------------------


# rows: D12, P11, P18
@pytest.mark.spec("design 7.2")
def test_a_producer_shows_what_is_remembered_of_it(stream: Stream) -> None:
    stream.create()
    assert producers(stream) == producers(stream, id="p") == []
    dense(stream, b"a", 3, 0, producer_cursor="file:7")
    last = dense(stream, b"b", 3, 1)
    (shown,) = producers(stream)
    assert shown == {
        "stream": stream.path,
        "producer_id": "p",
        "mode": "dense",
        "epoch": 3,
        "last_seq": 1,
        "last_offset": last.next_offset,
        "cursor": "file:7",
        "updated_at": shown["updated_at"],
        "registered_epoch": None,
        "session": None,
        "expired": False,
        "state": "live",
        "expires": None,
        "ended_at": None,
        "until": None,
    }
    assert shown["updated_at"].endswith("Z")
    (full,) = producers(stream, id="p")
    receipts = full.pop("receipts")
    assert full == shown
    assert [(one["first_seq"], one["next_offset"]) for one in receipts] == [
        (0, offset_of(1)),
        (1, offset_of(2)),
    ]


# rows: P18
@pytest.mark.spec("design 7.2")
def test_many_producers_come_in_pages(stream: Stream) -> None:
    stream.create()
    for name in "cabed":
        stream.post(b"x", producer_id=name, producer_epoch=0, producer_seq=0)
    found, after = [], ""
    while True:
        page = look(stream.server, stream=stream.path, limit=2, after=after).json
        found.append([one["producer_id"] for one in page["producers"]])
        after = page["next"]
        if after is None:
            break
    assert found == [["a", "b"], ["c", "d"], ["e"]]


@pytest.mark.spec("design 6, 7.2")
def test_an_id_alone_shows_what_is_registered_of_it(server: Server) -> None:
    name = register(server).json["producer_id"]
    register(server, f'{{"producer_id": "{name}"}}'.encode())
    (shown,) = look(server, id=name).json["producers"]
    assert (shown["stream"], shown["epoch"], shown["registered_epoch"]) == (None, 1, 1)
    assert look(server, id="never registered").json == {"producers": [], "next": None}


@pytest.mark.spec("design 7.2")
def test_what_is_not_there_or_not_asked_for_is_refused(stream: Stream) -> None:
    server = stream.server
    assert look(server).code == "invalid_query"
    assert look(server, stream=stream.path).code == "stream_not_found"
    assert look(server, stream="s", limit=0).code == "invalid_query"
    assert forget(stream).code == "stream_not_found"
    stream.create()
    assert forget(stream).code == "UNKNOWN_PRODUCER_ID"
    assert server.ask("DELETE", "/v1/producers?stream=s").code == "invalid_query"
    put = server.ask("PUT", "/v1/producers")
    assert (put.status, put.headers["allow"]) == (405, "POST, GET, HEAD, DELETE, OPTIONS")
    assert server.ask("POST", "/v1/producers/explain").headers["allow"] == "GET, HEAD, OPTIONS"
    assert server.ask("HEAD", f"/v1/producers?stream={stream.path}").status == 200


@pytest.mark.spec("design 7.2")
def test_a_reset_makes_the_next_append_new(stream: Stream) -> None:
    stream.create()
    dense(stream, b"a", 5, 0)
    assert forget(stream).status == 204
    assert producers(stream) == []
    assert dense(stream, b"a", 0, 0).status == 200, "neither duplicate nor fenced"
    assert stream.text == "aa"


# ---- explain -------------------------------------------------------------------------------------


@pytest.mark.parametrize("action", ["commit", "abort"])
def test_explain_does_not_say_that_what_was_aborted_is_stored(stream: Stream, action: str) -> None:
    stream.create()
    txn = Txn(stream.server)
    tag = {"producer_id": txn.producer, "producer_epoch": 0}
    assert txn.begin(streams=[stream.path]).status == 201
    for seq in (0, 1):
        assert txn.post(stream, producer_seq=seq).status == 200
    assert txn.call(action).status == 200
    assert stream.post(b"x", **tag, producer_seq=1).code == "producer_seq_conflict"
    assert stream.post(b"y", **tag, producer_seq=2).status == 200
    repeat = stream.post(b"x", **tag, producer_seq=1)
    assert (repeat.status, repeat.headers["producer-receipt"]) == (204, "expired")
    told = explain(stream, id=txn.producer, epoch=0, seq=1)
    assert "or was used in a transaction, also an aborted one" in told["reason"]


# rows: D13, P18
@pytest.mark.spec("design 7.2")
def test_what_would_happen_is_what_happens(stream: Stream) -> None:
    stream.create()
    for epoch, seq in ((2, 0), (2, 0), (2, 2), (1, 1), (4, 1), (4, 0), (2, 1)):
        told = explain(stream, epoch=epoch, seq=seq)
        answer = dense(stream, b"x", epoch, seq)
        assert told["status"] == answer.status
        if answer.status >= 400:
            assert told["outcome"] == answer.code
            assert told["facts"].items() <= answer.json.items()


@pytest.mark.spec("design 7.2")
def test_an_explanation_is_in_words_and_changes_nothing(stream: Stream) -> None:
    stream.create()
    new = explain(stream, epoch=0, seq=0)
    assert (new["outcome"], new["known"]) == ("ok", None)
    assert "does not know the producer" in new["reason"]
    assert producers(stream) == []
    dense(stream, b"a", 0, 0)
    repeat = explain(stream, epoch=0, seq=0)
    assert (repeat["outcome"], repeat["facts"]["next_offset"]) == ("duplicate", offset_of(1))
    assert "a different payload; the stored payload stays" in repeat["other_payload"]["reason"]
    assert repeat["known"]["last_seq"] == 0
    restart = explain(stream, seq=0)
    assert (restart["outcome"], restart["other_payload"]["status"]) == ("duplicate", 200)
    session = explain(stream, seq=1, session="new")
    assert session["outcome"] == "session_unknown"
    assert explain(stream, id="q", seq="3-5", mode="sparse")["facts"]["epoch"] == 1
    assert stream.text == "a"


# ---- strict payloads, generated ids --------------------------------------------------------------


# rows: D37
@pytest.mark.spec("design 6")
def test_a_request_may_ask_to_be_refused_for_another_payload(stream: Stream) -> None:
    stream.create()
    dense(stream, b"a", 0, 0)
    strict = dense(stream, b"b", 0, 0, producer_strict="true")
    assert (strict.status, strict.code) == (422, "payload_mismatch")
    assert dense(stream, b"a", 0, 0, producer_strict="true").status == 204
    assert dense(stream, b"b", 0, 0).status == 204
    assert stream.text == "a"


# rows: P06
@pytest.mark.spec("semantics 5.3 row 1")
def test_a_sparse_producer_without_a_name_is_given_one(stream: Stream) -> None:
    stream.create()
    # Often enough for a cached request head.
    nameless = [stream.post(b"a", producer_mode="sparse", producer_seq="10") for _ in range(5)]
    assert [answer.status for answer in nameless] == [200] * 5
    names = [answer.headers["producer-id"] for answer in nameless]
    assert len(set(names)) == 5
    again = stream.post(b"a", producer_id=names[0], producer_mode="sparse", producer_seq="10")
    assert (again.status, again.next_offset) == (204, nameless[0].next_offset)
    assert "producer-id" not in again.headers
    assert stream.text == "aaaaa"


# ---- server options ------------------------------------------------------------------------------


@pytest.fixture
def special(tmp_path: Path) -> Iterator[Any]:
    """Return a function that starts a server with options."""
    started: list[Server] = []

    def start(*options: str) -> Server:
        started.append(Server(tmp_path / "data", *options))
        return started[-1]

    yield start
    for server in started:
        server.kill()


# rows: D37
@pytest.mark.spec("design 6")
def test_a_strict_server_refuses_another_payload_of_everyone(special: Any) -> None:
    stream = special("--strict-payloads").stream()
    stream.create()
    dense(stream, b"a", 0, 0)
    assert (dense(stream, b"b", 0, 0).status, dense(stream, b"a", 0, 0).status) == (422, 204)


# rows: D16, P24, X12
@pytest.mark.spec("design 6")
def test_an_idle_producer_leaves_a_tombstone(special: Any) -> None:
    stream = special("--producer-idle-seconds", "0.01").stream()
    stream.create()
    dense(stream, b"a", 4, 0)
    buried = threading.Event()
    while not producers(stream)[0]["expired"]:
        buried.wait(0.05)
    late = dense(stream, b"b", 4, 1)
    assert (late.status, late.code) == (409, "producer_state_expired")
    assert late.headers["producer-epoch"] == "4"
    assert dense(stream, b"c", 5, 0).status == 200
    assert stream.text == "ac"


class Later(threading.Thread):
    """An append on its own thread and connection."""

    def __init__(self, stream: Stream, seq: int) -> None:
        super().__init__()
        self.stream, self.seq = stream, seq
        self.start()

    def run(self) -> None:
        self.answer = dense(self.stream, b"%d" % self.seq, 0, self.seq)


def reversed_statuses(server: Server) -> tuple[list[int], str]:
    """Send five appends on five connections in reverse order; return statuses and text."""
    stream = server.stream()
    stream.create()
    early: list[Later] = []
    for seq in (4, 3, 2, 1):
        early.append(Later(stream, seq))
        while early[-1].is_alive() and metric(server, "semel_gaps_held") < len(early):
            pass
    statuses = [dense(stream, b"0", 0, 0).status]
    for one in early:
        one.join(PATIENCE_SECONDS)
        statuses.append(one.answer.status)
    return statuses, stream.text


# rows: D17, D20
@pytest.mark.spec("design 6")
def test_five_connections_in_reverse_order_are_stored_in_order(special: Any) -> None:
    server = special("--gap-hold-ms", "1000")
    for _ in range(20):  # a hold may end too early on a busy machine
        statuses, text = reversed_statuses(server)
        assert text == "01234"[: len(text)]
        if set(statuses) == {200}:
            break
    assert text == "01234"
    assert metric(server, "semel_gaps_held") == 0


# rows: D08, D17
@pytest.mark.spec("design 6")
def test_a_held_gap_that_is_not_filled_is_409_as_ever(special: Any) -> None:
    stream = special("--gap-hold-ms", "20").stream()
    stream.create()
    answer = dense(stream, b"x", 0, 3)
    assert (answer.status, answer.headers["producer-expected-seq"]) == (409, "0")


def metric(server: Server, name: str) -> int:
    lines = server.ask("GET", "/metrics").body.decode().splitlines()
    return next(int(line.split(" ")[1]) for line in lines if line.startswith(f"{name} "))


# rows: P18
@pytest.mark.spec("semantics G18")
def test_what_producers_are_told_is_counted(special: Any) -> None:
    server = special()
    stream = server.stream()
    stream.create()
    dense(stream, b"a", 1, 0)
    dense(stream, b"a", 1, 0)
    dense(stream, b"b", 1, 0)
    dense(stream, b"b", 1, 0, producer_strict="true")
    dense(stream, b"c", 1, 5)
    dense(stream, b"c", 0, 1)
    stream.post(b"s", producer_id="q", producer_session="one", producer_seq=0)
    assert metric(server, "semel_producers") == 2
    assert metric(server, "semel_producer_duplicates_total") == 2
    assert metric(server, "semel_producer_payload_mismatches_total") == 2
    assert metric(server, "semel_producer_gaps_total") == 1
    assert metric(server, "semel_producer_fenced_total") == 1
    for seq in range(1, 70):
        dense(stream, b"c", 1, seq)
    dense(stream, b"c", 1, 1)
    assert metric(server, "semel_producer_below_window_total") == 1
    forget(stream)
    assert metric(server, "semel_producers") == 1


# ---- after a crash -------------------------------------------------------------------------------


# rows: D15, P05, P14
@pytest.mark.spec("promises P1, P2")
def test_everything_told_of_producers_is_there_after_a_kill(special: Any) -> None:
    server = special()
    stream = server.stream("s")
    stream.create()
    dense(stream, b"a", 1, 0, producer_cursor="c")
    stream.post(b"b", producer_id="q", producer_mode="sparse", producer_seq="5-9")
    name = register(server).json["producer_id"]
    before = (producers(stream), producers(stream, id="p"), look(server, id=name).json)
    server.kill()
    again = special()
    stream = again.stream("s")
    after = (producers(stream), producers(stream, id="p"), look(again, id=name).json)
    assert after == before
