"""Reading messages: from the index to the frames, through forks to their sources."""

import struct
from collections.abc import Iterator

from msgspec.structs import replace

from semel.broker.durable_view import DurableView, StreamView
from semel.journal.frame import Record
from semel.journal.index import Index
from semel.journal.segments import Segments
from semel.journal.txn_history import TxnHistory
from semel.machine.events import (
    SECTION_CONTROL,
    SECTION_STAGED,
    ProducerRaised,
    Section,
    StreamAppended,
    TxnPublished,
)
from semel.model.errors import CorruptRead
from semel.model.limits import READ_FRAMES_MAX
from semel.model.messages import slice_extras
from semel.model.slices import Slice, SliceProducer


class BrokerReader:
    """Finds and checks the frames behind a range of offsets."""

    def __init__(
        self, seen: DurableView, index: Index, memory: TxnHistory, segments: Segments
    ) -> None:
        self._seen = seen
        self._index = index
        self._txn_history = memory
        self._segments = segments

    def read(self, view: StreamView, offset: int, end: int, bytes_max: int) -> list[Slice]:
        """Read from `offset` up to `end`, stopping after `bytes_max` but not before one slice."""
        return self.read_on(view, offset, end, bytes_max)[0]

    def read_on(
        self, view: StreamView, offset: int, end: int, bytes_max: int, *, is_committed: bool = False
    ) -> tuple[list[Slice], int]:
        """Read as `read` does, and tell where to go on: behind what a reader is not given."""
        slices: list[Slice] = []
        size = frames = 0
        for number, start, stop in self._pieces(view, offset, end):
            for first, last in self._visible(number, start, stop, is_committed=is_committed):
                for piece in self._read_own(number, first, last):
                    frames += 1
                    if isinstance(piece, Slice):
                        slices.append(piece)
                        size += len(piece.payload) + len(piece.extras)
                    if size >= bytes_max or frames >= READ_FRAMES_MAX:
                        return slices, piece if isinstance(piece, int) else piece.next_offset
        return slices, end

    def _visible(
        self, number: int, offset: int, end: int, *, is_committed: bool
    ) -> Iterator[tuple[int, int]]:
        """Cut the aborted ranges out of a range; behind the last one there is no need to look."""
        tail = self._seen.by_number[number].tail
        clean = end if tail is None else tail.aborted_end
        while is_committed and offset < min(end, clean):
            aborted = self._txn_history.next_aborted(number, offset)
            if aborted is None or aborted[0] >= end:
                break
            if aborted[0] > offset:
                yield offset, aborted[0]
            offset = aborted[1]
        if offset < end:
            yield offset, end

    def _pieces(self, view: StreamView, offset: int, end: int) -> list[tuple[int, int, int]]:
        """Split a range by who stores it: the sources of a fork first."""
        pieces: list[tuple[int, int, int]] = []
        row = view.row
        while offset < end:
            start = 0 if row.fork is None else row.fork.start
            if end > start:
                pieces.append((row.number, max(offset, start), end))
                end = start
            if row.fork is not None:
                row = self._seen.by_number[row.fork.source].row
        return pieces[::-1]

    def _read_own(self, number: int, offset: int, end: int) -> Iterator[Slice | int]:
        """Read what a stream stores itself; for a control record, give the offset behind it."""
        for lsn, base in self._index.frames(number, offset, end):
            frame = self._segments.read_frame(lsn)
            for section in frame.sections:
                if offset >= end:
                    return
                if section.stream != number:
                    continue
                if section.kind == SECTION_STAGED:
                    section = replace(section, base=base)  # noqa: PLW2901 - now it has its place
                if section.base <= offset < section.base + section.count:
                    if section.kind == SECTION_CONTROL:
                        yield offset + 1
                    else:
                        mark = _producer(frame.record)
                        yield slice_section(section, offset, end, frame.time_ms, mark)
                    offset = section.base + section.count
            if offset >= end:
                return
        raise CorruptRead(
            f"offset {offset} is not where the index says", file=f"stream {number}", position=offset
        )


def _producer(record: Record) -> SliceProducer | None:
    append = record.append if isinstance(record, TxnPublished | ProducerRaised) else record
    stamp = append.stamp if isinstance(append, StreamAppended) else None
    if stamp is None:
        return None
    return SliceProducer(stamp.id, stamp.epoch, stamp.first_seq, stamp.last_seq)


def slice_section(
    section: Section, offset: int, end: int, time_ms: int, producer: SliceProducer | None = None
) -> Slice:
    """Take the messages of a section from `offset` up to `end`."""
    skip = offset - section.base
    count = min(section.base + section.count, end) - offset
    extras = section.extras
    if count == section.count:
        return Slice(
            offset,
            count,
            section.payload,
            section.lengths,
            section.is_joined,
            time_ms,
            extras,
            producer,
        )
    if extras:
        extras = slice_extras(extras, section.count, skip, skip + count)
    lengths = struct.unpack(f"<{section.count}I", section.lengths)
    gap = int(section.is_joined)
    start = sum(lengths[:skip]) + gap * skip
    kept = lengths[skip : skip + count]
    size = sum(kept) + gap * (count - 1)
    packed = section.lengths[4 * skip : 4 * (skip + count)] if count > 1 else b""
    payload = section.payload[start : start + size]
    is_joined = section.is_joined and count > 1
    return Slice(offset, count, payload, packed, is_joined, time_ms, extras, producer)
