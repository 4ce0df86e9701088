"""Whether a caller may execute a command: the table of needs, owners, tokens and reserved paths.

`docs/reference/access.md` is the rule book. Each row of its table "What each command needs" is a
case here, with the rights and the things that it names.
"""

import re
from pathlib import Path
from typing import get_args

import pytest
from msgspec import Struct
from msgspec.structs import replace

from semel.machine import access
from semel.machine.access import (
    may_take,
    refuse,
)
from semel.machine.access_events import OwnersChanged
from semel.machine.rows import OwnedKey
from semel.machine.state import State, set_owner
from semel.machine.tokens import exists
from semel.model.access_commands import ChangeOwner, CreateToken, NoteTokenUses, RevokeToken
from semel.model.commands import (
    Batch,
    Delete,
    EngineCommand,
    Expire,
    ExpireTxn,
    FenceTxn,
    ForgetProducer,
    PinSnapshot,
    PositionMove,
    Register,
    SetPositions,
    SinkTag,
    SnapshotRange,
    SwitchDedup,
    Trim,
    TxnTag,
)
from semel.model.group_commands import DeleteGroup
from semel.model.outcomes import NotFound, Refusal, UnknownPolicy
from semel.model.outcomes_access import (
    Forbidden,
    UnknownThing,
)
from semel.model.outcomes_groups import UnknownGroup
from semel.model.outcomes_subscriptions import (
    NO_WAKE_STREAM,
    UnknownSubscription,
    WakeStreamRefused,
)
from semel.model.outcomes_topics import TopicNotFound
from semel.model.outcomes_txn import StreamRefused, UnknownSink, UnknownTransaction
from semel.model.policies import DeletePolicy, SetPolicy
from semel.model.producer_commands import (
    CountHour,
    DropTombstones,
    ExpireRegistration,
    RetiredProducer,
    RetireProducers,
)
from semel.model.rights import (
    ADMIN,
    ALL_RIGHTS,
    CLUSTER,
    CREATE,
    DELETE,
    DESCRIBE,
    GROUP,
    IDEMPOTENT,
    POLICY,
    PRODUCER,
    READ,
    SINK,
    STREAM,
    SUBSCRIPTION,
    TOPIC,
    TRANSACTION,
    TRANSACTIONAL,
    WRITE,
    Caller,
    Scope,
    dead_letters_of,
    is_granted,
    make_caller,
    parse_scope,
    retries_of,
)
from semel.model.sink_commands import ForgetSink, RebindSink
from semel.model.subscription_commands import (
    PULL_WAKE,
    WEBHOOK,
    AckWake,
    ClaimWake,
    CreateSubscription,
    DeleteSubscription,
    ExpireWake,
    IssueWake,
    LinkStreams,
    NoteDelivery,
    ReleaseWake,
    ResumeSubscription,
    UnlinkStream,
    WakeAck,
)
from semel.model.topic_commands import CloseTopic, DeleteTopic
from tests.unit.machine.builders import JSON, append, bury, claim, create, dense, fork
from tests.unit.machine.topic_builders import (
    append_topic,
    create_topic,
    expire,
    grow,
    join,
    leave,
    rebalance,
    release,
    take,
)
from tests.unit.machine.txn_builders import (
    TxnMachine,
    abort,
    add_positions,
    add_streams,
    begin,
    by,
    chunk,
    commit,
    fence,
    one_shot,
    prepare,
    publish,
    stage,
    sunk,
    txn_machine,
)

PAGE = Path(__file__).resolve().parents[3] / "docs" / "reference" / "access.md"
SINK_TAG = SinkTag("app", "query", 2)


def world() -> TxnMachine:
    """Return a machine in which everything exists that the commands of the table use.

    There are the streams s, r and source; the producer p in s, and its registration; the
    transaction t of p; the sink `app`, and its staged transaction u; the topic o with p in it; the
    wake stream w, and its subscription sub.
    """
    return txn_machine(
        create("source"),
        Register(0, "p"),
        append(by=dense(0, epoch=0)),
        begin(),
        one_shot(sink=replace(SINK_TAG, version=1)),
        stage("u", sunk(2)),
        prepare("u"),
        SetPolicy(0, "logs", dedup=False),
        create_topic("o", 1),
        append_topic((b"k", b"1"), path="o", by=dense(0, epoch=0)),
        create("w", kind=JSON),
        SUBSCRIBE,
    )


IN_S: OwnedKey = (PRODUCER, 1, "p")
IN_TOPIC: OwnedKey = (PRODUCER, 4, "p")
REGISTERED: OwnedKey = (PRODUCER, 0, "p")
THE_TXN: OwnedKey = (TRANSACTION, 0, "t")
STAGED_TXN: OwnedKey = (TRANSACTION, 0, "u")
THE_SINK: OwnedKey = (SINK, 0, "app")
THE_SUBSCRIPTION: OwnedKey = (SUBSCRIPTION, 0, "sub")
SUBSCRIBE = CreateSubscription(0, "sub", PULL_WAKE, "logs/*", ("r", "none"), wake_stream="w")


