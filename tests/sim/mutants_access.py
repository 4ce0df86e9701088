"""Seeded bugs in access: tokens that come back, rights that are too wide, and a wrong audit."""

import importlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from msgspec.structs import replace

from semel.broker import guard, lookups
from semel.broker.broker import Broker, Reply
from semel.journal import checkpoint, recovery
from semel.machine import Decision, State, access, needs, tokens
from semel.machine import apply as machine_apply
from semel.machine.access_events import TokenCreated, TokensRevoked
from semel.machine.state import NO_EFFECTS, Dirty, Effects
from semel.model import rights
from semel.model.commands import AbortTxn, Append, Commit, CommitTxn, EngineCommand, FenceTxn
from semel.model.outcomes import Refusal
from semel.model.rights import Caller, Scope

# ---- tokens --------------------------------------------------------------------------------------


def forget_revocations_in_a_replay() -> Any:
    """Recovery does not apply the frames of revocations."""
    return not_replayed(TokensRevoked)


def checkpoint_without_tokens() -> Any:
    """The checkpoint omits the tokens."""
    return changed_rows(lambda dirty: dirty.tokens.clear())


def checkpoint_revoked_tokens_as_valid() -> Any:
    """The checkpoint omits that a token was revoked."""

    def change(dirty: Dirty) -> None:
        for name, row in dirty.tokens.items():
            dirty.tokens[name] = None if row is None else replace(row, revoked_ms=None)

    return changed_rows(change)


def trust_a_caller_for_ever() -> Any:
    """Whether a token was revoked is checked only when its holder connects."""

    def is_live(state: State, caller: Caller, now_ms: int) -> bool:
        caller.version = state.access_version
        return now_ms < caller.expires_ms

    return patch.object(access, "is_live", is_live)


def forget_the_caller_of_a_waiting_command() -> Any:
    """A command that has to wait is decided later without a check."""
    real = Broker._park

    def park(self: Broker, command: EngineCommand, reply: Reply, _caller: Caller | None) -> None:
        real(self, command, reply, None)

    return patch.object(Broker, "_park", park)


def ignore_expiry() -> Any:
    """A token does not expire."""
    real = access.is_live
    return patch.object(access, "is_live", lambda state, caller, _now_ms: real(state, caller, 0))


def keep_the_cache_over_a_revocation() -> Any:
    """The streams that a caller may write to are remembered after its token was revoked."""
    real = access.is_settled

    def is_settled(state: State, command: Append, caller: Caller) -> bool:
        caller.version = state.access_version
        return real(state, command, caller)

    return patch.object(lookups, "is_settled", is_settled)


def share_the_cache_of_callers() -> Any:
    """The streams that one caller may write to are remembered for all callers."""
    real, shared = access.refuse, set[str]()

    def refuse(state: State, command: EngineCommand, caller: Caller, *rest: Any) -> Refusal | None:
        caller.writable = shared
        return real(state, command, caller, *rest)

    return patch.object(guard, "refuse", refuse)


def leave_the_children_valid() -> Any:
    """A revocation with children revokes only the token itself."""
    return patch.object(tokens, "_made_with", lambda state, token_id: [])


def replace_a_valid_token() -> Any:
    """If the table of tokens is full, a new one replaces the oldest, which may be valid."""
    return patch.object(tokens, "is_valid", lambda row, now_ms: False)


def make_wider_tokens() -> Any:
    """A token can be made with rights that its maker does not have."""
    return patch.object(access, "is_within", lambda inner, outer: True)


def make_tokens_of_longer_names() -> Any:
    """The holder of a token of `ann` can make one of `anna`."""
    return patch.object(access, "_is_below", lambda name, other: name.startswith(other))


def revoke_tokens_of_others() -> Any:
    """Every caller may revoke every token."""
    return patch.object(access, "may_show_token", lambda caller, token_id, row: row is not None)


