"""The hazards of docs/reference/seeds.md, each tested with a real server.

Every test here fails with a naive implementation.
"""

import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from semel.model.limits import RECEIPTS_DEFAULT
from tests.spec.process import Answer, Server, Stream, offset_of, read_answer

JSON: Final = "application/json"
NEW: Final = (200, 201)

# The headers by which a producer may identify itself.
Identity = dict[str, Any]
EPOCH: Final[Identity] = {"producer_id": "p", "producer_epoch": 1}
SESSION: Final[Identity] = {"producer_id": "p", "producer_session": "one"}
BARE: Final[Identity] = {"x_producer_id": "p"}
CROSSED: Final[Identity] = {"x_producer_id": "p", "x_producer_epoch": 1}
SPARSE: Final[Identity] = {"producer_id": "sparse", "producer_mode": "sparse"}
IDENTITIES: Final = [
    pytest.param(EPOCH, EPOCH, id="client epoch"),
    pytest.param(SESSION, EPOCH | SESSION, id="session"),
    pytest.param(BARE, BARE, id="bare"),
    pytest.param(BARE, CROSSED, id="bare, then echoed"),
]


def send(stream: Stream, body: bytes, seq: int | str, who: Identity, **headers: Any) -> Answer:
    name = "x_producer_seq" if "x_producer_id" in who else "producer_seq"
    return stream.post(body, **who, **{name: seq}, **headers)


def sparse(stream: Stream, body: bytes, seqs: str, **headers: Any) -> Answer:
    return send(stream, body, seqs, SPARSE, **headers)


# ---- X01: a retry or a restart? ------------------------------------------------------------------


# rows: X01, D10
@pytest.mark.parametrize(("first", "then"), IDENTITIES)
def test_a_retried_first_batch_is_stored_once_and_what_follows_is_not_fenced(
    stream: Stream, first: Identity, then: Identity
) -> None:
    stream.create()
    answers = [send(stream, b"0", 0, first) for _ in range(3)]
    assert [answer.status in NEW for answer in answers] == [True, False, False]
    assert [answer.status for answer in answers[1:]] == [204, 204]
    assert {answer.headers.get("producer-epoch", "1") for answer in answers} == {"1"}
    for seq in range(1, 5):
        assert send(stream, b"%d" % seq, seq, then).status in NEW
    late = send(stream, b"0", 0, first)
    assert late.status == 204, "a late retry is still a duplicate"
    assert stream.text == "01234"


OLD: Final = [b"a", b"b", b"c", b"d"]


# rows: X01, D37
@pytest.mark.parametrize("shared", range(1, 5))
def test_a_bare_process_that_begins_like_the_one_before_is_never_swallowed(
    stream: Stream, shared: int
) -> None:
    """Every append that is confirmed as stored is in the stream, with its own payload."""
    stream.create()
    for seq, body in enumerate(OLD):
        assert send(stream, body, seq, BARE).status == 201
    for seq, body in enumerate([*OLD[:shared], *[b"?"] * (6 - shared)]):
        answer = send(stream, body, seq, BARE)
        if answer.status == 409:
            assert answer.code == "producer_restart_ambiguous"
            break
        at = int(answer.headers["x-stream-offset"])
        assert stream.pages()[0][at : at + 1] == body
    assert stream.text.startswith("abcd")


# rows: X01, D10
def test_a_bare_process_that_was_told_it_is_ambiguous_goes_on_with_a_higher_epoch(
    stream: Stream,
) -> None:
    stream.create()
    for seq, body in enumerate(OLD):
        send(stream, body, seq, BARE)
    assert send(stream, b"a", 0, BARE).status == 204
    told = send(stream, b"x", 1, BARE)
    assert (told.status, told.json["current_epoch"], told.json["last_seq"]) == (409, 1, 3)
    raised = BARE | {"x_producer_epoch": told.json["current_epoch"] + 1}
    assert [send(stream, body, seq, raised).status for seq, body in enumerate([b"a", b"x"])] == [
        201,
        201,
    ]
    assert stream.text == "abcdax"


# ---- X02, X08, X10: repeats ----------------------------------------------------------------------


# rows: X02, P08, P09
def test_a_restarted_sparse_producer_stores_only_what_its_forerunner_did_not(
    stream: Stream,
) -> None:
    """The producer reads its file again from the start; the sequences are file offsets."""
    stream.create()
    file = {0: b"a", 7: b"b", 20: b"c", 33: b"d"}
    for at in (0, 7, 20):
        assert sparse(stream, file[at], str(at), producer_session="one").status == 200
    again = [sparse(stream, body, str(at), producer_session="two") for at, body in file.items()]
    assert [answer.status for answer in again] == [204, 204, 204, 200]
    assert again[-1].headers["producer-epoch"] == "2", "the old instance is fenced"
    assert sparse(stream, b"x", "40", producer_session="one").code == "stale_session"
    assert stream.text == "abcd"


