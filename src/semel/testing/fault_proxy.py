"""A proxy that injects network faults and counts them. A plan chooses the faults.

    with local() as server, FaultProxy(server.url, FaultPlan({"drop_answer": 0.1})) as proxy:
        ...  # a client that uses proxy.url
    proxy.dropped_after_commit

`dropped_after_commit` is the number of successful writes whose response the client did not get.
"""

import asyncio
from collections import Counter
from functools import partial
from typing import Final

from semel.testing.fault_connections import HEAD_BYTES_MAX, ConnectionRegistry, address_of, close
from semel.testing.fault_plan import FaultPlan
from semel.testing.fault_session import ProxySession
from semel.testing.in_process import LoopResource

CONNECTIONS_MAX: Final = 1_024
_HOST: Final = "127.0.0.1"


class FaultProxy(LoopResource):
    """An HTTP/1.1 proxy between clients and the server at the address `target`.

    Use the proxy in a `with` block, or in an `async with` block on your own event loop. `plan`
    chooses an action for each request. `round_trip_seconds` is the latency that the proxy adds
    to each exchange. It does not limit the throughput.

    `plan` and `target` can be changed at any time. A new plan applies to later requests, and a new
    target applies to later connections. While the server is down, the proxy closes new connections.
    """

    _thread_name = "semel-fault-proxy"

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
        self._bug: BaseException | None = None  # an unexpected error of a session

    @property
    def url(self) -> str:
        """The URL to which clients connect."""
        return f"http://{_HOST}:{self.port}"

    @property
    def target(self) -> str:
        """The URL of the server to which the proxy forwards requests."""
        return self._wires.target

    @target.setter
    def target(self, target: str) -> None:
        address_of(target)  # raises ValueError
        self._wires.target = target

    @property
    def plan(self) -> FaultPlan:
        """The plan that chooses the faults."""
        return self._wires.plan

    @plan.setter
    def plan(self, plan: FaultPlan) -> None:
        self._wires.plan = plan

    @property
    def counts(self) -> Counter[str]:
        """A mapping from the name of each action to the number of times it was carried out.

        It also contains these counts:

        - `requests` and `connections`
        - `unreachable`: connections that were closed because the server was down
        - `connections_refused`: connections that were closed because there were too many
        - `reorder_alone`: requests with the action `reorder` that were not overtaken in time
        - `dropped_after_commit`: see the property with this name
        """
        return self._wires.counts

    @property
    def dropped_after_commit(self) -> int:
        """The number of writes whose 2xx response did not fully reach the client."""
        return self.counts["dropped_after_commit"]

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
            # A session that is cancelled before its first step has not closed its connection.
            writer.transport.abort()
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
