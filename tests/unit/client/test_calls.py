from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from semel.client import errors, server_calls
from semel.client.extras import extras_of
from semel.client.flows import Lost, RetrySafety
from semel.client.requests import (
    AppendHeaders,
    CreateHeaders,
    ProducerHeaders,
    TransactionHeaders,
)
from semel.client.response_parser import Response
from semel.client.stream_calls import CreateResult, DedupKnowledge, StreamCalls, info_of
from semel.client.values import (
    ProducerState,
    Receipt,
    Registration,
    StreamEntry,
    StreamInfo,
)
from semel.wire.bodies import decode_batch, encode_batch
from tests.unit.client.hand import SITE, Played, answer, calls, play, problem

LOST = Lost("reset")
STORED = answer(204, stream_next_offset="1")
HEAD = answer(200, content_type="text/plain", stream_next_offset="0", stream_incarnation="i")
FOREIGN = answer(200, content_type="text/plain", stream_next_offset="0")


# ---- creating ------------------------------------------------------------------------------------


def test_creation_sends_the_configuration() -> None:
    configuration = CreateHeaders(
        "application/json", timedelta(minutes=1), None, True, "a b", "5", 2
    )
    played = Played(calls().create(configuration, [1, 2]), [answer(201)])
    request = played.sends[0].request
    assert (request.method, request.target) == ("PUT", "/v1/stream/orders")
    assert request.body == b"[[1,2]]"
    assert dict(request.headers) == {
        "Content-Type": "application/json",
        "Stream-TTL": "60",
        "Stream-Closed": "true",
        "Stream-Forked-From": "/v1/stream/a%20b",
        "Stream-Fork-Offset": "5",
        "Stream-Fork-Sub-Offset": "2",
    }


def test_an_expiry_date_is_sent_in_utc() -> None:
    moment = datetime(2030, 1, 31, 12, tzinfo=UTC)
    headers = dict(CreateHeaders(expires_at=moment).headers)
    assert headers == {"Stream-Expires-At": "2030-01-31T12:00:00.000Z"}
    with pytest.raises(ValueError, match="time zone"):
        _ = CreateHeaders(expires_at=datetime(2030, 1, 31)).headers
    with pytest.raises(ValueError, match="whole number of seconds"):
        _ = CreateHeaders(ttl=timedelta(milliseconds=1500)).headers


def test_a_stream_that_is_there_is_an_error_unless_that_is_fine() -> None:
    again = answer(200, content_type="text/plain", stream_next_offset="0")
    assert isinstance(Played(calls().create(CreateHeaders()), [again]).error, errors.StreamExists)
    info = StreamInfo("text/plain", "0")
    assert play(calls().create(CreateHeaders(), exist_ok=True), again) == CreateResult(
        info, is_new=False
    )
    # The first attempt created the stream, and only its response was lost.
    assert play(calls().create(CreateHeaders()), LOST, again) == CreateResult(info, is_new=True)
    # A server that is not semel and responds 200 to everything has created nothing.
    strange = Played(calls().create(CreateHeaders(), exist_ok=True), [answer(200)])
    assert isinstance(strange.error, errors.ProtocolError)


@pytest.mark.parametrize("refusal", [problem(409, "config_conflict"), answer(409, b"differs")])
def test_another_configuration_is_a_conflict_on_every_server(refusal: Any) -> None:
    played = Played(calls().create(CreateHeaders(), exist_ok=True), [refusal])
    assert isinstance(played.error, errors.ConfigConflict)


# ---- head, delete and trim -----------------------------------------------------------------------


def test_a_stream_is_described() -> None:
    described = answer(
        200,
        content_type="text/plain",
        stream_next_offset="7",
        stream_closed="true",
        stream_ttl="60",
        stream_expires_at="2030-01-31T12:00:00Z",
        stream_incarnation="i",
        stream_stable_offset="5",
    )
    moment = datetime(2030, 1, 31, 12, tzinfo=UTC)
    assert play(calls().head(), described) == StreamInfo(
        "text/plain", "7", True, 60, moment, "i", stable_offset="5", dedup_source="built-in"
    )
    odd = answer(200, stream_next_offset="7", stream_expires_at="tomorrow")
    assert play(calls().head(), odd).expires_at is None
    with pytest.raises(errors.ProtocolError):
        play(calls().head(), answer(200))


def test_whether_a_stream_is_there() -> None:
    assert play(calls().exists(), HEAD)
    assert not play(calls().exists(), answer(404))
    assert not play(calls().exists(), answer(410))
    with pytest.raises(errors.Unauthenticated):
        play(calls().exists(), answer(401))


