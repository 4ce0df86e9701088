"""The bare limits: files written and synced as the journal does it, and a server of nothing else.

The server has semel's HTTP connection, a constant response, and writes that are grouped. It
decides, numbers and remembers nothing, so no server of this kind can be faster. It is run as
`python -m semel_bench.bare [DIRECTORY]`; without a directory nothing is written.
"""

import asyncio
import signal
import sys
from collections.abc import Sequence
from time import perf_counter
from typing import Final

import uvloop

from semel.broker.worker import Worker
from semel.journal.disk import RealDisk, RealFile
from semel.journal.frame import encode_meta, frame_bytes
from semel.machine.events import Section, StreamAppended
from semel.model.limits import SEGMENT_BYTES_DEFAULT
from semel.server.http import Request, Responder, Response
from semel.server.listener import Listener

_SECTION: Final = Section(1_000, 1_000, 1, b"", b"", False)
# What the journal adds to the bytes of an append.
FRAME_EXTRA: Final = bytes(frame_bytes(encode_meta(StreamAppended(1_000)), (_SECTION,)))
_OFFSET: Final = ("Stream-Next-Offset", "0000000000000000_0000000000000001")


class BareFiles:
    """Files of a segment's size, or of `file_bytes`; 0: one file that grows."""

    def __init__(self, directory: str, file_bytes: int = SEGMENT_BYTES_DEFAULT) -> None:
        self._disk = RealDisk(directory)
        self._file_bytes = file_bytes
        self._count = 0
        self._position = 0
        self._file = self._next_file()

    def _next_file(self) -> RealFile:
        self._count += 1
        self._position = 0
        return self._disk.create(f"bare-{self._count:06d}", self._file_bytes)

    def write(self, buffers: Sequence[bytes]) -> None:
        """Write and sync; in the next file if the current one is full."""
        size = sum(map(len, buffers))
        if self._file_bytes and self._position + size > self._file_bytes:
            self._file.close()
            self._file = self._next_file()
        self._file.write(self._position, buffers)
        self._file.sync()
        self._position += size

    def write_seconds(self, buffers: Sequence[bytes], times: int) -> list[float]:
        """Write the same bytes `times` times; return how long each write took."""
        seconds = []
        for _ in range(times):
            began = perf_counter()
            self.write(buffers)
            seconds.append(perf_counter() - began)
        return seconds

    def close(self) -> None:
        """Close the file and the directory."""
        self._file.close()
        self._disk.close()


class BareServer:
    """Responds when the bytes of a request are durable, or at once if it has no files."""

    def __init__(self, files: BareFiles | None) -> None:
        self._response = Response(204, [_OFFSET])
        self._files = files
        self._worker = Worker("bare", _exit)
        self._loop = asyncio.get_running_loop()
        self._waiting: list[Responder] = []
        self._bodies: list[bytes] = []
        self._is_due = self._is_writing = False

    def handle(self, request: Request, responder: Responder) -> None:
        """Accept one request."""
        if self._files is None:
            responder.send(self._response)
            return
        self._waiting.append(responder)
        self._bodies += (request.body, FRAME_EXTRA)
        self._write_soon(self._files)

    def _write_soon(self, files: BareFiles) -> None:
        if not (self._is_due or self._is_writing):
            self._is_due = True
            self._loop.call_soon(self._write, files)

    def _write(self, files: BareFiles) -> None:
        self._is_due = False
        waiting, self._waiting = self._waiting, []
        bodies, self._bodies = self._bodies, []

        def respond(_: object = None) -> None:
            self._is_writing = False
            for responder in waiting:
                responder.send(self._response)
            if self._waiting:
                self._write_soon(files)

        if len(waiting) == 1:  # as the engine does it: quicker than waking up a thread
            files.write(bodies)
            respond()
        else:
            self._is_writing = True
            self._worker.do(lambda: files.write(bodies), respond)


def _exit(error: BaseException) -> None:
    raise SystemExit(str(error))


async def serve(directory: str | None) -> None:
    """Serve until SIGTERM."""
    server = BareServer(None if directory is None else BareFiles(directory))
    listener = Listener()
    port = await listener.bind("127.0.0.1", 0)
    listener.start(server.handle)
    sys.stdout.write(f"listening on http://127.0.0.1:{port}\n")
    sys.stdout.flush()
    is_stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, is_stopped.set)
    await is_stopped.wait()


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[1] if len(sys.argv) > 1 else None))
