"""Groups of readers, for programs that wait."""

import threading
from typing import Protocol, TypeVar

from semel.client import group_calls
from semel.client.flows import Flow
from semel.client.group_calls import GroupCursor
from semel.client.positions import KnownPositions
from semel.client.stream_calls import ServerConfig
from semel.client.txn_values import Moves, PinnedStep
from semel.client.values import Message

T = TypeVar("T")


class RunFlow(Protocol):
    """Carries out a flow within a time, or that of the client."""

    def __call__(self, flow: Flow[T], timeout: float | None = None, /) -> T:
        """Carry it out."""


class Group:
    """A group of readers: it has a position in each stream it was moved in."""

    def __init__(
        self, site: ServerConfig, run: RunFlow, name: str, positions: KnownPositions
    ) -> None:
        self.name = name
        self._site = site
        self._run = run
        self._positions = positions

    def __repr__(self) -> str:
        return f"Group({self.name!r})"

    def offsets(self, *, timeout: float | None = None) -> dict[str, str]:
        """Return where it is, by stream, without those where it was never moved.

        It never waits for transactions, and what a reader was told stays as it is.
        """
        return self._run(group_calls.positions(self._site, self.name), timeout)

    def set(self, moves: Moves, *, timeout: float | None = None) -> dict[str, str]:
        """Move it, by stream; all or nothing. Returns where it is then.

        To an offset, wherever it is now: what anybody has read before can then no longer be
        committed, by this client neither. Or only if it is where the caller believes: (from, to),
        (from, to, incarnation) or (from, to, incarnation, version).
        """
        flow = group_calls.set_known(self._site, self.name, moves, self._positions)
        return self._run(flow, timeout)

    def pin(self, step: PinnedStep, *, timeout: float | None = None) -> PinnedStep:
        """Pin the next step; the first one of its number wins, and is what is returned."""
        return self._run(group_calls.pin(self._site, self.name, step), timeout)

    def snapshot(self, *, timeout: float | None = None) -> PinnedStep | None:
        """Ask for the step it has pinned; None if it never has."""
        return self._run(group_calls.snapshot(self._site, self.name), timeout)


class MessageCommitter:
    """Moves a group after messages, one at a time."""

    def __init__(self, run: RunFlow, place: GroupCursor) -> None:
        self._run = run
        self.place = place
        self._lock = threading.Lock()

    def __call__(self, message: Message) -> None:
        """Move the group after a message."""
        with self._lock:
            self._run(self.place.move(message))
