"""Calls about tokens and owners. They do no I/O."""

from collections.abc import Iterable
from datetime import datetime, timedelta
from math import ceil
from typing import Final

import msgspec
from msgspec import UNSET, UnsetType

from semel.client.errors import Indeterminate
from semel.client.extras import milliseconds
from semel.client.flows import Flow, RetrySafety
from semel.client.requests import Request, query
from semel.client.server_calls import ask_server, decoded, get, post, require_progress
from semel.client.stream_calls import ServerConfig
from semel.model.messages import JSON_MEDIA_TYPE
from semel.wire.headers import print_instant
from semel.wire.paths import OWNERS, TOKENS, WHOAMI
from semel.wire.schema.tokens import (
    NewToken,
    OwnerRequest,
    OwnerResponse,
    RevokedToken,
    ScopeEntry,
    TokenEntry,
    TokenRequest,
    TokensPage,
    WhoAmI,
)

__all__ = [
    "NewToken",
    "OwnerResponse",
    "RevokedToken",
    "Scopes",
    "TokenEntry",
    "WhoAmI",
    "change_owner",
    "create_token",
    "list_tokens",
    "revoke_token",
    "scope_text",
    "show_token",
    "who_am_i",
]

# Scopes as callers pass them: texts such as `stream:orders/*:read`, or the entries of a token.
Scopes = str | Iterable[str | ScopeEntry]
_LISTING_COUNT: Final = 1_000
_CHECK_LIST: Final = (
    "list the tokens; if the new token is in the list, revoke it, because its secret is lost"
)


def create_token(
    site: ServerConfig,
    scopes: Scopes,
    *,
    principal: str | None = None,
    expires: datetime | timedelta | None = None,
    description: str = "",
) -> Flow[NewToken]:
    """Create a token and return it with its secret.

    The request is not repeated if its response is lost, because that would make a second token.
    Raises ValueError if `expires` is a time without a time zone, or is not in the future.
    """
    document = TokenRequest(
        [scopes] if isinstance(scopes, str) else list(scopes),
        principal=UNSET if principal is None else principal,
        description=description,
        expires_at=print_instant(milliseconds(expires)) if isinstance(expires, datetime) else UNSET,
        expires_in_seconds=_seconds(expires) if isinstance(expires, timedelta) else UNSET,
    )
    fields = (("Content-Type", JSON_MEDIA_TYPE),)
    request = Request("POST", site.address.target(TOKENS), fields, msgspec.json.encode(document))
    try:
        exchange = yield from ask_server(site, request, RetrySafety.ONCE)
    except Indeterminate as error:
        error.advice = _CHECK_LIST
        raise
    return decoded(exchange.expect(201), NewToken)


def _seconds(span: timedelta) -> int:
    seconds = ceil(span.total_seconds())
    if seconds <= 0:
        raise ValueError(f"a token cannot expire after {span}; pass a positive time")
    return seconds


def list_tokens(site: ServerConfig, after: str | None) -> Flow[TokensPage]:
    """Return one page of the tokens that the caller may see, sorted by id.

    The page begins after the id `after`.
    """
    target = site.address.target(TOKENS) + query(after=after, limit=_LISTING_COUNT)
    page = yield from get(site, target, TokensPage)
    require_progress(page.next, after)
    return page


def show_token(site: ServerConfig, token_id: str) -> Flow[TokenEntry]:
    """Return a token without its secret."""
    return get(site, site.address.target(TOKENS, token_id), TokenEntry)


def revoke_token(site: ServerConfig, token_id: str, *, children: bool) -> Flow[RevokedToken]:
    """Revoke a token. With `children`, also revoke all tokens that were made with it.

    A repeat changes nothing.
    """
    target = site.address.target(TOKENS, token_id) + query(children="true" if children else None)
    exchange = yield from ask_server(site, Request("DELETE", target), RetrySafety.REPEATABLE)
    return decoded(exchange.expect(200), RevokedToken)


def who_am_i(site: ServerConfig) -> Flow[WhoAmI]:
    """Return what the server knows about the caller."""
    return get(site, site.address.target(WHOAMI), WhoAmI)


def change_owner(
    site: ServerConfig, kind: str, name: str, owner: str | None, *, stream: str | None = None
) -> Flow[OwnerResponse]:
    """Give a thing another owner, or none. A repeat changes nothing.

    `kind` is `producer`, `transaction` or `sink`. `stream` is that of a producer; without it, the
    registration of the producer id is meant.
    """
    path: str | UnsetType = UNSET if stream is None else stream
    document = OwnerRequest(kind, name, owner, path)
    target = site.address.target(OWNERS)
    return post(site, target, document, OwnerResponse, 200, stream=stream)


def scope_text(scope: ScopeEntry) -> str:
    """Return a scope as text, such as `stream:orders/*:read,write`."""
    rights = ",".join(scope.rights)
    if isinstance(scope.prefix, str):
        return f"{scope.kind}:{scope.prefix}*:{rights}"
    return (
        f"{scope.kind}:{scope.name}:{rights}"
        if isinstance(scope.name, str)
        else (f"{scope.kind}:{rights}")
    )
