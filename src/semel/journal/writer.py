"""The journal's writer. It writes each write group to a segment on disk.

Only one thread at a time runs this code. If a write group cannot be written, the process ends: the
state in memory already has the changes, and the disk's content is unknown after a failed sync.
"""

import contextlib
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from semel.journal.appender import SegmentPart, WriteGroup
from semel.journal.disk import NO_FILES, NO_ROOM, Disk, File, disk_failed
from semel.journal.segments import SPARE_NAME, segment_name
from semel.model.errors import DiskFailed, invariant

RESERVE_NAME: Final = "reserve.tmp"


class Room(Struct, frozen=True):
    """The writer's report about free space. If `is_full` is True, the journal must not grow."""

    segment: int  # the segment that the writer was using when it made the report
    spare_bytes: int  # the size of the spare segment, or 0 if there is none
    is_full: bool


class JournalWriter:
    """Writes to the last segment of the journal, and begins a new segment when one is needed."""

    def __init__(self, disk: Disk, *, segment: int, segment_bytes: int, reserve_bytes: int) -> None:
        self._disk = disk
        self._segment = segment
        self._file: File = _open(disk, segment_name(segment))
        self._segment_bytes = segment_bytes
        self._reserve_bytes = reserve_bytes
        self._spare: File | None = None
        self._has_reserve = False
        self.sync_count = 0

    def prepare(self) -> Room:
        """Allocate a new spare segment, and the reserve if it is missing or has a wrong size.

        A spare segment from an earlier run is removed first. Raises DiskFailed. A full disk is not
        an error: the returned `Room` reports a full disk.
        """
        try:
            names = self._disk.names()
            if self._spare is None and SPARE_NAME in names:
                self._disk.unlink(SPARE_NAME)
            self._has_reserve = self._keep_reserve(names)
        except OSError as error:
            raise _failed(SPARE_NAME, "prepare", error) from error
        return self.make_room()

    def _keep_reserve(self, names: list[str]) -> bool:
        if RESERVE_NAME in names:
            with (
                contextlib.suppress(PermissionError),
                contextlib.closing(self._disk.open(RESERVE_NAME)) as file,
            ):
                if file.size() == self._reserve_bytes:
                    return True
            self._disk.unlink(RESERVE_NAME)
        return self._reserve_bytes == 0

    def make_room(self) -> Room:
        """Allocate the spare segment and the reserve if they are missing.

        If there is no space for the spare segment, the reserve is removed to make room. The
        returned `Room` has `is_full` set if the spare segment or the reserve is still missing.
        """
        is_short = False
        if self._spare is None:
            self._spare = self._allocate(SPARE_NAME, self._segment_bytes)
            is_short = self._spare is None
        if is_short and self._has_reserve and self._reserve_bytes:
            self._release_reserve()
            self._spare = self._allocate(SPARE_NAME, self._segment_bytes)
        if not is_short and not self._has_reserve:
            reserve = self._allocate(RESERVE_NAME, self._reserve_bytes)
            self._has_reserve = reserve is not None
            if reserve is not None:
                reserve.close()
        is_full = self._spare is None or not self._has_reserve
        spare_bytes = 0 if self._spare is None else self._segment_bytes
        return Room(self._segment, spare_bytes, is_full)

    def give_up_reserve(self) -> Room:
        """Remove the reserve to make room for a checkpoint.

        The returned `Room` has `is_full` set, because the journal must not grow until the reserve
        is allocated again.
        """
        if self._has_reserve and self._reserve_bytes:
            self._release_reserve()
        return Room(self._segment, self._segment_bytes if self._spare else 0, is_full=True)

    def _release_reserve(self) -> None:
        try:
            self._disk.unlink(RESERVE_NAME)
        except OSError as error:
            raise _failed(RESERVE_NAME, "remove", error) from error
        self._has_reserve = False

    def _allocate(self, name: str, size: int) -> File | None:
        try:
            return self._disk.create(name, size)
        except OSError as error:
            # Too many open files are treated like a full disk, because nothing was written or lost.
            if error.errno in NO_ROOM or error.errno in NO_FILES:
                return None
            raise _failed(name, "allocate", error) from error

    def write(self, group: WriteGroup) -> None:
        """Write a write group. Sync the file if `group.is_synced` is True. Raises DiskFailed."""
        for part in group.parts:
            if part.segment != self._segment:
                self._roll(part)
            self._write_at(part.start, part.buffers, part.size)
        if group.is_synced:
            self._sync()  # EO-5

    def _write_at(self, lsn: int, buffers: Sequence[bytes], size: int) -> None:
        name = segment_name(self._segment)
        try:
            written = self._file.write(lsn - self._segment, buffers)
        except OSError as error:
            raise _failed(name, "write", error) from error
        if written != size:
            raise DiskFailed(f"{name}: short write: only {written} of {size} bytes were written")

    def _sync(self) -> None:
        try:
            self._file.sync()
        except OSError as error:
            raise _failed(segment_name(self._segment), "sync", error) from error
        self.sync_count += 1

    def _roll(self, part: SegmentPart) -> None:
        """Begin the next segment. Its file is the spare file, which is renamed."""
        self._sync()  # all earlier frames must be durable before the rename
        first_lsn = part.segment
        name = segment_name(first_lsn)
        invariant(self._spare is not None, "a new segment must begin, but there is no spare file")
        assert self._spare is not None
        try:
            self._disk.rename(SPARE_NAME, name)
            self._disk.sync_names()
        except OSError as error:
            raise _failed(name, "create", error) from error
        # This is the last frame of the old segment. If the new file is lost later, this frame
        # proves that the file existed.
        self._write_at(first_lsn, part.ending, sum(map(len, part.ending)))
        self._sync()
        self._file.close()
        self._file, self._spare = self._spare, None
        self._segment = first_lsn

    def close(self) -> None:
        """Sync the last segment, so that the last watermark is durable, and close the files."""
        with contextlib.suppress(OSError):
            self._file.sync()
        self._file.close()
        if self._spare is not None:
            self._spare.close()


def _open(disk: Disk, name: str) -> File:
    try:
        return disk.open(name)
    except OSError as error:
        raise _failed(name, "open", error) from error


def _failed(name: str, verb: str, error: OSError) -> DiskFailed:
    return disk_failed(f"{name}: the server cannot {verb} this file", error.errno)
