import errno
from collections.abc import Callable
from random import Random

import pytest

from semel.journal.disk import Disk
from semel.model.errors import DirectoryLocked
from semel.testing import (
    CRASH_MODES,
    Fail,
    Killed,
    LostSync,
    PowerLost,
    ShortWrite,
    VirtualDisk,
    refuse,
)
from tests.unit.testing.builders import SIZE, Once, a_disk_with_a_file, outcomes

ANY_MODE = pytest.mark.parametrize("mode", CRASH_MODES)

# Files


def test_a_virtual_disk_is_a_disk() -> None:
    disk: Disk = VirtualDisk()
    assert disk.names() == []


def test_a_new_file_is_zeros_and_what_is_written_can_be_read() -> None:
    disk, file = a_disk_with_a_file()
    assert file.size() == SIZE
    assert file.write(10, [b"ab", b"", b"cd"]) == 4
    assert file.read(8, 8) == b"\0\0abcd\0\0"
    assert file.read(SIZE - 1, 100) == b"\0"
    assert file.read(SIZE, 1) == b""
    assert disk.files() == {"a": bytes(10) + b"abcd" + bytes(SIZE - 14)}


def test_a_write_beyond_the_end_makes_the_file_longer() -> None:
    disk, file = a_disk_with_a_file()
    file.write(SIZE + 2, [b"x"])
    assert file.size() == SIZE + 3
    assert disk.files()["a"][-3:] == b"\0\0x"
    assert {len(files["a"]) for files in outcomes(disk, "reordered")} == {SIZE, SIZE + 3}


def test_an_empty_write_changes_nothing() -> None:
    _, file = a_disk_with_a_file()
    assert file.write(SIZE + 10, [b""]) == 0
    assert file.size() == SIZE


def test_a_file_is_created_once() -> None:
    disk, _ = a_disk_with_a_file()
    with pytest.raises(FileExistsError):
        disk.create("a", 1)


@pytest.mark.parametrize(
    "use", [lambda d: d.open("b"), lambda d: d.rename("b", "c"), lambda d: d.unlink("b")]
)
def test_a_file_that_is_not_there_is_not_found(use: Callable[[VirtualDisk], object]) -> None:
    disk, _ = a_disk_with_a_file()
    with pytest.raises(FileNotFoundError):
        use(disk)


def test_a_closed_file_is_dead() -> None:
    _, file = a_disk_with_a_file()
    file.close()
    for use in (file.sync, file.size, file.close):
        with pytest.raises(OSError, match="Bad file descriptor"):
            use()


def test_an_open_file_outlives_its_name() -> None:
    disk, file = a_disk_with_a_file()
    disk.unlink("a")
    disk.sync_names()
    file.write(0, [b"x"])
    file.sync()
    assert file.read(0, 1) == b"x"
    file.close()
    disk.sync_names()
    assert disk.names() == []


# The lock


def test_a_second_owner_is_refused_until_the_first_is_gone() -> None:
    disk = VirtualDisk()
    ends: list[Callable[[], None]] = [disk.close, disk.kill, lambda: disk.crash(Random(1))]
    for end in ends:
        disk.lock()
        with pytest.raises(DirectoryLocked):
            disk.lock()
        end()
    disk.lock()


# The process is killed


def test_a_kill_leaves_the_page_cache_and_no_open_file() -> None:
    disk, file = a_disk_with_a_file()
    file.write(0, [b"abc"])
    disk.kill()
    for use in (file.sync, file.size, lambda: file.read(0, 1), lambda: file.write(0, [b"z"])):
        with pytest.raises(OSError, match="Bad file descriptor"):
            use()
    file.close()
    assert disk.open("a").read(0, 3) == b"abc"
    disk.crash(Random(1), "all_dropped")
    assert disk.open("a").read(0, 3) == b"\0\0\0"


# Faults


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EMFILE, errno.EINTR])
@pytest.mark.parametrize("operation", ["write", "sync", "read", "open", "rename", "unlink"])
def test_a_refused_operation_changes_nothing(operation: str, code: int) -> None:
    disk, file = a_disk_with_a_file()
    before = disk.digest()
    uses: dict[str, Callable[[], object]] = {
        "write": lambda: file.write(0, [b"x"]),
        "sync": file.sync,
        "read": lambda: file.read(0, 1),
        "open": lambda: disk.open("a"),
        "rename": lambda: disk.rename("a", "b"),
        "unlink": lambda: disk.unlink("a"),
    }
    disk.faults = Once(operation, refuse(code))
    with pytest.raises(OSError, match=r"Errno") as caught:
        uses[operation]()
    assert caught.value.errno == code
    assert disk.digest() == before
    uses[operation]()