class Right(Struct, frozen=True):
    """A right that a command needs, and the refusal if the thing is hidden from the caller.

    With `is_prefix`, it is needed on all things whose names begin with `name`.
    """

    kind: str
    name: str
    right: str
    hidden: Refusal | None = None
    is_prefix: bool = False


class Own(Struct, frozen=True):
    """A thing that must be the caller's, and the refusal if it is hidden from the caller.

    If the thing has no owner, it can be used with the scopes of `free` as well; None means that it
    cannot be ended or given away without `admin` (O9).
    """

    key: OwnedKey
    hidden: Refusal | None = None
    free: tuple[str, ...] | None = ()


class Case(Struct, frozen=True):
    """A row of the table, or a variant of it, for a server with --strict-rights."""

    row: str
    command: EngineCommand
    needs: tuple[Right | Own, ...]

    @property
    def rights(self) -> tuple[Right, ...]:
        return tuple(need for need in self.needs if isinstance(need, Right))

    @property
    def things(self) -> tuple[Own, ...]:
        return tuple(need for need in self.needs if isinstance(need, Own))


def on(path: str, right: str) -> Right:
    return Right(STREAM, path, right, NotFound())


def listed(path: str, right: str) -> Right:
    return Right(STREAM, path, right, StreamRefused(path, NotFound()))


def on_topic(right: str, hidden: Refusal | None = None) -> Right:
    return Right(TOPIC, "o", right, hidden or TopicNotFound())


IDEMPOTENT_WRITE = Right(CLUSTER, "", IDEMPOTENT)
TRANSACTIONAL_WRITE = Right(CLUSTER, "", TRANSACTIONAL)
ON_BOTH = ("stream:s:write", "stream:r:write")  # the streams of the transactions
OWN_TXN = Own(THE_TXN, UnknownTransaction(), ON_BOTH)
BY_OPERATOR = Right(TRANSACTION, "t", ADMIN, UnknownTransaction())
OPERATOR = 'any of the last four rows with `"operator": true`, which fence always has'
REBIND, POLICIES = "rebind a sink, forget a sink", "set a policy, delete a policy"
MOVES = (listed("r", READ), Right(GROUP, "g", WRITE), listed("source", READ))
MOVED = (PositionMove("g", "r", 0), PositionMove("g", "source", 0))
FOLLOWED = (Right(STREAM, "r", READ), Right(STREAM, "none", READ))
WORKER = "unlink a stream, claim a wake, resume a subscription"


def on_subscription(right: str) -> tuple[Right, Own]:
    hidden = UnknownSubscription()
    return Right(SUBSCRIPTION, "sub", right, hidden), Own(THE_SUBSCRIPTION)


ACKED = (
    Right(SUBSCRIPTION, "sub", WRITE, UnknownSubscription("sub")),
    Own(THE_SUBSCRIPTION),
)

