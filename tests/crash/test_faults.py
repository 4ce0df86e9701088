"""Faults at run time: the exit code is right, and nothing acked is lost."""

import asyncio
import errno
import os
import shutil
import signal
import time
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from semel.broker.engine import Engine
from semel.broker.settings import Settings
from semel.model.commands import Append, Batch, Create, Delete, ProducerTag, Trim
from semel.model.outcomes import (
    Appended,
    Created,
    Deleted,
    DiskFull,
    Duplicate,
    NotFound,
    Outcome,
    Trimmed,
)
from tests.crash.conftest import Report
from tests.crash.directory import checkpoints, segments
from tests.crash.load import Load
from tests.crash.mounts import mount, small_disk
from tests.crash.process import Process, Zygote, start_alone
from tests.crash.protocol import Hangup, Job, JournalPosition, Text
from tests.crash.script import append, build, small

pytestmark = pytest.mark.crash

KIB = 1024


def write(process: Process, path: str, seq: int, size: int = 3_000) -> Outcome:
    """Append the batch of producer `p` with this sequence number."""
    batch = Batch(f"{path}-{seq}-".encode() + b"x" * size)
    tag = ProducerTag("p", seq, seq, epoch=1)
    outcome: Outcome = process.link.ask(
        "submit", Append(path, 0, "text/plain", batch, producer=tag)
    )
    return outcome


def create(process: Process, path: str) -> None:
    outcome = process.link.ask("submit", Create(path, 0, "i", "text/plain"))
    assert isinstance(outcome, Created), outcome


def messages(process: Process, path: str) -> list[bytes]:
    found: list[bytes] = []
    while True:
        text = process.link.ask("read", path, len(found))
        assert isinstance(text, Text), text
        found.extend(text.messages)
        if len(found) == text.tail:
            return found


def assert_written(process: Process, path: str, count: int) -> None:
    """Expect the acked messages once and in order; one more without an ack may follow."""
    found = [message.split(b"-")[1] for message in messages(process, path)]
    assert found in (
        [b"%d" % seq for seq in range(count)],
        [b"%d" % seq for seq in range(count + 1)],
    )


# ---- one directory, one process ------------------------------------------------------------------


def test_a_second_process_is_turned_away_while_the_first_goes_on(
    zygote: Zygote, tmp_path: Path
) -> None:
    job = small(tmp_path / "data")
    first = zygote.serve(job)
    create(first, "s")
    assert isinstance(write(first, "s", 0), Appended)
    code, stderr = zygote.refusal(job)
    assert (code, "another process" in stderr) == (73, True), stderr
    assert isinstance(write(first, "s", 1), Appended)
    assert_written(first, "s", 2)
    first.close()
    second = zygote.serve(job)
    assert_written(second, "s", 2)
    second.close()


def test_a_stopped_process_still_owns_its_directory_and_goes_on_when_continued(
    zygote: Zygote, tmp_path: Path
) -> None:
    job = Job("serve", str(tmp_path / "data"), checkpoint_interval_ms=25)
    load = Load(Random(1))
    process = zygote.serve(job)
    load.create_streams(process.link)
    load.run(process.link, 0.1)
    process.signal(signal.SIGSTOP)
    stopped = time.monotonic()
    code, stderr = zygote.refusal(job)
    assert (code, "another process" in stderr) == (73, True), stderr
    time.sleep(max(0.0, stopped + 2 - time.monotonic()))
    process.signal(signal.SIGCONT)
    load.run(process.link, 0.1)
    load.finish(process.link)
    load.verify(process.link)
    process.link.ask("close")
    assert process.wait() == 0
    process.close()


def test_a_closed_directory_has_nothing_to_replay(zygote: Zygote, tmp_path: Path) -> None:
    path = tmp_path / "data"
    build(zygote, path, is_closed=True)
    process = zygote.start(small(path))
    assert process.ready().replayed_frames == 0
    before = process.link.ask("dump")
    process.link.ask("close")
    assert process.wait() == 0
    process.close()
    process = zygote.start(small(path))
    assert process.ready().replayed_frames == 0
    assert process.link.ask("dump") == before
    process.close()


