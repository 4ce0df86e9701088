"""What live reads share: the engine, their times, and a good end for all of them."""

import asyncio
from typing import Protocol

from semel.broker.broker import ReadDone
from semel.broker.engine import Engine
from semel.machine.txn_views import holder
from semel.server.reads import Reads
from semel.wire import cursors
from semel.wire.responses import Blocker, StreamFacts


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


def blocker_of(engine: Engine, done: ReadDone) -> Blocker | None:
    """Name the transaction that stands between a reader of decided messages and the tail."""
    stable = done.tail.stable
    if not stable <= done.next_offset < done.tail.tail:
        return None
    view = holder(engine.broker.state, done.row.path)
    if view is None:
        return None  # it is decided, and that is on its way to the disk
    firsts = [known.first_offset for known in view.streams if known.path == done.row.path]
    # The state runs ahead of the disk: only one whose first message is durable may be told.
    return Blocker(view.id, view.begun_ms) if firsts == [stable] else None


def facts_of(done: ReadDone, blocker: Blocker | None = None) -> StreamFacts:
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
        tail.stable,
        blocker,
    )
