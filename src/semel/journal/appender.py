"""The part of the journal that runs in the event loop: it assigns LSNs and builds write groups.

Nothing here accesses the disk. The writer writes and syncs the write groups. After the sync of a
group, the broker sends the replies that wait for the group.
"""

from typing import Final

from semel.journal.frame import (
    KINDS,
    SECTION_BYTES,
    SegmentEnded,
    SegmentStarted,
    WatermarkMoved,
    encode,
    encode_meta,
    frame_bytes,
)
from semel.machine.events import Event, Section
from semel.machine.txn.draft import EXTENT_BYTES
from semel.model.errors import invariant
from semel.model.limits import FRAME_OVERHEAD_BYTES_MAX, TXN_PENDING_MAX

_WATERMARK_META: Final = encode_meta(WatermarkMoved())
_WATERMARK_BYTES: Final = frame_bytes(_WATERMARK_META, ())
_ENDED_META: Final = encode_meta(SegmentEnded())
_ENDED_BYTES: Final = frame_bytes(_ENDED_META, ())
_CLOSING_BYTES: Final = _WATERMARK_BYTES + _ENDED_BYTES
# The bytes that a control record takes in a frame: its section, and its stream and offset in the
# meta.
_MARKER_BYTES: Final = SECTION_BYTES + 19
_STARTED_BYTES_MAX: Final = frame_bytes(encode_meta(SegmentStarted(2**63 - 1)), ())


def frame_bytes_max(segment_bytes: int) -> int:
    """Return the maximum size of a frame.

    It is half a segment, so that every frame fits into a new segment.
    """
    return segment_bytes // 2


def chunks_max(segment_bytes: int) -> int:
    """Return the maximum number of chunks in a transaction.

    The list of all chunks must fit in the frame that commits the transaction.
    """
    return _room_bytes(segment_bytes) // EXTENT_BYTES


def streams_max(segment_bytes: int) -> int:
    """Return the maximum number of streams in a transaction.

    If all pending transactions of a producer are ended together, one frame contains a control
    record for each stream of each transaction. All these records must fit in the frame.
    """
    return _room_bytes(segment_bytes) // (_MARKER_BYTES * TXN_PENDING_MAX)


