"""What a client knows of the positions of groups, and what it sends when it moves them.

A move is safe if it names the position that the messages were read from. So what counts is not
where a group is now but where it was when its reader asked. That is kept here, and moved on by what
this client itself moves: by `message.commit()`, transactions, one-shot commits and `group.set`.

Threads, or tasks, of one client may be workers of one group. Each has what it was told itself: one
must not take the position that another has moved for the one it has read from. Who works is found
out when a tail or a transaction is made, not when it is waited for: `asyncio.wait_for` waits in a
task of its own. Pure: no sockets.
"""

import asyncio
import threading
from collections.abc import Mapping
from typing import Any, Final
from weakref import WeakKeyDictionary, ref

from msgspec import Struct

from semel.client.txn_values import Move, Moves, ordinal_of

Name = tuple[str, str]  # group and path
_START: Final = 0  # where a group is that was never moved


class KnownPosition:
    """Where a group was in a stream when a reader asked, as moved since through this object.

    `version` and `incarnation` are None as long as nobody has told them. `doubts` are the offsets
    it may be at after moves that got no answer.
    """

    def __init__(
        self, offset: int = _START, version: int | None = None, incarnation: str | None = None
    ) -> None:
        self.offset = offset
        self.version = version
        self.incarnation = incarnation
        self.doubts: set[int] = set()

    def moved(self, to: int, version: int | None) -> None:
        """Take note of a move that is done."""
        self.offset, self.version = to, version
        self.doubts.clear()


class _Entry(Struct):
    """What somebody was told: a reader, or `reader` is None."""

    known: KnownPosition
    reader: "ref[Any] | None" = None

    @property
    def is_read(self) -> bool:
        """Whether the reader is still at work."""
        reader = None if self.reader is None else self.reader()
        return reader is not None and reader.is_open


class Worker:
    """What one thread or task of a client was told, and which stream of a path it has read."""

    def __init__(self, positions: "KnownPositions") -> None:
        self._positions = positions
        self._told: dict[Name, list[_Entry]] = {}
        self._read: dict[str, str] = {}

    def note_told(self, name: Name, known: KnownPosition, reader: Any) -> None:
        """Take note of what a reader was told.

        It has `is_open`, which is False once nobody reads from it any more.
        """
        with self._positions.lock:
            others = [entry for entry in self._told.get(name, ()) if entry.is_read]
            self._told[name] = [*others, _Entry(known, ref(reader))]

    def note_read(self, path: str, incarnation: str) -> None:
        """Take note of which stream of a path was read."""
        with self._positions.lock:
            self._read[path] = incarnation

    def find(self, name: Name) -> KnownPosition:
        """Return the position that was told.

        Who has neither asked nor read takes what another one was told, if only one was. Who was not
        told counts as told that the group was never moved: if it was, the server refuses. Raises
        ValueError if several readers were told, so that it is not known which one is meant.
        """
        group, path = name
        with self._positions.lock:
            found = self.meant(name)
            if not found and path not in self._read:
                found = [
                    entry for other in self._positions.workers() for entry in other.meant(name)
                ]
            if len(found) > 1:
                raise ValueError(
                    f"several readers of {path} work for {group} here: use"
                    " txn.commit_message(message), or give (from, to)"
                )
            known = found[0].known if found else self._latest(name)
            if known.incarnation is None:
                known.incarnation = self._read.get(path)
            return known

    def find_own(self, name: Name) -> KnownPosition:
        """Return the position that was told last, to take note of a move."""
        with self._positions.lock:
            return self._latest(name)

    def meant(self, name: Name) -> list[_Entry]:
        """Return what readers were told that are still at work, and what was told last anyhow."""
        entries = self._told.get(name, [])
        return [entry for entry in entries[:-1] if entry.is_read] + entries[-1:]

    def _latest(self, name: Name) -> KnownPosition:
        entries = self._told.setdefault(name, [])
        if not entries:
            entries.append(_Entry(KnownPosition()))
        return entries[-1].known


class KnownPositions:
    """The positions a client knows of, by the thread or task that was told."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._workers: WeakKeyDictionary[Any, Worker] = WeakKeyDictionary()

    def worker(self) -> Worker:
        """Return the running task, or else the thread, as a worker."""
        current = _current()
        with self.lock:
            found = self._workers.get(current)
            if found is None:
                found = self._workers[current] = Worker(self)
            return found

    def workers(self) -> list[Worker]:
        """Return all workers that are still alive; the caller has the lock."""
        return list(self._workers.values())


def _current() -> object:
    """Return the running task, or else the thread."""
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no loop runs in this thread
        task = None
    return task or threading.current_thread()


# ---- moves that are not done yet -----------------------------------------------------------------


class _Pending(Struct, frozen=True):
    """A move that was sent: from which version, of what was known."""

    known: KnownPosition
    to: int
    version: int | None


Planned = dict[str, tuple[Move, _Pending]]  # by path


class Moving:
    """The moves of one transaction or one-shot commit of a worker, until it is decided."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._pending: dict[Name, _Pending] = {}

    def plan(self, group: str, moves: Moves) -> Planned:
        """Return what to send for moves of a group; nothing is noted before `accepted`."""
        return {path: self._plan((group, path), move) for path, move in moves.items()}

    def plan_known(self, name: Name, known: KnownPosition, to: int) -> Planned:
        """Return what to send for a move from a position that is known."""
        pending = self._pending.get(name)
        offset = known.offset if pending is None else pending.to
        version = known.version if pending is None else pending.version
        if to < offset:
            # It was read before this client moved the group on: whatever was told then, it was not
            # this. The server refuses, or answers what was done before.
            offset, version = to, None
        move = (offset, to, known.incarnation, version)
        return {name[1]: (move, _Pending(known, to, version))}

    def _plan(self, name: Name, move: Move) -> tuple[Move, _Pending]:
        if not isinstance(move, tuple):
            pending = self._pending.get(name)
            known = self._worker.find(name) if pending is None else pending.known
            return self.plan_known(name, known, ordinal_of(move))[name[1]]
        _, to, _, version = (*move, None, None)[:4]
        return move, _Pending(self._worker.find_own(name), ordinal_of(to), version)

    def accepted(self, group: str, planned: Planned) -> None:
        """Take note that the server has accepted the moves, to be done by the decision."""
        for path, (_, pending) in planned.items():
            self._pending[group, path] = pending

    def done(self, *, is_sure: bool = True) -> None:
        """Take note that the moves are done; not `is_sure`: maybe long ago."""
        for pending in self._pending.values():
            if is_sure:
                version = None if pending.version is None else pending.version + 1
                pending.known.moved(pending.to, version)
            elif pending.to >= pending.known.offset:
                pending.known.moved(pending.to, None)
        self._pending.clear()

    def dropped(self) -> None:
        """Take note that nothing was moved."""
        self._pending.clear()


def moves_of(planned: Planned) -> Mapping[str, Move]:
    """Return the moves of a plan, by path."""
    return {path: move for path, (move, _) in planned.items()}
