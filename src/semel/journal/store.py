"""What the checkpoint needs of a store: ordered tables, changed by atomic durable transactions.

It is LMDB in production (`lmdb_store.py`); `semel.testing` has one for the simulator.
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
    """There is no room for the transaction; nothing was changed."""


class StoreReader(Protocol):
    """One consistent view of all tables."""

    def get(self, table: str, key: bytes) -> bytes | None:
        """Return the value of a key."""

    def scan(self, table: str, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Yield keys and values in order, from `start` on."""

    def last_before(self, table: str, key: bytes) -> tuple[bytes, bytes] | None:
        """Return the row with the greatest key that is <= `key`."""


class StoreWriter(StoreReader, Protocol):
    """A transaction: it sees its own changes; nothing is durable before `commit` returns."""

    def put(self, table: str, key: bytes, value: bytes) -> None:
        """Set a key. Raises StoreFull."""

    def delete(self, table: str, key: bytes) -> None:
        """Remove a key, if it exists."""

    def commit(self) -> None:
        """Make all of it durable at once. Raises StoreFull (nothing was changed) or OSError."""

    def abort(self) -> None:
        """Discard all of it."""


class Store(Protocol):
    """The tables of one data directory."""

    def read(self) -> AbstractContextManager[StoreReader]:
        """Open a view; leaving the block closes it."""

    def write(self) -> StoreWriter:
        """Begin a transaction; there is one at a time."""

    def close(self) -> None: ...
