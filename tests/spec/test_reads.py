"""GET: catch-up reads, long polls, events, caches and formats."""

import gzip
from base64 import b64decode
from typing import Final

import pytest

from semel.wire.bodies import decode_frames, encode_batch
from semel.wire.headers import BATCH, FRAMES
from tests.spec.process import Event, Later, Server, Stream, offset_of

JSON: Final = "application/json"
CLOSING: Final = {"stream_closed": "true"}
LIVE: Final = ("", "&live=long-poll", "&live=sse")

# ---- catch-up reads ------------------------------------------------------------------------------


@pytest.mark.spec("protocol 1.6")
def test_a_read_says_where_it_ended_and_that_it_is_up_to_date(stream: Stream) -> None:
    stream.create(b"[1,2]", JSON)
    for query in ("", "offset=-1", f"offset={offset_of(0)}", "offset=-1&unknown=1&live=other"):
        answer = stream.get(query)
        assert (answer.status, answer.body) == (200, b"[1,2]"), query
        assert answer.headers["content-type"] == JSON
        assert answer.next_offset == offset_of(2)
        assert answer.headers["stream-up-to-date"] == "true"
        assert "stream-closed" not in answer.headers
    middle = stream.get(f"offset={offset_of(1)}")
    assert middle.body == b"[2]"
    end = stream.get(f"offset={offset_of(2)}")
    assert (end.body, end.next_offset) == (b"[]", offset_of(2))


@pytest.mark.spec("protocol 1.6")
def test_now_is_the_tail_and_is_never_kept_by_a_cache(stream: Stream) -> None:
    stream.create(b"[1]", JSON)
    answer = stream.get("offset=now")
    assert (answer.status, answer.body, answer.next_offset) == (200, b"[]", offset_of(1))
    assert answer.headers["cache-control"] == "no-store"
    assert "etag" not in answer.headers


@pytest.mark.spec("protocol 1.6")
def test_only_a_read_that_reaches_the_end_of_a_closed_stream_says_closed(stream: Stream) -> None:
    stream.create(b"x" * 700_000)
    for _ in range(2):
        stream.post(b"y" * 700_000)
    stream.post(stream_closed="true")
    offset, total, answers = "-1", 0, 0
    while True:
        answer = stream.get(f"offset={offset}")
        assert answer.status == 200
        offset, total, answers = answer.next_offset, total + len(answer.body), answers + 1
        is_last = total == 2_100_000
        assert ("stream-closed" in answer.headers) == is_last
        assert ("stream-up-to-date" in answer.headers) == is_last
        assert answer.headers["cache-control"] == "no-cache"
        if is_last:
            break
    assert answers > 1
    assert "stream-closed" in stream.get("offset=now").headers


@pytest.mark.spec("design 6")
@pytest.mark.parametrize("live", LIVE)
@pytest.mark.parametrize("offset", [offset_of(2), f"{9:016d}_{9:016d}", "9" * 16 + "_" + "9" * 16])
def test_an_offset_past_the_tail_is_400_with_the_tail(
    stream: Stream, live: str, offset: str
) -> None:
    stream.create(b"a")
    answer = stream.get(f"offset={offset}{live}")
    assert (answer.status, answer.code) == (400, "OFFSET_BEYOND_TAIL")
    assert answer.next_offset == answer.json["next_offset"] == offset_of(1)


@pytest.mark.spec("protocol 1.2")
@pytest.mark.parametrize("live", LIVE)
def test_a_trimmed_offset_is_410_in_every_mode(stream: Stream, live: str) -> None:
    stream.create(b"[1,2]", JSON)
    stream.delete("before=1")
    answer = stream.get(f"offset={offset_of(0)}{live}")
    assert (answer.status, answer.code) == (410, "offset_trimmed")
    assert answer.json["head"] == offset_of(1)


@pytest.mark.spec("protocol 1.6")
@pytest.mark.parametrize("live", LIVE)
def test_now_on_a_missing_stream_is_404_in_every_mode(stream: Stream, live: str) -> None:
    answer = stream.get(f"offset=now{live}")
    assert (answer.status, answer.code) == (404, "stream_not_found")


# ---- caches --------------------------------------------------------------------------------------


