"""Verification of a data directory. It checks every row, frame and index entry.

Verification changes nothing in the directory. It continues after an error, so that the report lists
all errors.

Verification needs memory for one segment, for the rows of streams and transactions, for the
versions of positions, and 16 bytes for each index row.
"""

import struct

from semel.journal.checkpoint import FILE_NAME
from semel.journal.disk import Files
from semel.journal.frame import checksum_seed
from semel.journal.identity import IDENTITY_NAME, read_identity
from semel.journal.recovery import INTERRUPTED, check_new
from semel.journal.store import TableReader
from semel.journal.verify.report import Finding, Progress, Report
from semel.journal.verify.rows import RowCheck, StoredCheckpoint
from semel.journal.verify.segments import SegmentCheck
from semel.model.errors import CorruptData

__all__ = ["Finding", "Progress", "Report", "verify"]


def verify(disk: Files, store: TableReader, progress: Progress | None = None) -> Report:
    """Verify a whole directory and return the report.

    Damage is listed in the report. It does not raise an exception.
    """
    report = Report()
    tick = progress or _no_progress
    seed = _check_identity(disk, store, report)
    stored = StoredCheckpoint()
    try:
        with store.read() as view:
            RowCheck(view, stored, report, tick).check()
    except CorruptData as error:
        stored.is_readable = False
        report.corrupt(error.file, error.position, _reason(error))
    except (struct.error, UnicodeDecodeError) as error:
        stored.is_readable = False
        report.corrupt(FILE_NAME, None, f"the file cannot be read: {error}")
    if seed is not None:
        SegmentCheck(disk, store, seed, stored, report).check(tick)
    return report


def _no_progress(_what: str, _done: int, _total: int) -> None: ...


def _reason(error: CorruptData) -> str:
    """Return the error's message without file and position.

    A finding has separate fields for the file and the position.
    """
    return str(error).partition(": ")[2]


def _check_identity(disk: Files, store: TableReader, report: Report) -> int | None:
    try:
        return checksum_seed(read_identity(disk).id)
    except FileNotFoundError:
        try:
            check_new(disk, store)
        except CorruptData as error:
            report.corrupt(error.file, error.position, _reason(error))
        else:
            report.note(IDENTITY_NAME, None, INTERRUPTED)
    except CorruptData as error:
        report.corrupt(error.file, error.position, _reason(error))
    return None
