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