CASES = (
    Case("append", append(), (on("s", WRITE),)),
    Case("append", append(by=dense(1)), (on("s", WRITE), IDEMPOTENT_WRITE, Own(IN_S))),
    Case("append", publish(), (on("s", WRITE), IDEMPOTENT_WRITE, OWN_TXN, Own(IN_S))),
    Case("append", chunk(), (on("s", WRITE), IDEMPOTENT_WRITE, OWN_TXN)),
    Case("create", create("new"), (Right(STREAM, "new", CREATE),)),
    Case(
        "create",
        create("new", batch=Batch(b"x")),
        (Right(STREAM, "new", CREATE), Right(STREAM, "new", WRITE)),
    ),
    Case("create", fork("new", "source"), (Right(STREAM, "new", CREATE), on("source", READ))),
    Case("delete, trim", Delete("s", 0), (on("s", DELETE),)),
    Case("delete, trim", Trim("s", 0, 1), (on("s", DELETE),)),
    Case("set recognition", SwitchDedup("s", 0, False), (on("s", ADMIN),)),
    Case("set recognition", SwitchDedup("o", 0, False), (on_topic(ADMIN, NotFound()),)),
    Case("append to a topic", append_topic((b"k", b"1"), path="o"), (on_topic(WRITE),)),
    Case(
        "append to a topic",
        append_topic((b"k", b"1"), path="o", by=dense(1)),
        (on_topic(WRITE), IDEMPOTENT_WRITE, Own(IN_TOPIC)),
    ),
    Case(
        "append to a topic",
        append_topic((b"k", b"1"), path="o", by=dense(0, epoch=0), txn=TxnTag("t", 1)),
        (on_topic(WRITE), IDEMPOTENT_WRITE, OWN_TXN, Own(IN_TOPIC)),
    ),
    Case("create a topic", create_topic("new"), (Right(TOPIC, "new", CREATE),)),
    Case("grow a topic", grow("o", 2), (on_topic(ADMIN),)),
    Case("close a topic, delete a topic", CloseTopic("o", 0), (on_topic(DELETE),)),
    Case("close a topic, delete a topic", DeleteTopic("o", 0), (on_topic(DELETE),)),
    Case("register", Register(0), (IDEMPOTENT_WRITE,)),
    Case(
        "register",
        Register(0, "p"),
        (IDEMPOTENT_WRITE, Right(PRODUCER, "p", WRITE), Own(REGISTERED)),
    ),
    Case("claim", claim("session"), (on("s", WRITE), IDEMPOTENT_WRITE, Own(IN_S))),
    Case(
        "claim",
        claim("session", path="o"),
        (on_topic(WRITE, NotFound()), IDEMPOTENT_WRITE, Own(IN_TOPIC)),
    ),
    Case(
        "retire producers",
        RetireProducers(0, (RetiredProducer("p", "s", 0), RetiredProducer("p", epoch=0))),
        (on("s", DESCRIBE), Own(IN_S, free=None), Own(REGISTERED, free=None)),
    ),
    Case(
        "forget a producer",
        ForgetProducer("s", 0, "p"),
        (on("s", DESCRIBE), Own(IN_S, free=None)),
    ),
    Case(
        "begin",
        begin(streams=("s", "r")),
        (IDEMPOTENT_WRITE, listed("s", WRITE), listed("r", WRITE), Own(THE_TXN), Own(REGISTERED)),
    ),
    Case(
        "begin",
        begin(streams=("s", "r", "o")),
        (
            IDEMPOTENT_WRITE,
            listed("s", WRITE),
            listed("r", WRITE),
            on_topic(WRITE, StreamRefused("o", NotFound())),
            Own(THE_TXN),
            Own(REGISTERED),
        ),
    ),
    Case(
        "begin",
        stage("u", sunk(2)),
        (IDEMPOTENT_WRITE, listed("s", WRITE), listed("r", WRITE), Own(STAGED_TXN), Own(THE_SINK)),
    ),
    Case(
        "add streams",
        add_streams("r", "source"),
        (IDEMPOTENT_WRITE, OWN_TXN, listed("r", WRITE), listed("source", WRITE)),
    ),
    Case(
        "add positions",
        add_positions(("r", 0), ("source", 0)),
        (IDEMPOTENT_WRITE, OWN_TXN, *MOVES),
    ),
    Case("prepare", prepare(), (IDEMPOTENT_WRITE, TRANSACTIONAL_WRITE, OWN_TXN)),
    *(
        Case("commit, abort, fence", call, (IDEMPOTENT_WRITE, OWN_TXN))
        for call in (commit(), abort())
    ),
    Case(
        "commit, abort, fence",
        replace(commit(), wakes=(WakeAck("sub", "w_1", 1, is_permitted=True),)),
        (IDEMPOTENT_WRITE, OWN_TXN),
    ),
    Case(
        "commit, abort, fence",
        replace(commit(), wakes=(WakeAck("sub", "w_1", 1),)),
        (IDEMPOTENT_WRITE, OWN_TXN, *ACKED),
    ),
    Case(
        "commit, abort, fence",
        FenceTxn(0, "t", 1),
        (IDEMPOTENT_WRITE, Own(THE_TXN, UnknownTransaction(), free=None)),
    ),
    *(
        Case(OPERATOR, call, (BY_OPERATOR,))
        for call in (commit(by_operator=True), abort(by_operator=True), fence())
    ),
    Case(OPERATOR, prepare(by_operator=True), (BY_OPERATOR, TRANSACTIONAL_WRITE)),
    Case(
        OPERATOR,
        replace(add_streams("r", "source"), by_operator=True),
        (BY_OPERATOR, listed("r", WRITE), listed("source", WRITE)),
    ),
    Case(
        OPERATOR,
        replace(add_positions(("r", 0), ("source", 0)), by_operator=True),
        (BY_OPERATOR, *MOVES),
    ),
    Case(
        "one-shot commit",
        one_shot(("s", b"x"), ("r", b"y"), positions=MOVED, expects=(("u/t", 0),)),
        (
            IDEMPOTENT_WRITE,
            listed("s", WRITE),
            listed("r", WRITE),
            *MOVES,
            listed("u/t", DESCRIBE),
            Own(REGISTERED),
        ),
    ),
    Case(
        "one-shot commit",
        one_shot(sink=SINK_TAG, listed=(("u", 1),)),
        (IDEMPOTENT_WRITE, Own(THE_SINK), Own(STAGED_TXN, UnknownTransaction(), ON_BOTH)),
    ),
    Case(
        "one-shot commit",
        replace(one_shot(("s", b"x")), wakes=(WakeAck("sub", "w_1", 1),)),
        (IDEMPOTENT_WRITE, listed("s", WRITE), Own(REGISTERED), *ACKED),
    ),
    Case("move positions", SetPositions(0, MOVED), MOVES),
    Case(
        "join a group",
        join("m", "r", topics=("o",), patterns=("logs/*",)),
        (
            Right(GROUP, "g", WRITE),
            listed("r", READ),
            Right(STREAM, "o/", READ, StreamRefused("o", TopicNotFound()), is_prefix=True),
            Right(STREAM, "logs/", READ, is_prefix=True),
        ),
    ),
    Case("release streams, leave a group", release("m", "r"), (Right(GROUP, "g", WRITE),)),
    Case("release streams, leave a group", leave("m"), (Right(GROUP, "g", WRITE),)),
    Case("delete a group", DeleteGroup(0, "g"), (Right(GROUP, "g", DELETE, UnknownGroup()),)),
    Case(
        "create a subscription",
        SUBSCRIBE,
        (
            Right(SUBSCRIPTION, "sub", CREATE),
            Own(THE_SUBSCRIPTION),
            *FOLLOWED,
            Right(STREAM, "logs/", READ, is_prefix=True),
            Right(STREAM, "w", WRITE, WakeStreamRefused("w", NO_WAKE_STREAM)),
        ),
    ),
    Case(
        "create a subscription",
        CreateSubscription(0, "sub", WEBHOOK, streams=("r", "none"), url="https://h"),
        (Right(SUBSCRIPTION, "sub", CREATE), Own(THE_SUBSCRIPTION), *FOLLOWED),
    ),
    Case(
        "link streams", LinkStreams(0, "sub", ("r", "none")), (*on_subscription(WRITE), *FOLLOWED)
    ),
    *(
        Case(WORKER, command, on_subscription(WRITE))
        for command in (
            UnlinkStream(0, "sub", "r"),
            ClaimWake(0, "sub", "worker"),
            ResumeSubscription(0, "sub"),
        )
    ),
    Case("delete a subscription", DeleteSubscription(0, "sub"), on_subscription(DELETE)),
    Case("ack a wake, release a wake", AckWake(0, WakeAck("sub", "w_1", 1)), ()),
    Case("ack a wake, release a wake", ReleaseWake(0, "sub", "w_1", 1), ()),
    Case(
        "pin a snapshot",
        PinSnapshot(0, "g", 1, tuple(SnapshotRange(p, "i", 0, 1) for p in ("r", "source")), "h"),
        MOVES,
    ),
    Case(
        REBIND,
        RebindSink(0, "app", "q", 1),
        (Own(THE_SINK, UnknownSink(), free=None),),
    ),
    Case(REBIND, ForgetSink(0, "app"), (Own(THE_SINK, UnknownSink(), free=None),)),
    Case(POLICIES, SetPolicy(0, "logs", True), (Right(POLICY, "logs", WRITE),)),
    Case(
        POLICIES,
        DeletePolicy(0, "logs"),
        (Right(POLICY, "logs", DELETE, UnknownPolicy()),),
    ),
    Case(
        "change an owner",
        ChangeOwner(0, PRODUCER, "p", "s", "new"),
        (on("s", DESCRIBE), Own(IN_S, free=None)),
    ),
    *(
        Case("change an owner", ChangeOwner(0, key[0], key[2]), (Own(key, UnknownThing(), None),))
        for key in (REGISTERED, THE_TXN, THE_SINK, THE_SUBSCRIPTION)
    ),
)


