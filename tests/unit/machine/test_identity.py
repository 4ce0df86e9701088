"""Producers: the table "Identity", the epoch of an append, sessions and tombstones."""

import pytest
from msgspec.structs import replace

from semel.machine.rows import ProducerRow
from semel.model import commands as ask
from semel.model import outcomes as out
from semel.model.commands import DENSE, SPARSE, ProducerTag
from semel.model.limits import NUMBER_MAX, SESSIONS_REMEMBERED
from tests.unit.machine.builders import (
    Machine,
    append,
    bury,
    create,
    dense,
    machine_of,
    sparse,
    unchanged,
)

REGISTER = ask.Register(0, "p")


def known(machine: Machine) -> ProducerRow:
    producers = machine.stream().producers
    assert producers is not None
    return producers["p"]


# ---- the table -----------------------------------------------------------------------------------


# rows: R10
def test_a_an_all_digit_id_must_have_been_given_out() -> None:
    machine = machine_of(create())
    assert unchanged(machine, append(by=dense(0, name="1"))) == out.UnknownProducer()
    machine.execute(ask.Register(0))
    assert machine.execute(append(by=dense(0, name="1"))) == out.Appended(0, 1, False, 0, 0)


def test_a_an_id_of_other_digits_is_a_name_like_any() -> None:
    tag = dense(0, name="\u0661")
    assert machine_of(create()).execute(append(by=tag)) == out.Appended(0, 1, False, 1, 0)


def test_b_the_mode_is_fixed_also_by_a_tombstone() -> None:
    machine = machine_of(create(), append(by=dense(0)))
    assert unchanged(machine, append(by=sparse(1, epoch=9))) == out.ModeConflict(DENSE)
    machine.execute(bury())
    assert unchanged(machine, append(by=sparse(1, epoch=9))) == out.ModeConflict(DENSE)


# rows: R02
def test_c_the_registry_fences_streams_the_producer_never_wrote() -> None:
    """Registering again fences the older instance everywhere."""
    machine = machine_of(create(), REGISTER, REGISTER)
    assert unchanged(machine, append(by=dense(0, epoch=0))) == out.StaleEpoch(1, 0)


@pytest.mark.parametrize(
    ("tag", "epoch"), [(dense(0), 6), (dense(0, session="s"), 6), (dense(0, epoch=8), 8)]
)
def test_d_a_successor_of_a_tombstone_begins_anew(tag: ProducerTag, epoch: int) -> None:
    first = dense(0, epoch=5, session="old", cursor=b"c")
    machine = machine_of(create(), append(by=first), append(by=dense(1)), bury())
    assert machine.execute(append(b"y", by=tag)) == out.Appended(2, 3, False, epoch, 0)
    row = known(machine)
    assert (row.session, row.old_sessions, row.cursor) == (tag.session, ("old",), b"c")
    assert (row.last_seq, row.is_expired, bytes(row.receipts)) == (0, False, row.first_receipt)


@pytest.mark.parametrize("mode", [DENSE, SPARSE])
def test_d_a_successor_without_an_epoch_is_above_tombstone_and_registry(mode: str) -> None:
    tag = ProducerTag("p", 0, 0, mode=mode)
    machine = machine_of(create(), append(by=tag), *[REGISTER] * 4, bury())
    tag = tag if mode == DENSE else replace(tag, first_seq=1, last_seq=1)
    assert machine.execute(append(b"y", by=tag)) == out.Appended(1, 2, False, 5, tag.last_seq)


# rows: X12
@pytest.mark.parametrize("tag", [dense(0, epoch=5), dense(1, epoch=6), dense(1), dense(0, epoch=4)])
def test_e_a_tombstone_refuses_everyone_else(tag: ProducerTag) -> None:
    """An expired producer is refused with the epoch that it has to exceed."""
    machine = machine_of(create(), append(by=dense(0, epoch=5)), bury())
    assert unchanged(machine, append(by=tag)) == out.ProducerStateExpired(5)


# rows: X12
@pytest.mark.parametrize("session", ["a", "b"])
def test_e_a_tombstone_refuses_the_sessions_it_knows(session: str) -> None:
    """An old instance of an expired producer is not accepted as a new producer."""
    sessions = [append(by=dense(0, session=name)) for name in "ab"]
    machine = machine_of(create(), *sessions, bury())
    late = append(b"y", by=dense(0, session=session))
    assert unchanged(machine, late) == out.ProducerStateExpired(2)


# rows: D09, D11, U09
def test_f_an_older_epoch_is_stale() -> None:
    """An instance with an older epoch is refused with the current epoch."""
    machine = machine_of(create(), append(by=dense(0, epoch=5)))
    assert unchanged(machine, append(by=dense(0, epoch=4))) == out.StaleEpoch(5, 4)


# rows: P07
def test_g_two_sessions_cannot_share_an_epoch() -> None:
    machine = machine_of(create(), append(by=dense(0, epoch=5, session="a")))
    late = append(by=dense(0, epoch=5, session="b"))
    assert unchanged(machine, late) == out.SessionConflict(5)
    own = append(by=dense(1, epoch=5, session="a"))
    assert machine.execute(own) == out.Appended(1, 2, False, 5, 1)
    assert machine.execute(append(by=dense(2, epoch=5))) == out.Appended(2, 3, False, 5, 2)
    assert known(machine).session == "a"


def test_h_an_older_session_is_stale_while_remembered() -> None:
    count = SESSIONS_REMEMBERED + 2
    sessions = [append(by=dense(0, session=f"n{i}")) for i in range(count)]
    machine = machine_of(create(), *sessions)
    assert known(machine).old_sessions == tuple(f"n{i}" for i in range(1, count - 1))
    assert unchanged(machine, append(by=dense(0, session="n1"))) == out.StaleSession(count)
    assert machine.execute(sessions[0]) == out.Appended(count, count + 1, False, count + 1, 0)


