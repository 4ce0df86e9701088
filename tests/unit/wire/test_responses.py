"""Responses: the status and every header of the protocol."""

import gzip
import json

import pytest

from semel.model import outcomes as out
from semel.model.commands import READ_COMMITTED, Append
from semel.model.offsets import print_offset
from semel.model.outcomes_txn import Staged
from semel.model.policies import DedupSource
from semel.model.slices import Slice
from semel.wire.bodies import decode_frames
from semel.wire.headers import FRAMES
from semel.wire.problems import Problem
from semel.wire.rendering import (
    EXPOSED_HEADER,
    GZIP_BYTES_MIN,
    Response,
    as_private,
    compress,
)
from semel.wire.requests import CATCH_UP, LONG_POLL, ReadRequest
from semel.wire.responses import (
    Blocker,
    StreamFacts,
    append_response_lines,
    empty_poll_response,
    head_response,
    json_response,
    options_response,
    outcome_response,
    patch_response,
    post_response,
    problem_response,
    put_response,
    read_response,
    sse_response,
)
from tests.media_types import TYPES_WITH_COMMAS
from tests.unit.wire.builders import headers_of, piece, posted

URL = "http://127.0.0.1:4437/v1/stream/s"
JSON = "application/json"
BARE = posted()
PRODUCED = posted(producer_id="p", producer_epoch="2", producer_seq="4")
KEYED = posted(idempotency_key="k")
FACTS = StreamFacts("inc", "text/plain", 3)


# ---- every response ------------------------------------------------------------------------------


def test_a_page_that_may_read_an_answer_sees_the_headers_of_the_protocol() -> None:
    """Protocol 1.10."""
    exposed = EXPOSED_HEADER[1].split(", ")
    assert {"Stream-Next-Offset", "ETag", "Location", "Producer-Expected-Seq"} <= set(exposed)


@pytest.mark.parametrize(
    "content_type",
    [
        *("text/html", "image/svg+xml", "application/xml", "text/javascript", "a/b"),
        *TYPES_WITH_COMMAS,
        'text/plain;x="a,b"',
        *("text/plain;", "text/plain;x", "text/plain ;x=1", "text/plain;\tx=1", 'text/plain;x="1"'),
        *("text/plain+x", "text/plaintext", "text", "text/", "x text/plain"),
    ],
)
def test_a_browser_runs_nothing_of_a_stream_that_could_be_a_document(content_type: str) -> None:
    facts = StreamFacts("inc", content_type, 3)
    etag = headers_of(read(facts=facts))["ETag"]
    unchanged = read(ReadRequest(if_none_match=etag), facts)
    assert unchanged.status == 304
    frames = read(ReadRequest(is_frames=True), facts)
    for response in (read(facts=facts), unchanged, frames, head_response(facts)):
        policy = headers_of(response)["Content-Security-Policy"]
        assert policy == "default-src 'none'; sandbox; frame-ancestors 'none'"


@pytest.mark.parametrize(
    "content_type",
    [
        *("application/json", "text/plain", "application/octet-stream"),
        *("text/plain; charset=utf-8", "TEXT/Plain;Charset=UTF-8;v=1.0", "application/json;a=b"),
    ],
)
def test_a_stream_of_which_no_browser_runs_anything_needs_no_policy(content_type: str) -> None:
    facts = StreamFacts("inc", content_type, 3)
    for response in (read(facts=facts), head_response(facts)):
        assert "Content-Security-Policy" not in headers_of(response)


def test_a_preflight_allows_what_clients_send() -> None:
    """Protocol 1.10: If-None-Match in particular."""
    response = options_response()
    headers = headers_of(response)
    assert (response.status, response.body) == (204, b"")
    assert headers["Access-Control-Allow-Methods"] == "GET, POST, PUT, PATCH, DELETE, HEAD, OPTIONS"
    allowed = headers["Access-Control-Allow-Headers"].split(", ")
    wanted = {"If-None-Match", "Content-Type", "Authorization", "Producer-Id", "X-Producer-Seq"}
    assert wanted <= set(allowed)