# rows: X08, U08, D07
@pytest.mark.parametrize("who", [EPOCH, SESSION, BARE], ids=["epoch", "session", "bare"])
def test_a_late_retry_of_the_last_but_two_is_a_duplicate_with_its_own_offset(
    stream: Stream, who: Identity
) -> None:
    stream.create()
    first = [send(stream, b"%d" % seq, seq, who) for seq in range(5)]
    late = send(stream, b"2", 2, who)
    name = "x-stream-offset" if who is BARE else "stream-next-offset"
    assert (late.status, late.headers[name]) == (204, first[2].headers[name])
    assert send(stream, b"5", 5, who).status in NEW
    assert stream.text == "012345"


# rows: X10, P23, R05, R06
def test_a_repeat_has_its_own_offset_or_none_however_long_ago(stream: Stream) -> None:
    """A receipt belongs to one batch; the last offset must not be returned for others."""
    stream.create(b"", JSON)
    body = b"[1,2,3,4,5,6]"
    count = RECEIPTS_DEFAULT + 8
    first = [send(stream, body, seq, EPOCH, content_type=JSON).next_offset for seq in range(count)]
    without = 0
    for seq in range(count):
        again = send(stream, body, seq, EPOCH, content_type=JSON)
        assert again.status == 204
        if again.headers.get("producer-receipt") == "expired":
            assert "stream-next-offset" not in again.headers
            without += 1
        else:
            assert again.next_offset == first[seq]
    assert without == count - RECEIPTS_DEFAULT - 1, "all but the last 64 and sequence 0"
    assert stream.tail == offset_of(6 * count)


# ---- X16: state of one stream --------------------------------------------------------------------


# rows: X16, D14, U11, P02
def test_what_is_known_belongs_to_one_stream_and_dies_with_it(server: Server) -> None:
    one, two = server.stream(), server.stream()
    for stream in (one, two):
        stream.create()
        assert send(stream, b"0", 0, EPOCH).status == 200
        assert send(stream, b"1", 1, EPOCH).status == 200
    one.delete()
    one.create()
    gap = send(one, b"2", 2, EPOCH)
    assert (gap.status, gap.headers["producer-expected-seq"]) == (409, "0")
    assert send(one, b"0", 0, EPOCH).status == 200, "a batch of another stream is not a duplicate"
    assert send(two, b"2", 2, EPOCH).status == 200
    assert (one.text, two.text) == ("0", "012")


# ---- X17: concurrent copies ----------------------------------------------------------------------

COPIES: Final = 8
TAGS: Final[dict[str, Callable[[int], str]]] = {
    "epoch": lambda n: f"Producer-Id: p\r\nProducer-Epoch: 0\r\nProducer-Seq: {n}\r\n",
    "session": lambda n: f"Producer-Id: p\r\nProducer-Session: s\r\nProducer-Seq: {n}\r\n",
    "bare": lambda n: f"X-Producer-Id: p\r\nX-Producer-Seq: {n}\r\n",
    "sparse": lambda n: f"Producer-Id: p\r\nProducer-Mode: sparse\r\nProducer-Seq: {n * 9}\r\n",
}


def at_once(stream: Stream, requests: Sequence[bytes]) -> list[Answer]:
    """Send each request on its own connection, the last bytes together; return the responses."""
    lines: list[socket.socket] = [stream.server.dial() for _ in requests]
    try:
        for line, request in zip(lines, requests, strict=True):
            line.sendall(request[:-1])
        for line, request in zip(lines, requests, strict=True):
            line.sendall(request[-1:])
        answers = [read_answer(line) for line in lines]
    finally:
        for line in lines:
            line.close()
    assert None not in answers
    return [answer for answer in answers if answer is not None]


# rows: X17, D43, P03, P22
@pytest.mark.parametrize("tag", TAGS)
def test_of_copies_sent_at_once_one_is_stored_and_the_others_are_told_where(
    stream: Stream, tag: str
) -> None:
    stream.create()
    head = f"POST {stream.target} HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\n"
    for n in range(10):
        request = f"{head}{TAGS[tag](n)}Content-Length: 1\r\n\r\n{n}".encode()
        answers = at_once(stream, [request] * COPIES)
        statuses = [answer.status for answer in answers]
        assert statuses.count(204) == COPIES - 1
        assert sum(status in NEW for status in statuses) == 1
        place = "x-stream-offset" if tag == "bare" else "stream-next-offset"
        assert len({answer.headers[place] for answer in answers}) == 1
    assert stream.text == "0123456789"


