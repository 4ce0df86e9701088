"""The durable view: every stream as it is at the durable watermark, and the readers that wait.

The state runs ahead of the disk: a read from it could return messages that a crash then loses. So
GET, HEAD, lists and live reads use this view only (EO-6).
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from msgspec import Struct

from semel.machine.rows import StreamRow, TailRow
from semel.machine.state import State
from semel.model.limits import WAITERS_PER_STREAM_MAX
from semel.model.outcomes import Gone, NotFound


class Waiter:
    """One reader at the tail of a stream. `wake` is called once, as a hint to read again."""

    __slots__ = ("is_committed", "offset", "wake")

    def __init__(
        self, offset: int, wake: Callable[[], None], *, is_committed: bool = False
    ) -> None:
        self.offset: Final = offset
        self.wake: Final = wake
        self.is_committed: Final = is_committed


class StreamView(Struct, gc=False, eq=False):
    """One stream at the durable watermark; `tail` is None once it is removed."""

    row: StreamRow
    tail: TailRow | None
    waiters: dict[Waiter, None] | None = None

    @property
    def durable_tail(self) -> TailRow:
        """The tail of a stream that has not been removed."""
        assert self.tail is not None
        return self.tail


class DurableView:
    """All durable streams by path and by number; `paths` are sorted, without deleted streams."""

    def __init__(self, state: State) -> None:
        self.by_path: dict[str, StreamView] = {}
        self.by_number: dict[int, StreamView] = {}
        for number, stream in state.by_number.items():
            view = StreamView(stream.row, stream.tail)
            self.by_number[number] = view
            self.by_path[stream.row.path] = view
        self.paths = SortedPaths(
            path for path, view in self.by_path.items() if view.tail and not view.tail.is_deleted
        )

    def find(self, path: str) -> StreamView | NotFound | Gone:
        """Return a stream that can be read, or the refusal."""
        view = self.by_path.get(path)
        if view is None or view.tail is None:
            return NotFound()
        return Gone() if view.tail.is_deleted else view

    def promote(self, changes: Iterable[tuple[StreamRow, TailRow | None]]) -> list[Waiter]:
        """Store the streams that became durable; return the waiters to wake."""
        woken: list[Waiter] = []
        for row, tail in changes:
            view = self.by_number.get(row.number)
            if view is None:
                view = StreamView(row, None)
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

    def _remove(self, view: StreamView) -> None:
        del self.by_number[view.row.number]
        if self.by_path.get(view.row.path) is view:
            del self.by_path[view.row.path]


def add_waiter(view: StreamView, waiter: Waiter) -> bool:
    """Add a waiter to a stream; False if it has too many."""
    if view.waiters is None:
        view.waiters = {}
    if len(view.waiters) >= WAITERS_PER_STREAM_MAX:
        return False
    view.waiters[waiter] = None
    return True


def drop_waiter(view: StreamView, waiter: Waiter) -> None:
    """Remove a waiter, if it was not woken already."""
    if view.waiters is not None:
        view.waiters.pop(waiter, None)


def tail_of_view(tail: TailRow, is_committed: bool) -> int:
    """Return the offset up to which a reader may read."""
    return tail.stable if is_committed else tail.tail


def _take_due(view: StreamView, waiters: dict[Waiter, None]) -> list[Waiter]:
    tail = view.tail
    if tail is None or tail.is_closed or tail.is_deleted:
        view.waiters = None
        return list(waiters)
    due = [waiter for waiter in waiters if waiter.offset < tail_of_view(tail, waiter.is_committed)]
    for waiter in due:
        del waiters[waiter]
    return due


# ---- sorted paths --------------------------------------------------------------------------------
# In blocks, so that the cost of a change or a page does not grow with the number of streams.


_BLOCK_MAX: Final = 1_024


class SortedPaths:
    """A sorted set of paths."""

    def __init__(self, paths: Iterable[str] = ()) -> None:
        ordered = sorted(paths)
        half = _BLOCK_MAX // 2
        # There is always a block; only a single one may be empty.
        self._blocks = [ordered[at : at + half] for at in range(0, len(ordered), half)] or [[]]
        self._firsts = [block[0] if block else "" for block in self._blocks]

    def add(self, path: str) -> None:
        index = self._block_of(path)
        block = self._blocks[index]
        insort(block, path)
        self._firsts[index] = block[0]
        if len(block) > _BLOCK_MAX:
            half = len(block) // 2
            self._blocks.insert(index + 1, block[half:])
            self._firsts.insert(index + 1, block[half])
            del block[half:]

    def discard(self, path: str) -> None:
        index = self._block_of(path)
        block = self._blocks[index]
        at = bisect_left(block, path)
        if at == len(block) or block[at] != path:
            return
        del block[at]
        if block:
            self._firsts[index] = block[0]
        elif len(self._blocks) > 1:
            del self._blocks[index], self._firsts[index]

    def after(self, path: str, prefix: str = "") -> Iterator[str]:
        """Yield the paths after `path` that begin with `prefix`."""
        is_inside = path >= prefix
        index = self._block_of(path if is_inside else prefix)
        block = self._blocks[index]
        at = bisect_right(block, path) if is_inside else bisect_left(block, prefix)
        while True:
            for other in block[at:]:
                if not other.startswith(prefix):
                    return
                yield other
            index, at = index + 1, 0
            if index == len(self._blocks):
                return
            block = self._blocks[index]

    def _block_of(self, path: str) -> int:
        return max(0, bisect_right(self._firsts, path) - 1)
