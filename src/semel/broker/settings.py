"""What an engine is opened with: its settings, checked once, its data directory, and a clock."""

import os
import time
from typing import Protocol

from msgspec import Struct

from semel.journal.checkpoint import FILE_NAME
from semel.journal.disk import Disk, RealDisk
from semel.journal.lmdb_store import LmdbStore
from semel.journal.store import Store
from semel.machine import MachineLimits
from semel.model import limits as default
from semel.model.errors import EngineError


class Settings(Struct, frozen=True):
    """How an engine stores. What it guarantees is not a setting."""

    segment_bytes: int = default.SEGMENT_BYTES_DEFAULT
    reserve_bytes: int = default.RESERVE_BYTES_DEFAULT
    checkpoint_interval_ms: int = default.CHECKPOINT_INTERVAL_MS
    sweep_interval_ms: int = default.SWEEP_INTERVAL_MS
    producer_idle_ms: int = 0  # 0: producers never expire
    limits: MachineLimits = MachineLimits()

    def __post_init__(self) -> None:
        if self.segment_bytes < default.SEGMENT_BYTES_MIN or self.segment_bytes % 8:
            raise ValueError(
                f"segment_bytes must be a multiple of 8 of at least {default.SEGMENT_BYTES_MIN}"
            )
        if self.segment_bytes > default.SEGMENT_BYTES_MAX:
            raise ValueError("segment_bytes must be below 4 GiB")
        if self.reserve_bytes < 0:
            raise ValueError("reserve_bytes must not be negative")
        if min(self.checkpoint_interval_ms, self.sweep_interval_ms) <= 0:
            raise ValueError("intervals must be positive")
        if self.producer_idle_ms < 0:
            raise ValueError("producer_idle_ms must not be negative")
        if self.limits.receipts < default.RECEIPTS_MIN:
            raise ValueError(f"limits.receipts must be at least {default.RECEIPTS_MIN}")


class Directory:
    """A locked data directory: the journal's files and the checkpoint's store."""

    def __init__(self, path: str) -> None:
        self.disk: Disk = RealDisk(path)
        try:
            self.disk.lock()
            self.store: Store = LmdbStore(os.path.join(path, FILE_NAME))
        except EngineError:
            self.disk.close()
            raise

    def close(self) -> None:
        """Close the files and release the lock."""
        self.store.close()
        self.disk.close()


# ---- time and randomness -------------------------------------------------------------------------
# Nothing else gets them from the operating system.


class Clock(Protocol):
    """A source of time and randomness."""

    def now_ms(self) -> int:
        """Return the wall time in milliseconds since 1970."""

    def random_bytes(self, count: int) -> bytes:
        """Return bytes that cannot be guessed."""


class SystemClock:
    """The operating system's clock and entropy."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def random_bytes(self, count: int) -> bytes:
        return os.urandom(count)
