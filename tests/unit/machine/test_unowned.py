"""Rules for what has no owner, or not yet: O2, O4, O9 and O10, and R4 of transactions.

The rules are in `docs/reference/access.md`.
"""

import pytest
from msgspec.structs import replace

from semel.machine import access
from semel.machine.access import refuse
from semel.machine.access_events import OwnersChanged
from semel.machine.rows import OwnedKey
from semel.machine.state import State, set_owner
from semel.model.access_commands import ChangeOwner
from semel.model.commands import EngineCommand, FenceTxn, ForgetProducer, Register, SinkTag
from semel.model.outcomes import NotFound, Refusal
from semel.model.outcomes_access import Forbidden
from semel.model.outcomes_txn import UnknownTransaction
from semel.model.producer_commands import RetiredProducer, RetireProducers
from semel.model.rights import (
    ADMIN,
    PRODUCER,
    SINK,
    STREAM,
    TRANSACTION,
    WRITE,
    Caller,
    make_caller,
    parse_scope,
)
from tests.unit.machine.builders import append, claim, dense
from tests.unit.machine.test_access import IN_S, REGISTERED, THE_TXN, world
from tests.unit.machine.txn_builders import (
    TxnMachine,
    abort,
    add_positions,
    add_streams,
    begin,
    by,
    chunk,
    commit,
    one_shot,
    prepare,
    publish,
    stage,
    sunk,
    txn_machine,
)


def who(*scopes: str, principal: str = "me", strict: bool = False, deny: bool = False) -> Caller:
    return make_caller(
        principal, tuple(map(parse_scope, scopes)), is_strict=strict, denies_unowned=deny
    )


def taken(machine: TxnMachine, command: EngineCommand, caller: Caller) -> tuple[OwnedKey, ...]:
    """Execute a command, and return the things that get the caller as their owner."""
    outcome = machine.execute(command)
    assert not isinstance(outcome, Refusal), outcome
    decision = access.decide_owners(machine.state, command, caller, outcome)
    if decision is None:
        return ()
    assert isinstance(decision.event, OwnersChanged)
    return decision.event.things


# ---- pending transactions ------------------------------------------------------------------------


CALLS: tuple[EngineCommand, ...] = (
    publish(),
    chunk(),
    add_streams("s"),
    add_positions(("s", 0)),
    prepare(),
    commit(),
    abort(),
    one_shot(listed=(("t", 1),)),
)
SEES_S = ("stream:s:write,read", "group:*:write")


# O9
@pytest.mark.parametrize("command", CALLS)
def test_a_pending_transaction_of_nobody_is_called_with_write_on_its_streams(
    command: EngineCommand,
) -> None:
    state = world().state
    set_owner(state, REGISTERED, "me")
    assert refuse(state, command, who(*SEES_S)) == UnknownTransaction(), "r is hidden"
    describes = refuse(state, command, who(*SEES_S, "stream:r:read"))
    assert describes == Forbidden(WRITE, STREAM, "r")
    assert refuse(state, command, who(*SEES_S, "stream:r:write")) is None
    set_owner(state, THE_TXN, "me")
    assert refuse(state, command, who(*SEES_S)) is None, "it has begun it"


# O9
def test_the_first_stream_that_is_named_does_not_depend_on_the_order_of_use() -> None:
    machine = txn_machine(begin(streams=("r", "s")))
    assert [row.row.path for row in machine.state.by_number.values()][:2] == ["s", "r"]
    caller = who("stream:r:read", "stream:s:read", "stream:x:write")
    assert refuse(machine.state, commit(), caller) == Forbidden(WRITE, STREAM, "s")


# O9
def test_a_transaction_of_nobody_is_not_taken_by_a_repeated_begin() -> None:
    """A repeat is accepted whatever streams it lists, and makes its caller the owner."""
    state = world().state
    command = begin(streams=())
    assert refuse(state, command, who("stream:s:write")) == Forbidden(ADMIN, TRANSACTION, "t")
    reader = who("stream:s:write", "stream:r:read")
    assert refuse(state, command, reader) == Forbidden(WRITE, STREAM, "r")
    assert refuse(state, command, who("stream:s:write", "stream:r:write")) is None
    set_owner(state, THE_TXN, "me")
    assert refuse(state, command, who("stream:x:write")) is None


