"""Tokens and owners: the decisions that change them, and their application.

Who may make or revoke a token is decided in `access.py`, as for all commands. The letters and
numbers in comments are the rules in `docs/reference/access.md`.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from msgspec.structs import replace

from semel.machine.access_events import OwnersChanged, TokenCreated, TokensRevoked, TokensUsed
from semel.machine.events import Decision, Sections
from semel.machine.rows import OwnedKey, TokenRow
from semel.machine.state import State, drop_owner, find_producer, set_owner
from semel.model.access_commands import ChangeOwner, CreateToken, NoteTokenUses, RevokeToken
from semel.model.limits import TOKENS_MAX
from semel.model.outcomes import InvalidRequest, LimitReached
from semel.model.outcomes_access import (
    OwnerSet,
    TokenEnded,
    TokenStored,
    UnknownThing,
    UnknownToken,
    UsesNoted,
)
from semel.model.rights import PRODUCER, SUBSCRIPTION, TRANSACTION

# ---- tokens --------------------------------------------------------------------------------------


def is_valid(row: TokenRow | None, now_ms: int) -> bool:
    """Return True if a token exists, is not revoked and has not expired (T3)."""
    if row is None or row.revoked_ms is not None:
        return False
    return row.expires_ms is None or now_ms < row.expires_ms


def decide_create_token(state: State, command: CreateToken) -> Decision:
    """Return the decision on a command that stores a new token.

    If the table is full, the oldest token that is not valid is replaced (T8). If there is none, the
    command is refused.
    """
    if command.id in state.tokens:
        return Decision(InvalidRequest("id"))  # only if random ids collide
    replaced: tuple[str, ...] = ()
    if len(state.tokens) >= TOKENS_MAX:
        ended = [
            (row.created_ms, token_id)
            for token_id, row in state.tokens.items()
            if not is_valid(row, command.now_ms)
        ]
        if not ended:
            return Decision(LimitReached("tokens", TOKENS_MAX))
        replaced = (min(ended)[1],)
    row = TokenRow(
        command.hash,
        command.principal,
        command.scopes,
        state.frame_time(command.now_ms),
        expires_ms=command.expires_ms,
        description=command.description,
        issuer=command.issuer,
    )
    event = TokenCreated(command.id, row, replaced)
    return Decision(TokenStored(command.id), event, grows=True)


def decide_revoke_token(state: State, command: RevokeToken) -> Decision:
    """Return the decision on a command that revokes a token, and with `children` those made by it.

    A revoked token stays revoked, with the time of its first revocation (T6).
    """
    row = state.tokens.get(command.id)
    if row is None:
        return Decision(UnknownToken())
    family = [command.id, *(_made_with(state, command.id) if command.children else ())]
    live = tuple(token_id for token_id in family if state.tokens[token_id].revoked_ms is None)
    time_ms = state.frame_time(command.now_ms)
    revoked_ms = time_ms if row.revoked_ms is None else row.revoked_ms
    event = TokensRevoked(live) if live else None
    return Decision(TokenEnded(command.id, revoked_ms, len(live)), event)


def _made_with(state: State, token_id: str) -> list[str]:
    """Return the tokens that were made with a token, directly or with one of those."""
    children: dict[str, list[str]] = {}
    for child, row in state.tokens.items():
        children.setdefault(row.issuer, []).append(child)
    found: list[str] = []
    waiting = list(children.get(token_id, ()))
    while waiting:
        child = waiting.pop()
        found.append(child)
        waiting += children.get(child, ())
    return found


def decide_note_uses(state: State, command: NoteTokenUses) -> Decision:
    """Return the decision on a command that stores the last uses of tokens (T10)."""
    newer = tuple(
        (token_id, used_ms)
        for token_id, used_ms in command.uses
        if token_id in state.tokens and used_ms > state.tokens[token_id].used_ms
    )
    return Decision(UsesNoted(), TokensUsed(newer) if newer else None)


def apply_token_created(
    state: State, event: TokenCreated, _sections: Sections, _time_ms: int
) -> None:
    """Store a token, and drop those that it replaces. Their children get their issuers."""
    for token_id in event.replaced:
        issuer = state.tokens.pop(token_id).issuer
        state.dirty.tokens[token_id] = None
        for child, row in state.tokens.items():
            if row.issuer == token_id:  # so that it is still revoked with those above
                _set_token(state, child, replace(row, issuer=issuer))
    _set_token(state, event.id, event.row)
    state.access_version += 1


def apply_tokens_revoked(
    state: State, event: TokensRevoked, _sections: Sections, time_ms: int
) -> None:
    """Store that tokens are revoked since the time of the frame."""
    for token_id in event.ids:
        _set_token(state, token_id, replace(state.tokens[token_id], revoked_ms=time_ms))
    state.access_version += 1


def apply_tokens_used(state: State, event: TokensUsed, _sections: Sections, _time_ms: int) -> None:
    """Store when tokens were last used."""
    for token_id, used_ms in event.uses:
        _set_token(state, token_id, replace(state.tokens[token_id], used_ms=used_ms))


def _set_token(state: State, token_id: str, row: TokenRow) -> None:
    state.tokens[token_id] = state.dirty.tokens[token_id] = row


# ---- owners --------------------------------------------------------------------------------------


def exists(state: State, key: OwnedKey) -> bool:
    """Return True if a thing that can have an owner exists. Only pending transactions do."""
    kind, number, name = key
    if kind == SUBSCRIPTION:
        return name in state.subscriptions.by_id
    if kind == TRANSACTION:
        return name in state.transactions
    if kind != PRODUCER:
        return name in state.sinks
    if number == 0:
        return name in state.registry
    stream = state.by_number.get(number)
    return stream is not None and find_producer(stream, name) is not None


def owned_key(state: State, command: ChangeOwner) -> OwnedKey:
    """Return the key of the thing that a change of owner names.

    The number of a stream that does not exist is -1.
    """
    number = 0
    if command.path is not None:
        stream = state.by_path.get(command.path)
        number = -1 if stream is None else stream.row.number
    return command.kind, number, command.name


def decide_change_owner(state: State, command: ChangeOwner) -> Decision:
    """Return the decision on a command that gives a thing another owner (O6)."""
    key = owned_key(state, command)
    if not exists(state, key):
        return Decision(UnknownThing())
    previous = state.owners.get(key)
    event = OwnersChanged(command.owner, (key,)) if previous != command.owner else None
    return Decision(OwnerSet(command.owner, previous), event)


def apply_owners_changed(
    state: State, event: OwnersChanged, _sections: Sections, _time_ms: int
) -> None:
    """Store or drop the owner of things."""
    for key in event.things:
        if event.owner is None:
            drop_owner(state, key)
        else:
            set_owner(state, key, event.owner)


TOKEN_APPLIERS: Final[Mapping[type, Callable[[State, Any, Sections, int], None]]] = {
    TokenCreated: apply_token_created,
    TokensRevoked: apply_tokens_revoked,
    TokensUsed: apply_tokens_used,
    OwnersChanged: apply_owners_changed,
}
