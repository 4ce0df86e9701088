"""Commands on tokens and owners, and the validation of their fields.

The rules are in `docs/reference/access.md`.
"""

from typing import Final

from msgspec import Struct

from semel.model.limits import (
    DESCRIPTION_BYTES_MAX,
    PATH_BYTES_MAX,
    PRINCIPAL_BYTES_MAX,
    PRODUCER_ID_BYTES_MAX,
    SCOPE_NAMES_BYTES_MAX,
    SCOPES_PER_TOKEN_MAX,
)
from semel.model.names import is_name
from semel.model.rights import PRODUCER, SINK, SUBSCRIPTION, TRANSACTION, Scope, scope_problem

TOKEN_ID_BYTES: Final = 12
TOKEN_HASH_BYTES: Final = 32
EXPIRES_MS_MAX: Final = 253_402_300_799_999  # the last time with a year of four digits
OWNED_KINDS: Final = (PRODUCER, TRANSACTION, SINK, SUBSCRIPTION)


class CreateToken(Struct, frozen=True, gc=False):
    """Store a new token: its public id, and the SHA-256 of its secret.

    `expires_ms` is None if the token does not expire. `issuer` is the public id of the token with
    which it is made, or empty.
    """

    now_ms: int
    id: str
    hash: bytes
    principal: str
    scopes: tuple[Scope, ...]
    expires_ms: int | None = None
    description: str = ""
    issuer: str = ""


class RevokeToken(Struct, frozen=True, gc=False):
    """Revoke a token. With `children`, also revoke all tokens that were made with it."""

    now_ms: int
    id: str
    children: bool = False


class NoteTokenUses(Struct, frozen=True, gc=False):
    """Store when tokens were last used, as pairs of a public id and a time in milliseconds."""

    now_ms: int
    uses: tuple[tuple[str, int], ...]


class ChangeOwner(Struct, frozen=True, gc=False):
    """Give a thing another owner. If `owner` is None, the thing then has no owner.

    `kind` is `producer`, `transaction` or `sink`. `path` is the stream of a producer; without it,
    the registration of the producer id is meant.
    """

    now_ms: int
    kind: str
    name: str
    path: str | None = None
    owner: str | None = None


AccessCommand = CreateToken | RevokeToken | NoteTokenUses | ChangeOwner


# ---- validation ----------------------------------------------------------------------------------


def invalid_token_field(command: CreateToken) -> str | None:
    """Return the name of the first invalid field of a new token, or None if all are valid."""
    checks = {
        "id": len(command.id) == TOKEN_ID_BYTES and is_name(command.id, TOKEN_ID_BYTES),
        "hash": len(command.hash) == TOKEN_HASH_BYTES,
        "principal": is_principal(command.principal),
        "scopes": _are_scopes(command.scopes),
        "expires_at": command.expires_ms is None or 0 <= command.expires_ms <= EXPIRES_MS_MAX,
        "description": not command.description
        or (is_name(command.description, DESCRIPTION_BYTES_MAX) and _is_plain(command.description)),
        "issuer": not command.issuer or is_name(command.issuer, TOKEN_ID_BYTES),
    }
    return next((field for field, is_valid in checks.items() if not is_valid), None)


def _are_scopes(scopes: tuple[Scope, ...]) -> bool:
    names_bytes = sum(len(scope.name.encode(errors="surrogatepass")) for scope in scopes)
    if not 0 < len(scopes) <= SCOPES_PER_TOKEN_MAX or names_bytes > SCOPE_NAMES_BYTES_MAX:
        return False
    return all(
        scope_problem(scope) is None
        and len(set(scope.rights)) == len(scope.rights)
        and (not scope.name or is_name(scope.name, PATH_BYTES_MAX))
        for scope in scopes
    )


def is_principal(text: str) -> bool:
    """Return True if a text can name a principal: printable, not too long, no space at its ends."""
    return is_name(text, PRINCIPAL_BYTES_MAX) and _is_plain(text) and text == text.strip()


def _is_plain(text: str) -> bool:
    return text.isprintable()


def invalid_owner_field(command: ChangeOwner) -> str | None:
    """Return the name of the first invalid field of a change of owner, or None."""
    if command.kind not in OWNED_KINDS:
        return "kind"
    if not is_name(command.name, PRODUCER_ID_BYTES_MAX):
        return "name"
    path = command.path
    if path is not None and not (command.kind == PRODUCER and is_name(path, PATH_BYTES_MAX)):
        return "stream"
    return None if command.owner is None or is_principal(command.owner) else "owner"
