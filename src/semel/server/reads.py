"""Reads of messages, begun only when there is room for their answers."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from msgspec import Struct

from semel.broker.engine import Engine
from semel.model.limits import BODY_BYTES_MAX, READ_BYTES_DEFAULT
from semel.model.transactions import READ_UNCOMMITTED
from semel.server.http import Responder
from semel.server.unread import Unread

# No matter how little was asked for: one append is never split.
_ANSWER_BYTES: Final = BODY_BYTES_MAX


class Read(Struct, eq=False):
    """A read that was asked for, and whom its answer is for."""

    path: str
    offset: int | None
    reply: Callable[[Any], None]
    responder: Responder
    bytes_max: int = READ_BYTES_DEFAULT
    isolation: str = READ_UNCOMMITTED


class Reads:
    """Begins the reads of one engine, in their order."""

    def __init__(self, engine: Engine, unread: Unread) -> None:
        self._engine = engine
        self.unread = unread
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[Read] = deque()
        self._is_due = False
        unread.on_room = self._go_on_soon

    def begin(self, read: Read) -> None:
        """Read as soon as there is room."""
        if self._waiting or self.unread.is_full:
            self._waiting.append(read)
            self.unread.wanted_bytes += read.bytes_max
        else:
            self._begin(read)

    def _begin(self, read: Read) -> None:
        unread = self.unread

        def reply(found: Any) -> None:
            unread.give_back(_ANSWER_BYTES)
            read.reply(found)

        unread.reserve(_ANSWER_BYTES)
        self._engine.read(
            read.path, read.offset, reply, bytes_max=read.bytes_max, isolation=read.isolation
        )

    def _go_on_soon(self) -> None:
        # From the loop: room is found deep inside the end of something else.
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        self._is_due = False
        while self._waiting and not self.unread.is_full:
            read = self._waiting.popleft()
            self.unread.wanted_bytes -= read.bytes_max
            if not read.responder.is_over:
                self._begin(read)
