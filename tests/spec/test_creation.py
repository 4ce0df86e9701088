"""PUT, HEAD and DELETE: creation, forks, expiry and deletion of streams."""

import time
from typing import Any

import pytest

from tests.spec.process import Server, Stream, offset_of

# ---- creation ------------------------------------------------------------------------------------


@pytest.mark.spec("protocol 1.3")
def test_a_new_stream_is_201_with_its_absolute_address(stream: Stream) -> None:
    answer = stream.put(content_type="text/plain")
    assert answer.status == 201
    assert answer.headers["location"] == stream.server.url + stream.target
    assert answer.headers["content-type"] == "text/plain"
    assert answer.next_offset == offset_of(0)


@pytest.mark.spec("protocol 1.3")
def test_the_address_is_below_the_host_that_was_asked(stream: Stream) -> None:
    """RFC 9112, 3.2.2: if the target is a complete URL, the Host header is ignored."""
    asked = f"PUT http://semel.localhost:81{stream.target} HTTP/1.1\r\nHost: other\r\n\r\n"
    answer = stream.server.raw(asked.encode())
    assert answer is not None
    assert answer.headers["location"] == f"http://semel.localhost:81{stream.target}"


@pytest.mark.spec("protocol 1.3")
def test_the_address_has_a_port_if_no_host_was_asked(stream: Stream) -> None:
    answer = stream.server.raw(f"PUT {stream.target} HTTP/1.0\r\n\r\n".encode())
    assert answer is not None
    assert answer.headers["location"] == stream.server.url + stream.target


@pytest.mark.spec("protocol 1.3")
def test_the_same_put_again_is_200_without_an_address_and_ignores_its_body(stream: Stream) -> None:
    stream.create(b"first")
    answer = stream.put(b"second", content_type="TEXT/plain; charset=utf-8")
    assert answer.status == 200
    assert "location" not in answer.headers
    assert stream.text == "first"


@pytest.mark.spec("protocol 1.3")
@pytest.mark.parametrize(
    ("headers", "field"),
    [
        ({"content_type": "text/html"}, "content_type"),
        ({"content_type": "text/plain", "stream_ttl": "60"}, "ttl"),
        ({"content_type": "text/plain", "stream_expires_at": "2099-01-01T00:00:00Z"}, "expires_at"),
        ({"content_type": "text/plain", "stream_closed": "true"}, "closed"),
    ],
)
def test_another_configuration_is_409_naming_the_field(
    stream: Stream, headers: dict[str, Any], field: str
) -> None:
    stream.create()
    answer = stream.put(**headers)
    assert (answer.status, answer.code) == (409, "config_conflict")
    assert answer.json["field"] == field


@pytest.mark.spec("protocol 1.1")
@pytest.mark.parametrize("value", ["true", "TRUE", "True"])
def test_stream_closed_counts_in_any_case(stream: Stream, value: str) -> None:
    answer = stream.put(b"whole", content_type="text/plain", stream_closed=value)
    assert answer.status == 201
    assert answer.headers["stream-closed"] == "true"
    assert stream.post(b"more").status == 409


@pytest.mark.spec("protocol 1.1")
@pytest.mark.parametrize("value", ["false", "1", "yes", ""])
def test_any_other_value_of_stream_closed_is_as_if_absent(stream: Stream, value: str) -> None:
    stream.create(stream_closed=value)
    assert "stream-closed" not in stream.head().headers
    assert stream.post(b"more", stream_closed=value).status == 204
    assert "stream-closed" not in stream.head().headers


# ---- expiry --------------------------------------------------------------------------------------


@pytest.mark.spec("protocol 1.15")
@pytest.mark.parametrize(
    "headers", [{"stream_ttl": "0"}, {"stream_expires_at": "2001-01-01T00:00:00Z"}]
)
def test_a_stream_whose_time_is_over_at_once_is_201_and_then_404(
    stream: Stream, headers: dict[str, Any]
) -> None:
    stream.create(b"gone", **headers)
    assert stream.get().status == 404
    assert stream.head().status == 404
    assert stream.post(b"x").code == "stream_not_found"


@pytest.mark.spec("protocol 1.12")
def test_an_expired_path_can_be_created_with_another_configuration(stream: Stream) -> None:
    stream.create(b"old", stream_ttl=0)
    stream.create(b"[1]", "application/json")
    assert stream.text == "[1]"


@pytest.mark.spec("protocol 1.5, 1.12")
def test_head_shows_the_window_and_does_not_renew_it(stream: Stream) -> None:
    stream.create(stream_ttl=1)
    assert stream.head().headers["stream-ttl"] == "1"
    deadline = time.monotonic() + 30
    while stream.head().status == 200:
        assert time.monotonic() < deadline, "HEAD must not renew the window"
        time.sleep(0.1)
    assert stream.head().status == 404


@pytest.mark.spec("protocol 1.12")
def test_a_read_renews_the_window(stream: Stream) -> None:
    stream.create(stream_ttl=2)
    begin = time.monotonic()
    while time.monotonic() < begin + 3:
        assert stream.get("offset=now").status == 200
        time.sleep(0.2)