@pytest.mark.spec("protocol 1.10")
def test_if_none_match_takes_lists_weak_tags_and_the_asterisk(stream: Stream) -> None:
    stream.create(b"a")
    etag = stream.get().headers["etag"]
    for value in (etag, f"W/{etag}", f'"x", {etag}', f'W/"y",{etag} , "z"', "*", " * "):
        answer = stream.get(if_none_match=value)
        assert (answer.status, answer.body) == (304, b""), value
        assert answer.headers["etag"] == etag
        assert answer.next_offset == offset_of(1)
    for value in ('"x"', 'W/"x", "y"', etag.strip('"'), ""):
        assert stream.get(if_none_match=value).status == 200, value


@pytest.mark.spec("protocol 1.10; design 6")
def test_an_etag_changes_with_data_close_offset_format_and_encoding(stream: Stream) -> None:
    stream.create(b"a" * 2000)
    seen = [
        stream.get().headers["etag"],
        stream.get(accept=FRAMES).headers["etag"],
        stream.get(accept_encoding="gzip").headers["etag"],
    ]
    stream.post(b"b")
    seen += [stream.get(query).headers["etag"] for query in ("", f"offset={offset_of(1)}")]
    stream.post(stream_closed="true")
    seen += [stream.get(query).headers["etag"] for query in ("", f"offset={offset_of(1)}")]
    assert len(set(seen)) == len(seen)


@pytest.mark.spec("design 6")
def test_a_stream_made_again_is_another_incarnation_and_never_a_false_304(stream: Stream) -> None:
    stream.create(b"a")
    first = stream.get()
    assert stream.head().headers["stream-incarnation"] == first.headers["stream-incarnation"]
    stream.delete()
    stream.create(b"b")
    second = stream.get(if_none_match=first.headers["etag"])
    assert (second.status, second.body) == (200, b"b")
    assert second.headers["stream-incarnation"] != first.headers["stream-incarnation"]
    assert stream.head().headers["stream-incarnation"] == second.headers["stream-incarnation"]


@pytest.mark.spec("protocol 1.6")
def test_a_large_read_is_packed_if_the_reader_wants_it(stream: Stream) -> None:
    text = b"abc" * 1000
    stream.create(text)
    packed = stream.get(accept_encoding="br;q=0.9, gzip;q=0.8")
    assert packed.headers["content-encoding"] == "gzip"
    assert gzip.decompress(packed.body) == text
    assert len(packed.body) < len(text)
    for value in ("identity", "gzip;q=0", "br"):
        plain = stream.get(accept_encoding=value)
        assert "content-encoding" not in plain.headers
        assert plain.body == text
        assert "accept-encoding" in plain.headers["vary"].lower()


# ---- formats of semel ----------------------------------------------------------------------------


@pytest.mark.spec("design 7.2")
def test_a_batch_of_bytes_comes_back_as_frames(stream: Stream) -> None:
    stream.create(b"first")
    batch = encode_batch("text/plain", [b"a", b"bb", b"ccc"])
    answer = stream.post(batch, content_type=BATCH)
    assert (answer.status, answer.next_offset) == (204, offset_of(4))
    stream.post(stream_closed="true")
    read = stream.get(accept=FRAMES)
    assert read.headers["content-type"] == FRAMES
    frames = decode_frames(read.body)
    messages = [message for piece in frames.slices for message in piece.messages()]
    assert messages == [b"first", b"a", b"bb", b"ccc"]
    assert [piece.offset for piece in frames.slices] == [0, 1]
    assert (frames.content_type, frames.next_offset, frames.tail) == ("text/plain", 4, 4)
    assert frames.is_up_to_date
    assert frames.is_closed
    assert stream.text == "firstabbccc"


@pytest.mark.spec("design 7.2")
def test_a_batch_of_json_is_one_sequence_and_comes_back_as_an_array(stream: Stream) -> None:
    stream.create(b"", JSON)
    batch = encode_batch(JSON, [b'{"a": 1}', b"[2, 3]", b" null "])
    for status in (200, 204):
        answer = stream.post(
            batch, content_type=BATCH, producer_id="p", producer_epoch=0, producer_seq=0
        )
        assert (answer.status, answer.next_offset) == (status, offset_of(3))
    assert stream.text == '[{"a": 1},[2, 3],null]'
    frames = decode_frames(stream.get(f"offset={offset_of(1)}", accept=FRAMES).body)
    assert [[*piece.messages()] for piece in frames.slices] == [[b"[2, 3]", b"null"]]