def test_a_deletion_whose_answer_was_lost_is_done_when_nothing_is_there() -> None:
    play(calls().delete(), LOST, answer(404))
    play(calls().delete(), LOST, answer(410))
    with pytest.raises(errors.StreamNotFound):
        play(calls().delete(), problem(404, "stream_not_found"))


def test_trimming_is_never_sent_to_a_server_that_would_delete() -> None:
    foreign = StreamCalls(SITE, "orders")
    played = Played(foreign.trim("5"), [FOREIGN])
    assert isinstance(played.error, errors.NotSupported)
    assert [send.request.method for send in played.sends] == ["HEAD"]
    sent = Played(StreamCalls(SITE, "orders").trim("5"), [HEAD, answer(204)]).sends[1].request
    assert (sent.method, sent.target) == ("DELETE", "/v1/stream/orders?before=5")


# ---- appending -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "content_type", "body"),
    [
        ([{"a": 1}], "application/json", b'[{"a":1}]'),
        ([[1, 2]], "application/json", b"[[1,2]]"),
        ([1, b"2", "3"], "application/json", b'[1,2,"3"]'),
        (["grün"], "text/plain", "grün".encode()),
    ],
)
def test_an_append_sends_its_messages(values: list[Any], content_type: str, body: bytes) -> None:
    played = Played(calls(content_type=content_type).append(values, AppendHeaders()), [STORED])
    send = played.sends[0]
    assert (send.request.method, send.request.body) == ("POST", body)
    assert send.request.headers == (("Content-Type", content_type),)
    assert send.kind is RetrySafety.ONCE
    assert played.result == Receipt("1")


def test_many_messages_of_bytes_are_one_batch() -> None:
    played = Played(calls(content_type="text/plain").append(["a", "bc"], AppendHeaders()), [STORED])
    request = played.sends[0].request
    assert request.headers == (("Content-Type", "application/vnd.semel.batch"),)
    carried = decode_batch(request.body or b"")
    assert carried.content_type == "text/plain"
    assert carried.batch is not None
    assert (carried.batch.payload, carried.batch.count) == (b"abc", 2)


def test_extras_travel_in_a_batch() -> None:
    extras = extras_of(["k"], [{"h": "v"}], None)
    played = Played(calls().append([[1, 2]], AppendHeaders(), extras), [STORED])
    request = played.sends[0].request
    assert request.headers == (("Content-Type", "application/vnd.semel.batch"),)
    expected = encode_batch("application/json", [b"[1,2]"], keys=[b"k"], headers=[[("h", b"v")]])
    assert request.body == expected
    foreign = Played(StreamCalls(SITE, "orders").append([1], AppendHeaders(), extras), [FOREIGN])
    assert isinstance(foreign.error, errors.NotSupported)


def test_conditions_are_headers() -> None:
    headers = AppendHeaders("s", "5", "k", is_closing=True).headers
    assert dict(headers) == {
        "Stream-Seq": "s",
        "If-Match": '"5"',
        "Idempotency-Key": "k",
        "Stream-Closed": "true",
    }


def test_nothing_cannot_be_appended() -> None:
    with pytest.raises(ValueError, match="nothing"):
        play(calls().append([], AppendHeaders()))


def test_the_media_type_is_asked_for_once() -> None:
    fresh = StreamCalls(SITE, "orders")
    first = Played(fresh.append(["a"], AppendHeaders()), [HEAD, STORED])
    assert [send.request.method for send in first.sends] == ["HEAD", "POST"]
    play(fresh.append(["b"], AppendHeaders()), STORED)


@pytest.mark.parametrize("refusal", [problem(409, "content_type_conflict"), answer(409, b"type")])
def test_a_media_type_that_has_changed_is_learned_anew(refusal: Any) -> None:
    played = Played(calls().append(["a"], AppendHeaders()), [refusal, HEAD, STORED])
    assert [send.request.body for send in played.sends] == [b'["a"]', None, b"a"]
    assert played.result == Receipt("1")


def test_a_media_type_that_has_not_changed_is_the_callers_problem() -> None:
    refusal = problem(409, "content_type_conflict")
    same = calls(content_type="text/plain")
    played = Played(same.append(["a"], AppendHeaders()), [refusal, HEAD])
    assert isinstance(played.error, errors.ContentTypeConflict)
    played = Played(same.append(["a"], AppendHeaders(seq="1")), [answer(409, b"seq"), HEAD])
    assert isinstance(played.error, errors.StreamSeqConflict)
    played = Played(same.append(["a"], AppendHeaders()), [answer(409, b"?"), HEAD])
    assert type(played.error) is errors.Refused


