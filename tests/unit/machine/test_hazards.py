"""Sequences of commands that could lose or duplicate a message, and must not."""

import pytest

from semel.machine import MachineLimits
from semel.model import commands as ask
from semel.model import outcomes as out
from tests.unit.machine.builders import (
    append,
    bury,
    create,
    dense,
    machine_of,
    sparse,
    unchanged,
)


# rows: X01
@pytest.mark.parametrize(("epoch", "session"), [(None, None), (None, "a"), (1, None), (1, "a")])
def test_a_lost_answer_to_the_first_append_neither_doubles_nor_fences(
    epoch: int | None, session: str | None
) -> None:
    """A retry of sequence 0 is not a restart, and the sequences pipelined after it are stored."""
    sends = [append(b"%d" % n, by=dense(n, epoch=epoch, session=session)) for n in range(5)]
    machine = machine_of(create(), sends[0])
    assert unchanged(machine, sends[0]) == out.Duplicate(0, 1, False, 1, 0)
    for n in range(1, 5):
        assert machine.execute(sends[n]) == out.Appended(n, n + 1, False, 1, n)
    assert machine.payloads() == [b"0", b"1", b"2", b"3", b"4"]


# rows: X01
def test_a_bare_restart_whose_first_message_equals_the_old_one_swallows_nothing() -> None:
    """The first message counts as a retry. Every later one is stored or refused."""
    machine = machine_of(create(), *[append(b"old%d" % n, by=dense(n)) for n in range(4)])
    first = append(b"old0", by=dense(0))
    assert unchanged(machine, first) == out.Duplicate(0, 1, False, 1, 3)
    for seq in (1, 2, 3):
        late = append(b"new%d" % seq, by=dense(seq))
        assert unchanged(machine, late) == out.RestartAmbiguous(1, 3)
    assert machine.execute(append(b"new4", by=dense(4))) == out.Appended(4, 5, False, 1, 4)


# rows: X01
@pytest.mark.parametrize("kept", [1, 2, 64])
@pytest.mark.parametrize("shared", range(5))
def test_a_bare_restart_that_shares_a_beginning_is_told_where_it_parts(
    kept: int, shared: int
) -> None:
    """With any number of receipts, an acknowledged message is stored with its payload."""
    old = [b"m%d" % n for n in range(4)]
    new = [*old[:shared], *[b"n%d" % n for n in range(shared, 6)]]
    writes = [append(body, by=dense(n)) for n, body in enumerate(old)]
    machine = machine_of(create(), *writes, limits=MachineLimits(receipts=kept))
    for n, body in enumerate(new):
        answer = machine.execute(append(body, by=dense(n)))
        if isinstance(answer, out.Refusal):
            continue
        assert isinstance(answer, out.Appended | out.Duplicate)
        assert answer.first_offset is not None
        assert machine.payloads()[answer.first_offset] == body


# rows: X08, U08
def test_a_delayed_retry_of_an_older_sequence_is_a_duplicate_not_a_conflict() -> None:
    """With five appends in flight this is a normal case."""
    sends = [append(b"%d" % n, by=dense(n, epoch=1)) for n in range(6)]
    machine = machine_of(create(), *sends)
    assert unchanged(machine, sends[3]) == out.Duplicate(3, 4, False, 1, 5)


# rows: X10, R05
@pytest.mark.parametrize("kept", [1, 2, 5, 64])
def test_a_repeat_gets_its_own_offsets_or_none(kept: int) -> None:
    """A receipt belongs to one batch. Its offsets are never returned for another batch."""
    sends = [append(b"%d" % n, by=dense(n, epoch=1)) for n in range(9)]
    machine = machine_of(create(), *sends, limits=MachineLimits(receipts=kept))
    for n, send in enumerate(sends):
        is_held = n == 0 or n >= 9 - kept
        first, end = (n, n + 1) if is_held else (None, None)
        assert unchanged(machine, send) == out.Duplicate(first, end, False, 1, 8)


# rows: X12
def test_a_zombie_cannot_return_through_the_expiry_of_its_producer() -> None:
    """The old epoch, the old session and the next sequence are all refused."""
    machine = machine_of(create(), append(by=dense(0, epoch=3, session="z")), bury())
    for tag in (dense(1, epoch=3), dense(0, epoch=3), dense(1, session="z"), dense(1)):
        assert unchanged(machine, append(b"y", by=tag)) == out.ProducerStateExpired(3)


# rows: X16, D14, U11
def test_one_producer_on_two_streams_is_two_producers() -> None:
    machine = machine_of(create("a"), create("b"), append(path="a", by=dense(0)))
    assert machine.execute(append(path="b", by=dense(0))) == out.Appended(0, 1, False, 1, 0)


# rows: X16
def test_a_stream_created_anew_forgets_the_producers_of_the_old() -> None:
    machine = machine_of(create(), append(by=dense(0)), ask.Delete("s", 0), create())
    assert machine.execute(append(by=dense(0))) == out.Appended(0, 1, False, 1, 0)


# rows: X23
def test_a_batch_half_of_which_is_stored_is_refused_with_the_last_sequence() -> None:
    """No message is lost or duplicated, and the sender knows where to split the batch."""
    machine = machine_of(create(), append(b"1-3", by=sparse(1, 3)))
    assert unchanged(machine, append(b"2-5", by=sparse(2, 5))) == out.BatchOverlap(3)
    assert machine.execute(append(b"4-5", by=sparse(4, 5))) == out.Appended(1, 2, False, 1, 5)


# rows: X26, D32
def test_a_retry_is_a_retry_before_it_is_out_of_date() -> None:
    """If-Match and Stream-Seq matched when the append was stored, but no longer match."""
    send = append(by=dense(0, epoch=1), if_match=0, stream_seq="a")
    machine = machine_of(create(), send, append())
    assert unchanged(machine, send) == out.Duplicate(0, 1, False, 1, 0)


# rows: X28
def test_a_sequence_overtaken_by_a_later_one_is_not_taken_for_stored() -> None:
    """Sequence 11 arrives before 10."""
    machine = machine_of(create(), append(b"11", by=sparse(11)))
    assert unchanged(machine, append(b"10", by=sparse(10))) == out.SequenceHole(11)


# rows: X29
def test_a_producer_whose_state_was_lost_is_told_so() -> None:
    """After an operator's reset, sequence 5 must not be accepted as the first."""
    machine = machine_of(create(), *[append(by=dense(n)) for n in range(5)])
    machine.execute(ask.ForgetProducer("s", 0, "p"))
    assert unchanged(machine, append(by=dense(5))) == out.SequenceGap(0, 5)


# rows: R02, R09, R11
def test_a_registered_zombie_is_fenced_before_the_new_instance_writes() -> None:
    machine = machine_of(create(), ask.Register(0), append(by=dense(0, epoch=0, name="1")))
    machine.execute(ask.Register(0, "1"))
    zombie = append(by=dense(1, epoch=0, name="1"))
    assert unchanged(machine, zombie) == out.StaleEpoch(1, 0)
    new = append(by=dense(0, epoch=1, name="1"))
    assert machine.execute(new) == out.Appended(1, 2, False, 1, 0)
