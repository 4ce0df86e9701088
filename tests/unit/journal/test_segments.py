"""Reads from many segments with few open files."""

import errno
from typing import Final

import pytest

from semel.journal import segments as module
from semel.journal.disk import File
from semel.journal.recovery import recover
from semel.journal.segments import OPEN_END, Segments, segment_name
from semel.model.errors import DiskFailed
from semel.testing.disk import VirtualDisk, VirtualFile
from semel.testing.store import VirtualStore

FIRSTS: Final = [0, 100, 200, 300]


class CountingDisk(VirtualDisk):
    """Records which files were opened, and raises the errors in `refusals` on the next opens."""

    def __init__(self) -> None:
        super().__init__()
        self.opened: list[str] = []
        self.refusals: list[OSError] = []

    def open(self, name: str) -> VirtualFile:
        if self.refusals:
            raise self.refusals.pop()
        self.opened.append(name)
        return super().open(name)


@pytest.fixture
def disk() -> CountingDisk:
    disk = CountingDisk()
    disk.lock()
    for first in FIRSTS:
        disk.create(segment_name(first), 100).close()
    return disk


def segments_of(disk: CountingDisk) -> Segments:
    return Segments(disk, 0, dict(zip(FIRSTS, [*FIRSTS[1:], OPEN_END], strict=True)))


def is_closed(file: File) -> bool:
    try:
        file.size()
    except OSError:
        return True
    return False


def test_the_file_that_was_not_used_for_longest_is_closed(
    disk: CountingDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "OPEN_SEGMENTS_MAX", 2)
    segments = segments_of(disk)
    first, second = segments.file(0), segments.file(100)
    assert segments.file(0) is first
    third = segments.file(200)
    assert [is_closed(file) for file in (first, second, third)] == [False, True, False]
    assert segments.file(0) is first
    assert not is_closed(segments.file(100))
    assert disk.opened == [segment_name(first) for first in (0, 100, 200, 100)]
    segments.close()


def test_a_process_without_files_gives_up_one_of_its_own(disk: CountingDisk) -> None:
    segments = segments_of(disk)
    first, second = segments.file(0), segments.file(100)
    disk.refusals = [OSError(errno.EMFILE, "Too many open files")]
    third = segments.file(200)
    assert [is_closed(file) for file in (first, second, third)] == [True, False, False]
    segments.close()


@pytest.mark.parametrize("code", [errno.EIO, errno.EMFILE])
def test_what_cannot_be_helped_is_raised(disk: CountingDisk, code: int) -> None:
    disk.refusals = [OSError(code, "no")]
    with pytest.raises(OSError, match="no"):
        segments_of(disk).file(0)


def test_a_disk_too_small_for_a_new_directory_is_told_what_to_choose() -> None:
    disk = VirtualDisk(capacity_bytes=50_000)
    disk.lock()
    with pytest.raises(DiskFailed) as caught:
        recover(disk, VirtualStore(), fresh_identity=bytes(16), segment_bytes=65_536)
    text = str(caught.value)
    assert "two segments of 65536 bytes" in text
    assert "--segment-bytes, --reserve-bytes" in text
