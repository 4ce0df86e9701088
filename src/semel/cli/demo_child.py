"""The demo's engine, in a process of its own so that it can be killed.

Run as `python -m semel.cli.demo_child DIR`; requests on stdin, answers on stdout.
"""

import asyncio
import os
import struct
import sys
from functools import partial
from typing import Any, Final

from semel.broker.broker import ReadDone
from semel.broker.engine import Engine
from semel.broker.settings import Settings
from semel.cli.demo_protocol import (
    Done,
    Failed,
    Found,
    Get,
    Open,
    Put,
    Ready,
    Request,
    Stop,
    pack,
    read_request,
)
from semel.model.commands import Append, Batch, Create, ProducerTag
from semel.model.errors import EngineError
from semel.model.limits import KIB, MIB
from semel.model.media import JSON_MEDIA_TYPE
from semel.model.outcomes import Appended, Created, Duplicate, Outcome

_INCARNATION_BYTES: Final = 8
# Small segments, so that a short demo sees them roll and checkpoints being made.
_SETTINGS: Final = Settings(
    segment_bytes=256 * KIB, reserve_bytes=MIB, checkpoint_interval_ms=1_000
)


def _send(message: Ready | Done | Found | Failed) -> None:
    data = memoryview(pack(message))
    while data:
        data = data[os.write(1, data) :]


def _batch(messages: list[bytes]) -> Batch:
    if len(messages) == 1:
        return Batch(messages[0])
    lengths = struct.pack(f"<{len(messages)}I", *map(len, messages))
    return Batch(b",".join(messages), len(messages), lengths)


class _Service:
    """Turns requests into commands and outcomes into answers."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def take(self, request: Open | Put | Get) -> None:
        engine, now_ms = self._engine, self._engine.clock.now_ms()
        if isinstance(request, Get):
            found = partial(self._found, request.id)
            engine.broker.read(request.path, request.offset, now_ms=now_ms, reply=found)
            return
        if isinstance(request, Open):
            incarnation = engine.clock.random_bytes(_INCARNATION_BYTES).hex()
            command: Create | Append = Create(request.path, now_ms, incarnation, JSON_MEDIA_TYPE)
        else:
            tag = None
            if request.producer is not None:
                tag = ProducerTag(request.producer, request.seq, request.seq, epoch=0)
            batch = _batch(request.messages)
            command = Append(request.path, now_ms, JSON_MEDIA_TYPE, batch, producer=tag)
        engine.submit(command, partial(self._done, request.id))

    def _done(self, request: int, outcome: Outcome) -> None:
        made = self._engine.checkpoint_count
        match outcome:
            case Created():
                _send(Done(request, made))
            case Appended(first_offset=first):
                _send(Done(request, made, first))
            case Duplicate(first_offset=first_or_none):
                _send(Done(request, made, first_or_none, is_duplicate=True))
            case _:
                _send(Failed(request, repr(outcome)))

    def _found(self, request: int, outcome: Any) -> None:
        if not isinstance(outcome, ReadDone):
            _send(Failed(request, repr(outcome)))
            return
        messages = [message for piece in outcome.slices for message in piece.messages()]
        is_end = outcome.next_offset >= outcome.tail.tail
        _send(Found(request, messages, outcome.next_offset, is_end))


async def _requests() -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    return reader


async def _serve(path: str) -> None:
    reader = await _requests()
    engine = await Engine.open(path, _SETTINGS)
    service = _Service(engine)
    _send(Ready(engine.replayed_frames))
    request: Request | None
    while (request := await read_request(reader)) is not None:
        if isinstance(request, Stop):
            await engine.close()
            _send(Done(request.id, engine.checkpoint_count))
            return
        service.take(request)
    await engine.close()


def main() -> None:
    """Serve the directory given on the command line until told to stop."""
    try:
        asyncio.run(_serve(sys.argv[1]))
    except EngineError as error:
        sys.stderr.write(f"semel: {error}\n")
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
