"""Callers: their tokens, the tokens that they may make, the short form, and reserved paths.

The rules are in `docs/reference/access.md`.
"""

from unittest.mock import patch

import pytest
from msgspec.structs import replace

from semel.machine import access
from semel.machine.access import (
    is_live,
    is_settled,
    may_show_token,
    refuse,
)
from semel.machine.needs import refuse_reserved
from semel.machine.state import State, set_owner
from semel.model.commands import (
    Append,
    Delete,
    EngineCommand,
    PositionMove,
    Register,
    SetPositions,
    SwitchDedup,
    Trim,
)
from semel.model.limits import HOUR_MS, TOKENS_PER_PRINCIPAL_MAX
from semel.model.outcomes import LimitReached, Refusal
from semel.model.outcomes_access import (
    Forbidden,
    ReservedPath,
    Unauthenticated,
    UnknownToken,
)
from semel.model.policies import DeletePolicy, SetPolicy
from semel.model.rights import (
    ADMIN,
    ALL_RIGHTS,
    CLUSTER,
    ENDED,
    Caller,
    Source,
    make_caller,
    parse_scope,
)
from tests.unit.machine.builders import append, claim, create, dense, fork
from tests.unit.machine.test_access import IN_S, caller_with, world
from tests.unit.machine.test_tokens import revoke, token, token_id
from tests.unit.machine.topic_builders import append_topic, create_topic
from tests.unit.machine.txn_builders import (
    TxnMachine,
    add_streams,
    begin,
    one_shot,
    txn_machine,
)

LATER = 10**9


# ---- callers and tokens --------------------------------------------------------------------------


def holder(machine: TxnMachine, number: int = 1, **more: object) -> Caller:
    """Return a caller with a token of the machine."""
    row = machine.state.tokens[token_id(number)]
    version = machine.state.access_version
    return make_caller(row.principal, row.scopes, version=version, token=token_id(number), **more)  # type: ignore[arg-type]


# T3, T7
def test_no_command_is_decided_after_the_revocation_of_its_caller_s_token() -> None:
    machine = txn_machine(token(1), token(2))
    one, two = holder(machine, 1), holder(machine, 2)
    assert refuse(machine.state, append(), one) is None
    assert is_settled(machine.state, append(), one)
    machine.execute(revoke(1))
    assert not is_settled(machine.state, append(), one)
    assert refuse(machine.state, append(), one) == Unauthenticated()
    assert one.version == ENDED
    assert not is_live(machine.state, one, 0), "for ever, also without a look at the tokens"
    assert not is_settled(machine.state, append(), one)
    assert not is_settled(machine.state, append(), two), "it was not compared yet"
    assert refuse(machine.state, append(), two) is None
    assert is_settled(machine.state, append(), two)


# T3
def test_a_caller_is_refused_from_its_expiry_on() -> None:
    machine = txn_machine(token(1))
    caller = holder(machine, expires_ms=10)
    assert refuse(machine.state, append(now=9), caller) is None
    assert is_settled(machine.state, append(now=9), caller)
    assert not is_settled(machine.state, append(now=10), caller)
    assert refuse(machine.state, append(now=10), caller) == Unauthenticated()
    assert caller.used_ms == 9


# T3
def test_a_token_that_does_not_exist_is_not_valid() -> None:
    caller = make_caller("till", ALL_RIGHTS, version=-5, token=token_id(9))
    assert not is_live(txn_machine(token(1)).state, caller, 0)


def test_a_caller_without_token_is_not_compared_with_the_tokens() -> None:
    machine = txn_machine(token(1), token(2))
    caller = make_caller("jwt", ALL_RIGHTS)
    machine.execute(revoke(1))
    assert is_live(machine.state, caller, LATER)
    assert caller.version == machine.state.access_version


TILL = tuple(map(parse_scope, ("stream:orders/*:read,write", "group:g:write")))


# T4
@pytest.mark.parametrize(
    ("change", "is_allowed"),
    [
        ({}, True),
        ({"principal": "till/7"}, True),
        ({"principal": "till7"}, False),
        ({"principal": "other"}, False),
        ({"scopes": (parse_scope("stream:orders/eu/*:read"),)}, True),
        ({"scopes": (parse_scope("stream:orders/*:delete"),)}, False),
        ({"scopes": (parse_scope("stream:*:read"),)}, False),
        ({"scopes": (*TILL, *ALL_RIGHTS)}, False),
        ({"expires_ms": 1_000}, True),
        ({"expires_ms": 1_001}, False),
        ({"expires_ms": None}, False),
    ],
)
def test_a_token_is_made_only_within_the_scopes_the_life_and_the_name_of_its_maker(
    change: dict[str, object], is_allowed: bool
) -> None:
    command = replace(token(2, expires=500, principal="till"), scopes=TILL)
    maker = make_caller("till", TILL, expires_ms=1_000)
    refused = refuse(State(), replace(command, **change), maker)
    assert refused == (None if is_allowed else Forbidden(ADMIN, CLUSTER, ""))