# O9
def test_a_transaction_of_nobody_that_has_ended_needs_no_stream() -> None:
    machine = world()
    machine.execute(abort())
    for command in (commit(), abort(), FenceTxn(0, "t", 1)):
        assert refuse(machine.state, command, who("stream:x:write")) is None


# O9
def test_a_transaction_of_nobody_is_not_fenced_without_admin() -> None:
    state, command = world().state, FenceTxn(0, "t", 1)
    writer = ("stream:s:write", "stream:r:write")
    assert refuse(state, command, who(*writer)) == UnknownTransaction()
    seen = who(*writer, "transaction:t:describe")
    assert refuse(state, command, seen) == Forbidden(ADMIN, TRANSACTION, "t")
    assert refuse(state, command, who(*writer, "transaction:t:admin")) is None
    set_owner(state, THE_TXN, "me")
    assert refuse(state, command, who(*writer)) is None


# ---- producers -----------------------------------------------------------------------------------


ENDS = (
    ForgetProducer("s", 0, "p"),
    RetireProducers(0, (RetiredProducer("p", "s", 0),)),
    ChangeOwner(0, PRODUCER, "p", "s", "me"),
)


# O1, O9
@pytest.mark.parametrize("command", ENDS)
def test_a_producer_of_nobody_is_ended_with_admin_on_it_or_on_its_stream(
    command: EngineCommand,
) -> None:
    state = world().state
    set_owner(state, REGISTERED, "me")
    assert refuse(state, command, who("stream:s:write")) == Forbidden(ADMIN, PRODUCER, "p")
    assert refuse(state, command, who("stream:s:admin")) is None
    assert refuse(state, command, who("stream:s:write", "producer:p:admin")) is None
    set_owner(state, IN_S, "me")
    set_owner(state, REGISTERED, "other")
    assert refuse(state, command, who("stream:s:write")) is None, "the registration stays"


@pytest.mark.parametrize(
    "command",
    [
        ForgetProducer("r", 0, "p"),
        RetireProducers(0, (RetiredProducer("p", "r", 0), RetiredProducer("x"))),
        ChangeOwner(0, PRODUCER, "p", "r", "me"),
        ChangeOwner(0, SINK, "none", owner="me"),
    ],
)
def test_what_does_not_exist_is_everybody_s(command: EngineCommand) -> None:
    state = world().state
    set_owner(state, REGISTERED, "other")
    assert refuse(state, command, who("stream:r:write")) is None


@pytest.mark.parametrize(
    "command",
    [ForgetProducer("gone", 0, "p"), RetireProducers(0, (RetiredProducer("p", "gone", 0),))],
)
def test_a_producer_in_a_missing_stream_is_nobody_s(command: EngineCommand) -> None:
    assert refuse(world().state, command, who("stream:gone:write")) is None
    assert refuse(world().state, command, who("stream:s:write")) == NotFound()


# O4
@pytest.mark.parametrize(
    ("command", "is_append"),
    [(append(by=dense(1)), True), (publish(), True), (claim("c"), False)],
)
def test_a_use_in_a_stream_needs_the_registration_except_an_append_by_the_owner(
    command: EngineCommand, is_append: bool
) -> None:
    state = world().state
    set_owner(state, THE_TXN, "me")
    set_owner(state, REGISTERED, "other")
    forbidden = Forbidden(ADMIN, PRODUCER, "p")
    assert refuse(state, command, who("stream:s:write")) == forbidden
    assert refuse(state, command, who("stream:s:admin")) == forbidden
    set_owner(state, IN_S, "other")
    assert refuse(state, command, who("stream:s:admin")) == forbidden
    assert refuse(state, command, who("stream:s:write", "producer:p:admin")) is None
    set_owner(state, IN_S, "me")
    expected = None if is_append else forbidden
    assert refuse(state, command, who("stream:s:write")) == expected
    set_owner(state, REGISTERED, "me")
    assert refuse(state, command, who("stream:s:write")) is None


