"""Chunks of a committed transaction that are missing at the recorded position (T12)."""

import pytest

from semel.journal.frame import KINDS, WatermarkMoved, checksum_seed, encode, encode_meta
from semel.journal.scan import check_chunks
from semel.journal.segments import Segments, segment_name
from semel.journal.verify import verify
from semel.machine.events import Decided, Ended
from semel.machine.txn.draft import chunks_in, pack_extent
from semel.model.commands import TXN_STAGED
from semel.model.errors import CorruptData, DiskFailed, ReadFailed
from tests.unit.broker.test_transactions import TxnBed


def staged_bed() -> tuple[TxnBed, int]:
    """Return a bed with a staged transaction of one chunk, and the LSN of the chunk's frame."""
    bed = TxnBed()
    bed.begin(kind=TXN_STAGED)
    bed.chunk(0, b"chunk")
    ((lsn, _, _),) = chunks_in(bed.broker.state.transactions["t"].chunk_blocks)
    return bed, lsn


def decided_bed(*, is_elsewhere: bool) -> tuple[TxnBed, int]:
    """Return a bed whose chunk is before the checkpoint and its commit after the checkpoint."""
    bed, lsn = staged_bed()
    if is_elsewhere:
        bed.fill()
    bed.checkpoint()
    bed.commit()
    assert (bed.broker._segments.first_of(lsn) != bed.broker._segments.firsts[-1]) == is_elsewhere
    return bed, lsn


def findings(bed: TxnBed) -> list[tuple[str, int | None]]:
    report = verify(bed.disk, bed.store)
    return [(found.file, found.position) for found in report.findings if "chunk" in found.message]


@pytest.mark.parametrize("is_elsewhere", [False, True])
def test_nothing_starts_without_a_chunk_that_was_committed(is_elsewhere: bool) -> None:
    bed, lsn = decided_bed(is_elsewhere=is_elsewhere)
    bed.restart()
    assert bed.messages() == [(0, b"chunk")]
    assert bed.is_sound()
    bed.disk.flip(segment_name(0), lsn + 50, 0)
    with pytest.raises(CorruptData, match="a chunk of a committed transaction") as caught:
        bed.restart()
    assert caught.value.exit_code == 65
    assert (caught.value.file, caught.value.position) == (segment_name(0), lsn)
    assert findings(bed) == [(segment_name(0), lsn)]


def test_another_frame_in_its_place_is_no_chunk() -> None:
    bed, lsn = decided_bed(is_elsewhere=True)
    meta = encode_meta(WatermarkMoved())
    frame = encode(
        KINDS[WatermarkMoved],
        meta,
        (),
        length=56,
        lsn=lsn,
        watermark=0,
        time_ms=0,
        previous_crc=0,
        seed=checksum_seed(bytes(16)),
    )
    bed.disk.overwrite(segment_name(0), lsn, b"".join(frame.buffers))
    with pytest.raises(CorruptData, match="a chunk of a committed transaction is missing"):
        bed.restart()
    assert findings(bed) == [(segment_name(0), lsn)]


def test_a_missing_segment_is_named_by_the_decision_too() -> None:
    bed, _ = decided_bed(is_elsewhere=True)
    bed.disk.unlink(segment_name(0))
    with pytest.raises(CorruptData, match="the segment is missing"):
        bed.restart()
    assert len(findings(bed)) == 1


def test_a_disk_that_does_not_read_is_no_corruption(monkeypatch: pytest.MonkeyPatch) -> None:
    bed, _ = decided_bed(is_elsewhere=True)

    def fail(_self: Segments, lsn: int) -> None:
        raise ReadFailed(f"cannot read {lsn}")

    monkeypatch.setattr(Segments, "read_frame", fail)
    with pytest.raises(DiskFailed, match="cannot read"):
        bed.restart()


def test_a_decision_places_only_what_its_transactions_staged() -> None:
    bed, lsn = staged_bed()
    state, segments = bed.broker.state, bed.broker._segments
    number = state.transactions["t"].row.number
    ended = (Ended(number, True, ""),)
    check_chunks(state, Decided(ended, pack_extent(lsn, 1, 0, 1)), segments, 0)
    for wrong in (pack_extent(lsn + 8, 1, 0, 1), pack_extent(lsn, 2, 0, 1)):
        with pytest.raises(CorruptData, match="a chunk of a committed transaction is missing"):
            check_chunks(state, Decided(ended, wrong), segments, 0)
    aborted = (Ended(number, False, "abort"),)
    with pytest.raises(CorruptData, match="a chunk of a committed transaction is missing"):
        check_chunks(state, Decided(aborted, pack_extent(lsn, 1, 0, 1)), segments, 0)