# T4
def test_an_admin_of_the_cluster_chooses_any_principal_but_no_longer_life() -> None:
    admin = make_caller("root", ALL_RIGHTS, expires_ms=1_000)
    assert refuse(State(), token(2, principal="till", expires=1_000), admin) is None
    refused = refuse(State(), token(2, principal="till", expires=1_001), admin)
    assert refused == Forbidden(ADMIN, CLUSTER, "")
    assert refuse(State(), token(2), make_caller("root", ALL_RIGHTS)) is None


FORBIDDEN = Forbidden(ADMIN, CLUSTER, "")


# T5
@pytest.mark.parametrize(
    ("caller", "may_show", "refusal"),
    [
        (make_caller("root", ALL_RIGHTS), True, None),
        (make_caller("till", TILL), True, None),
        (make_caller("till", (*TILL, parse_scope("sink:*:read"))), True, None),
        (make_caller("till", TILL[:1]), True, FORBIDDEN),
        (make_caller("till/7", TILL), False, UnknownToken()),
        (make_caller("other", TILL), False, UnknownToken()),
        (make_caller("other", TILL[:1], token=token_id(1)), True, None),  # the token that it uses
        (make_caller("other", TILL[:1], token=token_id(2)), False, UnknownToken()),
    ],
)
def test_a_token_is_shown_to_its_principal_and_revoked_by_those_who_have_its_rights(
    caller: Caller, may_show: bool, refusal: Refusal | None
) -> None:
    machine = txn_machine(replace(token(1, expires=5), scopes=TILL), token(2))
    row = machine.state.tokens[token_id(1)]
    assert may_show_token(caller, token_id(1), row) is may_show
    for children in (False, True):
        assert refuse(machine.state, revoke(1, children=children), caller) == refusal
    assert refuse(machine.state, revoke(9), caller) == UnknownToken()


# T5
def test_a_principal_shows_the_tokens_below_it() -> None:
    machine = txn_machine(token(1, principal="till/7"), token(2, principal="till7"))
    caller, rows = make_caller("till", TILL), machine.state.tokens
    assert may_show_token(caller, token_id(1), rows[token_id(1)])
    assert not may_show_token(caller, token_id(2), rows[token_id(2)])
    assert refuse(machine.state, revoke(1), caller) == FORBIDDEN, "it is of an admin"


DAY_MS = 24 * HOUR_MS


# T11
def test_who_is_no_admin_has_at_most_a_thousand_tokens_with_those_below() -> None:
    machine = txn_machine(
        token(1, principal="till"),
        token(2, principal="till/7", expires=10),
        token(3, principal="till7"),
        token(4, principal="other"),
    )
    full = LimitReached("tokens_per_principal", 2)
    new = replace(token(5, principal="till"), scopes=TILL)
    state, caller = machine.state, make_caller("till", TILL)
    with patch.object(access, "TOKENS_PER_PRINCIPAL_MAX", 3):
        assert refuse(state, new, caller) is None
    with patch.object(access, "TOKENS_PER_PRINCIPAL_MAX", 2):
        assert refuse(state, new, caller) == full
        assert refuse(state, new, make_caller("till", ALL_RIGHTS)) is None
        assert refuse(state, replace(new, principal="other"), make_caller("other", TILL)) is None
        assert refuse(state, replace(new, now_ms=DAY_MS + 9), caller) == full
        assert refuse(state, replace(new, now_ms=DAY_MS + 10), caller) is None, "a day after"
        machine.execute(revoke(1, now=5))
        assert refuse(state, replace(new, now_ms=DAY_MS + 4), caller) == full
        assert refuse(state, replace(new, now_ms=DAY_MS + 5), caller) is None
    assert TOKENS_PER_PRINCIPAL_MAX == 1_000


# ---- callers without a token ---------------------------------------------------------------------


def test_a_caller_ends_when_the_rules_that_it_comes_from_are_loaded_again() -> None:
    machine, old, new = txn_machine(), Source(), Source()
    state = machine.state
    before = make_caller("jwt:ann", ALL_RIGHTS, source=old)
    after = make_caller("jwt:ann", ALL_RIGHTS, source=new)
    assert refuse(state, append(), before) is None
    assert is_settled(state, append(), before)
    old.has_ended = True
    state.access_version += 1
    assert not is_settled(state, append(), before)
    assert refuse(state, append(), before) == Unauthenticated()
    assert before.version == ENDED
    assert refuse(state, append(), after) is None
    assert is_settled(state, append(), after)


