"""The two sets of producer headers, which must be complete."""

import pytest

from semel.model.commands import DENSE, SPARSE, ProducerTag
from semel.model.limits import CURSOR_BYTES_MAX, PRODUCER_ID_BYTES_MAX, SESSION_BYTES_MAX
from semel.wire.append_headers import parse_producer, speaks_x
from semel.wire.problems import MalformedRequest
from tests.unit.wire.builders import named


def tag_of(*, strict: bool = False, **values: str) -> ProducerTag | None:
    return parse_producer(named(**values), is_strict=strict)


def code_of(**values: str) -> str:
    with pytest.raises(MalformedRequest) as caught:
        parse_producer(named(**values), is_strict=False)
    assert caught.value.problem.status == 400
    return caught.value.problem.code


# rows: D33
def test_without_producer_headers_there_is_no_producer() -> None:
    assert tag_of(content_type="text/plain", stream_seq="1") is None


def test_the_protocol_s_headers_make_a_dense_tag() -> None:
    """Protocol 1.4.1."""
    tag = tag_of(producer_id="p", producer_epoch="3", producer_seq="07")
    assert tag == ProducerTag("p", 7, 7, 3, None, DENSE, None, False)
    assert tag_of(producer_id="p", producer_epoch="0", producer_seq="0", producer_mode="dense")


def test_a_session_stands_in_for_an_epoch_or_beside_it() -> None:
    """Design 7.2."""
    session = tag_of(producer_id="p", producer_seq="0", producer_session="s")
    assert session == ProducerTag("p", 0, 0, None, "s")
    both = tag_of(producer_id="p", producer_seq="0", producer_session="s", producer_epoch="2")
    assert both == ProducerTag("p", 0, 0, 2, "s")


def test_a_sparse_producer_sends_a_number_or_a_range() -> None:
    lone = tag_of(producer_id="p", producer_mode="sparse", producer_seq="40")
    assert lone == ProducerTag("p", 40, 40, None, None, SPARSE)
    ranged = tag_of(
        producer_id="p", producer_mode="sparse", producer_seq="40-49", producer_epoch="1"
    )
    assert ranged == ProducerTag("p", 40, 49, 1, None, SPARSE)


def test_a_cursor_and_strictness_join_the_tag() -> None:
    tag = tag_of(
        strict=True, producer_id="p", producer_epoch="1", producer_seq="0", producer_cursor="a:9"
    )
    assert tag == ProducerTag("p", 0, 0, 1, None, DENSE, b"a:9", True)


# rows: D02, D03
def test_the_x_dialect_may_be_bare() -> None:
    assert tag_of(x_producer_id="p", x_producer_seq="0") == ProducerTag("p", 0, 0)
    full = tag_of(strict=True, x_producer_id="p", x_producer_seq="2", x_producer_epoch="4")
    assert full == ProducerTag("p", 2, 2, 4, is_strict=True)
    assert speaks_x(named(x_producer_seq="1"))
    assert not speaks_x(named(producer_seq="1"))


@pytest.mark.parametrize(
    "values",
    [
        {"producer_id": "p"},
        {"producer_epoch": "1"},
        {"producer_seq": "1"},
        {"producer_session": "s"},
        {"producer_mode": "sparse"},
        {"producer_cursor": "c"},
        {"producer_id": "p", "producer_seq": "1"},
        {"producer_id": "p", "producer_epoch": "1"},
        {"producer_epoch": "1", "producer_seq": "1"},
        {"producer_id": "p", "producer_seq": "1", "producer_mode": "dense"},
        {"producer_id": "p", "producer_seq": "1", "producer_cursor": "c"},
        {"producer_id": "", "producer_seq": "x"},
        {"x_producer_id": "p"},
        {"x_producer_seq": "1"},
        {"x_producer_epoch": "1", "x_producer_seq": "1"},
    ],
)
def test_producer_headers_in_part_are_refused(values: dict[str, str]) -> None:
    """Protocol 1.4 row 1: this is the first check."""
    assert code_of(**values) == "producer_headers_incomplete"


@pytest.mark.parametrize("other", ["producer_id", "producer_cursor", "producer_mode"])
def test_both_dialects_at_once_are_refused(other: str) -> None:
    """Design 6."""
    values = {"x_producer_id": "p", "x_producer_seq": "0", other: "p"}
    assert code_of(**values) == "producer_headers_conflict"


WHOLE = {"producer_id": "p", "producer_epoch": "1", "producer_seq": "1"}


@pytest.mark.parametrize(
    "bad",
    [
        {"producer_id": ""},
        {"producer_id": "p" * (PRODUCER_ID_BYTES_MAX + 1)},
        {"producer_id": "caf\u00e9"},
        {"producer_epoch": "1abc"},
        {"producer_epoch": ""},
        {"producer_seq": "-1"},
        {"producer_seq": "1-2"},
        {"producer_mode": "loose"},
        {"producer_mode": "SPARSE"},
        {"producer_mode": "sparse", "producer_seq": "2-1"},
        {"producer_session": ""},
        {"producer_session": "s" * (SESSION_BYTES_MAX + 1)},
        {"producer_cursor": ""},
        {"producer_cursor": "c" * (CURSOR_BYTES_MAX + 1)},
    ],
)
def test_a_bad_value_is_refused_by_name(bad: dict[str, str]) -> None:
    """Protocol 1.4 rows 2 and 3."""
    assert code_of(**{**WHOLE, **bad}) == "invalid_header"


