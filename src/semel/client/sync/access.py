# generated from semel/client/aio/access.py by `make facades`; do not edit
"""Tokens and owners of a server."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from semel.client import token_calls
from semel.client.token_calls import (
    NewToken,
    OwnerResponse,
    RevokedToken,
    Scopes,
    TokenEntry,
    WhoAmI,
)
from semel.client.transport import CLIENT_DEFAULT, Timeout

if TYPE_CHECKING:
    from semel.client.sync.client import Client


class Access:
    """The tokens and owners of a server: `client.access`.

    If access is off, only `whoami` and the lists have a result, and tokens cannot be made: the call
    raises Refused with the code `access_off`.
    """

    def __init__(self, client: "Client") -> None:
        self._client = client

    def whoami(self, *, timeout: Timeout = CLIENT_DEFAULT) -> WhoAmI:
        """Return the principal and the scopes of the token that this client sends."""
        return self._client.run(token_calls.who_am_i(self._client.site), timeout)

    def create_token(
        self,
        scopes: Scopes,
        *,
        principal: str | None = None,
        expires: datetime | timedelta | None = None,
        description: str = "",
        timeout: Timeout = CLIENT_DEFAULT,
    ) -> NewToken:
        """Create a token. Only this result has the secret text, in `token`. Its repr hides it.

        A scope is a text such as "stream:orders/*:read,write", or one of `TokenEntry.scopes`.
        Without `principal`, the token is for the principal of this client's token. The token
        expires at the time `expires`, or after it, or when this client's token expires.

        Raises Forbidden if the scopes, the principal or the expiry exceed those of this client's
        token. If the response is lost, the request is not repeated, and Indeterminate is raised:
        perhaps there is a token whose secret nobody knows.
        """
        flow = token_calls.create_token(
            self._client.site,
            scopes,
            principal=principal,
            expires=expires,
            description=description,
        )
        return self._client.run(flow, timeout)

    def tokens(self, *, timeout: Timeout = CLIENT_DEFAULT) -> Iterator[TokenEntry]:
        """Yield the tokens that this client may see, sorted by id, without their secrets.

        Revoked and expired tokens are among them.
        """
        after: str | None = None
        while True:
            flow = token_calls.list_tokens(self._client.site, after)
            page = self._client.run(flow, timeout)
            yield from page.tokens
            if page.next is None:
                return
            after = page.next

    def token(self, id: str, *, timeout: Timeout = CLIENT_DEFAULT) -> TokenEntry:
        """Return a token, without its secret.

        Raises Refused with the code `token_not_found` if this client may not see such a token.
        """
        return self._client.run(token_calls.show_token(self._client.site, id), timeout)

    def revoke_token(
        self, id: str, *, children: bool = False, timeout: Timeout = CLIENT_DEFAULT
    ) -> RevokedToken:
        """Revoke a token permanently. With `children`, also revoke all tokens made with it.

        A repeat returns the time of the first revocation. Raises Refused with the code
        `token_not_found` if this client may not see such a token.
        """
        flow = token_calls.revoke_token(self._client.site, id, children=children)
        return self._client.run(flow, timeout)

    def change_owner(
        self,
        kind: str,
        name: str,
        owner: str | None,
        *,
        stream: str | None = None,
        timeout: Timeout = CLIENT_DEFAULT,
    ) -> OwnerResponse:
        """Give a producer, a transaction id or a sink another owner, or none (None).

        `kind` is "producer", "transaction" or "sink". `stream` is the path of the stream in which a
        producer is. Without it, the registration of the producer id is meant. Raises Refused with
        the code `thing_not_found` if there is no such thing.
        """
        flow = token_calls.change_owner(self._client.site, kind, name, owner, stream=stream)
        return self._client.run(flow, timeout)
