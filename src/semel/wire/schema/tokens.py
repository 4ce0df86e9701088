"""The JSON bodies about tokens and owners."""

from typing import Any

from msgspec import UNSET, Struct, UnsetType

from semel.wire.schema import StrictRequest


class ScopeEntry(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A scope. It has a `name` or a `prefix`, except that of the cluster, which has neither."""

    kind: str
    rights: list[str]
    name: str | UnsetType = UNSET
    prefix: str | UnsetType = UNSET


class TokenRequest(StrictRequest, frozen=True):
    """A request for a new token.

    A scope is an object, or a text such as `stream:orders/*:read`. The token expires at the RFC
    3339 time `expires_at`, or after `expires_in_seconds`, or never. Without `principal`, the token
    is for the caller's own principal.
    """

    scopes: list[ScopeEntry | str]
    principal: str | UnsetType = UNSET
    description: str = ""
    expires_at: str | UnsetType = UNSET
    expires_in_seconds: int | UnsetType = UNSET


class TokenEntry(Struct, frozen=True):
    """A token, without its secret. `used_at` is at most an hour late."""

    id: str
    principal: str
    scopes: list[ScopeEntry]
    created_at: str
    description: str = ""
    issuer: str | None = None
    expires_at: str | None = None
    revoked_at: str | None = None
    used_at: str | None = None
    state: str = "live"  # or `revoked` or `expired`


class NewToken(Struct, frozen=True):
    """The response that creates a token. Only this response contains `token`, the secret text."""

    id: str
    token: str
    principal: str
    scopes: list[ScopeEntry]
    expires_at: str | None = None
    description: str = ""

    def __repr__(self) -> str:
        return f"NewToken(id={self.id!r}, principal={self.principal!r})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """Return what the library `rich` prints. The default would print the secret."""
        return [("id", self.id), ("principal", self.principal)]


class TokensPage(Struct, frozen=True):
    """A page of the list of tokens, sorted by id. `next` is the id after which the next begins."""

    tokens: list[TokenEntry]
    next: str | None = None


class RevokedToken(Struct, frozen=True):
    """The response to a revocation. `count` is how many tokens it has revoked."""

    id: str
    revoked_at: str
    count: int


class OwnerRequest(StrictRequest, frozen=True):
    """A request to give a thing another owner, or none (null).

    `kind` is `producer`, `transaction` or `sink`. `stream` is that of a producer; without it, the
    registration of the producer id is meant.
    """

    kind: str
    name: str
    owner: str | None
    stream: str | UnsetType = UNSET


class OwnerResponse(Struct, frozen=True):
    """The owner of a thing, and its previous owner."""

    kind: str
    name: str
    owner: str | None
    previous: str | None


class WhoAmI(Struct, frozen=True):
    """The response to `GET /v1/whoami`. If access is off, only `access` has a value."""

    access: str
    principal: str | None = None
    token: str | None = None
    scopes: list[ScopeEntry] = []
    expires_at: str | None = None
    strict_rights: bool = False