@pytest.mark.spec("design 7.2")
def test_a_batch_of_another_media_type_is_409_and_a_broken_one_400(stream: Stream) -> None:
    stream.create()
    other = stream.post(encode_batch(JSON, [b"1"]), content_type=BATCH)
    assert (other.status, other.code) == (409, "content_type_conflict")
    whole = encode_batch("text/plain", [b"a", b"b"])
    for body in (b"x", whole[:-1], whole + b"c", encode_batch("text/plain", [])):
        broken = stream.post(body, content_type=BATCH)
        assert (broken.status, broken.code) == (400, "bad_body")
    empty = stream.post(encode_batch("text/plain", [b"a", b""]), content_type=BATCH)
    assert (empty.status, empty.code) == (400, "bad_body")
    assert stream.tail == offset_of(0)


@pytest.mark.spec("protocol 1.11")
def test_json_comes_back_byte_for_byte(stream: Stream) -> None:
    messages = [b'{"a":1,"a":2}', b"12345678901234567890123", b'"\\ud800"', b"1.50", b'{"x": [ ]}']
    stream.create(b"[" + b" ,\n".join(messages) + b"]", JSON)
    assert stream.get().body == b"[" + b",".join(messages) + b"]"


# ---- long-poll -----------------------------------------------------------------------------------


@pytest.mark.spec("protocol 1.7")
def test_a_long_poll_that_finds_nothing_is_204_with_a_cursor(stream: Stream) -> None:
    stream.create(b"a")
    answer = stream.get(f"offset={offset_of(1)}&live=long-poll")
    assert (answer.status, answer.next_offset) == (204, offset_of(1))
    assert answer.headers["stream-up-to-date"] == "true"
    cursor = answer.headers["stream-cursor"]
    assert cursor.isdigit()
    again = stream.get(f"offset={offset_of(1)}&live=long-poll&cursor={cursor}")
    assert int(again.headers["stream-cursor"]) > int(cursor)


@pytest.mark.spec("protocol 1.7")
def test_a_long_poll_with_data_before_it_answers_at_once(stream: Stream) -> None:
    stream.create(b"a")
    answer = stream.get("offset=-1&live=long-poll")
    assert (answer.status, answer.body) == (200, b"a")
    assert answer.headers["stream-cursor"].isdigit()


@pytest.mark.spec("protocol 1.7")
@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b"b", {}, 200),
        (b"b", {"stream_closed": "true"}, 200),
        (b"", {"stream_closed": "true"}, 204),
    ],
    ids=["an append", "an append that closes", "a close"],
)
def test_a_waiting_reader_is_woken_by(
    stream: Stream, body: bytes, headers: dict[str, str], status: int
) -> None:
    stream.create(b"a")
    # The reader may time out before it is woken; then it sends a new request.
    for _ in range(20):
        later = Later(stream, f"offset={offset_of(1)}&live=long-poll")
        if stream.tail == offset_of(1) and "stream-closed" not in stream.head().headers:
            stream.post(body, **headers)
        answer = later.answer()
        if answer.body or "stream-closed" in answer.headers:
            break
    assert (answer.status, answer.body) == (status, body)
    assert ("stream-closed" in answer.headers) == bool(headers)


@pytest.mark.spec("protocol 1.5")
def test_a_deletion_ends_waiting_readers(stream: Stream) -> None:
    stream.create()
    with stream.listen() as events:
        assert events.next() is not None
        stream.delete()
        assert events.rest() == []


# ---- events --------------------------------------------------------------------------------------


@pytest.mark.spec("protocol 1.8, 1.15")
def test_every_data_event_is_followed_by_its_control_event(stream: Stream) -> None:
    stream.create(b"[1,2]", JSON)
    with stream.listen() as events:
        assert (events.status, events.headers["content-type"]) == (200, "text/event-stream")
        assert events.headers["cache-control"] == "no-cache"
        assert "content-length" not in events.headers
        assert "stream-sse-data-encoding" not in events.headers
        assert events.next() == Event("data", "[1,2]")
        control = events.next()
        assert control is not None
        assert control.kind == "control"
        assert control.json["streamNextOffset"] == offset_of(2)
        assert control.json["upToDate"] is True
        assert control.json["streamCursor"].isdigit()
        stream.post(b"[3]", content_type=JSON, stream_closed="true")
        data, last = events.rest()
    assert data == Event("data", "[3]")
    assert last.json == {
        "streamNextOffset": offset_of(3),
        "streamClosed": True,
        "upToDate": True,
    }