# rows: P16, X22
def test_a_killed_directory_is_replayed_to_the_same_state_every_time(
    zygote: Zygote, tmp_path: Path
) -> None:
    path = tmp_path / "data"
    build(zygote, path, is_closed=False)
    dumps = []
    for _ in range(3):
        process = zygote.start(small(path))
        assert process.ready().replayed_frames > 0
        dumps.append(process.link.ask("dump"))
        process.close()
    assert dumps[0] == dumps[1] == dumps[2]


# ---- the disk fails ------------------------------------------------------------------------------


# rows: P20, P25
@pytest.mark.parametrize("at_call", [1, 2, 5])
@pytest.mark.parametrize(
    ("operation", "code", "expected"),
    [
        ("sync", errno.EIO, "Input/output error"),
        ("sync", errno.ENOSPC, "No space left"),
        ("write", errno.EIO, "Input/output error"),
        ("write", errno.ENOSPC, "No space left"),
        ("short", 0, "short write"),
    ],
)
def test_a_failing_disk_ends_the_process_and_loses_nothing_acked(
    zygote: Zygote, tmp_path: Path, operation: str, code: int, expected: str, at_call: int
) -> None:
    job = Job("serve", str(tmp_path / "data"), is_faulty=True)
    process = zygote.serve(job)
    create(process, "s")
    for seq in range(3):
        assert isinstance(write(process, "s", seq), Appended)
    process.link.ask("settle")
    process.link.ask("arm", operation, at_call, code)
    acked = write_until_the_end(process, 3)
    assert process.wait() == 74
    assert expected in process.stderr()
    process.close()
    process = zygote.serve(job)
    assert_written(process, "s", acked)
    # Send the message without a response again: it must be stored once.
    assert isinstance(write(process, "s", acked), Appended | Duplicate)
    assert len(messages(process, "s")) == acked + 1
    process.close()


def write_until_the_end(process: Process, seq: int) -> int:
    """Append one by one until the process ends; return how many messages were acked."""
    numbers = {}
    for number in range(seq, seq + 100):
        tag = ProducerTag("p", number, number, epoch=1)
        batch = Batch(f"s-{number}-".encode() + b"x" * 3_000)
        sent = process.link.send("submit", Append("s", 0, "text/plain", batch, producer=tag))
        numbers[sent] = number
        for answered, outcome in process.link.receive(10):
            assert isinstance(outcome, Appended), outcome
            seq = numbers[answered] + 1
        if not process.link.is_open:
            break
    return seq


# rows: P20, P25
@pytest.mark.parametrize("at_call", [1, 2, 3, 5, 8])
def test_a_sync_the_kernel_fails_ends_the_process_and_loses_nothing_acked(
    zygote: Zygote, tmp_path: Path, at_call: int
) -> None:
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    job = Job("serve", str(tmp_path / "data"))
    process = zygote.serve(job)
    create(process, "s")
    process.close()
    inject = f"inject=fdatasync:error=EIO:when={at_call}+"
    # strace counts the calls of each thread. The first ones may already fail in recovery.
    process = start_alone(job, ["strace", "-f", "-qq", "-o", "/dev/null", "-e", inject])
    acked = 0
    with suppress(Hangup):
        process.ready()
        acked = write_until_the_end(process, 0)
    assert process.wait() == 74
    assert "Input/output error" in process.stderr()
    process.close()
    assert acked > 0 or at_call <= 3
    process = zygote.serve(job)
    assert_written(process, "s", acked)
    process.close()


# ---- no disk space -------------------------------------------------------------------------------


