"""Judging a data directory without changing it: every row, every frame, every position.

Recovery reads what it needs to go on, and stops at the first thing that is wrong. Verification reads
everything and goes on behind what is wrong, so that a report names all of it. Memory holds one
segment, the stream rows, and 16 bytes per row of the index; it does not grow with messages.
"""

import struct
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from itertools import groupby
from typing import Any, Final, Protocol

import msgspec
from msgspec import Struct

from semel.journal.checkpoint import (
    _COUNT,
    _COUNTERS_KEY,
    _DIGEST_MODULUS,
    _DIGESTED,
    _POSITION_KEY,
    FILE_NAME,
    Position,
    _read_digest,
    number_key,
    split_owned,
)
from semel.journal.disk import File
from semel.journal.frame import (
    ALIGN,
    MAGIC,
    BadFrame,
    Frame,
    SegmentStarted,
    UnknownVersion,
    decode,
    seed_of,
)
from semel.journal.identity import IDENTITY_NAME, read_identity
from semel.journal.index import Chunk, chunk_key, decode_chunk, split_key
from semel.journal.scan import Tear, check_torn, frames_of
from semel.journal.seal import BadSeal, unseal
from semel.journal.segments import OPEN_END, segment_lsn, segment_name
from semel.journal.store import Reader
from semel.machine.events import StreamCreated
from semel.machine.rows import KeyRow, MetaRow, ProducerRow, RegistryRow, StreamRow, TailRow
from semel.machine.state import State, Stream, add_fork, kept_from
from semel.model.checksum import digest_of
from semel.model.errors import CorruptData

FINDINGS_MAX: Final = 1_000
_PROGRESS_ROWS: Final = 4_096
_KEY_BYTES: Final = len(chunk_key(0, 0))
_NOWHERE: Final = Position(0, 0, ())

# (what is read, how much of it is done, how much there is; 0 if that is not known)
Progress = Callable[[str, int, int], None]


class Files(Protocol):
    """What verification needs of a `Disk`."""

    def names(self) -> list[str]:
        """List the files."""

    def open(self, name: str) -> File:
        """Open a file."""


class Tables(Protocol):
    """What verification needs of a `Store`."""

    def read(self) -> AbstractContextManager[Reader]:
        """Open a view."""


class Finding(Struct, frozen=True):
    """Something that is not as it was written; a note is nothing to worry about."""

    file: str
    position: int | None
    message: str
    is_note: bool = False


class Report(Struct):
    """What was read, and everything found on the way."""

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
        """Report damage."""
        self.is_sound = False
        self._add(Finding(file, position, message))

    def note(self, file: str, position: int | None, message: str) -> None:
        """Report something worth knowing."""
        self._add(Finding(file, position, message, is_note=True))

    def _add(self, finding: Finding) -> None:
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(finding)
        else:
            self.omitted_count += 1


class _Known:
    """What the checkpoint says, as far as it can be believed."""

    def __init__(self) -> None:
        self.position = _NOWHERE
        self.is_readable = False
        self.state = State()
        # The index rows of each segment, by their keys.
        self.keys: dict[int, bytearray] = {}

    def label(self, number: int) -> str:
        stream = self.state.by_number.get(number)
        return f"stream {number}" if stream is None else f"stream {number} ({stream.row.path})"


def verify(disk: Files, store: Tables, progress: Progress | None = None) -> Report:
    """Read all of a directory. Raises nothing about what it holds: the report does."""
    report = Report()
    tick = progress or _no_progress
    seed = _check_identity(disk, report)
    known = _Known()
    try:
        with store.read() as view:
            _Rows(view, known, report, tick).check()
    except (CorruptData, struct.error, UnicodeDecodeError) as error:
        known.is_readable = False
        report.corrupt(FILE_NAME, None, f"cannot be read: {error}")
    if seed is not None:
        _Journal(disk, store, seed, known, report).check(tick)
    return report


def _no_progress(_what: str, _done: int, _total: int) -> None:
    """Tell nobody."""


