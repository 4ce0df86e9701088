"""The ends of producers: idle times, retirement and tombstones."""

import pytest
from msgspec.structs import replace

from semel.machine import MachineLimits, apply
from semel.machine.events import (
    ProducerDeclared,
    StreamAppended,
    StreamDeleted,
    TombstonesDropped,
    producer_in,
)
from semel.machine.lifetimes import leave_hour
from semel.machine.rows import OutcomeRow
from semel.machine.state import STATE_TABLES, State, find_producer
from semel.machine.txn.lookup import is_outcome_retained
from semel.model import commands as ask
from semel.model import outcomes as out
from semel.model import outcomes_txn as txn_out
from semel.model.commands import EngineCommand, ProducerOwner, ProducerTag, TxnTag
from semel.model.producer_commands import (
    DropTombstones,
    ExpireRegistration,
    RetiredProducer,
    RetireProducers,
    Tombstone,
)
from tests.unit.machine.builders import (
    Machine,
    append,
    bury,
    claim,
    create,
    dense,
    fork,
    hours,
    machine_of,
    reloaded,
    sparse,
    unchanged,
)

IDLE_MS = 60_000
STAYS_MS = 600_000


def expiring(seq: int, *, name: str = "p", session: str | None = "x") -> ProducerTag:
    return replace(dense(seq, session=session, name=name), expires_ms=IDLE_MS)


def retire(*entries: RetiredProducer) -> RetireProducers:
    return RetireProducers(0, entries)


def row_of(session: str | None = "x", *, epoch: int | None = None) -> RetiredProducer:
    return RetiredProducer("p", "s", epoch, session)


def refusals(machine: Machine, *entries: RetiredProducer) -> list[out.Refusal | None]:
    outcome = unchanged(machine, retire(*entries))
    assert isinstance(outcome, out.Retired)
    return [result.refusal for result in outcome.results]


def drop(*tombstones: Tombstone, after: int = 168) -> DropTombstones:
    return DropTombstones(0, tombstones, after)


def counts(machine: Machine, path: str = "s") -> tuple[int, int, int]:
    """Return the numbers of lasting and expiring producers, and of tombstones."""
    producers = machine.stream(path).producers
    assert producers is not None
    return producers.lasting, producers.expiring, len(producers.tombstones)


def publish(seq: int, *, expires_ms: int = 0) -> ask.Append:
    tag = replace(dense(seq, epoch=0), expires_ms=expires_ms)
    return replace(append(by=tag), transaction=TxnTag("t", 1))


def begin(name: str = "p", epoch: int = 0) -> ask.Begin:
    return ask.Begin(0, "t", ProducerOwner(name, epoch), streams=("s",))


def fall_silent(machine: Machine, elapsed_ms: int, name: str = "p") -> out.Outcome:
    return machine.execute(ask.ExpireProducer("s", 0, name, 1 << 50, elapsed_ms))


# ---- idle times ----------------------------------------------------------------------------------


def test_an_idle_time_is_declared_once_and_kept() -> None:
    machine = machine_of(create(), append(by=expiring(0)), append(by=expiring(1)))
    later = [dense(2, session="x"), replace(dense(3, session="x"), expires_ms=2 * IDLE_MS)]
    for tag in later:
        machine.execute(append(by=tag))
    kinds = [type(written.event) for written in machine.journal[1:]]
    assert kinds == [ProducerDeclared, StreamAppended, StreamAppended, ProducerDeclared]
    row = find_producer(machine.stream(), "p")
    assert row is not None
    assert (row.expires_ms, row.last_seq) == (2 * IDLE_MS, 3)


def test_a_lasting_producer_can_become_expiring() -> None:
    machine = machine_of(create(), append(by=dense(0, session="x")))
    assert counts(machine) == (1, 0, 0)
    machine.execute(append(by=expiring(1)))
    assert counts(machine) == (0, 1, 0)
    assert machine.state.producer_counts.expiring == {"p": 1}


