"""What the checkpoint needs of a store: ordered tables, changed by atomic durable transactions.

LMDB is behind it in production (`lmdb_store.py`); `semel.testing` has a twin for the simulator.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Final, Protocol

from semel.machine.state import STATE_TABLES

# What a start loads and checks as a whole.
LOADED: Final = (*STATE_TABLES, "segments")
# What grows with history: looked up row by row, checked as a whole only by `doctor --verify`.
LOOKED_UP: Final = ("outcomes", "outcome_order", "outcome_owners", "aborted")
# What has a count and a digest. `meta` holds them; the rows of `index` are checked when read.
DIGESTED: Final = (*LOADED, *LOOKED_UP)
TABLES: Final = ("meta", "index", *DIGESTED)


class StoreFull(Exception):
    """No room for the transaction; nothing of it happened."""


class StoreReader(Protocol):
    """One consistent view of all tables."""

    def get(self, table: str, key: bytes) -> bytes | None:
        """Look a key up."""

    def scan(self, table: str, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Walk the keys upwards from `start`."""

    def last_before(self, table: str, key: bytes) -> tuple[bytes, bytes] | None:
        """Find the greatest key that is <= `key`."""


class StoreWriter(StoreReader, Protocol):
    """A transaction: sees its own changes; nothing lasts before `commit` returns."""

    def put(self, table: str, key: bytes, value: bytes) -> None:
        """Set a key. May raise StoreFull."""

    def delete(self, table: str, key: bytes) -> None:
        """Remove a key, if it is there."""

    def commit(self) -> None:
        """Make all of it durable at once. May raise StoreFull (nothing happened) or OSError."""

    def abort(self) -> None:
        """Drop all of it."""


class Store(Protocol):
    """The tables of one data directory."""

    def read(self) -> AbstractContextManager[StoreReader]:
        """Open a view; leaving the block closes it."""

    def write(self) -> StoreWriter:
        """Begin the one transaction that may write."""

    def close(self) -> None:
        """Let the store go."""