def test_a_problem_is_a_document_with_code_and_facts() -> None:
    """Design 7.2."""
    problem = Problem(409, "c", "m", {"expected_seq": 3}, [("X", "y")], "unknown")
    response = problem_response(problem)
    assert response.status == 409
    assert headers_of(response) == {
        "Content-Type": "application/problem+json",
        "Cache-Control": "no-store",
        "X": "y",
    }
    assert json.loads(response.body) == {
        "code": "c", "message": "m", "applied": "unknown", "expected_seq": 3,
    }  # fmt: skip


def test_our_own_documents_are_json() -> None:
    response = json_response(201, {"producer_id": "1"})
    assert (response.status, response.body) == (201, b'{"producer_id":"1"}')
    assert headers_of(response)["Content-Type"] == JSON


# ---- PUT, DELETE ---------------------------------------------------------------------------------


def test_a_creation_is_201_with_its_url_and_200_without() -> None:
    """Protocol 1.3."""
    response = put_response(out.Created("i", "text/plain", 2, False, True), location=URL)
    assert (response.status, response.body) == (201, b"")
    assert headers_of(response) == {
        "Content-Type": "text/plain",
        "Stream-Next-Offset": print_offset(2),
        "Stream-Incarnation": "i",
        "Location": URL,
    }
    again = put_response(out.Created("i", JSON, 2, True, False), location=URL)
    assert again.status == 200
    assert headers_of(again) == {
        "Content-Type": JSON,
        "Stream-Next-Offset": print_offset(2),
        "Stream-Incarnation": "i",
        "Stream-Closed": "true",
    }
    assert put_response(out.ConfigConflict("ttl"), location=URL).status == 409


@pytest.mark.parametrize(
    ("field", "words"),
    [
        ("ttl", b"already exists with a different ttl"),
        ("dedup", b"change the setting with PATCH"),
        ("deleted", b"is deleted, but it has forks"),
    ],
)
def test_a_conflict_of_a_creation_says_what_to_do(field: str, words: bytes) -> None:
    assert words in put_response(out.ConfigConflict(field), location=URL).body


@pytest.mark.parametrize(
    ("dedup_from", "source", "shown"),
    [
        (None, DedupSource(is_own=True), {"Stream-Dedup": "off", "Stream-Dedup-Source": "own"}),
        (
            7,
            DedupSource(prefix="a", pending=False),
            {
                "Stream-Dedup-From": print_offset(7),
                "Stream-Dedup-Source": "policy",
                "Stream-Dedup-Policy": '"a"',
                "Stream-Dedup-Pending": "off",
            },
        ),
    ],
)
def test_a_creation_shows_whether_duplicates_are_recognised(
    dedup_from: int | None, source: DedupSource, shown: dict[str, str]
) -> None:
    created = out.Created("i", JSON, 9, False, False, dedup_from, source)
    found = headers_of(put_response(created, location=URL))
    assert {name: found[name] for name in found if "Dedup" in name} == shown


def test_a_deletion_is_204() -> None:
    assert outcome_response(out.Deleted(False)) == Response(204, [])
    assert outcome_response(out.Trimmed(3)) == Response(204, [])
    assert outcome_response(out.NotFound()).status == 404
    assert outcome_response(out.Gone()).status == 410


# ---- POST ----------------------------------------------------------------------------------------


# rows: D39
def test_an_append_is_204_without_a_producer_and_200_with_one() -> None:
    """Protocol 1.4, 1.4.1."""
    plain = post_response(out.Appended(1, 2, False), BARE)
    assert plain == Response(204, [("Stream-Next-Offset", print_offset(2))])
    produced = post_response(out.Appended(1, 2, True, 2, 4), PRODUCED)
    assert produced.status == 200
    assert headers_of(produced) == {
        "Stream-Next-Offset": print_offset(2),
        "Stream-Closed": "true",
        "Producer-Epoch": "2",
        "Producer-Seq": "4",
    }


def test_a_lone_close_is_204_even_with_a_producer() -> None:
    """Protocol 1.4.2."""
    closed = post_response(out.Appended(2, 2, True, 2, 4), PRODUCED)
    assert closed.status == 204
    assert headers_of(closed)["Producer-Seq"] == "4"
    assert post_response(out.Appended(2, 2, True), Append("s", 0, close=True)).status == 204


