from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.testing import CRASH_MODES, SECTOR_BYTES, CrashMode, VirtualDisk
from tests.unit.testing.builders import SIZE, a_disk_with_a_file, outcomes

ANY_MODE = pytest.mark.parametrize("mode", CRASH_MODES)

# Bytes


@ANY_MODE
def test_what_was_synced_survives_every_crash(mode: CrashMode) -> None:
    disk, file = a_disk_with_a_file()
    file.write(100, [b"x" * 1000])
    file.sync()
    assert all(files == disk.files() for files in outcomes(disk, mode))


@ANY_MODE
def test_a_crash_leaves_nothing_half_open(mode: CrashMode) -> None:
    disk, file = a_disk_with_a_file()
    file.write(0, [b"x" * 1000])
    disk.create("b", 10)
    disk.crash(Random(3), mode)
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.sync()
    assert all(files == disk.files() for files in outcomes(disk, "all_dropped", 5))
    assert all(files == disk.files() for files in outcomes(disk, "garbage", 5))


def test_there_are_eight_crash_modes_and_no_ninth() -> None:
    assert len(CRASH_MODES) == 8
    with pytest.raises(ValueError, match="no such crash mode"):
        VirtualDisk().crash(Random(1), "gently")  # type: ignore[arg-type]


def test_all_kept_keeps_and_all_dropped_drops() -> None:
    disk, file = a_disk_with_a_file()
    before = disk.files()
    file.write(7, [b"abc"])
    assert outcomes(disk, "all_kept", 1) == [disk.files()]
    assert outcomes(disk, "all_dropped", 1) == [before]


def test_sequential_keeps_a_prefix_whose_last_write_may_be_torn() -> None:
    disk, file = a_disk_with_a_file()
    for position in (0, 4, 8):
        file.write(position, [b"abcd"])
    found = {files["a"][:12].rstrip(b"\0") for files in outcomes(disk, "sequential")}
    assert found == {b"abcdabcdabcd"[:length] for length in range(13)}


def test_reordered_may_keep_the_later_write_alone() -> None:
    disk, file = a_disk_with_a_file()
    file.write(0, [b"ab"])
    file.write(SECTOR_BYTES, [b"cd"])
    found = {(f["a"][:2], f["a"][SECTOR_BYTES:][:2]) for f in outcomes(disk, "reordered")}
    zero = b"\0\0"
    assert {(b"ab", b"cd"), (b"ab", zero), (zero, b"cd"), (zero, zero)} < found


def test_torn_bytes_cuts_anywhere_but_never_keeps_a_lone_write_whole() -> None:
    disk, file = a_disk_with_a_file()
    file.write(0, [b"abcd"])
    found = {files["a"][:4].rstrip(b"\0") for files in outcomes(disk, "torn_bytes")}
    assert found == {b"", b"a", b"ab", b"abc"}


def test_torn_sectors_keeps_or_loses_whole_sectors() -> None:
    disk, file = a_disk_with_a_file()
    file.write(100, [b"x" * 1000])
    ends = (100, SECTOR_BYTES, 2 * SECTOR_BYTES, 1100)
    found = set()
    for files in outcomes(disk, "torn_sectors"):
        parts = [files["a"][start:end] for start, end in pairwise(ends)]
        assert all(len(set(part)) == 1 for part in parts)
        found.add(tuple(part[0] != 0 for part in parts))
    assert len(found) == 2**3 - 1


def test_garbage_stays_inside_the_write() -> None:
    disk, file = a_disk_with_a_file()
    file.write(100, [b"x" * 1000])
    for files in outcomes(disk, "garbage", 20):
        assert files["a"][:100] == bytes(100)
        assert files["a"][1100:] == bytes(SIZE - 1100)
        assert set(files["a"][100:1100]) - {0, ord("x")}


def test_zeros_grow_a_file_without_its_bytes() -> None:
    disk, file = a_disk_with_a_file()
    file.write(SIZE, [b"abc"])
    assert outcomes(disk, "zeros", 1) == [{"a": bytes(SIZE + 3)}]


@ANY_MODE
def test_the_same_seed_gives_the_same_disk(mode: CrashMode) -> None:
    def ruin(seed: int) -> str:
        disk, file = a_disk_with_a_file()
        for position in range(0, SIZE, 300):
            file.write(position, [b"x" * 400])
            disk.create(f"f{position}", 5)
        disk.crash(Random(seed), mode)
        return disk.digest()

    assert ruin(11) == ruin(11)
    assert mode in {"all_kept", "all_dropped"} or len({ruin(seed) for seed in range(8)}) > 1


