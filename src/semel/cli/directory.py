"""A first look at a data directory: what can be told without reading all of it."""

import msgspec
from msgspec import Struct

from semel.cli.environment import Check
from semel.cli.read_only import ReadOnlyDisk, is_in_use, open_store
from semel.cli.text import size_text
from semel.journal.checkpoint import read_position
from semel.journal.identity import FORMAT_VERSION, IDENTITY_NAME, read_identity
from semel.journal.seal import BadSeal
from semel.journal.segments import segment_lsn
from semel.model.errors import CorruptData


class Overview(Struct):
    """What a first look shows."""

    is_in_use: bool = False
    is_corrupt: bool = False
    format_version: int | None = None
    segment_count: int = 0
    segment_bytes: int = 0
    checkpoint_lsn: int | None = None
    checks: list[Check] = []

    def _corrupt(self, name: str, message: str) -> None:
        self.is_corrupt = True
        self.checks.append(Check(name, "fail", message))

    def add_lock(self, path: str) -> None:
        """Find out whether a process is using it."""
        self.is_in_use = is_in_use(path)
        detail = "in use by a running process" if self.is_in_use else "not in use"
        self.checks.append(Check("directory", "info", detail))

    def add_identity(self, disk: ReadOnlyDisk) -> None:
        """Read which format it has."""
        try:
            read_identity(disk)
        except FileNotFoundError:
            self._corrupt("format", f"{IDENTITY_NAME} is missing")
        except CorruptData as error:
            self._corrupt("format", str(error))
        else:
            self.format_version = FORMAT_VERSION
            self.checks.append(Check("format", "ok", f"version {FORMAT_VERSION}"))

    def add_segments(self, disk: ReadOnlyDisk) -> None:
        """Count the journal's files."""
        for name in disk.names():
            if segment_lsn(name) is not None:
                file = disk.open(name)
                self.segment_bytes += file.size()
                file.close()
                self.segment_count += 1
        detail = f"{self.segment_count:,} segments, {size_text(self.segment_bytes)}"
        self.checks.append(Check("journal", "ok", detail))

    def add_checkpoint(self, path: str) -> None:
        """Read where the checkpoint stands."""
        try:
            store = open_store(path, is_shared=self.is_in_use)
            with store.read() as view:
                position = read_position(view)
            store.close()
        except (CorruptData, BadSeal, msgspec.DecodeError) as error:
            self._corrupt("checkpoint", str(error))
            return
        self.checkpoint_lsn = None if position is None else position.lsn
        detail = "none yet" if position is None else f"at position {position.lsn:,}"
        self.checks.append(Check("checkpoint", "ok", detail))


def look_at(path: str) -> Overview:
    """Take a first look."""
    disk = ReadOnlyDisk(path)
    overview = Overview()
    overview.add_lock(path)
    overview.add_identity(disk)
    overview.add_segments(disk)
    overview.add_checkpoint(path)
    return overview