def forget_the_issuer_of_a_replaced_token() -> Any:
    """The tokens that were made with a replaced token keep its id as their issuer."""
    appliers = importlib.import_module("semel.machine.apply")._APPLIERS
    real = appliers[TokenCreated]

    def apply(state: State, event: TokenCreated, *rest: Any) -> Any:
        made = {name: row for name, row in state.tokens.items() if row.issuer in event.replaced}
        real(state, event, *rest)
        for name in made.keys() & state.tokens.keys():
            state.tokens[name] = state.dirty.tokens[name] = made[name]

    return patch.dict(appliers, {TokenCreated: apply})


def make_any_number_of_tokens() -> Any:
    """The tokens of a principal have no limit."""
    return patch.object(access, "_is_full", lambda *_: False)


def keep_callers_of_older_rules() -> Any:
    """The holder of a JWT is not compared again when the rules for JWTs are loaded."""
    real = access.is_live

    def is_live(state: State, caller: Caller, now_ms: int) -> bool:
        source, caller.source = caller.source, None
        is_valid = real(state, caller, now_ms)
        caller.source = source
        return is_valid

    return patch.object(access, "is_live", is_live)


# ---- rights --------------------------------------------------------------------------------------


def match_prefixes_anywhere() -> Any:
    """A scope of a prefix covers all names that contain it."""

    def covers(self: Scope, prefix: str) -> bool:
        return self.is_prefix and self.name in prefix

    return patch.object(Scope, "covers_prefix", covers)


def grant_admin_on_every_kind() -> Any:
    """`admin` on things of one kind grants everything on things of all kinds."""
    real = rights.is_granted

    def is_granted(scopes: Any, kind: str, name: str, right: str) -> bool:
        return any("admin" in scope.rights for scope in scopes) or real(scopes, kind, name, right)

    return patch.object(rights, "is_granted", is_granted)


def ignore_strict_rights() -> Any:
    """With --strict-rights, too, whoever may write to a stream may use producers."""
    real = needs._idempotent

    def idempotent(caller: Caller, *rest: Any) -> Any:
        return real(replace(caller, is_strict=False), *rest)

    return patch.object(needs, "_idempotent", idempotent)


def spare_workers_strict_rights() -> Any:
    """With --strict-rights, too, whoever may write as a group commits and registers as a worker."""
    real = needs._is_worker
    return patch.object(needs, "_is_worker", lambda caller: real(replace(caller, is_strict=False)))


def let_workers_commit_for_sinks() -> Any:
    """Whoever may write as a group commits for sinks and with listed transactions."""
    real = needs._idempotent

    def idempotent(caller: Caller, *rest: Any) -> Any:
        return () if needs._is_worker(caller) else real(caller, *rest)

    return patch.object(needs, "_idempotent", idempotent)


def register_by_a_transaction_without_the_right() -> Any:
    """With --strict-rights, a begin or a commit registers an id without `write` on it."""
    real = needs._registers

    def registers(*rest: Any) -> Any:
        return (check for check in real(*rest) if check.key is not None)

    return patch.object(needs, "_registers", registers)


def say_that_hidden_things_exist() -> Any:
    """Who has no right on a stream gets 403, also if its absence would be 404."""
    real = access._refuse_check

    def refuse(state: State, check: Any, *rest: Any) -> Refusal | None:
        return real(state, replace(check, hidden=None), *rest)

    return patch.object(access, "_refuse_check", refuse)


def check_only_the_first_stream_of_a_commit() -> Any:
    """A one-shot commit needs a right only on the first stream it appends to."""
    real = needs.RULES[Commit]

    def rule(state: State, command: Commit, caller: Caller) -> Any:
        return real(state, replace(command, appends=command.appends[:1]), caller)

    return patch.dict(needs.RULES, {Commit: rule})


def move_positions_without_the_group() -> Any:
    """The position of a group is moved without a right on the group."""
    real = needs._moves

    def moves(positions: Any) -> Any:
        return (check for check in real(positions) if check.kind != "group")

    return patch.object(needs, "_moves", moves)


