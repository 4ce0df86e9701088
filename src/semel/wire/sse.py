"""Server-sent events. A read is sent as a data event (if there is data) and a control event.

Each line of a payload becomes a `data:` line. CRLF, CR and LF end a line. A reader removes one
space after the colon. Therefore a line that begins with a space gets an additional space.
"""

import codecs
from base64 import b64encode
from collections.abc import Generator, Iterator, Sequence
from typing import Final

import msgspec

from semel.model.limits import KIB
from semel.model.messages import is_json, is_text
from semel.model.offsets import print_offset
from semel.model.slices import Slice
from semel.wire.bodies import to_bytes, to_json_array
from semel.wire.schema import ControlEvent

HELD_BYTES_MAX: Final = 64 * KIB
EVENT_GROWTH_MAX: Final = 6  # each line end becomes a line end and a field name
EVENT_STEP_BYTES: Final = 256 * KIB  # of the payload, in one step of an event

# An event that is encoded in steps: one part is yielded per step, and the last part is returned.
EventParts = Generator[bytes, None, bytes]

_decoder_of: Final = codecs.getincrementaldecoder("utf-8")


def data_event(payload: bytes) -> bytes:
    """Return a data event that contains `payload`."""
    return b"".join(parts_of(data_event_parts(payload)))


def data_event_parts(payload: bytes, *, is_text: bool = False) -> EventParts:
    """Encode a data event that contains `payload`. Each part has EVENT_STEP_BYTES of the payload.

    With `is_text`, bytes that are not UTF-8 are replaced. A payload of line ends becomes an event
    six times as long, and takes 20 microseconds per KiB.
    """
    decoder = _decoder_of("replace") if is_text else None
    prefix, start, is_line_start = b"event: data\ndata:", 0, True
    while True:
        end = start + EVENT_STEP_BYTES
        if payload[end - 1 : end + 1] == b"\r\n":
            end += 1  # the two are one line end
        lines = payload[start:end]
        if decoder is not None:
            lines = decoder.decode(lines, end >= len(payload)).encode()
        if is_line_start and lines.startswith(b" "):
            prefix += b" "
        if end >= len(payload):
            return b"".join((prefix, _with_fields(lines), b"\n\n"))
        yield prefix + _with_fields(lines)
        prefix, start, is_line_start = b"", end, lines.endswith((b"\r", b"\n"))


def parts_of(event: EventParts) -> Iterator[bytes]:
    """Yield all parts of an event, also the last one."""
    yield (yield from event)


def _with_fields(lines: bytes) -> bytes:
    """Return `lines` with a `data:` after each line end. No object is created per line."""
    if b"\r" in lines:
        lines = lines.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    if b"\n" in lines:
        lines = lines.replace(b"\n ", b"\n  ").replace(b"\n", b"\ndata:")
    return lines


def control_event(
    next_offset: int,
    *,
    cursor: int | None = None,
    is_up_to_date: bool = False,
    is_closed: bool = False,
    blocked_by: str | None = None,
) -> bytes:
    """Return a control event with the reader's next offset and state.

    With `is_closed`, the event has no read cursor, because there will be no further read.
    """
    event = ControlEvent(
        print_offset(next_offset),
        is_closed,
        None if is_closed or cursor is None else str(cursor),
        is_up_to_date,
        None if is_up_to_date else blocked_by,
    )
    return b"event: control\ndata:" + msgspec.json.encode(event) + b"\n\n"


class SseEncoder:
    """Encodes the reads of one connection as data events.

    A UTF-8 character can be split between two messages. A message that ends with an incomplete
    character is held back until a later message completes the character. Until then, `next_offset`
    is the offset of the held message, so that a reader can reconnect and get the whole character.

    If more than HELD_BYTES_MAX bytes would be held back, only the incomplete character is held
    back. A reader that reconnects before the character is complete loses the character.
    """

    def __init__(self, content_type: str, start: int) -> None:
        self.next_offset = start
        self._is_json = is_json(content_type)
        self._is_text = is_text(content_type)
        self._held: list[tuple[int, bytes]] = []

    @property
    def is_holding(self) -> bool:
        """True if bytes of an earlier message are held back."""
        return bool(self._held)

    def data(self, slices: Sequence[Slice], *, next_offset: int, is_final: bool = False) -> bytes:
        """Return the data event for a read; empty if there is nothing to send.

        With `is_final`, no message is held back, because no more messages will follow.
        """
        parts = self.data_parts(slices, next_offset=next_offset, is_final=is_final)
        return b"".join(parts_of(parts))

    def data_parts(
        self, slices: Sequence[Slice], *, next_offset: int, is_final: bool = False
    ) -> EventParts:
        """Do the same as `data`, in steps. `next_offset` has its new value after the first step."""
        self.next_offset = next_offset
        if self._is_text:
            payload = self._text(slices, is_final=is_final)
            return (yield from data_event_parts(payload, is_text=True)) if payload else b""
        if not slices:
            return b""
        payload = to_json_array(slices) if self._is_json else b64encode(to_bytes(slices))
        return (yield from data_event_parts(payload))

    def _text(self, slices: Sequence[Slice], *, is_final: bool) -> bytes:
        """Return the text that can be sent now, and hold back the rest."""
        payload = b"".join([text for _, text in self._held]) + to_bytes(slices)
        if is_final or not _unfinished_bytes(payload):
            self._held = []
            return payload
        self._held += [
            (each.offset + at, text) for each in slices for at, text in enumerate(each.messages())
        ]
        return payload[: self._hold_back(payload)]

    def _hold_back(self, payload: bytes) -> int:
        """Hold back the last messages of `payload`, because its last character is incomplete.

        Returns the length of the part of `payload` that can be sent now.
        """
        messages, first, end = self._held, len(self._held), len(payload)
        while pending := _unfinished_bytes(payload[max(0, end - 3) : end]):
            whole = end - pending
            while end > whole:
                first -= 1
                end -= len(messages[first][1])
        if len(payload) - end > HELD_BYTES_MAX:
            # There are too many bytes to hold back, so only the incomplete character is held back.
            # A reader that reconnects at this offset loses the character.
            end = len(payload) - _unfinished_bytes(payload)
            messages, first = [(self.next_offset, payload[end:])], 0
        self._held = messages[first:]
        self.next_offset = self._held[0][0]
        return end


def _unfinished_bytes(payload: bytes) -> int:
    """Return the size of the incomplete character at the end of `payload`; 0 if there is none."""
    decoder = _decoder_of("replace")
    decoder.decode(payload[-3:])
    return len(decoder.getstate()[0])