@pytest.mark.root
def test_a_read_only_directory_is_refused(zygote: Zygote, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 4 * KIB * KIB) as disk:
        job = small(disk / "data")
        process = zygote.serve(job)
        create(process, "s")
        process.link.ask("close")
        process.wait()
        process.close()
        mount(disk, "-o", "remount,ro")
        code, stderr = zygote.refusal(job)
        assert (code, "Read-only" in stderr) == (74, True), stderr
        code, stderr = zygote.refusal(small(disk / "new"))
        assert (code, "Read-only" in stderr) == (74, True), stderr


def fill_up(process: Process, path: str, seq: int) -> int:
    """Append until the disk is full; return how many messages were acked."""
    for number in range(seq, seq + 1_000):
        outcome = write(process, path, number)
        if isinstance(outcome, DiskFull):
            return number
        assert isinstance(outcome, Appended), outcome
    raise AssertionError("the disk never filled up")


# rows: D34
@pytest.mark.root
def test_a_full_disk_refuses_growth_and_nothing_else_and_recovers_by_itself(
    zygote: Zygote, tmp_path: Path, figure: Report
) -> None:
    with small_disk(tmp_path / "disk", 1024 * KIB) as disk:
        job = Job(
            "serve",
            str(disk / "data"),
            segment_bytes=32 * KIB,
            reserve_bytes=128 * KIB,
            checkpoint_interval_ms=50,
        )
        process = zygote.serve(job)
        for path in ("a", "b", "c", "d"):
            create(process, path)
        kept = 0
        for kept in range(5):
            assert isinstance(write(process, "a", kept), Appended)
            for path in ("c", "d"):
                assert isinstance(write(process, path, kept), Appended)
        filled = fill_up(process, "b", 0)
        _serve_while_full(process, filled)
        # The same holds after a restart.
        process.close()
        process = zygote.serve(job)
        assert_written(process, "a", 5)
        assert_written(process, "b", filled)
        _serve_while_full(process, filled)
        # After a delete, the checkpoint removes the segments of the deleted stream.
        assert process.link.ask("submit", Delete("b", 0)) == Deleted(is_soft=False)
        deadline = time.monotonic() + 10
        seq = 5
        while isinstance(outcome := write(process, "a", seq), DiskFull):
            assert time.monotonic() < deadline, "appends are still refused"
            time.sleep(0.05)
        assert isinstance(outcome, Appended)
        again = fill_up(process, "a", seq + 1)
        assert again > filled // 2
        process.close()
        process = zygote.serve(job)
        assert_written(process, "a", again)
        assert isinstance(process.link.ask("read", "b", None), NotFound)
        process.close()
    figure(f"full disk: {filled} appends, then DiskFull; after a delete {again - 6} more")


def _serve_while_full(process: Process, filled: int) -> None:
    """Check everything that must work while the disk is full."""
    position: JournalPosition = process.link.ask("settle")
    assert position.is_full
    assert isinstance(write(process, "b", filled), DiskFull)
    duplicate = write(process, "b", filled - 1)
    assert isinstance(duplicate, Duplicate)
    assert duplicate.first_offset == filled - 1
    assert isinstance(process.link.ask("submit", Trim("a", 0, 0)), Trimmed)
    assert isinstance(process.link.ask("submit", Append("c", 0, close=True)), Appended)
    assert isinstance(process.link.ask("submit", Delete("d", 0)), Deleted | NotFound)
    assert len(messages(process, "a")) == 5


@pytest.mark.root
def test_a_checkpoint_without_room_is_dropped_and_made_later(
    zygote: Zygote, tmp_path: Path
) -> None:
    with small_disk(tmp_path / "disk", 2048 * KIB) as disk:
        path = disk / "data"
        job = Job("serve", str(path), segment_bytes=256 * KIB)
        process = zygote.serve(job)
        create(process, "s")
        process.link.ask("checkpoint")
        with (disk / "filler").open("wb", buffering=0) as filler:
            _fill_disk(filler.fileno())
        for n in range(60):
            create(process, f"t-{n}")
        before = checkpoints(path)
        process.link.ask("checkpoint")
        assert checkpoints(path) == before, "the disk was not full"
        assert isinstance(write(process, "s", 0), Appended)
        process.link.ask("checkpoint")
        assert checkpoints(path) == before
        (disk / "filler").unlink()
        process.link.ask("checkpoint")
        assert checkpoints(path) == before + 1
        expected = process.link.ask("dump")
        process.close()
        process = zygote.start(job)
        assert process.ready().replayed_frames <= 2
        assert process.link.ask("dump") == expected
        process.close()


