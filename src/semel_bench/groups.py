"""What groups that share work cost the server.

A rebalance must not delay the event loop. Therefore members join a group of many streams, leave it,
and expire. The server runs in this process, with a ticker on its event loop. The members run in
another process, which also executes this module, so that only the server's work delays the loop.

Idle members send only heartbeats. These must not write anything to the journal.
"""

import asyncio
import os
import re
import socket
import sys
import time
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec

from semel.testing import InProcessServer
from semel_bench.harness import CoreWaits, Figure, Gaps, Harness, Unavailable, at_most
from semel_bench.load import allow_many_files, create_streams, exchange
from semel_bench.requests import BYTES, BadResponse, bare_request
from semel_bench.servers import HOST, Process, semel_server

_STABLE_SECONDS_MAX: Final = 120.0
_POLL_SECONDS: Final = 0.005
_GROUP: Final = "bench"
_PATTERN: Final = "shared/*"
_TICK_S: Final = 0.001
_QUIET_S: Final = 1.0
_JOINED_TOGETHER: Final = 50
_END: Final = re.compile(rb"(?m)^semel_journal_end_bytes(?:_total)? (\d+)$")


async def measure_groups(harness: Harness) -> list[Figure]:
    """Measure rebalances of a group, and members without work."""
    allow_many_files()
    with harness.scratch() as folder:
        figures = await _measure_rebalances(harness, folder)
    with harness.scratch() as folder, semel_server(folder) as semel:
        return [*figures, *await _measure_idle(harness, semel)]


def _paths(count: int) -> list[str]:
    return [f"shared/{number:04d}" for number in range(count)]


# ---- rebalances ----------------------------------------------------------------------------------


async def _measure_rebalances(harness: Harness, folder: str) -> list[Figure]:
    options = harness.options
    streams, members = options.scaled(1_000), options.pick(20, 4)
    timeout_ms = options.pick(5_000, 1_000)
    quiet, busy = Gaps(), Gaps()
    async with InProcessServer(folder) as server:
        process = Process(os.getpid(), server.port)
        await create_streams(process, _paths(streams), BYTES)
        ticking = asyncio.create_task(_tick(quiet))
        await asyncio.sleep(_QUIET_S)
        await _stopped(ticking)
        ticking = asyncio.create_task(_tick(busy))
        seconds = await _run_members(server.port, members, streams, timeout_ms)
        await _stopped(ticking)
    label = f"{streams:,} streams, {members} members"
    return [
        Figure("longest loop delay without a rebalance", max(quiet.seen) * 1e3, "ms"),
        Figure(f"longest loop delay, {label}", max(busy.seen) * 1e3, "ms", at_most(20)),
        Figure(f"longest loop delay, {label}, net", max(busy.net) * 1e3, "ms", at_most(20)),
        *(Figure(f"{name}, {label}", each, "s") for name, each in seconds.items()),
    ]


async def _tick(gaps: Gaps) -> None:
    """Record how late each wake-up of the event loop is, until cancelled."""
    waits = CoreWaits()
    waits.since_last()
    last = time.perf_counter()
    while True:
        await asyncio.sleep(_TICK_S)
        now = time.perf_counter()
        gaps.add(now - last - _TICK_S, waits.since_last())
        last = now


async def _stopped(task: "asyncio.Task[None]") -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def _run_members(
    port: int, members: int, streams: int, timeout_ms: int
) -> Mapping[str, float]:
    """Run `rebalances` in another process, and return its result."""
    numbers = (str(number) for number in (members, streams, timeout_ms))
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "semel_bench.groups", str(port), _GROUP, _PATTERN, *numbers),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    printed, error = await child.communicate()
    if child.returncode:
        raise Unavailable(f"the members failed: {error.decode().strip().rpartition(chr(10))[2]}")
    return msgspec.json.decode(printed, type=dict[str, float])


# ---- idle members --------------------------------------------------------------------------------


async def _measure_idle(harness: Harness, semel: Process) -> list[Figure]:
    options = harness.options
    count, seconds = options.scaled(1_000), options.pick(60, 2)
    timeout_ms = options.pick(30_000, 1_000)
    await create_streams(semel, _paths(count), BYTES)
    members = [BenchMember(semel.port, _GROUP) for _ in range(count)]
    for first in range(0, count, _JOINED_TOGETHER):
        some = members[first : first + _JOINED_TOGETHER]
        await asyncio.gather(*(member.join(_PATTERN, timeout_ms) for member in some))
    await settled(members, count)
    before, cpu_s = await asyncio.to_thread(_journal_end, semel), semel.cpu_seconds
    beats = sum(member.beats for member in members)
    await asyncio.sleep(seconds)
    grown = await asyncio.to_thread(_journal_end, semel) - before
    cpu_s = semel.cpu_seconds - cpu_s
    beats = sum(member.beats for member in members) - beats
    for member in members:
        member.raise_error()
        await member.crash()
    label = f"{count:,} idle members, {seconds} s"
    return [
        Figure(f"heartbeats, {label}", beats, ""),
        Figure(f"journal growth, {label}", grown, "bytes", at_most(0)),
        Figure(f"server CPU, {label}", cpu_s, "s"),
    ]