def test_a_plain_append_whose_answer_is_lost_is_indeterminate() -> None:
    played = Played(calls().append([1], AppendHeaders()), [LOST])
    assert isinstance(played.error, errors.Indeterminate)


def test_an_append_with_a_key_is_sent_again_and_told_from_the_first() -> None:
    keyed = AppendHeaders(idempotency_key="k")
    replayed = answer(204, stream_next_offset="1", idempotent_replayed="true")
    assert play(calls().append([1], keyed), LOST, HEAD, replayed) == Receipt("1", duplicate=True)


KEYED = AppendHeaders(idempotency_key="k")
PRODUCED = AppendHeaders(tag=ProducerHeaders("p", 2, epoch=1))


def described(**more: str) -> Response:
    fields = {name.replace("_", "-"): value for name, value in more.items()}
    return Response(200, {**HEAD.headers, "stream-next-offset": "9", **fields}, b"")


@pytest.mark.parametrize("conditions", [KEYED, PRODUCED])
@pytest.mark.parametrize(
    "now",
    [
        {"stream_dedup": "off"},
        {"stream_dedup_source": "built-in", "stream_dedup_pending": "off"},
        {"stream_dedup_from": "5"},
    ],
    ids=str,
)
def test_an_append_whose_repeat_would_not_be_recognised_is_not_sent_again(
    conditions: AppendHeaders, now: dict[str, str]
) -> None:
    played = Played(calls().post("text/plain", b"x", conditions), [LOST, described(**now)])
    assert isinstance(played.error, errors.Indeterminate)
    assert [send.request.method for send in played.sends] == ["POST", "HEAD"]


@pytest.mark.parametrize("conditions", [KEYED, PRODUCED])
def test_an_append_is_sent_again_if_the_stream_is_as_it_was(conditions: AppendHeaders) -> None:
    stream = calls()
    play(stream.head(), described(stream_dedup_from="5"))
    flow = stream.post("text/plain", b"x", conditions)
    stored = answer(200 if conditions.tag else 204, stream_next_offset="9")
    assert play(flow, LOST, described(stream_dedup_from="5"), stored) == Receipt("9")


@pytest.mark.parametrize(
    "told", [{"producer_dedup": "off"}, {"idempotency_window": "0; keys=0"}], ids=str
)
def test_a_response_tells_that_repeats_are_not_recognised(told: dict[str, str]) -> None:
    stream = calls()
    conditions = PRODUCED if "producer_dedup" in told else KEYED
    fields = {name.replace("_", "-"): value for name, value in told.items()}
    stored = Response(200 if conditions.tag else 204, {**STORED.headers, **fields}, b"")
    play(stream.post("text/plain", b"x", conditions), stored)
    played = Played(stream.post("text/plain", b"x", conditions), [LOST])
    assert isinstance(played.error, errors.Indeterminate)
    assert len(played.sends) == 1


def test_a_repeat_is_not_sent_if_the_server_does_not_say_how_the_stream_is() -> None:
    played = Played(calls(retries=0).post("text/plain", b"x", KEYED), [LOST])
    assert isinstance(played.error, errors.Indeterminate)
    stale = Lost("closed", is_stale=True)
    played = Played(calls(retries=0).post("text/plain", b"x", KEYED), [stale, LOST])
    assert isinstance(played.error, errors.Indeterminate)
    assert [send.request.method for send in played.sends] == ["POST", "HEAD"]


def test_a_repeat_to_a_stream_that_is_gone_is_sent_and_refused() -> None:
    gone = problem(404, "stream_not_found")
    with pytest.raises(errors.StreamNotFound):
        play(calls().post("text/plain", b"x", KEYED), LOST, answer(404), gone)


def test_a_transaction_looks_at_what_holds_now_not_at_what_is_pending() -> None:
    inline = AppendHeaders(
        tag=ProducerHeaders("p", 0, epoch=1), transaction=TransactionHeaders("t", 1)
    )
    pending = described(stream_dedup_source="built-in", stream_dedup_pending="off")
    stored = answer(204, stream_next_offset="9")
    assert play(calls().post("text/plain", b"x", inline), LOST, pending, stored).duplicate


def test_the_own_setting_of_a_stream_is_set_and_given_up() -> None:
    for dedup, value in ((True, "on"), (False, "off"), (None, "inherit")):
        played = Played(calls().set_dedup(dedup), [answer(204), HEAD])
        assert dict(played.sends[0].request.headers) == {"Stream-Dedup": value}
    with pytest.raises(errors.NotSupported):
        play(StreamCalls(SITE, "s").set_dedup(True), FOREIGN)