def test_a_duplicate_is_204_with_its_first_offset_and_the_highest_sequence() -> None:
    """Protocol 1.4.1."""
    response = post_response(out.Duplicate(0, 1, False, 2, 9), PRODUCED)
    assert response.status == 204
    assert headers_of(response) == {
        "Stream-Next-Offset": print_offset(1),
        "Producer-Epoch": "2",
        "Producer-Seq": "9",
    }


# rows: P23, X10
def test_a_duplicate_tells_a_lost_receipt_and_another_payload() -> None:
    """Design 6."""
    lost = post_response(out.Duplicate(None, None, True, 2, 9), PRODUCED)
    assert headers_of(lost) == {
        "Producer-Receipt": "expired",
        "Stream-Closed": "true",
        "Producer-Epoch": "2",
        "Producer-Seq": "9",
    }
    other = post_response(out.Duplicate(0, 1, False, 2, 9, True), PRODUCED)
    assert headers_of(other)["Producer-Payload-Mismatch"] == "true"


@pytest.mark.parametrize(
    ("outcome", "replayed"),
    [
        (out.Appended(0, 1, False), {}),
        (out.Duplicate(0, 1, False), {"Idempotent-Replayed": "true"}),
    ],
)
def test_a_key_is_told_its_window_and_whether_it_came_before(
    outcome: out.Outcome, replayed: dict[str, str]
) -> None:
    response = post_response(outcome, KEYED)
    assert response.status == 204
    assert headers_of(response) == {
        "Stream-Next-Offset": print_offset(1),
        "Idempotency-Window": "86400; keys=10000",
        **replayed,
    }


# rows: D05, D06, D07, D08, D09
def test_the_x_dialect_answers_as_it_was_asked() -> None:
    asked = posted(x_producer_id="p", x_producer_seq="0")
    new = post_response(out.Appended(42, 44, False, 1, 0), asked, is_x=True)
    assert new.status == 201
    assert headers_of(new) == {
        "Stream-Next-Offset": print_offset(44),
        "X-Stream-Offset": "00000042",
        "X-Producer-Epoch": "1",
    }
    again = post_response(out.Duplicate(42, 44, False, 1, 3), asked, is_x=True)
    assert again.status == 204
    assert headers_of(again) == headers_of(new)
    lost = post_response(out.Duplicate(None, None, False, 1, 3), asked, is_x=True)
    assert headers_of(lost) == {"Producer-Receipt": "expired", "X-Producer-Epoch": "1"}
    closed = post_response(out.Appended(44, 44, True, 1, 1), asked, is_x=True)
    assert (closed.status, "X-Stream-Offset" in headers_of(closed)) == (204, False)
    stale = post_response(out.StaleEpoch(3), asked, is_x=True)
    assert (stale.status, headers_of(stale)["X-Error"]) == (403, "stale-epoch")


# ---- HEAD ----------------------------------------------------------------------------------------


def test_head_tells_the_stream() -> None:
    """Protocol 1.5."""
    assert headers_of(head_response(FACTS)) == {
        "Content-Type": "text/plain",
        "Stream-Next-Offset": print_offset(3),
        "Stream-Stable-Offset": print_offset(3),
        "Stream-Incarnation": "inc",
        "Stream-Generation": "1",
        "Cache-Control": "no-store",
    }
    headers = headers_of(head_response(StreamFacts("i", JSON, 0, True, 3_600_000, 0)))
    assert headers["Stream-Closed"] == "true"
    assert headers["Stream-TTL"] == "3600"
    assert headers["Stream-Expires-At"] == "1970-01-01T00:00:00.000Z"


# ---- GET -----------------------------------------------------------------------------------------

PIECES = [piece(0, b"ab"), piece(1, b"c")]


def read(
    request: ReadRequest | None = None,
    facts: StreamFacts = FACTS,
    *,
    slices: list[Slice] | None = None,
    next_offset: int = 2,
    cursor: int | None = None,
) -> Response:
    return read_response(
        facts,
        request or ReadRequest(),
        PIECES if slices is None else slices,
        start=0,
        next_offset=next_offset,
        cursor=cursor,
    )


