"""Reading: pages of messages, and how to go on after each. Pure: flows, no sockets."""

import json
from collections.abc import Mapping
from math import inf
from typing import Final, Protocol

import msgspec
from msgspec import Raw, Struct

from semel.client import errors
from semel.client.errors import NotSupported, ProtocolError
from semel.client.flows import Exchanged, Flow, OnRetry, RetrySafety, ask
from semel.client.requests import Fields, Request, query
from semel.client.response_parser import Response
from semel.client.stream_calls import StreamCalls
from semel.client.txn_values import READ_COMMITTED, READ_UNCOMMITTED
from semel.client.values import NOW, Message
from semel.model.media import is_json, normalise
from semel.model.messages import timestamps_of
from semel.model.offsets import parse_offset
from semel.model.slices import Slice
from semel.wire.bodies import BadFormat, decode_frames
from semel.wire.headers import FRAMES, read_flag

# How long a server may keep a live reader waiting before it counts as lost. Servers end a long-poll
# after half a minute or so, and an event stream after a minute.
SILENCE_SECONDS: Final = 90.0
_array: Final = msgspec.json.Decoder(list[Raw])
_ACCEPT: Final = ("Accept", f"{FRAMES}, */*;q=0.5")


class Page(Struct, frozen=True):
    """What one answer brought. `end` is where the stream ended then, if the server tells."""

    messages: list[Message]
    next_offset: str
    is_up_to_date: bool = False
    is_closed: bool = False
    cursor: str | None = None
    end: int | None = None


class ReadSource(Protocol):
    """What messages know of the reader they come from: which stream of the path it reads."""

    incarnation: str | None


class PageReader:
    """A place in a stream, and how to move on from it.

    `next_page` is a flow that gives the next messages, or None when there is nothing more to come:
    at the end as it is, or, if `is_live`, at the end of a closed stream. `waits_at_end`: at the end
    of an open one the server is to answer only when there is more, or after a while.

    At read_committed it ends where the oldest open transaction begins. Other servers than semel
    have none; they ignore the word until they are known, and are not sent it after that.
    """

    def __init__(
        self,
        calls: StreamCalls,
        offset: str,
        *,
        is_live: bool,
        waits_at_end: bool = True,
        isolation: str = READ_COMMITTED,
        on_retry: OnRetry | None = None,
    ) -> None:
        if isolation not in (READ_COMMITTED, READ_UNCOMMITTED):
            raise ValueError(
                f"isolation must be {READ_COMMITTED} or {READ_UNCOMMITTED}, not {isolation!r}"
            )
        self.offset = offset
        self.source: ReadSource | None = None  # what its messages know of it
        self._isolation = isolation
        self._waits_at_end = waits_at_end
        self._on_retry = on_retry
        self._calls = calls
        self._is_live = is_live
        self._is_at_end = False
        self._is_over = False
        self._has_begun = False
        self._incarnation: str | None = None
        self._cursor: str | None = None
        self._end: int | None = None
        self.tail: int | None = None  # where the stream ended when the server last told

    @property
    def has_begun(self) -> bool:
        """Whether the server has answered once: from then on a live reader waits for it."""
        return self._has_begun

    @property
    def is_at_end(self) -> bool:
        """Whether all was read that there was when the server last answered."""
        return self._is_at_end

    @property
    def incarnation(self) -> str | None:
        """Which stream of the path is read, once the server has told."""
        return self._incarnation

    def begin(self) -> Flow[None]:
        """Turn `now` into an offset: after a break it would mean another place."""
        if self.offset == NOW:
            asked = yield from self._get(live=None)
            page = page_of(asked.expect(200), self.offset, self.source)
            self.check(asked.answer.headers)
            self._move(page)

    def next_page(self) -> Flow[list[Message] | None]:
        """Read on; an empty list says only that time has passed."""
        yield from self.begin()
        if self._is_over:
            return None
        is_waiting = self._is_live and self._is_at_end and self._waits_at_end
        live = "long-poll" if is_waiting else None
        asked = yield from self._get(live)
        page = page_of(asked.expect(200, 204), self.offset, self.source)
        self.check(asked.answer.headers)
        self._move(page)
        return page.messages

    def hang_up(self) -> Flow[None]:
        """Let go of what is held between two pages: nothing, here."""
        yield from ()

    def check(self, headers: Mapping[str, str]) -> None:
        """Refuse to go on in another stream of the same path."""
        found = headers.get("stream-incarnation")
        if self._incarnation is not None and found not in (None, self._incarnation):
            raise errors.StreamGone(
                f"{self._calls.path} was deleted and made anew; this place in it is gone"
            )
        if self.source is not None and found is not None:
            self.source.incarnation = found
        self._incarnation = found or self._incarnation
        is_frames = normalise(headers.get("content-type", "")) == FRAMES
        self._calls.is_foreign = self._incarnation is None and not is_frames

    @property
    def isolation(self) -> str | None:
        """What to send: semel's own default need not be said, and others do not know the word."""
        is_said = self._isolation == READ_COMMITTED and not self._calls.is_foreign
        return self._isolation if is_said else None

    def _move(self, page: Page) -> None:
        has_moved = page.next_offset != self.offset
        if page.messages and not has_moved:
            raise ProtocolError(f"there are messages at {self.offset}, but no way past them")
        self.offset, self._cursor = page.next_offset, page.cursor
        self._has_begun = True
        self.tail = page.end if page.end is not None else self.tail
        if self._end is None:
            self._end = page.end
        self._is_at_end = page.is_up_to_date or not (page.messages or has_moved)
        if self._is_live:
            self._is_over = page.is_closed
        else:
            self._is_over = page.is_closed or self._is_at_end or self._has_passed(page)

    def _has_passed(self, page: Page) -> bool:
        """Whether all is read that was there when the reading began."""
        last = page.messages[-1].next_ordinal if page.messages else None
        return self._end is not None and isinstance(last, int) and last >= self._end

    def _get(self, live: str | None) -> Flow[Exchanged]:
        cursor = self._cursor if live else None
        target = self._calls.target + query(
            offset=self.offset, live=live, cursor=cursor, isolation=self.isolation
        )
        headers: Fields = (_ACCEPT,)
        if self._calls.site.is_gzip:
            headers = (_ACCEPT, ("Accept-Encoding", "gzip"))
        return ask(
            Request("GET", target, headers),
            RetrySafety.READ,
            retries=None if self._has_begun and self._is_live else self._calls.site.retries,
            silence_seconds=SILENCE_SECONDS if self._is_live else inf,
            on_retry=self._on_retry,
        )


