import zlib
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.client.errors import ProtocolError
from semel.client.response_parser import (
    HEAD_BYTES_MAX,
    BodyEnd,
    BodyPart,
    ParserEvent,
    Response,
    ResponseCut,
    ResponseParser,
)

OK = b"HTTP/1.1 200 OK\r\n"


def parse(
    data: bytes, *, count: int = 1, is_head: bool = False, step: int = 0
) -> list[ParserEvent]:
    """Feed a response in pieces of `step` bytes, or as a whole, and close the connection."""
    parser = ResponseParser()
    for _ in range(count):
        parser.expect(is_head=is_head)
    found: list[ParserEvent] = []
    width = step or len(data) or 1
    for at in range(0, len(data), width):
        found += parser.feed(data[at : at + width])
    return found + parser.end()


def gzipped(body: bytes) -> bytes:
    return zlib.compress(body, 1, 31)


SHAPES = [
    (OK + b"Content-Length: 3\r\n\r\nabc", b"abc"),
    (OK + b"Content-Length: 3, 3\r\n\r\nabc", b"abc"),
    (OK + b"content-length:3\r\nX: \t y\t \r\n\r\nabc", b"abc"),
    (OK + b"Content-Length: 0\r\n\r\n", b""),
    (OK + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", b"abc"),
    (OK + b"Transfer-Encoding: Chunked\r\n\r\n1;a=b\r\na\r\nA \r\n0123456789\r\n0\r\nT: x\r\n\r\n",
     b"a0123456789"),
    (OK + b"\r\nuntil the end", b"until the end"),
    (b"HTTP/1.0 200\r\n\r\nold", b"old"),
    (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nLink: x\r\n\r\n"
     + OK + b"Content-Length: 2\r\n\r\nok", b"ok"),
    (OK + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(gzipped(b"z" * 5000))
     + gzipped(b"z" * 5000), b"z" * 5000),
]  # fmt: skip


@pytest.mark.parametrize(("data", "body"), SHAPES)
@pytest.mark.parametrize("step", [0, 1, 2, 7])
def test_an_answer_is_the_same_in_whatever_pieces_it_comes(
    data: bytes, body: bytes, step: int
) -> None:
    (found,) = parse(data, step=step)
    assert isinstance(found, Response)
    assert (found.status, found.body) == (200, body)


def test_answers_to_pipelined_requests_come_in_order() -> None:
    data = b"HTTP/1.1 204 No Content\r\nA: 1\r\n\r\n" + OK + b"Content-Length: 1\r\n\r\nx"
    parser = ResponseParser()
    for _ in range(3):
        parser.expect()
    found = parser.feed(data)
    assert [event.status for event in found if isinstance(event, Response)] == [204, 200]
    assert parser.waiting_count == 1
    assert not parser.is_reusable


def test_an_answer_to_head_has_no_body_whatever_it_says() -> None:
    data = OK + b"Content-Length: 1000\r\nContent-Encoding: gzip\r\n\r\n"
    assert parse(data, is_head=True) == [
        Response(200, {"content-length": "1000", "content-encoding": "gzip"})
    ]


@pytest.mark.parametrize("status", [204, 304])
def test_some_answers_have_no_body_whatever_they_say(status: int) -> None:
    (found,) = parse(b"HTTP/1.1 %d X\r\nContent-Length: 5\r\n\r\n" % status)
    assert isinstance(found, Response)
    assert found.body == b""


def test_a_repeated_header_is_joined() -> None:
    (found,) = parse(b"HTTP/1.1 204 No\r\nVary: a\r\nvary: b\r\n\r\n")
    assert isinstance(found, Response)
    assert found.headers == {"vary": "a, b"}


@pytest.mark.parametrize(
    ("head", "is_reusable"),
    [
        (b"HTTP/1.1 200 OK\r\n", True),
        (b"HTTP/1.1 200 OK\r\nConnection: Close\r\n", False),
        (b"HTTP/1.1 200 OK\r\nConnection: te, close\r\n", False),
        (b"HTTP/1.0 200 OK\r\n", False),
        (b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\n", True),
    ],
)
def test_a_connection_is_kept_if_the_answer_allows_it(head: bytes, is_reusable: bool) -> None:
    parser = ResponseParser()
    parser.expect()
    parser.feed(head + b"Content-Length: 0\r\n\r\n")
    assert parser.is_reusable is is_reusable


def test_a_connection_is_not_reused_before_all_is_answered() -> None:
    parser = ResponseParser()
    parser.expect()
    assert not parser.is_reusable


def test_an_event_stream_comes_in_parts() -> None:
    parser = ResponseParser()
    parser.expect(is_streamed=True)
    head = OK + b"Content-Type: text/event-stream; x\r\nTransfer-Encoding: chunked\r\n\r\n"
    (opened,) = parser.feed(head)
    assert isinstance(opened, Response)
    assert opened.is_streamed
    assert parser.feed(b"2\r\nab\r\n1") == [BodyPart(b"ab")]
    assert parser.feed(b"\r\nc\r\n") == [BodyPart(b"c")]
    assert parser.feed(b"0\r\n\r\n") == [BodyEnd()]
    assert parser.is_reusable


@pytest.mark.parametrize(
    "head", [b"HTTP/1.1 404 No\r\nContent-Type: text/event-stream\r\n", OK + b"X: y\r\n"]
)
def test_what_is_no_event_stream_comes_whole(head: bytes) -> None:
    parser = ResponseParser()
    parser.expect(is_streamed=True)
    (found,) = parser.feed(head + b"Content-Length: 2\r\n\r\nno")
    assert isinstance(found, Response)
    assert (found.is_streamed, found.body) == (False, b"no")


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-x\r\n",
        b"HTTP/2 200 OK\r\n\r\n",
        b"HTTP/1.1 2000 OK\r\n\r\n",
        b"HTTP/1.1 600 OK\r\n\r\n",
        b"HTTP/1.1 101 Switching\r\n\r\n",
        OK + b"No colon\r\n\r\n",
        OK + b"Name : x\r\n\r\n",
        OK + b" folded: x\r\n\r\n",
        OK + b"A: x\x00y\r\n\r\n",
        OK + b"Content-Length: -1\r\n\r\n",
        OK + b"Content-Length: 1, 2\r\n\r\nx",
        OK + b"Content-Length: 9999999999999999\r\n\r\n",
        OK + b"Content-Length: 99999999999\r\n\r\n",
        OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n",
        OK + b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n",
        OK + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n",
        OK + b"Transfer-Encoding: chunked\r\n\r\n2\r\nabc\r\n",
        OK + b"Transfer-Encoding: chunked\r\n\r\n" + b"1" * 2000,
        OK + b"Content-Encoding: br\r\nContent-Length: 1\r\n\r\nx",
        OK + b"Content-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc",
        OK + b"Content-Encoding: gzip\r\nContent-Length: 12\r\n\r\n" + gzipped(b"abcdef")[:12],
        OK + b"A: " + b"x" * HEAD_BYTES_MAX,
        OK + b"Content-Length: 1\r\n\r\nxHTTP/1.1 200 OK\r\n\r\n",
    ],
)
def test_nonsense_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError) as caught:
        parse(data)
    assert not isinstance(caught.value, ResponseCut)


