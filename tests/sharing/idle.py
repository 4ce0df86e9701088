"""Members without work: their heartbeats must keep them in the group, and write no frame.

Every member sends its own heartbeats by the client's own calls, half of them as long-polls. So the
server gets several requests per second and member. The journal is compared before and after, by the
metric of its end and by a digest of its files. The run fails if no heartbeat was sent, if a member
has expired, or if the journal does not grow when a member is silent.
"""

import asyncio
import re
from collections import Counter
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from time import monotonic
from typing import Any, Final, NamedTuple

from semel import AsyncClient
from semel.client.flows import RetrySafety
from semel.client.member_calls import (
    JoinedMember,
    Subscription,
    describe_group,
    join_group,
    send_heartbeat,
)
from semel.client.requests import Request
from semel.client.server_calls import ask_server
from semel.client.topic_calls import TopicCalls, TopicConfig
from semel.testing import local
from semel.wire.schema.groups import HeartbeatRequest
from tests.sharing.checker import Failed

TOPIC: Final = "orders"
GROUP: Final = "idlers"
PARTITIONS: Final = 12

_JOINS_AT_ONCE: Final = 20
_QUIET_SECONDS: Final = 1.5  # longer than the time between two rebalances of a group
_PATIENCE_SECONDS: Final = 120.0
_LOOK_SECONDS: Final = 0.1


class Size(NamedTuple):
    """How many members there are, and for how long the journal is watched."""

    members: int
    seconds: float
    session_seconds: float


class Journal(NamedTuple):
    """The end of the journal, and a digest of its files."""

    end_bytes: int
    digest: str


def run_all(data: Path, size: Size) -> Counter[str]:
    """Run members without work; return the counts. Raises Failed."""
    with local(data) as server:
        counts = asyncio.run(_run(size, server.url, data))
        if server.stderr:
            raise Failed(f"the server wrote to stderr: {server.stderr}")
    return counts


async def _run(size: Size, url: str, data: Path) -> Counter[str]:
    async with AsyncClient(url, timeout=_PATIENCE_SECONDS) as client:
        await client.run(TopicCalls(client.site, TOPIC).create_topic(TopicConfig(PARTITIONS)))
        members = await _joined(client, size)
        counts: Counter[str] = Counter(members=len(members))
        silent = asyncio.Event()
        beats = [
            asyncio.create_task(_beat(client, member, silent if number == 0 else None, counts))
            for number, member in enumerate(members)
        ]
        try:
            await _watch(client, size, data, counts)
            silent.set()
            await _require_growth(client, data, counts)
        finally:
            for task in beats:
                task.cancel()
            ended = await asyncio.gather(*beats, return_exceptions=True)
        failures = [each for each in ended if isinstance(each, Exception)]
        if failures:
            raise Failed(f"{len(failures)} members failed, the first one with {failures[0]!r}")
    return counts


async def _joined(client: AsyncClient, size: Size) -> list[JoinedMember]:
    """Let all members join. Those that came first send heartbeats until all have joined."""
    members: list[JoinedMember] = []
    over = asyncio.Event()
    early: list[asyncio.Task[None]] = []
    for start in range(0, size.members, _JOINS_AT_ONCE):
        count = min(_JOINS_AT_ONCE, size.members - start)
        joined = await asyncio.gather(*(_join(client, size) for _ in range(count)))
        members += joined
        early += [asyncio.create_task(_beat(client, each, over, Counter())) for each in joined]
    over.set()
    await asyncio.gather(*early)
    return members


async def _join(client: AsyncClient, size: Size) -> JoinedMember:
    wanted = Subscription(topics=[TOPIC], session_timeout_ms=round(size.session_seconds * 1000))
    return await client.run(join_group(client.site, GROUP, wanted))


