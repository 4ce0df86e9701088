"""Verification finds every kind of damage with its position, and reports no false damage."""

import struct
from collections.abc import Callable
from random import Random
from typing import Any
from unittest.mock import patch

import msgspec
import pytest

from semel.broker.broker import Broker
from semel.journal.checkpoint import FILE_NAME, CheckpointPosition, commit_cut
from semel.journal.frame import (
    KINDS,
    SegmentStarted,
    WatermarkMoved,
    checksum_seed,
    decode,
    encode,
    encode_meta,
    frame_bytes,
)
from semel.journal.index import IndexBlock, block_key, decode_block, encode_block
from semel.journal.recovery import recover
from semel.journal.segments import OPEN_END, segment_lsn, segment_name
from semel.journal.store import seal, unseal
from semel.journal.verify import Finding, Report, verify
from semel.journal.writer import JournalWriter
from semel.machine import checks
from semel.machine.rows import NUMBER_KEY
from semel.model.commands import Append, Batch, Command, Create, Delete, ForkRequest, Trim
from semel.model.outcomes import Outcome, Refusal
from semel.testing import CRASH_MODES, VirtualDisk, VirtualStore

IDENTITY = bytes(range(16))
SEED = checksum_seed(IDENTITY)
SEGMENT_BYTES = 4096


class Directory:
    """A journal on virtual disks, driven step by step."""

    def __init__(self) -> None:
        self.disk = VirtualDisk()
        self.store = VirtualStore()
        self.now_ms = 0
        self.start()

    def start(self) -> None:
        recovered = recover(
            self.disk, self.store, fresh_identity=IDENTITY, segment_bytes=SEGMENT_BYTES
        )
        self.broker = Broker(recovered, monotonic_ms=lambda: 0, segment_bytes=SEGMENT_BYTES)
        self.segments = recovered.segments
        self.writer = JournalWriter(
            self.disk,
            segment=recovered.segments.firsts[-1],
            segment_bytes=SEGMENT_BYTES,
            reserve_bytes=0,
        )
        self.broker.set_room(self.writer.prepare())
        self.flush()

    def flush(self) -> None:
        while (group := self.broker.next_group()) is not None:
            self.writer.write(group)
            self.broker.written(group)
            if self.broker.needs_room:
                self.broker.set_room(self.writer.make_room())

    def do(self, command: Command) -> Outcome:
        outcomes: list[Outcome] = []
        self.broker.submit(command, outcomes.append)
        self.flush()
        return outcomes[0]

    def create(self, path: str, source: str | None = None, offset: int | None = None) -> Outcome:
        fork = None if source is None else ForkRequest(source, offset)
        return self.do(Create(path, self.now_ms, path, content_type="text/plain", fork=fork))

    def append(self, path: str, payload: bytes = b"x" * 100) -> Outcome:
        self.now_ms += 1
        return self.do(Append(path, self.now_ms, "text/plain", Batch(payload)))

    def checkpoint(self) -> None:
        cut = self.broker.cut()
        if cut is not None:
            self.flush()
            dead = commit_cut(self.store, cut)
            self.broker.cut_done(dead)
            for first in dead:
                self.disk.unlink(segment_name(first))
            self.disk.sync_names()

    def verify(self) -> Report:
        return verify(self.disk, self.store)

    def names(self) -> list[str]:
        return [name for name in self.disk.names() if segment_lsn(name) is not None]

    def edit(self, table: str, key: bytes, change: Callable[[bytes], bytes | None]) -> None:
        """Change or delete a row directly in the store."""
        writer = self.store.write()
        value = writer.get(table, key)
        assert value is not None
        changed = change(value)
        if changed is None:
            writer.delete(table, key)
        else:
            writer.put(table, key, changed)
        writer.commit()

    def rows(self, table: str) -> list[tuple[bytes, bytes]]:
        with self.store.read() as view:
            return list(view.scan(table))

    def truncate(self, name: str, size: int) -> None:
        data = self.disk.files()[name]
        self.disk.unlink(name)
        self.disk.create(name, size).write(0, [data[:size]])
        self.disk.sync_names()

    def frames(self, name: str) -> list[int]:
        """List the positions of a segment's frames."""
        data, first = self.disk.files()[name], segment_lsn(name)
        assert first is not None
        found = []
        at = 0
        while data[at : at + 4] == b"SML1":
            found.append(at)
            at = decode(data, at, lsn=first + at, seed=SEED).end - first
        return found


