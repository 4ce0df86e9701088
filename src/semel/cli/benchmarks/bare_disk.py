"""The bare disk: bytes written into files made as the journal's are, and synced."""

from collections.abc import Sequence
from time import perf_counter
from typing import Final

from semel.journal.disk import RealDisk, RealFile
from semel.journal.frame import encode_meta, frame_bytes
from semel.machine.events import Section, StreamAppended
from semel.model.limits import SEGMENT_BYTES_DEFAULT

_SECTION: Final = Section(1_000, 1_000, 1, b"", b"", False)
# What the journal adds to the bytes of an append.
FRAME_EXTRA_BYTES: Final = frame_bytes(encode_meta(StreamAppended(1_000)), (_SECTION,))


class BareFiles:
    """Files of a segment's size; the next one is made when one is full."""

    def __init__(self, directory: str) -> None:
        self._disk = RealDisk(directory)
        self._count = 0
        self._position = 0
        self._file = self._next_file()

    def _next_file(self) -> RealFile:
        self._count += 1
        self._position = 0
        return self._disk.create(f"bare-{self._count:06d}", SEGMENT_BYTES_DEFAULT)

    def write(self, buffers: Sequence[bytes]) -> None:
        """Write and sync."""
        size = sum(map(len, buffers))
        if self._position + size > SEGMENT_BYTES_DEFAULT:
            self._file.close()
            self._file = self._next_file()
        self._file.write(self._position, buffers)
        self._file.sync()
        self._position += size

    def close(self) -> None:
        """Let go of everything."""
        self._file.close()
        self._disk.close()


def write_seconds(files: BareFiles, buffers: Sequence[bytes], times: int) -> list[float]:
    """Write the same bytes again and again; how long each took."""
    found = []
    for _ in range(times):
        began = perf_counter()
        files.write(buffers)
        found.append(perf_counter() - began)
    return found
