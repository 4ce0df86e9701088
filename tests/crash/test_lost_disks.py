"""A disk that disappears under an idle server, and a sector that cannot be read: exit code 74."""

import fcntl
import os
import signal
import struct
from collections.abc import Iterator
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Final

import pytest

from semel.journal import lmdb_pages
from semel.journal.lmdb_meta import newest_first, read_metas
from semel.journal.lmdb_store import LmdbStore
from tests.crash.damage_rig import in_fork
from tests.crash.directory import CHECKPOINT
from tests.crash.mounts import FragileDisk
from tests.spec.process import Server

pytestmark = pytest.mark.crash

_FIBMAP: Final = 1
_FIGETBSZ: Final = 2


@pytest.fixture
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[FragileDisk]:
    it = FragileDisk(tmp_path, request.param)
    it.plug_in()
    yield it
    it.pull_out()


def path_on(disk: FragileDisk) -> Path:
    """Return a link to a new directory on the disk. Beside it, a server can write its stderr."""
    (disk.path / "data").mkdir()
    link = disk.path.parent / "data"
    link.symlink_to(disk.path / "data")
    return link


def serve(path: Path) -> Server:
    return Server(path, "--segment-bytes", "65536")


def fill(path: Path) -> None:
    """Run a server that stores some messages, and stop it."""
    server = serve(path)
    try:
        stream = server.stream("s")
        stream.create()
        for number in range(20):
            stream.post(b"%d" % number)
        server.signal(signal.SIGTERM)
        assert server.wait() == 0, server.stderr
    finally:
        server.kill()


# ext4 answers from its cache, so there only the next write or sync shows that it is gone.
@pytest.mark.parametrize("disk", ["xfs"], indirect=True)
def test_an_idle_server_whose_disk_disappears_ends_with_74(disk: FragileDisk) -> None:
    path = path_on(disk)
    fill(path)
    server = serve(path)
    try:
        expected = server.stream("s").get("offset=-1").body
        disk.cut_power()
        assert server.wait() == 74, server.stderr
        assert "the directory cannot be read" in server.stderr
    finally:
        server.kill()
    disk.pull_out()
    disk.plug_in()
    server = serve(path)
    try:
        assert server.stream("s").get("offset=-1").body == expected
    finally:
        server.kill()


# ---- a sector that cannot be read ----------------------------------------------------------------


def position_on_disk(path: Path, position: int) -> int:
    """Return where a byte of a file is in the image of its file system. Only root may ask this."""
    fd = os.open(path, os.O_RDONLY)
    try:
        size: int = struct.unpack("i", fcntl.ioctl(fd, _FIGETBSZ, struct.pack("i", 0)))[0]
        block = struct.pack("i", position // size)
        number: int = struct.unpack("i", fcntl.ioctl(fd, _FIBMAP, block))[0]
        return number * size
    finally:
        os.close(fd)


def make_unreadable(disk: FragileDisk, path: Path) -> None:
    """Cut off the image at a page of the checkpoint: reads beyond its end are I/O errors.

    All other files are read before, so that they are in the cache.
    """
    meta = newest_first(read_metas((path / CHECKPOINT).read_bytes()))[0]
    page_at = meta.main.root * meta.page_bytes
    cut = position_on_disk(path / CHECKPOINT, page_at)
    disk.pull_out()
    disk.plug_in()
    for file in path.iterdir():
        if file.name != CHECKPOINT:
            file.read_bytes()
    os.stat(path / CHECKPOINT)
    os.truncate(disk.path.parent / "image", cut)
    with (path / CHECKPOINT).open("rb", buffering=0) as checkpoint:
        checkpoint.seek(page_at)
        with pytest.raises(OSError, match="Input/output error"):
            checkpoint.read()


@pytest.mark.parametrize("disk", ["ext4"], indirect=True)
def test_a_sector_of_the_checkpoint_that_cannot_be_read_is_no_corruption(disk: FragileDisk) -> None:
    path = path_on(disk)
    fill(path)
    make_unreadable(disk, path)
    server = serve(path)
    code = server.wait()
    server.kill()
    assert code == 74, server.stderr
    assert CHECKPOINT in server.stderr


@pytest.mark.parametrize("disk", ["ext4"], indirect=True)
def test_a_check_that_reads_only_mapped_memory_is_ended_by_a_signal(
    disk: FragileDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A seeded bug: the file is mapped instead of read."""

    class MappedFile(lmdb_pages.PageFile):
        def __init__(self, descriptor: int) -> None:
            super().__init__(descriptor)
            self._map = mmap(descriptor, self.size, access=ACCESS_READ)

        def read(self, at: int, size: int) -> bytes:
            return self._map[at : at + size]

    path = path_on(disk)
    fill(path)
    make_unreadable(disk, path)
    checkpoint = str(path / CHECKPOINT)
    assert in_fork(lambda: LmdbStore(checkpoint).close()) == 74
    monkeypatch.setattr(lmdb_pages, "PageFile", MappedFile)
    assert in_fork(lambda: LmdbStore(checkpoint).close()) == -signal.SIGBUS