# rows: X17, D43
def test_of_rivals_for_one_sequence_one_is_stored_and_no_other_is_told_it_was(
    stream: Stream,
) -> None:
    """Different payloads with one sequence: each duplicate is marked as a mismatch."""
    stream.create()
    head = f"POST {stream.target} HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\n"
    head += TAGS["epoch"](0) + "Content-Length: 1\r\n\r\n"
    answers = at_once(stream, [f"{head}{n}".encode() for n in range(COPIES)])
    (winner,) = [n for n, answer in enumerate(answers) if answer.status == 200]
    for n, answer in enumerate(answers):
        if n != winner:
            assert (answer.status, answer.headers["producer-payload-mismatch"]) == (204, "true")
    assert stream.text == str(winner)


# ---- X23, X28, X29: only stored messages are confirmed -------------------------------------------


# rows: X23, D19
def test_a_batch_half_of_which_is_stored_is_cut_by_its_sender_not_by_the_server(
    stream: Stream,
) -> None:
    stream.create(b"", JSON)
    assert sparse(stream, b"[1,2,3]", "1-3", content_type=JSON).status == 200
    overlap = sparse(stream, b"[2,3,4,5]", "2-5", content_type=JSON)
    assert (overlap.status, overlap.code) == (409, "batch_overlap")
    assert overlap.headers["producer-seq"] == "3"
    assert sparse(stream, b"[4,5]", "4-5", content_type=JSON).status == 200
    assert stream.text == "[1,2,3,4,5]"


# rows: X23, D19, D34, U14
def test_a_batch_with_a_bad_message_stores_none_and_takes_no_sequence(stream: Stream) -> None:
    stream.create(b"", JSON)
    bad = send(stream, b"[1,2,{]", 0, EPOCH, content_type=JSON)
    assert (bad.status, bad.code) == (400, "bad_body")
    assert send(stream, b"[1,2,3]", 0, EPOCH, content_type=JSON).status == 200
    assert stream.text == "[1,2,3]"


# rows: X28, P12
def test_a_message_that_was_overtaken_is_refused_not_confirmed(stream: Stream) -> None:
    stream.create()
    assert sparse(stream, b"11", "11").status == 200
    overtaken = sparse(stream, b"10", "10")
    assert (overtaken.status, overtaken.code) == (409, "sequence_hole")
    assert overtaken.headers["producer-seq"] == "11", "the next sequence must be higher"
    assert sparse(stream, b"10", "12").status == 200
    assert stream.text == "1110"


# rows: X29, D36, X15
@pytest.mark.parametrize("who", [EPOCH, SESSION, BARE, CROSSED], ids=" ".join)
def test_a_producer_nobody_knows_begins_at_zero_in_every_dialect(
    stream: Stream, who: Identity
) -> None:
    stream.create()
    gap = send(stream, b"x", 1, who)
    assert (gap.status, gap.code, gap.json["expected_seq"]) == (409, "producer_seq_conflict", 0)
    assert send(stream, b"0", 0, who).status in NEW
    assert send(stream, b"1", 1, who).status in NEW
    assert stream.text == "01"


# ---- after a kill --------------------------------------------------------------------------------


# rows: X01, X08, X10, X18, X19, X23, X28, D15, P04, P05
@pytest.mark.crash
def test_every_answer_to_a_repeat_or_a_mistake_is_the_same_after_a_kill(tmp_path: Path) -> None:
    server = Server(tmp_path / "data")
    try:
        stream = server.stream("a")
        stream.create()
        for seq in range(3):
            send(stream, b"%d" % seq, seq, EPOCH)
            send(stream, b"%d" % seq, seq, BARE | {"x_producer_id": "bare"})
            send(stream, b"%d" % seq, str(seq * 10), SPARSE)
        before = second_thoughts(stream)
        server.kill()
        server = Server(tmp_path / "data")
        assert second_thoughts(server.stream("a")) == before
        assert {status for status, _, _ in before} == {204, 403, 409}
    finally:
        server.kill()


def second_thoughts(stream: Stream) -> list[tuple[int, str, str | None]]:
    """Send repeats and mistakes, which store nothing; return statuses, codes and offsets."""
    bare = BARE | {"x_producer_id": "bare"}
    answers = [
        *[send(stream, b"%d" % seq, seq, EPOCH) for seq in range(3)],
        *[send(stream, b"%d" % seq, seq, bare) for seq in range(3)],
        *[send(stream, b"%d" % seq, str(seq * 10), SPARSE) for seq in range(3)],
        send(stream, b"?", 1, EPOCH),
        send(stream, b"?", 4, EPOCH),
        send(stream, b"?", 3, EPOCH | {"producer_epoch": 0}),
        send(stream, b"?", 1, bare),
        send(stream, b"?", "15", SPARSE),
        send(stream, b"?", "15-25", SPARSE),
    ]
    codes = [answer.code if answer.body else "" for answer in answers]
    offsets = [answer.headers.get("stream-next-offset") for answer in answers]
    return list(zip([answer.status for answer in answers], codes, offsets, strict=True))
