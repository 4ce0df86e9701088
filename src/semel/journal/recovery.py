"""Recovery: load the checkpoint, replay frames, truncate the torn tail, make the rest durable.

A frame that recovery can read is not always durable: it may exist only in the page cache.
Therefore recovery rewrites and syncs frames before the first reply, unless a watermark proves that
they are durable. A sync without a rewrite is not enough: if an earlier sync failed to write a page,
a later sync skips that page.
"""

import errno
from collections.abc import Callable
from contextlib import closing
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from semel.journal.appender import chunks_max, streams_max
from semel.journal.checkpoint import CheckpointPosition, load
from semel.journal.disk import NO_ROOM, Disk, File, Files, disk_failed, finish_file
from semel.journal.frame import Frame, SegmentEnded, SegmentStarted, WatermarkMoved, checksum_seed
from semel.journal.identity import IDENTITY_NAME, Identity, read_identity, write_identity
from semel.journal.index import Index
from semel.journal.scan import (
    FIRST_BYTES_MAX,
    TornTail,
    check_capacity,
    check_chunks,
    check_first,
    check_torn,
    frames_of,
)
from semel.journal.segments import (
    OPEN_END,
    SPARE_NAME,
    Segments,
    segment_lsn,
    segment_name,
    unlink_segments,
)
from semel.journal.store import TABLES, Store, TableReader
from semel.journal.txn_history import TxnHistory
from semel.journal.writer import RESERVE_NAME
from semel.machine import MachineLimits, State, apply
from semel.machine.events import Decided
from semel.model.errors import CorruptData, DiskFailed
from semel.model.limits import SEGMENT_BYTES_DEFAULT

# The file into which recovery writes the last segment again.
REWRITE_NAME: Final = "rewrite.tmp"
INTERRUPTED: Final = (
    "the creation of the directory was interrupted; nothing is stored yet, and the next start"
    " completes it"
)


class Recovered(Struct, frozen=True):
    """A recovered journal: the state, and the position of the next frame.

    `generation` is that of the directory (see `identity.py`).
    """

    state: State
    index: Index
    txn_history: TxnHistory
    segments: Segments
    seed: int
    position: int
    previous_crc: int
    capacity: int
    replayed_frames: int
    replayed_bytes: int
    generation: int


class _Replay:
    """Applies the frames after the checkpoint to the state."""

    def __init__(
        self, state: State, store: Store, segments: Segments, position: CheckpointPosition
    ) -> None:
        self.state = state
        self.index = Index(store)
        self.txn_history = TxnHistory(store)
        self._segments = segments
        self.lsn = self._start = position.lsn
        self.previous_crc = position.previous_crc
        self.watermark = position.lsn
        self.frames = 0

    def replay(self, frame: Frame) -> None:
        record = frame.record
        if isinstance(record, SegmentEnded):
            raise CorruptData("the segment is missing", file=segment_name(frame.lsn))
        if isinstance(record, Decided) and record.extents:
            check_chunks(self.state, record, self._segments, self._start)
        if not isinstance(record, SegmentStarted | WatermarkMoved):
            effects = apply(self.state, record, frame.sections, frame.time_ms, frame.lsn)
            self.index.add_frame(frame.lsn, frame.sections, effects.placed, self._segments)
            self.txn_history.add(effects)
        self.watermark = max(self.watermark, frame.watermark)
        self.lsn, self.previous_crc = frame.end, frame.crc
        self.frames += 1


