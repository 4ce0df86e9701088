"""Verification of the pages of an LMDB file, without LMDB.

LMDB has no checksums. It follows a damaged page number or key, and then it misses a row, returns a
wrong row, overwrites a page in use, or crashes the process. Therefore the whole file is checked
before LMDB opens it: both meta pages, every page tree, the order of all keys, and the list of free
pages. The rows have checksums of their own, which the caller checks.
"""

import os
import struct
from collections.abc import Iterator
from mmap import ACCESS_READ, mmap
from typing import Final, NamedTuple

from semel.model.errors import CorruptData
from semel.model.limits import CHECKPOINT_BYTES_MAX

_PAGE: Final = struct.Struct("<QHHHH")  # page number, padding, flags, lower, upper
_NODE: Final = struct.Struct("<HHHH")  # size or page number (two numbers), flags, key size
_META: Final = struct.Struct("<IIQQ")  # magic, version, address, map size
_TREE: Final = struct.Struct("<IHHQQQQQ")
_META_END: Final = struct.Struct("<QQ")  # last page, transaction
_NUMBER: Final = struct.Struct("<Q")

_MAGIC: Final = 0xBEEFC0DE
_VERSION: Final = 1
_IS_BRANCH, _IS_LEAF, _IS_OVERFLOW, _IS_META = 1, 2, 4, 8
_IS_BIG, _IS_TREE = 1, 2
_INTEGER_KEYS: Final = 8
_ONE_FILE: Final = 0x4000
_NO_ROOT: Final = (1 << 64) - 1
_META_PAGES: Final = 2
_READ_BYTES: Final = 1 << 20
_INDEX: Final = b"index"
# A start does not wait for the check of an index with more rows. So many take about 0.1 s.
_ROWS_AT_START: Final = 200_000
PAGE_BYTES_MIN: Final = 512
PAGE_BYTES_MAX: Final = 65_536

Node = tuple[int, int, int, int]  # position in the page, size or page number, flags, key size


class BadPage(Exception):
    """Raised if a page is damaged."""

    def __init__(self, page: int, reason: str) -> None:
        super().__init__(f"page {page} {reason}")
        self.page = page


class Tree(NamedTuple):
    """The root of a page tree, and the numbers of its pages and entries."""

    padding: int
    flags: int
    depth: int
    branch_pages: int
    leaf_pages: int
    overflow_pages: int
    entries: int
    root: int


class Meta(NamedTuple):
    """A meta page. It describes one of the two snapshots that the file contains."""

    free: Tree
    main: Tree
    last_page: int
    transaction: int

    @property
    def page_bytes(self) -> int:
        return self.free.padding


def read_metas(data: bytes | mmap) -> tuple[Meta, Meta]:
    """Return both meta pages. Raises BadPage."""
    first = _read_meta(data, 0, 0)
    return first, _read_meta(data, 1, first.page_bytes)


def _read_meta(data: bytes | mmap, page: int, at: int) -> Meta:
    end = at + _PAGE.size + _META.size + 2 * _TREE.size + _META_END.size
    if len(data) < end:
        raise BadPage(page, "is missing")
    number, _, flags, _, _ = _PAGE.unpack_from(data, at)
    magic, version, address, _ = _META.unpack_from(data, at + _PAGE.size)
    at += _PAGE.size + _META.size
    free = Tree._make(_TREE.unpack_from(data, at))
    main = Tree._make(_TREE.unpack_from(data, at + _TREE.size))
    last_page, transaction = _META_END.unpack_from(data, at + 2 * _TREE.size)
    is_page_size = (
        PAGE_BYTES_MIN <= free.padding <= PAGE_BYTES_MAX and free.padding.bit_count() == 1
    )
    is_sound = (
        (number, flags, magic, version, address) == (page, _IS_META, _MAGIC, _VERSION, 0)
        and is_page_size
        and (free.flags, main.flags, main.padding) == (_INTEGER_KEYS | _ONE_FILE, 0, 0)
        and 1 <= last_page < CHECKPOINT_BYTES_MAX // free.padding
    )
    if not is_sound:
        raise BadPage(page, "is not a meta page")
    return Meta(free, main, last_page, transaction)


def newest(metas: tuple[Meta, Meta]) -> Meta:
    """Return the meta page that LMDB uses: the one with the later transaction."""
    return metas[metas[0].transaction < metas[1].transaction]


