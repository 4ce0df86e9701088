"""Flows that read a stream page by page. Each page has the offset at which to continue.

This module uses no sockets.
"""

import json
from collections import deque
from collections.abc import Mapping, Sequence
from math import inf
from typing import Final, Protocol

import msgspec
from msgspec import Raw, Struct

from semel.client import errors
from semel.client.flows import Exchanged, Flow, OnRetry, RetrySafety, ask
from semel.client.requests import Request, query
from semel.client.response_parser import Response
from semel.client.stream_calls import StreamCalls
from semel.client.values import NOW, READ_COMMITTED, READ_UNCOMMITTED, Message
from semel.model.messages import is_json, normalise, timestamps_of
from semel.model.offsets import parse_offset
from semel.model.slices import Slice
from semel.wire.bodies import BadFormat, decode_frames
from semel.wire.headers import FRAMES, read_flag, to_number

# How long a live read waits for a byte. It is longer than a server stays silent: servers end a
# long-poll after about half a minute, and an event stream after about a minute.
SILENCE_SECONDS: Final = 90.0
_array: Final = msgspec.json.Decoder(list[Raw])
_ACCEPT: Final = (("Accept", f"{FRAMES}, */*;q=0.5"),)
_ACCEPT_GZIP: Final = (*_ACCEPT, ("Accept-Encoding", "gzip"))


class Page(Struct, frozen=True):
    """The content of one response to a read.

    `end` is the stream's tail in that response, or None if the server does not report it.
    """

    messages: list[Message]
    next_offset: str
    is_up_to_date: bool = False
    is_closed: bool = False
    cursor: str | None = None
    end: int | None = None


class ReadSource(Protocol):
    """The reader that returned a message. It knows the incarnation of the stream that it reads."""

    incarnation: str | None


class StreamName(Struct):
    """A source that has only the path and the incarnation of its stream."""

    path: str
    incarnation: str | None = None


class MessageReader(Protocol):
    """Reads messages page by page. See `PageReader`."""

    @property
    def offset(self) -> str:
        """The offset after the last page."""

    @property
    def has_begun(self) -> bool:
        """True after the first response."""

    @property
    def is_at_end(self) -> bool:
        """True if the last response reached the tail."""

    @property
    def is_closed(self) -> bool:
        """True if the last response reached the end of what is closed."""

    def begin(self) -> Flow[None]:
        """Decide where to begin, if that depends on the present tail."""

    def next_page(self) -> Flow[list[Message] | None]:
        """Return the next messages, or None if the read has ended. The list can be empty."""

    def hang_up(self) -> Flow[None]:
        """Close what is open between two pages."""