@pytest.mark.parametrize(
    "bad", [{"x_producer_id": ""}, {"x_producer_seq": "1e3"}, {"x_producer_epoch": "+1"}]
)
def test_a_bad_value_is_refused_in_the_x_dialect_too(bad: dict[str, str]) -> None:
    assert code_of(**{"x_producer_id": "p", "x_producer_seq": "0", **bad}) == "invalid_header"


def test_every_value_may_be_as_long_as_its_limit() -> None:
    tag = tag_of(
        producer_id="p" * PRODUCER_ID_BYTES_MAX,
        producer_seq="0",
        producer_session="s" * SESSION_BYTES_MAX,
        producer_cursor="c" * CURSOR_BYTES_MAX,
    )
    assert tag is not None


# rows: P06
def test_a_sparse_producer_without_a_name_gets_one_if_there_is_any() -> None:
    """Semantics 5.3 row 1."""
    nameless = named(producer_mode="sparse", producer_seq="7")
    tag = parse_producer(nameless, is_strict=False, fresh_id=lambda: "fresh")
    assert tag == ProducerTag("fresh", 7, 7, mode=SPARSE)
    own = {**nameless, "producer-id": "p"}
    tag = parse_producer(own, is_strict=False, fresh_id=lambda: "fresh")
    assert tag is not None
    assert tag.id == "p"
    for whole in (nameless, named(producer_epoch="0", producer_seq="7")):
        with pytest.raises(MalformedRequest) as caught:
            parse_producer(whole, is_strict=False)
        assert caught.value.problem.code == "producer_headers_incomplete"


# rows: D37
@pytest.mark.parametrize(("value", "is_strict"), [("true", True), ("True", True), ("no", False)])
def test_a_request_may_be_stricter_than_the_server(value: str, is_strict: bool) -> None:
    for whole in (WHOLE, {"x_producer_id": "p", "x_producer_seq": "0"}):
        tag = parse_producer(named(**whole, producer_strict=value), is_strict=False)
        assert tag is not None
        assert tag.is_strict == is_strict


# ---- idle times ----------------------------------------------------------------------------------

FULL = {"producer_id": "p", "producer_epoch": "1", "producer_seq": "0"}


def test_an_idle_time_joins_the_tag() -> None:
    for seconds in (60, 604_800):
        given = named(**FULL, producer_expires=str(seconds))
        tag = parse_producer(given, is_strict=False)
        assert tag == ProducerTag("p", 0, 0, 1, expires_ms=1000 * seconds)


@pytest.mark.parametrize("value", ["", "59", "604801", "060", "+60", "6e1", "60.0", "9" * 30])
def test_an_idle_time_out_of_range_is_refused(value: str) -> None:
    assert code_of(**FULL, producer_expires=value) == "invalid_header"


def test_an_idle_time_without_a_producer_is_refused() -> None:
    assert code_of(producer_expires="60") == "producer_headers_incomplete"
    assert code_of(x_producer_id="p", x_producer_seq="0", producer_expires="60") == (
        "producer_headers_conflict"
    )


# ---- ids that are not ASCII ----------------------------------------------------------------------


def id_of(value: str, name: str = "producer-id*") -> str:
    rest = {name.replace("id*", "seq"): "0", "producer-epoch": "0"}
    if name.startswith("x-"):
        del rest["producer-epoch"]
    tag = parse_producer({name: value, **rest}, is_strict=False)
    assert tag is not None
    return tag.id


@pytest.mark.parametrize("name", ["producer-id*", "x-producer-id*"])
@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("UTF-8''%C3%BC", "ü"),
        ("utf-8''%e2%82%ac-1", "€-1"),
        ("UTF-8''till", "till"),
        ("UTF-8''%20!#$&+-.^_`|~", " !#$&+-.^_`|~"),
        ("UTF-8''%F0%9F%91%A9%E2%80%8D%F0%9F%92%BB", "👩\u200d💻"),
        ("UTF-8''" + "%C3%BC" * 128, "ü" * 128),
    ],
)
def test_an_id_can_be_any_text(name: str, value: str, expected: str) -> None:
    assert id_of(value, name) == expected


@pytest.mark.parametrize(
    "value",
    [
        "",
        "ü",
        "till",
        "UTF-8''",
        "UTF-8'de'%C3%BC",
        "ISO-8859-1''%FC",
        "UTF-8''%C3",
        "UTF-8''%FC",
        "UTF-8''%ED%A0%80",
        "UTF-8''%C0%AF",
        "UTF-8''%",
        "UTF-8''%2",
        "UTF-8''%GG",
        "UTF-8''a b",
        "UTF-8''a*b",
        "UTF-8''a'b",
        "UTF-8''a%00",
        "UTF-8''%0A",
        "UTF-8''%C2%85",
        "UTF-8''%E2%80%A8",
        "UTF-8''" + "%C3%BC" * 129,
        " UTF-8''a",
    ],
)
def test_an_id_that_is_not_encoded_as_rfc_8187_says_is_refused(value: str) -> None:
    with pytest.raises(MalformedRequest) as caught:
        id_of(value)
    assert caught.value.problem.code == "invalid_header"
    assert caught.value.problem.facts == {"header": "Producer-Id*"}


def test_both_forms_of_an_id_are_refused() -> None:
    both = {"producer-id": "p", "producer-id*": "UTF-8''p", "producer-epoch": "0"}
    with pytest.raises(MalformedRequest) as caught:
        parse_producer({**both, "producer-seq": "0"}, is_strict=False)
    assert caught.value.problem.code == "producer_headers_conflict"


def test_the_refusal_of_an_id_in_latin_1_names_the_other_header() -> None:
    with pytest.raises(MalformedRequest, match=r"send any other id as Producer-Id\*"):
        parse_producer(named(**{**FULL, "producer_id": "ü"}), is_strict=False)
