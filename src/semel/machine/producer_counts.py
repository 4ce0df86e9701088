"""The producers of a stream, and how many producers of each kind there are.

A producer is lasting, expiring (it has declared an idle time) or a tombstone. Each kind has a limit
of its own, so the counts must be known without a scan: they are needed for every new producer.
"""

from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from semel.machine.rows import ProducerRow
from semel.model.commands import DENSE

if TYPE_CHECKING:
    from semel.machine.state import State


class Producers(dict[str, ProducerRow]):
    """The producers of one stream by their ids, with tombstones.

    `expiring` is the number of expiring producers. `tombstones` has the ids of all tombstones. The
    oldest comes first.

    `changeable` has the rows that an append may change in place (ADR 0027), provided that
    `changeable_in` is `state.cuts`: rows of dense producers that are in `state.dirty`, but not in
    a cut. It is a number, because a reference to `state.dirty` would keep an old cut in memory.
    """

    __slots__ = ("changeable", "changeable_in", "expiring", "tombstones")

    def __init__(self) -> None:
        super().__init__()
        self.expiring = 0
        self.tombstones: dict[str, None] = {}
        self.changeable: dict[str, ProducerRow] = {}
        self.changeable_in = -1

    def set_changeable(self, producer_id: str, row: ProducerRow, cuts: int) -> None:
        """Let later appends change `row` in place. It must be new, and stored in `state.dirty`."""
        if self.changeable_in != cuts:
            self.changeable, self.changeable_in = {}, cuts
        if row.mode == DENSE and row.last_seq >= 0 and not row.txn and row.latest_seq < 0:
            self.changeable[producer_id] = row

    @property
    def lasting(self) -> int:
        """The number of producers that are neither expiring nor tombstones."""
        return len(self) - self.expiring - len(self.tombstones)


def sort_tombstones(producers: Producers | None) -> None:
    """Restore the order of tombstones, after the rows were loaded in the order of ids."""
    if producers:
        ids = sorted(producers.tombstones, key=lambda name: (producers[name].tombstone, name))
        producers.tombstones = dict.fromkeys(ids)


class ProducerCounts(Struct):
    """The producers of all streams, counted.

    `live` does not count tombstones. `expiring` maps a producer id to the number of streams in
    which it is an expiring producer. `to_watch` has (stream, id) of each producer that has become
    expiring or a tombstone since the broker last read the list, and (0, id) of each registration
    that can end. The broker finds out when they are due. `unused` has the ids that are no longer in
    `expiring`, until they are noted in the registry.
    """

    live: int = 0
    tombstones: int = 0
    expiring: dict[str, int] = {}
    to_watch: list[tuple[int, str]] = []
    unused: list[str] = []

    def put(self, producers: Producers, stream: int, producer_id: str, row: ProducerRow) -> None:
        """Store a row of the stream with this number, and count it."""
        old = producers.get(producer_id)
        producers[producer_id] = row
        producers.changeable.pop(producer_id, None)
        if old is not None:
            if not (old.is_expired or row.is_expired) and old.expires_ms == row.expires_ms:
                return  # the common case
            self._remove(producers, producer_id, old)
        self._add(producers, producer_id, row)
        if old is not None:
            self._note_end(producer_id, old)
        if row.is_expired or row.expires_ms:
            self.to_watch.append((stream, producer_id))

    def drop(self, producers: Producers, producer_id: str) -> None:
        """Remove a row of a stream."""
        producers.changeable.pop(producer_id, None)
        old = producers.pop(producer_id)
        self._remove(producers, producer_id, old)
        self._note_end(producer_id, old)

    def drop_all(self, producers: Producers | None) -> None:
        """Remove all rows of a stream from the counts. The caller removes the rows themselves."""
        for producer_id, row in (producers or {}).items():
            self._uncount(producer_id, row)
            self._note_end(producer_id, row)

    def _note_end(self, producer_id: str, old: ProducerRow) -> None:
        if old.expires_ms and producer_id not in self.expiring:
            self.unused.append(producer_id)

    def _add(self, producers: Producers, producer_id: str, row: ProducerRow) -> None:
        if row.is_expired:
            producers.tombstones[producer_id] = None
            self.tombstones += 1
            return
        self.live += 1
        if row.expires_ms:
            producers.expiring += 1
            self.expiring[producer_id] = self.expiring.get(producer_id, 0) + 1

    def _remove(self, producers: Producers, producer_id: str, row: ProducerRow) -> None:
        if row.is_expired:
            del producers.tombstones[producer_id]
        elif row.expires_ms:
            producers.expiring -= 1
        self._uncount(producer_id, row)

    def _uncount(self, producer_id: str, row: ProducerRow) -> None:
        if row.is_expired:
            self.tombstones -= 1
            return
        self.live -= 1
        if row.expires_ms:
            self.expiring[producer_id] -= 1
            if not self.expiring[producer_id]:
                del self.expiring[producer_id]


def note_unused(state: "State") -> None:
    """Record until when registrations were in use that are no longer expiring producers."""
    counts = state.producer_counts
    unused, counts.unused = counts.unused, []
    for producer_id in unused:
        row = state.registry.get(producer_id)
        if row is not None and row.expires_ms:
            row = replace(row, used_hour=state.hours)
            state.registry[producer_id] = state.dirty.registry[producer_id] = row
