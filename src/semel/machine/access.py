"""Access: whether a caller may execute a command, and what it owns afterwards.

`refuse` is called for every command of a client when access is on, directly before the command is
decided. So a command that has waited is checked with the tokens and owners as they are now. The
letters and numbers in comments are the rules in `docs/reference/access.md`.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from semel.machine.access_events import OwnersChanged
from semel.machine.events import Decision
from semel.machine.need_checks import Check
from semel.machine.needs import RULES, refuse_reserved
from semel.machine.rows import TokenRow
from semel.machine.state import State
from semel.machine.tokens import exists, is_valid
from semel.model.access_commands import CreateToken, RevokeToken
from semel.model.commands import (
    AddPositions,
    AddStreams,
    Append,
    Begin,
    ClaimProducer,
    Commit,
    EngineCommand,
    Prepare,
    Register,
    TxnCall,
)
from semel.model.limits import HOUR_MS, TOKENS_PER_PRINCIPAL_MAX
from semel.model.outcomes import (
    LimitReached,
    Outcome,
    Refusal,
    Registered,
)
from semel.model.outcomes_access import (
    Forbidden,
    OwnerSet,
    Unauthenticated,
    UnknownToken,
)
from semel.model.rights import (
    ADMIN,
    CLUSTER,
    DESCRIBE,
    ENDED,
    NEVER,
    PRODUCER,
    STREAM,
    TRANSACTION,
    Caller,
    is_within,
)
from semel.model.subscription_commands import CreateSubscription
from semel.model.topic_commands import AppendTopic

_WRITABLE_MAX: Final = 4_096
_ENDED_COUNTS_MS: Final = 24 * HOUR_MS
# The owner of each transaction id that is not pending: that of its newest retained outcome.
EndedOwners = Mapping[str, str | None]
_NO_ENDED: Final[EndedOwners] = {}


# ---- callers -------------------------------------------------------------------------------------


def is_live(state: State, caller: Caller, now_ms: int) -> bool:
    """Return True if a caller's token, JWT or certificate is valid now (T3, T7)."""
    if caller.version == ENDED or now_ms >= caller.expires_ms:
        return False
    if caller.version != state.access_version:
        is_token = caller.token is not None
        if is_token and not is_valid(state.tokens.get(caller.token or ""), now_ms):
            caller.version = ENDED
            return False
        if caller.source is not None and caller.source.has_ended:
            caller.version = ENDED
            return False
        caller.version = state.access_version
    return True


def is_settled(state: State, command: Append, caller: Caller) -> bool:
    """Return True if a caller may do an append outside transactions, and nothing gets an owner.

    This is the short form of `refuse` for the most frequent command. If it returns False, `refuse`
    has to decide.
    """
    if caller.version != state.access_version or command.now_ms >= caller.expires_ms:
        return False
    if command.path not in caller.writable:
        return False
    caller.used_ms = command.now_ms
    tag = command.producer
    if tag is None:
        return True
    stream = state.by_path.get(command.path)
    if stream is None or not caller.is_idempotent:
        return False
    return state.owners.get((PRODUCER, stream.row.number, tag.id)) == caller.principal


def refuse(
    state: State, command: EngineCommand, caller: Caller, ended: EndedOwners = _NO_ENDED
) -> Refusal | None:
    """Return the refusal if the caller may not execute a command, or None if it may.

    Nothing is allowed that has no rule (R1). `ended` has the owners of those transaction ids in the
    command that are not pending.
    """
    if not is_live(state, caller, command.now_ms):
        return Unauthenticated()
    caller.used_ms = command.now_ms
    if isinstance(command, CreateToken):
        return _refuse_create_token(state, command, caller)
    if isinstance(command, RevokeToken):
        return _refuse_revoke_token(state, command, caller)
    rule = RULES.get(type(command))
    if rule is None:
        return Forbidden(ADMIN, CLUSTER, "")
    for check in rule(state, command, caller):
        refusal = _refuse_check(state, check, caller, ended)
        if refusal is not None:
            return refusal
    if type(command) is Append and refuse_reserved(command) is None:
        if len(caller.writable) >= _WRITABLE_MAX:
            caller.writable.clear()
        caller.writable.add(command.path)
    return None


def _refuse_check(state: State, check: Check, caller: Caller, ended: EndedOwners) -> Refusal | None:
    if check.key is None:
        may = caller.may_all if check.is_prefix else caller.may
        if may(check.kind, check.name, check.right):
            return None
    elif _is_own(state, check, caller, ended):
        return None
    if check.hidden is not None and not caller.may(check.kind, check.name, DESCRIBE):
        return check.hidden
    return Forbidden(check.right, check.kind, check.name)