def name_of(case: object) -> str:
    assert isinstance(case, Case)
    return f"{type(case.command).__name__}-{CASES.index(case)}"


def each(kind: type) -> list[object]:
    """Return one parameter for each need of this type of each case."""
    return [
        pytest.param(case, need, id=f"{name_of(case)}-{index}")
        for case in CASES
        for index, need in enumerate(case.needs)
        if isinstance(need, kind)
    ]


EVERY_CASE = pytest.mark.parametrize("case", CASES, ids=name_of)


def scope(need: Right, right: str | None = None) -> Scope:
    return Scope(need.kind, need.name, need.is_prefix, rights=(right or need.right,))


def caller_with(*scopes: Scope, principal: str = "me", deny: bool = False) -> Caller:
    return make_caller(principal, scopes, is_strict=True, denies_unowned=deny)


def owned_by(machine: TxnMachine, case: Case, owner: str) -> State:
    """Give all things of a case an owner."""
    for thing in case.things:
        assert exists(machine.state, thing.key), "the case is about things that exist"
        set_owner(machine.state, thing.key, owner)
    return machine.state


# ---- the table of needs --------------------------------------------------------------------------


def test_every_row_of_the_table_is_tested() -> None:
    table = PAGE.read_text(encoding="utf-8").partition("## What each command needs")[2]
    rows = re.findall(r"^\| ([^|]+) \| [^|]+ \|$", table.partition("\n## ")[0], re.MULTILINE)
    assert rows[:1] == ["command"]
    tested = list(dict.fromkeys(case.row for case in CASES))
    assert tested == [row for row in rows[1:] if not row.endswith(" a token")]  # T4, T5: below


