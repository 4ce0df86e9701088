"""Verification of the journal. It checks every frame of every segment, and all index entries."""

import errno
from array import array
from bisect import bisect_left, bisect_right
from contextlib import closing
from typing import Final

from semel.journal.checkpoint import FILE_NAME, read_position
from semel.journal.disk import Files
from semel.journal.frame import (
    HEADER_BYTES,
    BadFrame,
    Frame,
    SegmentStarted,
    UnknownVersion,
    decode,
    peek_length,
)
from semel.journal.index import KEY_BYTES, IndexBlock, decode_block, split_key
from semel.journal.scan import (
    TornTail,
    check_torn,
    frames_of,
    holds_chunk,
    intact_frame,
    intact_frames,
)
from semel.journal.segments import OPEN_END, segment_lsn, segment_name
from semel.journal.store import BadSeal, TableReader
from semel.journal.verify.report import Progress, Report
from semel.journal.verify.rows import StoredCheckpoint
from semel.machine.events import (
    SECTION_CONTROL,
    SECTION_DATA,
    SECTION_STAGED,
    Decided,
    StreamConfigured,
    StreamCreated,
)
from semel.machine.shared_events import PartitionsAdded, TopicAdded
from semel.machine.txn.draft import extents_of
from semel.model.errors import CorruptData
from semel.model.messages import find_extras_fault

# Stored in place of a chunk's offset, because the chunk's frame does not contain the offset. The
# decision frame contains it.
_NOWHERE: Final = 2**64 - 1


class _Sections:
    """The sections of one segment, stored as columns and sorted by position."""

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
            is_there = self.bases[row] in (base, _NOWHERE)
            if is_there and (self.streams[row], self.counts[row]) == (stream, count):
                return True
            row += 1
        return False