class PageReader:
    """Reads a stream page by page, starting at `offset`.

    The flow `next_page` returns the next messages, or None at the end. A reader that is not live
    ends at the current tail. A live reader ends only at the tail of a closed stream. At the tail of
    an open stream, a live reader waits with a long-poll if `waits_at_end` is True. Otherwise it
    returns an empty list.

    With read_committed, the stable offset counts as the tail. If the first response shows that the
    server is not semel, later requests omit the isolation parameter.
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
                f"isolation={isolation!r} is invalid; expected {READ_COMMITTED!r}"
                f" or {READ_UNCOMMITTED!r}"
            )
        self.offset = offset
        self.source: ReadSource | None = None  # every message gets this as its `source`
        self.has_begun = False  # after the first response, a live reader retries without a limit
        self.is_at_end = False  # the last response reached the tail
        self.is_closed = False  # the last response reached the end of a closed stream
        self.incarnation: str | None = None  # the incarnation of the stream
        self.generation: int | None = None  # the generation of the server's data
        self._isolation = isolation
        self._waits_at_end = waits_at_end
        self._on_retry = on_retry
        self._calls = calls
        self._is_live = is_live
        self._is_over = False
        self._cursor: str | None = None
        self._end: int | None = None
        self.tail: int | None = None  # the stream's tail, as the server last reported it

    def begin(self) -> Flow[None]:
        """Replace the offset `now` with the current tail, so that a retry uses the same offset."""
        if self.offset == NOW:
            yield from self._read_page(None, 200)

    def next_page(self) -> Flow[list[Message] | None]:
        """Return the next messages, or None if the read has ended. The list can be empty."""
        yield from self.begin()
        if self._is_over:
            return None
        is_waiting = self._is_live and self.is_at_end and self._waits_at_end
        return (yield from self._read_page("long-poll" if is_waiting else None, 200, 204))

    def _read_page(self, live: str | None, *statuses: int) -> Flow[list[Message]]:
        response = (yield from self._get(live)).expect(*statuses)
        page = page_of(response, self.offset, self.source)
        self.check(response.headers)
        self._move(page)
        return page.messages

    def hang_up(self) -> Flow[None]:
        """Do nothing. A subclass that keeps a connection between two pages closes it here."""
        yield from ()

    def check(self, headers: Mapping[str, str]) -> None:
        """Record the stream's incarnation and generation from the response headers.

        Raises StreamGone if the incarnation has changed since an earlier response, and
        StreamRestored if the generation has.
        """
        incarnation = headers.get("stream-incarnation")
        self._calls.note_incarnation(incarnation)
        if self.incarnation is not None and incarnation not in (None, self.incarnation):
            raise errors.StreamGone(
                f"stream {self._calls.path} was deleted and created again; read it from the start"
            )
        generation = to_number(headers.get("stream-generation", ""))
        if self.generation is not None and generation not in (None, self.generation):
            raise errors.StreamRestored(
                "the server's data was restored from an older copy; the messages of stream"
                f" {self._calls.path} that this reader has read may no longer be the same"
            )
        self.generation = generation or self.generation
        if self.source is not None and incarnation is not None:
            self.source.incarnation = incarnation
        self.incarnation = incarnation or self.incarnation
        is_frames = normalise(headers.get("content-type", "")) == FRAMES
        self._calls.is_foreign = self.incarnation is None and not is_frames

    @property
    def isolation(self) -> str | None:
        """The value of the `isolation` parameter in requests, or None to omit the parameter.

        The parameter is omitted for read_uncommitted, because that is the server's default. It is
        also omitted if the server is not semel.
        """
        is_sent = self._isolation == READ_COMMITTED and not self._calls.is_foreign
        return self._isolation if is_sent else None

    def _move(self, page: Page) -> None:
        has_moved = page.next_offset != self.offset
        if page.messages and not has_moved:
            raise errors.ProtocolError(
                f"the server returned messages, but the next offset is still {self.offset}"
            )
        self.offset, self._cursor = page.next_offset, page.cursor
        self.has_begun = True
        self.tail = page.end if page.end is not None else self.tail
        if self._end is None:
            self._end = page.end
        self.is_at_end = page.is_up_to_date or page.is_closed or not (page.messages or has_moved)
        self.is_closed = page.is_closed
        if self._is_live:
            self._is_over = page.is_closed
        else:
            self._is_over = page.is_closed or self.is_at_end or self._has_passed(page)

    def _has_passed(self, page: Page) -> bool:
        """Return True if the reader has reached the tail that the first response reported."""
        end = page.messages[-1].next_ordinal if page.messages else None
        return self._end is not None and isinstance(end, int) and end >= self._end

    def _get(self, live: str | None) -> Flow[Exchanged]:
        cursor = self._cursor if live else None
        target = self._calls.target + query(
            offset=self.offset, live=live, cursor=cursor, isolation=self.isolation
        )
        return ask(
            Request("GET", target, _ACCEPT_GZIP if self._calls.site.is_gzip else _ACCEPT),
            RetrySafety.READ,
            retries=None if self.has_begun and self._is_live else self._calls.site.retries,
            silence_seconds=SILENCE_SECONDS if self._is_live else inf,
            on_retry=self._on_retry,
            stream=self._calls.path,
        )


class FetchedMessages:
    """The messages that were fetched and not returned yet, and how far the reader is.

    Base class of the iterators that `read` and `tail` return.
    """

    def __init__(self, reader: MessageReader) -> None:
        self._reader = reader
        self._ready: deque[Message] = deque()
        self._returned: Message | None = None  # the last message of the present page
        self._start = reader.offset  # where the present page begins
        self._is_cut = False  # the rest of the present page will not be returned

    @property
    def next_offset(self) -> str:
        """The offset at which to continue after the messages that were returned so far.

        A server other than semel reports an offset only for each response. In the middle of such a
        response, this is the offset of its first message, so that no message is skipped.
        """
        if not self._ready and not self._is_cut:
            return self._reader.offset
        known = None if self._returned is None else self._returned.next_offset
        return self._start if known is None else str(known)

    @property
    def up_to_date(self) -> bool:
        """True if every message up to the tail was returned, when the server last responded."""
        return self._reader.is_at_end and not self._ready and not self._is_cut

    @property
    def closed(self) -> bool:
        """True if the stream is closed and all its messages were returned."""
        return self._reader.is_closed and not self._ready and not self._is_cut

    def _add(self, page: list[Message], start: str, limit: int | None = None) -> None:
        self._start, self._returned = start, None
        self._is_cut = limit is not None and len(page) > limit
        self._ready.extend(page[:limit] if self._is_cut else page)

    def _drop(self) -> None:
        """Drop the messages that were not returned. `next_offset` stays before them."""
        self._is_cut = self._is_cut or bool(self._ready)
        self._ready.clear()

    def _take(self) -> Message | None:
        """Return the next message that was fetched, or None if there is none.

        Another thread can take or drop messages at the same time.
        """
        try:
            self._returned = message = self._ready.popleft()
        except IndexError:
            return None
        return message


# ---- pages ---------------------------------------------------------------------------------------


def page_of(response: Response, start: str, source: ReadSource | None = None) -> Page:
    """Decode the response to a read that starts at `start`.

    Raises ProtocolError if the response is invalid.
    """
    headers = response.headers
    next_offset = headers.get("stream-next-offset")
    if next_offset is None:
        raise errors.ProtocolError("the response has no Stream-Next-Offset header")
    media_type = headers.get("content-type", "")
    end: int | None = None
    if response.status != 204 and normalise(media_type) == FRAMES:
        messages, end = _from_frames(response.body, source)
    else:  # a response with status 204 has no body, and therefore no messages
        messages = plain_messages(response.body, media_type, start, next_offset, source)
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
        raise errors.DamagedResponse(f"the response is not valid {FRAMES}: {error}") from error
    messages: list[Message] = []
    media_type = frames.content_type
    for piece in frames.slices:
        time_ms = piece.time_ms
        for offset, raw in enumerate(piece.messages(), piece.offset):
            messages.append(Message(raw, media_type, offset, offset + 1, time_ms, source=source))
        if piece.extras:
            _add_extras(messages[-piece.count :], piece)
    if messages:
        messages[-1].next_ordinal = frames.next_offset
    return messages, frames.tail


def _add_extras(messages: list[Message], piece: Slice) -> None:
    times = timestamps_of(piece.extras, piece.count)
    extras = zip(piece.keys(), piece.headers(), times, strict=True)
    for message, (key, headers, time_ms) in zip(messages, extras, strict=True):
        message.key, message.headers, message.time_ms = key, headers, time_ms


def plain_messages(
    body: bytes,
    media_type: str,
    start: str | None,
    next_offset: str,
    source: ReadSource | None = None,
) -> list[Message]:
    """Return the messages in a body that has the stream's own media type.

    Such a body has no offsets for individual messages. Only the first message gets an offset, and
    only the last message gets a next offset.
    """
    if not body:
        return []
    raws = split_array(body) if is_json(media_type) else [body]
    messages = [Message(raw, media_type, source=source) for raw in raws]
    if messages:
        messages[0].ordinal = None if start == NOW else start
        messages[-1].next_ordinal = next_offset
    return messages


def split_array(body: bytes) -> list[bytes]:
    """Return the elements of a JSON array as bytes.

    Raises DamagedResponse if `body` is not a JSON array.
    """
    try:
        return [bytes(raw).strip() for raw in _array.decode(body)]
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    try:
        values = json.loads(body)  # accepts more than msgspec does, for example a lone surrogate
    except ValueError as error:
        raise errors.DamagedResponse(f"the response is not JSON: {error}") from error
    if not isinstance(values, list):
        raise errors.DamagedResponse("the response is not a JSON array")
    return [json.dumps(value).encode("ascii") for value in values]


def join_messages(messages: Sequence[Message]) -> bytes:
    """Return the concatenated messages of a stream. Raises TypeError for a JSON stream."""
    if any(is_json(message.content_type) for message in messages):
        raise TypeError(
            "the messages of a JSON stream cannot be joined; use read() to get their values"
        )
    return b"".join(message.raw for message in messages)


def join_text(stream: str, text: bytes) -> str:
    """Return the text of a stream as a str. Raises UndecodableMessage if it is not UTF-8."""
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        raise errors.UndecodableMessage(
            f"the messages of stream {stream} cannot be decoded as text: {error}"
        ) from error


# ---- frames that the caller decodes --------------------------------------------------------------


class FramesPage(Struct, frozen=True):
    """One response in the frames format. The caller decodes `body`."""

    body: bytes
    incarnation: str
    next_offset: int


def frames_page(calls: StreamCalls, offset: str) -> Flow[FramesPage]:
    """Return about 1 MiB of committed messages in the frames format, starting at `offset`.

    Raises NotSupported if the server is not semel.
    """
    target = calls.target + query(offset=offset, isolation=READ_COMMITTED)
    request = Request("GET", target, (("Accept", FRAMES),))
    exchanged = yield from ask(
        request, RetrySafety.READ, retries=calls.site.retries, stream=calls.path
    )
    response = exchanged.expect(200)
    headers = response.headers
    incarnation = headers.get("stream-incarnation")
    if incarnation is None or normalise(headers.get("content-type", "")) != FRAMES:
        raise errors.NotSupported("this server cannot send messages in semel's frames format")
    next_offset = parse_offset(headers.get("stream-next-offset", ""))
    if next_offset is None:
        raise errors.ProtocolError("the response has no Stream-Next-Offset header")
    return FramesPage(response.body, incarnation, next_offset)
