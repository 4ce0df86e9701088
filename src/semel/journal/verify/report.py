"""The report of a verification."""

from collections.abc import Callable

from msgspec import Struct

from semel.model.limits import FINDINGS_MAX

# Called with the name of the part that is read, the amount done, and the total (0: unknown).
Progress = Callable[[str, int, int], None]


class Finding(Struct, frozen=True):
    """An entry of the report: damage, or, with `is_note`, something that is not damage."""

    file: str
    position: int | None
    message: str
    is_note: bool = False


class Report(Struct):
    """The amounts of data that were read, and all findings up to a limit.

    `omitted_count` counts the findings above the limit. `is_sound`: there is no damage.
    """

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
