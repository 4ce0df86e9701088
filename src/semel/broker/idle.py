"""When producers that fell silent are let go.

Off unless a setting says otherwise: a producer's state lives as long as its stream. What is let go
leaves a tombstone, so a late retry is refused and never stored twice.
"""

from heapq import heappop, heappush
from typing import Final

from semel.machine.rows import ProducerRow
from semel.machine.state import State

_LOOKS_PER_FIND: Final = 10


class IdleProducers:
    """The producers of all streams, in the order in which they may have been idle too long."""

    def __init__(self, state: State, idle_ms: int) -> None:
        self.idle_ms: Final = idle_ms
        self._state = state
        self._watched: set[tuple[int, str]] = set()
        self._queue: list[tuple[int, int, str]] = []
        for number, stream in state.by_number.items():
            for producer_id in stream.producers or ():
                self.watch(number, producer_id)

    def watch(self, number: int, producer_id: str) -> None:
        """Watch a producer of a stream; one that is watched already costs nothing."""
        if (number, producer_id) in self._watched:
            return
        row = self._row(number, producer_id)
        if row is not None:
            self._watched.add((number, producer_id))
            heappush(self._queue, (row.updated_ms + self.idle_ms, number, producer_id))

    def due(self, now_ms: int, count_max: int) -> list[tuple[str, str]]:
        """List path and id of producers idle too long, at most `count_max`."""
        found: list[tuple[str, str]] = []
        time_ms = self._state.frame_time(now_ms)
        for _ in range(_LOOKS_PER_FIND * count_max):
            if not self._queue or self._queue[0][0] > time_ms or len(found) >= count_max:
                break
            _, number, producer_id = heappop(self._queue)
            row = self._row(number, producer_id)
            if row is None:
                self._watched.discard((number, producer_id))
                continue
            deadline = row.updated_ms + self.idle_ms
            # Its end may find no room on the disk; then it is looked at again.
            heappush(self._queue, (max(deadline, time_ms + 1), number, producer_id))
            if deadline <= time_ms:
                found.append((self._state.by_number[number].row.path, producer_id))
        return found

    def _row(self, number: int, producer_id: str) -> ProducerRow | None:
        """Find a producer that can still be let go."""
        stream = self._state.by_number.get(number)
        if stream is None or stream.tail.is_deleted or not stream.producers:
            return None
        row = stream.producers.get(producer_id)
        return None if row is None or row.is_expired else row