@pytest.fixture
def directory() -> Directory:
    """Return a directory with at least three segments and one checkpoint."""
    made = Directory()
    made.create("a")
    made.create("b")
    for number in range(60):
        made.append("ab"[number % 2])
        if number == 45:
            made.checkpoint()
    assert len(made.names()) >= 3
    return made


def damage(report: Report) -> list[Finding]:
    return [finding for finding in report.findings if not finding.is_note]


def flip(value: bytes) -> bytes:
    return value[:-6] + bytes([value[-6] ^ 1]) + value[-5:]


# ---------------------------------------------------------------- sound directories


def test_a_new_directory_is_sound() -> None:
    report = Directory().verify()
    assert (report.is_sound, report.findings, report.segment_count) == (True, [], 1)


def test_a_sound_directory_verifies_and_is_counted(directory: Directory) -> None:
    report = directory.verify()
    assert report.findings == []
    assert report.is_sound
    assert report.segment_count == len(directory.names())
    assert report.message_count == 60
    assert report.index_position_count == 46
    assert report.stream_count == 2
    assert report.end_lsn == directory.broker.end


def test_verification_changes_nothing(directory: Directory) -> None:
    before = directory.disk.digest(), directory.store.digest(), directory.disk.operations
    directory.verify()
    assert (directory.disk.digest(), directory.store.digest(), directory.disk.operations) == before


def test_progress_is_told_up_to_the_end(directory: Directory) -> None:
    told: list[tuple[str, int, int]] = []
    verify(directory.disk, directory.store, lambda *step: told.append(step))
    _, done, total = told[-1]
    assert done == total > 0


@pytest.mark.parametrize("seed", range(12))
def test_whatever_happens_short_of_damage_leaves_a_sound_directory(seed: int) -> None:
    rng = Random(seed)
    directory = Directory()
    paths: list[str] = []
    for step in range(250):
        path = rng.choice(paths) if paths else ""
        match rng.choices(
            ["create", "fork", "append", "trim", "delete", "checkpoint", "crash"],
            [4, 4, 60, 6, 3, 4, 2],
        )[0]:
            case "create":
                paths.append(f"s{step}")
                directory.create(paths[-1])
            case "fork" if path:
                if not isinstance(directory.create(f"f{step}", path), Refusal):
                    paths.append(f"f{step}")
            case "append" if path:
                directory.append(path, bytes(rng.randrange(300)))
            case "trim" if path:
                directory.do(Trim(path, directory.now_ms, rng.randrange(30)))
            case "delete" if path:
                directory.do(Delete(path, directory.now_ms))
                paths.remove(path)
            case "checkpoint":
                directory.checkpoint()
            case "crash":
                directory.disk.crash(rng, rng.choice(CRASH_MODES))
                directory.store.crash(rng)
                assert directory.verify().is_sound, f"seed {seed}, step {step}, before recovery"
                directory.start()
        report = directory.verify() if step % 10 == 0 else Report()
        assert damage(report) == [], f"seed {seed}, step {step}"


# ---------------------------------------------------------------- the journal


def test_a_flip_in_a_sealed_segment_is_found_with_file_and_byte(directory: Directory) -> None:
    name = directory.names()[0]
    at = directory.frames(name)[7]
    directory.disk.flip(name, at + 60, 3)
    report = directory.verify()
    assert not report.is_sound
    first, index = damage(report)
    assert (first.file, first.position) == (name, at)
    assert first.message.startswith(
        "the frame does not match its checksum; the next intact frame is at byte"
    )
    assert (index.file, index.position) == (name, at)
    streams = "(a) here, with offsets", "(b) here, with offsets"
    assert any(stream in index.message for stream in streams)


def test_two_flips_are_two_places(directory: Directory) -> None:
    name = directory.names()[1]
    positions = [directory.frames(name)[index] for index in (3, 9)]
    for at in positions:
        directory.disk.flip(name, at + 50, 0)
    found = {(finding.file, finding.position) for finding in damage(directory.verify())}
    assert found == {(name, at) for at in positions}


def test_a_flip_behind_the_checkpoint_that_a_watermark_covers_is_corruption(
    directory: Directory,
) -> None:
    name = directory.names()[-1]
    at = directory.frames(name)[-3]
    directory.disk.flip(name, at + 30, 1)
    assert [(f.file, f.position) for f in damage(directory.verify())] == [(name, at)]


