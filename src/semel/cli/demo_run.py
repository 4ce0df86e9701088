"""The demo itself: producers that retry, answers that get lost, an engine that gets killed."""

import asyncio
import time
from typing import Final, Protocol

from msgspec import Struct

from semel.cli.demo_plan import Plan, Verdict, draw, is_at, judge
from semel.cli.demo_protocol import Done, Found, Get, Open, Put, Stop
from semel.cli.demo_server import DemoServer, Lost

_KILL_DELAY_SECONDS_MAX: Final = 0.004


class Lane(Struct):
    """One way to do the work: with producer tags, or without."""

    name: str
    path: str
    is_tagged: bool
    produced: int = 0
    dropped: int = 0
    retried: int = 0
    duplicates: list[tuple[int, int, int | None]] = []
    places: dict[tuple[int, int], int] = {}


class Result(Struct, frozen=True):
    """How a lane came out."""

    lane: Lane
    verdict: Verdict
    duplicates_in_place: int


class Totals(Struct, frozen=True):
    """What happened to the engine, which both lanes share."""

    kills: int
    checkpoints: int
    replayed_frames: int
    seconds: float


class Watcher(Protocol):
    """Told of everything as it happens."""

    def fault(self, message: str) -> None:
        """Something was broken on purpose."""

    def advance(self, lane: Lane, orders: int) -> None:
        """A batch was confirmed."""


class DemoRun:
    """One run of a plan on a directory."""

    def __init__(self, path: str, plan: Plan, watcher: Watcher) -> None:
        self._plan = plan
        self._watcher = watcher
        self._server = DemoServer(path)
        self._batches = plan.batches()
        self._kill_points = plan.kill_points(sum(map(len, self._batches)))
        self._confirmed = 0
        self._kills_due = asyncio.Semaphore(0)
        self._is_over = False

    async def run(self, *lanes: Lane) -> tuple[list[Result], Totals]:
        """Do the work in all lanes at once, and judge what is stored."""
        began = time.monotonic()
        try:
            await self._server.start()
            for lane in lanes:
                await self._server.ask(Open(self._server.next_id(), lane.path))
            await self._work(lanes)
            # All is confirmed now: the last kill must not take anything back.
            while self._server.kills < self._plan.kills:
                await self._kill()
            results = [self._judge(lane, await self._read(lane.path)) for lane in lanes]
            await self._server.ask(Stop(self._server.next_id()))
        finally:
            await self._server.close()
        seconds = time.monotonic() - began
        server = self._server
        return results, Totals(server.kills, server.checkpoints, server.replayed_frames, seconds)

    # ---- the producers --------------------------------------------------------------------------

    async def _work(self, lanes: tuple[Lane, ...]) -> None:
        try:
            async with asyncio.TaskGroup() as everyone:
                everyone.create_task(self._kill_when_due())
                async with asyncio.TaskGroup() as producers:
                    for lane in lanes:
                        for producer in range(self._plan.producers):
                            producers.create_task(self._produce(lane, producer))
                # Let the killer finish: a restart cut in two would leave no engine to read from.
                self._is_over = True
                self._kills_due.release()
        except BaseExceptionGroup as group:
            raise _first(group) from group

    async def _produce(self, lane: Lane, producer: int) -> None:
        """Send one batch after another, each until its answer arrives."""
        for seq, batch in enumerate(self._batches[producer]):
            is_answer_lost = self._plan.is_dropped(producer, seq)
            while (answer := await self._attempt(lane, producer, seq)) is None or is_answer_lost:
                lane.retried += 1
                if answer is not None:
                    is_answer_lost = False
                    lane.dropped += 1
                    who = f"producer {producer}, batch {seq}"
                    self._watcher.fault(f"{lane.name}: the answer to {who} is lost")
            self._confirm(lane, producer, seq, batch, answer)

    async def _attempt(self, lane: Lane, producer: int, seq: int) -> Done | None:
        """Send a batch; None if the engine died before it answered."""
        name = f"producer-{producer}" if lane.is_tagged else None
        batch = self._batches[producer][seq]
        request = Put(self._server.next_id(), lane.path, batch, name, seq)
        try:
            answer = await self._server.ask(request)
        except Lost:
            return None
        assert isinstance(answer, Done)
        return answer

    def _confirm(
        self, lane: Lane, producer: int, seq: int, batch: list[bytes], answer: Done
    ) -> None:
        if answer.is_duplicate:
            lane.duplicates.append((producer, seq, answer.first_offset))
        if answer.first_offset is not None:
            lane.places[producer, seq] = answer.first_offset
        lane.produced += len(batch)
        self._watcher.advance(lane, len(batch))
        if lane.is_tagged:
            self._confirmed += 1
            if self._kill_points and self._confirmed >= self._kill_points[0]:
                del self._kill_points[0]
                self._kills_due.release()

    # ---- the faults -----------------------------------------------------------------------------

    async def _kill_when_due(self) -> None:
        await self._kills_due.acquire()
        while not self._is_over:
            share = draw(self._plan.seed, "moment", self._server.kills)
            await asyncio.sleep(share * _KILL_DELAY_SECONDS_MAX)
            await self._kill()
            await self._kills_due.acquire()

    async def _kill(self) -> None:
        in_flight = self._server.in_flight_count
        await self._server.kill()
        self._watcher.fault(
            f"SIGKILL {self._server.kills} of {self._plan.kills}: {in_flight} requests unanswered"
        )
        began = time.monotonic()
        frames = await self._server.start()
        seconds = time.monotonic() - began
        self._watcher.fault(f"engine back after {seconds:.2f} s, {frames} frames replayed")

    # ---- the judgement --------------------------------------------------------------------------

    async def _read(self, path: str) -> list[bytes]:
        messages: list[bytes] = []
        is_end = False
        while not is_end:
            found = await self._server.ask(Get(self._server.next_id(), path, len(messages)))
            assert isinstance(found, Found)
            messages.extend(found.messages)
            is_end = found.is_end
        return messages

    def _judge(self, lane: Lane, stored: list[bytes]) -> Result:
        in_place = sum(
            is_at(stored, offset, self._batches[producer][seq])
            for producer, seq, offset in lane.duplicates
        )
        return Result(lane, judge(self._batches, stored, lane.places), in_place)


def _first(error: BaseException) -> BaseException:
    """Find what went wrong first; the rest only followed."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