def test_an_idle_time_survives_a_new_epoch_and_a_claim_and_not_a_tombstone() -> None:
    machine = machine_of(create(), append(by=expiring(0)))
    machine.execute(append(by=dense(0, epoch=9)))
    assert counts(machine) == (0, 1, 0)
    machine.execute(claim("y"))
    assert counts(machine) == (0, 1, 0)
    fall_silent(machine, IDLE_MS)
    machine.execute(append(by=dense(0, session="z")))
    assert counts(machine) == (1, 0, 0)


@pytest.mark.parametrize("has_txn", [False, True])
def test_a_claim_declares_an_idle_time(has_txn: bool) -> None:
    machine = machine_of(create())
    if has_txn:
        machine.execute(begin())
    machine.execute(replace(claim("x"), expires_ms=IDLE_MS))
    assert counts(machine) == (0, 1, 0)


def test_an_append_that_fences_a_transaction_declares_an_idle_time() -> None:
    machine = machine_of(create(), begin(), publish(0))
    assert counts(machine) == (1, 0, 0)
    machine.execute(append(by=replace(dense(0, epoch=1), expires_ms=IDLE_MS)))
    assert counts(machine) == (0, 1, 0)
    assert not machine.state.by_txn


def test_a_publish_declares_an_idle_time_and_a_new_instance_keeps_it() -> None:
    machine = machine_of(create(), begin(), publish(0, expires_ms=IDLE_MS), publish(1))
    assert counts(machine) == (0, 1, 0)
    machine.execute(begin(epoch=1))
    tag = TxnTag("t", 2)
    machine.execute(replace(append(by=dense(0, epoch=1)), transaction=tag))
    assert counts(machine) == (0, 1, 0)


def test_only_a_producer_that_is_idle_ends() -> None:
    machine = machine_of(create(), append(by=expiring(0)))
    assert fall_silent(machine, IDLE_MS - 1) == out.StillAlive()
    assert fall_silent(machine, IDLE_MS) == out.Forgotten()
    assert counts(machine) == (0, 0, 1)
    row = find_producer(machine.stream(), "p")
    assert row is not None
    assert (row.is_brief, row.expires_ms, row.tombstone) == (True, 0, 1)


def test_expiring_producers_have_their_own_limit() -> None:
    limits = MachineLimits(producers_per_stream=1, expiring_producers_per_stream=1)
    machine = machine_of(
        create(), append(by=dense(0)), append(by=expiring(0, name="q")), limits=limits
    )
    lasting = out.LimitReached("producers_per_stream", 1)
    full = out.LimitReached("expiring_producers_per_stream", 1)
    assert unchanged(machine, append(by=dense(0, name="r"))) == lasting
    assert unchanged(machine, append(by=expiring(0, name="r"))) == full
    assert unchanged(machine, claim("z", name="r")) == lasting
    assert unchanged(machine, replace(claim("z", name="r"), expires_ms=IDLE_MS)) == full
    became = append(by=replace(dense(1, epoch=1), expires_ms=IDLE_MS))
    assert unchanged(machine, became) == full
    assert unchanged(machine, replace(claim("z"), expires_ms=IDLE_MS)) == full
    assert machine.execute(append(by=expiring(1, name="q"))) == out.Appended(2, 3, False, 1, 1)


def test_an_event_names_its_producer_or_none() -> None:
    assert producer_in(StreamAppended(1)) is None
    assert producer_in(StreamDeleted(1)) is None


# ---- registrations -------------------------------------------------------------------------------


def registered(name: str | None = None, *, expires_ms: int = IDLE_MS) -> ask.Register:
    return ask.Register(0, name, 0, expires_ms)


def test_an_idle_time_counts_only_for_a_new_id() -> None:
    machine = machine_of(registered("a"), registered("b", expires_ms=0))
    for name in ("a", "b"):
        machine.execute(ask.Register(0, name, 0, 2 * IDLE_MS))
    found = {name: row.expires_ms for name, row in machine.state.registry.items()}
    assert found == {"a": IDLE_MS, "b": 0}


