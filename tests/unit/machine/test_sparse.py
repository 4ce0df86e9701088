"""Producers: the sparse table, row by row."""

import struct

import msgspec
import pytest

from semel.machine import MachineLimits
from semel.machine.rows import ProducerRow
from semel.model import outcomes as out
from semel.model.commands import Batch, ProducerTag
from tests.unit.machine.builders import (
    Machine,
    append,
    bury,
    create,
    machine_of,
    reloaded,
    sparse,
    unchanged,
)

TWO_RECEIPTS = MachineLimits(receipts=2)


# rows: P08, P09
def test_1_any_first_sequence_and_any_higher_one_is_accepted() -> None:
    """The application chooses the sequences, and may skip some."""
    machine = machine_of(create())
    assert machine.execute(append(by=sparse(7, 9))) == out.Appended(0, 1, False, 1, 9)
    assert machine.execute(append(by=sparse(20))) == out.Appended(1, 2, False, 1, 20)


# rows: P02
@pytest.mark.parametrize("tag", [sparse(7, 9), sparse(7, 9, session="new"), sparse(7, 9, epoch=5)])
def test_2_a_repeat_of_exactly_that_range_gets_its_offsets(tag: ProducerTag) -> None:
    machine = machine_of(create(), append(b"a", by=sparse(7, 9)), append(b"b", by=sparse(20)))
    assert unchanged(machine, append(b"a", by=tag)) == out.Duplicate(0, 1, False, 1, 20)


def test_2_a_repeat_with_another_payload_is_marked_or_refused() -> None:
    machine = machine_of(create(), append(b"a", by=sparse(7)))
    late = unchanged(machine, append(b"z", by=sparse(7)))
    assert late == out.Duplicate(0, 1, False, 1, 7, is_mismatch=True)
    assert unchanged(machine, append(b"z", by=sparse(7, strict=True))) == out.PayloadMismatch()


# rows: X23
@pytest.mark.parametrize("late", [sparse(7, 10), sparse(5, 12), sparse(9, 11)])
def test_3_a_range_over_the_last_sequence_overlaps(late: ProducerTag) -> None:
    """An overlapping batch is refused, so its new part is not lost unnoticed."""
    machine = machine_of(create(), append(by=sparse(7, 9)))
    assert unchanged(machine, append(by=late)) == out.BatchOverlap(9)


@pytest.mark.parametrize("late", [sparse(7, 8), sparse(8), sparse(1, 7), sparse(1, 15)])
def test_4_a_range_that_meets_a_receipt_overlaps(late: ProducerTag) -> None:
    machine = machine_of(create(), append(by=sparse(7, 9)), append(by=sparse(20)))
    assert unchanged(machine, append(by=late)) == out.BatchOverlap(20)


@pytest.mark.parametrize("late", [sparse(14, 16), sparse(10, 19), sparse(0, 15)])
def test_4_a_range_half_of_which_is_forgotten_overlaps(late: ProducerTag) -> None:
    spans = [(10, 14), (20, 29), (30, 39)]
    machine = machine_of(create(), *[append(by=sparse(*s)) for s in spans], limits=TWO_RECEIPTS)
    assert unchanged(machine, append(by=late)) == out.BatchOverlap(39)


# rows: P12, P23, X10
@pytest.mark.parametrize("late", [sparse(10), sparse(12), sparse(10, 13), sparse(11, 12)])
def test_5_a_forgotten_run_is_a_duplicate_without_offsets(late: ProducerTag) -> None:
    """The repeat is still acknowledged, but without offsets, however it is divided."""
    sends = [
        append(by=sparse(10)),
        append(Batch(b"123", 3, struct.pack("<3I", 1, 1, 1)), by=sparse(11, 13)),
    ]
    sends += [append(by=sparse(n)) for n in (20, 30)]
    machine = machine_of(create(), *sends, limits=TWO_RECEIPTS)
    assert unchanged(machine, append(by=late)) == out.Duplicate(None, None, False, 1, 30)


# rows: X28
@pytest.mark.parametrize("late", [sparse(0), sparse(5), sparse(6), sparse(6, 8), sparse(5, 10)])
def test_6_before_the_run_nothing_is_confirmed(late: ProducerTag) -> None:
    """5 is stored and 6 is not, but that is no longer known."""
    sends = [append(by=sparse(n)) for n in (5, 9, 10, 20, 30)]
    machine = machine_of(create(), *sends, limits=TWO_RECEIPTS)
    assert unchanged(machine, append(by=sparse(9, 10))) == out.Duplicate(None, None, False, 1, 30)
    assert unchanged(machine, append(by=late)) == out.ReceiptExpired(30, 10)


