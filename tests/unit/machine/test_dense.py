"""Producers: the dense table, row by row."""

from struct import pack

import pytest

from semel.machine import MachineLimits, producers
from semel.machine.state import find_producer
from semel.model import outcomes as out
from semel.model.checksum import digest_of
from semel.model.commands import Batch, ProducerTag
from tests.unit.machine.builders import (
    JSON,
    append,
    bury,
    create,
    dense,
    json_batch,
    machine_of,
    unchanged,
)

TWO_RECEIPTS = MachineLimits(receipts=2)


# rows: X29, D36
def test_1_a_new_producer_must_start_at_sequence_zero() -> None:
    """Otherwise the loss of the sequences before it would go unnoticed."""
    assert unchanged(machine_of(create()), append(by=dense(3, epoch=1))) == out.SequenceGap(0, 3)


# rows: U10
def test_2_a_raised_epoch_must_start_at_sequence_zero() -> None:
    machine = machine_of(create(), append(by=dense(0, epoch=1)))
    assert unchanged(machine, append(by=dense(1, epoch=2))) == out.EpochMustStartAtZero(1)
    assert machine.execute(append(by=dense(0, epoch=7))) == out.Appended(1, 2, False, 7, 0)


@pytest.mark.parametrize("seq", [1, 2, 9])
def test_3_a_new_session_must_start_at_sequence_zero(seq: int) -> None:
    machine = machine_of(create(), *[append(by=dense(n, session="a")) for n in range(2)])
    assert unchanged(machine, append(by=dense(seq, session="b"))) == out.SessionUnknown(1, 1)


def test_4_a_bare_start_with_the_same_payload_is_a_retry_however_late() -> None:
    sends = [append(b"%d" % n, by=dense(n)) for n in range(5)]
    machine = machine_of(create(), *sends, limits=TWO_RECEIPTS)
    assert unchanged(machine, sends[0]) == out.Duplicate(0, 1, False, 1, 4)


def test_4_a_bare_start_is_a_retry_over_a_tombstone_too() -> None:
    machine = machine_of(create(), append(b"a", by=dense(0)), append(b"b", by=dense(1)), bury())
    assert unchanged(machine, append(b"a", by=dense(0))) == out.Duplicate(0, 1, False, 1, 1)
    named = append(b"a", by=dense(0, session="new"))
    assert machine.execute(named) == out.Appended(2, 3, False, 2, 0)


# rows: D10
def test_5_a_bare_start_with_another_payload_is_a_restart() -> None:
    """The epoch is raised and the sequence begins at 0 again."""
    machine = machine_of(create(), append(b"a", by=dense(0)), append(b"b", by=dense(1)))
    assert machine.execute(append(b"c", by=dense(0))) == out.Appended(2, 3, False, 2, 0)
    assert unchanged(machine, append(b"d", by=dense(2))) == out.SequenceGap(1, 2)


# rows: U05, R04, D07, D39
@pytest.mark.parametrize(("epoch", "session"), [(1, None), (None, "a"), (1, "a"), (None, None)])
def test_6_a_repeat_gets_its_first_offsets(epoch: int | None, session: str | None) -> None:
    """Nothing is appended, and the highest sequence is reported."""
    sends = [append(b"%d" % n, by=dense(n, epoch=epoch, session=session)) for n in range(3)]
    machine = machine_of(create(), *sends)
    for n in (2, 1, 0):
        assert unchanged(machine, sends[n]) == out.Duplicate(n, n + 1, False, 1, 2)


def test_7_a_bare_repeat_with_another_payload_is_ambiguous() -> None:
    machine = machine_of(create(), append(b"a", by=dense(0)), append(b"b", by=dense(1)))
    assert unchanged(machine, append(b"c", by=dense(1))) == out.RestartAmbiguous(1, 1)
    assert unchanged(machine, append(b"c", by=dense(1, strict=True))) == out.RestartAmbiguous(1, 1)


# rows: D37
def test_7_a_named_repeat_with_another_payload_is_marked_or_refused() -> None:
    """The first payload stays; strict producers are refused."""
    machine = machine_of(create(), append(b"a", by=dense(0, epoch=1)))
    late = unchanged(machine, append(b"c", by=dense(0, epoch=1)))
    assert late == out.Duplicate(0, 1, False, 1, 0, is_mismatch=True)
    strict = append(b"c", by=dense(0, epoch=1, strict=True))
    assert unchanged(machine, strict) == out.PayloadMismatch()


