"""The identity file of a data directory.

The identity is 16 random bytes. They seed the checksum of every frame in the directory. When a
directory is created, the identity file is written last. Therefore a directory that has an identity
file is complete.

The generation shows clients that the directory was restored from an older copy. It is 1 in a new
directory, and `semel restore` raises it to the time of the restore.
"""

import contextlib
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from semel.journal.disk import Disk, Files, finish_file
from semel.model.checksum import crc32c
from semel.model.errors import CorruptData

IDENTITY_NAME: Final = "identity"
IDENTITY_TEMPORARY_NAME: Final = "identity.tmp"
IDENTITY_BYTES: Final = 16
FORMAT_VERSION: Final = 1
# Of a directory that has had a token. Older versions of semel would ignore tokens that are in the
# checkpoint, and let everybody do everything. They refuse this format.
ACCESS_FORMAT_VERSION: Final = 2
# Of a directory that has had a topic or a member of a group. Older versions of semel would ignore
# their tables: they would serve a topic as a stream, and let anybody move a member's position.
SHARED_FORMAT_VERSION: Final = 3
# Of a directory that has had a subscription. Older versions of semel would ignore their tables: no
# stream would be linked, and what was acked would be forgotten.
SUBSCRIPTIONS_FORMAT_VERSION: Final = 4
NEWEST_FORMAT_VERSION: Final = SUBSCRIPTIONS_FORMAT_VERSION
FIRST_GENERATION: Final = 1
_MAGIC: Final = b"semel data\n"
_CHECKSUM_BYTES: Final = 4
_GENERATION_BYTES: Final = 8
_ID_AT: Final = len(_MAGIC) + 1
_GENERATION_AT: Final = _ID_AT + IDENTITY_BYTES
_FILE_BYTES: Final = _GENERATION_AT + _CHECKSUM_BYTES
_LONG_FILE_BYTES: Final = _FILE_BYTES + _GENERATION_BYTES


class NewerFormat(CorruptData):
    """A newer version of semel has written the directory. The data is not damaged."""

    def __init__(self, version: int) -> None:
        super().__init__(
            f"a newer version of semel has written this directory, in the format {version}, and"
            f" this one reads the formats {FORMAT_VERSION} to {NEWEST_FORMAT_VERSION}. The data is"
            " not damaged: install that version or a later one",
            file=IDENTITY_NAME,
        )
        self.version = version


class Identity(Struct, frozen=True):
    """The identity of a directory, and its generation: 1, or the time of the last restore.

    `version` is one of the format versions above. Each includes what those before it have.
    """

    id: bytes
    generation: int = FIRST_GENERATION
    version: int = FORMAT_VERSION


def write_identity(disk: Disk, identity: Identity) -> None:
    """Write the identity file, or replace it. Raises OSError or DiskFailed.

    The first generation is not written. So older versions of semel can read the file, too.
    """
    assert len(identity.id) == IDENTITY_BYTES
    body = _MAGIC + bytes([identity.version]) + identity.id
    if identity.generation != FIRST_GENERATION:
        body += identity.generation.to_bytes(_GENERATION_BYTES, "little")
    with contextlib.suppress(FileNotFoundError):
        disk.unlink(IDENTITY_TEMPORARY_NAME)
    data = body + crc32c(body).to_bytes(_CHECKSUM_BYTES, "little")
    file = disk.create(IDENTITY_TEMPORARY_NAME, len(data))
    finish_file(disk, file, IDENTITY_TEMPORARY_NAME, IDENTITY_NAME, data)


def read_identity(disk: Files) -> Identity:
    """Return the identity of a directory.

    Raises CorruptData if the identity file is damaged, and NewerFormat if this version of semel
    does not read the format of the directory. Also raises OSError.
    """
    with contextlib.closing(disk.open(IDENTITY_NAME)) as file:
        data = file.read(0, _LONG_FILE_BYTES + 1)
    body, checksum = data[:-_CHECKSUM_BYTES], data[-_CHECKSUM_BYTES:]
    is_whole = len(data) in (_FILE_BYTES, _LONG_FILE_BYTES)
    if not is_whole or crc32c(body).to_bytes(_CHECKSUM_BYTES, "little") != checksum:
        raise CorruptData("the identity is damaged", file=IDENTITY_NAME)
    version = body[len(_MAGIC)]
    if not body.startswith(_MAGIC) or version < FORMAT_VERSION:
        raise CorruptData("the identity is not that of semel's data", file=IDENTITY_NAME)
    if version > NEWEST_FORMAT_VERSION:
        raise NewerFormat(version)
    generation = int.from_bytes(body[_GENERATION_AT:], "little") or FIRST_GENERATION
    return Identity(body[_ID_AT:_GENERATION_AT], generation, version)


def require_access_format(disk: Disk) -> None:
    """Make versions of semel without access refuse a locked directory, before it gets a token.

    Raises CorruptData, DiskFailed or OSError. Then the old identity file is still there.
    """
    require_format(disk, ACCESS_FORMAT_VERSION)


def require_format(disk: Disk, version: int) -> None:
    """Make versions of semel that do not read a format version refuse a locked directory.

    Raises CorruptData, DiskFailed or OSError. Then the old identity file is still there.
    """
    identity = read_identity(disk)
    if identity.version < version:
        write_identity(disk, replace(identity, version=version))


def raise_generation(disk: Disk, now_ms: int) -> Identity:
    """Raise the generation of a locked directory to the time `now_ms`. Return its new identity.

    A time is used because one copy can be restored more than once. Each of these directories must
    have its own generation, but the copy does not contain the number of its restores. If the clock
    is not after the old generation, the new one is greater by 1.

    Raises CorruptData, DiskFailed or OSError. Then the old identity file is still there.
    """
    identity = read_identity(disk)
    raised = replace(identity, generation=max(identity.generation + 1, now_ms))
    write_identity(disk, raised)
    return raised
