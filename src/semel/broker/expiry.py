"""When streams end by themselves.

Reads prolong a sliding window without leaving a trace in the journal, so their times live here and
not in the state. After a restart every window starts anew: late, never early.
"""

from heapq import heapify, heappop, heappush
from typing import Final

from semel.machine.rows import StreamRow
from semel.machine.state import State, Stream, is_over, window_end_ms

_QUEUE_SLACK: Final = 1_024


def is_mortal(row: StreamRow) -> bool:
    """Tell whether a stream can expire at all."""
    return row.ttl_ms is not None or row.expires_at_ms is not None


class Expiry:
    """The last use of every mortal stream, and the order in which they may end."""

    def __init__(self, state: State, now_ms: int) -> None:
        self._state = state
        self._started_ms = state.frame_time(now_ms)
        self._touched: dict[int, int] = {}
        self._watched: set[int] = set()
        self._queue: list[tuple[int, int]] = []
        for stream in state.by_number.values():
            if is_mortal(stream.row) and not stream.tail.is_deleted:
                self.watch(stream)

    @property
    def is_idle(self) -> bool:
        """Tell that no stream can expire."""
        return not self._watched

    def watch(self, stream: Stream) -> None:
        """Watch a mortal stream."""
        number = stream.row.number
        if number not in self._watched:
            self._watched.add(number)
            heappush(self._queue, (self.deadline(stream), number))

    def forget(self, number: int) -> None:
        """Stop watching; the queue's entry goes with its time, or when half of them are dead."""
        self._touched.pop(number, None)
        self._watched.discard(number)
        if len(self._queue) > 2 * len(self._watched) + _QUEUE_SLACK:
            self._queue = [entry for entry in self._queue if entry[1] in self._watched]
            heapify(self._queue)

    def touch(self, number: int, now_ms: int) -> None:
        """Note a read."""
        time_ms = self._state.frame_time(now_ms)
        self._touched[number] = max(time_ms, self._touched.get(number, 0))

    def touched_ms(self, number: int) -> int:
        """Tell a stream's last use other than by a write."""
        return max(self._started_ms, self._touched.get(number, 0))

    def deadline(self, stream: Stream) -> int:
        """Tell when to look at a mortal stream again, at the latest."""
        row = stream.row
        ends = [] if row.expires_at_ms is None else [row.expires_at_ms]
        if row.ttl_ms is not None:
            ends.append(window_end_ms(stream, self.touched_ms(row.number)))
        return min(ends)

    def is_over(self, stream: Stream, now_ms: int) -> bool:
        """Tell whether a mortal stream's time is over."""
        touched_ms = self.touched_ms(stream.row.number)
        time_ms = self._state.frame_time(now_ms)
        return is_over(stream, touched_ms, now_ms=now_ms, time_ms=time_ms)

    def due(self, now_ms: int, count_max: int) -> list[Stream]:
        """List streams whose time is over, at most `count_max`."""
        found: list[Stream] = []
        while self._queue and self._queue[0][0] <= now_ms and len(found) < count_max:
            _, number = heappop(self._queue)
            if number not in self._watched:
                continue
            stream = self._state.by_number[number]
            heappush(self._queue, (max(self.deadline(stream), now_ms + 1), number))
            if self.is_over(stream, now_ms):
                found.append(stream)
        return found