def test_7_the_same_bytes_cut_into_other_messages_are_another_payload() -> None:
    """The payloads differ only in the message lengths, which are not compared for JSON."""
    tag = dense(0, epoch=1)
    first, other = Batch(b"abc", 2, pack("<2I", 2, 1)), Batch(b"abc", 2, pack("<2I", 1, 2))
    machine = machine_of(create(), append(first, by=tag))
    assert unchanged(machine, append(first, by=tag)) == out.Duplicate(0, 2, False, 1, 0)
    for late in (append(other, by=tag), append(b"abc", by=tag)):
        assert unchanged(machine, late) == out.Duplicate(0, 2, False, 1, 0, is_mismatch=True)
    keyed = machine_of(create(), append(first, key="k"))
    assert unchanged(keyed, append(other, key="k")) == out.KeyReused()


def test_the_digest_of_a_json_batch_is_that_of_its_payload() -> None:
    machine = machine_of(
        create(kind=JSON), append(json_batch(b"1", b"2"), kind=JSON, by=dense(0, epoch=1))
    )
    row = find_producer(machine.stream(), "p")
    assert row is not None
    assert producers.unpack_receipt(row.receipts, 0).digest == digest_of(b"1,2")


def test_7_a_bad_body_equals_no_stored_payload_not_even_the_empty_one() -> None:
    machine = machine_of(create(), append(b"a", by=dense(0)), append(None, close=True, by=dense(1)))
    late = append(None, error="bad", by=dense(1, epoch=1))
    assert unchanged(machine, late) == out.Duplicate(1, 1, True, 1, 1, is_mismatch=True)


# rows: X10, R06
def test_8_beyond_the_receipts_a_repeat_has_no_offsets() -> None:
    """Without a receipt, no offset is returned."""
    sends = [append(by=dense(n)) for n in range(5)]
    machine = machine_of(create(), *sends, limits=TWO_RECEIPTS)
    assert unchanged(machine, append(by=dense(2))) == out.RestartAmbiguous(1, 4)
    named = append(by=dense(2, epoch=1, strict=True))
    assert unchanged(machine, named) == out.Duplicate(None, None, False, 1, 4)


# rows: D08, D17, U07
def test_9_a_gap_is_refused_and_names_what_is_missing() -> None:
    machine = machine_of(create(), append(by=dense(0, epoch=1)))
    assert unchanged(machine, append(by=dense(2, epoch=1))) == out.SequenceGap(1, 2)
    assert unchanged(machine, append(by=dense(2))) == out.SequenceGap(1, 2)


# rows: D13, U03, U06
def test_10_the_next_sequence_is_accepted() -> None:
    machine = machine_of(create(), append(by=dense(0, epoch=1)))
    assert machine.execute(append(by=dense(1, epoch=1))) == out.Appended(1, 2, False, 1, 1)


@pytest.mark.parametrize("tag", [dense(0, epoch=7), dense(0, session="b")])
def test_10_a_raise_or_restart_begins_anew(tag: ProducerTag) -> None:
    machine = machine_of(create(), *[append(b"a", by=dense(n, session="a")) for n in range(3)])
    epoch = tag.epoch or 2
    assert machine.execute(append(b"a", by=tag)) == out.Appended(3, 4, False, epoch, 0)
    assert unchanged(machine, append(by=dense(0, session="a"))) == out.StaleSession(epoch)
    repeat = out.Duplicate(3, 4, False, epoch, 0)
    assert unchanged(machine, append(b"a", by=dense(0, epoch=epoch))) == repeat


# rows: U12
def test_what_a_raised_epoch_left_behind_is_not_found_again() -> None:
    """Receipts of an older epoch are not used."""
    old = [append(b"%d" % n, by=dense(n, epoch=1)) for n in range(3)]
    machine = machine_of(create(), *old, append(b"new", by=dense(0, epoch=2)))
    producers = machine.stream().producers
    assert producers is not None
    assert producers["p"].receipts == producers["p"].first_receipt
    late = unchanged(machine, append(b"0", by=dense(0, epoch=2)))
    assert late == out.Duplicate(3, 4, False, 2, 0, is_mismatch=True)
    assert machine.execute(append(b"1", by=dense(1, epoch=2))) == out.Appended(4, 5, False, 2, 1)