def _is_own(state: State, check: Check, caller: Caller, ended: EndedOwners) -> bool:
    """Return True if a thing is the caller's: rules O1, O3 and O9."""
    key = check.key
    assert key is not None
    kind, _, name = key
    owner = state.owners.get(key)
    if kind == TRANSACTION and name not in state.transactions:
        owner = ended.get(name)
    is_use = check.is_use and not caller.denies_unowned
    is_free = owner is None and (is_use or not exists(state, key))
    if is_free or owner == caller.principal or caller.may(kind, name, ADMIN):
        return True
    return bool(check.path) and caller.may(STREAM, check.path, ADMIN)


# ---- tokens --------------------------------------------------------------------------------------


def _refuse_create_token(state: State, command: CreateToken, caller: Caller) -> Refusal | None:
    """Refuse a token that its maker may not make (T4), or one too many of its principal (T11)."""
    if not caller.is_admin and _is_full(state, caller.principal, command.now_ms):
        return LimitReached("tokens_per_principal", TOKENS_PER_PRINCIPAL_MAX)
    expires_ms = NEVER if command.expires_ms is None else command.expires_ms
    is_own = caller.is_admin or _is_below(command.principal, caller.principal)
    if is_own and is_within(command.scopes, caller.scopes) and expires_ms <= caller.expires_ms:
        return None
    return Forbidden(ADMIN, CLUSTER, "")


def _is_full(state: State, principal: str, now_ms: int) -> bool:
    """Return True if a principal, with those below it, has as many tokens as it can have.

    A token that has ended counts for a day, so that nobody can write many audit records.
    """
    since_ms = now_ms - _ENDED_COUNTS_MS
    count = sum(
        _is_below(row.principal, principal) and _ended_ms(row) > since_ms
        for row in state.tokens.values()
    )
    return count >= TOKENS_PER_PRINCIPAL_MAX


def _ended_ms(row: TokenRow) -> int:
    return min(
        NEVER if row.revoked_ms is None else row.revoked_ms,
        NEVER if row.expires_ms is None else row.expires_ms,
    )


def _refuse_revoke_token(state: State, command: RevokeToken, caller: Caller) -> Refusal | None:
    """Refuse to revoke a token that the caller may not show, or could not have made (T5)."""
    row = state.tokens.get(command.id)
    if row is None or not may_show_token(caller, command.id, row):
        return UnknownToken()
    if caller.token == command.id or is_within(row.scopes, caller.scopes):
        return None
    return Forbidden(ADMIN, CLUSTER, "")


def may_show_token(caller: Caller, token_id: str, row: TokenRow) -> bool:
    """Return True if a caller may show a token (T5)."""
    is_own = caller.token == token_id or _is_below(row.principal, caller.principal)
    return caller.is_admin or is_own


def _is_below(principal: str, other: str) -> bool:
    return principal == other or principal.startswith(f"{other}/")


# ---- owners --------------------------------------------------------------------------------------

# The commands by which a thing gets its owner (O2).
_TAKING: Final = (
    Append,
    AppendTopic,
    Register,
    ClaimProducer,
    Begin,
    AddStreams,
    AddPositions,
    Prepare,
    Commit,
    CreateSubscription,
)


def may_take(command: EngineCommand) -> bool:
    """Return True if something can get its owner from a command of this kind."""
    is_by_operator = isinstance(command, TxnCall) and command.by_operator
    return isinstance(command, _TAKING) and not is_by_operator


def decide_owners(
    state: State, command: EngineCommand, caller: Caller, outcome: Outcome
) -> Decision | None:
    """Return the decision that stores the caller as owner of what the command has used first.

    `outcome` is that of the command, and the state is that after the command. Return None if no
    owner has to be stored.
    """
    if isinstance(outcome, Refusal) or not may_take(command):
        return None
    checks: Iterable[Check] = RULES[type(command)](state, command, caller)
    keys = [check.key for check in checks if check.key is not None and check.is_taken]
    if isinstance(outcome, Registered):
        keys.append((PRODUCER, 0, outcome.producer_id))
    free = {key: None for key in keys if key not in state.owners and exists(state, key)}
    if not free:
        return None
    return Decision(OwnerSet(caller.principal, None), OwnersChanged(caller.principal, tuple(free)))
