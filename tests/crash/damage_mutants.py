"""Seeded bugs in the checks of the checkpoint; the damage rig must find each of them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import pytest

from semel.journal import (
    checkpoint,
    index,
    lmdb_meta,
    lmdb_pages,
    lmdb_store,
    recovery,
    store,
    txn_history,
)
from semel.journal.checkpoint import CheckpointPosition
from semel.journal.lmdb_meta import Meta, Metas, newest_first
from semel.journal.lmdb_pages import CheckedFile, PageFile
from semel.journal.store import SEAL_BYTES, Row, StoreReader, TableReader

Mutant = Callable[[pytest.MonkeyPatch], None]


def trust_the_digests_of_the_history(patch: pytest.MonkeyPatch) -> None:
    """Do not compare the tables of aborted ranges and outcomes with their digests."""
    patch.setattr(checkpoint, "_check_table", lambda _view, _table: None)


def trust_the_seals(patch: pytest.MonkeyPatch) -> None:
    """Do not compare a row with its checksum."""

    def unseal(_table: str, _key: bytes, sealed: bytes) -> bytes:
        return sealed[:-SEAL_BYTES]

    for module in (store, checkpoint, index, txn_history):
        patch.setattr(module, "unseal", unseal)


def trust_the_pages(patch: pytest.MonkeyPatch) -> None:
    """Let LMDB follow whatever the pages contain."""
    unchecked = CheckedFile(None, is_complete=True, damage=None)
    patch.setattr(lmdb_store, "check_pages", lambda _path, **_options: unchecked)


def trust_an_absent_row(patch: pytest.MonkeyPatch) -> None:
    """Do not look at the row after the place where a row should be."""

    def rows_around(view: StoreReader, table: str, key: bytes) -> tuple[Row | None, Row | None]:
        found = store._unsealed(table, view.last_before(table, key))
        after = next(view.scan(table, key + b"\0"), None)
        return found, after and (after[0], after[1][:-SEAL_BYTES])

    patch.setattr(txn_history, "rows_around", rows_around)


def end_the_engine_for_a_damaged_row(patch: pytest.MonkeyPatch) -> None:
    """Treat damage that a read finds as damage that was found at the start."""

    @contextmanager
    def reading(tables: TableReader) -> Iterator[StoreReader]:
        with tables.read() as view:
            yield view

    patch.setattr(txn_history, "reading", reading)
    patch.setattr(index, "reading", reading)


def trust_the_older_snapshot(patch: pytest.MonkeyPatch) -> None:
    """Use the older snapshot without a check if the newer one is damaged."""
    check = lmdb_pages._check_snapshots

    def check_snapshots(
        pages: PageFile, metas: Metas, *, is_quick: bool
    ) -> tuple[CheckedFile | None, str | None]:
        checked, damage = check(pages, metas, is_quick=is_quick)
        if checked is None and damage is not None and any(metas):
            older = newest_first(metas)[-1]
            checked = CheckedFile(older, is_complete=True, damage=damage)
        return checked, damage

    patch.setattr(lmdb_pages, "_check_snapshots", check_snapshots)


def leave_a_damaged_meta_page(patch: pytest.MonkeyPatch) -> None:
    """Let LMDB open a file whose newer meta page is damaged."""
    patch.setattr(lmdb_store, "restore_meta", lambda _path, _meta: None)


def restore_the_sound_meta_page(patch: pytest.MonkeyPatch) -> None:
    """Overwrite the meta page that is sound, instead of the damaged one."""

    def restore_meta(path: str, meta: Meta) -> None:
        lmdb_meta.restore_meta(path, meta._replace(page=1 - meta.page))

    patch.setattr(lmdb_store, "restore_meta", restore_meta)


def trust_a_list_with_missing_segments(patch: pytest.MonkeyPatch) -> None:
    """Replay from a checkpoint although segments that it lists were removed."""
    classify = recovery._classify_files

    def classify_files(
        firsts: list[int], position: CheckpointPosition
    ) -> tuple[dict[int, int], list[int]]:
        listed = tuple(span for span in position.segments if span[0] in firsts)
        return classify(firsts, CheckpointPosition(position.lsn, position.previous_crc, listed))

    patch.setattr(recovery, "_classify_files", classify_files)
    patch.setattr(recovery, "_check_listed", lambda *_: None)


AT_START: Final[tuple[Mutant, ...]] = (
    trust_the_digests_of_the_history,
    trust_the_seals,
    trust_the_pages,
    trust_the_older_snapshot,
)
META_PAGES: Final[tuple[Mutant, ...]] = (
    leave_a_damaged_meta_page,
    restore_the_sound_meta_page,
    trust_a_list_with_missing_segments,
)
WHILE_RUNNING: Final[tuple[Mutant, ...]] = (
    trust_an_absent_row,
    end_the_engine_for_a_damaged_row,
)
