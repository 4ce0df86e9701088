"""What live reads share: the engine, their times, and a good end for all of them."""

import asyncio
from typing import Protocol

from semel.broker.broker import ReadDone
from semel.broker.engine import Engine
from semel.server.reads import Reads
from semel.wire import cursors
from semel.wire.responses import StreamFacts


class LiveReader(Protocol):
    """A long-poll or an event stream."""

    def finish(self) -> None:
        """End, in good order."""


class Live:
    """All live readers of one engine."""

    def __init__(
        self, engine: Engine, reads: Reads, *, long_poll_seconds: float, sse_seconds: float
    ) -> None:
        self.engine = engine
        self.reads = reads
        self.long_poll_seconds = long_poll_seconds
        self.sse_seconds = sse_seconds
        self.loop = asyncio.get_running_loop()
        self.readers: set[LiveReader] = set()
        self.is_draining = False

    @property
    def waiting_count(self) -> int:
        """Count the live readers."""
        return len(self.readers)

    def drain(self) -> None:
        """Let every live reader go, in good order: it will come back, and be served then."""
        self.is_draining = True
        for reader in list(self.readers):
            reader.finish()

    def cursor(self, given: int | None) -> int:
        """Give out a cursor."""
        clock = self.engine.clock
        jitter_s = 1
        if given is not None:
            jitter_s += int.from_bytes(clock.random_bytes(2)) % cursors.JITTER_S_MAX
        return cursors.next_cursor(given, now_ms=clock.now_ms(), jitter_s=jitter_s)


def facts_of(done: ReadDone) -> StreamFacts:
    """Tell what answers say about a stream."""
    row, tail = done.row, done.tail
    return StreamFacts(
        row.incarnation,
        row.content_type,
        tail.tail,
        tail.is_closed,
        row.ttl_ms,
        row.expires_at_ms,
        tail.dedup_from,
    )
