from base64 import b64encode
from math import inf
from typing import Any

import pytest

from semel.client import errors
from semel.client.flows import CloseChannel, Lost, NotSent, Opened, Receive
from semel.client.reading import PageReader, page_of, split_array
from semel.client.response_parser import BodyEnd, BodyPart, Response
from semel.client.sse import SseReader, live_reader
from semel.client.stream_calls import ServerConfig
from semel.model.messages import encode_extras
from semel.model.slices import Slice
from semel.wire.bodies import encode_frames
from tests.unit.client.hand import SITE, Played, answer, calls, play, problem

LOST = Lost("reset")


def frames(*messages: bytes, start: int = 0, tail: int | None = None, **headers: str) -> Response:
    """Return a page in semel's frames format, with one slice for each message."""
    pieces = [Slice(start + at, 1, raw, b"", False, 1000) for at, raw in enumerate(messages)]
    end = start + len(messages)
    body = encode_frames(
        "application/json", pieces, next_offset=end, tail=end if tail is None else tail
    )
    headers = {"content_type": "application/vnd.semel.frames", **headers}
    if tail is None:
        headers["stream_up_to_date"] = "true"
    return answer(200, body, stream_next_offset=f"{0:016d}_{end:016d}", **headers)


def plain(body: bytes, next_offset: str, **headers: str) -> Response:
    """Return a page of a server that is not semel."""
    headers = {"content_type": "application/json", **headers}
    return answer(200, body, stream_next_offset=next_offset, **headers)


def reader(offset: str = "-1", *, is_live: bool = False) -> PageReader:
    return PageReader(calls(), offset, is_live=is_live)


def offset_text(ordinal: int) -> str:
    return f"{0:016d}_{ordinal:016d}"


# ---- pages ---------------------------------------------------------------------------------------


def test_every_message_of_semel_has_its_own_offset_and_time() -> None:
    lengths = (1).to_bytes(4, "little") * 2
    pieces = [Slice(4, 1, b"1", b"", False, 1000), Slice(7, 2, b"2,3", lengths, True, 2000)]
    body = encode_frames("application/json", pieces, next_offset=12, tail=12)
    page = page_of(
        answer(
            200,
            body,
            content_type="application/vnd.semel.frames",
            stream_next_offset=offset_text(12),
        ),
        "-1",
    )
    assert [
        (each.value, each.offset, each.next_offset, each.written_ms) for each in page.messages
    ] == [
        (1, offset_text(4), offset_text(5), 1000),
        (2, offset_text(7), offset_text(8), 2000),
        (3, offset_text(8), offset_text(12), 2000),
    ]


def test_keys_headers_and_times_are_those_of_their_messages() -> None:
    extras = encode_extras(2, keys=[None, b"k"], headers=[[("h", b"v")], []], timestamps=[5, None])
    lengths = (1).to_bytes(4, "little") * 2
    pieces = [Slice(0, 1, b"1", b"", False, 9), Slice(1, 2, b"2,3", lengths, True, 9, extras)]
    body = encode_frames("application/json", pieces, next_offset=3, tail=3)
    headers = {"content_type": "application/vnd.semel.frames", "stream_next_offset": offset_text(3)}
    found = page_of(answer(200, body, **headers), "-1").messages
    assert [(each.key, list(each.headers), each.time_ms) for each in found] == [
        (None, [], None),
        (None, [("h", b"v")], 5),
        (b"k", [], None),
    ]
    assert [each.timestamp.microsecond for each in found if each.timestamp] == [9000, 5000, 9000]
    assert {each.written_ms for each in found} == {9}


def test_of_another_servers_messages_only_the_ends_are_known() -> None:
    page = page_of(plain(b'[1, {"a":2} ,[3]]', "e", stream_closed="true"), "s")
    assert [(each.raw, each.offset, each.next_offset) for each in page.messages] == [
        (b"1", "s", None),
        (b'{"a":2}', None, None),
        (b"[3]", None, "e"),
    ]
    assert page.is_closed
    (only,) = page_of(plain(b"bytes", "e", content_type="text/plain"), "now").messages
    assert (only.value, only.offset, only.next_offset) == ("bytes", None, "e")
    assert page_of(plain(b"", "e", content_type="text/plain"), "s").messages == []


@pytest.mark.parametrize(
    "given",
    [
        answer(200, b"[]", content_type="application/json"),
        plain(b"{", "e"),
        plain(b"{}", "e"),
        plain(b"junk", "e", content_type="application/vnd.semel.frames"),
    ],
)
def test_a_page_that_is_none_is_refused(given: Response) -> None:
    with pytest.raises(errors.ProtocolError):
        page_of(given, "-1")


