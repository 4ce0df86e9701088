"""The bare limit: our HTTP connection, a constant answer, and bytes written in groups.

Nothing is decided, numbered or remembered, so this is as fast as a server of this kind could be.
Run as `python -m semel.cli.benchmarks.bare_server [DIRECTORY]`; without one nothing is written.
"""

import asyncio
import signal
import sys
from typing import Final

import uvloop

from semel.broker.worker import Worker
from semel.cli.benchmarks.bare_disk import FRAME_EXTRA_BYTES, BareFiles
from semel.server.http import Request, Responder, Response
from semel.server.listener import Listener

_OFFSET: Final = ("Stream-Next-Offset", "0000000000000000_0000000000000001")
_EXTRA: Final = bytes(FRAME_EXTRA_BYTES)

Waiting = list[Responder]


class Bare:
    """Answers when the bytes of a request are durable, or at once."""

    def __init__(self, files: BareFiles | None) -> None:
        self._answer = Response(204, [_OFFSET])
        self._files = files
        self._worker = Worker("bare", _die)
        self._loop = asyncio.get_running_loop()
        self._waiting: Waiting = []
        self._bodies: list[bytes] = []
        self._is_due = self._is_writing = False

    def handle(self, request: Request, responder: Responder) -> None:
        """Take one request."""
        if self._files is None:
            responder.send(self._answer)
            return
        self._waiting.append(responder)
        self._bodies += (request.body, _EXTRA)
        self._write_soon()

    def _write_soon(self) -> None:
        if not (self._is_due or self._is_writing):
            self._is_due = True
            self._loop.call_soon(self._write)

    def _write(self) -> None:
        self._is_due = False
        waiting, self._waiting = self._waiting, []
        bodies, self._bodies = self._bodies, []
        files = self._files
        assert files is not None
        if len(waiting) == 1:  # as the engine does it: quicker than a thread wakes up
            files.write(bodies)
            self._answer_all(waiting)
        else:
            self._is_writing = True
            self._worker.do(lambda: files.write(bodies), lambda _: self._answer_all(waiting))

    def _answer_all(self, waiting: Waiting) -> None:
        self._is_writing = False
        for responder in waiting:
            responder.send(self._answer)
        if self._waiting:
            self._write_soon()


def _die(error: BaseException) -> None:
    raise SystemExit(str(error))


async def serve(directory: str | None) -> None:
    """Serve until SIGTERM."""
    bare = Bare(None if directory is None else BareFiles(directory))
    listener = Listener()
    port = await listener.bind("127.0.0.1", 0)
    listener.start(bare.handle)
    sys.stdout.write(f"listening on http://127.0.0.1:{port}\n")
    sys.stdout.flush()
    told = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
    await told.wait()


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[1] if len(sys.argv) > 1 else None))
