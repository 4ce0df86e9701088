"""The report of a verification."""

from collections.abc import Callable, Iterable
from typing import Any

from msgspec import Struct

from semel.model.limits import FINDINGS_MAX

# A function that shows progress. It is called with the name of the part that is being read, the
# amount that is done, and the total amount. The total is 0 if it is unknown.
Progress = Callable[[str, int, int], None]

Decoded = Callable[[str, Any], Iterable[tuple[bytes, Any]]]  # the rows of a table, by their keys
Corrupt = Callable[[str, bytes, str], None]  # reports damage to a row of a table


class Finding(Struct, frozen=True):
    """One entry of the report. It describes damage, unless `is_note` is True."""

    file: str
    position: int | None
    message: str
    is_note: bool = False


class Report(Struct):
    """The amount of data that was read, and a limited number of findings.

    `omitted_count` counts the findings beyond the limit. `is_sound` is True if no damage was found.
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
        """Add a finding that is not damage."""
        self._add(Finding(file, position, message, is_note=True))

    def _add(self, finding: Finding) -> None:
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(finding)
        else:
            self.omitted_count += 1
