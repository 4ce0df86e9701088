"""Claims: the table of `machine.md`, and appends after a claim."""

import pytest

from semel.machine import MachineLimits
from semel.machine.rows import ProducerRow
from semel.model import commands as ask
from semel.model import outcomes as out
from semel.model.commands import DENSE, SPARSE, ProducerTag
from semel.model.limits import NUMBER_MAX, SESSIONS_REMEMBERED
from semel.model.outcomes import Claimed
from tests.unit.machine.builders import (
    Machine,
    append,
    bury,
    claim,
    create,
    dense,
    machine_of,
    snapshot,
    sparse,
    unchanged,
)

REGISTER = ask.Register(0, "p")


def known(machine: Machine) -> ProducerRow:
    producers = machine.stream().producers
    assert producers is not None
    return producers["p"]


def written(*, epoch: int | None = None, session: str | None = "old") -> Machine:
    """Return a machine where one instance has written sequences 0 and 1, with a cursor."""
    tags = [dense(n, epoch=epoch, session=session, cursor=b"c%d" % n) for n in (0, 1)]
    return machine_of(create(), append(b"a", by=tags[0]), append(b"b", by=tags[1]))


# ---- late appends of the older instance ----------------------------------------------------------


@pytest.mark.parametrize(
    "late",
    [
        dense(2, session="old"),
        dense(2, epoch=1, session="old"),
        dense(2, epoch=1),
        dense(0, session="old"),
        dense(0, epoch=1),
    ],
)
def test_what_the_older_instance_sends_late_is_not_stored_behind_a_claim(
    late: ProducerTag,
) -> None:
    machine = written()
    assert machine.execute(claim("new")) == Claimed("p", 2, 1, 2, b"c1")
    assert isinstance(unchanged(machine, append(b"c", by=late)), out.StaleEpoch | out.StaleSession)
    assert machine.execute(append(b"c", by=dense(0, session="new"))) == out.Appended(
        2, 3, False, 2, 0
    )


def test_a_sparse_producer_that_was_claimed_is_fenced_and_keeps_its_numbers() -> None:
    machine = machine_of(create(), append(by=sparse(5, 7, session="old")))
    assert machine.execute(claim("new", mode=SPARSE)) == Claimed("p", 2, 7, 1)
    late = append(b"late", by=sparse(8, session="old"))
    assert unchanged(machine, late) == out.StaleSession(2)
    again = append(by=sparse(5, 7, session="new", epoch=2))
    assert unchanged(machine, again) == out.Duplicate(0, 1, False, 2, 7)
    next_one = append(b"late", by=sparse(8, session="new"))
    assert machine.execute(next_one) == out.Appended(1, 2, False, 2, 8)


# ---- the table -----------------------------------------------------------------------------------


def test_there_is_nothing_to_claim_where_there_is_no_stream() -> None:
    assert unchanged(machine_of(), claim("x")) == out.NotFound()


def test_a_stream_that_recognises_no_duplicates_has_nobody_to_fence() -> None:
    machine = machine_of(create(), ask.SwitchDedup("s", 0, dedup=False))
    assert unchanged(machine, claim("x")) == out.DedupOff()


def test_a_an_all_digit_id_must_have_been_given_out() -> None:
    machine = machine_of(create())
    assert unchanged(machine, claim("x", name="1")) == out.UnknownProducer()
    machine.execute(ask.Register(0))
    assert machine.execute(claim("x", name="1")) == Claimed("1", 0)


@pytest.mark.parametrize("ends", [(), (bury(),)])
def test_b_the_mode_is_fixed_also_by_a_tombstone(ends: tuple[ask.Command, ...]) -> None:
    machine = machine_of(create(), append(by=dense(0)), *ends)
    assert unchanged(machine, claim("x", mode=SPARSE)) == out.ModeConflict(DENSE)


def test_b_a_claim_fixes_the_mode() -> None:
    machine = machine_of(create(), claim("x", mode=SPARSE))
    assert unchanged(machine, append(by=dense(0, session="x"))) == out.ModeConflict(SPARSE)


def test_c_a_tombstone_refuses_the_sessions_it_knows_and_takes_a_new_one() -> None:
    machine = written(session="x")
    for command in (claim("y"), bury()):
        machine.execute(command)
    for session in "xy":
        assert unchanged(machine, claim(session)) == out.ProducerStateExpired(2)
    assert machine.execute(claim("z")) == Claimed("p", 3, 1, 2, b"c1")
    assert not known(machine).is_expired