async def _beat(
    client: AsyncClient, member: JoinedMember, over: asyncio.Event | None, counts: Counter[str]
) -> None:
    """Send heartbeats, some of them as long-polls, and release what is wanted."""
    released: list[str] = []
    version = member.version
    while over is None or not over.is_set():
        is_waiting = counts["heartbeats"] % 2 == 0 and not released
        wait_ms = member.heartbeat_ms if is_waiting else 0
        heartbeat = HeartbeatRequest(tuple(released), wait_ms, version)
        state = await client.run(send_heartbeat(client.site, GROUP, member.member, heartbeat))
        counts["heartbeats"] += 1
        released, version = state.release, state.version
        if not is_waiting and not released:
            await asyncio.sleep(member.heartbeat_ms / 4000)


async def _watch(client: AsyncClient, size: Size, data: Path, counts: Counter[str]) -> None:
    """Compare the journal at the begin and at the end of the time, and count the members."""
    before = await _settled(client, data)
    heartbeats, started = counts["heartbeats"], monotonic()
    await asyncio.sleep(size.seconds)
    after = await _journal(client, data)
    counts["seconds watched"] = round(monotonic() - started)
    counts["heartbeats watched"] = counts["heartbeats"] - heartbeats
    counts["journal bytes before"] = before.end_bytes
    counts["journal bytes grown"] = after.end_bytes - before.end_bytes
    group = await client.run(describe_group(client.site, GROUP))
    if len(group.members) != size.members:
        raise Failed(f"{len(group.members)} of {size.members} members are left")
    owned = [stream for member in group.members for stream in member.streams]
    if len(owned) != PARTITIONS or len(set(owned)) != PARTITIONS:
        raise Failed(f"{len(set(owned))} of {PARTITIONS} streams are owned, {len(owned)} times")
    if after != before:
        raise Failed(f"heartbeats have changed the journal: {before} has become {after}")
    enough = 2 * size.members * size.seconds / size.session_seconds
    if counts["heartbeats watched"] < enough:
        raise Failed(f"only {counts['heartbeats watched']} heartbeats; expected {enough:.0f}")


async def _require_growth(client: AsyncClient, data: Path, counts: Counter[str]) -> None:
    """Wait until the silent member has expired, which must be written."""
    before, until = await _journal(client, data), monotonic() + _PATIENCE_SECONDS
    while (after := await _journal(client, data)) == before:
        if monotonic() > until:
            raise Failed("a member was silent, and nothing was written")
        await asyncio.sleep(_LOOK_SECONDS)
    counts["journal bytes of an expiry"] = after.end_bytes - before.end_bytes
    if after.end_bytes == before.end_bytes or after.digest == before.digest:
        raise Failed(f"the figures do not show what was written: {before}, {after}")


async def _settled(client: AsyncClient, data: Path) -> Journal:
    """Wait until all rebalances are done, and return the journal."""
    until = monotonic() + _PATIENCE_SECONDS
    last, since = await _journal(client, data), monotonic()
    while monotonic() - since < _QUIET_SECONDS:
        await asyncio.sleep(_LOOK_SECONDS)
        if (now := await _journal(client, data)) != last:
            last, since = now, monotonic()
        if monotonic() > until:
            raise Failed(f"the group has not settled within {_PATIENCE_SECONDS:g} seconds")
    return last


async def _journal(client: AsyncClient, data: Path) -> Journal:
    request = Request("GET", client.site.address.target("/metrics"))
    exchange = await client.run(ask_server(client.site, request, RetrySafety.REPEATABLE))
    found = re.search(rb"^semel_journal_end_bytes (\d+)", exchange.expect(200).body, re.MULTILINE)
    assert found is not None
    return Journal(int(found[1]), await asyncio.to_thread(_digest, data))


def _digest(data: Path) -> str:
    digest: Any = sha256()
    for path in sorted(data.glob("*.seg")):
        digest.update(path.name.encode())
        with suppress(FileNotFoundError):  # removed since the list was made
            digest.update(path.read_bytes())
    result: str = digest.hexdigest()[:16]
    return result