@pytest.mark.spec("protocol 1.5")
def test_head_shows_when_a_stream_expires(stream: Stream) -> None:
    stream.create(stream_expires_at="2099-01-01T00:00:00+00:00")
    assert stream.head().headers["stream-expires-at"] == "2099-01-01T00:00:00.000Z"
    again = stream.put(content_type="text/plain", stream_expires_at="2099-01-01T00:00:00Z")
    assert again.status == 200


# ---- forks ---------------------------------------------------------------------------------------


@pytest.mark.spec("protocol 1.13, 1.15")
def test_a_fork_put_again_without_content_type_or_ttl_is_200(server: Server) -> None:
    source, fork = server.stream(), server.stream()
    source.create(b"a", "text/html", stream_ttl=600)
    first = fork.put(stream_forked_from=source.target)
    assert first.status == 201
    assert first.headers["content-type"] == "text/html"
    assert fork.head().headers["stream-ttl"] == "600"
    source.post(b"b", content_type="text/html")
    again = fork.put(stream_forked_from=source.target)
    assert (again.status, again.next_offset) == (200, first.next_offset)
    assert fork.put(stream_forked_from=source.target, stream_fork_offset=offset_of(1)).status == 200
    other = fork.put(stream_forked_from=source.target, stream_fork_offset=offset_of(0))
    assert (other.status, other.json["field"]) == (409, "fork")


@pytest.mark.spec("protocol 1.13")
def test_a_fork_reads_its_sources_data_and_then_its_own(server: Server) -> None:
    source, fork = server.stream(), server.stream()
    source.create(b"[1,2]", "application/json")
    fork.put(b"[3]", stream_forked_from=source.target, stream_fork_offset=offset_of(1))
    source.post(b"[4]", content_type="application/json")
    assert (fork.text, source.text) == ("[1,3]", "[1,2,4]")


# rows: D42
@pytest.mark.spec("protocol 1.13")
def test_a_fork_inherits_neither_producers_nor_stream_seq(server: Server) -> None:
    source, fork = server.stream(), server.stream()
    source.create()
    source.post(b"a", producer_id="p", producer_epoch=3, producer_seq=0, stream_seq="9")
    fork.put(stream_forked_from=source.target)
    answer = fork.post(b"b", producer_id="p", producer_epoch=0, producer_seq=0, stream_seq="1")
    assert answer.status == 200
    assert fork.text == "ab"


@pytest.mark.spec("protocol 1.13")
@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        ({"stream_fork_offset": offset_of(9)}, 400, "OFFSET_BEYOND_TAIL"),
        ({"content_type": "text/html"}, 409, "content_type_conflict"),
        ({"stream_fork_offset": offset_of(0), "stream_fork_sub_offset": 9}, 400, None),
        ({"stream_fork_sub_offset": 1}, 400, "sub_offset_invalid"),
    ],
)
def test_a_fork_that_cannot_be_made_is_refused(
    server: Server, headers: dict[str, Any], status: int, code: str | None
) -> None:
    source, fork = server.stream(), server.stream()
    source.create(b"abc")
    answer = fork.put(stream_forked_from=source.target, **headers)
    assert (answer.status, answer.code) == (status, code or "sub_offset_invalid")
    assert fork.head().status == 404
    assert source.delete().status == 204
    assert source.head().status == 404, "a refused fork must not hold its source"


@pytest.mark.spec("protocol 1.13")
def test_a_deleted_source_is_410_until_its_last_fork_is_gone(server: Server) -> None:
    source, fork, late = server.stream(), server.stream(), server.stream()
    source.create(b"a")
    fork.put(stream_forked_from=source.target)
    assert source.delete().status == 204
    refused = source.get(), source.post(b"x"), source.delete()
    assert [answer.code for answer in refused] == ["stream_gone"] * 3
    assert {answer.status for answer in refused} == {410}
    assert source.head().status == 410
    conflict = source.put(content_type="text/plain").json
    assert conflict["field"] == "deleted"
    assert conflict["message"].startswith("the stream is deleted, but it has forks")
    late_answer = late.put(stream_forked_from=source.target)
    assert (late_answer.status, late_answer.code) == (409, "fork_source_gone")
    assert fork.text == "a"
    assert fork.delete().status == 204
    assert source.head().status == 404


# ---- deletion and trimming -----------------------------------------------------------------------


@pytest.mark.spec("protocol 1.5")
def test_a_deleted_stream_is_404_and_so_is_its_second_deletion(stream: Stream) -> None:
    stream.create(b"x")
    assert stream.delete().status == 204
    assert stream.get().code == "stream_not_found"
    assert stream.delete().status == 404


@pytest.mark.spec("design 7.2")
def test_a_trimmed_stream_begins_at_its_new_head(stream: Stream) -> None:
    stream.create(b"[1,2,3]", "application/json")
    assert stream.delete(f"before={offset_of(2)}").status == 204
    assert stream.text == "[3]"
    below = stream.get(f"offset={offset_of(1)}")
    assert (below.status, below.code) == (410, "offset_trimmed")
    assert below.json["head"] == offset_of(2)
    assert stream.delete("before=2").status == 204
    beyond = stream.delete("before=4")
    assert (beyond.status, beyond.code) == (400, "OFFSET_BEYOND_TAIL")
    assert stream.delete("before=two").code == "invalid_offset"
    assert stream.text == "[3]"
