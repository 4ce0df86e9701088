"""A repeated head is parsed to the same result, whatever other heads came in between."""

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.server.http import HttpRefused
from semel.server.limits_http import HttpLimits
from semel.server.request_head import HeadCache

LIMITS = HttpLimits()
HEAD = b"POST /v1/stream/a HTTP/1.1\r\nHost: a\r\nContent-Type: text/plain"
LINES = [
    b"Content-Length: 3",
    b"Content-Length: 0003",
    b"Content-Length: 30000000000",
    b"Content-Length: 1234567890123456",
    b"Content-Length: 1234567890123456789",
    b"Content-Length: +3",
    b"Content-Length: 3 ",
    b"Content-Length:  3",
    b"Content-Length: ",
    b"content-length: 4",
    b"CONTENT-LENGTH: 5",
    b"Producer-Seq: 1",
    b"Producer-Seq: 2",
    b"Producer-Seq: 2-3",
    b"producer-seq: 7",
    b"PRODUCER-SEQ: 8",
    b"Producer-Id: p",
    b"Transfer-Encoding: chunked",
    b"Connection: close",
    b"Connection: keep-alive",
    b"Expect: 100-continue",
    b"Expect: tea",
    b"X-A: b\r",
    b"\r",
    b" folded: 1",
    b"X Content-Length: 3",
]
heads = st.builds(
    lambda start, lines: b"\r\n".join([start, *lines]),
    st.sampled_from([HEAD, HEAD.replace(b"1.1", b"1.0"), b"GET / HTTP/1.1\r\nHost: a", b"GET /"]),
    st.lists(st.sampled_from(LINES), max_size=4),
)


def meaning(heads: HeadCache, raw: bytes) -> tuple[Any, ...]:
    """Return all that the parser reads from a head, or why the head is refused."""
    try:
        request, length = heads.read(raw)
    except HttpRefused as refused:
        return refused.status, refused.code, refused.message
    head = request.head
    flags = head.is_modern, head.is_head, head.closes, head.is_expecting
    fields = request.method, request.path, request.query, dict(request.headers), request.repeated
    return *fields, *flags, length


def read_often(heads: HeadCache, raw: bytes) -> None:
    for _ in range(3):
        heads.read(raw)


@given(st.lists(heads, min_size=1, max_size=12))
def test_a_head_means_the_same_after_any_others(raws: list[bytes]) -> None:
    known = HeadCache(LIMITS)
    for raw in [*raws, *raws, *raws]:
        assert meaning(known, raw) == meaning(HeadCache(LIMITS), raw)


def test_requests_of_the_same_head_share_it_whatever_their_numbers() -> None:
    heads = HeadCache(LIMITS)
    read_often(heads, HEAD + b"\r\nContent-Length: 3\r\nProducer-Seq: 1\r\nProducer-Id: p")
    one, length = heads.read(HEAD + b"\r\nContent-Length: 4\r\nProducer-Seq: 2\r\nProducer-Id: p")
    two, _ = heads.read(HEAD + b"\r\nProducer-Seq: 3\r\nProducer-Id: p\r\nContent-Length: 5")
    assert one.head is two.head
    assert (length, one.seq, two.seq) == (4, b"2", b"3")


@pytest.mark.parametrize("line", [b"Producer-Seq: 7", b"producer-seq: 7", b"PRODUCER-SEQ: 7"])
def test_a_second_sequence_number_is_seen_behind_a_known_head(line: bytes) -> None:
    heads = HeadCache(LIMITS)
    read_often(heads, HEAD + b"\r\n" + line)
    request, _ = heads.read(HEAD + b"\r\n" + line + b"\r\nProducer-Seq: 8")
    assert request.repeated == {"producer-seq"}


@pytest.mark.parametrize("line", [b"Producer-Seq: 7", b"Content-Length: 7"])
@pytest.mark.parametrize("cut", [b"", b"Producer-Seq: ", b"Content-Length: "])
def test_a_head_without_a_number_is_not_treated_as_one_that_has_it(line: bytes, cut: bytes) -> None:
    heads = HeadCache(LIMITS)
    start = HEAD + b"\r\nProducer-Id: p"
    read_often(heads, start + b"\r\n" + line)
    known, _ = heads.read(start + b"\r\n" + line)
    without = start + b"\r\n" + cut if cut else start
    assert meaning(heads, without) == meaning(HeadCache(LIMITS), without)
    with suppress(HttpRefused):
        assert heads.read(without)[0].head is not known.head


@pytest.mark.parametrize("line", [b"Content-Length: 7", b"content-length: 7", b"Content-length: 7"])
def test_a_second_length_is_refused_behind_a_known_head(line: bytes) -> None:
    heads = HeadCache(LIMITS)
    read_often(heads, HEAD + b"\r\n" + line)
    with pytest.raises(HttpRefused, match="not a number of bytes"):
        heads.read(HEAD + b"\r\n" + line + b"\r\nContent-Length: 7")


def test_a_coding_is_seen_behind_a_known_head() -> None:
    heads = HeadCache(LIMITS)
    read_often(heads, HEAD + b"\r\nContent-Length: 7")
    with pytest.raises(HttpRefused, match="cannot have both Content-Length and Transfer-Encoding"):
        heads.read(HEAD + b"\r\nTransfer-Encoding: chunked\r\nContent-Length: 7")


def test_a_known_head_does_not_let_a_large_body_in() -> None:
    heads = HeadCache(LIMITS)
    read_often(heads, HEAD + b"\r\nContent-Length: 7")
    with pytest.raises(HttpRefused) as refused:
        heads.read(HEAD + b"\r\nContent-Length: %d" % (LIMITS.body_bytes_max + 1))
    assert refused.value.status == 413


def test_a_sequence_number_that_could_be_out_of_bounds_is_not_cut_out() -> None:
    heads = HeadCache(LIMITS)
    read_often(heads, HEAD + b"\r\nProducer-Seq: 7")
    assert heads.read(HEAD + b"\r\nProducer-Seq: 999999999999999")[0].seq
    assert not heads.read(HEAD + b"\r\nProducer-Seq: 9999999999999999")[0].seq


def test_a_cut_line_is_not_longer_than_a_line_may_be() -> None:
    heads = HeadCache(HttpLimits(header_line_bytes_max=30))
    raw = b"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: "
    read_often(heads, raw + b"3")
    with pytest.raises(HttpRefused) as refused:
        heads.read(raw + b"000000000000003")
    assert refused.value.status == 431


def test_cut_lines_count_as_headers() -> None:
    limits = HttpLimits(header_count_max=4)
    heads = HeadCache(limits)
    raw = HEAD + b"\r\nX-A: 1"
    read_often(heads, raw)
    read_often(heads, raw + b"\r\nContent-Length: 7")
    with pytest.raises(HttpRefused) as refused:
        heads.read(raw + b"\r\nContent-Length: 7\r\nProducer-Seq: 1")
    assert refused.value.status == 431


def test_what_comes_only_once_is_not_kept_and_what_is_kept_is_bounded() -> None:
    heads = HeadCache(LIMITS)
    for number in range(5_000):
        heads.read(HEAD + b"\r\nX-Once: %d" % number)
    assert not heads._heads
    for number in range(5_000):
        read_often(heads, HEAD + b"\r\nX-Often: %d" % number)
    assert len(heads._heads) <= 4_096
    assert len(heads._once) <= 4_096
