"""The producers of a stream, and how many producers of each kind there are.

A producer is lasting, expiring (it has declared an idle time) or a tombstone. Each kind has a limit
of its own, so the counts must be known without a scan: they are needed for every new producer.
"""

from msgspec import Struct

from semel.machine.rows import ProducerRow


class Producers(dict[str, ProducerRow]):
    """The producers of one stream by their ids, with tombstones.

    `expiring` is the number of expiring producers. `tombstones` has the ids of all tombstones. The
    oldest comes first.
    """

    __slots__ = ("expiring", "tombstones")

    def __init__(self) -> None:
        super().__init__()
        self.expiring = 0
        self.tombstones: dict[str, None] = {}

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
    expiring or a tombstone since the broker last took the list, and (0, id) of each registration
    that can end. The broker finds out when they are due.
    """

    live: int = 0
    tombstones: int = 0
    expiring: dict[str, int] = {}
    to_watch: list[tuple[int, str]] = []

    def put(self, producers: Producers, stream: int, producer_id: str, row: ProducerRow) -> None:
        """Store a row of the stream with this number, and count it."""
        old = producers.get(producer_id)
        producers[producer_id] = row
        if old is not None:
            if not (old.is_expired or row.is_expired) and old.expires_ms == row.expires_ms:
                return  # the common case
            self._remove(producers, producer_id, old)
        self._add(producers, producer_id, row)
        if row.is_expired or row.expires_ms:
            self.to_watch.append((stream, producer_id))

    def drop(self, producers: Producers, producer_id: str) -> None:
        """Remove a row of a stream."""
        self._remove(producers, producer_id, producers.pop(producer_id))

    def drop_all(self, producers: Producers | None) -> None:
        """Count all rows of a stream no longer. The caller drops them together."""
        for producer_id, row in (producers or {}).items():
            self._uncount(producer_id, row)

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