def test_a_read_short_of_the_tail_that_names_the_incarnation_may_be_cached() -> None:
    """Protocol 1.6, 1.10."""
    response = read(ReadRequest(incarnation="inc"))
    assert (response.status, response.body) == (200, b"abc")
    headers = headers_of(response)
    assert headers["Cache-Control"].startswith("public, max-age=60")
    assert headers["Content-Type"] == "text/plain"
    assert headers["Stream-Next-Offset"] == print_offset(2)
    assert headers["Stream-Incarnation"] == "inc"
    assert headers["Vary"] == "Accept, Accept-Encoding"
    assert not {"Stream-Up-To-Date", "Stream-Closed", "Stream-Cursor"} & set(headers)


def test_a_read_of_a_caller_is_cached_only_for_this_caller() -> None:
    response = read(ReadRequest(incarnation="inc"))
    private, public = headers_of(as_private(response)), headers_of(response)
    assert private.pop("Cache-Control") == public.pop("Cache-Control").replace("public", "private")
    assert private.pop("Vary") == f"{public.pop('Vary')}, Authorization"
    assert private == public
    assert as_private(response).body == response.body
    at_tail = as_private(read(ReadRequest(incarnation="inc"), next_offset=3))
    assert headers_of(at_tail)["Cache-Control"] == "no-cache"


@pytest.mark.parametrize("live", [CATCH_UP, LONG_POLL])
def test_a_read_that_names_no_incarnation_is_revalidated(live: str) -> None:
    """The ETag has the incarnation, so a cache notices that the stream was created again."""
    headers = headers_of(read(ReadRequest(0, live=live)))
    assert headers["Cache-Control"] == "no-cache"
    assert headers["ETag"].startswith('"inc:')


def test_a_read_up_to_the_tail_says_so_and_is_not_kept() -> None:
    headers = headers_of(read(ReadRequest(incarnation="inc"), next_offset=3))
    assert headers["Stream-Up-To-Date"] == "true"
    assert headers["Cache-Control"] == "no-cache"


def test_closed_is_told_only_at_the_end() -> None:
    """Protocol 1.6."""
    closed = StreamFacts("inc", "text/plain", 3, True)
    assert "Stream-Closed" not in headers_of(read(facts=closed))
    assert headers_of(read(facts=closed, next_offset=3))["Stream-Closed"] == "true"


def test_json_is_read_as_an_array() -> None:
    facts = StreamFacts("inc", "application/json; a=b", 0)
    response = read(facts=facts, slices=[], next_offset=0)
    assert response.body == b"[]"
    assert headers_of(response)["Content-Type"] == "application/json; a=b"


def test_now_is_never_stored_and_has_no_etag() -> None:
    """Protocol 1.6."""
    response = read(ReadRequest(is_now=True, if_none_match="*"), slices=[], next_offset=3)
    assert (response.status, response.body) == (200, b"")
    headers = headers_of(response)
    assert headers["Cache-Control"] == "no-store"
    assert "ETag" not in headers


def test_a_long_poll_has_a_cursor_and_may_be_cached() -> None:
    """Protocol 1.7."""
    want = ReadRequest(0, live=LONG_POLL, incarnation="inc")
    headers = headers_of(read(want, next_offset=3, cursor=99))
    assert headers["Stream-Cursor"] == "99"
    assert headers["Cache-Control"].startswith("public")


def test_what_the_reader_has_is_not_sent_again() -> None:
    """Protocol 1.10."""
    etag = headers_of(read())["ETag"]
    response = read(ReadRequest(if_none_match=f'"x", {etag}'))
    assert (response.status, response.body) == (304, b"")
    assert headers_of(response)["ETag"] == etag
    assert read(ReadRequest(if_none_match='"x"')).status == 200


def test_every_kind_of_answer_has_its_own_etag() -> None:
    large = [piece(0, b"x" * GZIP_BYTES_MIN)]
    closed = StreamFacts("inc", "text/plain", 2, True)
    answers = [
        read(),
        read(next_offset=3),
        read(facts=closed),
        read(facts=StreamFacts("other", "text/plain", 3)),
        read(facts=StreamFacts("inc", "text/plain", 3, generation=2)),
        read(ReadRequest(isolation=READ_COMMITTED)),
        read(ReadRequest(is_frames=True)),
        read(ReadRequest(accepts_gzip=True), slices=list(large)),
    ]
    assert len({headers_of(answer)["ETag"] for answer in answers}) == len(answers)


