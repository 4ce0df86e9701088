"""Reading messages: from the index to the frames, and from a fork to its sources."""

import struct
from collections.abc import Iterator
from typing import Final

from msgspec.structs import replace

from semel.broker.durable_view import DurableView, StreamView, tail_of_view
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
from semel.machine.rows import StreamRow, TailRow
from semel.model.errors import CorruptRead, ReadFailed
from semel.model.limits import READ_FRAMES_MAX
from semel.model.messages import slice_extras
from semel.model.outcomes import (
    DiskReadFailed,
    OffsetBeyondTail,
    OffsetTrimmed,
    Outcome,
    Unreadable,
)
from semel.model.slices import Slice, SliceProducer

# An offset to read from: the tail, wherever it is.
TAIL: Final = -1


class ReadDone(Outcome, frozen=True):
    """The messages a read returns, up to `next_offset`, and the stream as it is durable now."""

    row: StreamRow
    tail: TailRow
    next_offset: int
    slices: list[Slice]


class BrokerReader:
    """Reads messages of the durable view from the journal."""

    def __init__(
        self, view: DurableView, index: Index, txn_history: TxnHistory, segments: Segments
    ) -> None:
        self._view = view
        self._index = index
        self._txn_history = txn_history
        self._segments = segments

    def read(
        self, view: StreamView, offset: int | None, bytes_max: int, *, is_committed: bool
    ) -> Outcome:
        """Read a stream from `offset` on (None: its head); return ReadDone or a refusal."""
        tail = view.durable_tail
        if offset is None:
            offset = tail.head
        elif offset == TAIL:
            offset = tail_of_view(tail, is_committed)
        if offset > tail.tail:
            return OffsetBeyondTail(tail.tail)
        if offset < tail.head:
            return OffsetTrimmed(tail.head)
        # A reader that is already after the stable offset stays where it is.
        end = max(offset, tail_of_view(tail, is_committed))
        try:
            slices, next_offset = self.read_on(
                view, offset, end, bytes_max, is_committed=is_committed
            )
        except ReadFailed as error:
            return unreadable(error)
        return ReadDone(view.row, tail, next_offset, slices)

    def read_on(
        self, view: StreamView, offset: int, end: int, bytes_max: int, *, is_committed: bool = False
    ) -> tuple[list[Slice], int]:
        """Return the messages from `offset` up to `end`, and the offset at which to continue.

        It stops after `bytes_max`, but not before one slice. The offset is after all that was
        skipped: control records and, if `is_committed`, aborted ranges. Raises ReadFailed.
        """
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
        """Yield the parts of a range that are not aborted; after `aborted_end` nothing is."""
        tail = self._view.by_number[number].tail
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
        """Split a range by the stream that stores it: (number, from, up to), sources first."""
        pieces: list[tuple[int, int, int]] = []
        row = view.row
        while offset < end:
            start = 0 if row.fork is None else row.fork.start
            if end > start:
                pieces.append((row.number, max(offset, start), end))
                end = start
            if row.fork is not None:
                row = self._view.by_number[row.fork.source].row
        return pieces[::-1]

    def _read_own(self, number: int, offset: int, end: int) -> Iterator[Slice | int]:
        """Yield the slices a stream stores itself; for a control record, the offset after it."""
        for lsn, base in self._index.frames(number, offset, end):
            frame = self._segments.read_frame(lsn)
            for section in frame.sections:
                if offset >= end:
                    return
                if section.stream != number:
                    continue
                if section.kind == SECTION_STAGED:
                    section = replace(section, base=base)  # noqa: PLW2901 - the commit gave it an offset
                if section.base <= offset < section.base + section.count:
                    if section.kind == SECTION_CONTROL:
                        yield offset + 1
                    else:
                        stamp = _producer(frame.record)
                        yield slice_section(section, offset, end, frame.time_ms, stamp)
                    offset = section.base + section.count
            if offset >= end:
                return
        raise CorruptRead(
            f"offset {offset} is not at the LSN that the index has",
            file=f"stream {number}",
            position=offset,
        )


def unreadable(error: ReadFailed) -> Outcome:
    """Return the outcome for stored data that could not be read."""
    is_corrupt = isinstance(error, CorruptRead)
    return Unreadable(str(error)) if is_corrupt else DiskReadFailed(str(error))


def _producer(record: Record) -> SliceProducer | None:
    append = record.append if isinstance(record, TxnPublished | ProducerRaised) else record
    stamp = append.stamp if isinstance(append, StreamAppended) else None
    if stamp is None:
        return None
    return SliceProducer(stamp.id, stamp.epoch, stamp.first_seq, stamp.last_seq)


def slice_section(
    section: Section, offset: int, end: int, time_ms: int, producer: SliceProducer | None = None
) -> Slice:
    """Return the messages of a section from `offset` up to `end`."""
    skip = offset - section.base
    count = min(section.base + section.count, end) - offset
    extras = section.extras
    if count == section.count:
        return Slice(
            offset=offset,
            count=count,
            payload=section.payload,
            lengths=section.lengths,
            is_joined=section.is_joined,
            time_ms=time_ms,
            extras=extras,
            producer=producer,
        )
    if extras:
        extras = slice_extras(extras, section.count, skip, skip + count)
    lengths = struct.unpack(f"<{section.count}I", section.lengths)
    gap = int(section.is_joined)
    start = sum(lengths[:skip]) + gap * skip
    kept = lengths[skip : skip + count]
    size = sum(kept) + gap * (count - 1)
    packed = section.lengths[4 * skip : 4 * (skip + count)] if count > 1 else b""
    return Slice(
        offset=offset,
        count=count,
        payload=section.payload[start : start + size],
        lengths=packed,
        is_joined=section.is_joined and count > 1,
        time_ms=time_ms,
        extras=extras,
        producer=producer,
    )