def _room_bytes(segment_bytes: int) -> int:
    room = frame_bytes_max(segment_bytes)
    return room - min(room // 2, FRAME_OVERHEAD_BYTES_MAX)


class SegmentPart:
    """The bytes of one write group that go into one segment.

    If the writer must begin a new segment for this part, `ending` is the last frame of the previous
    segment. The writer renames the spare file to the new segment's name, and then writes `ending`
    to the previous segment. For all other parts, `ending` is empty.
    """

    __slots__ = ("buffers", "ending", "segment", "size", "start")

    def __init__(self, segment: int, start: int, ending: tuple[bytes, ...]) -> None:
        self.segment = segment
        self.start = start
        self.ending = ending
        self.size = 0
        self.buffers: list[bytes] = []


class WriteGroup:
    """Frames that are written together. `end` is the LSN after the last frame.

    If `is_synced` is True, the file is synced after the write. If it is False, the write group is a
    single watermark frame, which needs no sync.
    """

    __slots__ = ("end", "frames", "is_synced", "parts", "size")

    def __init__(self, end: int = 0, *, is_synced: bool = False) -> None:
        self.end = end
        self.is_synced = is_synced
        self.parts: list[SegmentPart] = []
        self.size = 0
        self.frames = 0


class Appender:
    """The end of the journal, where frames are added.

    `group` is the open write group. If `group.is_synced`, it contains an event, so that replies
    must wait for it.
    """

    def __init__(
        self,
        *,
        seed: int,
        position: int,
        previous_crc: int,
        segment: int,
        capacity: int,
        time_ms: int,
    ) -> None:
        self._seed = seed
        self.position = position
        self.previous_crc = previous_crc
        self.segment = segment
        self._capacity = capacity
        self._spare_bytes = 0
        self._time_ms = time_ms
        self.durable = position
        self._ending: tuple[bytes, ...] = ()
        self.group = WriteGroup()

    def offer_spare(self, segment: int, capacity: int) -> None:
        """Store the size of the spare segment, or 0 if there is none.

        `segment` is the segment that was open when the writer reported the spare segment. If a
        different segment is open now, the spare segment was used for it, and 0 is stored.
        """
        self._spare_bytes = capacity if segment == self.segment else 0

    @property
    def has_spare(self) -> bool:
        """True if there is a spare segment, so that a new segment can begin now."""
        return self._spare_bytes > 0

    def _fits(self, length: int) -> bool:
        """Return True if the segment has room for a frame of `length` bytes.

        After that frame, a watermark frame and the segment's last frame must still fit.
        """
        first = _STARTED_BYTES_MAX if self.position == self.segment else 0
        return self.position + first + length + _CLOSING_BYTES <= self.segment + self._capacity

    def has_room(self, length: int) -> bool:
        """Return True if this segment has room for a frame, or if there is a spare segment."""
        return self._spare_bytes > 0 or self._fits(length)

    def add(
        self, event: Event, meta: bytes, sections: tuple[Section, ...], length: int, time_ms: int
    ) -> int:
        """Add a frame to the open write group, and return its LSN."""
        if not self._fits(length):
            self._roll()
        if self.position == self.segment:
            started = encode_meta(SegmentStarted(self._capacity))
            self._place(KINDS[SegmentStarted], started, (), frame_bytes(started, ()), time_ms)
        self.group.is_synced = True
        self._time_ms = time_ms
        return self._place(KINDS[type(event)], meta, sections, length, time_ms)

    def _roll(self) -> None:
        invariant(self.has_spare, "a frame was added without a check that the journal has room")
        invariant(self.position > self.segment, "a segment without frames was ended")
        self._ending = encode(
            KINDS[SegmentEnded],
            _ENDED_META,
            (),
            length=_ENDED_BYTES,
            lsn=self.position,
            watermark=self.durable,
            time_ms=self._time_ms,
            previous_crc=self.previous_crc,
            seed=self._seed,
        ).buffers
        self.segment = self.position
        self._capacity, self._spare_bytes = self._spare_bytes, 0

    def _place(
        self, kind: int, meta: bytes, sections: tuple[Section, ...], length: int, time_ms: int
    ) -> int:
        lsn = self.position
        frame = encode(
            kind,
            meta,
            sections,
            length=length,
            lsn=lsn,
            watermark=self.durable,
            time_ms=time_ms,
            previous_crc=self.previous_crc,
            seed=self._seed,
        )
        group = self.group
        part = group.parts[-1] if group.parts else None
        if part is None or part.segment != self.segment:
            part = SegmentPart(self.segment, lsn, self._ending)
            self._ending = ()
            group.parts.append(part)
        part.buffers += frame.buffers
        part.size += length
        group.size += length
        group.frames += 1
        self.previous_crc = frame.crc
        self.position = lsn + length
        return lsn

    def take(self) -> WriteGroup | None:
        """Return the open write group and begin the next one.

        Return None if the open write group is empty.
        """
        group = self.group
        if not group.parts:
            return None
        group.end = self.position
        self.group = WriteGroup()
        return group

    def take_sync(self) -> WriteGroup:
        """Return a write group without frames. Its sync makes all written frames durable."""
        return WriteGroup(self.position, is_synced=True)

    def take_watermark(self) -> WriteGroup | None:
        """Return a write group with one watermark frame.

        The frame proves to recovery that the last acknowledged frames were durable. If they
        are damaged later, recovery reports corruption. Without the proof, recovery would truncate
        them as a torn tail.

        Return None if the frame does not fit into the segment, or if the open write group has
        frames. Also return None if the segment is empty, because the segment's name already proves
        that all earlier frames are durable.
        """
        if self.group.parts or self.position + _CLOSING_BYTES > self.segment + self._capacity:
            return None
        if self.position == self.segment:
            return None  # the name of a segment proves that everything before it is durable
        self._place(KINDS[WatermarkMoved], _WATERMARK_META, (), _WATERMARK_BYTES, self._time_ms)
        return self.take()
