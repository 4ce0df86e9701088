"""When transactions end by themselves."""

from heapq import heapify, heappop, heappush
from typing import Final

from semel.machine.state import State, Txn
from semel.machine.txn_decide import due_of

_QUEUE_SLACK: Final = 1_024


class Deadlines:
    """The order in which transactions may time out.

    An entry is only a time to look again: a transaction's own deadline moves with every chunk. That
    of a decided one goes with its time, which may be a day, or when half of them are dead.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._queue: list[tuple[int, int]] = []
        for txn in state.by_txn.values():
            self.watch(txn)

    def __len__(self) -> int:
        """Count the entries."""
        return len(self._queue)

    def watch(self, txn: Txn) -> None:
        """Watch a transaction."""
        due_ms = due_of(txn)
        if due_ms is not None:
            heappush(self._queue, (due_ms, txn.row.number))
        undecided = self._state.by_txn
        if len(self._queue) > 2 * len(undecided) + _QUEUE_SLACK:
            self._queue = [entry for entry in self._queue if entry[1] in undecided]
            heapify(self._queue)

    def due(self, now_ms: int, count_max: int) -> list[Txn]:
        """List transactions whose time is over, at most `count_max`."""
        found: list[Txn] = []
        time_ms = self._state.frame_time(now_ms)
        while self._queue and self._queue[0][0] <= time_ms and len(found) < count_max:
            _, number = heappop(self._queue)
            txn = self._state.by_txn.get(number)
            if txn is None:
                continue
            if is_due(self._state, txn, now_ms):
                found.append(txn)
                heappush(self._queue, (time_ms + 1, number))  # should it have to wait
            else:
                self.watch(txn)
        return found


def is_due(state: State, txn: Txn, now_ms: int) -> bool:
    """Tell whether a transaction's time is over."""
    due_ms = due_of(txn)
    return due_ms is not None and state.frame_time(now_ms) >= due_ms