def test_d_an_older_session_cannot_take_it_back() -> None:
    machine = written(session="x")
    machine.execute(claim("y"))
    assert unchanged(machine, claim("x")) == out.StaleSession(2)


def test_e_a_claim_that_the_registry_has_overtaken_is_stale() -> None:
    machine = machine_of(create(), REGISTER, claim("x"), REGISTER)
    assert unchanged(machine, claim("x")) == out.StaleEpoch(1)
    assert machine.execute(claim("y")) == Claimed("p", 1)


def test_f_a_session_that_has_written_cannot_be_claimed_again() -> None:
    machine = machine_of(create(), claim("x"), append(by=dense(0, session="x")))
    assert unchanged(machine, claim("x")) == out.SessionConflict(1)


def test_f_also_if_it_never_was_claimed() -> None:
    assert unchanged(written(session="x"), claim("x")) == out.SessionConflict(1)


def test_g_a_claim_again_is_answered_as_before_and_writes_nothing() -> None:
    machine = written()
    first = machine.execute(claim("new"))
    assert unchanged(machine, claim("new", now=99)) == first == Claimed("p", 2, 1, 2, b"c1")


def test_g_a_sparse_claim_again_tells_what_is_stored_now() -> None:
    machine = machine_of(create(), claim("x", mode=SPARSE), append(by=sparse(4, session="x")))
    assert unchanged(machine, claim("x", mode=SPARSE)) == Claimed("p", 1, 4, 1)


def test_h_a_full_stream_takes_no_new_producer_but_lets_a_known_one_be_claimed() -> None:
    limits = MachineLimits(producers_per_stream=1)
    machine = machine_of(create(), claim("x"), limits=limits)
    full = out.LimitReached("producers_per_stream", 1)
    assert unchanged(machine, claim("x", name="q")) == full
    assert machine.execute(claim("y")) == Claimed("p", 2)


def test_i_the_epoch_cannot_pass_the_largest_number() -> None:
    machine = written(epoch=NUMBER_MAX, session=None)
    assert unchanged(machine, claim("x")) == out.EpochExhausted(NUMBER_MAX)


def test_j_a_producer_nobody_knew_begins_with_1_or_the_epoch_of_the_registry() -> None:
    assert machine_of(create()).execute(claim("x")) == Claimed("p", 1)
    machine = machine_of(create(), REGISTER, REGISTER)
    assert machine.execute(claim("x")) == Claimed("p", 1)
    assert machine.state.registry["p"].epoch == 1


def test_j_a_claim_raises_the_epoch_of_the_registry_with_its_own() -> None:
    machine = machine_of(create(), REGISTER, append(by=dense(0)))
    assert machine.execute(claim("x")) == Claimed("p", 1, 0, 1)
    assert machine.state.registry["p"].epoch == 1
    assert machine.execute(ask.Register(0, "p")) == out.Registered("p", 2)
    assert machine.execute(claim("y")) == Claimed("p", 2, 0, 1)


def test_a_closed_stream_tells_what_it_holds() -> None:
    machine = written()
    machine.execute(append(None, close=True))
    assert machine.execute(claim("x")) == Claimed("p", 2, 1, 2, b"c1")


# ---- the reported state --------------------------------------------------------------------------


def test_one_claim_behind_another_still_tells_of_the_last_append() -> None:
    machine = written()
    machine.execute(claim("x"))
    assert machine.execute(claim("y")) == Claimed("p", 3, 1, 2, b"c1")


def test_a_lone_close_at_the_beginning_ended_at_offset_0() -> None:
    machine = machine_of(create(), append(None, close=True, by=dense(0, session="old")))
    assert machine.execute(claim("x")) == unchanged(machine, claim("x")) == Claimed("p", 2, 0, 0)


def test_of_a_tombstone_the_place_is_no_longer_known_also_not_later() -> None:
    machine = written()
    machine.execute(bury())
    outcome = machine.execute(claim("x"))
    assert outcome == unchanged(machine, claim("x")) == Claimed("p", 2, 1, None, b"c1")