def test_an_append_gets_the_idle_time_of_its_registration() -> None:
    machine = machine_of(create(), registered(), append(by=dense(0, epoch=0, name="1")))
    assert counts(machine) == (0, 1, 0)
    silent = ExpireRegistration(0, "1", 10 * IDLE_MS)
    assert unchanged(machine, silent) == out.StillAlive(), "it is in use on a stream"
    fall_silent(machine, IDLE_MS, "1")
    assert machine.execute(silent) == out.Forgotten()
    late = append(by=dense(1, epoch=0, name="1"))
    assert unchanged(machine, late) == out.UnknownProducer()


def test_an_unused_registration_ends() -> None:
    machine = machine_of(create(), registered("p"), begin())
    silent = ExpireRegistration(0, "p", IDLE_MS)
    assert unchanged(machine, silent) == out.StillAlive(), "a transaction is pending"
    machine.execute(ask.AbortTxn(0, "t", 1, "p", 0))
    assert unchanged(machine, replace(silent, elapsed_ms=IDLE_MS - 1)) == out.StillAlive()
    assert machine.execute(silent) == out.Forgotten()
    assert unchanged(machine, silent) == out.UnknownProducer()
    assert unchanged(machine, replace(silent, id="q")) == out.UnknownProducer()


def test_a_soft_deleted_stream_has_no_producers_so_their_registrations_end() -> None:
    machine = machine_of(create(), registered(), append(by=dense(0, name="1", epoch=0)), fork())
    machine.execute(append(by=dense(0, name="lasting")))
    end = ExpireRegistration(0, "1", IDLE_MS)
    assert machine.execute(end) == out.StillAlive()
    machine.execute(ask.Delete("s", 0))
    assert machine.stream().producers is None
    assert (machine.state.producer_counts.live, machine.state.producer_counts.expiring) == (0, {})
    assert machine.state.dirty.producers[1, "lasting"] is None
    assert machine.execute(end) == out.Forgotten()


def test_producers_that_an_older_version_kept_in_a_soft_deleted_stream_are_dropped() -> None:
    machine = machine_of(create(), append(by=dense(0)), fork())
    row = find_producer(machine.stream(), "p")
    machine.execute(ask.Delete("s", 0))
    dropped = TombstonesDropped(((1, "p"),))
    apply(machine.state, dropped, (), 0, 0)  # of an older version, which found it there
    state = machine.state
    STATE_TABLES["producers"].load(state, (1, "p"), row)
    assert (machine.stream().producers, state.dirty.producers[1, "p"]) == (None, None)


def test_a_row_of_a_retired_registration_of_the_server_is_refused() -> None:
    machine = machine_of(create(), ask.Register(0), append(by=dense(0, epoch=0, name="1")))
    machine.execute(retire(RetiredProducer("1", None, 0)))
    assert machine.state.registry == {}
    late = append(by=dense(1, epoch=0, name="1"))
    assert unchanged(machine, late) == out.UnknownProducer(), "although it would continue"
    assert refusals(machine, RetiredProducer("1", None, 0)) == [out.UnknownProducer()]


def test_the_outcomes_of_a_retired_registration_of_the_server_stay() -> None:
    machine = machine_of(create(), ask.Register(0), begin("1"))
    state = machine.state
    machine.execute(ask.AbortTxn(0, "t", 1, "1", 0))
    machine.execute(retire(RetiredProducer("1", None, 0)))
    row = _outcome_of("1")
    assert is_outcome_retained(state, row)
    for command in hours(state.limits.outcome_hours + 1):
        machine.execute(command)
    assert not is_outcome_retained(state, row)


def _outcome_of(name: str) -> OutcomeRow:
    outcome = ask.TxnOutcome("t", 1, ask.ABORTED, ask.BY_REQUEST, 0, ask.TxnResult())
    return OutcomeRow(1, 0, ProducerOwner(name, 0), outcome)


