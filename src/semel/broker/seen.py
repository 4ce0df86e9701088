"""What readers may see: every stream as it is at the durable watermark, and who waits for more.

The state runs ahead of the disk. A read answered from it could show what a crash takes back, so
GET, HEAD, lists and live reads look here and only here (EO-6).
"""

from collections.abc import Callable, Iterable
from typing import Final

from msgspec import Struct

from semel.broker.sorted_paths import SortedPaths
from semel.machine.rows import StreamRow, TailRow
from semel.machine.state import State
from semel.model.limits import WAITERS_PER_STREAM_MAX


class Waiter:
    """One reader at the end of a stream; `wake` is called once, and is a hint: it looks again."""

    __slots__ = ("is_committed", "offset", "wake")

    def __init__(
        self, offset: int, wake: Callable[[], None], *, is_committed: bool = False
    ) -> None:
        self.offset: Final = offset
        self.wake: Final = wake
        self.is_committed: Final = is_committed


class View(Struct, gc=False, eq=False):
    """One stream at the durable watermark; `tail` is None once it is gone."""

    row: StreamRow
    tail: TailRow | None
    waiters: dict[Waiter, None] | None = None


class Seen:
    """All durable streams, by name and by number; the names of those that live, in order."""

    def __init__(self, state: State) -> None:
        self.by_path: dict[str, View] = {}
        self.by_number: dict[int, View] = {}
        for number, stream in state.by_number.items():
            view = View(stream.row, stream.tail)
            self.by_number[number] = view
            self.by_path[stream.row.path] = view
        self.paths = SortedPaths(
            path for path, view in self.by_path.items() if view.tail and not view.tail.is_deleted
        )

    def promote(self, changes: Iterable[tuple[StreamRow, TailRow | None]]) -> list[Waiter]:
        """Let readers see what became durable; answer the waiters to wake."""
        woken: list[Waiter] = []
        for row, tail in changes:
            view = self.by_number.get(row.number)
            if view is None:
                view = View(row, None)
                self.by_number[row.number] = view
                if tail is not None:
                    self.paths.add(row.path)
            view.tail = tail
            if tail is None or tail.is_deleted:
                self.paths.discard(row.path)
            if tail is not None:
                self.by_path[row.path] = view
            else:
                self._remove(view)
            if view.waiters is not None:
                woken.extend(_take_due(view, view.waiters))
        return woken

    def _remove(self, view: View) -> None:
        del self.by_number[view.row.number]
        if self.by_path.get(view.row.path) is view:
            del self.by_path[view.row.path]


def add_waiter(view: View, waiter: Waiter) -> bool:
    """Let a reader wait; False if too many do already."""
    if view.waiters is None:
        view.waiters = {}
    if len(view.waiters) >= WAITERS_PER_STREAM_MAX:
        return False
    view.waiters[waiter] = None
    return True


def drop_waiter(view: View, waiter: Waiter) -> None:
    """Stop waiting; harmless if the reader was woken already."""
    if view.waiters is not None:
        view.waiters.pop(waiter, None)


def end_of(tail: TailRow, is_committed: bool) -> int:
    """Tell how far a reader may read."""
    return tail.stable if is_committed else tail.tail


def _take_due(view: View, waiters: dict[Waiter, None]) -> list[Waiter]:
    tail = view.tail
    if tail is None or tail.is_closed or tail.is_deleted:
        view.waiters = None
        return list(waiters)
    due = [waiter for waiter in waiters if waiter.offset < end_of(tail, waiter.is_committed)]
    for waiter in due:
        del waiters[waiter]
    return due
