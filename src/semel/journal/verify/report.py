"""The report of a verification."""

from collections.abc import Callable

from msgspec import Struct

from semel.model.limits import FINDINGS_MAX

# (what is read, how much of it is done, how much there is; 0 if that is unknown)
Progress = Callable[[str, int, int], None]


class Finding(Struct, frozen=True):
    """Something that is not as it was written. A note is not damage."""

    file: str
    position: int | None
    message: str
    is_note: bool = False


class Report(Struct):
    """How much was read, and all findings."""

    segment_count: int = 0
    segment_bytes: int = 0
    frame_count: int = 0
    message_count: int = 0
    stream_count: int = 0
    row_count: int = 0
    index_row_count: int = 0
    index_position_count: int = 0
    checkpoint_lsn: int | None = None
    end_lsn: int = 0
    findings: list[Finding] = []
    omitted_count: int = 0
    is_sound: bool = True

    def corrupt(self, file: str, position: int | None, message: str) -> None:
        self.is_sound = False
        self._add(Finding(file, position, message))

    def note(self, file: str, position: int | None, message: str) -> None:
        """Report something that is not damage."""
        self._add(Finding(file, position, message, is_note=True))

    def _add(self, finding: Finding) -> None:
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(finding)
        else:
            self.omitted_count += 1
