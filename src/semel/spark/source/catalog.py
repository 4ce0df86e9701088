"""Looking at the streams of a read: which there are, where they begin, where they end."""

import re
from collections.abc import Callable, Container, Mapping
from difflib import get_close_matches
from itertools import islice
from typing import Final, TypeVar

from msgspec import Struct

from semel.client.errors import (
    NotSupported,
    ProtocolError,
    StreamGone,
    StreamNotFound,
    Unavailable,
)
from semel.client.reading import FramesPage, frames_page
from semel.client.server_calls import list_streams
from semel.client.sync.client import Client
from semel.model.offsets import parse_offset, print_offset
from semel.spark.client_cache import client_for
from semel.spark.errors import FIRST_SECONDS, StreamMissing, not_a_semel_server, server_unreachable
from semel.spark.options import SourceOptions, SparkOptionError
from semel.spark.source.frames import FrameRows, rows_of
from semel.spark.source.offsets import EARLIEST_NUMBER, LATEST_NUMBER, StreamPosition

T = TypeVar("T")
_LITERAL: Final = re.compile(r"[\w/-]*")
_NAMES_LOOKED_AT: Final = 5_000
# Times are not quite in order: a staged message has the time of its staging, and its place only
# when the transaction is committed. What is older by more than this has nothing younger before it.
_STAGED_MS_MAX: Final = 3_600_000


class StreamEnd(Struct, frozen=True):
    """Where a stream ends: `stable` is as far as a committed reader may go, `tail` the end."""

    id: str
    stable: int
    tail: int


class StreamCatalog:
    """Asks a server about the streams of one read."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._has_answered = False

    def ends(self) -> dict[str, StreamEnd]:
        """Look where the streams of the read end; those that are not there are left out."""
        found = {stream: self._end(stream) for stream in self._paths()}
        return {stream: end for stream, end in found.items() if end is not None}

    def require(self, found: Container[str], known: Container[str] = ()) -> None:
        """Refuse to go on without a stream that is named and was never seen: StreamMissing."""
        for stream in self._options.streams:
            if stream not in found and stream not in known:
                raise self._missing(stream)

    def reads(self, stream: str) -> bool:
        """Tell whether a stream is one of those the read names."""
        pattern = self._options.pattern
        if pattern is None:
            return stream in self._options.streams
        return re.fullmatch(pattern, stream) is not None

    def first(self, stream: str) -> int:
        """Find the first offset of a stream that is kept."""
        page = self._ask(lambda client: client.run(list_streams(client.site, stream, None, 1)))
        for entry in page.streams:
            if entry.path == stream:
                return _ordinal(entry.first_offset)
        raise self._missing(stream)

    def starts(self, ends: Mapping[str, StreamEnd]) -> dict[str, StreamPosition]:
        """Find where the read begins in each of these streams, as the options say."""
        return {
            stream: StreamPosition(end.id, self._start(stream, end)) for stream, end in ends.items()
        }

    def _start(self, stream: str, end: StreamEnd) -> int:
        since_ms = self._options.starting_timestamp_ms
        if since_ms is not None:
            low = self._halved(stream, since_ms - _STAGED_MS_MAX, self.first(stream), end.stable)
            return self._scanned(stream, since_ms, low, end.stable)
        wanted = self._options.starts.of(stream)
        if wanted == EARLIEST_NUMBER:
            return self.first(stream)
        if wanted == LATEST_NUMBER:
            return end.stable
        if wanted > end.tail:
            raise SparkOptionError(
                f"startingOffsets: {stream} is to begin at {wanted} and ends at {end.tail} already:"
                " write a smaller offset, or -1 for the end"
            )
        return wanted

    def _scanned(self, stream: str, since_ms: int, low: int, high: int) -> int:
        """Find the first message that was stored at a time or later, one after the other."""
        while low < high:
            rows = self._rows(stream, low, high)
            late = rows.stored_ms >= since_ms
            if late.any():
                return min(int(rows.offsets[late.argmax()]), high)
            low = int(rows.offsets[-1]) + 1 if len(late) else high
        return high

    def _halved(self, stream: str, since_ms: int, low: int, high: int) -> int:
        """Find about where a time is, by halving the range."""
        while low < high:
            middle = (low + high) // 2
            rows = self._rows(stream, middle, high)
            late = rows.stored_ms >= since_ms
            if not len(late) or late[0]:
                high = middle
            elif late.any():
                return int(rows.offsets[late.argmax()])
            else:
                low = int(rows.offsets[-1]) + 1
        return low

    def _rows(self, stream: str, offset: int, end: int) -> FrameRows:
        """Read some messages from an offset on; none only if there is none before `end`."""
        while True:
            page = self._page(stream, offset)
            rows = rows_of(page.body)
            if len(rows.offsets) or not offset < page.next_offset < end:
                return rows
            offset = page.next_offset  # nothing but gaps so far

    def _page(self, stream: str, offset: int) -> FramesPage:
        calls = self._client().stream(stream).calls
        return self._ask(lambda client: client.run(frames_page(calls, print_offset(offset))))

    def _paths(self) -> list[str]:
        options = self._options
        if options.pattern is None:
            return list(options.streams)
        prefix = _literal_prefix(options.pattern)
        patience = self._first_timeout()
        entries = self._ask(lambda client: list(client.streams(prefix, timeout=patience)))
        return [entry.path for entry in entries if self.reads(entry.path)]

    def _end(self, stream: str) -> StreamEnd | None:
        """Look where a stream ends; None if it is not there."""
        patience = self._first_timeout()
        try:
            info = self._ask(lambda client: client.stream(stream).head(timeout=patience))
        except (StreamNotFound, StreamGone):
            return None
        if info.incarnation is None or info.stable_offset is None:
            raise not_a_semel_server(self._options.url)
        return StreamEnd(info.incarnation, _ordinal(info.stable_offset), _ordinal(info.next_offset))

    def _ask(self, call: Callable[[Client], T]) -> T:
        try:
            answer = call(self._client())
        except Unavailable as error:
            raise server_unreachable(error) from None
        except (NotSupported, ProtocolError) as error:
            raise not_a_semel_server(self._options.url, error) from None
        self._has_answered = True
        return answer

    def _client(self) -> Client:
        options = self._options
        return client_for(options.url, options.token, options.retry_seconds)

    def _first_timeout(self) -> float:
        seconds = self._options.retry_seconds
        return seconds if self._has_answered else min(seconds, FIRST_SECONDS)

    def _missing(self, stream: str) -> StreamMissing:
        """Say that a stream is not there, and which are called nearly so."""
        entries = self._ask(lambda client: list(islice(client.streams(), _NAMES_LOOKED_AT)))
        names = [entry.path for entry in entries]
        near = get_close_matches(stream, names, n=3)
        if near:
            hint = f"did you mean {' or '.join(near)}?"
        else:
            hint = f"there are {', '.join(names[:3]) or 'none at all'};"
        return StreamMissing(
            f"there is no stream {stream} at {self._options.url}: {hint}"
            f" `semel create {stream}` makes it"
        )


def _ordinal(offset: str) -> int:
    ordinal = parse_offset(offset)
    assert ordinal is not None, offset
    return ordinal


def _literal_prefix(pattern: str) -> str:
    """Give what every path that matches begins with, as far as that is plain to see."""
    found = _LITERAL.match(pattern)
    assert found is not None
    literal, rest = found[0], pattern[found.end() :]
    if not rest or "|" in pattern:
        return "" if "|" in pattern else literal
    # What a quantifier follows may be missing.
    return literal[:-1] if rest[0] in "*?{" else literal
