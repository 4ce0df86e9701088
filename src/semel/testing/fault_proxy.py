"""A proxy that does to requests what networks do, on purpose and counted.

with local() as server, FaultProxy(server.url, FaultPlan({"drop_answer": 0.1})) as proxy:
...  # a client of proxy.url
proxy.dropped_after_commit
"""

import asyncio
from collections import Counter
from functools import partial
from typing import Final, Self

from semel.testing.fault_connections import HEAD_BYTES_MAX, ConnectionRegistry, address_of, close
from semel.testing.fault_plan import FaultPlan
from semel.testing.fault_session import ProxySession
from semel.testing.in_process import Home

CONNECTIONS_MAX: Final = 1_024
_HOST: Final = "127.0.0.1"


class FaultProxy:
    """Stands between clients and a server, for a `with` block or, on your loop, an `async with`.

    It knows where an HTTP/1.1 message ends, so that each request meets its own fate; the plan draws
    it. `round_trip_seconds` makes the way longer for every message without making one wait for
    another, as a long line does. `plan` and `target` may be changed at any time, for the next
    request and the next connection. While the server is down, connections are accepted and closed.
    """

    def __init__(
        self,
        target: str,
        plan: FaultPlan | None = None,
        *,
        port: int = 0,
        round_trip_seconds: float = 0.0,
    ) -> None:
        self.port = port
        address_of(target)
        self._wires = ConnectionRegistry(target, plan or FaultPlan(), round_trip_seconds)
        self._listener: asyncio.Server | None = None
        self._sessions: set[asyncio.Task[None]] = set()
        self._bug: BaseException | None = None  # a session expects everything else
        self._home = Home("semel-fault-proxy", self._open, self._close)

    @property
    def url(self) -> str:
        """Where clients connect."""
        return f"http://{_HOST}:{self.port}"

    @property
    def target(self) -> str:
        """Where the server is."""
        return self._wires.target

    @target.setter
    def target(self, target: str) -> None:
        address_of(target)  # raises at once if it is none
        self._wires.target = target

    @property
    def plan(self) -> FaultPlan:
        """What is done to requests."""
        return self._wires.plan

    @plan.setter
    def plan(self, plan: FaultPlan) -> None:
        self._wires.plan = plan

    @property
    def counts(self) -> Counter[str]:
        """How often each action was taken, by its name.

        Besides: `requests`; `connections`; `unreachable`, connections closed because the server was
        down; `connections_refused`, because there were too many; `reorder_alone`, requests that
        nobody came to overtake; `dropped_after_commit`.
        """
        return self._wires.counts

    @property
    def dropped_after_commit(self) -> int:
        """Writes the server answered with 2xx, and whose answer the client never got in full."""
        return self.counts["dropped_after_commit"]

    def __enter__(self) -> Self:
        self._home.enter()
        return self

    def __exit__(self, *exc: object) -> None:
        self._home.leave()

    async def __aenter__(self) -> Self:
        await self._home.enter_here()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._home.leave_here()

    async def _open(self) -> None:
        self._listener = await asyncio.start_server(
            self._accept, _HOST, self.port, limit=HEAD_BYTES_MAX
        )
        self.port = self._listener.sockets[0].getsockname()[1]

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._sessions) >= CONNECTIONS_MAX:
            self.counts["connections_refused"] += 1
            session = asyncio.create_task(close(writer))
        else:
            self.counts["connections"] += 1
            session = asyncio.create_task(ProxySession(self._wires, reader, writer).run())
        self._sessions.add(session)
        session.add_done_callback(partial(self._ended, writer))

    def _ended(self, writer: asyncio.StreamWriter, session: asyncio.Task[None]) -> None:
        self._sessions.discard(session)
        if session.cancelled():
            writer.transport.abort()  # cancelled before its first step, it has closed nothing
        else:
            self._bug = session.exception() or self._bug

    async def _close(self) -> None:
        if self._listener is None:
            return
        self._listener.close()
        for session in list(self._sessions):
            session.cancel()
        await asyncio.gather(*self._sessions, return_exceptions=True)
        await self._listener.wait_closed()
        self._listener = None
        if self._bug is not None:
            raise self._bug