@pytest.mark.root
@pytest.mark.parametrize("left_bytes", [4 * KIB, 12 * KIB, 40 * KIB, 100 * KIB])
def test_a_checkpoint_on_a_nearly_full_disk_never_ends_the_process(
    zygote: Zygote, tmp_path: Path, left_bytes: int
) -> None:
    """LMDB reports a short write as an I/O error; it must be handled as a full disk."""
    with small_disk(tmp_path / "disk", 4096 * KIB) as disk:
        path = disk / "data"
        job = Job("serve", str(path), segment_bytes=256 * KIB)
        process = zygote.serve(job)
        with (disk / "filler").open("wb", buffering=0) as filler:
            _fill_disk(filler.fileno())
            os.ftruncate(filler.fileno(), os.fstat(filler.fileno()).st_size - left_bytes)
        for n in range(400):
            create(process, f"t-{n}")
        process.link.ask("checkpoint")
        expected = process.link.ask("dump")
        process.close()
        process = zygote.serve(job)
        assert process.link.ask("dump") == expected
        (disk / "filler").unlink()
        before = checkpoints(path)
        create(process, "after")
        process.link.ask("checkpoint")
        assert checkpoints(path) == before + 1
        process.close()


@pytest.mark.root
def test_a_checkpoint_without_room_is_given_the_reserve(tmp_path: Path) -> None:
    async def story(disk: Path) -> None:
        settings = Settings(
            segment_bytes=1024 * KIB, reserve_bytes=2048 * KIB, checkpoint_interval_ms=100
        )
        engine = await Engine.open(str(disk / "data"), settings)
        with (disk / "filler").open("wb", buffering=0) as filler:
            _fill_disk(filler.fileno())
        for n in range(500):
            await engine.execute(Create(f"s-{n}", engine.clock.now_ms(), "i"))
        before = engine.checkpoint_count
        for _ in range(100):
            await asyncio.sleep(0.1)
            if engine.checkpoint_count > before:
                break
        assert engine.checkpoint_count > before
        (disk / "filler").unlink()
        for _ in range(100):
            await asyncio.sleep(0.1)
            if not engine.broker.is_full:
                break
        made = await engine.execute(Create("after", engine.clock.now_ms(), "i"))
        assert isinstance(made, Created)
        await engine.close()

    with small_disk(tmp_path / "disk", 16 * 1024 * KIB) as disk:
        asyncio.run(story(disk))


def _fill_disk(descriptor: int) -> None:
    for size in (64 * KIB, 4 * KIB):
        try:
            while os.write(descriptor, bytes(size)) == size:
                pass
        except OSError as error:
            assert error.errno == errno.ENOSPC


@pytest.mark.root
@pytest.mark.parametrize("size_bytes", [8 * KIB, 64 * KIB, 128 * KIB])
def test_a_new_directory_without_room_is_a_failed_disk_and_not_corrupt(
    zygote: Zygote, tmp_path: Path, size_bytes: int
) -> None:
    with small_disk(tmp_path / "disk", size_bytes) as disk:
        job = Job("serve", str(disk / "data"), segment_bytes=256 * KIB)
        code, stderr = zygote.refusal(job)
        assert code == 74, stderr
        assert "No space left" in stderr or "no room" in stderr


def test_a_directory_that_was_hardly_begun_begins_again(zygote: Zygote, tmp_path: Path) -> None:
    path = tmp_path / "data"
    for _ in range(3):
        process = zygote.start(small(path))
        process.close()
    process = zygote.serve(small(path))
    create(process, "text")
    append(process, "text", 0)
    assert len(segments(path)) == 1
    process.close()
