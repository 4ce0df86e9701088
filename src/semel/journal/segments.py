"""The journal's segment files: their names, their order, and how they are read.

An LSN is a byte position in the whole journal. A segment ends exactly where the next segment
begins. In this package and in file names, a segment is identified by its first LSN.
"""

from bisect import bisect_right
from typing import Final

from semel.journal.disk import NO_FILES, Disk, File
from semel.journal.frame import BadFrame, Frame, UnknownVersion, decode, peek_length
from semel.model.errors import CorruptRead, DiskFailed, ReadFailed
from semel.model.limits import KIB, OPEN_SEGMENTS_MAX

SPARE_NAME: Final = "next.tmp"
# This value is used as the end of the last segment, because its real end is not known yet.
OPEN_END: Final = 1 << 63
_SUFFIX: Final = ".seg"
_DIGITS: Final = 20
# The number of bytes that are read first to get a frame. Only a larger frame needs a second read.
_FIRST_READ_BYTES: Final = 8 * KIB
# The size of one read from the file when the caller reads frames in order.
_WINDOW_BYTES: Final = 256 * KIB


class FrameTooLong(Exception):
    """Raised if a frame is longer than the caller wants to read."""


def segment_name(first_lsn: int) -> str:
    """Return the file name of the segment that begins at `first_lsn`."""
    return f"{first_lsn:0{_DIGITS}d}{_SUFFIX}"


def segment_lsn(name: str) -> int | None:
    """Return the first LSN of the segment with this file name.

    Return None if `name` is not the file name of a segment.
    """
    digits = name.removesuffix(_SUFFIX)
    is_segment = name.endswith(_SUFFIX) and len(digits) == _DIGITS
    return int(digits) if is_segment and digits.isascii() and digits.isdigit() else None


def unlink_segments(disk: Disk, firsts: list[int]) -> None:
    """Remove the files of segments that are no longer needed. Raises DiskFailed."""
    try:
        for first_lsn in firsts:
            disk.unlink(segment_name(first_lsn))
        if firsts:
            disk.sync_names()
    except OSError as error:
        raise DiskFailed(f"cannot remove old segments: {error.strerror or error}") from error


def _check_length(length: int | None, bytes_max: int | None) -> None:
    if bytes_max is not None and length is not None and length > bytes_max:
        raise FrameTooLong


class Segments:
    """All segments of a directory. The number of open files is limited."""

    def __init__(self, disk: Disk, seed: int, ends: dict[int, int]) -> None:
        self._disk = disk
        self._seed = seed
        self.firsts = sorted(ends)
        self.ends = ends
        self._files: dict[int, File] = {}
        self._window: tuple[bytes, int] = (b"", 0)
        self.durable = 0

    def add(self, first_lsn: int) -> None:
        """Add a new last segment. The previous segment ends where the new segment begins."""
        self.ends[self.firsts[-1]] = first_lsn
        self.ends[first_lsn] = OPEN_END
        self.firsts.append(first_lsn)

    def spans(self) -> tuple[tuple[int, int], ...]:
        """Return the first LSN and the end of every segment."""
        return tuple((first, self.ends[first]) for first in self.firsts)

    def first_of(self, lsn: int) -> int:
        """Return the first LSN of the segment that contains `lsn`.

        Raises CorruptRead if no segment contains it.
        """
        index = bisect_right(self.firsts, lsn) - 1
        if index < 0:
            raise CorruptRead("no segment contains this LSN", file="journal", position=lsn)
        return self.firsts[index]

    def file(self, first_lsn: int) -> File:
        """Return the file of a segment, and open it if necessary.

        If too many files are open, the least recently used file is closed.
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
        """Close the file of a segment. The next read opens it again."""
        self._window = (b"", 0)
        if (file := self._files.pop(first_lsn, None)) is not None:
            file.close()

    def remove(self, firsts: list[int]) -> None:
        """Remove segments from the list. Call this before their files are removed."""
        for first_lsn in firsts:
            self.release(first_lsn)
            self.firsts.remove(first_lsn)
            del self.ends[first_lsn]

    def read_frame(self, lsn: int, bytes_max: int | None = None) -> Frame:
        """Return the durable frame at an LSN.

        If the caller reads frames in order, one read of the file gets several frames. Raises
        CorruptRead if the frame is missing or damaged, ReadFailed if the file cannot be read, and
        FrameTooLong if the frame has more than `bytes_max` bytes. In that case only its first
        bytes are read.
        """
        window, start = self._window
        if start <= lsn < start + len(window):
            _check_length(peek_length(window, lsn - start), bytes_max)
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
            _check_length(length, bytes_max)
            if length is not None and length > len(data):
                data += file.read(at + len(data), length - len(data))
            # Keep only the durable bytes. After the durable bytes, the file can still contain
            # intact frames of a torn tail that was truncated. New frames will overwrite them.
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