@pytest.mark.spec("protocol 1.8")
def test_bytes_are_sent_as_base64(stream: Stream) -> None:
    payload = bytes(range(256))
    stream.create(payload, "application/octet-stream", stream_closed="true")
    with stream.listen() as events:
        assert events.headers["stream-sse-data-encoding"] == "base64"
        data, _ = events.rest()
    assert b64decode(data.data, validate=True) == payload


@pytest.mark.spec("protocol 1.8")
@pytest.mark.parametrize("end", ["\n", "\r", "\r\n"], ids=["LF", "CR", "CRLF"])
def test_a_payload_cannot_forge_an_event(stream: Stream, end: str) -> None:
    forged = f'event: control{end}data: {{"streamClosed":true}}{end}{end} data: x{end}id: 1\u2028'
    stream.create(forged.encode(), stream_closed="true")
    with stream.listen() as events:
        data, control = events.rest()
    assert data == Event("data", forged.replace("\r\n", "\n").replace("\r", "\n"))
    assert control.json["streamNextOffset"] == offset_of(1)


@pytest.mark.spec("protocol 1.8")
def test_a_character_split_over_appends_arrives_whole(stream: Stream) -> None:
    stream.create("né".encode()[:2])
    with stream.listen() as events:
        control = events.next()
        assert control is not None
        assert control.kind == "control"
        assert control.json["streamNextOffset"] == offset_of(0), "a reconnect needs the first half"
        stream.post("é".encode()[1:] + "€".encode()[:2])
        stream.post("€".encode()[2:], stream_closed="true")
        events_left = events.rest()
    assert "".join(event.data for event in events_left if event.kind == "data") == "né€"
    assert events_left[-1].json["streamClosed"] is True


@pytest.mark.spec("protocol 1.8")
@pytest.mark.parametrize("offset", ["-1", "now"])
def test_an_empty_stream_begins_with_a_control_event(stream: Stream, offset: str) -> None:
    stream.create()
    with stream.listen(offset) as events:
        control = events.next()
    assert control is not None
    assert control.kind == "control"
    assert control.json["streamNextOffset"] == offset_of(0)
    assert control.json["upToDate"] is True


@pytest.mark.spec("protocol 1.13")
def test_a_live_reader_of_a_fork_sees_the_forks_own_appends_only(server: Server) -> None:
    source, fork = server.stream(), server.stream()
    source.create(b"[1]", JSON)
    fork.put(stream_forked_from=source.target)
    with fork.listen() as events:
        assert events.next() == Event("data", "[1]")
        events.next()
        source.post(b"[2]", content_type=JSON)
        fork.post(b"[3]", content_type=JSON, stream_closed="true")
        assert [event.data for event in events.rest() if event.kind == "data"] == ["[3]"]


def test_a_read_sees_the_writes_before_it_on_the_same_connection(stream: Stream) -> None:
    stream.create()
    append = f"POST {stream.target} HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\n"
    append += "Content-Length: 1\r\n\r\nx"
    read = f"GET {stream.target} HTTP/1.1\r\nHost: localhost\r\n\r\n"
    look = f"HEAD {stream.target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    with stream.server.dial() as line:
        line.sendall((append + read + append + look).encode())
        said = b"".join(iter(lambda: line.recv(65_536), b"")).decode()
    written, found, again, seen = said.split("HTTP/1.1 ")[1:]
    assert written.startswith("204") and again.startswith("204")
    assert found.endswith("\r\n\r\nx")
    assert f"Stream-Next-Offset: {offset_of(2)}\r\n" in seen


# rows: D44
def test_an_offer_of_a_websocket_is_ignored(server: Server) -> None:
    stream = server.stream()
    stream.create(b"a")
    lines = [
        f"GET {stream.target}?offset=-1 HTTP/1.1",
        f"Host: 127.0.0.1:{server.port}",
        "Connection: Upgrade",
        "Upgrade: websocket",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
    ]
    answer = server.raw("\r\n".join([*lines, "", ""]).encode())
    assert answer is not None
    assert (answer.status, answer.body) == (200, b"a")
