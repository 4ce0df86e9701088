"""The requests of the benchmarks, and how they find the end of a response."""

from itertools import islice

import pytest

from semel_bench.requests import (
    BadResponse,
    commits,
    http_head_bytes,
    http_response_bytes,
    limited,
    plain_appends,
    produced_appends,
    redis_response_bytes,
    small_values,
    xadd_appends,
)


def test_a_response_is_complete_when_its_body_is() -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\n"
    assert http_response_bytes(head[:-1]) == 0
    assert http_response_bytes(head + b"ab") == 0
    assert http_response_bytes(head + b"abcd") == len(head) + 3
    empty = b"HTTP/1.1 204 No Content\r\n\r\n"
    assert http_response_bytes(empty) == len(empty)
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert http_response_bytes(chunked) == 0
    assert http_response_bytes(chunked + b"0\r\n\r\n") == len(chunked) + 5


def test_a_response_to_head_has_no_body() -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\n"
    assert http_head_bytes(head[:-1]) == 0
    assert http_head_bytes(head) == len(head)


def test_anything_but_success_ends_a_round() -> None:
    with pytest.raises(BadResponse):
        http_response_bytes(b"HTTP/1.1 404 Not Found\r\n\r\n")
    with pytest.raises(BadResponse):
        redis_response_bytes(b"-ERR no\r\n")
    assert redis_response_bytes(b"$3\r\nab") == 0
    assert redis_response_bytes(b"$3\r\nabc\r\n") == 9


def test_appends_go_to_each_stream_in_turn() -> None:
    source = plain_appends(["a", "b"], b"x")
    lines = [bytes(source() or b"").split(b"\r\n")[0] for _ in range(3)]
    assert lines == [b"POST /v1/stream/%b HTTP/1.1" % name for name in (b"a", b"b", b"a")]
    redis = xadd_appends(["a", "b"], b"x")
    assert redis() == b"*5\r\n$4\r\nXADD\r\n$1\r\na\r\n$1\r\n*\r\n$1\r\nd\r\n$1\r\nx\r\n"
    assert b"$1\r\nb\r\n" in (redis() or b"")


def test_a_producer_counts_its_appends_to_each_stream() -> None:
    source = produced_appends(["a", "b"], "p", b"x")
    requests = [source() or b"" for _ in range(4)]
    seqs = [request.partition(b"Producer-Seq: ")[2] for request in requests]
    assert seqs == [b"0\r\n\r\nx", b"0\r\n\r\nx", b"1\r\n\r\nx", b"1\r\n\r\nx"]
    assert all(b"Content-Length: 1\r\nProducer-Id: p\r\n" in request for request in requests)


def test_every_commit_has_the_next_sequence_number() -> None:
    requests = list(islice(commits("p", ["a", "b"], {"n": 1}), 2))
    assert [b'"producer_seq":%d' % seq in request for seq, request in enumerate(requests)] == [
        True,
        True,
    ]


def test_a_limited_source_ends() -> None:
    source = limited(iter([b"x"]))
    assert [source(), source(), source()] == [b"x", None, None]


def test_small_values_are_100_bytes_of_json() -> None:
    import msgspec

    assert {len(msgspec.json.encode(value)) for value in small_values(12)} == {100}
