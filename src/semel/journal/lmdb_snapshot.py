"""Read access to one snapshot of an LMDB file, without LMDB.

LMDB always uses the newer snapshot, and refuses a file with a damaged meta page. So as long as a
file with such a page must not be changed, its sound snapshot is read by this module.
"""

import os
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from mmap import ACCESS_READ, MAP_ANONYMOUS, MAP_PRIVATE, PROT_READ, mmap

from semel.journal.lmdb_meta import BadPage, Meta
from semel.journal.lmdb_pages import Snapshot
from semel.journal.store import Row
from semel.model.errors import CorruptData
from semel.model.limits import CHECKPOINT_BYTES_MAX


class SnapshotReader:
    """Reads the tables of one snapshot, as `LmdbReader` does. Its pages must have been checked."""

    def __init__(self, path: str, meta: Meta) -> None:
        """Map the file. Raises CorruptData or OSError.

        OSError is also raised if LMDB could not map the file later, because the address space is
        limited. A start must find this out before it changes a file.
        """
        mmap(-1, CHECKPOINT_BYTES_MAX, flags=MAP_PRIVATE | MAP_ANONYMOUS, prot=PROT_READ).close()
        self._name = os.path.basename(path)
        with open(path, "rb") as file:
            self._data = mmap(file.fileno(), 0, access=ACCESS_READ)
        try:
            self._snapshot = Snapshot(self._data, meta)
        except BadPage as error:
            self.close()
            raise self._corrupt(error) from error

    def close(self) -> None:
        self._data.close()

    def get(self, table: str, key: bytes) -> bytes | None:
        row = self.last_before(table, key)
        return row[1] if row is not None and row[0] == key else None

    def scan(self, table: str, start: bytes = b"") -> Iterator[Row]:
        tree = self._snapshot.tables.get(table.encode())
        if tree is None or not tree.depth:
            return
        try:
            yield from self._rows_from(tree.root, tree.depth, start)
        except BadPage as error:
            raise self._corrupt(error) from error

    def last_before(self, table: str, key: bytes) -> Row | None:
        tree = self._snapshot.tables.get(table.encode())
        if tree is None or not tree.depth:
            return None
        try:
            return self._last_before(tree.root, tree.depth, key)
        except BadPage as error:
            raise self._corrupt(error) from error

    def _rows_from(self, page: int, depth: int, start: bytes) -> Iterator[Row]:
        nodes, keys = self._snapshot.read_nodes(page, is_leaf=depth == 1)
        if depth == 1:
            yield from self._snapshot.rows(page, nodes[bisect_left(keys, start) :])
            return
        # The keys of a child are not less than its key in the branch. The first key is not used.
        for _, child, _, _ in nodes[bisect_right(keys, start, lo=1) - 1 :]:
            yield from self._rows_from(child, depth - 1, start)

    def _last_before(self, page: int, depth: int, key: bytes) -> Row | None:
        nodes, keys = self._snapshot.read_nodes(page, is_leaf=depth == 1)
        if depth == 1:
            index = bisect_right(keys, key)
            return next(self._snapshot.rows(page, nodes[index - 1 : index]), None)
        # If all keys of a child are greater, the row is in an earlier child.
        for index in reversed(range(bisect_right(keys, key, lo=1))):
            row = self._last_before(nodes[index][1], depth - 1, key)
            if row is not None:
                return row
        return None

    def _corrupt(self, error: BadPage) -> CorruptData:
        return CorruptData(str(error), file=self._name)