# ---- pages ---------------------------------------------------------------------------------------


def page_of(answer: Response, start: str, source: ReadSource | None = None) -> Page:
    """Read what an answer to a read from `start` brought."""
    headers = answer.headers
    next_offset = headers.get("stream-next-offset")
    if next_offset is None:
        raise ProtocolError("the answer has no Stream-Next-Offset")
    media_type = headers.get("content-type", "")
    messages: list[Message] = []
    end = None
    if answer.status == 204:
        pass
    elif normalise(media_type) == FRAMES:
        messages, end = _from_frames(answer.body, source)
    else:
        messages = plain_messages(answer.body, media_type, start, next_offset, source)
    return Page(
        messages,
        next_offset,
        read_flag(headers, "stream-up-to-date"),
        read_flag(headers, "stream-closed"),
        headers.get("stream-cursor"),
        end,
    )


def _from_frames(body: bytes, source: ReadSource | None) -> tuple[list[Message], int]:
    try:
        frames = decode_frames(body)
    except BadFormat as error:
        raise ProtocolError(f"the answer is no {FRAMES}: {error}") from None
    messages: list[Message] = []
    media_type = frames.content_type
    for piece in frames.slices:
        place, written_ms = piece.offset, piece.time_ms
        for raw in piece.messages():
            messages.append(Message(raw, media_type, place, place + 1, written_ms, source=source))
            place += 1
        if piece.extras:
            _add_extras(messages[-piece.count :], piece)
    if messages:
        messages[-1].next_ordinal = frames.next_offset
    return messages, frames.tail


def _add_extras(messages: list[Message], piece: Slice) -> None:
    times = timestamps_of(piece.extras, piece.count)
    carried = zip(piece.keys(), piece.headers(), times, strict=True)
    for message, (key, headers, time_ms) in zip(messages, carried, strict=True):
        message.key, message.headers, message.time_ms = key, headers, time_ms


def plain_messages(
    body: bytes,
    media_type: str,
    start: str | None,
    next_offset: str,
    source: ReadSource | None = None,
) -> list[Message]:
    """Read a body in the stream's own media type: only its two ends have an offset."""
    if not body:
        return []
    found = split_array(body) if is_json(media_type) else [body]
    messages = [Message(raw, media_type, source=source) for raw in found]
    if messages:
        messages[0].ordinal = None if start == NOW else start
        messages[-1].next_ordinal = next_offset
    return messages


def split_array(body: bytes) -> list[bytes]:
    """Split a JSON array into its elements, byte for byte."""
    try:
        return [bytes(raw).strip() for raw in _array.decode(body)]
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    try:
        # JSON, and more than msgspec takes: half a surrogate pair, say.
        found = json.loads(body)
    except ValueError as error:
        raise ProtocolError(f"the answer is no JSON: {error}") from None
    if not isinstance(found, list):
        raise ProtocolError("the answer is no JSON array")
    return [json.dumps(value).encode("ascii") for value in found]


# ---- frames reading ------------------------------------------------------------------------------
# Reading frames as they come, for those who take them apart by themselves. Pure: flows.


class FramesPage(Struct, frozen=True):
    """One answer in the frames format, of the stream of this incarnation."""

    body: bytes
    incarnation: str
    next_offset: int


def frames_page(calls: StreamCalls, offset: str) -> Flow[FramesPage]:
    """Read what is committed from an offset on, about 1 MiB of it."""
    target = calls.target + query(offset=offset, isolation=READ_COMMITTED)
    request = Request("GET", target, (("Accept", FRAMES),))
    asked = yield from ask(request, RetrySafety.READ, retries=calls.site.retries)
    answer = asked.expect(200)
    headers = answer.headers
    incarnation = headers.get("stream-incarnation")
    if incarnation is None or normalise(headers.get("content-type", "")) != FRAMES:
        raise NotSupported("this server does not know frames; only semel has them")
    next_offset = parse_offset(headers.get("stream-next-offset", ""))
    if next_offset is None:
        raise ProtocolError("the answer has no Stream-Next-Offset")
    return FramesPage(answer.body, incarnation, next_offset)
