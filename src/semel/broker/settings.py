"""Defines what an engine needs: settings, a data directory and a clock."""

import os
import time
from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

from semel.journal.checkpoint import FILE_NAME
from semel.journal.disk import NO_ROOM, Disk, RealDisk
from semel.journal.identity import FORMAT_VERSION, require_format
from semel.journal.lmdb_store import LmdbStore
from semel.journal.recovery import Recovered, recover
from semel.journal.store import Store
from semel.machine import MachineLimits
from semel.model import limits as default
from semel.model.errors import EngineError


class Settings(Struct, frozen=True):
    """Settings of an engine. No setting weakens the engine's guarantees.

    Raises ValueError if a value is invalid.
    """

    segment_bytes: int = default.SEGMENT_BYTES_DEFAULT
    reserve_bytes: int = default.RESERVE_BYTES_DEFAULT
    checkpoint_interval_ms: int = default.CHECKPOINT_INTERVAL_MS
    checkpoint_bytes: int = 0  # of the journal between checkpoints; 0 means those of a segment
    sweep_interval_ms: int = default.SWEEP_INTERVAL_MS
    producer_idle_ms: int = 0  # 0 means that only producers expire that declare an idle time
    producer_tombstone_hours: int = default.TOMBSTONE_HOURS  # after that idle time
    limits: MachineLimits = MachineLimits()

    def __post_init__(self) -> None:
        size = self.segment_bytes
        for is_valid, rule in (
            (
                size >= default.SEGMENT_BYTES_MIN and size % 8 == 0,
                f"segment_bytes must be a multiple of 8 and at least {default.SEGMENT_BYTES_MIN}",
            ),
            (size <= default.SEGMENT_BYTES_MAX, "segment_bytes must be below 4 GiB"),
            (self.reserve_bytes >= 0, "reserve_bytes must not be negative"),
            (
                self.reserve_bytes <= default.NUMBER_MAX,
                f"reserve_bytes must be at most {default.NUMBER_MAX}",
            ),
            (
                min(self.checkpoint_interval_ms, self.sweep_interval_ms) > 0,
                "checkpoint_interval_ms and sweep_interval_ms must be positive",
            ),
            (self.checkpoint_bytes >= 0, "checkpoint_bytes must not be negative"),
            (self.producer_idle_ms >= 0, "producer_idle_ms must not be negative"),
            (self.producer_tombstone_hours >= 1, "producer_tombstone_hours must be at least 1"),
            (
                self.limits.receipts >= default.RECEIPTS_MIN,
                f"limits.receipts must be at least {default.RECEIPTS_MIN}",
            ),
        ):
            if not is_valid:
                raise ValueError(rule)

    @property
    def tombstone_ms(self) -> int:
        """How long the tombstone of an idle producer stays at least."""
        return self.producer_tombstone_hours * default.HOUR_MS


class Directory:
    """A locked data directory. It contains the journal files and the checkpoint store.

    Raises EngineError if the directory cannot be locked or opened.
    """

    def __init__(self, path: str) -> None:
        self._format_version = FORMAT_VERSION  # at least
        self.disk: Disk = RealDisk(path)
        try:
            self.disk.lock()
            self.store: Store = LmdbStore(os.path.join(path, FILE_NAME))
        except EngineError:
            self.disk.close()
            raise

    def recover(
        self, settings: Settings, identity: bytes, progress: Callable[[int, int], None] | None
    ) -> Recovered:
        """Recover the state from the files. Raises EngineError.

        A new directory gets the given identity. `progress` is called with the number of replayed
        segments and the total.
        """
        return recover(
            self.disk,
            self.store,
            fresh_identity=identity,
            segment_bytes=settings.segment_bytes,
            reserve_bytes=settings.reserve_bytes,
            limits=settings.limits,
            progress=progress,
        )

    def allow_format(self, version: int) -> bool:
        """Make versions of semel that do not read a format version refuse the directory.

        Return False if the disk is full. Raises CorruptData, DiskFailed or OSError.
        """
        if self._format_version < version:
            try:
                require_format(self.disk, version)
            except OSError as error:
                if error.errno not in NO_ROOM:
                    raise
                return False
            self._format_version = version
        return True

    def close(self) -> None:
        """Close the files and release the lock."""
        self.store.close()
        self.disk.close()


# ---- time and randomness -------------------------------------------------------------------------
# The engine gets times and random bytes only from a `Clock`. Tests can therefore replace them.


class Clock(Protocol):
    """A source of wall-clock time, elapsed time and random bytes."""

    def now_ms(self) -> int:
        """Return the wall-clock time in milliseconds since 1970. It can jump in both directions."""

    def monotonic_ms(self) -> int:
        """Return the milliseconds since some fixed moment. It never jumps. All timeouts use it."""

    def random_bytes(self, count: int) -> bytes:
        """Return `count` bytes that cannot be guessed."""


class SystemClock:
    """Gets times and random bytes from the operating system."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    def random_bytes(self, count: int) -> bytes:
        return os.urandom(count)
