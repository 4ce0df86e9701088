"""The durable view: all streams as they are at the durable watermark.

The state is ahead of the disk, so a crash can lose messages that the state contains. GET, HEAD,
lists and live reads therefore use only the durable view (EO-6).
"""

import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from semel.broker.sorted_paths import SortedPaths
from semel.journal.frame import Record
from semel.journal.index import Index
from semel.journal.segments import FrameTooLong, Segments
from semel.journal.txn_history import TxnHistory
from semel.machine.events import (
    SECTION_CONTROL,
    SECTION_STAGED,
    ProducerDeclared,
    ProducerRaised,
    Section,
    StreamAppended,
    StreamConfigured,
    TxnPublished,
    declared_event,
)
from semel.machine.policies import Policies
from semel.machine.rows import StreamRow, TailRow, is_topic
from semel.machine.state import State
from semel.model.commands import READ_COMMITTED
from semel.model.errors import CorruptRead, ReadFailed
from semel.model.limits import READ_FRAMES_MAX, READ_JOURNAL_BYTES_MAX, WAITERS_PER_STREAM_MAX
from semel.model.messages import slice_extras
from semel.model.outcomes import (
    DiskReadFailed,
    Gone,
    NotFound,
    OffsetBeyondTail,
    OffsetTrimmed,
    Outcome,
    Unreadable,
)
from semel.model.outcomes_topics import IsTopic
from semel.model.slices import Slice, SliceProducer


class Waiter(Struct, eq=False):
    """A reader that waits at the tail of a stream.

    `wake` is called once, when the reader should read again. `is_committed` is True if the reader
    reads only up to the stable offset.
    """

    offset: int
    wake: Callable[[], None]
    is_committed: bool


class StreamView(Struct, gc=False, eq=False):
    """One stream as it is at the durable watermark. `tail` is None if the stream was removed."""

    row: StreamRow
    tail: TailRow | None
    waiters: dict[Waiter, None] | None = None

    @property
    def durable_tail(self) -> TailRow:
        """The tail row. The stream must not have been removed."""
        assert self.tail is not None
        return self.tail


class DurableView:
    """All durable streams.

    `by_path` maps paths to streams, and `by_number` maps stream numbers to streams. Both include
    topics. `paths` is the sorted set of the paths of all streams, and `topics` that of all topics,
    except those that are soft-deleted. `policies` maps prefixes to policies, and is replaced when
    one changes.
    """

    def __init__(self, state: State) -> None:
        self.policies = state.policies
        self.by_path: dict[str, StreamView] = {}
        self.by_number: dict[int, StreamView] = {}
        for number, stream in state.by_number.items():
            view = StreamView(stream.row, stream.tail)
            self.by_number[number] = view
            self.by_path[stream.row.path] = view
        present = [view for view in self.by_path.values() if view.tail and not view.tail.is_deleted]
        self.paths = SortedPaths(view.row.path for view in present if not is_topic(view.row))
        self.topics = SortedPaths(view.row.path for view in present if is_topic(view.row))

    def set_policies(self, policies: Policies) -> None:
        """Replace the policies by those that have become durable."""
        self.policies = policies

    def find(self, path: str) -> StreamView | NotFound | Gone | IsTopic:
        """Return the stream at `path`, or a refusal if that stream cannot be read."""
        view = self.by_path.get(path)
        if view is None or view.tail is None:
            return NotFound()
        if view.tail.is_deleted:
            return Gone()
        return IsTopic() if is_topic(view.row) else view

    def promote(self, changes: Iterable[tuple[StreamRow, TailRow | None]]) -> list[Waiter]:
        """Store stream changes that have become durable. Return the waiters to wake."""
        woken: list[Waiter] = []
        for row, tail in changes:
            view = self.by_number.get(row.number)
            if view is None:
                view = StreamView(row, None)
                self.by_number[row.number] = view
                if tail is not None:
                    self._paths_of(row).add(row.path)
            view.tail = tail
            if tail is None or tail.is_deleted:
                self._paths_of(row).discard(row.path)
            if tail is not None:
                self.by_path[row.path] = view
            else:
                del self.by_number[row.number]
                if self.by_path.get(row.path) is view:
                    del self.by_path[row.path]
            if view.waiters is not None:
                woken.extend(_take_due(view, view.waiters))
        return woken

    def _paths_of(self, row: StreamRow) -> SortedPaths:
        return self.topics if is_topic(row) else self.paths

    def wait(
        self, path: str, offset: int, wake: Callable[[], None], isolation: str
    ) -> tuple[StreamView, Waiter] | None:
        """Call `wake` once, when a stream has messages at `offset`, or is closed or deleted.

        Return the arguments for `stop_waiting`. If one of these conditions is already met, or the
        stream does not exist, or too many readers wait, return None and never call `wake`.
        """
        view = self.by_path.get(path)
        if view is None or view.tail is None or view.tail.is_closed or view.tail.is_deleted:
            return None
        waiter = Waiter(offset, wake, isolation == READ_COMMITTED)
        if tail_of_view(view.tail, waiter.is_committed) > offset:
            return None
        if view.waiters is None:
            view.waiters = {}
        if len(view.waiters) >= WAITERS_PER_STREAM_MAX:
            return None
        view.waiters[waiter] = None
        return view, waiter