def _check_identity(disk: Files, report: Report) -> int | None:
    try:
        return seed_of(read_identity(disk))  # type: ignore[arg-type]  # it only opens the file
    except FileNotFoundError:
        report.corrupt(IDENTITY_NAME, None, "is missing; no frame can be checked without it")
    except CorruptData as error:
        report.corrupt(error.file, error.position, str(error))
    except OSError as error:
        report.corrupt(IDENTITY_NAME, None, f"cannot be read: {error.strerror or error}")
    return None


# ---- the checkpoint ------------------------------------------------------------------------------

_OWNED: Final[dict[str, type]] = {"producers": ProducerRow, "keys": KeyRow}


class _Rows:
    """Checks the rows of one view."""

    def __init__(self, view: Reader, known: _Known, report: Report, tick: Progress) -> None:
        self._view = view
        self._known = known
        self._report = report
        self._tick = tick

    def check(self) -> None:
        self._check_meta()
        self._check_streams()
        for table, row in _OWNED.items():
            for key, _ in self._decoded(table, row):
                if split_owned(key)[0] not in self._known.state.by_number:
                    self._corrupt(table, key, "belongs to a stream that is not there")
        for _ in self._decoded("registry", RegistryRow):
            pass
        self._check_index()
        self._check_segments()

    def _corrupt(self, table: str, key: bytes, message: str) -> None:
        self._report.corrupt(FILE_NAME, None, f"table {table}, row {key.hex()}: {message}")

    def _check_meta(self) -> None:
        known = self._known
        for key, sealed in self._view.scan("meta"):
            self._report.row_count += 1
            self._unsealed("meta", key, sealed)
        position = self._meta(_POSITION_KEY, Position)
        if position is not None:
            known.position, known.is_readable = position, True
            self._report.checkpoint_lsn = position.lsn
            self._meta(_COUNTERS_KEY, MetaRow)
        elif self._view.get("meta", _POSITION_KEY) is None:
            known.is_readable = not any(True for t in _DIGESTED for _ in self._view.scan(t))
            if not known.is_readable:
                self._corrupt("meta", _POSITION_KEY, "is missing, though there are other rows")

    def _meta(self, key: bytes, row: Any) -> Any:
        sealed = self._view.get("meta", key)
        if sealed is None:
            if self._known.is_readable:
                self._corrupt("meta", key, "is missing")
            return None
        try:
            return msgspec.msgpack.decode(unseal("meta", key, sealed), type=row)
        except (BadSeal, msgspec.DecodeError):
            return None

    def _unsealed(self, table: str, key: bytes, sealed: bytes) -> bytes | None:
        try:
            return unseal(table, key, sealed)
        except BadSeal:
            self._corrupt(table, key, "fails its checksum")
            return None

    def _sound(self, table: str) -> Iterator[tuple[bytes, bytes]]:
        """Walk a table's rows; the digest tells of one that is lost, too old or too many."""
        count = total = bad = 0
        for key, sealed in self._view.scan(table):
            count += 1
            total += digest_of(key + sealed)
            if count % _PROGRESS_ROWS == 0:
                self._tick(f"table {table}", count, 0)
            value = self._unsealed(table, key, sealed)
            if value is None:
                bad += 1
            else:
                yield key, value
        self._report.row_count += count
        try:
            is_right = _read_digest(self._view, table) == (count, total % _DIGEST_MODULUS)
        except (BadSeal, struct.error):
            return  # the meta row was reported already
        if not (is_right or bad):
            self._report.corrupt(FILE_NAME, None, f"table {table} lost, gained or kept an old row")

    def _decoded(self, table: str, row: Any) -> Iterator[tuple[bytes, Any]]:
        read = msgspec.msgpack.Decoder(row).decode
        for key, value in self._sound(table):
            try:
                decoded = read(value)
            except msgspec.DecodeError as error:
                self._corrupt(table, key, f"does not decode: {error}")
            else:
                yield key, decoded

    def _check_streams(self) -> None:
        state = self._known.state
        tails: dict[bytes, TailRow] = dict(self._decoded("tails", TailRow))
        rows: list[tuple[bytes, StreamRow]] = list(self._decoded("streams", StreamRow))
        for key, row in rows:
            tail = tails.pop(key, None)
            if key != number_key(row.number) or row.path in state.by_path:
                self._corrupt("streams", key, f"is stream {row.number} ({row.path}) once more")
            elif tail is None:
                self._corrupt("tails", key, "is missing or damaged")
            else:
                state.load_stream(row, tail)
        for key in tails:
            self._corrupt("tails", key, "belongs to a stream that is not there")
        for number, stream in state.by_number.items():
            fork = stream.row.fork
            if fork is not None and fork.source in state.by_number:
                add_fork(state.by_number[fork.source], number)
            elif fork is not None:
                self._corrupt("streams", number_key(number), "forks a stream that is not there")
        self._report.stream_count = len(state.by_number)

    # ---- the index ------------------------------------------------------------------------------

    def _check_index(self) -> None:
        state = self._known.state
        indexed: set[int] = set()
        rows = self._view.scan("index")
        for number, own in groupby(rows, key=lambda row: split_key(row[0])[0]):
            indexed.add(number)
            stream = state.by_number.get(number)
            if stream is None:
                count = sum(1 for _ in own)
                self._corrupt("index", number_key(number), f"{count} rows of an unknown stream")
            else:
                self._check_rows_of(stream, own)
        for number, stream in state.by_number.items():
            floor, tail = self._floor(stream), stream.tail.tail
            if number not in indexed and floor < tail:
                self._hole(stream, floor, tail)

    def _floor(self, stream: Stream) -> int:
        """Find the first offset a stream must still have of its own."""
        own = 0 if stream.row.fork is None else stream.row.fork.start
        return max(own, kept_from(self._known.state, stream))

    def _check_rows_of(self, stream: Stream, rows: Iterable[tuple[bytes, bytes]]) -> None:
        """Check that a stream's chunks join, from what it keeps up to its tail."""
        floor, tail = self._floor(stream), stream.tail.tail
        expected: int | None = None
        is_first = True
        for key, sealed in rows:
            self._report.index_row_count += 1
            if self._report.index_row_count % _PROGRESS_ROWS == 0:
                self._tick("table index", self._report.index_row_count, 0)
            chunk = self._chunk(key, sealed)
            if chunk is None:
                expected, is_first = None, False
                continue
            wanted = min(chunk.first, floor) if is_first else expected
            if wanted is not None and chunk.first != wanted:
                self._hole(stream, wanted, chunk.first)
            expected, is_first = chunk.next, False
            self._known.keys.setdefault(chunk.segment, bytearray()).extend(key)
        if expected is not None and expected != tail:
            self._hole(stream, expected, tail)

    def _hole(self, stream: Stream, start: int, stop: int) -> None:
        what = "the index has nothing for" if start < stop else "the index goes back over"
        first, last = min(start, stop), max(start, stop) - 1
        label = self._known.label(stream.row.number)
        self._report.corrupt(FILE_NAME, None, f"{label}: {what} offsets {first} to {last}")

    def _chunk(self, key: bytes, sealed: bytes) -> Chunk | None:
        try:
            chunk = decode_chunk(key, sealed)
        except (BadSeal, struct.error):
            self._corrupt("index", key, f"{self._index_label(key)} fails its checksum")
            return None
        offsets, positions = chunk.offsets, chunk.positions
        is_orderly = (
            bool(offsets)
            and offsets[0] == 0
            and all(a < b for a, b in zip(offsets, offsets[1:], strict=False))
            and chunk.first + offsets[-1] < chunk.next
            and chunk.segment + positions[-1] < self._known.position.lsn
        )
        if not is_orderly:
            self._corrupt("index", key, f"{self._index_label(key)} is out of order")
            return None
        return chunk

    def _index_label(self, key: bytes) -> str:
        number, first = split_key(key)
        return f"{self._known.label(number)} from offset {first}"

    def _check_segments(self) -> None:
        """Check how many index rows each segment is said to have, and that all are listed."""
        counted = {}
        for key, value in self._sound("segments"):
            counted[int.from_bytes(key, "big")] = _COUNT.unpack(value)[0]
        if not self._known.is_readable:
            return
        listed = {first for first, _ in self._known.position.segments}
        found = {first: len(keys) // _KEY_BYTES for first, keys in self._known.keys.items()}
        for first in sorted(listed | counted.keys() | found.keys()):
            count = found.get(first, 0)
            if first not in listed:
                message = f"{count} index rows point into it, but the checkpoint does not list it"
                self._report.corrupt(segment_name(first), None, message)
            elif counted.get(first) != count and self._report.is_sound:
                message = f"should have {counted.get(first)} index rows and has {count}"
                self._corrupt("segments", number_key(first), f"{segment_name(first)} {message}")


# ---- the journal ---------------------------------------------------------------------------------


class _Sections:
    """What the frames of one segment hold, in columns; rows stand in the order of positions."""

    def __init__(self) -> None:
        self.positions = array("I")
        self.streams = array("Q")
        self.bases = array("Q")
        self.counts = array("I")

    def add(self, position: int, stream: int, base: int, count: int) -> None:
        self.positions.append(position)
        self.streams.append(stream)
        self.bases.append(base)
        self.counts.append(count)

    def has(self, position: int, stream: int, base: int, count: int) -> bool:
        row = bisect_left(self.positions, position)
        while row < len(self.positions) and self.positions[row] == position:
            if (self.streams[row], self.bases[row], self.counts[row]) == (stream, base, count):
                return True
            row += 1
        return False


class _Journal:
    """Walks the segments, one in memory at a time."""

    def __init__(
        self, disk: Files, store: Tables, seed: int, known: _Known, report: Report
    ) -> None:
        self._disk = disk
        self._store = store
        self._seed = seed
        self._known = known
        self._report = report
        self._lsn = -1
        self._crc = 0
        self._watermark = 0
        self._tails: dict[int, int] = {}
        self._sections = _Sections()

    def check(self, tick: Progress) -> None:
        spans = self._spans()
        total = sum(min(end, following) - first for first, end, following in spans)
        done = 0
        for first, end, following in spans:
            tick("journal", done, total)
            data = self._read(first)
            if data is None:
                continue
            self._report.segment_count += 1
            self._report.segment_bytes += len(data)
            self._sections = _Sections()
            self._walk(data, first, end)
            self._check_index(first)
            done += min(end, following) - first
        tick("journal", total, total)
        self._report.end_lsn = max(self._lsn, 0)

    # ---- which segments there are ---------------------------------------------------------------

    def _spans(self) -> list[tuple[int, int, int]]:
        """List the segments that are there: first LSN, end, and the end of the file at most."""
        names = self._disk.names()
        firsts = sorted(lsn for name in names if (lsn := segment_lsn(name)) is not None)
        if not firsts:
            self._report.corrupt("journal", None, "has no segments")
            return []
        position = self._known.position
        listed = dict(position.segments) if self._known.is_readable else {}
        for first in sorted(listed.keys() - set(firsts)):
            self._missing(first)
        if self._known.is_readable:
            firsts = self._without_dead(firsts, listed, position.lsn)
        spans = []
        for first, following in zip(firsts, (*firsts[1:], OPEN_END), strict=True):
            end = listed.get(first, OPEN_END)
            end = following if end == OPEN_END else end
            size = self._size(first)
            if not self._known.is_readable and end > first + size:
                end = OPEN_END  # whether a segment between them was given up is not known
            spans.append((first, end, first + size))
        return spans

    def _without_dead(self, firsts: list[int], listed: dict[int, int], lsn: int) -> list[int]:
        tail = max((first for first in firsts if first <= lsn), default=None)
        if tail is None:
            self._missing(0)
            return firsts
        dead = [first for first in firsts if first < tail and first not in listed]
        for first in dead:
            message = "the checkpoint has given it up; the next start removes it"
            self._report.note(segment_name(first), None, message)
        return [first for first in firsts if first not in dead]

    def _missing(self, first: int) -> None:
        """Report a missing segment, unless a running process has given it up just now."""
        with self._store.read() as view:
            sealed = view.get("meta", _POSITION_KEY)
            if sealed is not None:
                now = msgspec.msgpack.decode(unseal("meta", _POSITION_KEY, sealed), type=Position)
                if now.lsn > self._known.position.lsn and first not in dict(now.segments):
                    return
        count = len(self._known.keys.get(first, b"")) // _KEY_BYTES
        message = f"the segment is missing; {count} rows of the index point into it"
        self._report.corrupt(segment_name(first), None, message)

    def _size(self, first: int) -> int:
        try:
            file = self._disk.open(segment_name(first))
            size = file.size()
            file.close()
        except OSError:
            return 0
        return size

    def _read(self, first: int) -> bytes | None:
        name = segment_name(first)
        try:
            file = self._disk.open(name)
        except FileNotFoundError:
            self._report.note(name, None, "was removed by a running process in the meantime")
            return None
        except OSError as error:
            self._report.corrupt(name, None, f"cannot be opened: {error.strerror or error}")
            return None
        try:
            return file.read(0, file.size())
        except OSError as error:
            self._report.corrupt(name, None, f"cannot be read: {error.strerror or error}")
            return None
        finally:
            file.close()

    # ---- frame by frame -------------------------------------------------------------------------

    def _walk(self, data: bytes, first: int, end: int) -> None:
        is_cut = self._is_cut(data, first, end)
        lsn, looked_again = first, -1
        crc = self._crc if first == self._lsn else self._chain_at(data, first)
        while lsn < end:
            frames = frames_of(data, first, start=lsn, previous_crc=crc, seed=self._seed)
            try:
                for frame in frames:
                    self._take(frame, first)
                    lsn, crc = frame.end, frame.crc
                    if lsn >= end:
                        break
            except (Tear, CorruptData) as stop:
                tear = stop if isinstance(stop, Tear) else Tear(lsn, str(stop))
            else:
                break
            if end == OPEN_END:
                if self._is_open_end(data, first, tear):
                    break
                if looked_again != lsn:
                    # A running process may have written it after we read that far: look again.
                    looked_again, data = lsn, self._read(first) or data
                    continue
            frame_or_none = self._after(data, first, tear, end)
            self._report_gap(data, first, tear, end, frame_or_none, is_cut=is_cut)
            if frame_or_none is None:
                break
            lsn, crc = frame_or_none.lsn, frame_or_none.previous_crc
        if lsn > end:
            message = f"a frame reaches into the segment that begins at {end}"
            self._report.corrupt(segment_name(first), end - first, message)
        self._lsn, self._crc = lsn, crc

    def _is_cut(self, data: bytes, first: int, end: int) -> bool:
        """Check the file's length against what its first frame, or the next file, says."""
        name, size = segment_name(first), len(data)
        given = size
        try:
            record = decode(data, 0, lsn=first, seed=self._seed).record
        except (BadFrame, UnknownVersion):
            given = max(given, end - first) if end != OPEN_END else given
        else:
            if isinstance(record, SegmentStarted):
                given = record.capacity_bytes
            else:
                self._report.corrupt(name, 0, "does not begin as a segment does")
        if size == 0:
            self._report.corrupt(name, 0, "the segment is empty")
        elif size != given:
            what = "cut short" if size < given else "too long"
            message = f"the segment is {what}: it has {size} bytes and was given {given}"
            self._report.corrupt(name, min(size, given), message)
        return size == 0 or size < given

    def _chain_at(self, data: bytes, first: int) -> int:
        """Believe the first frame about what came before it, if that is no longer here."""
        try:
            return decode(data, 0, lsn=first, seed=self._seed).previous_crc
        except (BadFrame, UnknownVersion):
            return 0

    def _is_open_end(self, data: bytes, first: int, tear: Tear) -> bool:
        """Tell whether the journal may end here: nothing proves that more was durable."""
        if self._known.is_readable and tear.lsn < self._known.position.lsn:
            return False
        try:
            check_torn(data, first, tear, self._seed)
        except CorruptData:
            return False
        at = tear.lsn - first
        rest = len(data[at:].rstrip(b"\0"))
        if rest:
            message = f"a torn tail: {tear.reason}; the next start cuts the {rest} bytes here, "
            self._report.note(segment_name(first), at, message + "which nothing proves durable")
        return True

    def _after(self, data: bytes, first: int, tear: Tear, end: int) -> Frame | None:
        """Find the next sound frame; it may be the one at the tear, if only the chain is broken."""
        stop = min(end - first, len(data))
        at = data.find(MAGIC, tear.lsn - first, stop)
        while at >= 0:
            if at % ALIGN == 0:
                try:
                    return decode(data, at, lsn=first + at, seed=self._seed)
                except (BadFrame, UnknownVersion):
                    pass
            at = data.find(MAGIC, at + 1, stop)
        return None

    def _report_gap(
        self,
        data: bytes,
        first: int,
        tear: Tear,
        end: int,
        frame: Frame | None,
        *,
        is_cut: bool,
    ) -> None:
        at = tear.lsn - first
        if frame is not None:
            follows = f"the next sound frame is at byte {frame.lsn - first}"
        elif is_cut:
            return  # the missing end was reported with the file's length
        elif end != OPEN_END:
            follows = f"no sound frame follows up to byte {end - first}, where the segment ends"
        else:
            follows = "no sound frame follows"
        if tear.lsn < self._known.position.lsn and self._known.is_readable:
            follows += "; the checkpoint proves that it was durable"
        self._report.corrupt(segment_name(first), at, f"{tear.reason}; {follows}")

    def _take(self, frame: Frame, first: int) -> None:
        report, name, at = self._report, segment_name(first), frame.lsn - first
        report.frame_count += 1
        if isinstance(frame.record, SegmentStarted) and at != 0:
            report.corrupt(name, at, "a segment begins inside another")
        if frame.watermark > frame.lsn:
            report.corrupt(name, at, f"claims {frame.watermark} durable, which lies after it")
        elif frame.watermark < self._watermark:
            report.corrupt(name, at, f"the watermark goes back to {frame.watermark}")
        self._watermark = max(self._watermark, frame.watermark)
        position = self._known.position
        if self._known.is_readable:
            if frame.lsn < position.lsn < frame.end:
                report.corrupt(name, at, f"the checkpoint's position {position.lsn} is inside it")
            is_before = frame.end == position.lsn and frame.crc != position.previous_crc
            is_behind = frame.lsn == position.lsn and frame.previous_crc != position.previous_crc
            if is_before or is_behind:
                report.corrupt(name, at, "is not the frame the checkpoint was made at")
        for section in frame.sections:
            report.message_count += section.count
            self._sections.add(at, section.stream, section.base, section.count)
        if frame.lsn >= position.lsn and self._known.is_readable:
            self._follow(frame, name, at)

    def _follow(self, frame: Frame, name: str, at: int) -> None:
        """Check that behind the checkpoint every stream goes on where it stopped."""
        if isinstance(frame.record, StreamCreated):
            row = frame.record.row
            self._tails[row.number] = 0 if row.fork is None else row.fork.start
        for section in frame.sections:
            number = section.stream
            stream = self._known.state.by_number.get(number)
            expected = self._tails.get(number, None if stream is None else stream.tail.tail)
            if expected != section.base:
                label = self._known.label(number)
                message = f"{label} goes on at offset {section.base}, not at {expected}"
                self._report.corrupt(name, at, message)
            self._tails[number] = section.base + section.count

    # ---- the index against the frames -----------------------------------------------------------

    def _check_index(self, first: int) -> None:
        keys = self._known.keys.get(first, bytearray())
        try:
            with self._store.read() as view:
                for at in range(0, len(keys), _KEY_BYTES):
                    key = bytes(keys[at : at + _KEY_BYTES])
                    sealed = view.get("index", key)
                    # None: a running process has pruned it since.
                    if sealed is not None:
                        self._check_chunk(split_key(key)[0], decode_chunk(key, sealed))
        except (CorruptData, BadSeal) as error:
            self._report.corrupt(FILE_NAME, None, f"cannot be read: {error}")

    def _check_chunk(self, number: int, chunk: Chunk) -> None:
        ends = (*chunk.offsets[1:], chunk.next - chunk.first)
        self._report.index_position_count += len(chunk.positions)
        lost = [
            (at, chunk.first + start, chunk.first + end - 1)
            for at, start, end in zip(chunk.positions, chunk.offsets, ends, strict=True)
            if not self._sections.has(at, number, chunk.first + start, end - start)
        ]
        if not lost:
            return
        at, start, last = lost[0]
        message = f"the index has {self._known.label(number)}, offsets {start} to {last}, here; "
        message += "no such frame was read"
        if len(lost) > 1:
            message += f"; the same for {len(lost) - 1} more frames up to offset {lost[-1][2]}"
        self._report.corrupt(segment_name(chunk.segment), at, message)
