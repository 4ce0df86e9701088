"""Verification of the pages of an LMDB file, without LMDB.

LMDB has no checksums. It follows a damaged page number or key, and then it misses a row, returns a
wrong row, overwrites a page in use, or crashes the process. Therefore the whole file is checked
before LMDB opens it: both meta pages, every page tree, the order of all keys, and the list of free
pages. The rows have checksums of their own, which the caller checks.
"""

import os
import struct
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from semel.journal.lmdb_meta import (
    INTEGER_KEYS,
    META_PAGES,
    METAS_BYTES_MAX,
    PAGE_HEADER,
    TREE,
    BadPage,
    Meta,
    Metas,
    Tree,
    newest_first,
    read_metas,
)
from semel.model.errors import CorruptData

_NODE: Final = struct.Struct("<HHHH")  # size or page number (two numbers), flags, key size
_NUMBER: Final = struct.Struct("<Q")

_IS_BRANCH, _IS_LEAF, _IS_OVERFLOW = 1, 2, 4
_IS_BIG, _IS_TREE = 1, 2
_NO_ROOT: Final = (1 << 64) - 1
_READ_BYTES: Final = 1 << 20
_INDEX: Final = b"index"
# A start does not wait for the check of an index with more leaf pages. These take about 0.1 s.
_LEAVES_AT_START: Final = 4_000

Node = tuple[int, int, int, int]  # position in the page, size or page number, flags, key size
Leaf = tuple[int, bytes | None, bytes | None]  # the page number and the bounds of the keys


class PageFile:
    """An open file whose pages are read one by one, so only the pages that are needed are read.

    The file is not mapped. A sector that cannot be read is an OSError here, but in mapped memory it
    is a signal (SIGBUS), which ends the process.
    """

    def __init__(self, descriptor: int) -> None:
        """Use an open file. Its size is read once. Raises OSError."""
        self._descriptor = descriptor
        self.size = os.fstat(descriptor).st_size

    def read(self, at: int, size: int) -> bytes:
        """Return `size` bytes from position `at`, or fewer if the file ends. Raises OSError."""
        return os.pread(self._descriptor, size, at)