# R1
def test_a_command_without_a_row_is_refused_to_everybody() -> None:
    """A new command of the engine must be in the table, or it is refused."""
    tested = {type(case.command) for case in CASES} | {CreateToken, RevokeToken}
    own: list[EngineCommand] = [
        NoteTokenUses(0, ()),
        CountHour(0),
        DropTombstones(0, (), 0),
        ExpireRegistration(0, "p", 0),
        ExpireTxn(0, "t", 1),
        Expire("s", 0, 0),
        bury(),
        expire("m"),
        take("s"),
        rebalance(),
        IssueWake(0, "sub", "w_1"),
        ExpireWake(0, "sub", 1, 1_000),
        NoteDelivery(0, "sub", 1, "no answer"),
    ]
    assert set(get_args(EngineCommand)) == tested | set(map(type, own))
    for command in own:
        refused = refuse(world().state, command, make_caller("root", ALL_RIGHTS))
        assert refused == Forbidden(ADMIN, CLUSTER, "")


# R1, R5
@EVERY_CASE
def test_a_command_is_accepted_with_exactly_its_needs(case: Case) -> None:
    caller = caller_with(*map(scope, case.rights))
    assert refuse(owned_by(world(), case, "me"), case.command, caller) is None
    assert caller.used_ms == case.command.now_ms


@EVERY_CASE
def test_a_command_is_accepted_from_an_admin_of_the_cluster(case: Case) -> None:
    caller = caller_with(*ALL_RIGHTS, deny=True)
    assert refuse(owned_by(world(), case, "other"), case.command, caller) is None


# R1, R5
@pytest.mark.parametrize(("case", "need"), each(Right))
def test_a_command_is_refused_if_one_right_is_missing(case: Case, need: Right) -> None:
    state = owned_by(world(), case, "me")
    others = [scope(other) for other in case.rights if other != need]
    is_seen = is_granted(others, need.kind, need.name, DESCRIBE)
    hidden = None if is_seen else need.hidden
    forbidden = Forbidden(need.right, need.kind, need.name)
    assert refuse(state, case.command, caller_with(*others)) == (hidden or forbidden)
    if need.right == DESCRIBE:
        return
    seen = caller_with(*others, scope(need, DESCRIBE))
    assert refuse(state, case.command, seen) == forbidden
    elsewhere = Scope(need.kind, f"{need.name}-2", is_prefix=True, rights=(need.right,))
    assert refuse(state, case.command, caller_with(*others, elsewhere)) == (hidden or forbidden)


# R5
@pytest.mark.parametrize(
    ("case", "need"),
    [pytest.param(c, n, id=name_of(c)) for c in CASES for n in c.rights if n.is_prefix],
)
def test_a_right_on_one_thing_is_none_on_all_whose_names_begin_like_it(
    case: Case, need: Right
) -> None:
    others = [scope(other) for other in case.rights if other != need]
    one = Scope(need.kind, need.name, is_prefix=False, rights=(need.right,))
    refused = refuse(owned_by(world(), case, "me"), case.command, caller_with(*others, one))
    assert refused == Forbidden(need.right, need.kind, need.name)


@pytest.mark.parametrize(
    ("pattern", "scopes"),
    [
        ("logs/eu", ("stream:logs/eu:read",)),
        ("logs/*", ("stream:logs/*:read",)),
        ("logs/*/eu", ("stream:logs/*:read",)),
        ("logs/**/eu", ("stream:logs/*:read",)),
        ("logs/**", ("stream:logs/*:read", "stream:logs:read")),
        ("logs/**/**", ("stream:logs/*:read", "stream:logs:read")),
        ("**/logs", ("stream:*:read",)),
    ],
)
def test_a_pattern_needs_read_on_all_that_it_matches(pattern: str, scopes: tuple[str, ...]) -> None:
    more = ("group:g:write", "subscription:new:create", "stream:w:write")
    commands = (
        join("m", patterns=(pattern,)),
        CreateSubscription(0, "new", PULL_WAKE, pattern, wake_stream="w"),
    )
    for command in commands:
        needed = [*map(parse_scope, more), *map(parse_scope, scopes)]
        assert refuse(world().state, command, caller_with(*needed)) is None
        for missing in scopes:
            kept = [each for each in needed if each != parse_scope(missing)]
            refused = refuse(world().state, command, caller_with(*kept))
            assert isinstance(refused, Forbidden)
            assert (refused.right, refused.kind) == (READ, STREAM)


def test_an_operator_who_moves_positions_needs_admin_on_the_group() -> None:
    command = SetPositions(0, MOVED, by_operator=True)
    reads = [scope(need) for need in MOVES if need.kind == STREAM]
    writer = caller_with(*reads, Scope(GROUP, "g", is_prefix=False, rights=(WRITE,)))
    assert refuse(world().state, command, writer) == Forbidden(ADMIN, GROUP, "g")
    operator = caller_with(*reads, Scope(GROUP, "g", is_prefix=False, rights=(ADMIN,)))
    assert refuse(world().state, command, operator) is None


