"""Verification of the checkpoint's tables `tokens` and `owners`."""

import struct
from collections.abc import Callable, Iterable, Set
from typing import Any, Final

from semel.journal.store import StoreReader
from semel.machine.rows import NAME_KEY, OWNED_KEY, OWNER_KEY, OwnedKey, OwnerRow, TokenRow
from semel.model.access_commands import (
    TOKEN_ID_BYTES,
    CreateToken,
    invalid_token_field,
    is_principal,
)
from semel.model.names import is_number
from semel.model.rights import PRODUCER, TRANSACTION

ACCESS_TABLES: Final = frozenset({"tokens", "owners"})

Decoded = Callable[[str, Any], Iterable[tuple[bytes, Any]]]  # the rows of a table, by their keys
Corrupt = Callable[[str, bytes, str], None]  # reports damage to a row of a table


def check_tokens(decoded: Decoded, corrupt: Corrupt) -> None:
    """Check that each token has an id, and fields that a command could have stored.

    The token's issuer need not exist: a full table drops tokens that are no longer valid.
    """
    for key, row in decoded("tokens", TokenRow):
        problem = _token_problem(key, row)
        if problem is not None:
            corrupt("tokens", key, problem)


def _token_problem(key: bytes, row: TokenRow) -> str | None:
    if len(key) != TOKEN_ID_BYTES or not key.isascii():
        return f"the key is not an id of {TOKEN_ID_BYTES} characters"
    command = CreateToken(
        row.created_ms,
        NAME_KEY.decode(key),
        row.hash,
        row.principal,
        row.scopes,
        expires_ms=row.expires_ms,
        description=row.description,
        issuer=row.issuer,
    )
    field = invalid_token_field(command)
    if field is not None:
        return f"the field `{field}` of the token is invalid"
    if row.issuer and (len(row.issuer) != TOKEN_ID_BYTES or row.issuer == command.id):
        return "the token has an invalid issuer"
    if not is_number(row.created_ms) or not is_number(row.used_ms):
        return "the token has an invalid time"
    if row.revoked_ms is not None and row.revoked_ms < row.created_ms:
        return "the token was revoked before it was made"
    return None


def check_owners(decoded: Decoded, view: StoreReader, pending: Set[str], corrupt: Corrupt) -> None:
    """Check that each owner is a principal, and that what it owns exists.

    `pending` has the ids of all pending transactions.
    """
    for key, row in decoded("owners", OwnerRow):
        if not is_principal(row.principal):
            corrupt("owners", key, "the owner is not a principal")
        owned = _owned_of(key)
        if owned is None:
            corrupt("owners", key, "the key does not name a producer, a transaction or a sink")
        elif not _exists(owned, view, pending):
            kind, _, name = owned
            corrupt("owners", key, f"the row belongs to a {kind} that does not exist: {name}")


def _owned_of(key: bytes) -> OwnedKey | None:
    """Return the decoded key of an owner, or None if the key is invalid."""
    try:
        kind, number, name = OWNER_KEY.decode(key)
    except (KeyError, struct.error, UnicodeDecodeError):
        return None
    return (kind, number, name) if name and (kind == PRODUCER or number == 0) else None


def _exists(owned: OwnedKey, view: StoreReader, pending: Set[str]) -> bool:
    kind, number, name = owned
    if kind == TRANSACTION:
        return name in pending
    if kind != PRODUCER:
        return view.get("sinks", NAME_KEY.encode(name)) is not None
    if number:
        return view.get("producers", OWNED_KEY.encode((number, name))) is not None
    return view.get("registry", NAME_KEY.encode(name)) is not None
