"""The scan behind a torn tail finds every intact frame, and its work is linear in the bytes.

Messages can contain anything, also headers of frames that do not exist. A client could try to make
the next start slow in that way, so the tests count the bytes that are checksummed.
"""

import struct
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.journal import frame as codec
from semel.journal.frame import (
    ALIGN,
    HEADER_BYTES,
    KINDS,
    MAGIC,
    VERSION,
    WatermarkMoved,
    encode,
    encode_meta,
    frame_bytes,
)
from semel.journal.scan import TornTail, check_torn, intact_frame, intact_frames
from semel.model import checksum
from semel.model.checksum import crc32c
from semel.model.errors import CorruptData

SEED = 77
SEGMENT = 4096
KIB = 1024
_REST = struct.Struct("<BBHIIIQQQ")

Header = Callable[[int, int], bytes]  # position in the segment, bytes left -> header
_META = encode_meta(WatermarkMoved())


def real_frame(at: int, watermark: int = 0) -> bytes:
    """Return an intact frame for a position of the segment."""
    frame = encode(
        KINDS[WatermarkMoved],
        _META,
        (),
        length=frame_bytes(_META, ()),
        lsn=SEGMENT + at,
        watermark=watermark,
        time_ms=1,
        previous_crc=5,
        seed=SEED,
    )
    return b"".join(frame.buffers)


def header(at: int, length: int, *, lsn: int | None = None, crc: int = 0x1234) -> bytes:
    """Return the header of a frame that does not exist, with every field as plausible as can be."""
    own = SEGMENT + at if lsn is None else lsn
    rest = _REST.pack(VERSION, KINDS[WatermarkMoved], 0, length, len(_META), crc, own, own, 1)
    return MAGIC + crc.to_bytes(4, "little") + rest


def aligned(number: int) -> int:
    return max(HEADER_BYTES, number // ALIGN * ALIGN)


def long_claims(at: int, left: int) -> bytes:
    return header(at, aligned(left))


def different_claims(at: int, left: int) -> bytes:
    return header(at, aligned(Random(at).randrange(left)))


def nested_claims(at: int, left: int) -> bytes:
    """All frames end at the same place."""
    return header(at, aligned(left - 256))


def wrong_places(at: int, left: int) -> bytes:
    return header(at, aligned(left), lsn=at + 1)


def different_checksums(at: int, left: int) -> bytes:
    return header(at, aligned(left), crc=Random(at).getrandbits(32))


def too_long_claims(at: int, left: int) -> bytes:
    return header(at, 2 * aligned(left))


HEADERS = (
    long_claims,
    different_claims,
    nested_claims,
    wrong_places,
    different_checksums,
    too_long_claims,
)


def tail_of(make: Header, size: int, step: int, total: int) -> bytearray:
    """Return a segment with headers every `step` bytes up to `size`, and zeros after them."""
    data = bytearray(total)
    for at in range(0, size, step):
        data[at : at + min(step, HEADER_BYTES)] = make(at, total - at)[:step]
    return data


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Return a list that gets the length of everything that is checksummed."""
    lengths: list[int] = []

    def counting(data: Any, start: int = 0) -> int:
        lengths.append(len(data))
        return crc32c(data, start)

    monkeypatch.setattr(checksum, "crc32c", counting)
    monkeypatch.setattr(codec, "crc32c", counting)
    yield lengths


@pytest.mark.parametrize("step", [16, 32, 48])
@pytest.mark.parametrize("make", HEADERS)
@pytest.mark.parametrize("copies", [1, 4])
def test_headers_in_messages_cost_no_more_than_the_bytes_they_have(
    counted: list[int], make: Header, step: int, copies: int
) -> None:
    size = copies * 32 * KIB
    data = tail_of(make, size, step, total=512 * KIB)
    frame = real_frame(size, watermark=SEGMENT + 8)
    data[size : size + len(frame)] = frame
    found = list(intact_frames(bytes(data), 0, len(data), SEGMENT, SEED))
    assert [each.lsn for each in found] == [SEGMENT + size]
    assert sum(counted) <= len(data) + HEADER_BYTES + len(frame)
    assert len(counted) <= 2 * -(-size // step) + 4


def test_a_header_at_a_place_where_no_frame_can_begin_is_passed_over() -> None:
    frame = real_frame(8)
    data = MAGIC[:3] + MAGIC + bytes(1) + frame
    assert [each.lsn for each in intact_frames(data, 0, len(data), SEGMENT, SEED)] == [SEGMENT + 8]


def test_a_later_frame_among_headers_still_proves_that_the_tail_was_durable() -> None:
    data = tail_of(different_claims, 16 * KIB, 32, total=64 * KIB)
    tear = TornTail(SEGMENT, "torn")
    check_torn(bytes(data), SEGMENT, tear, SEED)
    frame = real_frame(8 * KIB, watermark=SEGMENT + 8)
    data[8 * KIB : 8 * KIB + len(frame)] = frame
    with pytest.raises(CorruptData, match="proves that the damaged part was durable"):
        check_torn(bytes(data), SEGMENT, tear, SEED)


@given(
    places=st.lists(st.tuples(st.integers(0, 250), st.booleans()), max_size=30),
    end=st.integers(0, 2100),
    noise=st.integers(0, 2**32),
)
def test_the_same_frames_are_found_as_by_looking_at_every_place(
    places: list[tuple[int, bool]], end: int, noise: int
) -> None:
    random = Random(noise)
    data = bytearray(2100)
    for place, is_real in places:
        at = ALIGN * place
        length = aligned(random.randrange(HEADER_BYTES, 2100))
        part = real_frame(at) if is_real else header(at, length)
        data[at : at + len(part)] = part
    whole = bytes(data[:end])
    expected = [
        frame
        for at in range(0, end, ALIGN)
        if (frame := intact_frame(whole, at, SEGMENT, SEED)) is not None
    ]
    assert list(intact_frames(whole, 0, end, SEGMENT, SEED)) == expected
