"""The demo's side of the engine process: start it, talk to it, kill it."""

import asyncio
import itertools
import sys
from typing import Final

from semel.cli.demo_protocol import (
    Answer,
    Done,
    Failed,
    Ready,
    Request,
    pack,
    read_answer,
)
from semel.model.errors import EngineError
from semel.model.limits import MIB

_START_SECONDS_MAX: Final = 60
_PIPE_BYTES_MAX: Final = 16 * MIB


class Lost(Exception):
    """The engine died before it answered: nobody knows whether it happened."""


class DemoFailed(EngineError):
    """The engine ended, or refused, when nothing of that kind was asked of it."""


class DemoServer:
    """The engine process, through all its lives."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._ids = itertools.count()
        self._waiting: dict[int, asyncio.Future[Answer]] = {}
        self._process: asyncio.subprocess.Process | None = None
        self._receiver: asyncio.Task[None] | None = None
        self._is_being_killed = False
        self._failure: DemoFailed | None = None
        self._checkpoints_before = 0
        self._checkpoints = 0
        self.is_up = asyncio.Event()
        self.kills = 0
        self.replayed_frames = 0

    @property
    def checkpoints(self) -> int:
        """How many were made in all lives together, as far as we were told."""
        return self._checkpoints_before + self._checkpoints

    @property
    def in_flight_count(self) -> int:
        """How many requests wait for an answer."""
        return len(self._waiting)

    def next_id(self) -> int:
        """Give a request its number."""
        return next(self._ids)

    async def start(self) -> int:
        """Start the process; answer how many frames it replayed."""
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "semel.cli.demo_child",
            self._path,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=_PIPE_BYTES_MAX,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        async with asyncio.timeout(_START_SECONDS_MAX):
            ready = await read_answer(self._process.stdout)
        if not isinstance(ready, Ready):
            raise DemoFailed(f"the engine did not start: exit code {await self._process.wait()}")
        self.replayed_frames += ready.replayed_frames
        self._checkpoints_before, self._checkpoints = self.checkpoints, 0
        self._is_being_killed = False
        self._receiver = asyncio.create_task(self._receive(self._process.stdout))
        self.is_up.set()
        return ready.replayed_frames

    async def _receive(self, reader: asyncio.StreamReader) -> None:
        while (answer := await read_answer(reader)) is not None:
            assert not isinstance(answer, Ready)
            if isinstance(answer, Done):
                self._checkpoints = max(self._checkpoints, answer.checkpoints)
            future = self._waiting.pop(answer.id)
            if future.done():
                continue
            if isinstance(answer, Failed):
                future.set_exception(DemoFailed(f"the engine refused: {answer.reason}"))
            else:
                future.set_result(answer)
        self._lose_answers()

    def _lose_answers(self) -> None:
        """The process is gone: whoever waits has to know, and whoever comes later, too."""
        self.is_up.clear()
        if not self._is_being_killed:
            self._failure = DemoFailed("the engine ended by itself")
            self.is_up.set()
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(self._failure or Lost())

    async def ask(self, request: Request) -> Answer:
        """Send a request and wait; raises Lost if the engine dies meanwhile."""
        await self.is_up.wait()
        if self._failure is not None:
            raise self._failure
        assert self._process is not None
        assert self._process.stdin is not None
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting[request.id] = answer
        self._process.stdin.write(pack(request))
        return await answer

    async def kill(self) -> None:
        """Send SIGKILL and wait until the process is gone and all answers with it."""
        assert self._process is not None
        assert self._receiver is not None
        self._is_being_killed = True
        self.is_up.clear()
        self._process.kill()
        await self._process.wait()
        await self._receiver
        self.kills += 1

    async def close(self) -> None:
        """Wait for the end of a stopped process; end one that was not stopped."""
        if self._process is None:
            return
        if self._process.stdin is not None:
            self._process.stdin.close()
        if self.in_flight_count and self._process.returncode is None:
            self._process.kill()
        await self._process.wait()
        if self._receiver is not None:
            self._is_being_killed = True
            await self._receiver
