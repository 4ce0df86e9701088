"""Deduplication on or off: for a stream or a server, at creation or later."""

from pathlib import Path

import pytest

from tests.spec.process import Answer, Server, Stream, offset_of
from tests.spec.test_producers import crossed, dense, sparse


def switch(stream: Stream, value: str) -> Answer:
    return stream.server.ask("PATCH", stream.target, stream_dedup=value)


# rows: P19
@pytest.mark.spec("machine: switch")
def test_a_stream_may_be_made_without_the_recognition_of_duplicates(stream: Stream) -> None:
    stream.create(stream_dedup="off")
    assert stream.head().headers["stream-dedup"] == "off"
    for _ in range(2):
        answer = dense(stream, b"a", 7, 3)
        assert answer.status == 200
        told = {name: answer.headers[name] for name in ("producer-epoch", "producer-seq")}
        assert told == {"producer-epoch": "7", "producer-seq": "3"}
        assert answer.headers["producer-dedup"] == "off"
    assert sparse(stream, b"b", "1-2").headers["producer-dedup"] == "off"
    assert crossed(stream, b"c", 9).status == 201
    keyed = stream.post(b"d", idempotency_key="k")
    assert keyed.headers["idempotency-window"] == "0; keys=0"
    assert stream.post(b"d", idempotency_key="k").next_offset == offset_of(6)
    assert stream.text == "aabcdd"


# rows: D36, P19
@pytest.mark.spec("machine: switch")
def test_producer_headers_are_checked_for_syntax_all_the_same(stream: Stream) -> None:
    stream.create(stream_dedup="off")
    assert stream.post(b"x", producer_id="p").code == "producer_headers_incomplete"
    assert dense(stream, b"x", 0, -1).code == "invalid_header"


# rows: P19
@pytest.mark.spec("machine: switch")
def test_switching_off_and_on_again_forgets_and_swallows_nothing(stream: Stream) -> None:
    stream.create()
    dense(stream, b"a", 0, 0)
    for _ in range(2):
        answer = switch(stream, "off")
        assert (answer.status, answer.headers["stream-dedup"]) == (204, "off")
    assert dense(stream, b"a", 0, 0).headers["producer-dedup"] == "off"
    for _ in range(2):
        answer = switch(stream, "on")
        assert (answer.status, answer.headers["stream-dedup"]) == (204, "on")
        assert answer.headers["stream-dedup-from"] == offset_of(2)
    new, again = dense(stream, b"b", 0, 0), dense(stream, b"b", 0, 0)
    assert (new.status, again.status, again.next_offset) == (200, 204, offset_of(3))
    assert stream.text == "aab"


# rows: P26
@pytest.mark.spec("machine: switch")
def test_a_stream_switched_on_later_tells_from_where(stream: Stream) -> None:
    stream.create()
    assert not any(name.startswith("stream-dedup") for name in stream.head().headers)
    stream.post(b"a")
    switch(stream, "off")
    stream.post(b"b")
    switch(stream, "on")
    head = stream.head()
    assert head.headers["stream-dedup-from"] == offset_of(2)
    assert "stream-dedup" not in head.headers


# rows: P19
@pytest.mark.spec("machine: switch")
def test_the_switch_is_part_of_the_configuration_only_if_it_is_given(stream: Stream) -> None:
    stream.create(stream_dedup="off")
    assert stream.put(content_type="text/plain").status == 200
    assert stream.put(content_type="text/plain", stream_dedup="off").status == 200
    other = stream.put(content_type="text/plain", stream_dedup="on")
    assert (other.status, other.code, other.json["field"]) == (409, "config_conflict", "dedup")


# rows: P19
@pytest.mark.spec("machine: switch")
def test_a_create_confirms_only_a_setting_that_is_the_stream_s_own(stream: Stream) -> None:
    stream.create()
    for value in ("on", "off"):
        other = stream.put(content_type="text/plain", stream_dedup=value)
        assert (other.status, other.code, other.json["field"]) == (409, "config_conflict", "dedup")
        assert "Stream-Dedup" in other.json["message"]
        assert "PATCH" in other.json["message"]
    assert "stream-dedup" not in stream.server.ask("HEAD", stream.target).headers
    assert stream.put(content_type="text/plain", stream_dedup="inherit").status == 200
    assert switch(stream, "on").status == 204
    assert stream.put(content_type="text/plain", stream_dedup="on").status == 200
    assert stream.put(content_type="text/plain", stream_dedup="off").status == 409
    assert stream.put(content_type="text/plain", stream_dedup="inherit").status == 409
    assert stream.put(content_type="text/plain").status == 200


# rows: P19
@pytest.mark.spec("machine: switch")
def test_a_fork_that_is_to_inherit_has_no_setting_of_its_own(stream: Stream) -> None:
    stream.create(stream_dedup="off")
    fork = f"{stream.target}-fork"
    for status in (201, 200):
        made = stream.server.ask(
            "PUT", fork, stream_forked_from=stream.target, stream_dedup="inherit"
        )
        assert made.status == status
    assert "stream-dedup" not in stream.server.ask("HEAD", fork).headers


# rows: P19
@pytest.mark.spec("machine: switch")
def test_a_switch_that_is_none_is_refused(stream: Stream) -> None:
    assert switch(stream, "off").code == "stream_not_found"
    stream.create()
    assert switch(stream, "maybe").code == "invalid_header"
    assert stream.server.ask("PATCH", stream.target).code == "invalid_header"


# rows: P19, P20
@pytest.mark.spec("machine: switch")
def test_a_server_may_have_it_off_and_a_kill_changes_nothing(tmp_path: Path) -> None:
    server = Server(tmp_path / "data", "--dedup", "off")
    try:
        default, asked, switched = (server.stream(name) for name in ("default", "asked", "late"))
        default.create()
        asked.create(stream_dedup="on")
        switched.create()
        switched.post(b"a")
        switch(switched, "on")
        dense(switched, b"b", 0, 0)
        server.kill()
        server = Server(tmp_path / "data")  # the setting applies to new streams only
        default, asked, switched = (server.stream(name) for name in ("default", "asked", "late"))
        assert default.head().headers["stream-dedup"] == "off"
        assert "stream-dedup" not in asked.head().headers
        assert switched.head().headers["stream-dedup-from"] == offset_of(1)
        assert dense(switched, b"b", 0, 0).status == 204
    finally:
        server.kill()
