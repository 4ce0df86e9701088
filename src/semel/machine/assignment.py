"""The assignment: which member of a group gets which stream.

It is even, sticky and cooperative. Members with equal subscriptions own numbers of streams that
differ by at most one. A stream changes its owner only if that is necessary, and only after the old
owner has released it: `plan` first asks for the release, and gives the stream away in a later call.

The result is written into the event, so that a journal is replayed in the same way by a version
with another assignment.
"""

from bisect import insort
from collections.abc import Mapping, Set
from heapq import heapify, heappop, heappush, heapreplace

from msgspec import Struct

Class = int  # the subscriptions that contain a stream: their bits are set


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


def _classes_of(sets: list[Set[int]]) -> dict[int, Class]:
    """Return the class of each stream that one of the sets contains."""
    if len(sets) == 1:  # most often, and faster
        return dict.fromkeys(sets[0], 1)
    classes: dict[int, Class] = {}
    for index, wanted in enumerate(sets):
        bit = 1 << index
        for stream in wanted:
            classes[stream] = classes.get(stream, 0) | bit
    return classes


class _Lowest:
    """The members that own the fewest streams, of those that have the same set of streams."""

    def __init__(self, members: list[list[str]], loads: Mapping[str, int]) -> None:
        self._heaps = [[(loads[member], member) for member in names] for names in members]
        self._sets: dict[int, Class] = {}  # the fewest streams of a member -> in which sets
        for index, heap in enumerate(self._heaps):
            heapify(heap)
            self._sets[heap[0][0]] = self._sets.get(heap[0][0], 0) | 1 << index
        self._loads = sorted(self._sets)

    def has_below(self, kind: Class, load: int) -> bool:
        """Return True if a member that can own streams of a class owns fewer than `load`."""
        return any(self._sets[each] & kind for each in self._loads if each < load)

    def take(self, kind: Class) -> str:
        """Return a member with the fewest streams that can own one of a class, and count it."""
        at = found = 0
        while not found:
            load = self._loads[at]
            found = self._sets[load] & kind
            at += 1
        bit = found & -found
        heap = self._heaps[bit.bit_length() - 1]
        member = heap[0][1]
        heapreplace(heap, (load + 1, member))
        if heap[0][0] != load:
            self._move(bit, load)
        return member

    def _move(self, bit: Class, load: int) -> None:
        """Record that all members of a set own more streams than `load`, at least one more."""
        if load + 1 not in self._sets:
            self._sets[load + 1] = 0
            insort(self._loads, load + 1)
        self._sets[load + 1] |= bit
        self._sets[load] ^= bit
        if not self._sets[load]:
            del self._sets[load]
            self._loads.remove(load)


class _Pool:
    """The numbers of streams that the members own, while a plan is made."""

    def __init__(self, members: list[str], subscriptions: Mapping[str, Set[int]]) -> None:
        self._loads = dict.fromkeys(members, 0)
        self._sets: list[Set[int]] = []  # those that are different
        self._members: list[list[str]] = []  # of each of these sets
        indexes: dict[int, int] = {}  # the identity of a set -> its index
        for member in members:
            wanted = subscriptions[member]
            index = indexes.get(id(wanted))
            if index is None:
                index = indexes[id(wanted)] = self._index_of(wanted)
            self._members[index].append(member)
        self._classes = _classes_of(self._sets)
        self._lowest: _Lowest | None = None
        # The streams of each class by owner. Those that can move at once are at the end.
        self._streams: dict[Class, dict[str, list[int]]] = {}
        self.planned: dict[int, str] = {}  # the next owners of streams that can move at once

    def _index_of(self, wanted: Set[int]) -> int:
        for index, other in enumerate(self._sets):
            if other == wanted:
                return index
        self._sets.append(wanted)
        self._members.append([])
        return len(self._sets) - 1

    def _class_of(self, stream: int) -> Class:
        return self._classes.get(stream, 0)

    def _members_of(self, kind: Class) -> list[str]:
        return [
            member
            for index, members in enumerate(self._members)
            if kind >> index & 1
            for member in members
        ]

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
        if self._lowest is None:
            self._lowest = _Lowest(self._members, self._loads)
        member = self._lowest.take(kind)
        self.planned[stream] = member
        self._count(kind, stream, member)

    def even_out(self) -> list[int]:
        """Move streams until the numbers are even. Return those that must be revoked for it."""
        revoked: list[int] = []
        is_even = False
        lowest = _Lowest(self._members, self._loads)
        while not is_even:
            # A move in one class can make a move in another one useful.
            is_even = True
            for kind, owners in self._streams.items():
                highest = max(self._loads[owner] for owner, streams in owners.items() if streams)
                if not lowest.has_below(kind, highest - 1):
                    continue
                moved = self._even_out_class(self._members_of(kind), owners)
                revoked += [stream for stream in moved if stream not in self.planned]
                self.planned.update(moved)
                lowest = _Lowest(self._members, self._loads)
                is_even = len(self._streams) == 1
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