def test_large_answers_are_compressed_for_who_wants_it() -> None:
    """Protocol 1.6."""
    want = ReadRequest(accepts_gzip=True)
    large = [piece(0, b"x" * GZIP_BYTES_MIN)]
    response = read(want, slices=list(large))
    assert response.is_to_gzip
    assert headers_of(response)["Content-Encoding"] == "gzip"
    packed = compress(response)
    assert not packed.is_to_gzip
    assert gzip.decompress(packed.body) == b"x" * GZIP_BYTES_MIN
    assert not read(slices=list(large)).is_to_gzip
    assert not read(want, slices=[piece(0, b"x" * (GZIP_BYTES_MIN - 1))]).is_to_gzip


def test_frames_carry_offsets_and_state() -> None:
    closed = StreamFacts("inc", "text/plain", 2, True)
    response = read(ReadRequest(is_frames=True), closed)
    assert headers_of(response)["Content-Type"] == FRAMES
    frames = decode_frames(response.body)
    assert frames.slices == PIECES
    assert (frames.content_type, frames.next_offset, frames.is_closed) == ("text/plain", 2, True)


def test_an_empty_poll_is_204() -> None:
    """Protocol 1.7."""
    response = empty_poll_response(FACTS, next_offset=3, cursor=9)
    assert response.status == 204
    assert headers_of(response) == {
        "Stream-Next-Offset": print_offset(3),
        "Stream-Stable-Offset": print_offset(3),
        "Stream-Incarnation": "inc",
        "Stream-Generation": "1",
        "Stream-Up-To-Date": "true",
        "Stream-Cursor": "9",
        "Cache-Control": "no-store",
    }
    closed = StreamFacts("inc", "text/plain", 3, True)
    assert headers_of(empty_poll_response(closed, next_offset=3))["Stream-Closed"] == "true"


@pytest.mark.parametrize(
    ("content_type", "is_base64"),
    [("text/plain", False), ("application/json", False), ("application/octet-stream", True)],
)
def test_an_event_stream_says_how_its_data_is_encoded(content_type: str, is_base64: bool) -> None:
    """Protocol 1.8."""
    response = sse_response(StreamFacts("inc", content_type, 0))
    headers = headers_of(response)
    assert response.is_streamed
    assert headers["Content-Type"] == "text/event-stream"
    assert headers["Cache-Control"] == "no-cache"
    assert headers.get("Stream-SSE-Data-Encoding") == ("base64" if is_base64 else None)


# ---- deduplication switched off and on -----------------------------------------------------------


# rows: P19, P26
def test_a_switch_tells_what_holds_now_and_from_where() -> None:
    off, on = patch_response(out.Switched(None, 3)), patch_response(out.Switched(3, 3))
    assert (off.status, on.status) == (204, 204)
    end = {"Stream-Next-Offset": print_offset(3), "Stream-Dedup-Source": "own"}
    assert headers_of(off) == {"Stream-Dedup": "off", **end}
    assert headers_of(on) == {"Stream-Dedup": "on", **end, "Stream-Dedup-From": print_offset(3)}
    assert headers_of(patch_response(out.Switched(0, 3))) == {"Stream-Dedup": "on", **end}
    assert patch_response(out.NotFound()).status == 404


# rows: P26
def test_head_tells_only_what_is_unusual() -> None:
    usual = headers_of(head_response(FACTS))
    assert not any(name.startswith("Stream-Dedup") for name in usual)
    off = headers_of(head_response(StreamFacts("inc", "text/plain", 3, dedup_from=None)))
    late = headers_of(head_response(StreamFacts("inc", "text/plain", 3, dedup_from=2)))
    source = {"Stream-Dedup-Source": "built-in"}
    assert off == {**usual, **source, "Stream-Dedup": "off"}
    assert late == {**usual, **source, "Stream-Dedup-From": print_offset(2)}