def test_a_tombstone_of_a_claim_remembers_what_the_claim_did() -> None:
    machine = written()
    machine.execute(claim("x"))
    machine.execute(bury())
    assert machine.execute(claim("y")) == Claimed("p", 3, 1, 2, b"c1")


def test_a_sparse_tombstone_keeps_its_last_number() -> None:
    machine = machine_of(create(), append(by=sparse(5, session="old")), bury())
    assert machine.execute(claim("x", mode=SPARSE)) == Claimed("p", 2, 5, None)
    repeat = append(by=sparse(5, session="x"))
    assert unchanged(machine, repeat) == out.Duplicate(None, None, False, 2, 5)


# ---- appends after a claim -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "tag",
    [dense(0, session="x"), dense(0, epoch=2), dense(0, epoch=2, session="x")],
    ids=["session", "epoch", "both"],
)
def test_the_claimer_begins_with_0_and_its_retry_is_a_duplicate(tag: ProducerTag) -> None:
    machine = written()
    machine.execute(claim("x"))
    assert machine.execute(append(b"new", by=tag)) == out.Appended(2, 3, False, 2, 0)
    assert unchanged(machine, append(b"new", by=tag)) == out.Duplicate(2, 3, False, 2, 0)
    row = known(machine)
    assert (row.session, row.cursor, row.first_receipt) == ("x", b"c1", bytes(row.receipts))


@pytest.mark.parametrize(
    ("tag", "refusal"),
    [
        (dense(1, session="x"), out.SequenceGap(0, 1)),
        (dense(1, epoch=2), out.SequenceGap(0, 1)),
        (dense(1), out.SequenceGap(0, 1)),
        (dense(1, session="y"), out.SessionUnknown(2, -1)),
        (dense(1, epoch=3), out.EpochMustStartAtZero(1)),
        (dense(0, epoch=2, session="y"), out.SessionConflict(2)),
    ],
)
def test_nothing_but_0_follows_a_claim(tag: ProducerTag, refusal: out.Outcome) -> None:
    machine = written()
    machine.execute(claim("x"))
    assert unchanged(machine, append(by=tag)) == refusal


def test_a_bare_0_behind_a_claim_is_a_restart_and_fences_the_claimer() -> None:
    """In the claimed epoch, this append would make the claimer's own sequence 0 a duplicate."""
    machine = written()
    machine.execute(claim("x"))
    assert machine.execute(append(b"a", by=dense(0))) == out.Appended(2, 3, False, 3, 0)
    assert unchanged(machine, append(b"z", by=dense(0, session="x"))) == out.StaleSession(3)


def test_a_bare_0_over_the_tombstone_of_a_claim_is_new() -> None:
    machine = written()
    for command in (claim("x"), bury()):
        machine.execute(command)
    assert machine.execute(append(b"a", by=dense(0))) == out.Appended(2, 3, False, 3, 0)


def test_a_new_session_behind_a_claim_takes_the_next_epoch() -> None:
    machine = machine_of(create(), claim("x"))
    assert machine.execute(append(by=dense(0, session="y"))) == out.Appended(0, 1, False, 2, 0)
    assert unchanged(machine, claim("x")) == out.StaleSession(2)


def test_a_claimed_producer_counts_and_its_idle_time_begins_with_the_claim() -> None:
    machine = machine_of(create(), claim("x", now=5))
    assert machine.state.producer_counts.live == 1
    assert unchanged(machine, ask.ExpireProducer("s", 99, "p", 10, 9)) == out.StillAlive()
    machine.execute(ask.ExpireProducer("s", 0, "p", 10, 10))
    assert machine.state.producer_counts.live == 0
    machine.execute(claim("y", now=16))
    assert machine.state.producer_counts.live == 1
    machine.execute(claim("z", now=16))
    assert machine.state.producer_counts.live == 1


def test_the_older_sessions_are_bounded() -> None:
    sessions = [f"n{number}" for number in range(SESSIONS_REMEMBERED + 3)]
    machine = machine_of(create(), *map(claim, sessions))
    assert known(machine).old_sessions == tuple(sessions[-SESSIONS_REMEMBERED - 1 : -1])


def test_a_claim_is_no_write_of_the_stream() -> None:
    machine = machine_of(create(now=1))
    before = snapshot(machine.stream().tail)
    machine.execute(claim("x", now=9))
    assert snapshot(machine.stream().tail) == before
    assert machine.payloads() == []
