"""Tokens in HTTP: their text, the header Authorization, and requests about tokens and owners."""

import re
from base64 import urlsafe_b64encode
from collections.abc import Iterable
from hashlib import sha256
from typing import Any, Final

from msgspec import UNSET, Struct

from semel.model.access_commands import (
    EXPIRES_MS_MAX,
    OWNED_KINDS,
    ChangeOwner,
    CreateToken,
    RevokeToken,
    is_principal,
)
from semel.model.rights import CLUSTER, NEVER, Caller, Scope, parse_scope, scope_problem
from semel.wire.documents import read_document
from semel.wire.headers import Headers, print_instant, read_instant
from semel.wire.paths import parse_query, read_choice, read_limit
from semel.wire.problems import bad_request, parser
from semel.wire.schema.tokens import (
    NewToken,
    OwnerRequest,
    ScopeEntry,
    TokenRequest,
    WhoAmI,
)

PREFIX: Final = "semel_"
SECRET_BYTES: Final = 32
ID_BYTES: Final = 12
_TOKEN: Final = re.compile(r"semel_([A-Za-z0-9]{12})_([A-Za-z0-9_-]{43})")
_BEARER: Final = re.compile(r"[Bb][Ee][Aa][Rr][Ee][Rr] +([A-Za-z0-9._~+/=-]+)")
_ALPHABET: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"


# ---- the text of a token -------------------------------------------------------------------------


