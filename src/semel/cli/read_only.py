"""Read-only access to a data directory, and what keeps its segments, for `semel doctor`."""

import fcntl
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Final

import lmdb
import msgspec
from msgspec import Struct

from semel.cli.output import size_text
from semel.journal.checkpoint import FILE_NAME
from semel.journal.disk import CANNOT_LOCK, LOCK_NAME, Files, RealFile
from semel.journal.lmdb_pages import check_pages
from semel.journal.lmdb_store import LmdbReader
from semel.journal.segments import segment_name
from semel.journal.space import SegmentSpace, survey
from semel.journal.store import TABLES, BadSeal, StoreReader, read_row
from semel.machine.rows import NUMBER_KEY, StreamRow, TxnRow
from semel.model.errors import CorruptData


def is_in_use(path: str) -> bool:
    """Return True if a process has locked the directory or its lock file.

    This function does not keep the lock. The directory itself is checked because the lock file may
    have been removed while a server runs.
    """
    return any(_is_locked(name) for name in (path, os.path.join(path, LOCK_NAME)))


def _is_locked(path: str) -> bool:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in CANNOT_LOCK
    finally:
        os.close(fd)
    return False


class ReadOnlyDisk:
    """The files of a directory, opened for reading only."""

    def __init__(self, path: str) -> None:
        self._path = path

    def names(self) -> list[str]:
        return sorted(os.listdir(self._path))

    def open(self, name: str) -> RealFile:
        return RealFile(os.open(os.path.join(self._path, name), os.O_RDONLY | os.O_CLOEXEC))


class _Reader(LmdbReader):
    """Reads a checkpoint. A missing table is read as an empty table.

    If the table's rows were lost, its digest in the checkpoint does not match and shows the loss.
    """

    def get(self, table: str, key: bytes) -> bytes | None:
        return super().get(table, key) if table in self._tables else None

    def scan(self, table: str, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        return super().scan(table, start) if table in self._tables else iter(())

    def last_before(self, table: str, key: bytes) -> tuple[bytes, bytes] | None:
        return super().last_before(table, key) if table in self._tables else None


def _open(file: str, *, is_shared: bool) -> lmdb.Environment:
    return lmdb.open(
        file, subdir=False, readonly=True, lock=is_shared, max_dbs=len(TABLES), readahead=False
    )


class ReadOnlyStore:
    """The checkpoint of a directory, opened for reading only.

    `is_shared` means that a server uses the directory. In that case, this reader registers in
    LMDB's reader table, so that the server does not reuse pages that are being read. Otherwise
    nothing is written to the directory.
    """

    def __init__(self, path: str, *, is_shared: bool) -> None:
        file = os.path.join(path, FILE_NAME)
        with _as_corruption():
            check_pages(file)
            self._env = _open(file, is_shared=is_shared)
            self._tables = dict(self._open_tables())

    def _open_tables(self) -> Iterator[tuple[str, lmdb._Database]]:
        for name in TABLES:
            try:
                yield name, self._env.open_db(name.encode(), create=False)
            except lmdb.NotFoundError:
                continue

    @contextmanager
    def read(self) -> Iterator[LmdbReader]:
        with _as_corruption(), self._env.begin() as transaction:
            yield _Reader(transaction, self._tables)

    def close(self) -> None:
        self._env.close()


class NoStore:
    """The store of a directory without a checkpoint. It has no rows."""

    @contextmanager
    def read(self) -> Iterator[LmdbReader]:
        yield _Reader(None, {})  # type: ignore[arg-type]  # without tables nothing is looked up

    def close(self) -> None:
        """Do nothing, because no file is open."""


class DamagedStore:
    """The store of a checkpoint that cannot be opened. Every read raises `error`."""

    def __init__(self, error: CorruptData) -> None:
        self._error = error

    def read(self) -> AbstractContextManager[LmdbReader]:
        raise self._error


@contextmanager
def _as_corruption() -> Iterator[None]:
    try:
        yield
    except lmdb.Error as error:
        raise CorruptData(f"the file cannot be read: {error}", file=FILE_NAME) from error


def open_store(path: str, *, is_shared: bool) -> ReadOnlyStore | NoStore:
    """Open the checkpoint for reading. Return a NoStore if the directory has no checkpoint.

    Raises CorruptData if the checkpoint cannot be read.
    """
    if not os.path.exists(os.path.join(path, FILE_NAME)):
        return NoStore()
    return ReadOnlyStore(path, is_shared=is_shared)


# ---- disk space ----------------------------------------------------------------------------------

_OWNERS_MAX: Final = 3
_NEARLY_EMPTY: Final = 0.1


class SegmentUse(Struct, frozen=True):
    """One segment: its size, the bytes that are needed, and what needs most of them.

    `kept_by` has at most three names, such as `stream orders`. `owner_count` is the number of
    streams and transactions that need the segment.
    """

    segment: str
    disk_bytes: int
    live_bytes: int
    is_open: bool
    kept_by: list[str]
    owner_count: int


def segment_uses(view: StoreReader, disk: Files) -> list[SegmentUse]:
    """Return the use of every segment. Return an empty list if the checkpoint cannot be read."""
    try:
        spaces = survey(view, disk, with_owners=True)
    except (OSError, BadSeal, msgspec.DecodeError):
        return []  # other checks report the damage
    return [_use_of(view, space) for space in spaces]


def _use_of(view: StoreReader, space: SegmentSpace) -> SegmentUse:
    owners: Counter[tuple[str, int]] = Counter()
    owners.update({("streams", number): size for number, size in space.streams.items()})
    owners.update({("transactions", number): size for number, size in space.transactions.items()})
    return SegmentUse(
        segment=segment_name(space.first),
        disk_bytes=space.disk_bytes,
        live_bytes=space.live_bytes,
        is_open=space.is_open,
        kept_by=[_name_of(view, *owner) for owner, _ in owners.most_common(_OWNERS_MAX)],
        owner_count=len(owners),
    )


def _name_of(view: StoreReader, table: str, number: int) -> str:
    kind = table.removesuffix("s")
    try:
        value = read_row(view, table, NUMBER_KEY.encode(number))
        if value is None:
            return f"{kind} {number}"
        if table == "streams":
            return f"{kind} {msgspec.msgpack.decode(value, type=StreamRow).path}"
        return f"{kind} {msgspec.msgpack.decode(value, type=TxnRow).id}"
    except (BadSeal, msgspec.DecodeError):
        return f"{kind} {number}"


def space_text(segments: list[SegmentUse]) -> str:
    """Return one line about the use of all segments, and what to do if most of it is not needed."""
    disk_bytes = sum(segment.disk_bytes for segment in segments)
    live_bytes = sum(segment.live_bytes for segment in segments)
    text = f"{size_text(live_bytes)} of {size_text(disk_bytes)} are needed"
    empty = [each for each in segments if each.live_bytes < _NEARLY_EMPTY * each.disk_bytes]
    if not empty:
        return text
    keepers = Counter(name for segment in empty for name in segment.kept_by)
    names = ", ".join(name for name, _ in keepers.most_common(_OWNERS_MAX))
    return (
        f"{text}; {len(empty):,} segments are less than {_NEARLY_EMPTY:.0%} needed and are kept by:"
        f" {names}. To free them, trim or delete these streams, or end these transactions"
    )