# O2, O4
def test_an_append_takes_no_registration() -> None:
    assert taken(world(), append(by=dense(1)), who("stream:s:write")) == (IN_S,)
    assert taken(world(), claim("c"), who("stream:s:write")) == (IN_S,)


# R4
@pytest.mark.parametrize("command", [begin("v", by("new"), streams=()), one_shot(producer="new")])
def test_with_strict_rights_a_transaction_registers_an_id_only_with_write_on_it(
    command: EngineCommand,
) -> None:
    scopes = ("stream:s:write", "cluster:IdempotentWrite")
    assert refuse(world().state, command, who(*scopes)) is None
    refused = refuse(world().state, command, who(*scopes, strict=True))
    assert refused == Forbidden(WRITE, PRODUCER, "new")
    assert refuse(world().state, command, who(*scopes, "producer:n*:write", strict=True)) is None
    machine = world()
    machine.execute(Register(0, "new"))
    assert refuse(machine.state, command, who(*scopes, strict=True)) is None


# ---- sinks before their first commit -------------------------------------------------------------


K: OwnedKey = (TRANSACTION, 0, "k")
L: OwnedKey = (TRANSACTION, 0, "l")
FOR_THE_SINK = (stage("m", sunk(2, 3)), one_shot(sink=SinkTag("app", "query", 1)))
WRITER = ("stream:s:write", "stream:r:write")


def sink_of(*owners: str | None) -> State:
    """Return a state in which a sink has pending transactions, but no commit yet."""
    machine = txn_machine(stage("k", sunk(1)), stage("l", sunk(1, 2)))
    for key, owner in zip((K, L), owners, strict=True):
        if owner is not None:
            set_owner(machine.state, key, owner)
    assert machine.state.sinks == {}
    return machine.state


# O10
@pytest.mark.parametrize("command", FOR_THE_SINK)
@pytest.mark.parametrize(
    ("owners", "is_allowed"),
    [
        (("other", "other"), False),
        (("me", "me"), True),
        (("other", "me"), True),
        (("me", "other"), True),
        ((None, None), True),
        (("other", None), True),
    ],
)
def test_a_sink_without_a_commit_is_used_by_who_has_its_transactions(
    command: EngineCommand, owners: tuple[str | None, str | None], is_allowed: bool
) -> None:
    refused = refuse(sink_of(*owners), command, who(*WRITER))
    assert refused == (None if is_allowed else Forbidden(ADMIN, SINK, "app"))
    assert refuse(sink_of(*owners), command, who(*WRITER, "sink:app:admin")) is None
    denied = refuse(sink_of(*owners), command, who(*WRITER, deny=True))
    assert denied == (None if "me" in owners else Forbidden(ADMIN, SINK, "app"))


# O10
@pytest.mark.parametrize("command", FOR_THE_SINK)
def test_a_sink_with_a_commit_is_used_by_its_owner(command: EngineCommand) -> None:
    machine = txn_machine(one_shot(sink=SinkTag("app", "query", 0)), stage("k", sunk(1)))
    set_owner(machine.state, K, "other")
    set_owner(machine.state, (SINK, 0, "app"), "me")
    assert refuse(machine.state, command, who(*WRITER)) is None
    set_owner(machine.state, (SINK, 0, "app"), "other")
    assert refuse(machine.state, command, who(*WRITER)) == Forbidden(ADMIN, SINK, "app")


# O10
def test_a_begin_for_a_sink_does_not_take_its_other_transactions() -> None:
    machine = txn_machine(stage("k", sunk(1)))
    assert taken(machine, stage("m", sunk(2, 3)), who(*WRITER)) == ((TRANSACTION, 0, "m"),)
    assert K not in machine.state.owners


def test_the_transactions_of_another_sink_do_not_count() -> None:
    state = sink_of("other", "other")
    command = one_shot(sink=SinkTag("app2", "query", 1))
    assert refuse(state, command, who(*WRITER)) is None
    assert refuse(state, replace(command, sink=SinkTag("app", "q", 1)), who(*WRITER)) is not None