@st.composite
def histories(draw: st.DrawFn) -> tuple[bytes, list[tuple[int, bytes]], list[tuple[int, bytes]]]:
    write = st.tuples(st.integers(0, 1500), st.binary(min_size=1, max_size=700))
    writes = st.lists(write, max_size=5)
    return draw(st.binary(max_size=1500)), draw(writes), draw(writes)


@given(histories(), st.sampled_from(CRASH_MODES), st.integers(0, 2**32))
def test_a_crash_touches_only_bytes_of_unsynced_writes(
    history: tuple[bytes, list[tuple[int, bytes]], list[tuple[int, bytes]]],
    mode: CrashMode,
    seed: int,
) -> None:
    first, synced, unsynced = history
    disk = VirtualDisk()
    file = disk.create("a", 100)
    disk.sync_names()
    file.write(0, [first])
    for position, data in synced:
        file.write(position, [data])
    file.sync()
    before = disk.files()["a"]
    touched = set(range(len(before), 4000))
    for position, data in unsynced:
        file.write(position, [data])
        touched |= set(range(position, position + len(data)))
    disk.crash(Random(seed), mode)
    after = disk.files()["a"]
    assert len(after) >= len(before)
    assert all(after[i] == before[i] for i in range(len(before)) if i not in touched)


# Names


def test_a_created_name_lasts_only_after_sync_names() -> None:
    disk = VirtualDisk()
    disk.create("a", 10)
    assert {tuple(files) for files in outcomes(disk, "reordered")} == {(), ("a",)}
    disk.sync_names()
    assert {tuple(files) for files in outcomes(disk, "reordered")} == {("a",)}


def test_a_rename_without_sync_names_may_be_lost_but_never_both_files() -> None:
    disk, file = a_disk_with_a_file("new")
    file.write(0, [b"new"])
    file.sync()
    disk.create("old", 3)
    disk.sync_names()
    disk.rename("new", "old")
    assert disk.names() == ["old"]
    assert {tuple(files) for files in outcomes(disk, "reordered")} == {("new", "old"), ("old",)}
    disk.sync_names()
    assert {f["old"][:3] for f in outcomes(disk, "reordered")} == {b"new"}


def test_an_unlink_without_sync_names_may_bring_the_file_back() -> None:
    disk, file = a_disk_with_a_file()
    file.write(0, [b"abc"])
    file.sync()
    disk.unlink("a")
    assert disk.names() == []
    found = outcomes(disk, "reordered")
    assert {tuple(files) for files in found} == {(), ("a",)}
    assert all(files["a"][:3] == b"abc" for files in found if files)


def test_a_rename_keeps_the_creation_it_builds_on() -> None:
    disk = VirtualDisk()
    disk.create("a", 10)
    disk.rename("a", "b")
    disk.rename("b", "c")
    found = {tuple(files) for files in outcomes(disk, "reordered")}
    assert found == {(), ("a",), ("b",), ("c",)}


def test_no_old_file_vanishes_under_a_new_one_of_its_former_name() -> None:
    disk, file = a_disk_with_a_file()
    file.write(0, [b"old"])
    file.sync()
    disk.rename("a", "b")
    disk.create("a", 5)
    for files in outcomes(disk, "reordered"):
        assert any(data[:3] == b"old" for data in files.values())


def test_a_rename_does_not_sync_the_file() -> None:
    disk, file = a_disk_with_a_file()
    file.write(0, [b"abc"])
    disk.rename("a", "b")
    disk.sync_names()
    assert outcomes(disk, "all_dropped", 1) == [{"b": bytes(SIZE)}]


def test_a_rename_to_its_own_name_does_nothing() -> None:
    disk, _ = a_disk_with_a_file()
    disk.rename("a", "a")
    assert disk.names() == ["a"]


_STEPS = st.lists(
    st.tuples(st.sampled_from("crus"), st.sampled_from("abc"), st.sampled_from("abc")), max_size=12
)


@given(_STEPS, st.sampled_from(CRASH_MODES), st.integers(0, 2**32))
def test_a_crash_leaves_each_file_one_name_at_most(
    steps: list[tuple[str, str, str]], mode: CrashMode, seed: int
) -> None:
    disk = VirtualDisk()
    sizes = set()
    for index, (step, name, other) in enumerate(steps):
        if step == "c" and name not in disk.names():
            disk.create(name, 1 + index)
            sizes.add(1 + index)
        elif step == "r" and name in disk.names():
            disk.rename(name, other)
        elif step == "u" and name in disk.names():
            disk.unlink(name)
        elif step == "s":
            disk.sync_names()
    disk.crash(Random(seed), mode)
    found = [len(data) for data in disk.files().values()]
    assert len(found) == len(set(found))
    assert set(found) <= sizes
