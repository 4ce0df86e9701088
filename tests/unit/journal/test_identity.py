"""The identity file: its bytes, the generation, and what is refused."""

import pytest

from semel.journal.identity import (
    ACCESS_FORMAT_VERSION,
    FORMAT_VERSION,
    IDENTITY_NAME,
    SHARED_FORMAT_VERSION,
    SUBSCRIPTIONS_FORMAT_VERSION,
    Identity,
    NewerFormat,
    raise_generation,
    read_identity,
    require_access_format,
    require_format,
    write_identity,
)
from semel.model.checksum import crc32c
from semel.model.errors import CorruptData
from semel.testing.disk import VirtualDisk

ID = b"sixteen bytes id"
NOW_MS = 1_800_000_000_000


def written(identity: Identity) -> VirtualDisk:
    disk = VirtualDisk()
    write_identity(disk, identity)
    return disk


def data_of(disk: VirtualDisk) -> bytes:
    return disk.files()[IDENTITY_NAME]


def disk_with(data: bytes) -> VirtualDisk:
    disk = VirtualDisk()
    disk.create(IDENTITY_NAME, 0).write(0, [data])
    return disk


def test_the_first_generation_has_the_bytes_it_always_had() -> None:
    body = b"semel data\n\x01" + ID
    assert data_of(written(Identity(ID))) == body + crc32c(body).to_bytes(4, "little")
    assert len(data_of(written(Identity(ID)))) == 32


def test_a_later_generation_is_stored_in_8_more_bytes() -> None:
    body = b"semel data\n\x01" + ID + (7).to_bytes(8, "little")
    data = data_of(written(Identity(ID, 7)))
    assert data == body + crc32c(body).to_bytes(4, "little")
    assert len(data) == 40


VERSIONS = (
    FORMAT_VERSION,
    ACCESS_FORMAT_VERSION,
    SHARED_FORMAT_VERSION,
    SUBSCRIPTIONS_FORMAT_VERSION,
)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("generation", [1, 2, 2**40])
def test_an_identity_reads_as_it_was_written(generation: int, version: int) -> None:
    identity = Identity(ID, generation, version)
    assert read_identity(written(identity)) == identity


@pytest.mark.parametrize("generation", [1, NOW_MS])
def test_a_directory_with_tokens_has_format_2_and_the_rest_of_its_identity(generation: int) -> None:
    disk = written(Identity(ID, generation))
    before = data_of(disk)
    require_access_format(disk)
    assert read_identity(disk) == Identity(ID, generation, 2)
    body = before[:11] + b"\x02" + before[12:-4]
    assert data_of(disk) == body + crc32c(body).to_bytes(4, "little")


def test_format_2_is_written_once() -> None:
    disk = written(Identity(ID))
    require_access_format(disk)
    syncs = disk.digest()
    require_access_format(disk)
    assert disk.digest() == syncs


@pytest.mark.parametrize("required", VERSIONS)
@pytest.mark.parametrize("version", VERSIONS)
def test_a_format_is_raised_and_never_lowered(version: int, required: int) -> None:
    disk = written(Identity(ID, 5, version))
    require_format(disk, required)
    assert read_identity(disk) == Identity(ID, 5, max(version, required))


def test_the_newest_format_is_written_once_and_includes_the_others() -> None:
    disk = written(Identity(ID, version=SUBSCRIPTIONS_FORMAT_VERSION))
    digest = disk.digest()
    require_format(disk, SUBSCRIPTIONS_FORMAT_VERSION)
    require_format(disk, SHARED_FORMAT_VERSION)
    require_access_format(disk)
    assert disk.digest() == digest


@pytest.mark.parametrize("version", VERSIONS)
def test_a_restore_keeps_the_format(version: int) -> None:
    disk = written(Identity(ID, version=version))
    assert raise_generation(disk, NOW_MS) == Identity(ID, NOW_MS, version)


def test_the_generation_is_raised_to_the_time_and_the_id_stays() -> None:
    disk = written(Identity(ID))
    assert raise_generation(disk, NOW_MS) == Identity(ID, NOW_MS) == read_identity(disk)


@pytest.mark.parametrize("now_ms", [0, NOW_MS - 1, NOW_MS])
def test_the_generation_grows_if_the_clock_was_set_back(now_ms: int) -> None:
    disk = written(Identity(ID, NOW_MS))
    assert raise_generation(disk, now_ms).generation == NOW_MS + 1


def test_two_restores_of_one_copy_have_different_generations() -> None:
    """The copy does not show that it was restored before, so the time has to."""
    first, second = written(Identity(ID)), written(Identity(ID))
    one = raise_generation(first, NOW_MS)
    other = raise_generation(second, NOW_MS + 1)
    assert one.generation != other.generation


@pytest.mark.parametrize("length", [0, 4, 31, 33, 39, 41])
def test_an_identity_of_another_length_is_damaged(length: int) -> None:
    data = data_of(written(Identity(ID, 2)))
    with pytest.raises(CorruptData, match="damaged"):
        read_identity(disk_with((data + data)[:length]))


def test_every_flipped_bit_of_an_identity_is_noticed() -> None:
    for generation in (1, 2):
        data = data_of(written(Identity(ID, generation)))
        for bit in range(8 * len(data)):
            flipped = bytearray(data)
            flipped[bit // 8] ^= 1 << bit % 8
            with pytest.raises(CorruptData):
                read_identity(disk_with(bytes(flipped)))


@pytest.mark.parametrize("version", [5, 255])
def test_a_newer_format_is_refused_and_not_called_damage(version: int) -> None:
    body = b"semel data\n" + bytes([version]) + ID
    with pytest.raises(NewerFormat, match="reads the formats 1 to 4") as refused:
        read_identity(disk_with(body + crc32c(body).to_bytes(4, "little")))
    assert refused.value.version == version
    assert f"a newer version of semel has written this directory, in the format {version}" in str(
        refused.value
    )
    assert "not damaged" in str(refused.value)


@pytest.mark.parametrize("start", [b"semel data\n\0", b"other data\n\1"])
def test_what_is_no_identity_is_refused(start: bytes) -> None:
    body = start + ID
    with pytest.raises(CorruptData, match="the identity is not that of semel's data") as refused:
        read_identity(disk_with(body + crc32c(body).to_bytes(4, "little")))
    assert not isinstance(refused.value, NewerFormat)
