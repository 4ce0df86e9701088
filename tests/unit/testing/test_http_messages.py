import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from semel.testing.fault_connections import (
    HEAD_BYTES_MAX,
    MESSAGE_BYTES_MAX,
    Broken,
    MessageHead,
    read_body,
    read_request_head,
    read_response_head,
    read_whole,
)

T = TypeVar("T")

CHUNKS = [b"3\r\none\r\n", b"5;x=y\r\nevent\r\n", b"0\r\nTrailer: yes\r\n\r\n"]


def reading(data: bytes, work: Callable[[asyncio.StreamReader], Awaitable[T]]) -> T:
    """Return the result of `work` on a reader with these bytes, followed by EOF."""

    async def run() -> T:
        reader = asyncio.StreamReader(limit=HEAD_BYTES_MAX)
        reader.feed_data(data)
        reader.feed_eof()
        return await work(reader)

    return asyncio.run(run())


async def all_pieces(reader: asyncio.StreamReader) -> list[bytes]:
    head = await read_request_head(reader)
    assert head is not None
    return [piece async for piece in read_body(reader, head)]


async def answer_to_get(reader: asyncio.StreamReader) -> MessageHead | None:
    return await read_response_head(reader, "GET")


async def whole_requests(reader: asyncio.StreamReader) -> list[bytes]:
    found = []
    while (head := await read_request_head(reader)) is not None:
        found.append(await read_whole(reader, head))
    return found


def test_pipelined_requests_are_told_apart() -> None:
    requests = [
        b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST /b HTTP/1.1\r\ncontent-LENGTH:  4 \r\n\r\n\r\n\r\n",
        b"POST /c HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + b"".join(CHUNKS),
        b"HEAD /d HTTP/1.1\r\n\r\n",
    ]
    assert reading(b"".join(requests), whole_requests) == requests


def test_a_body_of_chunks_comes_chunk_by_chunk() -> None:
    head = b"POST /c HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert reading(head + b"".join(CHUNKS), all_pieces) == CHUNKS


def test_an_answer_without_a_length_goes_to_the_end_of_the_connection() -> None:
    async def whole(reader: asyncio.StreamReader) -> bytes:
        head = await read_response_head(reader, "GET")
        assert head is not None
        assert head.length is None
        return await read_whole(reader, head)

    answer = b"HTTP/1.0 200 OK\r\n\r\nall of it"
    assert reading(answer, whole) == answer


@pytest.mark.parametrize(
    ("method", "status"), [("HEAD", 200), ("GET", 204), ("GET", 304), ("POST", 204)]
)
def test_answers_that_never_have_a_body_have_none(method: str, status: int) -> None:
    async def read(reader: asyncio.StreamReader) -> MessageHead | None:
        return await read_response_head(reader, method)

    head = reading(b"HTTP/1.1 %d X\r\nContent-Length: 9\r\n\r\n" % status, read)
    assert head is not None
    assert (head.status, head.length, head.is_chunked) == (status, 0, False)


def test_interim_answers_are_passed_over() -> None:
    head = reading(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n\r\n", answer_to_get)
    assert head is not None
    assert head.status == 200


def test_the_end_between_messages_is_none_and_within_one_an_error() -> None:
    assert reading(b"", read_request_head) is None
    assert reading(b"", answer_to_get) is None
    with pytest.raises(Broken):
        reading(b"GET / HT", read_request_head)


@pytest.mark.parametrize(
    "data",
    [
        b"Content-Length: 5\r\n\r\nfour",
        b"Transfer-Encoding: chunked\r\n\r\n5\r\nfour",
        b"Transfer-Encoding: chunked\r\n\r\n3\r\none\r\n",
        b"Transfer-Encoding: chunked\r\n\r\nmany\r\n",
        b"Transfer-Encoding: chunked\r\n\r\nfffffff\r\n",
        b"Content-Length: %d\r\n\r\n%s" % (MESSAGE_BYTES_MAX, b"x" * MESSAGE_BYTES_MAX),
    ],
    ids=["short", "short chunk", "no last chunk", "no size", "huge chunk", "huge"],
)
def test_a_body_that_is_not_whole_or_too_large_is_an_error(data: bytes) -> None:
    with pytest.raises(Broken):
        reading(b"POST / HTTP/1.1\r\n" + data, whole_requests)


def test_a_head_without_end_and_an_answer_that_is_none_are_errors() -> None:
    with pytest.raises(Broken):
        reading(b"x" * (HEAD_BYTES_MAX + 1), read_request_head)
    with pytest.raises(Broken):
        reading(b"SSH-2.0 hello\r\n\r\n", answer_to_get)


def test_whether_a_client_waits_to_be_told_to_go_on() -> None:
    for data, waits in (
        (b"Expect: 100-continue\r\n", True),
        (b"X-Expect: 100-continue\r\n", False),
    ):
        head = reading(b"POST / HTTP/1.1\r\n" + data + b"\r\n", read_request_head)
        assert head is not None
        assert head.method == "POST"
        assert head.expects_continue is waits
