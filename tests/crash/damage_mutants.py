"""Seeded bugs in the checks of the checkpoint; the damage rig must find each of them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import pytest

from semel.journal import checkpoint, index, lmdb_store, store, txn_history
from semel.journal.lmdb_pages import CheckedFile
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


AT_START: Final[tuple[Mutant, ...]] = (
    trust_the_digests_of_the_history,
    trust_the_seals,
    trust_the_pages,
)
WHILE_RUNNING: Final[tuple[Mutant, ...]] = (
    trust_an_absent_row,
    end_the_engine_for_a_damaged_row,
)