@pytest.mark.parametrize("tag", [dense(1, session="a"), dense(0, session="a"), dense(1)])
def test_i_an_overtaken_epoch_is_stale_without_being_named(tag: ProducerTag) -> None:
    machine = machine_of(create(), append(by=dense(0, session="a")), REGISTER)
    assert unchanged(machine, append(by=tag)) == out.StaleEpoch(2)


def test_i_a_sparse_producer_is_overtaken_at_any_sequence() -> None:
    machine = machine_of(create(), append(by=sparse(0)), REGISTER)
    assert unchanged(machine, append(by=sparse(0))) == out.StaleEpoch(2)


def test_i_a_bare_start_restarts_at_the_registered_epoch() -> None:
    machine = machine_of(create(), append(b"a", by=dense(0)), *[REGISTER] * 4)
    assert unchanged(machine, append(b"a", by=dense(0))) == out.Duplicate(0, 1, False, 1, 0)
    assert machine.execute(append(b"b", by=dense(0))) == out.Appended(1, 2, False, 5, 0)


# ---- epochs --------------------------------------------------------------------------------------


# rows: D02, D04
def test_a_first_append_runs_under_its_own_the_registered_or_the_first_epoch() -> None:
    """No handshake is needed. A producer without a registration gets epoch 1."""
    machine = machine_of(create(), ask.Register(0, "r"))
    assert machine.execute(append(by=dense(0, name="a"))) == out.Appended(0, 1, False, 1, 0)
    assert machine.execute(append(by=dense(0, name="r"))) == out.Appended(1, 2, False, 0, 0)
    late = append(by=dense(0, name="b", epoch=7))
    assert machine.execute(late) == out.Appended(2, 3, False, 7, 0)


def test_an_accepted_higher_epoch_raises_the_registry() -> None:
    machine = machine_of(create(), REGISTER, append(by=dense(0, epoch=9)))
    assert machine.state.registry["p"].epoch == 9
    machine.execute(append(by=dense(0, session="b")))
    assert machine.state.registry["p"].epoch == 10


# rows: U04
@pytest.mark.parametrize("tag", [dense(0), dense(0, session="b"), sparse(9, session="b")])
def test_an_epoch_cannot_pass_the_largest_number(tag: ProducerTag) -> None:
    first = ProducerTag("p", 0, 0, NUMBER_MAX, "a", tag.mode)
    machine = machine_of(create(), append(b"a", by=first))
    assert unchanged(machine, append(b"b", by=tag)) == out.EpochExhausted(NUMBER_MAX)
    machine.execute(bury())
    assert unchanged(machine, append(b"b", by=tag)) == out.EpochExhausted(NUMBER_MAX)


def test_an_exhausted_epoch_is_the_last_refusal_of_a_sequence() -> None:
    machine = machine_of(create(), append(by=sparse(5, epoch=NUMBER_MAX)))
    assert unchanged(machine, append(by=sparse(3, session="b"))) == out.SequenceHole(5)
    assert unchanged(machine, append(by=sparse(4, 6, session="b"))) == out.BatchOverlap(5)


# ---- sessions and cursors ------------------------------------------------------------------------


def test_a_raised_epoch_without_a_session_has_none() -> None:
    machine = machine_of(create(), append(by=dense(0, epoch=1, session="a")))
    machine.execute(append(by=dense(0, epoch=2)))
    assert (known(machine).session, known(machine).old_sessions) == (None, ("a",))
    machine.execute(append(by=dense(0, epoch=3)))
    assert (known(machine).session, known(machine).old_sessions) == (None, ("a",))


def test_a_raised_epoch_with_the_same_session_replaces_nothing() -> None:
    machine = machine_of(create(), append(by=dense(0, epoch=1, session="a")))
    machine.execute(append(by=dense(0, epoch=2, session="a")))
    assert (known(machine).session, known(machine).old_sessions) == ("a", ())


def test_a_session_may_join_an_epoch_that_has_none() -> None:
    machine = machine_of(create(), append(by=dense(0, epoch=1)))
    machine.execute(append(by=dense(1, epoch=1, session="a")))
    assert (known(machine).session, known(machine).old_sessions) == ("a", ())


def test_a_session_that_comes_back_leaves_the_older_ones() -> None:
    machine = machine_of(create(), *[append(by=dense(0, session=name)) for name in "ab"])
    machine.execute(append(by=dense(0, epoch=9, session="a")))
    assert (known(machine).session, known(machine).old_sessions) == ("a", ("b",))
    assert machine.execute(append(by=dense(1, session="a"))) == out.Appended(3, 4, False, 9, 1)


# rows: P17, X02
def test_the_cursor_is_kept_until_another_is_given() -> None:
    machine = machine_of(create(), append(by=dense(0, epoch=1, cursor=b"c")))
    machine.execute(append(by=dense(1, epoch=1)))
    machine.execute(append(by=dense(0, epoch=2)))
    assert known(machine).cursor == b"c"
    machine.execute(append(by=dense(1, epoch=2, cursor=b"")))
    assert known(machine).cursor == b""


# rows: D12
def test_a_tombstone_is_what_was_without_the_receipts() -> None:
    first = append(now=5, by=dense(0, session="a", cursor=b"c"))
    machine = machine_of(create(), first, append(now=6, by=dense(1, session="a")))
    before = known(machine)
    machine.execute(bury(now=9))
    row = known(machine)
    assert (row.first_receipt, row.is_expired) == (before.first_receipt, True)
    assert not row.receipts
    assert (row.epoch, row.last_seq, row.session) == (1, 1, "a")
    assert (row.cursor, row.updated_ms) == (b"c", 6)
