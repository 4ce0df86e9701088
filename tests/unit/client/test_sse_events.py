import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.client import sse
from semel.client.errors import ProtocolError
from semel.client.sse import SseEvent, SseParser

STREAM = (
    b": a comment\nid: 7\nevent: data\ndata:one\n\n"
    b"event: control\r\ndata: two\r\ndata:  three\r\n\r\n"
    b"data:four\rdata\r\rretry: 3\n\nevent: empty\n\ndata:last\n"
)
EVENTS = [
    SseEvent("data", b"one"),
    SseEvent("control", b"two\n three"),
    SseEvent("message", b"four\n"),
]


@pytest.mark.parametrize("step", [1, 2, 3, 1000])
def test_events_are_the_same_in_whatever_pieces_they_come(step: int) -> None:
    parser = SseParser()
    found = []
    for at in range(0, len(STREAM), step):
        found += parser.feed(STREAM[at : at + step])
    assert found == EVENTS


def test_an_endless_event_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "EVENT_BYTES_MAX", 15)
    parser = SseParser()
    parser.feed(b"data:12345\n")
    with pytest.raises(ProtocolError, match="longer than 15"):
        parser.feed(b"data:12345\n")


@given(st.binary(max_size=200), st.integers(1, 7))
def test_any_bytes_give_the_same_events_in_any_pieces(data: bytes, step: int) -> None:
    whole = SseParser().feed(data)
    parser, found = SseParser(), []
    for at in range(0, len(data), step):
        found += parser.feed(data[at : at + step])
    assert found == whole
