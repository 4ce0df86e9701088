"""A damaged directory is refused with a clear message and exit code, and is not changed."""

import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

from semel.journal.frame import BadFrame, checksum_seed, decode
from semel.journal.lmdb_store import LmdbStore
from semel.model.checksum import crc32c
from semel.model.commands import Append, Batch, Create
from semel.model.outcomes import Unreadable
from tests.crash.directory import (
    CHECKPOINT,
    IDENTITY,
    contents,
    copy,
    page_count,
    segments,
)
from tests.crash.process import Zygote
from tests.crash.protocol import Failure, Text
from tests.crash.script import SEGMENT_BYTES, Built, append, build, do, small

pytestmark = pytest.mark.crash

BOTH = pytest.mark.parametrize("state", ["closed", "killed"])


def assert_refused(zygote: Zygote, path: Path, *expected: str) -> None:
    """Expect exit code 65, stderr with the expected texts, and an unchanged journal."""
    before = journal_of(path)
    _, code, stderr = zygote.inspect(small(path))
    assert code == 65, f"{code}: {stderr}"
    for text in expected:
        assert text in stderr
    assert journal_of(path) == before, "the journal was changed"


def journal_of(path: Path) -> dict[str, bytes]:
    return {name: data for name, data in contents(path).items() if name != CHECKPOINT}


def truncate(path: Path, size: int) -> None:
    with path.open("r+b") as file:
        file.truncate(size)


def dump_of(zygote: Zygote, path: Path) -> object:
    process = zygote.serve(small(path))
    try:
        return process.link.ask("dump")
    finally:
        process.close()


# ---- frames --------------------------------------------------------------------------------------


def with_version(path: Path, at: int, seed: int, version: int) -> int:
    """Set the version of the frame at a position, fix its checksum, and return its LSN."""
    data = bytearray(path.read_bytes())
    lsn = int(path.stem) + at
    frame = decode(bytes(data), at, lsn=lsn, seed=seed)
    end = at + frame.end - frame.lsn
    data[at + 8] = version
    data[at + 4 : at + 8] = crc32c(bytes(data[at + 8 : end]), seed).to_bytes(4, "little")
    path.write_bytes(data)
    return lsn


def is_frame(path: Path, at: int, seed: int) -> bool:
    try:
        decode(path.read_bytes(), at, lsn=int(path.stem) + at, seed=seed)
    except BadFrame:
        return False
    return True


def seed_from(path: Path) -> int:
    return checksum_seed((path / IDENTITY).read_bytes()[-20:-4])


def test_a_frame_of_an_unknown_version_is_refused(
    zygote: Zygote, trial: Callable[[str], Path], originals: dict[str, Built]
) -> None:
    path = trial("killed")
    last = segments(path)[-1]
    with_version(last, originals["killed"].first - int(last.stem), seed_from(path), 9)
    assert_refused(zygote, path, "version 9", last.name)


def test_a_sealed_frame_of_an_unknown_version_refuses_only_the_reads_that_need_it(
    zygote: Zygote, trial: Callable[[str], Path]
) -> None:
    path = trial("closed")
    damaged = segments(path)[3]
    at = damaged.read_bytes().index(b'"json/') & -8
    while not is_frame(damaged, at, seed_from(path)):
        at -= 8
    with_version(damaged, at, seed_from(path), 9)
    process = zygote.serve(small(path))
    failure = process.link.ask("read", "json", None)
    assert isinstance(failure, Unreadable), failure
    assert "version 9" in failure.reason
    assert damaged.name in failure.reason
    assert isinstance(process.link.ask("read", "text", None), Text)
    append(process, "text", 9_999)
    process.close()


# ---- the checkpoint ------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("size", [1, 100, 4096, 6000, 8192, 12288, 20480, 30000])
def test_a_truncated_checkpoint_is_refused(
    zygote: Zygote, trial: Callable[[str], Path], state: str, size: int
) -> None:
    path = trial(state)
    truncate(path / CHECKPOINT, size)
    assert_refused(zygote, path, CHECKPOINT)


