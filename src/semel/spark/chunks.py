"""Rows gathered into chunks as large as the server takes."""

from collections.abc import Iterator
from typing import Final

import numpy as np

from semel.model.limits import BATCH_MESSAGES_MAX, BODY_BYTES_MAX, KIB, MIB
from semel.spark.rows import Rows, joined

HELD_BYTES_MAX: Final = 16 * MIB  # of rows that wait for more of their stream, all together
_BESIDE_BYTES: Final = 1 * KIB  # the head of a body, the media type, the columns of its extras


class _Pile:
    """Rows of one stream that wait for more."""

    def __init__(self) -> None:
        self.pieces: list[Rows] = []
        self.count = 0
        self.size = 0

    def add(self, rows: Rows, size: int) -> None:
        self.pieces.append(rows)
        self.count += len(rows)
        self.size += size


class Chunker:
    """Gathers the rows of each stream, in their order."""

    def __init__(self, bytes_max: int = BODY_BYTES_MAX) -> None:
        self._budget = bytes_max - _BESIDE_BYTES
        self._piles: dict[str, _Pile] = {}
        self._held = 0

    def add(self, rows: Rows) -> Iterator[Rows]:
        """Take rows, and give the chunks that are full."""
        size = int(rows.sizes().sum())
        pile = self._piles.setdefault(rows.path, _Pile())
        pile.add(rows, size)
        self._held += size
        if pile.count >= BATCH_MESSAGES_MAX or pile.size >= self._budget:
            yield from self._cut(rows.path, is_last=False)
        if self._held > HELD_BYTES_MAX:
            yield from self.rest()

    def rest(self) -> Iterator[Rows]:
        """Give what is left."""
        for path in list(self._piles):
            yield from self._cut(path, is_last=True)

    def _cut(self, path: str, *, is_last: bool) -> Iterator[Rows]:
        pile = self._piles.pop(path)
        self._held -= pile.size
        rows = joined(pile.pieces)
        ends = np.cumsum(rows.sizes())
        start, before = 0, 0
        while start < len(rows):
            end = int(np.searchsorted(ends, before + self._budget, side="right"))
            end = min(max(end, start + 1), start + BATCH_MESSAGES_MAX, len(rows))
            if end == len(rows) and not is_last and end - start < BATCH_MESSAGES_MAX:
                break
            yield rows.cut(start, end)
            start, before = end, int(ends[end - 1])
        if start < len(rows):
            size = int(ends[-1]) - before
            self._piles.setdefault(path, _Pile()).add(rows.cut(start, len(rows)), size)
            self._held += size
