"""Pages of frames, read as they arrive."""

import pytest

from semel.client import errors
from semel.client.flows import Lost
from semel.client.reading import FramesPage, frames_page
from semel.wire.headers import FRAMES
from tests.unit.client.hand import Played, answer, calls, play, problem

END = "0000000000000000_0000000000000007"


def test_a_page_is_asked_for_as_committed_frames_and_again_if_its_answer_is_lost() -> None:
    page = answer(200, b"body", content_type=FRAMES, stream_incarnation="i", stream_next_offset=END)
    played = Played(frames_page(calls(), "3"), [Lost("reset"), page])
    assert played.result == FramesPage(b"body", "i", 7)
    (first, second) = played.sends
    assert first.request == second.request
    assert first.request.target == "/v1/stream/orders?offset=3&isolation=read_committed"
    assert first.request.headers == (("Accept", FRAMES),)


def test_a_page_that_is_gone_says_where_the_stream_begins() -> None:
    played = Played(frames_page(calls(), "3"), [problem(410, "offset_trimmed", head=END)])
    assert isinstance(played.error, errors.OffsetTrimmed)
    assert played.error.head == END


def test_another_server_has_no_frames() -> None:
    with pytest.raises(errors.NotSupported):
        play(frames_page(calls(), "3"), answer(200, b"[]", content_type="application/json"))
    with pytest.raises(errors.ProtocolError):
        strange = answer(200, content_type=FRAMES, stream_incarnation="i")
        play(frames_page(calls(), "3"), strange)
