"""A sorted set of paths.

Paths are stored in blocks. Adding, removing or listing a few paths therefore touches only a few
blocks, however many streams there are.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator
from typing import Final

_BLOCK_MAX: Final = 1_024


class SortedPaths:
    """A sorted set of paths."""

    def __init__(self, paths: Iterable[str] = ()) -> None:
        ordered = sorted(paths)
        half = _BLOCK_MAX // 2
        # There is always at least one block. A block can be empty only if it is the only block.
        self._blocks = [ordered[at : at + half] for at in range(0, len(ordered), half)] or [[]]
        self._firsts = [block[0] if block else "" for block in self._blocks]

    def __len__(self) -> int:
        return sum(map(len, self._blocks))

    def __contains__(self, path: str) -> bool:
        block = self._blocks[self._block_of(path)]
        at = bisect_left(block, path)
        return at < len(block) and block[at] == path

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
        """Yield the paths after `path` that begin with `prefix`, in sorted order."""
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