def let_everybody_be_an_operator() -> Any:
    """A call with `operator` needs no right."""
    rules = {
        kind: lambda state, c, by, rule=needs.RULES[kind]: (
            [] if c.by_operator else rule(state, c, by)
        )
        for kind in (CommitTxn, AbortTxn, FenceTxn)
    }
    return patch.dict(needs.RULES, rules)


def allow_what_has_no_rule() -> Any:
    """A command without a rule is allowed to everybody."""
    real = access.refuse

    def refuse(state: State, command: EngineCommand, *rest: Any) -> Refusal | None:
        is_known = type(command) in needs.RULES or "Token" in type(command).__name__
        return real(state, command, *rest) if is_known else None

    return patch.object(guard, "refuse", refuse)


def write_to_reserved_streams() -> Any:
    """An administrator can write to the streams of the server."""
    return patch.object(guard, "refuse_reserved", lambda command: None)


# ---- the audit -----------------------------------------------------------------------------------


def change_without_a_record() -> Any:
    """What an administrator does is not in the audit."""
    return patch.object(guard.Guard, "_record", lambda *_: None)


def record_after_the_change() -> Any:
    """The record of a change is stored after it, so that a crash can leave it out."""
    real, describe = guard.Guard.commit, guard.Guard._record

    def commit(self: Any, by: Caller, command: EngineCommand, made: Decision, reply: Reply) -> bool:
        record = describe(self, command, by, made)
        is_done = real(self, by, command, made, reply)
        if is_done and record is not None:
            self._commit(record, command.now_ms, guard.ignore, 0)
        return is_done

    return all_of(
        patch.object(guard.Guard, "_record", lambda *_: None),
        patch.object(guard.Guard, "commit", commit),
    )


# ---- helpers -------------------------------------------------------------------------------------


def not_replayed(kind: type) -> Any:
    """Patch recovery so that it does not apply the frames of one kind."""
    real = machine_apply

    def apply(state: State, event: Any, *rest: Any) -> Effects:
        return NO_EFFECTS if isinstance(event, kind) else real(state, event, *rest)

    return patch.object(recovery, "apply", apply)


def changed_rows(change: Callable[[Dirty], None]) -> Any:
    """Patch the checkpoint so that it stores changed rows."""
    real = checkpoint._put_rows

    def put(tables: Any, dirty: Dirty) -> None:
        change(dirty)
        real(tables, dirty)

    return patch.object(checkpoint, "_put_rows", put)


@contextmanager
def all_of(*patches: Any) -> Iterator[None]:
    """Enter several patches."""
    with ExitStack() as stack:
        for each in patches:
            stack.enter_context(each)
        yield


ACCESS_MUTANTS = (
    forget_revocations_in_a_replay,
    checkpoint_without_tokens,
    checkpoint_revoked_tokens_as_valid,
    trust_a_caller_for_ever,
    forget_the_caller_of_a_waiting_command,
    ignore_expiry,
    keep_the_cache_over_a_revocation,
    share_the_cache_of_callers,
    leave_the_children_valid,
    replace_a_valid_token,
    make_wider_tokens,
    make_tokens_of_longer_names,
    revoke_tokens_of_others,
    forget_the_issuer_of_a_replaced_token,
    make_any_number_of_tokens,
    keep_callers_of_older_rules,
    match_prefixes_anywhere,
    grant_admin_on_every_kind,
    ignore_strict_rights,
    spare_workers_strict_rights,
    let_workers_commit_for_sinks,
    register_by_a_transaction_without_the_right,
    say_that_hidden_things_exist,
    check_only_the_first_stream_of_a_commit,
    move_positions_without_the_group,
    let_everybody_be_an_operator,
    allow_what_has_no_rule,
    write_to_reserved_streams,
    change_without_a_record,
    record_after_the_change,
)