def test_an_array_is_split_byte_for_byte() -> None:
    assert split_array(b'[ 1.50 , "\\ud800" ]') == [b"1.5", rb'"\ud800"']
    assert split_array(b'[ 1.50 ,{"a" :1,"a":2}]') == [b"1.50", b'{"a" :1,"a":2}']


# ---- catching up ---------------------------------------------------------------------------------


def test_a_read_goes_on_until_it_is_up_to_date() -> None:
    it = reader()
    first = Played(it.next_page(), [plain(b"[1]", "a")])
    assert first.sends[0].request.target == "/v1/stream/orders?offset=-1&isolation=read_committed"
    assert dict(first.sends[0].request.headers)["Accept"].startswith("application/vnd.semel.frames")
    second = Played(it.next_page(), [plain(b"[2]", "b", stream_up_to_date="true")])
    assert second.sends[0].request.target == "/v1/stream/orders?offset=a"
    assert play(it.next_page()) is None


def test_a_read_ends_where_the_stream_ended_when_it_began() -> None:
    it = reader()
    play(it.next_page(), frames(b"1", b"2", tail=3))
    play(it.next_page(), frames(b"3", b"4", start=2, tail=9))
    assert play(it.next_page()) is None


def test_a_read_of_a_server_that_says_little_ends_when_it_does_not_move() -> None:
    it = reader()
    play(it.next_page(), plain(b"[1]", "a"))
    play(it.next_page(), plain(b"[]", "a"))
    assert play(it.next_page()) is None


def test_gzip_is_asked_for_if_wanted() -> None:
    it = calls()
    it.site = ServerConfig(SITE.address, is_gzip=True)
    sent = Played(PageReader(it, "-1", is_live=False).next_page(), [frames(b"1")]).sends[0]
    assert ("Accept-Encoding", "gzip") in sent.request.headers


# ---- following by long-poll ----------------------------------------------------------------------


def test_a_long_poll_follows_the_catching_up_and_carries_the_cursor() -> None:
    it = reader(is_live=True)
    play(it.next_page(), plain(b"[1]", "a", stream_up_to_date="true", stream_cursor="9"))
    waited = Played(it.next_page(), [answer(204, stream_next_offset="a", stream_up_to_date="true")])
    assert waited.sends[0].request.target.endswith("?offset=a&live=long-poll&cursor=9")
    assert waited.sends[0].silence_seconds < inf
    assert waited.result == []
    play(it.next_page(), plain(b"[2]", "b", stream_closed="true", stream_up_to_date="true"))
    assert play(it.next_page()) is None


def test_now_becomes_an_offset_before_anything_can_break() -> None:
    it = reader("now", is_live=True)
    play(it.begin(), plain(b"[]", "a", stream_up_to_date="true"))
    assert it.offset == "a"
    lost = Played(it.next_page(), [LOST, NotSent("down"), plain(b"[2]", "b")])
    assert [send.request.target.partition("?")[2] for send in lost.sends] == [
        "offset=a&live=long-poll"
    ] * 3


def test_a_stream_made_anew_under_the_same_path_is_another_one() -> None:
    it = reader(is_live=True)
    play(it.next_page(), frames(b"1", stream_incarnation="one"))
    with pytest.raises(errors.StreamGone, match="created again"):
        play(it.next_page(), frames(b"1", start=1, stream_incarnation="two"))


def test_a_stream_that_was_restored_from_an_older_copy_is_another_one() -> None:
    it = reader(is_live=True)
    play(it.next_page(), frames(b"1", stream_incarnation="one", stream_generation="1"))
    with pytest.raises(errors.StreamRestored, match="older copy"):
        again = frames(b"1", start=1, stream_incarnation="one", stream_generation="2")
        play(it.next_page(), again)


def test_generations_that_are_times_are_compared_exactly() -> None:
    it = reader(is_live=True)
    one, other = "1800000000000", "1800000000001"
    play(it.next_page(), frames(b"1", stream_incarnation="one", stream_generation=one))
    assert it.generation == int(one)
    with pytest.raises(errors.StreamRestored):
        again = frames(b"1", start=1, stream_incarnation="one", stream_generation=other)
        play(it.next_page(), again)


def test_a_server_that_tells_no_generation_can_be_read() -> None:
    it = reader(is_live=True)
    play(it.next_page(), frames(b"1", stream_incarnation="one", stream_generation="2"))
    assert play(it.next_page(), frames(b"1", start=1, stream_incarnation="one"))
    assert it.generation == 2


def test_a_reader_that_was_never_answered_does_not_wait_for_ever() -> None:
    it = reader(is_live=True)
    assert not it.has_begun
    assert isinstance(Played(it.next_page(), [NotSent("down"), False]).error, errors.Unavailable)


# ---- following by events -------------------------------------------------------------------------


