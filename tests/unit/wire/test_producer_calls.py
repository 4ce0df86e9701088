"""The calls for producers: requests and responses."""

import json

import pytest

from semel.model.commands import (
    DENSE,
    SPARSE,
    ClaimProducer,
    ForgetProducer,
    ProducerTag,
    Register,
)
from semel.model.offsets import print_offset
from semel.model.outcomes import (
    Claimed,
    LimitReached,
    Registered,
    Retired,
    RetireResult,
    StaleSession,
    UnknownProducer,
)
from semel.model.producer_commands import RetiredProducer, RetireProducers
from semel.wire.producers import (
    ExplainQuery,
    ProducerQuery,
    assigned_response,
    claim_response,
    parse_claim,
    parse_explain_query,
    parse_forget,
    parse_producer_query,
    parse_register,
    parse_retire,
    register_response,
    retire_response,
)
from tests.unit.wire.builders import JSON, refused


def register(body: bytes) -> object:
    return parse_register(JSON if body else {}, body, now_ms=5)


# rows: P06
@pytest.mark.parametrize("body", [b"", b"{}", b'{"producer_id": null}', b'{"more": 1}'])
def test_an_id_is_chosen_by_the_server_if_none_is_named(body: bytes) -> None:
    """Design 7.2."""
    assert register(body) == Register(5)


def test_a_named_id_is_registered_as_it_is() -> None:
    assert register(b'{"producer_id": "till 1"}') == Register(5, "till 1")


@pytest.mark.parametrize("body", [b"[]", b"{", b'{"producer_id": 7}', b'{"producer_id": "\xff"}'])
def test_a_body_that_is_no_such_document_is_refused(body: bytes) -> None:
    assert refused(register(body)) == (400, "bad_body")


@pytest.mark.parametrize("name", ["", "p" * 257, "\\u00e9" * 129, "a\\nb", "\\u2028"])
def test_an_id_that_is_too_long_or_has_control_characters_is_refused(name: str) -> None:
    body = f'{{"producer_id": "{name}"}}'.encode()
    assert refused(register(body)) == (400, "invalid_header")


def test_a_compressed_body_is_refused() -> None:
    answer = parse_register({"content-encoding": "gzip"}, b"x", now_ms=5)
    assert refused(answer) == (415, "unsupported_encoding")


@pytest.mark.parametrize(
    "headers",
    [
        {},
        *[
            {"content-type": each}
            for each in ("", "text/plain", "application/x-www-form-urlencoded")
        ],
    ],
)
def test_a_body_of_another_type_is_refused_because_any_web_page_can_send_it(
    headers: dict[str, str],
) -> None:
    answer = parse_register(headers, b"{}", now_ms=5)
    assert refused(answer) == (415, "unsupported_media_type")
    assert parse_register(headers, b"", now_ms=5) == Register(5)
    claim = parse_claim(headers, b'{"stream": "s", "producer_id": "p", "session": "s"}', now_ms=5)
    assert refused(claim) == (415, "unsupported_media_type")


def test_the_type_may_have_parameters() -> None:
    headers = {"content-type": "Application/JSON; charset=utf-8"}
    assert parse_register(headers, b"{}", now_ms=5) == Register(5)


@pytest.mark.parametrize(("epoch", "status"), [(0, 201), (1, 200)])
def test_a_new_id_is_201_and_a_raised_epoch_200(epoch: int, status: int) -> None:
    response = register_response(Registered("p", epoch))
    assert response.status == status
    assert json.loads(response.body) == {"producer_id": "p", "producer_epoch": epoch}
    assert register_response(UnknownProducer()).status == 404


# rows: D18
def test_the_older_dialect_has_words_of_its_own() -> None:
    response = assigned_response(Registered("p-1", 1))
    assert response.status == 201
    assert json.loads(response.body) == {"producerId": "p-1", "epoch": 1}
    assert assigned_response(LimitReached("registry", 1)).status == 429


def claim(**fields: object) -> object:
    given = {"stream": "a/b", "producer_id": "p", "session": "x", **fields}
    kept = {name: value for name, value in given.items() if value is not None}
    return parse_claim(JSON, json.dumps(kept).encode(), now_ms=5)


def test_a_claim_names_stream_producer_and_session_and_perhaps_a_mode() -> None:
    assert claim() == ClaimProducer("a/b", 5, "p", "x", DENSE)
    assert claim(mode="sparse") == ClaimProducer("a/b", 5, "p", "x", SPARSE)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"stream": None}, "bad_body"),
        ({"producer_id": None}, "bad_body"),
        ({"session": None}, "bad_body"),
        ({"session": 7}, "bad_body"),
        ({"mode": "thin"}, "bad_body"),
        ({"producer_id": ""}, "invalid_header"),
        ({"session": ""}, "invalid_header"),
        ({"session": "x" * 129}, "invalid_header"),
    ],
)
def test_a_claim_that_lacks_or_bends_something_is_refused(
    fields: dict[str, object], code: str
) -> None:
    assert refused(claim(**fields)) == (400, code)


def test_a_claim_without_a_document_is_refused() -> None:
    for body in (b"", b"[]", b'{"session": "\xff"}'):
        assert refused(parse_claim(JSON, body, now_ms=5)) == (400, "bad_body")
    compressed = parse_claim({"content-encoding": "gzip"}, b"x", now_ms=5)
    assert refused(compressed) == (415, "unsupported_encoding")


def test_a_claim_is_answered_with_the_epoch_and_what_was_stored() -> None:
    response = claim_response(Claimed("p", 3, 7, 9, b"line 9\xff"), path="a/b")
    assert response.status == 200
    assert json.loads(response.body) == {
        "stream": "a/b",
        "producer_id": "p",
        "producer_epoch": 3,
        "last_seq": 7,
        "last_offset": print_offset(9),
        "cursor": "line 9\ufffd",
    }