class Snapshot:
    """The page trees of one snapshot. Every page is visited at most once."""

    def __init__(self, file: PageFile, meta: Meta) -> None:
        self._file = file
        self._meta = meta
        self._page_bytes = meta.page_bytes
        self._page_count = min(meta.last_page + 1, file.size // meta.page_bytes)
        self._is_used = bytearray(self._page_count)
        self._is_used[:META_PAGES] = b"\1" * META_PAGES
        self._free: set[int] = set()
        self._freed_in = 0  # the last transaction that has freed pages
        # A list of free pages is shorter than its value. LMDB can leave an empty list in a value
        # that it has reserved. But the length of a list may also be damaged.
        self.has_short_list = False
        self._counts = [0, 0, 0, 0]
        self.tables = self._read_catalogue()
        self._read_free()

    @property
    def is_current(self) -> bool:
        """Return False if the meta page may have an old part, although its transaction is new.

        Every commit replaces pages, and so adds to the list of free pages. Only the commit that
        creates the first table replaces nothing.
        """
        return self._freed_in >= self._meta.transaction - 1

    def check_tables(self, *, is_quick: bool) -> bool:
        """Check all pages of all tables, and that none of them is free. Raises BadPage.

        With `is_quick`, the rows of a large index are left out. Return True if nothing was left
        out. Whether an index is large is counted, because the number in its record may be damaged.
        """
        is_complete = True
        for name, tree in self.tables.items():
            if is_quick and name == _INDEX and tree.root != _NO_ROOT:
                is_complete = self._check_index(tree)
            else:
                for _ in self._leaves(tree):
                    pass
        for page in self._free:
            if page < self._page_count and self._is_used[page]:
                raise BadPage(page, "is in use and in the list of free pages")
        if self.has_short_list and is_complete:
            for page in range(self._page_count):
                if not self._is_used[page] and page not in self._free:
                    raise BadPage(page, "is neither in use nor in the list of free pages")
        return is_complete

    def _check_index(self, tree: Tree) -> bool:
        """Check the index. Return False if it is large, and only its branch pages were checked."""
        self._counts = [0, 0, 0, 0]
        pages = list(self._leaf_pages(tree.root, tree, tree.depth, None, None))
        if len(pages) <= _LEAVES_AT_START:
            for _ in self._checked_leaves(tree, pages, 0):
                pass
            return True
        for page, _, _ in pages:
            self._use(page, 1)
        counts, expected = (self._counts[0], len(pages)), (tree.branch_pages, tree.leaf_pages)
        if counts != expected:
            raise BadPage(tree.root, f"is the root of a tree with {counts}, not {expected}")
        return False

    def _read_catalogue(self) -> dict[bytes, Tree]:
        tables = {}
        for page, nodes in self._leaves(self._meta.main, node_flags=_IS_TREE):
            for name, value in self.rows(page, nodes):
                if len(value) != TREE.size:
                    raise BadPage(self._meta.main.root, "has a damaged table record")
                tree = Tree._make(TREE.unpack(value))
                if (tree.padding, tree.flags) != (0, 0):
                    raise BadPage(self._meta.main.root, f"has a damaged record of table {name!r}")
                tables[name] = tree
        return tables

    def _read_free(self) -> None:
        """Read the list of free pages. No page may be free and in use."""
        for page, nodes in self._leaves(self._meta.free):
            for key, value in self.rows(page, nodes):
                if len(key) != _NUMBER.size or len(value) < _NUMBER.size:
                    raise BadPage(self._meta.free.root, "has a damaged list of free pages")
                self._freed_in = max(self._freed_in, _NUMBER.unpack(key)[0])
                count = _NUMBER.unpack_from(value)[0]
                if len(value) < _NUMBER.size * (count + 1):
                    raise BadPage(self._meta.free.root, "has a damaged list of free pages")
                if len(value) > _NUMBER.size * (count + 1):
                    self.has_short_list = True
                pages = struct.unpack_from(f"<{count}Q", value, _NUMBER.size)
                for free in pages:
                    if not META_PAGES <= free <= self._meta.last_page or free in self._free:
                        raise BadPage(free, "is in the list of free pages, but cannot be free")
                    self._free.add(free)
        # Pages at the end of the file can be missing, because LMDB never writes a page that one
        # transaction has allocated and freed. All other pages must exist: LMDB would crash.
        missing = range(self._page_count, self._meta.last_page + 1)
        if len(missing) > len(self._free) or not self._free.issuperset(missing):
            raise BadPage(self._page_count, "or a later page is missing, but not free")

    # ---- one tree --------------------------------------------------------------------------------

    def _leaves(self, tree: Tree, node_flags: int = 0) -> Iterator[tuple[int, list[Node]]]:
        """Check the pages of a tree. Yield the number and the nodes of each leaf page."""
        self._counts = [0, 0, 0, 0]
        if tree.root == _NO_ROOT and tree.depth:
            raise BadPage(tree.root, "is not a page")
        pages: Iterable[Leaf] = ()
        if tree.root != _NO_ROOT:
            pages = self._leaf_pages(tree.root, tree, tree.depth, None, None)
        yield from self._checked_leaves(tree, pages, node_flags)

    def _checked_leaves(
        self, tree: Tree, pages: Iterable[Leaf], node_flags: int
    ) -> Iterator[tuple[int, list[Node]]]:
        """Check the leaf pages of a tree and its counts. Yield the number and nodes of each."""
        counts = self._counts
        for page, low, high in pages:
            nodes, keys = self._nodes(page, is_leaf=True)
            counts[1] += 1
            counts[3] += len(nodes)
            self._check_order(page, tree, keys, low, high)
            if {flags for _, _, flags, _ in nodes} != {node_flags}:
                self._check_big(page, nodes, node_flags)
            yield page, nodes
        expected = [tree.branch_pages, tree.leaf_pages, tree.overflow_pages, tree.entries]
        if counts != expected:
            raise BadPage(tree.root, f"is the root of a tree with {counts}, not {expected}")

    def _leaf_pages(
        self, page: int, tree: Tree, depth: int, low: bytes | None, high: bytes | None
    ) -> Iterator[Leaf]:
        """Check the branch pages. Yield each leaf page, with the bounds of its keys."""
        if depth == 1:
            yield page, low, high
            return
        self._counts[0] += 1
        nodes, keys = self._nodes(page, is_leaf=False)
        del keys[0]  # LMDB does not use the first key of a branch
        self._check_order(page, tree, keys, low, high)
        bounds = [low, *keys, high]
        for index, (_, child, _, _) in enumerate(nodes):
            yield from self._leaf_pages(child, tree, depth - 1, bounds[index], bounds[index + 1])

    def _check_order(
        self, page: int, tree: Tree, keys: list[bytes], low: bytes | None, high: bytes | None
    ) -> None:
        order = keys
        if tree.flags & INTEGER_KEYS:
            order = [key[::-1] for key in keys]
            low, high = low and low[::-1], high and high[::-1]
        is_ordered = order == sorted(order) and len(set(order)) == len(order)
        if not is_ordered or (
            order and ((low and order[0] < low) or (high is not None and order[-1] >= high))
        ):
            raise BadPage(page, "has keys that are out of order")

    def _nodes(self, page: int, *, is_leaf: bool) -> tuple[list[Node], list[bytes]]:
        self._use(page, 1)
        return self.read_nodes(page, is_leaf=is_leaf)

    def read_nodes(self, page: int, *, is_leaf: bool) -> tuple[list[Node], list[bytes]]:
        """Return the nodes of a page and their keys. Raises BadPage.

        The nodes must be in the page and not overlap.
        """
        data = self._read(page, 0, self._page_bytes)
        number, _, flags, lower, upper = PAGE_HEADER.unpack_from(data)
        is_sound = (
            number == page
            and flags == (_IS_LEAF if is_leaf else _IS_BRANCH)
            and PAGE_HEADER.size < lower <= upper <= self._page_bytes
            and lower % 2 == 0
        )
        if not is_sound:
            raise BadPage(page, "has a damaged header")
        positions = struct.unpack_from(
            f"<{(lower - PAGE_HEADER.size) // 2}H", data, PAGE_HEADER.size
        )
        if min(positions) < upper or max(positions) > self._page_bytes - _NODE.size:
            raise BadPage(page, "has a damaged node")
        used = 0
        nodes, keys = [], []
        read_node = _NODE.unpack_from
        for at in positions:
            low, high, node_flags, key_size = read_node(data, at)
            size = low | high << 16
            end = at + _NODE.size + key_size
            keys.append(data[at + _NODE.size : end])
            if not is_leaf:
                size |= node_flags << 32
            elif node_flags & _IS_BIG:
                end += _NUMBER.size
            else:
                end += size
            if end > self._page_bytes:
                raise BadPage(page, "has a damaged node")
            used += end - at + (end - at & 1)
            nodes.append((at, size, node_flags, key_size))
        if used != self._page_bytes - upper:
            raise BadPage(page, "has nodes that overlap")
        return nodes, keys

    def _check_big(self, page: int, nodes: list[Node], node_flags: int) -> None:
        """Check the nodes whose flags differ from `node_flags`: their values have own pages."""
        for node in nodes:
            if node[2] != node_flags:
                if node[2] != _IS_BIG or node_flags:
                    raise BadPage(page, "has a node with wrong flags")
                self._check_big_value(page, node)

    def _check_big_value(self, page: int, node: Node) -> None:
        size = node[1]
        first = self._big_page(page, node)
        self._use(first, 1)
        header = self._read(first, 0, PAGE_HEADER.size)
        number, _, flags, low, high = PAGE_HEADER.unpack(header)
        # A value that one transaction has written twice can have more pages than it needs.
        count = low | high << 16
        needed = -(-(PAGE_HEADER.size + size) // self._page_bytes)
        if (number, flags) != (first, _IS_OVERFLOW) or count < needed:
            raise BadPage(first, "has a damaged header")
        self._use(first + 1, count - 1)
        self._counts[2] += count

    def _big_page(self, page: int, node: Node) -> int:
        at, _, _, key_size = node
        number = self._read(page, at + _NODE.size + key_size, _NUMBER.size)
        first: int = _NUMBER.unpack(number)[0]
        return first

    def rows(self, page: int, nodes: list[Node]) -> Iterator[tuple[bytes, bytes]]:
        """Yield the keys and values of a leaf page that was checked."""
        data = self._read(page, 0, self._page_bytes)
        for node in nodes:
            at, size, flags, key_size = node
            value_at = at + _NODE.size + key_size
            key = data[at + _NODE.size : value_at]
            if flags & _IS_BIG:
                yield key, self._read(self._big_page(page, node), PAGE_HEADER.size, size)
            else:
                yield key, data[value_at : value_at + size]

    def _read(self, page: int, at: int, size: int) -> bytes:
        """Return `size` bytes from position `at` in a page. Raises BadPage or OSError."""
        data = self._file.read(page * self._page_bytes + at, size)
        if len(data) != size:
            raise BadPage(page, "is missing or not complete")
        return data

    def _use(self, page: int, count: int) -> None:
        """Mark pages as used. Raises BadPage if a page does not exist or is used already."""
        if not META_PAGES <= page <= self._page_count - count:
            raise BadPage(page, "does not exist, but is referred to")
        if any(self._is_used[page : page + count]):
            raise BadPage(page, "is referred to twice")
        self._is_used[page : page + count] = b"\1" * count


class CheckedFile(NamedTuple):
    """The snapshot of a file that was checked and must be used. An empty file has none.

    If `damage` is not None, the snapshot is sound, but LMDB cannot be used until `restore_meta` was
    called: the other meta page is damaged, or describes a newer snapshot that is not sound.
    """

    meta: Meta | None
    is_complete: bool
    damage: str | None


def check_pages(path: str, *, is_quick: bool = False) -> CheckedFile:
    """Check every page of the newest sound snapshot. Raises CorruptData or OSError.

    The older snapshot is used only if the newer one is damaged and the older one is completely
    sound. This is what remains if the power fails while LMDB writes a meta page.

    With `is_quick`, the pages of a large index are not read, and the check is not complete. They
    grow with the history, and a start must not wait for them. A row of the index is checked when it
    is used, so it is never wrong. But before LMDB writes to the file, check all pages.

    An empty file is sound: LMDB writes its first pages to it.

    A server can be running on the file. It changes the pages of a snapshot only after it has
    committed a newer one, so damage counts only if the meta pages are still the same.
    """
    with open(path, "rb") as file:
        if not is_quick:
            # Nearly all pages are needed. Many disks are much faster if they are read in order.
            while file.read(_READ_BYTES):
                pass
        while (pages := PageFile(file.fileno())).size:
            metas = _metas_of(pages)
            checked, damage = _check_snapshots(pages, metas, is_quick=is_quick)
            now = PageFile(file.fileno())
            is_same = metas == _metas_of(now) and pages.size == now.size
            if damage is None or (checked and is_same):
                assert checked is not None
                return checked
            if is_same:
                raise CorruptData(str(damage), file=os.path.basename(path))
    return CheckedFile(None, is_complete=True, damage=None)


def _metas_of(pages: PageFile) -> Metas:
    return read_metas(pages.read(0, METAS_BYTES_MAX))


def _check_snapshots(
    pages: PageFile, metas: Metas, *, is_quick: bool
) -> tuple[CheckedFile | None, str | None]:
    """Return the newest sound snapshot, or None, and the first damage that was found, or None.

    A snapshot that is not current is used only if the other one is damaged.
    """
    damage = f"page {metas.index(None)} is not a meta page" if None in metas else None
    outdated = []
    for meta in newest_first(metas):
        try:
            snapshot = Snapshot(pages, meta)
            if not snapshot.is_current:
                damage = damage or f"page {meta.page} has parts of an older meta page"
                outdated.append((meta, snapshot))
                continue
            can_be_quick = damage is None and not snapshot.has_short_list
            is_complete = snapshot.check_tables(is_quick=is_quick and can_be_quick)
            return CheckedFile(meta, is_complete, damage), damage
        except BadPage as error:
            damage = damage or str(error)
    for meta, snapshot in outdated:
        try:
            snapshot.check_tables(is_quick=False)
            return CheckedFile(meta, is_complete=True, damage=damage), damage
        except BadPage:
            pass
    return None, damage