def test_a_retired_registration_with_a_name_stays_until_its_outcomes_are_gone() -> None:
    machine = machine_of(ask.Register(0, "p"), limits=MachineLimits(outcome_hours=2))
    named = RetiredProducer("p", None, 0)
    machine.execute(retire(named))
    assert refusals(machine, named) == [None]
    gone = drop(Tombstone(0, "p"), Tombstone(0, "q"), after=1)
    for _ in range(2 + 24):
        machine.execute(hours(1)[0])
        assert unchanged(machine, gone) == out.DropDone(0)
    machine.execute(hours(1)[0])
    assert machine.execute(gone) == out.DropDone(1)
    assert machine.state.registry == {}
    assert machine.state.dirty.registry == {"p": None}


@pytest.mark.parametrize("use", [ask.Register(0, "p"), begin(), begin(epoch=1)])
def test_a_use_ends_the_retirement_of_a_registration(use: EngineCommand) -> None:
    machine = machine_of(create(), ask.Register(0, "p"), retire(RetiredProducer("p", None, 0)))
    machine.execute(use)
    assert machine.state.registry["p"].retired_hour == -1
    assert leave_hour(machine.state, 0, "p", 1) is None


def test_a_retired_registration_with_a_pending_transaction_is_not_dropped() -> None:
    machine = machine_of(create(), ask.Register(0, "p"), begin())
    machine.state.registry["p"] = replace(machine.state.registry["p"], retired_hour=0)
    for command in hours(400):
        machine.execute(command)
    assert unchanged(machine, drop(Tombstone(0, "p"))) == out.DropDone(0)


# ---- retirement ----------------------------------------------------------------------------------


def test_a_retired_producer_refuses_late_copies() -> None:
    machine = machine_of(create(), append(b"a", by=expiring(0)), append(b"b", by=expiring(1)))
    assert machine.execute(retire(row_of(), row_of())) == out.Retired(
        (out.RetireResult("p", "s"), out.RetireResult("p", "s"))
    )
    assert refusals(machine, row_of()) == [None]
    for seq in (0, 1, 2):
        assert unchanged(machine, append(by=expiring(seq))) == out.ProducerStateExpired(1)
    fresh = append(by=dense(0, session="y"))
    assert machine.execute(fresh) == out.Appended(2, 3, False, 2, 0)


def test_a_higher_epoch_can_follow_a_retired_producer_at_once() -> None:
    machine = machine_of(create(), append(by=dense(0, epoch=4)), retire(row_of(None, epoch=4)))
    assert machine.execute(append(by=dense(0, epoch=5))) == out.Appended(1, 2, False, 5, 0)


def test_a_sparse_producer_is_retired_with_what_it_has_stored() -> None:
    machine = machine_of(create(), append(by=sparse(3, session="x")), retire(row_of()))
    again = append(by=sparse(3, session="y"))
    assert unchanged(machine, again) == out.Duplicate(None, None, False, 1, 3)


@pytest.mark.parametrize(
    ("entry", "refusal"),
    [
        (RetiredProducer("p", "t", None, "y"), out.NotFound()),
        (RetiredProducer("q", "s", None, "y"), out.UnknownProducer()),
        (row_of("x"), out.StaleSession(2)),
        (row_of("y", epoch=1), out.StaleEpoch(2, 1)),
        (row_of(None, epoch=3), out.UnknownProducer()),
        (row_of("z"), out.UnknownProducer()),
        (row_of("y"), None),
        (row_of("y", epoch=2), None),
        (RetiredProducer("p", None, 2), out.UnknownProducer()),
    ],
)
def test_only_the_current_instance_retires_a_producer(
    entry: RetiredProducer, refusal: out.Refusal | None
) -> None:
    machine = machine_of(create(), append(by=expiring(0)), append(by=expiring(0, session="y")))
    outcome = machine.execute(retire(entry))
    assert outcome == out.Retired((out.RetireResult(entry.id, entry.path, refusal),))
    assert counts(machine) == ((0, 1, 0) if refusal else (0, 0, 1))


def test_an_instance_that_the_registry_fenced_retires_nothing() -> None:
    machine = machine_of(create(), append(by=dense(0, epoch=0)), ask.Register(0, "p"))
    assert refusals(machine, row_of(None, epoch=0)) == [out.StaleEpoch(1, 0)]
    assert refusals(machine, RetiredProducer("p", None, 0)) == [out.StaleEpoch(1, 0)]