class TokenText(Struct, frozen=True):
    """A token as its holder has it. Its `repr` does not show the secret."""

    id: str
    secret: str

    @property
    def text(self) -> str:
        """The whole token, as it is sent in requests."""
        return f"{PREFIX}{self.id}_{self.secret}"

    @property
    def hash(self) -> bytes:
        """What the server stores of the secret."""
        return sha256(self.secret.encode()).digest()

    def __repr__(self) -> str:
        return f"TokenText({self.id!r})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """Return what the library `rich` prints. The default would print the secret."""
        return [("id", self.id)]


def make_token(random_id: bytes, random_secret: bytes) -> TokenText:
    """Return a token of random bytes: ID_BYTES for its id and SECRET_BYTES for its secret."""
    # The id need not be uniform: it is public.
    token_id = "".join(_ALPHABET[byte % len(_ALPHABET)] for byte in random_id)
    return TokenText(token_id, urlsafe_b64encode(random_secret).decode().rstrip("="))


def parse_token_text(text: str) -> TokenText | None:
    """Return the token that a text is, or None if it is none."""
    match = _TOKEN.fullmatch(text)
    return None if match is None else TokenText(match[1], match[2])


def bearer_of(headers: Headers, repeated: frozenset[str]) -> str | None:
    """Return the token in the header Authorization, or None if there is not exactly one."""
    value = headers.get("authorization")
    if value is None or "authorization" in repeated:
        return None
    match = _BEARER.fullmatch(value)
    return None if match is None else match[1]


# ---- scopes --------------------------------------------------------------------------------------


def scope_entries(scopes: Iterable[Scope]) -> list[ScopeEntry]:
    """Return scopes as responses show them."""
    return [_entry(scope) for scope in scopes]


def _entry(scope: Scope) -> ScopeEntry:
    rights = list(scope.rights)
    if scope.kind == CLUSTER:
        return ScopeEntry(scope.kind, rights)
    if scope.is_prefix:
        return ScopeEntry(scope.kind, rights, prefix=scope.name)
    return ScopeEntry(scope.kind, rights, name=scope.name)


def read_scope(entry: ScopeEntry | str) -> Scope:
    """Return the scope in a request. Raises ValueError if it is not valid."""
    if isinstance(entry, str):
        return parse_scope(entry)
    if entry.name is not UNSET and entry.prefix is not UNSET:
        raise ValueError("a scope has a name or a prefix, not both")
    is_prefix = entry.prefix is not UNSET
    name = entry.prefix if isinstance(entry.prefix, str) else entry.name
    rights = tuple(sorted(set(entry.rights)))
    scope = Scope(entry.kind, name if isinstance(name, str) else "", is_prefix, rights)
    problem = scope_problem(scope)
    if problem is not None:
        raise ValueError(problem)
    return scope


# ---- requests ------------------------------------------------------------------------------------


@parser
def parse_create_token(
    headers: Headers, body: bytes, *, now_ms: int, token: TokenText, caller: Caller | None
) -> CreateToken:
    """Parse a request for a new token. `token` is the token that the caller gets."""
    request = read_document(headers, body, TokenRequest)
    try:
        scopes = tuple(map(read_scope, request.scopes))
    except ValueError as error:
        raise bad_request("invalid_request", str(error), field="scopes") from error
    principal = request.principal
    if not isinstance(principal, str):
        principal = "" if caller is None else caller.principal
    if not is_principal(principal):
        message = "'principal' must be 1 to 256 printable characters, without spaces at its ends"
        raise bad_request("invalid_request", message, field="principal")
    return CreateToken(
        now_ms,
        token.id,
        token.hash,
        principal,
        scopes,
        expires_ms=_expiry(request, now_ms, caller),
        description=request.description,
        issuer="" if caller is None else caller.token or "",
    )


def _expiry(request: TokenRequest, now_ms: int, caller: Caller | None) -> int | None:
    """Return when a new token expires, or None. Without a wish, it expires with its maker."""
    at, seconds = request.expires_at, request.expires_in_seconds
    if isinstance(at, str):
        if isinstance(seconds, int):
            message = "send 'expires_at' or 'expires_in_seconds', not both"
            raise bad_request("invalid_request", message, field="expires_at")
        expires_ms = read_instant({"expires_at": at}, "expires_at")
        assert expires_ms is not None
        if expires_ms <= now_ms:
            message = "'expires_at' is in the past"
            raise bad_request("invalid_request", message, field="expires_at")
        return expires_ms
    if isinstance(seconds, int):
        if not 0 < seconds <= (EXPIRES_MS_MAX - now_ms) // 1000:
            message = "'expires_in_seconds' must be positive, and end before the year 10000"
            raise bad_request("invalid_request", message, field="expires_in_seconds")
        return now_ms + seconds * 1000
    if caller is None or caller.expires_ms == NEVER:
        return None
    return min(caller.expires_ms, EXPIRES_MS_MAX)


@parser
def parse_revoke_token(token_id: str, query: str, *, now_ms: int) -> RevokeToken:
    """Parse a request to revoke a token."""
    parameters = parse_query(query, ("children",)) if query else {}
    children = read_choice(parameters, "children", ("true", "false"), "false")
    return RevokeToken(now_ms, token_id, children == "true")


@parser
def parse_tokens_query(query: str) -> tuple[str, int]:
    """Parse a request for a page of tokens: the id after which it begins, and its length."""
    parameters = parse_query(query, ("after", "limit")) if query else {}
    return parameters.get("after", ""), read_limit(parameters.get("limit"))


@parser
def parse_change_owner(headers: Headers, body: bytes, *, now_ms: int) -> ChangeOwner:
    """Parse a request to give a thing another owner."""
    request = read_document(headers, body, OwnerRequest)
    if request.kind not in OWNED_KINDS:
        message = f"'kind' must be {', '.join(OWNED_KINDS[:-1])} or {OWNED_KINDS[-1]}"
        raise bad_request("invalid_request", message, field="kind")
    path = request.stream if isinstance(request.stream, str) else None
    return ChangeOwner(now_ms, request.kind, request.name, path, request.owner)


# ---- responses -----------------------------------------------------------------------------------


def print_optional_instant(instant_ms: int | None) -> str | None:
    """Return a time as `print_instant` does, or None for None.

    A JWT can expire later than the last time that can be printed, which is returned then.
    """
    return None if instant_ms is None else print_instant(min(instant_ms, EXPIRES_MS_MAX))


def new_token(command: CreateToken, token: TokenText) -> NewToken:
    """Return the response that shows a new token, with its secret."""
    return NewToken(
        token.id,
        token.text,
        command.principal,
        scope_entries(command.scopes),
        print_optional_instant(command.expires_ms),
        command.description,
    )


def who_am_i(caller: Caller | None) -> WhoAmI:
    """Return the response about the caller itself. Without a caller, access is off."""
    if caller is None:
        return WhoAmI("off")
    expires_ms = None if caller.expires_ms == NEVER else caller.expires_ms
    return WhoAmI(
        "on",
        caller.principal,
        caller.token,
        scope_entries(caller.scopes),
        print_optional_instant(expires_ms),
        caller.is_strict,
    )