# O1
@pytest.mark.parametrize(("case", "thing"), each(Own))
def test_a_command_is_refused_if_one_thing_is_somebody_else_s(case: Case, thing: Own) -> None:
    state = owned_by(world(), case, "me")
    set_owner(state, thing.key, "other")
    kind, _, name = thing.key
    forbidden = Forbidden(ADMIN, kind, name)
    scopes = [scope(need) for need in case.rights]
    is_seen = is_granted(scopes, kind, name, DESCRIBE)
    hidden = None if is_seen else thing.hidden
    assert refuse(state, case.command, caller_with(*scopes)) == (hidden or forbidden)
    seen = Scope(kind, name, is_prefix=False, rights=(DESCRIBE, READ, WRITE, CREATE, DELETE))
    assert refuse(state, case.command, caller_with(*scopes, seen)) == forbidden
    admin = Scope(kind, name, is_prefix=False, rights=(ADMIN,))
    assert refuse(state, case.command, caller_with(*scopes, admin)) is None
    set_owner(state, thing.key, "me/too")
    assert refuse(state, case.command, caller_with(*scopes)) == (hidden or forbidden)


# O1, O3, O9
@pytest.mark.parametrize(("case", "thing"), each(Own))
def test_a_thing_without_owner_can_be_used_but_not_ended(case: Case, thing: Own) -> None:
    state = owned_by(world(), case, "me")
    del state.owners[thing.key]
    kind, _, name = thing.key
    refusals = (Forbidden(ADMIN, kind, name), thing.hidden)
    scopes = [scope(need) for need in case.rights] + list(map(parse_scope, thing.free or ()))
    refused = refuse(state, case.command, caller_with(*scopes))
    assert (refused in refusals) if thing.free is None else (refused is None)
    assert refuse(state, case.command, caller_with(*scopes, deny=True)) in refusals
    admin = Scope(kind, name, is_prefix=False, rights=(ADMIN,))
    if thing.free is None and kind == TRANSACTION:
        scopes += map(parse_scope, ON_BOTH)
    assert refuse(state, case.command, caller_with(*scopes, admin, deny=True)) is None


# ---- rights that writers have --------------------------------------------------------------------


# R3
@pytest.mark.parametrize(
    "command", [Register(0), append(by=dense(1)), publish(), claim("c"), prepare(), one_shot()]
)
def test_a_writer_has_the_rights_on_the_cluster_unless_they_are_strict(
    command: EngineCommand,
) -> None:
    scopes = (parse_scope("stream:s:write"),)
    state = world().state
    set_owner(state, THE_TXN, "me")
    assert refuse(state, command, make_caller("me", scopes)) is None
    strict = refuse(state, command, make_caller("me", scopes, is_strict=True))
    assert strict == Forbidden(IDEMPOTENT, CLUSTER, "")
    named = (*scopes, parse_scope("cluster:IdempotentWrite,TransactionalWrite"))
    assert refuse(state, command, make_caller("me", named, is_strict=True)) is None


# R3
def test_who_writes_to_no_stream_registers_nothing() -> None:
    caller = make_caller("me", (parse_scope("stream:s:read"),))
    assert refuse(world().state, Register(0), caller) == Forbidden(IDEMPOTENT, CLUSTER, "")


# R3
@pytest.mark.parametrize("is_strict", [False, True])
def test_a_worker_of_a_group_needs_no_right_on_the_cluster_unless_rights_are_strict(
    is_strict: bool,
) -> None:
    scopes = (parse_scope("group:g:write"), parse_scope("stream:r:read"))
    worker = make_caller("me", scopes, is_strict=is_strict)
    state, missing = world().state, Forbidden(IDEMPOTENT, CLUSTER, "")
    expected = missing if is_strict else None
    moved = (PositionMove("g", "r", 0),)
    assert refuse(state, Register(0), worker) == expected
    assert refuse(state, one_shot(positions=moved), worker) == expected
    for more in (Register(0, "q"), one_shot(listed=(("u", 1),)), one_shot(sink=SINK_TAG)):
        assert refuse(state, more, worker) == missing
    reader = make_caller("me", (parse_scope("group:g:read"), parse_scope("stream:r:read")))
    for command in (Register(0), one_shot(positions=moved)):
        assert refuse(state, command, reader) == missing


# R3
def test_a_worker_of_a_group_appends_only_to_streams_of_its_groups() -> None:
    worker = make_caller("me", (parse_scope("group:g:write"), parse_scope("stream:s:read")))
    for path in (dead_letters_of("g"), retries_of("g")):
        assert refuse(world().state, one_shot((path, b"x")), worker) is None
    assert refuse(world().state, one_shot(("s", b"x")), worker) == Forbidden(WRITE, STREAM, "s")
    for path in (dead_letters_of("h"), retries_of("h"), "__semel/audit", "r"):
        assert refuse(world().state, one_shot((path, b"x")), worker) == (
            StreamRefused(path, NotFound())
        )


# R4
def test_a_name_is_registered_with_write_on_it_only_if_rights_are_strict() -> None:
    scopes = (parse_scope("stream:s:write"), parse_scope("cluster:IdempotentWrite"))
    command = Register(0, "till-1")
    assert refuse(State(), command, make_caller("me", scopes)) is None
    strict = make_caller("me", scopes, is_strict=True)
    assert refuse(State(), command, strict) == Forbidden(WRITE, PRODUCER, "till-1")
    named = make_caller("me", (*scopes, parse_scope("producer:till-*:write")), is_strict=True)
    assert refuse(State(), command, named) is None


