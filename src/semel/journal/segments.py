"""The segment files of a journal: their names, their order, reading from them.

An LSN is a byte position in the whole journal. A segment is named by its first LSN and ends exactly
where the next one begins. Everywhere in this package a segment is identified by its first LSN.
"""

from bisect import bisect_right
from typing import Final

from semel.journal.disk import NO_FILES, Disk, File
from semel.journal.frame import BadFrame, Frame, UnknownVersion, decode, peek_length
from semel.model.errors import CorruptRead, DiskFailed, ReadFailed
from semel.model.limits import KIB, OPEN_SEGMENTS_MAX

SPARE_NAME: Final = "next.tmp"
# The end of the last segment, as long as its real end is not determined.
OPEN_END: Final = 1 << 63
_SUFFIX: Final = ".seg"
_DIGITS: Final = 20
# The size of the first read of a frame. Only a larger frame needs a second read.
_FIRST_READ_BYTES: Final = 8 * KIB
# The size of a read when frames are read one after another.
_WINDOW_BYTES: Final = 256 * KIB


def segment_name(first_lsn: int) -> str:
    """Return the name of the segment that begins at an LSN."""
    return f"{first_lsn:0{_DIGITS}d}{_SUFFIX}"


def segment_lsn(name: str) -> int | None:
    """Return the first LSN of the segment with a file name; None if it is not a segment's name."""
    digits = name.removesuffix(_SUFFIX)
    is_segment = name.endswith(_SUFFIX) and len(digits) == _DIGITS
    return int(digits) if is_segment and digits.isascii() and digits.isdigit() else None


def unlink_segments(disk: Disk, firsts: list[int]) -> None:
    """Remove segments that a checkpoint no longer needs. Raises DiskFailed."""
    try:
        for first_lsn in firsts:
            disk.unlink(segment_name(first_lsn))
        if firsts:
            disk.sync_names()
    except OSError as error:
        raise DiskFailed(f"cannot remove old segments: {error.strerror or error}") from error


class Segments:
    """All segments of a directory, read through a limited number of open files."""

    def __init__(self, disk: Disk, seed: int, ends: dict[int, int]) -> None:
        self._disk = disk
        self._seed = seed
        self.firsts = sorted(ends)
        self.ends = ends
        self._files: dict[int, File] = {}
        self._window: tuple[bytes, int] = (b"", 0)
        self.durable = 0

    def add(self, first_lsn: int) -> None:
        """Add a new last segment. The previous one ends where it begins."""
        self.ends[self.firsts[-1]] = first_lsn
        self.ends[first_lsn] = OPEN_END
        self.firsts.append(first_lsn)

    def spans(self) -> tuple[tuple[int, int], ...]:
        """Return every segment with its end."""
        return tuple((first, self.ends[first]) for first in self.firsts)

    def first_of(self, lsn: int) -> int:
        """Return the segment that contains an LSN. Raises CorruptRead if there is none."""
        index = bisect_right(self.firsts, lsn) - 1
        if index < 0:
            raise CorruptRead("no segment contains this LSN", file="journal", position=lsn)
        return self.firsts[index]

    def file(self, first_lsn: int) -> File:
        """Return the open file of a segment.

        If too many files are open, the least recently used one is closed.
        """
        file = self._files.pop(first_lsn, None)
        if file is None:
            if len(self._files) >= OPEN_SEGMENTS_MAX:
                self._files.pop(next(iter(self._files))).close()
            file = self._open(segment_name(first_lsn))
        self._files[first_lsn] = file
        return file

    def _open(self, name: str) -> File:
        try:
            return self._disk.open(name)
        except OSError as error:
            if error.errno not in NO_FILES or not self._files:
                raise
        self._files.pop(next(iter(self._files))).close()
        return self._disk.open(name)

    def release(self, first_lsn: int) -> None:
        """Close the file of a segment; the next read opens it again."""
        self._window = (b"", 0)
        if (file := self._files.pop(first_lsn, None)) is not None:
            file.close()

    def remove(self, firsts: list[int]) -> None:
        """Remove segments from the list, before their files are unlinked."""
        for first_lsn in firsts:
            self.release(first_lsn)
            self.firsts.remove(first_lsn)
            del self.ends[first_lsn]

    def read_frame(self, lsn: int) -> Frame:
        """Return the durable frame at an LSN.

        Sequential reads share one larger read of the file. Raises CorruptRead if the frame is
        missing or damaged, and ReadFailed if the file cannot be read.
        """
        window, start = self._window
        if start <= lsn < start + len(window):
            try:
                return decode(window, lsn - start, lsn=lsn, seed=self._seed)
            except (BadFrame, UnknownVersion):
                pass  # the frame ends after the window, or was written after the window was read
        first_lsn = self.first_of(lsn)
        at = lsn - first_lsn
        is_next = 0 <= lsn - start < _WINDOW_BYTES
        try:
            file = self.file(first_lsn)
            data = file.read(at, _WINDOW_BYTES if is_next else _FIRST_READ_BYTES)
            length = peek_length(data, 0)
            if length is not None and length > len(data):
                data += file.read(at + len(data), length - len(data))
            # Keep durable bytes only. After them there may be intact frames of a truncated torn
            # tail, until new frames overwrite them.
            self._window = data[: max(min(self.durable, self.ends[first_lsn]) - lsn, 0)], lsn
            return decode(data, 0, lsn=lsn, seed=self._seed)
        except FileNotFoundError as error:
            raise CorruptRead(
                "the segment is missing", file=segment_name(first_lsn), position=at
            ) from error
        except (BadFrame, UnknownVersion) as error:
            raise CorruptRead(str(error), file=segment_name(first_lsn), position=at) from error
        except OSError as error:
            raise ReadFailed(f"{segment_name(first_lsn)}: cannot read: {error.strerror}") from error

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()