class Snapshot:
    """The page trees of one snapshot. Every page is visited at most once."""

    def __init__(self, data: bytes | mmap, meta: Meta) -> None:
        self._data = data
        self._meta = meta
        self._page_bytes = meta.page_bytes
        self._page_count = min(meta.last_page + 1, len(data) // meta.page_bytes)
        self._is_used = bytearray(self._page_count)
        self._is_used[:_META_PAGES] = b"\1" * _META_PAGES
        self._free: set[int] = set()
        self._counts = [0, 0, 0, 0]
        self.tables = self._read_catalogue()
        self._read_free()

    def check_tables(self, *, is_quick: bool) -> bool:
        """Check all pages of all tables, and that none of them is free. Raises BadPage.

        With `is_quick`, the leaf pages of a large index and the free pages are left out. Return
        True if nothing was left out.
        """
        index = self.tables.get(_INDEX)
        is_quick &= index is not None and index.entries > _ROWS_AT_START
        for name, tree in self.tables.items():
            if is_quick and name == _INDEX:
                self._counts = [0, 0, 0, 0]
                for page, _, _ in self._leaf_pages(tree.root, tree, tree.depth, None, None):
                    self._use(page, 1)
            else:
                for _ in self._leaves(tree):
                    pass
        for page in () if is_quick else self._free:
            if page < self._page_count and self._is_used[page]:
                raise BadPage(page, "is in use and in the list of free pages")
        return not is_quick

    def _read_catalogue(self) -> dict[bytes, Tree]:
        tables = {}
        for page, nodes in self._leaves(self._meta.main, node_flags=_IS_TREE):
            for name, value in self._rows(page, nodes):
                if len(value) != _TREE.size:
                    raise BadPage(self._meta.main.root, "has a damaged table record")
                tree = Tree._make(_TREE.unpack(value))
                if (tree.padding, tree.flags) != (0, 0):
                    raise BadPage(self._meta.main.root, f"has a damaged record of table {name!r}")
                tables[name] = tree
        return tables

    def _read_free(self) -> None:
        """Read the list of free pages. No page may be free and in use."""
        for page, nodes in self._leaves(self._meta.free):
            for key, value in self._rows(page, nodes):
                if len(key) != _NUMBER.size or len(value) < _NUMBER.size:
                    raise BadPage(self._meta.free.root, "has a damaged list of free pages")
                count = _NUMBER.unpack_from(value)[0]
                if len(value) < _NUMBER.size * (count + 1):
                    raise BadPage(self._meta.free.root, "has a damaged list of free pages")
                pages = struct.unpack_from(f"<{count}Q", value, _NUMBER.size)
                for free in pages:
                    if not _META_PAGES <= free <= self._meta.last_page or free in self._free:
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
        counts = self._counts = [0, 0, 0, 0]
        if tree.root == _NO_ROOT and tree.depth:
            raise BadPage(tree.root, "is not a page")
        if tree.root != _NO_ROOT:
            for page, low, high in self._leaf_pages(tree.root, tree, tree.depth, None, None):
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
    ) -> Iterator[tuple[int, bytes | None, bytes | None]]:
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
        if tree.flags & _INTEGER_KEYS:
            order = [key[::-1] for key in keys]
            low, high = low and low[::-1], high and high[::-1]
        is_ordered = order == sorted(order) and len(set(order)) == len(order)
        if not is_ordered or (
            order and ((low and order[0] < low) or (high is not None and order[-1] >= high))
        ):
            raise BadPage(page, "has keys that are out of order")

    def _nodes(self, page: int, *, is_leaf: bool) -> tuple[list[Node], list[bytes]]:
        """Return the nodes of a page and their keys. Nodes must be in the page and not overlap."""
        self._use(page, 1)
        start = page * self._page_bytes
        data = self._data[start : start + self._page_bytes]
        number, _, flags, lower, upper = _PAGE.unpack_from(data)
        is_sound = (
            number == page
            and flags == (_IS_LEAF if is_leaf else _IS_BRANCH)
            and _PAGE.size < lower <= upper <= self._page_bytes
            and lower % 2 == 0
        )
        if not is_sound:
            raise BadPage(page, "has a damaged header")
        positions = struct.unpack_from(f"<{(lower - _PAGE.size) // 2}H", data, _PAGE.size)
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
        count = -(-(_PAGE.size + size) // self._page_bytes)
        self._use(first, count)
        self._counts[2] += count
        number, _, flags, low, high = _PAGE.unpack_from(self._data, first * self._page_bytes)
        if (number, flags, low | high << 16) != (first, _IS_OVERFLOW, count):
            raise BadPage(first, "has a damaged header")

    def _big_page(self, page: int, node: Node) -> int:
        at, _, _, key_size = node
        start = page * self._page_bytes + at + _NODE.size + key_size
        first: int = _NUMBER.unpack_from(self._data, start)[0]
        return first

    def _rows(self, page: int, nodes: list[Node]) -> Iterator[tuple[bytes, bytes]]:
        """Yield the keys and values of a leaf page that was checked."""
        data = self._data
        for node in nodes:
            at, size, flags, key_size = node
            key_at = page * self._page_bytes + at + _NODE.size
            value_at = key_at + key_size
            key = data[key_at:value_at]
            if flags & _IS_BIG:
                value_at = self._big_page(page, node) * self._page_bytes + _PAGE.size
            yield key, data[value_at : value_at + size]

    def _use(self, page: int, count: int) -> None:
        """Mark pages as used. Raises BadPage if a page does not exist or is used already."""
        if not _META_PAGES <= page <= self._page_count - count:
            raise BadPage(page, "does not exist, but is referred to")
        if any(self._is_used[page : page + count]):
            raise BadPage(page, "is referred to twice")
        self._is_used[page : page + count] = b"\1" * count


def check_pages(path: str, *, is_quick: bool = False) -> bool:
    """Check every page of the newest snapshot. Raises CorruptData or OSError.

    With `is_quick`, the pages of a large index are left out, and the result is False. They grow
    with the history, and a start must not wait for them. A row of the index is checked when it is
    used, so it is never wrong. But before LMDB writes to the file, check all pages.

    An empty file is sound: LMDB writes its first pages to it.

    A server can be running on the file. It changes the pages of a snapshot only after it has
    committed a newer one, so damage counts only if the newest snapshot is still the same.
    """
    with open(path, "rb") as file:
        # A sector that cannot be read is an OSError here. In mapped memory it is a signal (SIGBUS).
        while file.read(_READ_BYTES):
            pass
        while size := os.fstat(file.fileno()).st_size:
            with mmap(file.fileno(), size, access=ACCESS_READ) as data:
                meta = None
                try:
                    meta = newest(read_metas(data))
                    return Snapshot(data, meta).check_tables(is_quick=is_quick)
                except BadPage as error:
                    is_same = meta is None or newest(read_metas(data)) == meta
                    if is_same and os.fstat(file.fileno()).st_size == size:
                        raise CorruptData(str(error), file=os.path.basename(path)) from error
    return True
