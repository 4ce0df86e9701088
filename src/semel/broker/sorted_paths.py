"""The paths of all streams in order, in blocks: a change or a page costs the same however many."""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator
from typing import Final

_BLOCK_MAX: Final = 1_024


class SortedPaths:
    """A sorted set of paths."""

    def __init__(self, paths: Iterable[str] = ()) -> None:
        ordered = sorted(paths)
        half = _BLOCK_MAX // 2
        # There is always a block, and only if it is the only one may it be empty.
        self._blocks = [ordered[at : at + half] for at in range(0, len(ordered), half)] or [[]]
        self._firsts = [block[0] if block else "" for block in self._blocks]

    def add(self, path: str) -> None:
        """Put a path in its place."""
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
        """Take a path out, if it is there."""
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
        """Walk over the paths greater than `path` that begin with `prefix`."""
        is_inside = path >= prefix
        index = self._block_of(path if is_inside else prefix)
        block = self._blocks[index]
        at = bisect_right(block, path) if is_inside else bisect_left(block, prefix)
        while True:
            for found in block[at:]:
                if not found.startswith(prefix):
                    return
                yield found
            index, at = index + 1, 0
            if index == len(self._blocks):
                return
            block = self._blocks[index]

    def _block_of(self, path: str) -> int:
        return max(0, bisect_right(self._firsts, path) - 1)