def recover(
    disk: Disk,
    store: Store,
    *,
    fresh_identity: bytes,
    segment_bytes: int = SEGMENT_BYTES_DEFAULT,
    reserve_bytes: int = 0,
    limits: MachineLimits | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Recovered:
    """Recover a locked data directory. A new directory gets the identity `fresh_identity`.

    No existing file is changed before all checks have passed and all space that recovery needs is
    allocated. `reserve_bytes` is the size of the reserve that the writer will allocate. `progress`
    is called with the number of segments replayed so far, and the total number of segments to
    replay. Raises CorruptData or DiskFailed.
    """
    file_bytes = max(segment_bytes, reserve_bytes)
    try:
        if IDENTITY_NAME not in disk.names():
            check_new(disk, store)
            disk.begin_changes(file_bytes)
            _create_directory(disk, store, fresh_identity, segment_bytes)
        identity = read_identity(disk)
        limits = limits or MachineLimits()
        # The commit or abort of every transaction must fit in one frame.
        fitting = replace(
            limits,
            chunks=min(limits.chunks, chunks_max(segment_bytes)),
            txn_streams=min(limits.txn_streams, streams_max(segment_bytes)),
        )
        return _recover(
            disk,
            store,
            identity,
            fitting,
            segment_bytes=segment_bytes,
            file_bytes=file_bytes,
            progress=progress,
        )
    except OSError as error:
        name = error.filename or "the data directory"
        raise disk_failed(f"{name}: cannot recover the data directory", error.errno) from error
    except MemoryError as error:
        raise disk_failed("cannot recover the data directory", errno.ENOMEM) from error


def _create_directory(disk: Disk, store: Store, fresh: bytes, segment_bytes: int) -> None:
    """Create the files of a new directory. The identity file is the last one.

    Files that an interrupted creation has left are removed. Raises DiskFailed or OSError.
    """
    temporary = (SPARE_NAME, RESERVE_NAME, REWRITE_NAME)
    store.make_writable()
    for name in disk.names():
        if name in temporary or segment_lsn(name) is not None:
            disk.unlink(name)
    try:
        disk.create(SPARE_NAME, segment_bytes).close()
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        raise DiskFailed(
            "the disk has no room for a new data directory. A directory needs two segments of"
            f" {segment_bytes} bytes and the reserve. Free space on the disk, or choose smaller"
            " sizes (--segment-bytes, --reserve-bytes)"
        ) from error
    disk.rename(SPARE_NAME, segment_name(0))
    disk.sync_names()
    write_identity(disk, Identity(fresh))


def check_new(disk: Files, store: TableReader) -> None:
    """Check that nothing was ever stored in a directory without an identity file.

    If the creation of a directory is interrupted, an empty first segment and a checkpoint without
    rows can remain. Raises CorruptData if there is anything else.
    """
    segments = [name for name in disk.names() if segment_lsn(name) is not None]
    with store.read() as view:
        has_rows = any(True for name in TABLES for _ in view.scan(name))
    if has_rows or not all(_is_unfinished(disk, name) for name in segments):
        what = "the checkpoint has data" if has_rows else "segments exist"
        raise CorruptData(
            f"the file is missing, but {what}. Probably a volume is not mounted, or only a part of"
            " the directory was copied. Mount the volume, or copy the whole directory again",
            file=IDENTITY_NAME,
        )


def _is_unfinished(disk: Files, name: str) -> bool:
    """Return True if the file is the empty first segment of an interrupted creation."""
    if segment_lsn(name) != 0:
        return False
    with closing(disk.open(name)) as file:
        return not file.read(0, file.size()).strip(b"\0")


def _recover(
    disk: Disk,
    store: Store,
    identity: Identity,
    limits: MachineLimits,
    *,
    segment_bytes: int,
    file_bytes: int,
    progress: Callable[[int, int], None] | None,
) -> Recovered:
    seed = checksum_seed(identity.id)
    state, position = load(store, limits)
    firsts = [lsn for name in disk.names() if (lsn := segment_lsn(name)) is not None]
    ends, dead = _classify_files(sorted(firsts), position)
    segments = Segments(disk, seed, ends)
    _check_listed(segments, position, seed)
    replay = _Replay(state, store, segments, position)
    tail = [first for first in segments.firsts if first >= segments.first_of(position.lsn)]
    data = _replay_tail(segments, tail, replay, seed, progress)
    # If the last segment is empty, and its file does not have the configured size, the file is
    # replaced, because a new segment would get the same name.
    is_empty = replay.lsn == tail[-1]
    capacity = segment_bytes if is_empty else len(data)
    is_replaced = replay.lsn > replay.watermark or capacity != len(data)
    # All checks have passed. Now everything that needs space is allocated.
    file_bytes = max(file_bytes, capacity)
    room = _begin_changes(disk, store, file_bytes, capacity if is_replaced else None)
    # From here on, files are changed.
    store.make_writable()
    _make_durable(disk, segments, tail, data[: replay.lsn - tail[-1]], room)
    if REWRITE_NAME in disk.names():
        disk.unlink(REWRITE_NAME)  # an earlier recovery was interrupted
    unlink_segments(disk, dead)
    return Recovered(
        state=state,
        index=replay.index,
        txn_history=replay.txn_history,
        segments=segments,
        seed=seed,
        position=replay.lsn,
        previous_crc=replay.previous_crc,
        capacity=capacity,
        replayed_frames=replay.frames,
        replayed_bytes=replay.lsn - position.lsn,
        generation=identity.generation,
    )


def _classify_files(
    firsts: list[int], position: CheckpointPosition
) -> tuple[dict[int, int], list[int]]:
    """Return the end of each segment to keep, and a list of the segments to remove.

    Raises CorruptData if a segment is missing.
    """
    listed = dict(position.segments)
    missing = listed.keys() - firsts
    tail = max((first for first in firsts if first <= position.lsn), default=None)
    if missing or tail is None:
        raise CorruptData("the segment is missing", file=segment_name(min(missing, default=0)))
    dead = [first for first in firsts if first < tail and first not in listed]
    # The last listed segment was open when the cut was made. If a different segment begins at the
    # checkpoint's LSN, the last listed segment ends at that LSN.
    ends = {first: min(end, position.lsn) for first, end in listed.items() if first < tail}
    live = [first for first in firsts if first >= tail]
    ends.update(zip(live, (*live[1:], OPEN_END), strict=True))
    return ends, dead


def _check_listed(segments: Segments, position: CheckpointPosition, seed: int) -> None:
    """Check the length and the first frame of each segment that the checkpoint lists.

    The LSN in the first frame must match the file's name. Raises CorruptData if a check fails.
    """
    for first, end in position.segments:
        size = segments.file(first).size()
        if end != OPEN_END and size < end - first:
            raise CorruptData("the segment is truncated", file=segment_name(first), position=size)
        if first < position.lsn:
            check_first(segments.file(first).read(0, FIRST_BYTES_MAX), first, seed)


def _replay_tail(
    segments: Segments,
    tail: list[int],
    replay: _Replay,
    seed: int,
    progress: Callable[[int, int], None] | None,
) -> bytes:
    """Replay the frames after the checkpoint. Return the bytes of the last segment."""
    data = b""
    for index, first in enumerate(tail):
        file = segments.file(first)
        data = file.read(0, file.size())
        check_capacity(data, first, seed)
        end = tail[index + 1] if index + 1 < len(tail) else None
        _replay_segment(data, first, end, replay, seed)
        if progress is not None:
            progress(index + 1, len(tail))
    # A segment gets its name only when everything before it is durable.
    replay.watermark = max(replay.watermark, tail[-1])
    return data


def _replay_segment(data: bytes, first: int, end: int | None, replay: _Replay, seed: int) -> None:
    if replay.lsn - first > len(data):
        raise CorruptData(
            "the journal ends before the checkpoint", file=segment_name(first), position=len(data)
        )
    frames = frames_of(data, first, start=replay.lsn, previous_crc=replay.previous_crc, seed=seed)
    try:
        while replay.lsn != end:
            replay.replay(next(frames))
    except TornTail as tear:
        if end is not None:
            raise CorruptData(
                tear.reason, file=segment_name(first), position=tear.lsn - first
            ) from tear
        check_torn(data, first, tear, seed)


class _Room(Struct, frozen=True):
    """An allocated file for a segment. If it is not new, it can contain any bytes."""

    file: File
    name: str
    is_new: bool


def _begin_changes(disk: Disk, store: Store, file_bytes: int, capacity: int | None) -> _Room | None:
    """Allocate what the start needs, and change no byte of an existing file.

    `file_bytes` is the size of the largest file that the server will create. Return a file for a
    segment of `capacity` bytes, or None if `capacity` is None. Raises DirectoryLocked, DiskFailed
    or OSError. Then everything that was created is removed again.
    """
    disk.begin_changes(file_bytes)
    try:
        store.begin_changes()
        # This is the last allocation, because it cannot be undone if it resizes a file.
        return None if capacity is None else _allocate_segment(disk, capacity)
    except BaseException:
        store.cancel_changes()
        disk.cancel_changes()
        raise


def _allocate_segment(disk: Disk, capacity: int) -> _Room:
    """Create a file of `capacity` bytes. If the disk is full, use the spare segment or the reserve.

    These are used as they are, and not removed to make room: if their space is not enough, they
    must not be changed. Raises DiskFailed if there is no room, or OSError.
    """
    names = disk.names()
    try:
        if REWRITE_NAME not in names:
            return _Room(disk.create(REWRITE_NAME, capacity), REWRITE_NAME, is_new=True)
        return _Room(disk.resize(REWRITE_NAME, capacity), REWRITE_NAME, is_new=False)
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
    for name in (SPARE_NAME, RESERVE_NAME):
        if name in names:
            try:
                return _Room(disk.resize(name, capacity), name, is_new=False)
            except OSError as error:
                if error.errno not in {*NO_ROOM, errno.EACCES, errno.EPERM}:
                    raise
    raise DiskFailed(f"the disk has no room for recovery; free {capacity} bytes and start again")


def _make_durable(
    disk: Disk, segments: Segments, tail: list[int], data: bytes, room: _Room | None
) -> None:
    """Sync the replayed segments. If there is a `room`, write the last segment again before that.

    `data` is the content of the last segment. Its file is not overwritten, because a loss of power
    during the write could damage its durable bytes. Raises DiskFailed or OSError.
    """
    if room is not None:
        if not room.is_new:
            data = data.ljust(room.file.size(), b"\0")
        segments.release(tail[-1])
        finish_file(disk, room.file, room.name, segment_name(tail[-1]), data)
    for first in tail:
        segments.file(first).sync()
    disk.sync_names()