def test_a_torn_tail_nothing_proves_is_only_a_note(directory: Directory) -> None:
    name = directory.names()[-1]
    at = directory.frames(name)[-1]  # the last watermark, which no later frame proves
    directory.disk.flip(name, at + 20, 1)
    report = directory.verify()
    assert report.is_sound
    (note,) = report.findings
    assert (note.file, note.position, note.is_note) == (name, at, True)
    assert "torn tail" in note.message


def test_a_tail_the_checkpoint_proves_is_corruption(directory: Directory) -> None:
    directory.checkpoint()
    name = directory.names()[-1]
    at = directory.frames(name)[-1]
    directory.disk.flip(name, at + 20, 1)
    (finding,) = damage(directory.verify())
    assert (finding.file, finding.position) == (name, at)
    assert "the checkpoint proves" in finding.message


def test_a_missing_segment_is_found(directory: Directory) -> None:
    name = directory.names()[0]
    directory.disk.unlink(name)
    (finding,) = damage(directory.verify())
    assert finding.file == name
    assert finding.message == "the segment is missing; 2 rows of the index refer to this segment"


def test_a_segment_missing_behind_the_checkpoint_is_found() -> None:
    directory = Directory()
    directory.create("a")
    for _ in range(60):
        directory.append("a")
    names = directory.names()
    directory.disk.unlink(names[1])
    first, *_ = damage(directory.verify())
    assert first.file == names[0]
    assert "where the segment ends" in first.message


def test_a_directory_without_segments_is_corrupt(directory: Directory) -> None:
    for name in directory.names():
        directory.disk.unlink(name)
    assert ("journal", "the journal has no segments") in [
        (finding.file, finding.message) for finding in damage(directory.verify())
    ]


@pytest.mark.parametrize("size", [0, 1000, SEGMENT_BYTES - 8])
@pytest.mark.parametrize("index", [0, -1])
def test_a_cut_segment_is_found_with_where_it_is_cut(
    directory: Directory, index: int, size: int
) -> None:
    name = directory.names()[index]
    directory.truncate(name, size)
    first, *_ = damage(directory.verify())
    assert (first.file, first.position) == (name, size)
    assert "truncated" in first.message or "empty" in first.message


def test_a_segment_of_another_directory_is_found(directory: Directory) -> None:
    name = directory.names()[0]
    meta = encode_meta(SegmentStarted(SEGMENT_BYTES))
    foreign = _encoded(SegmentStarted, meta, lsn=0, watermark=0, previous_crc=0, seed=SEED + 1)
    directory.disk.overwrite(name, 0, foreign)
    first, *_ = damage(directory.verify())
    assert (first.file, first.position) == (name, 0)


def _encoded(kind: type, meta: bytes, **header: Any) -> bytes:
    length = frame_bytes(meta, ())
    frame = encode(KINDS[kind], meta, (), length=length, time_ms=0, **header)
    return b"".join(frame.buffers)


def _overwrite_last(directory: Directory, watermark: int, previous_crc: int | None = None) -> int:
    """Replace the last frame by a valid watermark frame with the given values."""
    name = directory.names()[-1]
    first = segment_lsn(name)
    assert first is not None
    before, at = directory.frames(name)[-2:]
    crc = decode(directory.disk.files()[name], before, lsn=first + before, seed=SEED).crc
    data = _encoded(
        WatermarkMoved,
        encode_meta(WatermarkMoved()),
        lsn=first + at,
        watermark=watermark,
        previous_crc=crc if previous_crc is None else previous_crc,
        seed=SEED,
    )
    directory.disk.overwrite(name, at, data)
    return at


def test_a_watermark_that_goes_back_is_found(directory: Directory) -> None:
    at = _overwrite_last(directory, watermark=8)
    (finding,) = damage(directory.verify())
    assert (finding.position, finding.message) == (
        at,
        "the watermark 8 is lower than an earlier watermark",
    )


def test_a_watermark_from_the_future_is_found(directory: Directory) -> None:
    at = _overwrite_last(directory, watermark=1 << 40)
    (finding,) = damage(directory.verify())
    assert finding.position == at
    assert "is greater than the frame's LSN" in finding.message


def test_extras_no_engine_would_have_stored_are_found(directory: Directory) -> None:
    with patch.object(checks, "find_extras_fault", lambda *_: None):
        directory.do(Append("a", 0, "text/plain", Batch(b"x", extras=bytes(4))))
    (finding,) = damage(directory.verify())
    assert "unknown columns" in finding.message