def test_an_answer_nobody_asked_for_is_refused() -> None:
    with pytest.raises(ProtocolError, match="a response that the client did not request"):
        ResponseParser().feed(b"HTTP/1.1 408 Too late\r\n\r\n")


@pytest.mark.parametrize(
    "data",
    [
        b"H",
        OK,
        OK + b"Content-Length: 3\r\n\r\nab",
        OK + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n",
    ],
)
def test_a_connection_that_closes_too_early_cuts_the_answer_off(data: bytes) -> None:
    with pytest.raises(ResponseCut):
        parse(data)


def test_a_connection_that_closes_before_the_first_byte_is_told_apart() -> None:
    parser = ResponseParser()
    parser.expect()
    assert parser.end() == []
    assert not parser.has_begun
    assert parser.waiting_count == 1


@pytest.mark.parametrize(
    "data",
    [
        OK + b"\r\n" + b"x" * 101,
        OK + b"Content-Length: 101\r\n\r\n",
        OK + b"Content-Encoding: gzip\r\n\r\n" + gzipped(b"x" * 4000),
    ],
)
def test_a_body_may_not_grow_past_its_limit(data: bytes) -> None:
    parser = ResponseParser(body_bytes_max=100)
    parser.expect()
    with pytest.raises(ProtocolError, match=r"the limit is 100|longer"):
        parser.feed(data) or parser.end()


ANSWERS = st.tuples(
    st.sampled_from([200, 201, 400, 503]),
    st.binary(max_size=300),
    st.sampled_from(["length", "chunked"]),
    st.integers(1, 50),
)


def render(status: int, body: bytes, shape: str, width: int) -> bytes:
    head = b"HTTP/1.1 %d Some Reason\r\nX-A: 1\r\n" % status
    if shape == "length":
        return head + b"Content-Length: %d\r\n\r\n" % len(body) + body
    chunks = [body[at : at + width] for at in range(0, len(body), width)]
    framed = b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks)
    return head + b"Transfer-Encoding: chunked\r\n\r\n" + framed + b"0\r\n\r\n"


@given(st.lists(ANSWERS, min_size=1, max_size=5), st.lists(st.integers(0, 2000), max_size=20))
def test_any_answers_in_any_pieces_are_read_as_they_were_written(
    answers: list[tuple[int, bytes, str, int]], cuts: list[int]
) -> None:
    data = b"".join(render(*each) for each in answers)
    parser = ResponseParser()
    for _ in answers:
        parser.expect()
    places = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    found: list[ParserEvent] = []
    for start, end in pairwise(places):
        found += parser.feed(data[start:end])
    assert [(each.status, each.body) for each in found if isinstance(each, Response)] == [
        (status, body) for status, body, _, _ in answers
    ]
    assert parser.is_reusable


@given(st.binary(max_size=400), st.integers(1, 9))
def test_any_bytes_are_an_answer_or_refused_and_the_pieces_do_not_matter(
    data: bytes, step: int
) -> None:
    def outcome(width: int) -> object:
        try:
            return parse(b"HTTP/1.1 200 OK\r\n" + data, step=width)
        except ProtocolError as error:
            return isinstance(error, ResponseCut)

    assert outcome(0) == outcome(step)