def test_what_was_not_there_before_a_claim_is_null() -> None:
    found = json.loads(claim_response(Claimed("p", 1), path="s").body)
    assert [found[name] for name in ("last_seq", "last_offset", "cursor")] == [None] * 3
    assert claim_response(StaleSession(2), path="s").status == 403


def test_one_looks_at_a_stream_a_producer_or_an_id() -> None:
    assert parse_producer_query("stream=a%2Fb") == ProducerQuery("a/b", None, "", 100)
    assert parse_producer_query("stream=a&id=p") == ProducerQuery("a", "p", "", 100)
    assert parse_producer_query("id=p&after=x&limit=7") == ProducerQuery(None, "p", "x", 7)


@pytest.mark.parametrize(
    "query", ["", "after=x", "stream=a&limit=0", "stream=a&limit=1001", "stream=a&stream=b"]
)
def test_a_look_at_everything_or_nothing_is_refused(query: str) -> None:
    assert refused(parse_producer_query(query)) == (400, "invalid_query")


def test_a_reset_names_both_stream_and_id() -> None:
    assert parse_forget("stream=a&id=p", now_ms=5) == ForgetProducer("a", 5, "p")
    for query in ("stream=a", "id=p", ""):
        assert refused(parse_forget(query, now_ms=5)) == (400, "invalid_query")


def test_a_question_names_what_the_headers_would() -> None:
    assert parse_explain_query("stream=a&id=p&seq=3") == ExplainQuery("a", ProducerTag("p", 3, 3))
    assert parse_explain_query("stream=a&id=p&seq=0&epoch=7&session=x&mode=dense") == ExplainQuery(
        "a", ProducerTag("p", 0, 0, 7, "x", DENSE)
    )
    assert parse_explain_query("stream=a&id=p&seq=3-5&mode=sparse") == ExplainQuery(
        "a", ProducerTag("p", 3, 5, None, None, SPARSE)
    )


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("stream=a&id=p", "invalid_query"),
        ("stream=a&seq=1", "invalid_query"),
        ("id=p&seq=1", "invalid_query"),
        ("stream=a&id=p&seq=1&mode=thin", "invalid_query"),
        ("stream=a&id=p&seq=x", "invalid_header"),
        ("stream=a&id=p&seq=1-2", "invalid_header"),
        ("stream=a&id=p&seq=2-1&mode=sparse", "invalid_header"),
        ("stream=a&id=p&seq=1&epoch=x", "invalid_header"),
        ("stream=a&id=&seq=1", "invalid_header"),
        ("stream=a&id=p&seq=1&session=", "invalid_header"),
    ],
)
def test_a_question_that_no_append_could_be_is_refused(query: str, code: str) -> None:
    assert refused(parse_explain_query(query)) == (400, code)


# ---- idle times and retirement -------------------------------------------------------------------


def test_a_registration_and_a_claim_declare_an_idle_time() -> None:
    assert register(b'{"expires": 60}') == Register(5, expires_ms=60_000)
    body = b'{"stream": "s", "producer_id": "\xc3\xbc", "session": "x", "expires": 604800}'
    claimed = parse_claim(JSON, body, now_ms=5)
    assert claimed == ClaimProducer("s", 5, "ü", "x", DENSE, 604_800_000)


@pytest.mark.parametrize("value", ["59", "604801", "-60", "null", '"60"', "60.5"])
def test_an_idle_time_out_of_range_is_refused(value: str) -> None:
    assert refused(register(b'{"expires": %s}' % value.encode())) == (400, "bad_body")


def retirement(*entries: object) -> object:
    return parse_retire(JSON, json.dumps({"producers": entries}).encode(), now_ms=5)


def test_a_retirement_names_rows_and_registrations() -> None:
    row = {"producer_id": "ü", "stream": "s", "session": "x", "producer_epoch": 3}
    assert retirement(row, {"producer_id": "7", "producer_epoch": 0}) == RetireProducers(
        5, (RetiredProducer("ü", "s", 3, "x"), RetiredProducer("7", None, 0))
    )


@pytest.mark.parametrize(
    ("entries", "code"),
    [
        ([], "invalid_request"),
        ([{"producer_id": "p", "producer_epoch": 0}] * 1001, "invalid_request"),
        ([{"producer_id": "p", "stream": "s"}], "bad_body"),
        ([{"producer_id": "p", "session": "x"}], "bad_body"),
        ([{"producer_id": "p", "session": "x", "producer_epoch": 0}], "bad_body"),
        ([{"producer_id": "p", "stream": "s", "session": "\n"}], "invalid_header"),
        ([{"producer_id": "\n", "stream": "s", "session": "x"}], "invalid_header"),
        ([{"producer_id": "p", "stream": "s", "sesion": "x"}], "bad_body"),
    ],
)
def test_a_retirement_that_means_nothing_is_refused(entries: list[object], code: str) -> None:
    assert refused(retirement(*entries)) == (400, code)


def test_a_retirement_reports_what_became_of_each() -> None:
    results = (RetireResult("p", "s"), RetireResult("1", None, UnknownProducer()))
    response = retire_response(Retired(results))
    assert (response.status, json.loads(response.body)) == (
        200,
        {
            "producers": [
                {"producer_id": "p", "stream": "s", "retired": True},
                {
                    "producer_id": "1",
                    "stream": None,
                    "retired": False,
                    "code": "UNKNOWN_PRODUCER_ID",
                },
            ]
        },
    )
    assert retire_response(LimitReached("x", 1)).status == 429