class SegmentCheck:
    """Checks the segments one after another. Only one segment is in memory at a time."""

    def __init__(
        self, disk: Files, store: TableReader, seed: int, stored: StoredCheckpoint, report: Report
    ) -> None:
        self._disk = disk
        self._store = store
        self._seed = seed
        self._stored = stored
        self._report = report
        self._firsts: list[int] = []
        self._last = -1
        self._lsn = -1
        self._crc = 0
        self._watermark = 0
        self._tails: dict[int, int] = {}
        self._next_stream = stored.state.next_stream  # the number of the next new stream
        self._sections = _Sections()

    def check(self, tick: Progress) -> None:
        """Check all segments and report damage."""
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

    # ---- the list of segments -------------------------------------------------------------------

    def _spans(self) -> list[tuple[int, int, int]]:
        """Return three LSNs for each segment, and report missing segments.

        The three LSNs are the start of the segment, its required end (see `_end_of`), and the end
        of its file.
        """
        names = self._disk.names()
        firsts = sorted(lsn for name in names if (lsn := segment_lsn(name)) is not None)
        if not firsts:
            self._report.corrupt("journal", None, "the journal has no segments")
            return []
        position = self._stored.position
        listed = dict(position.segments) if self._stored.is_readable else {}
        for first in sorted(listed.keys() - set(firsts)):
            self._missing(first)
        if self._stored.is_readable:
            firsts = self._without_dead(firsts, listed, position.lsn)
        self._firsts, self._last = firsts, firsts[-1]
        sizes = {first: self._size(first) for first in firsts}
        followings = zip(firsts, (*firsts[1:], OPEN_END), strict=True)
        return [
            (first, self._end_of(first, following, listed, sizes[first]), first + sizes[first])
            for first, following in followings
        ]

    def _end_of(self, first: int, following: int, listed: dict[int, int], size: int) -> int:
        """Return the LSN at which a segment must end, or OPEN_END if that LSN is unknown.

        `listed` maps a segment's first LSN to the end that the checkpoint stores for the segment.
        `following` is the LSN at which the next segment begins.
        """
        if listed.get(first, OPEN_END) != OPEN_END:
            return listed[first]
        if first in listed and first != max(listed):
            self._report.note(
                segment_name(first),
                None,
                "the checkpoint still lists this segment as open, so its disk space will never"
                " be freed; no data is lost",
            )
        elif self._stored.is_readable:
            return following
        # If the next segment begins after the end of this file, a segment between them may be lost.
        return following if following <= first + size else OPEN_END

    def _without_dead(self, firsts: list[int], listed: dict[int, int], lsn: int) -> list[int]:
        tail = max((first for first in firsts if first <= lsn), default=None)
        if tail is None:
            self._missing(0)
            return firsts
        dead = [first for first in firsts if first < tail and first not in listed]
        for first in dead:
            self._report.note(
                segment_name(first),
                None,
                "this segment is no longer needed; the server will remove it at the next start",
            )
        return [first for first in firsts if first not in dead]

    def _missing(self, first: int) -> None:
        """Report a missing segment, unless a running server has just removed it."""
        with self._store.read() as view:
            now = read_position(view) or self._stored.position
        if now.lsn > self._stored.position.lsn and first not in dict(now.segments):
            return
        count = len(self._stored.keys.get(first, b"")) // KEY_BYTES
        self._report.corrupt(
            segment_name(first),
            None,
            f"the segment is missing; {count} rows of the index refer to this segment",
        )

    def _size(self, first: int) -> int:
        try:
            with closing(self._disk.open(segment_name(first))) as file:
                return file.size()
        except OSError as error:
            _raise_if_refused(error)
            return 0

    def _read(self, first: int) -> bytes | None:
        name, verb = segment_name(first), "opened"
        try:
            with closing(self._disk.open(name)) as file:
                verb = "read"
                return file.read(0, file.size())
        except FileNotFoundError:
            self._report.note(name, None, "a running server has just removed this segment")
        except OSError as error:
            _raise_if_refused(error)
            self._report.corrupt(
                name, None, f"the file cannot be {verb}: {error.strerror or error}"
            )
        return None

    # ---- frame by frame -------------------------------------------------------------------------

    def _walk(self, data: bytes, first: int, end: int) -> None:
        is_truncated = self._is_truncated(data, first, end)
        if first != self._lsn:
            frame = intact_frame(data, 0, first, self._seed)
            self._lsn, self._crc = first, 0 if frame is None else frame.previous_crc
        looked_again = -1
        while self._lsn < end and (tear := self._walk_on(data, first, end)) is not None:
            if end == OPEN_END and self._is_open_end(data, first, tear):
                break
            if end == OPEN_END and looked_again != tear.lsn:
                # A running server may have written the frame after the file was read, so the file
                # is read again.
                looked_again, data = tear.lsn, self._read(first) or data
                continue
            # Continue at the next intact frame. If only the chain of checksums is broken, this is
            # the frame at `tear.lsn` itself.
            stop = min(end - first, len(data))
            frame = next(intact_frames(data, tear.lsn - first, stop, first, self._seed), None)
            if frame is not None or not is_truncated:
                self._report_gap(first, tear, end, frame)
            if frame is None:
                break
            self._lsn, self._crc = frame.lsn, frame.previous_crc
        if self._lsn > end:
            self._report.corrupt(
                segment_name(first),
                end - first,
                f"a frame extends beyond LSN {end}, where the next segment begins",
            )

    def _walk_on(self, data: bytes, first: int, end: int) -> TornTail | None:
        """Check the frames from the first unchecked frame up to `end`.

        Return a TornTail if the chain of intact frames ends before `end`, otherwise None.
        """
        frames = frames_of(data, first, start=self._lsn, previous_crc=self._crc, seed=self._seed)
        try:
            while self._lsn < end:
                frame = next(frames)
                self._check_frame(frame, first)
                self._lsn, self._crc = frame.end, frame.crc
        except TornTail as tear:
            return tear
        except CorruptData as error:
            return TornTail(self._lsn, str(error.__cause__ or error))
        return None

    def _is_truncated(self, data: bytes, first: int, end: int) -> bool:
        """Return True if the segment's file is truncated.

        Report the file if its length is wrong or if its first frame is not a SegmentStarted frame.
        """
        name, size = segment_name(first), len(data)
        allocated = size
        frame = intact_frame(data, 0, first, self._seed)
        if frame is None:
            allocated = max(size, end - first) if end != OPEN_END else size
        elif isinstance(frame.record, SegmentStarted):
            allocated = frame.record.capacity_bytes
        else:
            self._report.corrupt(name, 0, "the first frame is not a SegmentStarted frame")
        if size == 0:
            self._report.corrupt(name, 0, "the segment is empty")
        elif size != allocated:
            what = "truncated" if size < allocated else "too long"
            self._report.corrupt(
                name,
                min(size, allocated),
                f"the segment is {what}: it has {size} bytes, but {allocated} bytes were allocated",
            )
        return size == 0 or size < allocated

    def _is_open_end(self, data: bytes, first: int, tear: TornTail) -> bool:
        """Return True if the journal can end at the LSN of `tear`.

        If there is proof that the bytes after this LSN were durable, they are damaged: return
        False. Otherwise, report them as a torn tail and return True.
        """
        is_proven = tear.lsn < self._stored.position.lsn and self._stored.is_readable
        if is_proven and first == self._last:
            return False
        try:
            check_torn(data, first, tear, self._seed)
        except CorruptData:
            return False
        at = tear.lsn - first
        rest = len(data[at:].rstrip(b"\0"))
        if rest:
            self._report.note(
                segment_name(first),
                at,
                f"the journal has a torn tail here ({tear.reason}). At the next start, the server"
                f" will remove these {rest} bytes. They count as an unfinished write, not as"
                " damage, because there is no proof that they were ever durable",
            )
        return True

    def _report_gap(self, first: int, tear: TornTail, end: int, frame: Frame | None) -> None:
        if frame is not None:
            follows = f"the next intact frame is at byte {frame.lsn - first}"
        elif end != OPEN_END:
            follows = f"no intact frame follows before byte {end - first}, where the segment ends"
        else:
            follows = "no intact frame follows"
        if self._stored.is_readable and tear.lsn < self._stored.position.lsn:
            follows += "; the checkpoint proves that the damaged bytes were once durable"
        self._report.corrupt(segment_name(first), tear.lsn - first, f"{tear.reason}; {follows}")

    def _check_frame(self, frame: Frame, first: int) -> None:
        report, name, at = self._report, segment_name(first), frame.lsn - first
        report.frame_count += 1
        if isinstance(frame.record, SegmentStarted) and at != 0:
            report.corrupt(name, at, "a SegmentStarted frame is not at the start of the file")
        if frame.watermark > frame.lsn:
            report.corrupt(
                name, at, f"the frame's watermark {frame.watermark} is greater than the frame's LSN"
            )
        elif frame.watermark < self._watermark:
            report.corrupt(
                name, at, f"the watermark {frame.watermark} is lower than an earlier watermark"
            )
        self._watermark = max(self._watermark, frame.watermark)
        for section in frame.sections:
            report.message_count += section.count if section.kind != SECTION_CONTROL else 0
            base = _NOWHERE if section.kind == SECTION_STAGED else section.base
            self._sections.add(at, section.stream, base, section.count)
            fault = find_extras_fault(section.extras, section.count) if section.extras else None
            if fault is not None:
                report.corrupt(name, at, fault)
        if self._stored.is_readable:
            self._check_joint(frame, first)

    def _check_joint(self, frame: Frame, first: int) -> None:
        """Check that a frame agrees with the checkpoint.

        The checkpoint must end at the end of a frame and store the checksum of that frame. If the
        frame is after the checkpoint, its offsets and chunks are also checked.
        """
        name, at = segment_name(first), frame.lsn - first
        lsn, crc = self._stored.position.lsn, self._stored.position.previous_crc
        if frame.lsn < lsn < frame.end:
            self._report.corrupt(name, at, f"the checkpoint ends at LSN {lsn}, inside this frame")
        elif (frame.end == lsn and frame.crc != crc) or (
            frame.lsn == lsn and frame.previous_crc != crc
        ):
            self._report.corrupt(
                name,
                at,
                "the checkpoint's checksum does not match the last frame before the checkpoint",
            )
        if frame.lsn >= lsn:
            self._follow(frame, name, at)
            self._check_placed(frame, first)

    def _follow(self, frame: Frame, name: str, at: int) -> None:
        """Check that the frame's offsets in each stream begin at the stream's tail.

        The tails are first taken from the checkpoint. Each checked frame then advances the tails of
        its streams.
        """
        created: object = frame.record
        if isinstance(created, StreamConfigured):
            created = created.created
        if isinstance(created, StreamCreated):
            row = created.row
            self._tails[row.number] = 0 if row.fork is None else row.fork.start
            self._next_stream = row.number + 1
        elif isinstance(created, TopicAdded):  # the topic has a number, too
            self._expect_streams(1 + created.partitions)
        elif isinstance(created, PartitionsAdded):
            self._expect_streams(created.partitions - len(created.fence))
        for number, base, count in _additions(frame):
            stream = self._stored.state.by_number.get(number)
            expected = self._tails.get(number, None if stream is None else stream.tail.tail)
            if expected != base:
                reason = "the checkpoint has no such stream, and no earlier frame creates it"
                if expected is not None:
                    reason = f"it should continue at offset {expected}"
                self._report.corrupt(
                    name,
                    at,
                    f"{self._stored.label(number)} continues at offset {base} in this frame, but"
                    f" {reason}",
                )
            self._tails[number] = base + count

    def _expect_streams(self, count: int) -> None:
        """Note that the frame creates so many streams, which have the next free numbers."""
        start, self._next_stream = self._next_stream, self._next_stream + count
        self._tails.update(dict.fromkeys(range(start, self._next_stream), 0))

    def _check_placed(self, frame: Frame, first: int) -> None:
        """If the frame is a decision frame, check that all the chunks it commits exist."""
        if not isinstance(frame.record, Decided):
            return
        for lsn, stream, _, count in extents_of(frame.record.extents):
            at = bisect_right(self._firsts, lsn) - 1
            start = self._firsts[at] if at >= 0 else lsn
            if start == first:
                is_there = self._sections.has(lsn - start, stream, _NOWHERE, count)
            else:
                chunk = self._frame_at(start, lsn)
                is_there = chunk is not None and holds_chunk(chunk, stream, count)
            if not is_there:
                self._report.corrupt(
                    segment_name(start),
                    lsn - start,
                    f"the decision frame at LSN {frame.lsn} commits a chunk that should be here,"
                    " but no such chunk was found",
                )

    def _frame_at(self, first: int, lsn: int) -> Frame | None:
        try:
            with closing(self._disk.open(segment_name(first))) as file:
                length = peek_length(file.read(lsn - first, HEADER_BYTES), 0)
                return decode(file.read(lsn - first, length or 0), 0, lsn=lsn, seed=self._seed)
        except OSError as error:
            _raise_if_refused(error)
            return None
        except (BadFrame, UnknownVersion):
            return None

    # ---- the index against the frames -----------------------------------------------------------

    def _check_index(self, first: int) -> None:
        keys = self._stored.keys.get(first)
        if keys is None:
            return
        try:
            with self._store.read() as view:
                for at in range(0, len(keys), KEY_BYTES):
                    key = bytes(keys[at : at + KEY_BYTES])
                    sealed = view.get("index", key)
                    # The value is None if a running server has removed the row since then.
                    if sealed is not None:
                        self._check_block(split_key(key)[0], decode_block(key, sealed))
        except (CorruptData, BadSeal) as error:
            self._report.corrupt(FILE_NAME, None, f"the file cannot be read: {error}")

    def _check_block(self, number: int, block: IndexBlock) -> None:
        ends = (*block.offsets[1:], block.next - block.first)
        self._report.index_position_count += len(block.positions)
        lost = [
            (at, block.first + start, block.first + end - 1)
            for at, start, end in zip(block.positions, block.offsets, ends, strict=True)
            if not self._sections.has(at, number, block.first + start, end - start)
        ]
        if not lost:
            return
        at, start, last = lost[0]
        message = (
            f"the index lists a frame of {self._stored.label(number)} here, with offsets {start} to"
            f" {last}, but the journal has no such frame here"
        )
        if len(lost) > 1:
            message += f"; {len(lost) - 1} more frames up to offset {lost[-1][2]} are also missing"
        self._report.corrupt(segment_name(block.segment), at, message)


def _additions(frame: Frame) -> list[tuple[int, int, int]]:
    """Return (stream, base, count) for each range of offsets that a frame adds to a stream.

    `base` is the first offset. The ranges of one stream are in the order of their offsets.
    """
    data, controls = (
        [(part.stream, part.base, part.count) for part in frame.sections if part.kind == kind]
        for kind in (SECTION_DATA, SECTION_CONTROL)
    )
    placed = []
    if isinstance(frame.record, Decided):
        extents = extents_of(frame.record.extents)
        placed = [(stream, base, count) for _, stream, base, count in extents]
    return data + placed + controls


def _raise_if_refused(error: OSError) -> None:
    """Raise `error`, unless the file is missing or its bytes cannot be read from the disk.

    An error such as missing rights says nothing about the data, so it must not become a finding.
    """
    if error.errno not in (errno.ENOENT, errno.EIO):
        raise error
