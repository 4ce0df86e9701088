"""Reading segments frame by frame, and distinguishing a torn tail from corruption.

A crash can damage any part of the write group that is being written, so intact frames can follow a
lost frame. That write group was never acknowledged. Therefore the lost frame and everything after
it are a torn tail, and recovery truncates the torn tail.

Every frame contains a durable watermark. If a bad frame is below the watermark of a later frame,
the bad frame was durable. That is corruption, and nothing is truncated.
"""

from collections.abc import Iterator
from typing import Final

from semel.journal.frame import (
    CHECKSUM_FROM,
    BadFrame,
    Frame,
    SegmentStarted,
    UnknownVersion,
    claimed_ranges,
    decode,
)
from semel.journal.segments import Segments, segment_name
from semel.machine.events import SECTION_STAGED, ChunkStaged, Decided
from semel.machine.state import State
from semel.machine.txn.draft import chunks_in, extents_of
from semel.model.checksum import matching_ranges
from semel.model.errors import CorruptData, CorruptRead, DiskFailed, ReadFailed
from semel.model.limits import SEGMENT_BYTES_MIN

# The first frame of a segment is always smaller than this.
FIRST_BYTES_MAX: Final = 256


class TornTail(Exception):
    """Raised if there is no valid frame at `lsn`, where the next frame should begin."""

    def __init__(self, lsn: int, reason: str) -> None:
        super().__init__(reason)
        self.lsn = lsn
        self.reason = reason


def frames_of(
    data: bytes, segment: int, *, start: int, previous_crc: int, seed: int
) -> Iterator[Frame]:
    """Yield the frames of one segment, starting at the LSN `start`.

    Each frame must contain the checksum of the previous frame. `previous_crc` is the checksum of
    the frame before `start`. After an earlier recovery, frames of a torn tail can still be in the
    file. They fail this check.

    The iteration always ends with an exception: TornTail at the first bad frame, or CorruptData at
    an intact frame of unknown version.
    """
    lsn = start
    while True:
        try:
            frame = decode(data, lsn - segment, lsn=lsn, seed=seed)
        except BadFrame as error:
            raise TornTail(lsn, str(error)) from error
        except UnknownVersion as error:
            raise CorruptData(
                str(error), file=segment_name(segment), position=lsn - segment
            ) from error
        if frame.previous_crc != previous_crc:
            raise TornTail(lsn, "the frame does not contain the checksum of the previous frame")
        yield frame
        lsn, previous_crc = frame.end, frame.crc


def check_capacity(data: bytes, segment: int, seed: int) -> None:
    """Check that a segment's file has the size that its first frame states.

    If there is no intact first frame, as in a new segment, only the minimum size is required.
    Raises CorruptData if the size is wrong.
    """
    frame = intact_frame(data, 0, segment, seed)
    if frame is None:
        is_whole = len(data) >= SEGMENT_BYTES_MIN
    else:
        record = frame.record
        is_whole = isinstance(record, SegmentStarted) and record.capacity_bytes == len(data)
    if not is_whole:
        raise CorruptData(
            f"the file has {len(data)} bytes, but a different size was allocated",
            file=segment_name(segment),
        )


def check_first(data: bytes, segment: int, seed: int) -> None:
    """Check that a file begins with an intact frame at the first LSN of this segment.

    Raises CorruptData if the frame is damaged, or if the file belongs to a different segment.
    """
    try:
        decode(data, 0, lsn=segment, seed=seed)
    except (BadFrame, UnknownVersion) as error:
        raise CorruptData(str(error), file=segment_name(segment), position=0) from error


def check_torn(data: bytes, segment: int, tear: TornTail, seed: int) -> None:
    """Check that the bad frame at `tear.lsn` begins a torn tail and is not corruption.

    Raises CorruptData if a later frame's watermark proves that the data at `tear.lsn` was durable.
    """
    at = tear.lsn - segment
    for frame in intact_frames(data, at, len(data), segment, seed, proven=tear.lsn):
        raise CorruptData(
            f"{tear.reason}, but a later frame, at byte {frame.lsn - segment}, proves that"
            " the damaged part was durable",
            file=segment_name(segment),
            position=at,
        )


def intact_frames(
    data: bytes, at: int, stop: int, segment: int, seed: int, *, proven: int | None = None
) -> Iterator[Frame]:
    """Yield the intact frames of a segment that begin at byte `at` or later, but before `stop`.

    With `proven`, only the frames that prove that this LSN was durable. Each frame is checked
    separately. The checksum of the previous frame is not compared.

    A message can contain many headers of long frames that do not exist. Their checksums are
    computed together, so that the time does not grow with the lengths in these headers.
    """
    ranges = claimed_ranges(data, at, stop, segment, proven)
    for index in matching_ranges(data, ranges, seed):
        frame = intact_frame(data, ranges.starts[index] - CHECKSUM_FROM, segment, seed)
        if frame is not None:
            yield frame


def intact_frame(data: bytes, at: int, segment: int, seed: int) -> Frame | None:
    """Return the frame at byte `at` of a segment.

    Return None if the frame is damaged or has an unknown version.
    """
    try:
        return decode(data, at, lsn=segment + at, seed=seed)
    except (BadFrame, UnknownVersion):
        return None


# ---- chunks --------------------------------------------------------------------------------------
# A decision frame gives offsets to chunks that became durable earlier. If one of these chunks is
# missing or damaged, committed messages are lost. Then the engine must not start.


def holds_chunk(frame: Frame, stream: int, count: int) -> bool:
    """Return True if the frame has a chunk of `count` messages for the stream.

    A frame has several chunks if they were appended to a topic.
    """
    if not isinstance(frame.record, ChunkStaged):
        return False
    chunks = [(s.kind, s.stream, s.count) for s in frame.sections]
    return (SECTION_STAGED, stream, count) in chunks


def check_chunks(state: State, decided: Decided, segments: Segments, replayed_from: int) -> None:
    """Check that no chunk committed by `decided` is missing or damaged.

    Call this before `decided` is replayed. Chunks before the LSN `replayed_from` are read here,
    because replay does not read them. Raises CorruptData or DiskFailed.
    """
    staged = {
        chunk
        for end in decided.ended
        if end.is_committed
        for chunk in chunks_in(state.by_txn[end.txn].chunk_blocks)
    }
    for lsn, stream, _, count in extents_of(decided.extents):
        is_there = (lsn, stream, count) in staged
        if is_there and lsn < replayed_from:
            is_there = holds_chunk(_read(segments, lsn), stream, count)
        if not is_there:
            first = segments.first_of(lsn)
            raise CorruptData(
                "a chunk of a committed transaction is missing",
                file=segment_name(first),
                position=lsn - first,
            )


def _read(segments: Segments, lsn: int) -> Frame:
    try:
        return segments.read_frame(lsn)
    except CorruptRead as error:
        raise CorruptData(
            f"a chunk of a committed transaction cannot be read: {error}",
            file=error.file,
            position=error.position,
        ) from error
    except ReadFailed as error:
        raise DiskFailed(str(error)) from error