def test_a_producer_with_a_pending_transaction_is_not_retired() -> None:
    machine = machine_of(create(), begin(), publish(0))
    both = (row_of(None, epoch=0), RetiredProducer("p", None, 0))
    expected = [txn_out.StreamInTransaction("t"), txn_out.ConcurrentTransactions("t")]
    assert refusals(machine, *both) == expected
    machine.execute(ask.CommitTxn(0, "t", 1, "p", 0))
    machine.execute(retire(*both))
    assert refusals(machine, *both) == [None, None]


@pytest.mark.parametrize(
    "entries",
    [
        (),
        (row_of(),) * 1001,
        (RetiredProducer("p", "s"),),
        (RetiredProducer("p", None, None, "x"),),
        (RetiredProducer("", "s", 0),),
        (RetiredProducer("p", "", 0),),
        (RetiredProducer("p", "s", -1),),
        (RetiredProducer("p", "s", 0, ""),),
    ],
)
def test_an_invalid_retirement_is_refused(entries: tuple[RetiredProducer, ...]) -> None:
    assert isinstance(unchanged(Machine(), retire(*entries)), out.InvalidRequest)


@pytest.mark.parametrize("expires_ms", [1, IDLE_MS - 1, 604_800_001, -1])
def test_an_invalid_idle_time_is_refused(expires_ms: int) -> None:
    machine = machine_of(create())
    commands: list[EngineCommand] = [
        append(by=replace(dense(0, epoch=0), expires_ms=expires_ms)),
        replace(claim("x"), expires_ms=expires_ms),
        registered(expires_ms=expires_ms),
        ExpireRegistration(0, "", 0),
    ]
    for command in commands:
        assert isinstance(unchanged(machine, command), out.InvalidRequest)


# ---- tombstones ----------------------------------------------------------------------------------


def test_a_brief_tombstone_leaves_after_10_minutes() -> None:
    machine = machine_of(create(), append(by=expiring(0)), retire(row_of()), *hours(500))
    early = Tombstone(1, "p", STAYS_MS - 1)
    assert unchanged(machine, drop(early)) == out.DropDone(0)
    due = replace(early, elapsed_ms=STAYS_MS)
    assert machine.execute(drop(due, due, early)) == out.DropDone(1)
    assert counts(machine) == (0, 0, 0)
    assert machine.execute(append(by=expiring(0))) == out.Appended(1, 2, False, 1, 0)


def test_the_tombstone_of_an_idle_producer_leaves_after_hours() -> None:
    machine = machine_of(create(), *hours(3), append(by=dense(0)), bury(), *hours(2))
    due = drop(Tombstone(1, "p", STAYS_MS), after=2)
    assert unchanged(machine, due) == out.DropDone(0)
    machine.execute(hours(1)[0])
    assert machine.execute(due) == out.DropDone(1)


def test_only_tombstones_are_dropped() -> None:
    machine = machine_of(create(), append(by=dense(0)), *hours(500))
    wrong = (Tombstone(1, "p", STAYS_MS), Tombstone(1, "q", STAYS_MS), Tombstone(7, "p", STAYS_MS))
    assert unchanged(machine, drop(*wrong)) == out.DropDone(0)


def test_the_oldest_tombstones_leave_first() -> None:
    machine = Machine(MachineLimits(tombstones_per_stream=2))
    machine.execute(create())
    for name in ("z", "b", "a"):
        machine.execute(append(by=dense(0, name=name)))
        machine.execute(bury(name))
    assert list(machine.stream().producers or ()) == ["b", "a"]
    assert machine.state.dirty.producers[1, "z"] is None
    twin = reloaded(machine.state)
    producers = twin.by_path["s"].producers
    assert producers is not None
    assert list(producers.tombstones) == ["b", "a"], "the order survives a checkpoint"
    assert twin.producer_counts.tombstones == 2