# R5
def test_a_commit_is_refused_for_its_last_part_and_nothing_is_decided() -> None:
    machine = world()
    machine.state.take_dirty()
    scopes = (parse_scope("stream:s:write"),)
    command = one_shot(("s", b"x"), expects=(("r", 0),))
    refused = refuse(machine.state, command, make_caller("me", scopes))
    assert refused == StreamRefused("r", NotFound())
    assert not any(getattr(machine.state.dirty, name) for name in ("tails", "registry", "owners"))


@pytest.mark.parametrize("command", [append(path="x"), claim("c", path="x")])
def test_a_missing_stream_is_the_same_for_who_may_and_who_may_not_know(
    command: EngineCommand,
) -> None:
    machine = world()
    assert refuse(machine.state, command, caller_with()) == NotFound()
    assert machine.execute(command) == NotFound()
    may = make_caller("me", (parse_scope("stream:*:write"),))
    assert refuse(machine.state, replace(command), may) is None


# ---- owners --------------------------------------------------------------------------------------


# O1
@pytest.mark.parametrize("command", [append(by=dense(1)), claim("c"), ForgetProducer("s", 0, "p")])
def test_admin_on_the_stream_is_enough_for_a_producer_in_it(command: EngineCommand) -> None:
    state = world().state
    set_owner(state, IN_S, "other")
    stream_admin = make_caller("me", (parse_scope("stream:s:admin"),))
    assert refuse(state, command, stream_admin) is None
    writer = make_caller("me", (parse_scope("stream:s:write"),))
    assert refuse(state, command, writer) == Forbidden(ADMIN, PRODUCER, "p")


# O4
def test_the_first_use_in_a_stream_needs_that_the_registration_is_the_caller_s() -> None:
    """Otherwise an append with a higher epoch would fence the owner of the registration."""
    state = world().state
    command = append(path="r", by=dense(0))
    writer = make_caller("me", (parse_scope("stream:r:write"),))
    assert refuse(state, command, writer) is None
    set_owner(state, REGISTERED, "other")
    assert refuse(state, command, writer) == Forbidden(ADMIN, PRODUCER, "p")
    stream_admin = make_caller("me", (parse_scope("stream:r:admin"),))
    assert refuse(state, command, stream_admin) == Forbidden(ADMIN, PRODUCER, "p")
    both = make_caller("me", (parse_scope("stream:r:write"), parse_scope("producer:p:admin")))
    assert refuse(state, command, both) is None
    set_owner(state, REGISTERED, "me")
    assert refuse(state, command, writer) is None
    set_owner(state, (PRODUCER, 2, "p"), "me")  # then it is not the first use
    set_owner(state, REGISTERED, "other")
    assert refuse(state, command, writer) is None


# O3, O4
@pytest.mark.parametrize(
    "command",
    [
        Register(0, "x"),
        begin(owner=by("x", 5), streams=()),
        one_shot(producer="x", epoch=5),
    ],
)
def test_the_first_registration_needs_that_the_producers_in_streams_are_the_caller_s(
    command: EngineCommand,
) -> None:
    """Otherwise it would fence those who use this id in other streams."""
    machine = world()
    machine.execute(append(by=dense(0, name="x")))
    state, forbidden = machine.state, Forbidden(ADMIN, PRODUCER, "x")
    set_owner(state, (TRANSACTION, 0, "t"), "me")
    scopes = tuple(map(parse_scope, ("stream:s:admin", "stream:r:write")))
    me = make_caller("me", scopes)
    assert refuse(state, command, me) is None, "the producer has no owner"
    assert refuse(state, command, make_caller("me", scopes, denies_unowned=True)) == forbidden
    set_owner(state, (PRODUCER, 1, "x"), "me")
    assert refuse(state, command, me) is None
    set_owner(state, (PRODUCER, 1, "x"), "other")
    assert refuse(state, command, me) == forbidden, "although it has admin on the stream"
    admin = make_caller("me", (*scopes, parse_scope("producer:x:admin")))
    assert refuse(state, command, admin) is None
    machine.execute(Register(0, "x"))
    assert refuse(state, command, me) is None, "it is not the first registration"


# O3, O4
def test_with_deny_a_registration_without_owner_blocks_the_first_use_in_a_stream() -> None:
    state = world().state
    scopes = (parse_scope("stream:r:admin"),)
    known, unknown = append(path="r", by=dense(0)), append(path="r", by=dense(0, name="x"))
    deny = make_caller("me", scopes, denies_unowned=True)
    assert refuse(state, known, deny) == Forbidden(ADMIN, PRODUCER, "p")
    assert refuse(state, unknown, deny) is None, "what does not exist can be used"
    assert refuse(state, known, make_caller("me", scopes)) is None


