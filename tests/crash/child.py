"""The process under test: it opens an engine and handles requests that arrive on a socket.

With one argument, the number of a control socket, the module runs as a zygote: it forks a process
for every job it receives. With a pickled job as second argument it runs that job and exits.
"""

import asyncio
import gc
import hashlib
import os
import pickle
import resource
import socket
import sys
from functools import partial
from typing import Any

from semel.broker import settings
from semel.broker.broker import ReadDone
from semel.broker.engine import Engine
from semel.broker.settings import SystemClock
from semel.journal.disk import RealDisk
from semel.model.commands import Append, Batch
from semel.model.errors import EngineError
from semel.model.outcomes import Outcome, Unreadable
from tests.crash import faulty
from tests.crash.protocol import LENGTH, READY, Failure, Job, JournalPosition, Ready, Text, pack

FAR_FUTURE_MS = 4_000_000_000_000


class Damaged(Exception):
    """Stored data cannot be read."""


class FrozenClock(SystemClock):
    """Always returns the same time, so that two runs on one directory end in the same state."""

    def now_ms(self) -> int:
        return FAR_FUTURE_MS


# ---- inspecting an engine ------------------------------------------------------------------------


def as_text(done: ReadDone | Outcome) -> Text | Outcome:
    """Convert the result of a read into a value that can be pickled."""
    if not isinstance(done, ReadDone):
        return done
    messages = tuple(m for piece in done.slices for m in piece.messages())
    return Text(done.tail.head, done.tail.tail, done.next_offset - len(messages), messages)


def read_all(engine: Engine, path: str) -> list[bytes]:
    """Read an existing stream from its head to its tail."""
    messages: list[bytes] = []
    offset = None
    while True:
        found: list[ReadDone | Outcome] = []
        engine.broker.read(path, offset, now_ms=0, reply=found.append)
        text = as_text(found[0])
        if isinstance(text, Unreadable):
            raise Damaged(text.reason)
        assert isinstance(text, Text), text
        messages.extend(text.messages)
        offset = text.offset + len(text.messages)
        if offset >= text.tail:
            return messages


def dump(engine: Engine) -> dict[str, object]:
    """Return the state and all messages of an engine, in a form that can be compared."""
    state = engine.broker.state
    facts: dict[str, object] = {"meta": repr(state.meta_row()), "registry": repr(state.registry)}
    for number, stream in sorted(state.by_number.items()):
        producers = sorted((stream.producers or {}).items())
        forks = sorted(stream.forks or ())
        keys = list((stream.keys or {}).items())
        rows = repr((stream.row, stream.tail, producers, keys, stream.next_key, forks))
        messages = None if stream.tail.is_deleted else read_all(engine, stream.row.path)
        facts[f"stream {number}"] = (rows, messages)
    return facts


def digest(facts: dict[str, object]) -> str:
    return hashlib.sha256(repr(facts).encode()).hexdigest()


# ---- jobs ----------------------------------------------------------------------------------------


async def inspect(job: Job, connection: socket.socket) -> None:
    """Send a digest of the directory's state, append to every stream, restart and do it again.

    Damage that no read finds may still affect the next checkpoint.
    """
    clock = FrozenClock()
    try:
        for _ in range(2):
            engine = await Engine.open(job.path, job.settings, clock=clock)
            connection.sendall(pack((READY, digest(dump(engine)))))
            for path in sorted(engine.broker.state.by_path):
                append = Append(path, FAR_FUTURE_MS, "text/plain", Batch(b"second life"))
                await engine.execute(append)
            await engine.close()
    except Damaged as error:
        connection.sendall(pack((READY, Failure(str(error)))))