def test_a_tombstone_of_an_older_version_begins_its_hours_when_it_is_loaded() -> None:
    machine = machine_of(create(), append(by=dense(0)), bury(), *hours(300))
    producers = machine.stream().producers
    assert producers is not None
    producers["p"] = replace(producers["p"], tombstone=0, hour=-1, ended_ms=0)
    twin = reloaded(machine.state)
    row = find_producer(twin.by_path["s"], "p")
    assert row is not None
    assert (row.hour, twin.dirty.producers) == (300, {(1, "p"): row})


def test_idle_times_of_an_older_version_begin_when_they_are_loaded() -> None:
    machine = machine_of(create(), registered("r"), append(by=expiring(0)), *hours(300))
    producers, registry = machine.stream().producers, machine.state.registry
    assert producers is not None
    assert (producers["p"].hour, registry["r"].used_hour) == (0, 0)
    producers["p"] = replace(producers["p"], hour=-1)
    registry["r"] = replace(registry["r"], used_hour=-1)
    twin = reloaded(machine.state)
    row = find_producer(twin.by_path["s"], "p")
    assert row is not None
    assert (row.hour, twin.dirty.producers) == (300, {(1, "p"): row})
    assert twin.registry["r"].used_hour == 300
    assert twin.dirty.registry == {"r": twin.registry["r"]}


def test_each_use_notes_its_hour() -> None:
    machine = machine_of(create(), registered("r"), registered("lasting", expires_ms=0))
    uses: tuple[EngineCommand, ...] = (
        append(by=expiring(0)),
        append(by=expiring(1)),
        claim("y"),
        append(by=sparse(0, name="q")),
    )
    for number, use in enumerate(uses, 1):
        machine.execute(hours(1)[0])
        machine.execute(use)
        row = find_producer(machine.stream(), "q" if use is uses[-1] else "p")
        assert row is not None
        assert row.hour == number
    machine.execute(begin("r"))
    assert machine.state.registry["r"].used_hour == len(uses)
    assert machine.state.registry["lasting"].used_hour == -1


def test_the_end_of_its_last_expiring_producer_ends_the_use_of_a_registration() -> None:
    for end in (
        ask.ForgetProducer("s", 0, "1"),
        ask.Delete("s", 0),
        retire(RetiredProducer("1", "s", 0)),
    ):
        machine = machine_of(create(), registered(), append(by=dense(0, name="1")), *hours(5))
        assert machine.state.registry["1"].used_hour == 0
        machine.execute(end)
        assert machine.state.registry["1"].used_hour == 5


def test_counts_follow_every_end() -> None:
    machine = machine_of(
        create(),
        append(by=expiring(0)),
        append(by=dense(0, name="q")),
        append(by=dense(0, name="r")),
        bury("r"),
    )
    assert counts(machine) == (1, 1, 1)
    machine.execute(ask.ForgetProducer("s", 0, "p"))
    machine.execute(ask.ForgetProducer("s", 0, "r"))
    assert counts(machine) == (1, 0, 0)
    assert machine.state.producer_counts.expiring == {}


@pytest.mark.parametrize("end", [ask.Delete("s", 0), ask.SwitchDedup("s", 0, False)])
def test_counts_follow_the_end_of_a_stream(end: EngineCommand) -> None:
    story = (create("t"), append(path="t", by=expiring(0)), create(), append(by=expiring(0)))
    machine = machine_of(*story, append(by=dense(0, name="q")), bury("q"))
    found = machine.state.producer_counts
    assert (found.live, found.tombstones, found.expiring) == (2, 1, {"p": 2})
    machine.execute(end)
    assert (found.live, found.tombstones, found.expiring) == (1, 0, {"p": 1})


def test_an_empty_state_has_nothing_to_watch() -> None:
    assert State().producer_counts.to_watch == []


def test_what_can_end_is_to_be_watched() -> None:
    machine = machine_of(create(), append(by=expiring(0)), retire(row_of()), registered("n"))
    assert machine.state.producer_counts.to_watch == [(1, "p"), (1, "p"), (0, "n")]
    machine.execute(retire(RetiredProducer("n", None, 0)))
    assert sorted(set(reloaded(machine.state).producer_counts.to_watch)) == [(0, "n"), (1, "p")]