# rows: P19
def test_an_append_nobody_compared_says_so_and_echoes_what_it_was_told() -> None:
    told = out.Appended(2, 3, False, 2, 4, is_unguarded=True)
    response = post_response(told, PRODUCED)
    assert response.status == 200
    assert headers_of(response) == {
        "Stream-Next-Offset": print_offset(3),
        "Producer-Epoch": "2",
        "Producer-Seq": "4",
        "Producer-Dedup": "off",
    }
    bare = out.Appended(2, 3, False, None, 4, is_unguarded=True)
    ours, theirs = post_response(bare, PRODUCED), post_response(bare, PRODUCED, is_x=True)
    assert "Producer-Epoch" not in headers_of(ours)
    assert "X-Producer-Epoch" not in headers_of(theirs)
    assert headers_of(theirs)["Producer-Dedup"] == "off"
    keyed = post_response(out.Appended(2, 3, False, is_unguarded=True), KEYED)
    assert headers_of(keyed)["Idempotency-Window"] == "0; keys=0"
    assert "Producer-Dedup" not in headers_of(keyed)


# rows: P06
def test_a_name_the_server_gave_is_told() -> None:
    answer = post_response(out.Appended(0, 1, False, 1, 4), PRODUCED, is_named=False)
    assert headers_of(answer)["Producer-Id"] == "p"
    assert "Producer-Id" not in headers_of(post_response(out.Appended(0, 1, False), BARE))


# ---- the common append ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("outcome", "command"),
    [
        (out.Appended(0, 1, False), BARE),
        (out.Appended(5, 2**53 - 1, False), BARE),
        (out.Appended(1, 2, False, 0, 0), PRODUCED),
        (out.Appended(1, 2, False, 2**53 - 1, 2**53 - 1), PRODUCED),
    ],
)
def test_the_common_append_is_answered_with_the_same_lines(
    outcome: out.Appended, command: Append
) -> None:
    long_form = post_response(outcome, command)
    lines = "".join(f"{name}: {value}\r\n" for name, value in long_form.headers)
    assert append_response_lines(outcome) == (long_form.status, lines.encode())


# ---- transactions --------------------------------------------------------------------------------

BLOCKED = StreamFacts("inc", "text/plain", 3, stable=2, blocker=Blocker("t 1", 5))


# rows: R29
def test_a_reader_of_decided_messages_is_told_whom_it_waits_for() -> None:
    """Semantics 5.6."""
    want = ReadRequest(isolation=READ_COMMITTED)
    headers = headers_of(read(want, BLOCKED))
    assert headers["Stream-Stable-Offset"] == print_offset(2)
    assert headers["Stream-Blocked-By"] == "t 1"
    assert headers["Stream-Blocked-Since"] == "1970-01-01T00:00:00.005Z"
    assert headers["Cache-Control"] == "no-cache"
    assert "Stream-Up-To-Date" not in headers
    poll = empty_poll_response(BLOCKED, next_offset=2, is_committed=True)
    assert headers_of(poll)["Stream-Blocked-By"] == "t 1"


def test_whoever_reads_everything_or_is_on_its_way_is_not_blocked() -> None:
    anyhow = headers_of(read(ReadRequest(), BLOCKED))
    later = StreamFacts("inc", "text/plain", 9, stable=5, blocker=Blocker("t", 5))
    want = ReadRequest(isolation=READ_COMMITTED, incarnation="inc")
    on_its_way = headers_of(read(want, later))
    unnamed = StreamFacts("inc", "text/plain", 3, stable=2)
    unknown = headers_of(read(ReadRequest(isolation=READ_COMMITTED), unnamed))
    for headers in (anyhow, on_its_way, unknown):
        assert "Stream-Blocked-By" not in headers
    assert on_its_way["Cache-Control"].startswith("public")


def test_a_chunk_has_no_offset() -> None:
    """Design 7.3: the status is 200, and 204 for a repeat."""
    chunk = posted(transaction_id="t", transaction_epoch="1", transaction_seq="0")
    response = post_response(Staged(1), chunk)
    assert (response.status, response.headers) == (200, [("Transaction-Next-Seq", "1")])
    again = post_response(out.Duplicate(None, None, False), chunk)
    assert (again.status, again.headers) == (204, [])
    other = post_response(out.Duplicate(None, None, False, is_mismatch=True), chunk)
    assert (other.status, other.headers) == (204, [("Producer-Payload-Mismatch", "true")])
    inline = posted(
        transaction_id="t",
        transaction_epoch="1",
        producer_id="p",
        producer_epoch="0",
        producer_seq="0",
    )
    old = post_response(out.Duplicate(None, None, False, 0, 0), inline)
    assert headers_of(old)["Producer-Receipt"] == "expired"