class Server:
    """Handles requests from a socket with an engine."""

    def __init__(self, engine: Engine, writer: asyncio.StreamWriter) -> None:
        self._engine = engine
        self._writer = writer

    def reply(self, number: int, value: object) -> None:
        self._writer.write(pack((number, value)))

    def _read(self, number: int, done: ReadDone | Outcome) -> None:
        self.reply(number, as_text(done))

    async def serve(self, reader: asyncio.StreamReader) -> None:
        self.reply(READY, Ready(self._engine.replayed_frames))
        while True:
            try:
                head = await reader.readexactly(LENGTH.size)
                body = await reader.readexactly(LENGTH.unpack(head)[0])
            except (asyncio.IncompleteReadError, ConnectionResetError):
                return
            number, request = pickle.loads(body)
            if await self._handle(number, *request):
                return

    async def _handle(self, number: int, verb: str, *arguments: Any) -> bool:
        """Handle one request; return True after `close`."""
        engine = self._engine
        match verb:
            case "submit":
                engine.submit(arguments[0], partial(self.reply, number))
            case "read":
                path, offset = arguments
                engine.broker.read(path, offset, now_ms=0, reply=partial(self._read, number))
            case "dump":
                self.reply(number, dump(engine))
            case "settle":
                await engine.settle()
                broker = engine.broker
                self.reply(number, JournalPosition(broker.end, broker.durable, broker.is_full))
            case "checkpoint":
                engine.checkpoint()
                await engine.settle()
                self.reply(number, None)
            case "arm":
                faulty.PLAN.operation, faulty.PLAN.calls_left, faulty.PLAN.code = arguments
                self.reply(number, None)
            case "close":
                await engine.close()
                self.reply(number, None)
                await self._writer.drain()
                return True
        return False


async def serve(job: Job, connection: socket.socket) -> None:
    if job.is_faulty:
        assert vars(settings)["RealDisk"] is RealDisk, "the engine imports it elsewhere"
        vars(settings)["RealDisk"] = faulty.FaultyDisk
    engine = await Engine.open(job.path, job.settings)
    reader, writer = await asyncio.open_connection(sock=connection)
    await Server(engine, writer).serve(reader)


def run(job: Job, connection: socket.socket) -> None:
    """Run a job; exit with the error's exit code if the engine raises an error."""
    for kind, limit in job.resource_limits:
        resource.setrlimit(kind, (limit, limit))
    if job.user_id is not None:
        os.setgroups([])
        os.setresgid(job.user_id, job.user_id, job.user_id)
        os.setresuid(job.user_id, job.user_id, job.user_id)
    try:
        asyncio.run({"serve": serve, "inspect": inspect}[job.name](job, connection))
    except EngineError as error:
        sys.stderr.write(f"semel: {error}\n")
        sys.exit(error.exit_code)


# ---- the zygote ----------------------------------------------------------------------------------


def fork(job: Job, control: socket.socket, descriptors: list[int]) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 70
    try:
        control.close()
        os.dup2(descriptors[1], 2)
        run(job, socket.socket(fileno=descriptors[0]))
        code = 0
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:  # noqa: BLE001 - the traceback goes to stderr, which the test reads
        sys.excepthook(*sys.exc_info())
    sys.stderr.flush()
    os._exit(code)


def zygote(control: socket.socket) -> None:
    """Fork a process for every job; wait for the process if a message is a pid."""
    gc.collect()
    gc.freeze()
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, 1 << 16, 2)
        if not message:
            return
        order = pickle.loads(message)
        if isinstance(order, Job):
            control.send(pickle.dumps(fork(order, control, descriptors)))
        else:
            _, status = os.waitpid(order, 0)
            control.send(pickle.dumps(os.waitstatus_to_exitcode(status)))
        for descriptor in descriptors:
            os.close(descriptor)


def main(arguments: list[str]) -> None:
    connection = socket.socket(fileno=int(arguments[0]))
    if len(arguments) == 1:
        zygote(connection)
    else:
        run(pickle.loads(bytes.fromhex(arguments[1])), connection)


if __name__ == "__main__":
    main(sys.argv[1:])