def test_a_broken_chain_is_found_and_what_follows_is_read(directory: Directory) -> None:
    directory.checkpoint()
    end = directory.verify().end_lsn
    at = _overwrite_last(directory, watermark=directory.broker.end - 56, previous_crc=1)
    findings = damage(directory.verify())
    assert findings[0].position == at
    assert "does not contain the checksum of the previous frame" in findings[0].message
    assert directory.verify().end_lsn == end


def test_what_a_checkpoint_gave_up_but_is_still_there_is_a_note(directory: Directory) -> None:
    name = directory.names()[0]
    data = directory.disk.files()[name]
    for path in ("a", "b"):
        directory.do(Delete(path, directory.now_ms))
    directory.checkpoint()
    directory.disk.create(name, len(data)).write(0, [data])
    report = directory.verify()
    assert report.is_sound
    assert [(note.file, note.is_note) for note in report.findings] == [(name, True)]


def test_a_sealed_segment_listed_as_open_is_a_note() -> None:
    directory = Directory()
    directory.create("a")
    for _ in range(30):
        directory.append("a")
    directory.checkpoint()
    key = b"position"
    value = unseal("meta", key, dict(directory.rows("meta"))[key])
    position = msgspec.msgpack.decode(value, type=CheckpointPosition)
    (first, _), *others = position.segments
    listed = msgspec.structs.replace(position, segments=((first, OPEN_END), *others))
    directory.edit("meta", key, lambda _: seal("meta", key, msgspec.msgpack.encode(listed)))
    report = directory.verify()
    assert report.is_sound
    (note,) = report.findings
    assert (note.file, note.is_note) == (segment_name(first), True)
    assert "still lists this segment as open" in note.message


def test_every_flip_in_the_written_journal_is_noticed(directory: Directory) -> None:
    directory.checkpoint()
    rng = Random(5)
    clean = directory.disk
    for _ in range(60):
        name = rng.choice(directory.names())
        frames = directory.frames(name)
        at = rng.randrange(frames[-1])
        directory.disk = clean.copy()
        directory.disk.flip(name, at, rng.randrange(8))
        report = directory.verify()
        assert not report.is_sound, f"{name} at {at}"
        hit = max(position for position in frames if position <= at)
        assert (name, hit) in {(f.file, f.position) for f in damage(report)}
        directory.disk = clean


# ---------------------------------------------------------------- identity


def test_a_damaged_identity_is_found(directory: Directory) -> None:
    directory.disk.flip("identity", 14, 0)
    assert [f.file for f in damage(directory.verify())] == ["identity"]


def test_a_missing_identity_is_found(directory: Directory) -> None:
    directory.disk.unlink("identity")
    assert [f.file for f in damage(directory.verify())] == ["identity"]


# ---------------------------------------------------------------- the checkpoint


@pytest.mark.parametrize("table", ["streams", "tails", "segments", "index"])
def test_a_flip_in_a_row_is_found_with_table_and_key(directory: Directory, table: str) -> None:
    key, _ = directory.rows(table)[0]
    directory.edit(table, key, flip)
    report = directory.verify()
    assert not report.is_sound
    named = [f for f in damage(report) if f"table {table}, row {key.hex()}" in f.message]
    assert named
    assert all(finding.file == FILE_NAME for finding in named)


@pytest.mark.parametrize("key", [b"position", b"counters", b"digest/streams"])
def test_a_flip_in_a_meta_row_is_found(directory: Directory, key: bytes) -> None:
    directory.edit("meta", key, flip)
    messages = [finding.message for finding in damage(directory.verify())]
    assert f"table meta, row {key.hex()}: the row does not match its checksum" in messages


@pytest.mark.parametrize("key", [b"position", b"counters"])
def test_a_lost_meta_row_is_found(directory: Directory, key: bytes) -> None:
    directory.edit("meta", key, lambda _: None)
    assert any("is missing" in finding.message for finding in damage(directory.verify()))


@pytest.mark.parametrize("table", ["streams", "tails", "segments"])
def test_a_lost_row_is_found_by_the_digest(directory: Directory, table: str) -> None:
    key, _ = directory.rows(table)[0]
    directory.edit(table, key, lambda _: None)
    messages = [finding.message for finding in damage(directory.verify())]
    assert f"table {table} has a missing, surplus or outdated row" in messages


def test_the_journal_is_read_even_if_the_checkpoint_is_not(directory: Directory) -> None:
    directory.edit("meta", b"position", flip)
    report = directory.verify()
    assert report.message_count == 60
    assert report.checkpoint_lsn is None