@pytest.mark.parametrize("late", [sparse(10), sparse(12), sparse(10, 13)])
def test_6_a_range_that_left_out_sequences_proves_none_of_them(late: ProducerTag) -> None:
    sends = [append(by=sparse(9)), append(by=sparse(10, 13)), append(by=sparse(20))]
    machine = machine_of(create(), *sends, append(by=sparse(30)), limits=TWO_RECEIPTS)
    assert unchanged(machine, append(by=late)) == out.ReceiptExpired(30, 13)
    for n in (14, 40, 50):
        machine.execute(append(by=sparse(n)))
    assert unchanged(machine, append(by=late)) == out.ReceiptExpired(50, 30)


def test_6_an_unknown_repeat_is_not_refused_as_one_that_is_not_stored() -> None:
    """The stream is closed. But the append may be stored, so the outcome must not deny it."""
    sends = [append(by=sparse(n)) for n in (5, 10, 20, 30)]
    machine = machine_of(create(), *sends, limits=TWO_RECEIPTS)
    machine.execute(append(None, close=True))
    assert unchanged(machine, append(by=sparse(5))) == out.ReceiptExpired(30, 10)


def test_6_a_row_of_an_earlier_version_proves_nothing_until_it_drops_more() -> None:
    machine = machine_of(
        create(), *[append(by=sparse(n)) for n in (1, 2, 3, 4)], limits=TWO_RECEIPTS
    )
    producers = machine.state.by_path["s"].producers
    assert producers is not None
    encoded = msgspec.msgpack.decode(msgspec.msgpack.encode(producers["p"]))
    producers["p"] = msgspec.msgpack.decode(msgspec.msgpack.encode(encoded[:14]), type=ProducerRow)
    assert unchanged(machine, append(by=sparse(2))) == out.ReceiptExpired(4, 2)
    machine.execute(append(by=sparse(5)))
    assert unchanged(machine, append(by=sparse(2))) == out.ReceiptExpired(5, 3)
    assert unchanged(machine, append(by=sparse(3))) == out.Duplicate(None, None, False, 1, 5)


def test_5_what_is_forgotten_stays_so_across_epochs() -> None:
    sends = [append(by=sparse(n, epoch=n)) for n in (1, 2, 3, 4)]
    machine = machine_of(create(), *sends, limits=TWO_RECEIPTS)
    assert unchanged(machine, append(by=sparse(2))) == out.Duplicate(None, None, False, 4, 4)


def test_5_nothing_stored_becomes_a_hole_when_fewer_receipts_are_kept() -> None:
    sends = [append(by=sparse(n)) for n in (19, 20, 30)]
    wide = machine_of(create(), *sends)
    narrow = Machine(TWO_RECEIPTS)
    narrow.state = reloaded(wide.state, TWO_RECEIPTS)
    narrow.execute(append(by=sparse(40)))
    assert unchanged(narrow, sends[1]) == out.Duplicate(None, None, False, 1, 40)


# rows: X28
def test_7_a_skipped_sequence_is_never_confirmed() -> None:
    """A skipped sequence was not stored, so it is not acknowledged."""
    machine = machine_of(create(), append(by=sparse(10)), append(by=sparse(20)))
    assert unchanged(machine, append(by=sparse(5))) == out.SequenceHole(20)
    assert unchanged(machine, append(by=sparse(15))) == out.SequenceHole(20)


# rows: X02
@pytest.mark.parametrize(("epoch", "session"), [(2, None), (None, "b")])
def test_a_raise_or_restart_fences_but_keeps_what_is_known(
    epoch: int | None, session: str | None
) -> None:
    """A restarted sparse producer resumes after the last sequence of the old instance."""
    machine = machine_of(create(), append(b"a", by=sparse(5, epoch=1, session="a")))
    late = append(b"b", by=sparse(3, epoch=epoch, session=session))
    assert unchanged(machine, late) == out.SequenceHole(5)
    fresh = append(b"b", by=sparse(6, epoch=epoch, session=session))
    assert machine.execute(fresh) == out.Appended(1, 2, False, 2, 6)
    assert unchanged(machine, append(b"a", by=sparse(5))) == out.Duplicate(0, 1, False, 2, 6)
    assert unchanged(machine, append(by=sparse(7, epoch=1))) == out.StaleEpoch(2, 1)


def test_a_tombstone_confirms_what_it_stored_without_offsets() -> None:
    machine = machine_of(create(), append(b"a", by=sparse(5)), bury())
    confirmed = out.Duplicate(None, None, False, 1, 5)
    assert unchanged(machine, append(b"a", by=sparse(5))) == confirmed
    skipped = unchanged(machine, append(b"a", by=sparse(4, epoch=9)))
    assert skipped == out.ReceiptExpired(5, 5)
    assert unchanged(machine, append(b"a", by=sparse(5, 6))) == out.BatchOverlap(5)
    assert machine.execute(append(b"b", by=sparse(8))) == out.Appended(1, 2, False, 2, 8)
    assert unchanged(machine, append(b"a", by=sparse(5))) == out.Duplicate(None, None, False, 2, 8)
    assert unchanged(machine, append(b"a", by=sparse(6))) == out.SequenceHole(8)