def _journal_end(semel: Process) -> int:
    """Return the end of the server's journal, in bytes."""
    with socket.create_connection((HOST, semel.port)) as line:
        found = _END.search(exchange(line, bare_request("GET", "/metrics")))
    if found is None:
        raise Unavailable("the server's metrics do not have the end of the journal")
    return int(found[1])


# ---- members -------------------------------------------------------------------------------------


class BenchMember:
    """A member of a group that owns streams and never reads them.

    Its heartbeats wait for a change. It releases every stream that it is asked to release.
    `owned` counts its streams, and `beats` the heartbeats that were answered.
    """

    def __init__(self, port: int, group: str) -> None:
        self.owned = 0
        self.beats = 0
        self.is_releasing = False
        self._port = port
        self._path = f"/v1/groups/{group}/members"
        self._holding: asyncio.Task[None] | None = None

    async def join(self, pattern: str, session_timeout_ms: int) -> None:
        """Join the group, to share the streams that match a pattern, and begin to hold."""
        self._reader, self._writer = await asyncio.open_connection(HOST, self._port)
        answer = await self._ask(
            "POST",
            self._path,
            {"patterns": [pattern], "session_timeout_ms": session_timeout_ms},
        )
        self._own = f"{self._path}/{answer['member']}"
        self._wait_ms = answer["heartbeat_ms"]
        self._note(answer)
        self._holding = asyncio.create_task(self._hold())

    async def leave(self) -> None:
        """Leave the group, and close the connection."""
        await self.crash()
        self._reader, self._writer = await asyncio.open_connection(HOST, self._port)
        await self._ask("DELETE", self._own, None)
        self._writer.close()

    async def crash(self) -> None:
        """Send no more heartbeats, and close the connection."""
        assert self._holding is not None
        self._holding.cancel()
        with suppress(asyncio.CancelledError):
            await self._holding
        self._writer.close()

    def raise_error(self) -> None:
        """Raise the error that has ended the heartbeats, if there is one."""
        if self._holding is not None and self._holding.done():
            self._holding.result()

    async def _hold(self) -> None:
        while True:
            wait_ms = 0 if self.is_releasing else self._wait_ms
            heartbeat = {"released": self._release, "wait_ms": wait_ms, "version": self._version}
            self._note(await self._ask("POST", self._own, heartbeat))
            self.beats += 1

    def _note(self, answer: dict[str, Any]) -> None:
        self._version = answer["version"]
        self._release = answer["release"]
        self.is_releasing = bool(self._release)
        self.owned = len(answer["assigned"])

    async def _ask(self, method: str, path: str, document: object) -> dict[str, Any]:
        body = b"" if document is None else msgspec.json.encode(document)
        self._writer.write(
            f"{method} {path} HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n".encode()
            + body
        )
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        _, _, size = head.partition("\r\ncontent-length:")
        answer = await self._reader.readexactly(int(size.partition("\r\n")[0] or 0))
        if head[9:10] != "2":
            raise BadResponse(head + answer.decode("latin-1"))
        return msgspec.json.decode(answer, type=dict[str, Any]) if answer else {}


async def settled(members: Sequence[BenchMember], streams: int) -> None:
    """Wait until the members own all streams, each as many as the others."""
    began = time.perf_counter()
    while time.perf_counter() - began < _STABLE_SECONDS_MAX:
        for member in members:
            member.raise_error()
        counts = [member.owned for member in members]
        is_even = max(counts) - min(counts) <= 1 and sum(counts) == streams
        if is_even and not any(member.is_releasing for member in members):
            return
        await asyncio.sleep(_POLL_SECONDS)
    raise BadResponse(f"the members own {counts} streams, which is not stable")


async def rebalances(
    port: int, group: str, pattern: str, count: int, streams: int, timeout_ms: int
) -> dict[str, float]:
    """Let members join, leave and crash. Return the seconds until each rebalance was complete."""
    seconds: dict[str, float] = {}

    async def rebalance(
        name: str, steps: Iterable[Coroutine[Any, Any, None]], members: Sequence[BenchMember]
    ) -> None:
        began = time.perf_counter()
        await asyncio.gather(*steps)
        await settled(members, streams)
        seconds[name] = time.perf_counter() - began

    members = [BenchMember(port, group) for _ in range(count)]
    first, half = members[: count // 2], members[count // 2 :]
    again = [BenchMember(port, group) for _ in half]
    await rebalance("all join", (each.join(pattern, timeout_ms) for each in members), members)
    await rebalance("half leave", (each.leave() for each in half), first)
    both = [*first, *again]
    await rebalance("half join", (each.join(pattern, timeout_ms) for each in again), both)
    await rebalance("half expire", (each.crash() for each in again), first)
    await asyncio.gather(*(each.leave() for each in first))
    return seconds


if __name__ == "__main__":
    own_port, own_group, own_pattern, *own_numbers = sys.argv[1:]
    done = rebalances(int(own_port), own_group, own_pattern, *map(int, own_numbers))
    sys.stdout.write(msgspec.json.encode(asyncio.run(done)).decode())