def test_where_a_setting_comes_from_is_read() -> None:
    shown = described(stream_dedup_source="policy", stream_dedup_policy='"%C3%A9/x"')
    info = play(calls().head(), shown)
    assert (info.dedup_source, info.dedup_policy, info.will_dedup) == ("policy", "é/x", True)
    root = play(calls().head(), described(stream_dedup_policy='""', stream_dedup_pending="off"))
    assert (root.dedup_policy, root.dedup_pending, root.will_dedup) == ("", False, False)
    assert play(calls().head(), FOREIGN).dedup_source is None


@pytest.mark.parametrize("conditions", [AppendHeaders(if_match="5"), AppendHeaders(seq="5")])
@pytest.mark.parametrize(
    ("status", "code"),
    [(412, "precondition_failed"), (409, "stream_seq_conflict"), (409, "stream_closed")],
)
def test_a_guarded_append_cannot_tell_whether_it_stands_in_its_own_way(
    conditions: AppendHeaders, status: int, code: str
) -> None:
    refusal = problem(status, code, next_offset="6")
    played = Played(calls().append([1], conditions), [LOST, refusal])
    assert isinstance(played.error, errors.Indeterminate)
    definite = Played(calls().append([1], conditions), [refusal])
    assert isinstance(definite.error, errors.Refused)
    assert play(calls().append([1], conditions), LOST, STORED) == Receipt("1")


@pytest.mark.parametrize(
    ("values", "conditions"),
    [
        (["a"], AppendHeaders(idempotency_key="k")),
        (["a"], AppendHeaders(if_match="5")),
        (["a", "b"], AppendHeaders()),
    ],
)
def test_another_server_is_not_sent_what_it_would_misread(
    values: list[Any], conditions: AppendHeaders
) -> None:
    foreign = StreamCalls(SITE, "orders")
    replies = [FOREIGN, FOREIGN] if len(values) > 1 else [FOREIGN]
    played = Played(foreign.append(values, conditions), replies)
    assert isinstance(played.error, errors.NotSupported)
    assert {send.request.method for send in played.sends} == {"HEAD"}


def test_a_close_is_safe_to_repeat() -> None:
    done = answer(204, stream_closed="true", stream_next_offset="3")
    played = Played(calls().close(), [LOST, done])
    assert played.sends[0].request.body == b""
    assert played.result == Receipt("3", closed=True)
    assert isinstance(Played(calls().close(), [answer(200)]).error, errors.ProtocolError)


def test_a_tagged_append_is_safe_to_repeat_and_tells_a_duplicate() -> None:
    tag = ProducerHeaders("p", 2, epoch=1)
    stored = answer(200, stream_next_offset="3")
    flow = calls().post("text/plain", b"x", AppendHeaders(tag=tag))
    played = Played(flow, [LOST, HEAD, stored])
    assert played.result == Receipt("3")
    fields = dict(played.sends[-1].request.headers)
    assert (fields["Producer-Id"], fields["Producer-Epoch"], fields["Producer-Seq"]) == (
        "p",
        "1",
        "2",
    )
    again = answer(204, producer_receipt="expired", producer_payload_mismatch="true")
    flow = calls().post("text/plain", b"x", AppendHeaders(tag=ProducerHeaders("p", 2, session="s")))
    played = Played(flow, [again])
    assert played.result == Receipt(None, duplicate=True, mismatch=True)
    assert dict(played.sends[0].request.headers)["Producer-Session"] == "s"


# ---- the server ----------------------------------------------------------------------------------


def test_streams_are_listed_by_pages() -> None:
    entry = StreamEntry("b", "t/x", "i", "0", "1", closed=False, created_at_ms=1, written_at_ms=2)
    body = msgspec.json.encode({"streams": [entry], "next": "b"})
    played = Played(server_calls.list_streams(SITE, "a b", "a"), [answer(200, body)])
    assert played.sends[0].request.target == "/v1/streams?prefix=a%20b&after=a&limit=1000"
    assert played.result.streams == [entry]
    assert played.result.next == "b"
    stuck = Played(server_calls.list_streams(SITE, "", "z"), [answer(200, body)])
    assert isinstance(stuck.error, errors.ProtocolError)


def test_producers_are_asked_for_by_stream() -> None:
    body = b'{"producers":[{"stream":"orders","producer_id":"p","mode":"dense","epoch":1}]}'
    played = Played(server_calls.producers(calls(), "p"), [answer(200, body)])
    assert played.sends[0].request.target == "/v1/producers?stream=orders&id=p"
    assert played.result == [ProducerState("orders", "p", "dense", 1)]
    explained = Played(server_calls.explain_append(calls(), "p", 2, epoch=1), [answer(200, b"{}")])
    assert explained.sends[0].request.target.endswith("explain?stream=orders&id=p&seq=2&epoch=1")
    play(server_calls.forget_producer(calls(), "p"), answer(204))