@BOTH
@pytest.mark.parametrize("first_page", [0, 1, 2])
@pytest.mark.parametrize("filler", ["zeros", "noise"])
def test_a_checkpoint_full_of_garbage_is_refused(
    zygote: Zygote, trial: Callable[[str], Path], state: str, first_page: int, filler: str
) -> None:
    path = trial(state)
    checkpoint = path / CHECKPOINT
    data = checkpoint.read_bytes()
    size = len(data) - 4096 * first_page
    noise = bytes(size) if filler == "zeros" else Random(7).randbytes(size)
    checkpoint.write_bytes(data[: 4096 * first_page] + noise)
    assert_refused(zygote, path, CHECKPOINT)


# rows: P04, P16, X18
@BOTH
@pytest.mark.parametrize("is_empty", [True, False])
def test_without_a_checkpoint_the_whole_journal_is_replayed(
    zygote: Zygote, trial: Callable[[str], Path], state: str, is_empty: bool
) -> None:
    expected = dump_of(zygote, trial(state))
    path = trial(state)
    assert segments(path)[0].stem.strip("0") == "", "this test needs the first segment"
    (path / CHECKPOINT).unlink()
    if is_empty:
        (path / CHECKPOINT).touch()
    assert dump_of(zygote, path) == expected


@BOTH
def test_without_a_checkpoint_a_journal_that_lost_its_beginning_is_refused(
    zygote: Zygote, trial: Callable[[str], Path], state: str
) -> None:
    path = trial(state)
    (path / CHECKPOINT).unlink()
    (path / CHECKPOINT).touch()
    segments(path)[0].unlink()
    assert_refused(zygote, path, "missing")


def test_a_sound_checkpoint_may_be_shorter_than_the_pages_it_counts(directory: Path) -> None:
    """LMDB never writes a page that one transaction allocated and freed."""
    path = directory / "short.mdb"
    store = LmdbStore(str(path))
    store.make_writable()
    random = Random(1)
    for number in range(500):
        writer = store.write()
        keys = [b"%d-%d" % (number, n) for n in range(random.choice((1, 10, 200)))]
        for key in keys:
            writer.put("keys", key, b"v" * random.choice((10, 500, 1500)))
        for key in keys if random.random() < 0.5 else keys[1:]:
            writer.delete("keys", key)
        writer.commit()
        if path.stat().st_size < page_count(path) * 4096:
            break
    else:
        pytest.skip("this LMDB wrote every page it allocated")
    store.close()
    store = LmdbStore(str(path))
    with store.read() as view:
        assert view.get("meta", b"position") is None
    store.close()


# ---- segments ------------------------------------------------------------------------------------


@BOTH
def test_every_missing_segment_is_noticed(
    zygote: Zygote, trial: Callable[[str], Path], originals: dict[str, Built], state: str
) -> None:
    for segment in segments(originals[state].path):
        path = trial(state)
        (path / segment.name).unlink()
        assert_refused(zygote, path)


@BOTH
def test_every_truncated_segment_is_noticed(
    zygote: Zygote, trial: Callable[[str], Path], originals: dict[str, Built], state: str
) -> None:
    for segment in segments(originals[state].path):
        for size in (0, 20, 56, 1_000):
            path = trial(state)
            truncate(path / segment.name, size)
            assert_refused(zygote, path, segment.name)


@pytest.mark.parametrize("size", [0, 20, 48, 56, 200, SEGMENT_BYTES - 8])
def test_a_truncated_segment_that_the_checkpoint_does_not_know_is_noticed(
    zygote: Zygote, directory: Path, size: int
) -> None:
    path = journal_ahead_of_its_checkpoint(zygote, directory)
    truncate(segments(path)[-1], size)
    assert_refused(zygote, path, segments(path)[-1].name)


def test_a_missing_segment_that_the_checkpoint_does_not_know_is_noticed(
    zygote: Zygote, directory: Path
) -> None:
    path = journal_ahead_of_its_checkpoint(zygote, directory)
    segments(path)[-1].unlink()
    assert_refused(zygote, path)