@pytest.mark.parametrize("operation", ["create", "grow", "sync"])
def test_a_creation_that_fails_leaves_no_file(operation: str) -> None:
    disk = VirtualDisk(faults=Once(operation, refuse(errno.ENOSPC)))
    with pytest.raises(OSError, match="No space"):
        disk.create("a", 10)
    assert disk.names() == []
    disk.create("a", 10)


def test_a_short_write_says_so() -> None:
    disk, file = a_disk_with_a_file()
    disk.faults = Once("write", ShortWrite(3))
    assert file.write(0, [b"ab", b"cd"]) == 3
    assert file.read(0, 4) == b"abc\0"


def test_a_fault_that_does_not_fit_its_operation_is_a_mistake_of_the_test() -> None:
    disk, file = a_disk_with_a_file()
    disk.faults = Once("sync", ShortWrite(3))
    with pytest.raises(AssertionError, match="only writes"):
        file.sync()
    disk.faults = Once("write", LostSync())
    with pytest.raises(AssertionError, match="only syncs"):
        file.write(0, [b"x"])


def test_after_a_lost_sync_the_next_one_lies() -> None:
    disk, file = a_disk_with_a_file()
    disk.faults = Once("sync", LostSync())
    file.write(0, [b"abc"])
    with pytest.raises(OSError, match="Input/output"):
        file.sync()
    file.sync()
    assert file.read(0, 3) == b"abc"
    disk.kill()
    assert disk.open("a").read(0, 3) == b"abc"
    for mode in CRASH_MODES:
        assert outcomes(disk, mode, 5) == [{"a": bytes(SIZE)}] * 5


def test_after_a_lost_sync_writing_again_helps() -> None:
    disk, file = a_disk_with_a_file()
    disk.faults = Once("sync", LostSync())
    file.write(0, [b"abcdef"])
    with pytest.raises(OSError, match="Input/output"):
        file.sync()
    file.write(0, [b"abc"])
    file.sync()
    assert outcomes(disk, "all_kept", 1) == [{"a": b"abc" + bytes(SIZE - 3)}]


def test_a_lost_sync_of_names_lies_too() -> None:
    disk, _ = a_disk_with_a_file()
    disk.faults = Once("sync_names", LostSync())
    disk.rename("a", "b")
    with pytest.raises(OSError, match="Input/output"):
        disk.sync_names()
    disk.sync_names()
    assert disk.names() == ["b"]
    assert outcomes(disk, "all_kept", 1) == [{"a": bytes(SIZE)}]


def test_a_change_that_builds_on_a_lost_name_still_makes_sense() -> None:
    disk = VirtualDisk(faults=Once("sync_names", LostSync()))
    disk.create("a", 1)
    disk.create("b", 2)
    with pytest.raises(OSError, match="Input/output"):
        disk.sync_names()
    disk.rename("a", "c")
    disk.unlink("b")
    disk.sync_names()
    assert outcomes(disk, "all_kept", 1) == [{"c": bytes(1)}]


@pytest.mark.parametrize("is_after", [False, True])
@pytest.mark.parametrize("death", [Killed(), PowerLost()])
def test_death_strikes_before_or_after_the_operation(death: Exception, is_after: bool) -> None:
    disk, file = a_disk_with_a_file()
    disk.faults = Once("write", Fail(death, is_after=is_after))
    with pytest.raises(type(death)):
        file.write(0, [b"x"])
    assert disk.files()["a"][:1] == (b"x" if is_after else b"\0")


def test_the_dead_do_nothing_more_until_the_test_buries_them() -> None:
    disk, file = a_disk_with_a_file()
    disk.faults = Once("write", Fail(Killed()))
    uses = [lambda: file.write(0, [b"x"]), file.sync, disk.sync_names, disk.names, disk.lock]
    for use in uses:
        with pytest.raises(Killed):
            use()
    file.close()
    disk.kill()
    assert disk.names() == ["a"]