def stop_waiting(view: StreamView, waiter: Waiter) -> None:
    """Cancel a wait. Do nothing if the waiter has already been woken."""
    if view.waiters is not None:
        view.waiters.pop(waiter, None)


def tail_of_view(tail: TailRow, is_committed: bool) -> int:
    """Return where a read must stop: at the stable offset if `is_committed`, else at the tail."""
    return tail.stable if is_committed else tail.tail


def _take_due(view: StreamView, waiters: dict[Waiter, None]) -> list[Waiter]:
    tail = view.tail
    if tail is None or tail.is_closed or tail.is_deleted:
        view.waiters = None
        return list(waiters)
    due = [waiter for waiter in waiters if waiter.offset < tail_of_view(tail, waiter.is_committed)]
    for waiter in due:
        del waiters[waiter]
    return due


# ---- reading -------------------------------------------------------------------------------------
# The index maps offsets to the LSNs of frames. The messages before the start of a fork are stored
# in its source and read from there.


# Passed as the offset of a read, TAIL means the current tail.
TAIL: Final = -1


class ReadDone(Outcome, frozen=True):
    """The result of a successful read: messages, and the stream's durable state (`row`, `tail`).

    `next_offset` is the offset at which the next read should start.
    """

    row: StreamRow
    tail: TailRow
    next_offset: int
    slices: list[Slice]


class ReadTooLong(Outcome, frozen=True):
    """The result of a short read if the first append is not short. Nothing was read."""


class FrameSpan(Struct, frozen=True, gc=False):
    """The offsets of one append, or of one control record: from `start` up to `end`.

    `stream` is the number of the stream that stores it, and `lsn` that of the frame.
    """

    stream: int
    lsn: int
    start: int
    end: int