def test_producers_are_listed_by_pages() -> None:
    states = [ProducerState("orders", name, "dense", 1) for name in ("p", "q")]
    pages = [
        answer(200, msgspec.json.encode({"producers": [state], "next": after}))
        for state, after in zip(states, ("p", None), strict=True)
    ]
    played = Played(server_calls.producers(calls(), None), pages)
    assert played.result == states
    assert played.sends[1].request.target == "/v1/producers?stream=orders&after=p&limit=1000"
    stuck = Played(server_calls.producers(calls(), None), [pages[0], pages[0]])
    assert isinstance(stuck.error, errors.ProtocolError)


def test_ids_are_registered_again_after_a_lost_answer() -> None:
    given = answer(201, b'{"producer_id":"p","producer_epoch":0}')
    played = Played(server_calls.register_producer(SITE, "p"), [LOST, given])
    assert played.result == Registration("p", 0)
    assert played.sends[1].request.body == b'{"producer_id":"p"}'
    anonymous = Played(server_calls.register_producer(SITE, None), [given])
    assert anonymous.sends[0].request.body == b"{}"


@pytest.mark.parametrize("refusal", [answer(404), problem(404, "no_such_address"), answer(405)])
def test_a_page_another_server_does_not_have_is_not_supported(refusal: Any) -> None:
    with pytest.raises(errors.NotSupported):
        play(server_calls.health(SITE), refusal)
    with pytest.raises(errors.StreamNotFound):
        play(server_calls.producers(calls(), None), problem(404, "stream_not_found"))
    with pytest.raises(errors.ProtocolError):
        play(server_calls.health(SITE), answer(200, b"[]"))


# ---- responses that are not from a stream server -------------------------------------------------


@pytest.mark.parametrize("status", [200, 204])
def test_an_append_is_not_stored_because_something_on_the_way_says_yes(status: int) -> None:
    for flow in (calls().append([1], AppendHeaders()), calls().close()):
        error = Played(flow, [answer(status, b"welcome")]).error
        assert isinstance(error, errors.ProtocolError)
        assert error.applied == "unknown"


@pytest.mark.parametrize("status", [201, 206, 302, 307])
def test_another_success_or_a_redirection_of_an_append_tells_nothing(status: int) -> None:
    played = Played(calls().append([1], AppendHeaders()), [answer(status, stream_next_offset="1")])
    assert isinstance(played.error, errors.ProtocolError)
    assert played.error.applied == "unknown"


# ---- whether a repeat is recognised --------------------------------------------------------------

OLD, NEW = "i1", "i2"
PENDING = {"stream-dedup": "off", "stream-dedup-pending": "on"}


@pytest.mark.parametrize(
    ("known", "now", "is_safe"),
    [
        (DedupKnowledge(), {}, True),
        (DedupKnowledge(OLD, "3", "5"), {}, True),
        (DedupKnowledge(), {"stream-dedup": "off"}, False),
        (DedupKnowledge(), {"stream-dedup-pending": "off"}, False),
        (DedupKnowledge(OLD, "3", "5"), {"stream-dedup-from": "3"}, True),
        (DedupKnowledge(OLD, "3", "5"), {"stream-dedup-from": "5"}, True),
        (DedupKnowledge(OLD, "3", "5"), {"stream-dedup-from": "6"}, False),
        (DedupKnowledge(OLD, None, "5"), {"stream-dedup-from": "4"}, True),
        (DedupKnowledge(OLD, "3", None), {"stream-dedup-from": "4"}, False),
        (DedupKnowledge(NEW, "3", "5"), {"stream-dedup-from": "3"}, False),
        (DedupKnowledge(NEW, None, "9"), PENDING, False),
        (DedupKnowledge(OLD, None, "9"), PENDING, True),
        (DedupKnowledge(OLD, None, "8"), PENDING, False),
        (DedupKnowledge(OLD, None, "9"), {**PENDING, "stream-stable-offset": "7"}, False),
        (DedupKnowledge(OLD, None, "9"), {**PENDING, "stream-stable-offset": "9"}, True),
    ],
)
def test_a_repeat_is_safe_only_where_the_first_attempt_can_have_been_recognised(
    known: DedupKnowledge, now: dict[str, str], is_safe: bool
) -> None:
    info = info_of({"stream-next-offset": "9", "stream-incarnation": OLD, **now})
    assert (known.doubt(info) is None) is is_safe
