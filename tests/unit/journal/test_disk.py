"""A new directory, and errors of the disk that the store translates."""

import errno
import os
from pathlib import Path

import lmdb
import pytest

from semel.journal.disk import make_directory
from semel.journal.lmdb_transactions import as_store_errors
from semel.journal.store import BadSeal, StoreFull, TableWriter
from semel.model.errors import DiskFailed
from semel.testing.store import VirtualStore


def test_the_names_of_new_directories_are_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a loss of power could remove the directory with all that it contains."""
    synced = []

    def fsync(fd: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{fd}"))

    monkeypatch.setattr(os, "fsync", fsync)
    make_directory(str(tmp_path / "a" / "b" / "c"))
    assert synced == [str(tmp_path / "a" / "b"), str(tmp_path / "a"), str(tmp_path)]
    make_directory(str(tmp_path / "a" / "b" / "c"))
    assert len(synced) == 3


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_store_without_room_or_quota_is_full(code: int) -> None:
    error = lmdb.Error("mdb_txn_commit: no room")
    vars(error)["code"] = code
    assert isinstance(as_store_errors(error), StoreFull)


def test_another_error_of_the_disk_is_not_a_full_store() -> None:
    error = lmdb.Error("mdb_txn_commit: Input/output error")
    vars(error)["code"] = errno.EIO
    assert isinstance(as_store_errors(error), DiskFailed)


def test_a_row_count_whose_row_is_no_longer_found_is_damage() -> None:
    store = VirtualStore()
    writer = store.write()
    tables = TableWriter(writer)
    tables.put("streams", b"a", b"1")
    tables.finish()
    writer.delete("meta", b"digest/streams")  # its key was damaged
    writer.commit()
    tables = TableWriter(store.write())
    tables.delete("streams", b"a")
    with pytest.raises(BadSeal, match="meta"):
        tables.finish()
