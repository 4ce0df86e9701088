"""The two meta pages of an LMDB file.

Each meta page describes one snapshot: the roots of its page trees. A commit first writes and syncs
its pages, and then overwrites the meta page of the older snapshot. It does not reuse the pages of
the other snapshot. So if the power fails during the write of a meta page, the other snapshot is
complete, and `restore_meta` lets LMDB continue with it.
"""

import struct
from typing import Final, NamedTuple

from semel.journal.disk import overwrite_file
from semel.model.limits import CHECKPOINT_BYTES_MAX

PAGE_HEADER: Final = struct.Struct("<QHHHH")  # page number, padding, flags, lower, upper
TREE: Final = struct.Struct("<IHHQQQQQ")
INTEGER_KEYS: Final = 8
META_PAGES: Final = 2
_META: Final = struct.Struct("<IIQQ")  # magic, version, address, map size
_META_END: Final = struct.Struct("<QQ")  # last page, transaction
_META_BYTES: Final = PAGE_HEADER.size + _META.size + 2 * TREE.size + _META_END.size
_MAGIC: Final = 0xBEEFC0DE
_VERSION: Final = 1
_IS_META: Final = 8
_ONE_FILE: Final = 0x4000
_PAGE_SIZES: Final = tuple(1 << exponent for exponent in range(9, 17))
METAS_BYTES_MAX: Final = 2 * _PAGE_SIZES[-1]  # the meta pages are in the first bytes of the file


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

    page: int
    free: Tree
    main: Tree
    last_page: int
    transaction: int

    @property
    def page_bytes(self) -> int:
        return self.free.padding


Metas = tuple[Meta | None, Meta | None]


def read_metas(data: bytes) -> Metas:
    """Return both meta pages. A page that is missing or is not a meta page is None.

    `data` is the file, or its first METAS_BYTES_MAX bytes.

    The size of a page is stored only in the meta pages, and either of them can be damaged. So page
    1 is looked for at every position that it can have.
    """
    first = _read_meta(data, 0, 0)
    second = None
    for size in _PAGE_SIZES:
        found = _read_meta(data, 1, size)
        if found is not None and found.page_bytes == size:
            second = found
            break
    if first is not None and second is not None and first.page_bytes != second.page_bytes:
        first = None
    return first, second


def _read_meta(data: bytes, page: int, at: int) -> Meta | None:
    if len(data) < at + _META_BYTES:
        return None
    number, _, flags, _, _ = PAGE_HEADER.unpack_from(data, at)
    magic, version, address, _ = _META.unpack_from(data, at + PAGE_HEADER.size)
    at += PAGE_HEADER.size + _META.size
    free = Tree._make(TREE.unpack_from(data, at))
    main = Tree._make(TREE.unpack_from(data, at + TREE.size))
    last_page, transaction = _META_END.unpack_from(data, at + 2 * TREE.size)
    is_sound = (
        (number, flags, magic, version, address) == (page, _IS_META, _MAGIC, _VERSION, 0)
        and free.padding in _PAGE_SIZES
        and (free.flags, main.flags, main.padding) == (INTEGER_KEYS | _ONE_FILE, 0, 0)
        and 1 <= last_page < CHECKPOINT_BYTES_MAX // free.padding
        # LMDB writes each transaction to the meta page of its parity, and looks for it there. In a
        # new file both pages have transaction 0.
        and (transaction % META_PAGES == page or not transaction)
    )
    return Meta(page, free, main, last_page, transaction) if is_sound else None


def newest_first(metas: Metas) -> list[Meta]:
    """Return the sound meta pages. LMDB uses the first one, if both are sound."""
    sound = [meta for meta in metas if meta is not None]
    return sorted(sound, key=lambda meta: meta.transaction, reverse=True)


def restore_meta(path: str, meta: Meta) -> None:
    """Overwrite the other meta page with a copy of `meta` that looks older, and sync it.

    Then both meta pages describe the same snapshot, LMDB uses the page of `meta`, and its next
    commit overwrites the copy. If the power fails during this write, the result is again one
    damaged meta page. Raises OSError or DiskFailed.
    """
    size = meta.page_bytes
    other = 1 - meta.page
    with open(path, "rb") as file:
        file.seek(meta.page * size)
        page = file.read(size)
    header = PAGE_HEADER.pack(other, *PAGE_HEADER.unpack_from(page)[1:])
    middle = page[PAGE_HEADER.size : _META_BYTES - _META_END.size]
    end = _META_END.pack(meta.last_page, max(0, meta.transaction - 1))
    overwrite_file(path, other * size, (header + middle + end).ljust(size, b"\0"))