def journal_ahead_of_its_checkpoint(zygote: Zygote, directory: Path) -> Path:
    """Make a directory that looks killed after a new segment and before the next checkpoint."""
    path = directory / "ahead"
    shutil.rmtree(path, ignore_errors=True)
    build(zygote, path, is_closed=True)
    checkpoint = (path / CHECKPOINT).read_bytes()
    process = zygote.serve(small(path))
    known = len(segments(path))
    number = 10_000
    while len(segments(path)) == known:
        number += 1
        append(process, "text", number)
    append(process, "text", number + 1)
    process.link.ask("settle")
    process.close()
    (path / CHECKPOINT).write_bytes(checkpoint)
    dump_of(zygote, copy(path, directory / "sound"))
    return path


@BOTH
def test_swapped_segments_are_noticed(
    zygote: Zygote, trial: Callable[[str], Path], originals: dict[str, Built], state: str
) -> None:
    names = [segment.name for segment in segments(originals[state].path)]
    for one, other in pairwise(names):
        path = trial(state)
        (path / one).rename(path / "swap")
        (path / other).rename(path / one)
        (path / "swap").rename(path / other)
        assert_refused(zygote, path)


# ---- the identity --------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 31])
def test_a_truncated_identity_is_refused(
    zygote: Zygote, trial: Callable[[str], Path], size: int
) -> None:
    path = trial("closed")
    truncate(path / IDENTITY, size)
    assert_refused(zygote, path, IDENTITY)


def test_the_identity_of_another_directory_is_refused(
    zygote: Zygote, trial: Callable[[str], Path], originals: dict[str, Built]
) -> None:
    path = trial("killed")
    shutil.copyfile(originals["closed"].path / IDENTITY, path / IDENTITY)
    assert_refused(zygote, path)


def test_segments_without_an_identity_are_refused(
    zygote: Zygote, trial: Callable[[str], Path]
) -> None:
    path = trial("closed")
    (path / IDENTITY).rename(path / "elsewhere")
    _, code, stderr = zygote.inspect(small(path))
    assert (code, "identity" in stderr) == (65, True), stderr


# ---- files without data --------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("name", ["LOCK", "checkpoint.mdb-lock", "next.tmp", "reserve.tmp"])
def test_locks_and_spare_space_may_hold_anything(
    zygote: Zygote, trial: Callable[[str], Path], state: str, name: str
) -> None:
    expected = dump_of(zygote, trial(state))
    for noise in (b"", b"\xff" * 64, Random(7).randbytes(SEGMENT_BYTES)):
        path = trial(state)
        (path / name).write_bytes(noise)
        assert dump_of(zygote, path) == expected
        path = trial(state)
        (path / name).unlink(missing_ok=True)
        assert dump_of(zygote, path) == expected


# ---- a full segment ------------------------------------------------------------------------------


# rows: R24, R26, X11
@pytest.mark.parametrize("left", [0, 8, 40, 48, 56, 64])
def test_damage_to_an_acked_group_at_the_very_end_of_a_segment_is_corruption(
    zygote: Zygote, directory: Path, left: int
) -> None:
    path = directory / "brim"
    shutil.rmtree(path, ignore_errors=True)
    process = zygote.serve(small(path))
    do(process, Create("s", 0, "i", "text/plain"))
    for _ in range(3):
        do(process, Append("s", 0, "text/plain", Batch(b"x" * 2_000)))
    before = process.link.ask("settle").end
    # The frame has 48 + 8 bytes of header and meta, and 32 bytes of section.
    size = SEGMENT_BYTES - before - left - 48 - 32 - 8
    do(process, Append("s", 0, "text/plain", Batch(b"y" * size)))
    process.link.ask("settle")
    process.close()
    last = segments(path)[-1]
    data = bytearray(last.read_bytes())
    data[data.rindex(b"yyyy")] ^= 1
    last.write_bytes(data)
    # If the group did not fit, it begins the next segment, where a checkpoint may already cover it.
    # Then the read is refused. The group is never cut off.
    found, code, stderr = zygote.inspect(small(path))
    assert code == 65 or isinstance(found[0], Failure), f"{code}: {stderr}"