class BrokerReader:
    """Reads the messages of durable streams from the journal."""

    def __init__(
        self, view: DurableView, index: Index, txn_history: TxnHistory, segments: Segments
    ) -> None:
        self._view = view
        self._index = index
        self._txn_history = txn_history
        self._segments = segments

    def read(
        self,
        view: StreamView,
        offset: int | None,
        bytes_max: int,
        *,
        is_committed: bool,
        is_short: bool = False,
    ) -> Outcome:
        """Read a stream, starting at `offset`. Return a ReadDone or a refusal.

        The offset None means the head of the stream, and the offset TAIL means its tail. If
        `is_short`, no frame with more than `bytes_max` bytes is read: the read ends before it, or
        returns ReadTooLong if it is the first frame.
        """
        tail = view.durable_tail
        if offset is None:
            offset = tail.head
        elif offset == TAIL:
            offset = tail_of_view(tail, is_committed)
        if offset > tail.tail:
            return OffsetBeyondTail(tail.tail)
        if offset < tail.head:
            return OffsetTrimmed(tail.head)
        # If the offset is after the stable offset, return no messages and the same offset.
        end = max(offset, tail_of_view(tail, is_committed))
        try:
            slices, next_offset = self.read_on(
                view, offset, end, bytes_max, is_committed=is_committed, is_short=is_short
            )
        except ReadFailed as error:
            return unreadable(error)
        except FrameTooLong:
            return ReadTooLong()
        return ReadDone(view.row, tail, next_offset, slices)

    def read_on(
        self,
        view: StreamView,
        offset: int,
        end: int,
        bytes_max: int,
        *,
        is_committed: bool = False,
        is_short: bool = False,
    ) -> tuple[list[Slice], int]:
        """Return the messages from `offset` up to `end`, and the offset at which to continue.

        The read stops once it has `bytes_max` bytes or more, or READ_FRAMES_MAX frames, or frames
        of READ_JOURNAL_BYTES_MAX bytes: a long frame can have few bytes of this stream. It skips
        control records and, if `is_committed`, aborted messages. If `is_short`, it stops before a
        frame with more than `bytes_max` bytes. Raises ReadFailed, and FrameTooLong if `is_short`
        and the first frame is too long.
        """
        slices: list[Slice] = []
        size = frames = journal_bytes = 0
        reached = offset
        frame_bytes_max = bytes_max if is_short else None
        journal_bytes_max = max(bytes_max, READ_JOURNAL_BYTES_MAX)
        try:
            for number, start, stop in self._pieces(view, offset, end):
                for first, last in self._visible(number, start, stop, is_committed=is_committed):
                    reached = first
                    for pieces, frame_bytes in self._read_own(number, first, last, frame_bytes_max):
                        for piece in pieces:
                            frames += 1
                            if isinstance(piece, Slice):
                                slices.append(piece)
                                size += len(piece.payload) + len(piece.extras)
                            reached = piece if isinstance(piece, int) else piece.next_offset
                            if size >= bytes_max or frames >= READ_FRAMES_MAX:
                                return slices, reached
                        journal_bytes += frame_bytes
                        if journal_bytes >= journal_bytes_max:
                            return slices, reached
        except FrameTooLong:
            if reached == offset:
                raise
            return slices, reached
        return slices, end

    def spans(self, view: StreamView, offset: int, end: int) -> Iterator[FrameSpan]:
        """Yield the parts of a range that a `read_committed` reader gets, one for each append.

        Control records are included: only their frames show what they are. Raises ReadFailed.
        """
        for number, start, stop in self._pieces(view, offset, end):
            for first, last in self._visible(number, start, stop, is_committed=True):
                span: FrameSpan | None = None
                for lsn, base in self._index.frames(number, first, last):
                    if span is not None:
                        yield replace(span, end=base)
                    span = FrameSpan(number, lsn, max(base, first), last)
                if span is not None:
                    yield span

    def look(self, span: FrameSpan, frame_bytes_max: int) -> tuple[int, bool, int]:
        """Read the frame of a span. Return its time, if the span is a control record, and its size.

        Raises ReadFailed, and FrameTooLong if the frame has more than `frame_bytes_max` bytes.
        """
        frame = self._segments.read_frame(span.lsn, frame_bytes_max)
        is_control = any(
            section.kind == SECTION_CONTROL
            and section.stream == span.stream
            and section.base == span.start
            for section in frame.sections
        )
        return frame.time_ms, is_control, frame.end - frame.lsn

    def _visible(
        self, number: int, offset: int, end: int, *, is_committed: bool
    ) -> Iterator[tuple[int, int]]:
        """Yield the parts of a range that a reader can see, each as a pair (start, end).

        If `is_committed`, aborted messages are left out. Otherwise the whole range is yielded.
        """
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
        """Return the parts of a range, each as (number of the stream that stores it, start, end).

        The messages before a fork's start are stored in the fork's source. The others are stored
        in the fork itself. The parts are sorted by offset.
        """
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

    def _read_own(
        self, number: int, offset: int, end: int, frame_bytes_max: int | None
    ) -> Iterator[tuple[list[Slice | int], int]]:
        """Yield what the frames of the stream `number` contain, without those of its fork source.

        For each frame, yield its slices and its size in bytes. For a control record, the list has
        the offset after it instead of a slice. Raises ReadFailed, and FrameTooLong if a frame has
        more than `frame_bytes_max` bytes.
        """
        last_lsn = -1
        for lsn, base in self._index.frames(number, offset, end):
            if lsn == last_lsn and base < offset:
                continue  # the frame has several appends to the stream, and they have been read
            last_lsn = lsn
            frame = self._segments.read_frame(lsn, frame_bytes_max)
            pieces: list[Slice | int] = []
            for section in frame.sections:
                if offset >= end:
                    break
                if section.stream != number:
                    continue
                if section.kind == SECTION_STAGED:
                    section = replace(section, base=base)  # noqa: PLW2901 - with its offset
                if section.base <= offset < section.base + section.count:
                    if section.kind == SECTION_CONTROL:
                        pieces.append(offset + 1)
                    else:
                        stamp = _producer(frame.record)
                        pieces.append(slice_section(section, offset, end, frame.time_ms, stamp))
                    offset = section.base + section.count
            yield pieces, frame.end - lsn
            if offset >= end:
                return
        raise CorruptRead(
            f"the index lists no frame that contains offset {offset}",
            file=f"stream {number}",
            position=offset,
        )


def unreadable(error: ReadFailed) -> Outcome:
    """Return the outcome that reports a failed read of stored data."""
    is_corrupt = isinstance(error, CorruptRead)
    return Unreadable(str(error)) if is_corrupt else DiskReadFailed(str(error))


def _producer(record: Record) -> SliceProducer | None:
    if isinstance(record, ProducerDeclared):
        record = declared_event(record)
    append: object = record
    if isinstance(record, TxnPublished | ProducerRaised | StreamConfigured):
        append = record.append
    stamp = append.stamp if isinstance(append, StreamAppended) else None
    if stamp is None:
        return None
    return SliceProducer(stamp.id, stamp.epoch, stamp.first_seq, stamp.last_seq)


def slice_section(
    section: Section, offset: int, end: int, time_ms: int, producer: SliceProducer | None = None
) -> Slice:
    """Return a section's messages from `offset` up to, but not including, `end`."""
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
