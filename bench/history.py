"""A history whose every byte can be computed again, and the check that it is all there."""

import os
import random
import struct
from collections.abc import Callable

from msgspec import Struct

from bench.bed import OCTETS, path_of
from semel.broker.broker import ReadDone
from semel.broker.engine import Engine
from semel.model.commands import Append, Batch, ProducerTag
from semel.model.limits import KIB, MIB
from semel.model.outcomes import Duplicate

# Sizes of messages and how many in 100 have them.
SIZES = ((256, 70), (1 * KIB, 20), (4 * KIB, 8), (64 * KIB, 2))
PRODUCER_EVERY = 10  # streams of which the first is written by a producer
_SALT = 0x9E3779B1
_HEAD = struct.Struct("<QQ")
_FILLER = random.Random(1).randbytes(2 * SIZES[-1][0])
_SIZE_OF_PERCENT = [size for size, percent in SIZES for _ in range(percent)]


class Extent(Struct, frozen=True):
    """Appends 0 .. `submitted` went round robin to the streams; `acknowledged` were confirmed."""

    streams: int
    acknowledged: int
    submitted: int

    def confirmed(self, stream: int) -> int:
        """How many messages of a stream were confirmed."""
        return -(-max(self.acknowledged - stream, 0) // self.streams)


def message(stream: int, index: int) -> bytes:
    mixed = (stream * 31 + index * 17 + 1) * _SALT & 0xFFFFFFFF
    size = _SIZE_OF_PERCENT[mixed % 100] - _HEAD.size
    start = mixed >> 16
    return _HEAD.pack(stream, index) + _FILLER[start : start + size]


def append_of(number: int, streams: int, now_ms: int) -> Append:
    index, stream = divmod(number, streams)
    tag = None
    if stream % PRODUCER_EVERY == 0:
        tag = ProducerTag(f"producer-{stream}", index, index, 0)
    return Append(path_of(stream), now_ms, OCTETS, Batch(message(stream, index)), producer=tag)


class Checked(Struct, frozen=True):
    messages: int
    bytes: int


async def check(engine: Engine, extent: Extent, sample: int) -> Checked:
    """Read a sample of streams whole; every confirmed message must be there, and no other."""
    messages = size = 0
    for stream in sampled(extent, sample):
        found = read_all(engine, stream)
        assert len(found) >= extent.confirmed(stream), f"stream {stream} lost a message"
        assert found == [message(stream, index) for index in range(len(found))]
        messages += len(found)
        size += sum(map(len, found))
        if stream % PRODUCER_EVERY == 0 and found:
            repeat = append_of((len(found) - 1) * extent.streams + stream, extent.streams, 0)
            assert isinstance(await engine.execute(repeat), Duplicate)
    return Checked(messages, size)


def sampled(extent: Extent, sample: int) -> list[int]:
    return random.Random(2).sample(range(extent.streams), min(sample, extent.streams))


def read_all(engine: Engine, stream: int) -> list[bytes]:
    found: list[bytes] = []
    offset = 0
    while True:
        done = read(engine, stream, offset)
        found.extend(data for piece in done.slices for data in piece.messages())
        if done.next_offset == done.tail.tail:
            return found
        offset = done.next_offset


def read(engine: Engine, stream: int, offset: int) -> ReadDone:
    answers: list[object] = []
    reply: Callable[[object], None] = answers.append
    now_ms = engine.clock.now_ms()
    engine.broker.read(path_of(stream), offset, now_ms=now_ms, reply=reply, bytes_max=MIB)
    done = answers[0]
    assert isinstance(done, ReadDone), done
    return done


def drop_from_cache(directory: str) -> None:
    """Ask the kernel to forget the pages of every file, so that the next reader finds the disk."""
    for entry in os.scandir(directory):
        fd = os.open(entry.path, os.O_RDONLY)
        os.fdatasync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)