def test_death_inside_a_creation_leaves_what_was_done() -> None:
    disk = VirtualDisk(faults=Once("grow", Fail(PowerLost())))
    with pytest.raises(PowerLost):
        disk.create("a", 10)
    disk.kill()
    assert disk.files() == {"a": b""}


def test_flip_and_overwrite_reach_the_platter() -> None:
    disk, _ = a_disk_with_a_file()
    disk.flip("a", 3, 7)
    disk.overwrite("a", 4, b"zz")
    assert disk.open("a").read(3, 3) == b"\x80zz"
    assert outcomes(disk, "all_dropped", 1) == [disk.files()]
    with pytest.raises(AssertionError):
        disk.overwrite("a", SIZE, b"x")


# Space


def test_a_full_disk_creates_nothing_and_goes_on_when_space_returns() -> None:
    disk = VirtualDisk(capacity_bytes=100)
    disk.create("a", 60)
    with pytest.raises(OSError, match="No space"):
        disk.create("b", 41)
    assert disk.names() == ["a"]
    disk.create("b", 40).write(0, [b"x" * 40])
    disk.unlink("a")
    disk.create("c", 60)
    disk.capacity_bytes = 101
    disk.create("d", 1)


@pytest.mark.parametrize("size", [0, 3, SIZE, SIZE + 7])
def test_a_resized_file_is_durable_and_its_added_bytes_are_zero(size: int) -> None:
    disk, file = a_disk_with_a_file()
    file.write(0, [b"abcd"])
    disk.sync_names()
    assert disk.resize("a", size).size() == size
    disk.crash(Random(1))
    assert disk.files()["a"] == b"abcd".ljust(SIZE, b"\0")[:size].ljust(size, b"\0")


def test_a_file_that_cannot_be_resized_on_a_full_disk_is_not_changed() -> None:
    disk, _ = a_disk_with_a_file()
    disk.capacity_bytes = SIZE + 5
    before = disk.digest()
    with pytest.raises(OSError, match="No space"):
        disk.resize("a", SIZE + 6)
    assert disk.digest() == before
    assert disk.resize("a", SIZE + 5).size() == SIZE + 5


def test_a_write_that_outgrows_the_disk_is_short_and_the_next_is_refused() -> None:
    disk = VirtualDisk(capacity_bytes=10)
    file = disk.create("a", 8)
    assert file.write(6, [b"abcdef"]) == 4
    with pytest.raises(OSError, match="No space"):
        file.write(10, [b"ef"])
    disk.capacity_bytes = 0
    assert file.write(0, [b"ab"]) == 2


# Snapshots


def test_every_change_is_counted_and_seen_after_it_happened() -> None:
    disk = VirtualDisk()
    seen: list[tuple[str, str, int]] = []
    disk.on_operation = lambda operation, name: seen.append(
        (operation, name, len(b"".join(disk.files().values())))
    )
    file = disk.create("a", 4)
    file.write(4, [b"x"])
    file.read(0, 1)
    disk.rename("a", "b")
    file.sync()
    disk.unlink("b")
    disk.sync_names()
    assert seen == [
        ("create", "a", 0),
        ("grow", "a", 4),
        ("sync", "a", 4),
        ("write", "a", 5),
        ("rename", "a", 5),
        ("sync", "b", 5),
        ("unlink", "b", 0),
        ("sync_names", "", 0),
    ]
    assert disk.operations == len(seen)


def test_a_copy_goes_its_own_way() -> None:
    disk, file = a_disk_with_a_file()
    disk.lock()
    file.write(0, [b"abc"])
    disk.create("b", 3)
    twin = disk.copy()
    before = disk.digest()
    assert twin.digest() == before
    with pytest.raises(DirectoryLocked):
        twin.lock()
    twin.crash(Random(1), "all_dropped")
    twin.open("a").write(0, [b"z"])
    assert disk.digest() == before
    file.write(0, [b"y"])
    assert twin.open("a").read(0, 1) == b"z"


def test_the_digest_tells_durable_from_cached() -> None:
    disk, file = a_disk_with_a_file()
    digests = {disk.digest()}
    file.write(0, [b"x"])
    digests.add(disk.digest())
    file.sync()
    digests.add(disk.digest())
    disk.rename("a", "b")
    digests.add(disk.digest())
    disk.sync_names()
    digests.add(disk.digest())
    assert len(digests) == 5