# ---- the short form ------------------------------------------------------------------------------


def settled(caller: Caller, command: Append, machine: TxnMachine) -> tuple[bool, bool]:
    """Return whether the short form accepts an append before and after `refuse` was asked."""
    before = is_settled(machine.state, command, caller)
    refuse(machine.state, command, caller)
    return before, is_settled(machine.state, command, caller)


def test_the_short_form_accepts_only_what_was_accepted_before() -> None:
    machine = world()
    writer = make_caller("me", (parse_scope("stream:s:write"),))
    assert settled(writer, append(), machine) == (False, True)
    assert settled(writer, append(path="r"), machine) == (False, False)
    assert settled(writer, append(path="missing"), machine) == (False, False)
    reader = make_caller("me", (parse_scope("stream:s:read"),))
    assert settled(reader, append(), machine) == (False, False)


def test_the_short_form_accepts_the_producers_of_the_caller_only() -> None:
    machine = world()
    command = append(by=dense(1))
    writer = make_caller("me", (parse_scope("stream:*:write"),))
    assert settled(writer, command, machine) == (False, False), "it gets an owner"
    set_owner(machine.state, IN_S, "me")
    assert settled(writer, command, machine) == (True, True)
    assert settled(writer, append(by=dense(0, name="q")), machine) == (False, False)
    set_owner(machine.state, IN_S, "other")
    assert settled(writer, command, machine) == (False, False)
    admin = make_caller("me", ALL_RIGHTS)
    assert settled(admin, command, machine) == (False, False)
    assert settled(writer, append(path="new", by=dense(0)), machine) == (False, False)


def test_the_short_form_needs_the_right_to_idempotent_writes() -> None:
    machine = world()
    set_owner(machine.state, IN_S, "me")
    strict = caller_with(parse_scope("stream:s:write"))
    assert settled(strict, append(), machine) == (False, True)
    assert settled(strict, append(by=dense(1)), machine) == (False, False)


def test_the_streams_that_are_remembered_have_a_limit() -> None:
    caller = make_caller("me", (parse_scope("stream:*:write"),))
    paths = [f"s/{number}" for number in range(4_097)]
    for path in paths:
        assert refuse(State(), append(path=path), caller) is None
        assert len(caller.writable) <= 4_096
    assert caller.writable == {paths[-1]}


# ---- reserved paths ------------------------------------------------------------------------------


INSIDE = "__semel/audit"
RESERVED = (
    append(path=INSIDE),
    create(INSIDE),
    Delete(INSIDE, 0),
    Trim(INSIDE, 0, 1),
    SwitchDedup(INSIDE, 0, True),
    claim("c", path=INSIDE),
    begin(streams=("s", INSIDE)),
    add_streams("s", INSIDE),
    one_shot(("s", b"x"), (INSIDE, b"y")),
    create_topic("__semel/topic"),
    append_topic((b"k", b"1"), path=INSIDE),
    SetPolicy(0, "__semel", True),
    SetPolicy(0, "__semel/audit", True),
    DeletePolicy(0, "__semel"),
)


@pytest.mark.parametrize("command", RESERVED, ids=lambda command: type(command).__name__)
def test_a_reserved_path_is_refused_to_everybody(command: EngineCommand) -> None:
    assert refuse_reserved(command) == ReservedPath()
    admin = make_caller("root", ALL_RIGHTS)
    for _ in range(2):  # the first one must not open the short form
        assert refuse(txn_machine(create(INSIDE)).state, command, admin) is None
    assert not admin.writable


@pytest.mark.parametrize(
    "command",
    [
        append(path="__semel"),
        append(path="a/__semel/audit"),
        append(path="__semel/dead/g"),
        create("__semel/retry/g"),
        fork("copy", INSIDE),
        SetPositions(0, (PositionMove("g", INSIDE, 0),)),
        one_shot(expects=((INSIDE, 0),)),
        Register(0),
        SetPolicy(0, "__semel2", True),
        SetPolicy(0, "a/__semel", True),
        DeletePolicy(0, ""),
    ],
)
def test_other_paths_and_reads_are_not_reserved(command: EngineCommand) -> None:
    assert refuse_reserved(command) is None


def test_an_admin_never_appends_to_a_reserved_stream_by_the_short_form() -> None:
    machine = txn_machine(create(INSIDE))
    admin = make_caller("root", ALL_RIGHTS)
    command = append(path=INSIDE)
    assert settled(admin, command, machine) == (False, False)
    assert settled(admin, append(), machine) == (False, True)