# O5
def test_the_owner_of_a_transaction_that_has_ended_is_that_of_its_outcome() -> None:
    machine = world()
    machine.execute(abort())
    scopes = tuple(map(parse_scope, ("stream:*:write", "transaction:t:describe")))
    caller = make_caller("me", scopes)
    set_owner(machine.state, REGISTERED, "me")
    forbidden = Forbidden(ADMIN, TRANSACTION, "t")
    for command in (begin(), abort(), commit(), publish()):
        assert refuse(machine.state, command, caller, {"t": "other"}) == forbidden
        assert refuse(machine.state, command, caller, {"t": "me"}) is None
        assert refuse(machine.state, command, caller, {"t": None}) is None
        assert refuse(machine.state, command, caller) is None


def test_the_owner_of_a_pending_transaction_counts_and_not_that_of_an_older_one() -> None:
    machine = world()
    caller = make_caller("me", (parse_scope("stream:*:write"),))
    assert refuse(machine.state, commit(), caller, {"t": "other"}) is None


# ---- what gets an owner --------------------------------------------------------------------------


ME = make_caller("me", ALL_RIGHTS)


def taken(machine: TxnMachine, command: EngineCommand) -> list[OwnedKey]:
    """Execute a command, and return the things that get the owner `me` by it."""
    outcome = machine.execute(command)
    decision = access.decide_owners(machine.state, command, ME, outcome)
    if decision is None:
        return []
    assert not decision.grows, "an owner is stored with its command, also on a full disk"
    assert may_take(command)
    event = decision.event
    assert isinstance(event, OwnersChanged)
    assert event.owner == "me"
    assert all(exists(machine.state, key) for key in event.things)
    for key in event.things:
        set_owner(machine.state, key, "me")
    return list(event.things)


# O2
@pytest.mark.parametrize(
    ("command", "keys"),
    [
        (append(by=dense(1)), [IN_S]),
        (append(by=dense(0, epoch=0)), [IN_S]),  # a duplicate
        (append(by=dense(0, name="q")), [(PRODUCER, 1, "q")]),
        (append(), []),
        (publish(), [THE_TXN, IN_S]),
        (chunk(txn="u"), []),  # refused: the transaction is prepared
        (Register(0), [(PRODUCER, 0, "1")]),
        (Register(0, "p"), [REGISTERED]),
        (Register(0, "q"), [(PRODUCER, 0, "q")]),
        (claim("c"), [IN_S]),
        (begin("v", by("q")), [(TRANSACTION, 0, "v"), (PRODUCER, 0, "q")]),
        (begin(), [THE_TXN, REGISTERED]),  # a repeat
        (stage("w", sunk(2, 1)), [(TRANSACTION, 0, "w"), THE_SINK]),
        (add_streams("source"), [THE_TXN]),
        (add_positions(("s", 1)), [THE_TXN]),
        (prepare("u"), [STAGED_TXN]),
        (one_shot(("r", b"x")), [REGISTERED]),
        (one_shot(sink=SINK_TAG, listed=(("u", 1),)), [THE_SINK]),
        (one_shot(sink=SinkTag("other", "q", 1)), [(SINK, 0, "other")]),
        (commit(), []),
        (abort(), []),
        (abort(by_operator=True), []),
        (prepare(by_operator=True), []),
        (SwitchDedup("s", 0, True), []),
        (RetireProducers(0, (RetiredProducer("p", "s", 0),)), []),
        (RebindSink(0, "app", "q", 1), []),
    ],
)
def test_a_thing_gets_its_owner_from_the_first_command_that_uses_it(
    command: EngineCommand, keys: list[OwnedKey]
) -> None:
    machine = world()
    assert taken(machine, command) == keys
    if not isinstance(command, Register):
        assert taken(machine, command) == [], "it has its owner"
    assert all(machine.state.owners[key] == "me" for key in keys)


# O2
def test_what_has_an_owner_keeps_it() -> None:
    machine = world()
    set_owner(machine.state, IN_S, "other")
    assert taken(machine, append(by=dense(1))) == []
    assert machine.state.owners[IN_S] == "other"


# O2
@pytest.mark.parametrize(
    "command",
    [
        append(by=dense(7)),  # a gap
        append(path="missing", by=dense(0)),
        publish(epoch=5),
        begin("v"),  # the producer has another transaction
        Register(0, "77"),
    ],
)
def test_a_refused_command_takes_nothing(command: EngineCommand) -> None:
    machine = world()
    assert isinstance(machine.execute(command), Refusal)
    assert taken(machine, command) == []
    assert machine.state.owners == {}


# O2
def test_an_unguarded_stream_stores_no_owner() -> None:
    machine = txn_machine(SwitchDedup("s", 0, False))
    assert taken(machine, append(by=dense(0))) == []


def test_an_owner_that_is_not_registered_is_no_owner_of_a_registration() -> None:
    machine = txn_machine()
    assert taken(machine, begin("v", sunk(1), kind="staged")) == [(TRANSACTION, 0, "v")]
