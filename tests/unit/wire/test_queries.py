"""The query parameters of GET and DELETE."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.model.commands import READ_COMMITTED, Delete, Trim
from semel.model.limits import NUMBER_MAX
from semel.model.offsets import print_offset
from semel.wire.headers import FRAMES
from semel.wire.paths import read_limit
from semel.wire.problems import MalformedRequest, Problem
from semel.wire.requests import (
    LONG_POLL,
    SSE,
    ReadRequest,
    parse_delete,
    parse_get,
)
from tests.unit.wire.builders import refused

OFFSET = print_offset(12)


@pytest.mark.parametrize(
    ("query", "request_"),
    [
        ("", ReadRequest()),
        ("offset=-1", ReadRequest()),
        ("offset=now", ReadRequest(is_now=True)),
        (f"offset={OFFSET}", ReadRequest(12)),
        ("offset=%30" + OFFSET[1:], ReadRequest(12)),
        (f"unknown=1&offset={OFFSET}&unknown=2", ReadRequest(12)),
        ("offset=" + "9" * 16 + "_" + "9" * 16, ReadRequest(NUMBER_MAX)),
        ("offset=-1&live=long-poll", ReadRequest(live=LONG_POLL)),
        ("live=sse&offset=now&cursor=77", ReadRequest(None, True, SSE, 77)),
        ("live=websocket", ReadRequest()),
        ("live=", ReadRequest()),
        ("live=%ff", ReadRequest()),
        ("cursor=garbage", ReadRequest()),
        ("isolation=read_committed", ReadRequest(isolation=READ_COMMITTED)),
        ("isolation=read_uncommitted", ReadRequest()),
        ("isolation=0", ReadRequest()),
        ("isolation=1", ReadRequest(isolation=READ_COMMITTED)),
        ("&&=&%zz=1", ReadRequest()),
    ],
)
def test_a_query_is_read(query: str, request_: ReadRequest) -> None:
    """Protocol 1.1, 1.2, 1.6: unknown parameters and live values are ignored."""
    assert parse_get(query, {}) == request_


@pytest.mark.parametrize(
    "text",
    [
        "", "%20", "NOW", "-2", "0", "0_0", "0000000000000000_000000000000012",
        OFFSET + "0", OFFSET.replace("_", "-"), "a,b", "a/b", "..", "%00", "%0A", "%0D%0A",
        "+" + OFFSET, "%", "%ff", "\u20ac", "x" * 10_000, OFFSET.replace("0", "%D9%A0"),
        "1%27+OR+1=1", "%3Cscript%3E",
    ],
)  # fmt: skip
def test_any_other_offset_is_refused(text: str) -> None:
    """Protocol 1.2: empty, wrongly padded, or with other characters."""
    assert refused(parse_get(f"offset={text}", {})) == (400, "invalid_offset")


def test_an_offset_without_value_is_empty() -> None:
    assert refused(parse_get("offset", {})) == (400, "invalid_offset")


@pytest.mark.parametrize(
    "query", [f"offset={OFFSET}&offset={OFFSET}", "live=sse&live=long-poll", "cursor=1&%63ursor=2"]
)
def test_a_parameter_given_twice_is_refused(query: str) -> None:
    assert refused(parse_get(query, {})) == (400, "invalid_query")


@pytest.mark.parametrize("live", [LONG_POLL, SSE])
def test_live_reading_needs_an_offset(live: str) -> None:
    """Protocol 1.6, 1.7."""
    assert refused(parse_get(f"live={live}", {})) == (400, "offset_required")


def test_an_unknown_isolation_is_refused() -> None:
    assert refused(parse_get("isolation=serializable", {})) == (400, "invalid_query")


def test_headers_choose_format_encoding_and_validation() -> None:
    headers = {"accept": FRAMES, "accept-encoding": "gzip", "if-none-match": '"x"'}
    assert parse_get("", headers) == ReadRequest(
        is_frames=True, accepts_gzip=True, if_none_match='"x"'
    )


def test_a_deletion_may_be_a_trim() -> None:
    """Design 7.2."""
    assert parse_delete("s", "", now_ms=5) == Delete("s", 5)
    assert parse_delete("s", "other=1", now_ms=5) == Delete("s", 5)
    assert parse_delete("s", f"before={OFFSET}", now_ms=5) == Trim("s", 5, 12)
    assert parse_delete("s", "before=12", now_ms=5) == Trim("s", 5, 12)


@pytest.mark.parametrize("query", ["before=", "before=-1", "before=012", "before", "before=now"])
def test_a_trim_needs_an_offset(query: str) -> None:
    assert refused(parse_delete("s", query, now_ms=5)) == (400, "invalid_offset")


@given(st.text(max_size=60), st.text(max_size=30))
def test_no_query_breaks_the_reader(query: str, value: str) -> None:
    headers = dict.fromkeys(("accept", "accept-encoding", "if-none-match"), value)
    assert isinstance(parse_get(query, headers), ReadRequest | Problem)
    assert isinstance(parse_delete("s", query, now_ms=0), Delete | Trim | Problem)


@pytest.mark.parametrize(("text", "limit"), [(None, 100), ("1", 1), ("1000", 1000)])
def test_a_page_has_a_size(text: str | None, limit: int) -> None:
    assert read_limit(text) == limit


@pytest.mark.parametrize("text", ["", "0", "1001", "-1", "x", "9" * 20])
def test_a_page_of_nothing_or_too_much_is_refused(text: str) -> None:
    with pytest.raises(MalformedRequest):
        read_limit(text)
