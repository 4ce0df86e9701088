"""The assignment: which member of a group gets which stream.

It is even, sticky and cooperative. Members with equal subscriptions own numbers of streams that
differ by at most one. A stream changes its owner only if that is necessary, and only after the old
owner has released it: `plan` first asks for the release, and gives the stream away in a later call.

The result is written into the event, so that a journal is replayed in the same way by a version
with another assignment.
"""

from collections.abc import Mapping, Set
from heapq import heapify, heappop, heappush, heapreplace
from typing import Final

from msgspec import Struct

Class = tuple[int, ...]  # indexes of the subscriptions that contain a stream

_FIRST: Final = (0,)


class AssignmentStep(Struct):
    """What must change: `given` has pairs of a stream and a member, `revoked` has streams."""

    given: list[tuple[int, str]] = []
    revoked: list[int] = []


def plan(
    subscriptions: Mapping[str, Set[int]],
    owned: Mapping[int, str],
    free: Set[int],
    leaving: Set[int],
    preferred: Mapping[int, str] | None = None,
) -> AssignmentStep:
    """Return the next step towards an even assignment.

    `subscriptions` has the streams that each member can own. `owned` maps streams to their owners,
    without those in `leaving`: these are being released, or are held, and nobody can get them yet.
    Nobody owns the streams in `free`. `preferred` has the members that get some of these, unless
    the assignment is more even otherwise.
    """
    result = AssignmentStep()
    if not subscriptions:
        return result
    members = sorted(subscriptions)
    pool = _Pool(members, subscriptions)
    for stream in sorted(owned):
        owner = owned[stream]
        if stream in subscriptions[owner]:
            pool.keep(stream, owner)
        else:
            result.revoked.append(stream)
    wishes = {} if preferred is None else preferred
    for stream in sorted(wishes.keys() & free):
        pool.give_to(stream, wishes[stream])
    # Streams that are being released will be free soon. They are planned for, so that no more
    # streams are revoked than necessary.
    for stream in sorted({*free, *leaving, *result.revoked} - wishes.keys()):
        pool.give(stream)
    result.revoked += pool.even_out()
    result.given += [
        (stream, pool.planned[stream]) for stream in sorted(free & pool.planned.keys())
    ]
    return result


class _Pool:
    """The numbers of streams that the members own, while a plan is made."""

    def __init__(self, members: list[str], subscriptions: Mapping[str, Set[int]]) -> None:
        self._loads = dict.fromkeys(members, 0)
        distinct: dict[int, int] = {}  # the identity of a set -> its index
        self._sets: list[Set[int]] = []
        self._members: list[list[str]] = []
        for member in members:
            wanted = subscriptions[member]
            index = self._index_of(wanted, distinct)
            self._members[index].append(member)
        self._heaps: dict[Class, list[tuple[int, str]]] = {}
        # The streams of each class by owner. Those that can move at once are at the end.
        self._streams: dict[Class, dict[str, list[int]]] = {}
        self.planned: dict[int, str] = {}  # the next owners of streams that can move at once

    def _index_of(self, wanted: Set[int], distinct: dict[int, int]) -> int:
        index = distinct.get(id(wanted))
        if index is None:
            index = next((at for at, other in enumerate(self._sets) if other == wanted), -1)
            if index < 0:
                index = len(self._sets)
                self._sets.append(wanted)
                self._members.append([])
            distinct[id(wanted)] = index
        return index

    def _class_of(self, stream: int) -> Class:
        if len(self._sets) == 1:  # most often, and faster
            return _FIRST if stream in self._sets[0] else ()
        return tuple(index for index, wanted in enumerate(self._sets) if stream in wanted)

    def _members_of(self, kind: Class) -> list[str]:
        return [member for index in kind for member in self._members[index]]

    def keep(self, stream: int, owner: str) -> None:
        """Count a stream that its owner keeps."""
        self._count(self._class_of(stream), stream, owner)

    def _count(self, kind: Class, stream: int, owner: str) -> None:
        self._loads[owner] += 1
        owners = self._streams.get(kind)
        if owners is None:
            owners = self._streams[kind] = {}
        streams = owners.get(owner)
        if streams is None:
            owners[owner] = [stream]
        else:
            streams.append(stream)

    def give_to(self, stream: int, member: str) -> None:
        """Plan to give a stream to a member."""
        self.planned[stream] = member
        self._count(self._class_of(stream), stream, member)

    def give(self, stream: int) -> None:
        """Plan to give a stream to the member with the fewest streams that can own it, if any."""
        kind = self._class_of(stream)
        if not kind:
            return
        heap = self._heaps.get(kind)
        if heap is None:
            heap = self._heaps[kind] = [
                (self._loads[member], member) for member in self._members_of(kind)
            ]
            heapify(heap)
        load, member = heap[0]
        while load != self._loads[member]:  # it has got streams of other classes
            heapreplace(heap, (self._loads[member], member))
            load, member = heap[0]
        self.planned[stream] = member
        self._count(kind, stream, member)
        heapreplace(heap, (load + 1, member))

    def even_out(self) -> list[int]:
        """Move streams until the numbers are even. Return those that must be revoked for it."""
        revoked: list[int] = []
        is_even = False
        while not is_even:
            # A move in one class can make a move in another one useful.
            is_even = True
            for kind, owners in self._streams.items():
                moved = self._even_out_class(self._members_of(kind), owners)
                revoked += [stream for stream in moved if stream not in self.planned]
                for stream, taker in moved.items():
                    self.planned[stream] = taker
                is_even = is_even and (not moved or len(self._streams) == 1)
        return revoked

    def _even_out_class(self, members: list[str], owners: dict[str, list[int]]) -> dict[int, str]:
        """Move streams of one class from the members with most to those with fewest streams.

        Return the streams that move, and to whom.
        """
        moved: dict[int, str] = {}
        low = [(self._loads[member], member) for member in members]
        high = [self._rank(member, owners) for member in members if owners.get(member)]
        heapify(low)
        heapify(high)
        while high:
            rank = heappop(high)
            giver = rank[-1]
            if rank != self._rank(giver, owners):
                heappush(high, self._rank(giver, owners))
                continue
            if low[0][0] != self._loads[low[0][1]]:
                _, stale = heappop(low)
                heappush(low, (self._loads[stale], stale))
                heappush(high, rank)
                continue
            fewest, taker = low[0]
            if self._loads[giver] - fewest < 2:
                break
            stream = owners[giver].pop()
            owners.setdefault(taker, []).append(stream)
            moved[stream] = taker
            self._loads[giver] -= 1
            self._loads[taker] += 1
            if owners[giver]:
                heappush(high, self._rank(giver, owners))
        return moved

    def _rank(self, member: str, owners: dict[str, list[int]]) -> tuple[int, bool, str]:
        """Return when a member gives a stream away, compared with others.

        Those with the most streams are first, of these those with a stream that can move at once.
        """
        return -self._loads[member], owners[member][-1] not in self.planned, member