def sse(**headers: str) -> Opened:
    head = {"content-type": "text/event-stream"}
    head |= {name.replace("_", "-"): value for name, value in headers.items()}
    return Opened(Response(200, head, is_streamed=True), "channel")


def part(*events: tuple[str, bytes]) -> BodyPart:
    return BodyPart(b"".join(b"event: %s\ndata:%s\n\n" % (k.encode(), d) for k, d in events))


def control(offset: str, rest: str = "") -> tuple[str, bytes]:
    return "control", f'{{"streamNextOffset":"{offset}"{rest}}}'.encode()


def test_events_become_messages_when_the_control_event_has_told_where_to_go_on() -> None:
    it = SseReader(calls(), "-1")
    opened = Played(it.next_page(), [sse(), part(("data", b"[1]"))])
    assert opened.sends[0].request.target.endswith("?offset=-1&live=sse&isolation=read_committed")
    assert opened.sends[0].request.is_streamed
    assert opened.result == []
    found = play(it.next_page(), part(("data", b"[2,3]"), control("a")))
    assert found is not None
    assert [(each.value, each.offset, each.next_offset) for each in found] == [
        (1, "-1", None),
        (2, None, None),
        (3, None, "a"),
    ]


@pytest.mark.parametrize("end", [LOST, BodyEnd()])
def test_what_came_before_a_break_without_its_control_event_is_fetched_again(end: Any) -> None:
    it = SseReader(calls(), "-1")
    play(it.next_page(), sse(), part(("data", b"[1]"), control("a"), ("data", b"[2]")))
    broken = Played(it.next_page(), [end])
    assert isinstance(broken.steps[1], CloseChannel)
    again = Played(it.next_page(), [LOST, sse(), part(("data", b"[2]"), control("b"))])
    assert {send.request.target.partition("?")[2] for send in again.sends} == {"offset=a&live=sse"}
    assert [each.value for each in again.result] == [2]


def test_events_end_with_the_stream() -> None:
    it = SseReader(calls(), "-1")
    last = control("a", ',"upToDate":true,"streamClosed":true')
    play(it.next_page(), sse(), part(("data", b"[1]"), last))
    ended = Played(it.next_page(), [])
    assert isinstance(ended.steps[0], CloseChannel)
    assert ended.result is None


def test_bytes_come_as_base64() -> None:
    it = SseReader(calls(content_type="image/png"), "-1")
    data = [("data", b64encode(b"\xff")), ("data", b64encode(b"\x00")), ("other", b"x")]
    found = play(it.next_page(), sse(stream_sse_data_encoding="base64"), part(*data, control("a")))
    assert found is not None
    assert [each.raw for each in found] == [b"\xff\x00"]


@pytest.mark.parametrize("event", [("control", b"{"), ("control", b"{}"), ("data", b"*")])
def test_an_event_that_is_none_is_refused(event: tuple[str, bytes]) -> None:
    it = SseReader(calls(content_type="image/png"), "-1")
    with pytest.raises(errors.ProtocolError):
        play(it.next_page(), sse(stream_sse_data_encoding="base64"), part(event))


def test_a_server_without_events_is_told_apart() -> None:
    with pytest.raises(errors.ProtocolError, match="live=sse"):
        play(SseReader(calls(), "-1").next_page(), plain(b"[1]", "a"))
    with pytest.raises(errors.StreamNotFound):
        play(SseReader(calls(), "-1").next_page(), problem(404, "stream_not_found"))


def test_how_to_follow_is_chosen_by_name() -> None:
    assert type(live_reader(calls(), "-1", "auto")) is PageReader
    assert type(live_reader(calls(), "-1", "long-poll")) is PageReader
    assert type(live_reader(calls(), "-1", "sse")) is SseReader
    with pytest.raises(ValueError, match="long-poll"):
        live_reader(calls(), "-1", "push")


def test_a_silent_event_stream_is_given_up_after_a_while() -> None:
    it = SseReader(calls(), "-1")
    played = Played(it.next_page(), [sse(), LOST])
    waits = [step for step in played.steps if isinstance(step, Receive)]
    assert waits[0].silence_seconds > 60


def test_a_tail_that_catches_up_does_not_wait_for_a_dead_server_for_ever() -> None:
    live = reader(is_live=True)
    played = Played(live.next_page(), [frames(b"1", tail=5)])
    played = Played(live.next_page(), [frames(b"2", start=1, tail=5)])
    assert "live=" not in played.sends[0].request.target
    assert played.sends[0].silence_seconds < inf


def test_a_server_that_gives_messages_but_no_way_past_them_is_left() -> None:
    pages = reader()
    play(pages.next_page(), plain(b"[1]", "5"))
    assert isinstance(Played(pages.next_page(), [plain(b"[1]", "5")]).error, errors.ProtocolError)