def test_a_checkpoint_made_at_another_frame_is_found(directory: Directory) -> None:
    twin = directory.store.copy()
    directory.append("a")
    other = Directory()
    other.create("a")
    other.create("b")
    for number in range(46):
        other.append("ab"[number % 2], b"y" * 100)
    other.checkpoint()
    report = verify(other.disk, twin)
    assert any(
        f.message == "the checkpoint's checksum does not match the last frame before the checkpoint"
        for f in damage(report)
    )


# ---------------------------------------------------------------- the index


def _edit_chunk(directory: Directory, change: Callable[[Any], None]) -> bytes:
    """Change the first index row and renew its checksum, so that only its content is wrong."""
    key, sealed = directory.rows("index")[0]
    chunk = decode_block(key, sealed)
    change(chunk)
    directory.edit("index", key, lambda _: encode_block(1, chunk))
    return key


def _point(chunk: IndexBlock, index: int, position: int) -> None:
    struct.pack_into("<I", chunk.entries, 8 * index + 4, position)


def test_an_index_row_that_points_elsewhere_is_found(directory: Directory) -> None:
    def swap(chunk: IndexBlock) -> None:
        _point(chunk, 2, chunk.positions[2] + 8)

    _edit_chunk(directory, swap)
    (finding,) = damage(directory.verify())
    wrong = decode_block(*directory.rows("index")[0]).positions[2]
    assert (finding.file, finding.position) == (directory.names()[0], wrong)
    assert "the index lists a frame of stream 1 (a) here, with offsets 2 to 2" in finding.message


def test_an_index_row_that_points_at_another_streams_frame_is_found(directory: Directory) -> None:
    other = decode_block(*next(row for row in directory.rows("index") if row[0][7] == 2))

    def swap(chunk: IndexBlock) -> None:
        _point(chunk, 3, other.positions[3])

    _edit_chunk(directory, swap)
    (finding,) = damage(directory.verify())
    assert "offsets 3 to 3" in finding.message


def test_a_hole_in_the_index_is_found(directory: Directory) -> None:
    key, sealed = directory.rows("index")[1]
    chunk = decode_block(key, sealed)
    directory.edit("index", key, lambda _: None)
    messages = [finding.message for finding in damage(directory.verify())]
    hole = f"stream 1 (a): the index lacks offsets {chunk.first} to {chunk.next - 1}"
    assert hole in messages


def test_an_index_that_ends_before_the_tail_is_found(directory: Directory) -> None:
    key, sealed = [row for row in directory.rows("index") if row[0][7] == 2][-1]
    chunk = decode_block(key, sealed)
    directory.edit("index", key, lambda _: None)
    messages = [finding.message for finding in damage(directory.verify())]
    assert f"stream 2 (b): the index lacks offsets {chunk.first} to 22" in messages


def test_a_stream_without_any_index_row_is_found(directory: Directory) -> None:
    for key, _ in directory.rows("index"):
        if key.startswith(NUMBER_KEY.encode(1)):
            directory.edit("index", key, lambda _: None)
    messages = [finding.message for finding in damage(directory.verify())]
    assert "stream 1 (a): the index lacks offsets 0 to 22" in messages


def test_an_index_row_with_an_invalid_key_is_found(directory: Directory) -> None:
    writer = directory.store.write()
    writer.put("index", NUMBER_KEY.encode(1) + b"short", bytes(40))
    writer.commit()
    found = [finding.message for finding in verify(directory.disk, directory.store).findings]
    assert any("table index" in line and "the key is invalid" in line for line in found), found


def test_index_rows_of_an_unknown_stream_are_found(directory: Directory) -> None:
    writer = directory.store.write()
    chunk = decode_block(*directory.rows("index")[0])
    writer.put("index", block_key(9, 0), encode_block(9, chunk))
    writer.commit()
    assert any(
        "1 rows belong to a stream that does not exist" in f.message
        for f in damage(directory.verify())
    )


def test_an_index_row_out_of_order_is_found(directory: Directory) -> None:
    def swap(chunk: IndexBlock) -> None:
        struct.pack_into("<I", chunk.entries, 8, 0)

    key = _edit_chunk(directory, swap)
    messages = [finding.message for finding in damage(directory.verify())]
    assert any(key.hex() in message and "invalid entries" in message for message in messages)


# ---------------------------------------------------------------- the report


def test_a_report_stays_small_and_counts_what_it_leaves_out() -> None:
    report = Report()
    for number in range(1_500):
        report.corrupt("file", number, "bad")
    assert (len(report.findings), report.omitted_count) == (1_000, 500)
    assert Report().findings == []
