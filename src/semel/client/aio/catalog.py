"""What a server has: streams, topics, groups, policies, tokens; and commits of several at once."""

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from semel.client import commit_calls, server_calls, token_calls, txn_calls
from semel.client.async_driver import AsyncDriver, AsyncStop
from semel.client.flows import Flow, T
from semel.client.member_calls import list_groups
from semel.client.positions import KnownPositions
from semel.client.stream_calls import ServerConfig
from semel.client.subscription_values import AckedWake
from semel.client.token_calls import (
    NewToken,
    OwnerResponse,
    RevokedToken,
    Scopes,
    TokenEntry,
    WhoAmI,
)
from semel.client.topic_calls import list_topics
from semel.client.transport import CLIENT_DEFAULT, Timeout, seconds_of
from semel.client.values import (
    CommitResult,
    Metadata,
    Moves,
    Offset,
    Policy,
    StreamEntry,
    TransactionStatus,
)
from semel.wire.schema.groups import GroupListEntry
from semel.wire.schema.topics import TopicEntry

if TYPE_CHECKING:
    from semel.client.aio.client import AsyncClient


class AsyncCatalog:
    """The part of a client that runs calls, and the calls that need no stream or group object."""

    site: ServerConfig
    driver: AsyncDriver
    timeout: float
    known_streams: commit_calls.KnownStreams
    positions: KnownPositions
    unresolved: txn_calls.Unresolved

    # ---- running flows ---------------------------------------------------------------------------

    async def run(self, flow: Flow[T], timeout: Timeout = CLIENT_DEFAULT) -> T:
        """Run a flow (the requests of one call). Raises a SemelError after `timeout` seconds."""
        return await self.driver.run(flow, seconds_of(timeout, self.timeout))

    async def run_until_stopped(
        self,
        flow: Flow[T],
        stop: AsyncStop,
        *,
        silence: Timeout = CLIENT_DEFAULT,
    ) -> T:
        """Run a flow (the requests of one call) without a deadline. Return the flow's result.

        The flow waits while the server is unreachable. A request counts as lost if no byte of its
        response comes for `silence` seconds. Once `stop` is set, the flow fails with Unavailable or
        Indeterminate.
        """
        silence_seconds = seconds_of(silence, self.timeout)
        return await self.driver.run(flow, stop=stop, silence_seconds=silence_seconds)

    # ---- streams, topics, groups, policies, health -----------------------------------------------

    async def streams(
        self, prefix: str = "", *, after: str | None = None, timeout: Timeout = CLIENT_DEFAULT
    ) -> AsyncIterator[StreamEntry]:
        """Yield the streams whose paths begin with `prefix`, sorted by path.

        With `after`, yield only the streams after this path.
        """
        while True:
            page = await self.run(server_calls.list_streams(self.site, prefix, after), timeout)
            for entry in page.streams:
                yield entry
            if page.next is None:
                return
            after = page.next

    async def topics(
        self, prefix: str = "", *, after: str | None = None, timeout: Timeout = CLIENT_DEFAULT
    ) -> AsyncIterator[TopicEntry]:
        """Yield the topics whose names begin with `prefix`, sorted by name.

        With `after`, yield only the topics after this name.
        """
        while True:
            page = await self.run(list_topics(self.site, prefix, after), timeout)
            for entry in page.topics:
                yield entry
            if page.next is None:
                return
            after = page.next

    async def groups(
        self, prefix: str = "", *, after: str | None = None, timeout: Timeout = CLIENT_DEFAULT
    ) -> AsyncIterator[GroupListEntry]:
        """Yield the groups whose names begin with `prefix`, sorted by name.

        With `after`, yield only the groups after this name.
        """
        while True:
            page = await self.run(list_groups(self.site, prefix, after), timeout)
            for entry in page.groups:
                yield entry
            if page.next is None:
                return
            after = page.next

    async def policies(self, *, timeout: Timeout = CLIENT_DEFAULT) -> list[Policy]:
        """Return all policies: what holds for every stream below a prefix, now and later."""
        return await self.run(server_calls.list_policies(self.site), timeout)

    async def policy(self, prefix: str, *, timeout: Timeout = CLIENT_DEFAULT) -> Policy:
        """Return the policy of a prefix. The prefix "" is the whole server.

        Raises PolicyNotFound if the prefix has no policy.
        """
        return await self.run(server_calls.show_policy(self.site, prefix), timeout)

    async def set_policy(
        self, prefix: str, *, dedup: bool, timeout: Timeout = CLIENT_DEFAULT
    ) -> Policy:
        """Set whether the streams below a prefix recognise duplicates, now and later.

        A prefix consists of whole segments: "orders" holds for the streams orders and orders/eu,
        but not for orders2. The prefix "" is the whole server. The policy with the longest prefix
        wins, and a stream's own setting wins over all. A stream that exists is switched by its next
        append outside transactions.
        """
        return await self.run(server_calls.set_policy(self.site, prefix, dedup=dedup), timeout)

    async def delete_policy(self, prefix: str, *, timeout: Timeout = CLIENT_DEFAULT) -> None:
        """Delete the policy of a prefix. Raises PolicyNotFound if the prefix has no policy."""
        await self.run(server_calls.delete_policy(self.site, prefix), timeout)

    async def health(self, *, timeout: Timeout = CLIENT_DEFAULT) -> dict[str, Any]:
        """Return the health report. Its `status` is "full" if the disk is full, otherwise "ok"."""
        return await self.run(server_calls.health(self.site), timeout)

    # ---- transactions by their tokens, one-shot commits ------------------------------------------

    async def transaction_status(
        self, token: str, *, timeout: Timeout = CLIENT_DEFAULT
    ) -> TransactionStatus:
        """Return the status of a transaction. `token` is the transaction's token or its id.

        If `token` is an id, return the status of the newest transaction with this id.
        """
        return await self.run(txn_calls.status(self.site, token), timeout)

    async def commit_prepared(
        self, token: str, *, timeout: Timeout = CLIENT_DEFAULT
    ) -> CommitResult:
        """Commit a prepared transaction. Any client can do this.

        A repeated call returns the same result.
        """
        return await self.run(
            txn_calls.end_transaction_call(self.site, token, "commit", self.unresolved), timeout
        )

    async def abort_prepared(self, token: str, *, timeout: Timeout = CLIENT_DEFAULT) -> None:
        """Abort a prepared transaction. Any client can do this.

        A repeated call changes nothing.
        """
        await self.run(
            txn_calls.end_transaction_call(self.site, token, "abort", self.unresolved), timeout
        )

    async def commit(
        self,
        *,
        producer_id: str,
        seq: int,
        epoch: int = 0,
        appends: Mapping[str, Iterable[Any]] | None = None,
        offsets: Mapping[str, Moves] | None = None,
        if_: Mapping[str, Offset] | None = None,
        transactions: Sequence[str] = (),
        metadata: Mapping[str, Mapping[str, Metadata]] | None = None,
        wakes: Iterable[AckedWake] = (),
        timeout: Timeout = CLIENT_DEFAULT,
    ) -> CommitResult:
        """Append to streams and set the positions of groups, in one commit: all or nothing.

        `producer_id`, `epoch` and `seq` identify the commit. `seq` counts 0, 1, 2, and so on. A
        repeated call changes nothing, even after a crash. It returns the first result, with
        `duplicate` set.

        `appends` maps each stream to its values. `offsets` has the form {group: {stream: move}}.
        A move is a pair (from, to) or a message's `next_offset`. For a pair, PositionConflict is
        raised if the group is not at `from`. For a `next_offset`, PositionConflict is raised if
        another client or reader has changed the position since the message's reader was opened.
        `metadata` has the form {group: {stream: {name: value}}}. It is stored with the positions.

        `if_` maps streams to expected tails. Raises PreconditionFailed if a tail is different.
        `transactions` lists tokens of this producer's staged transactions, to commit them as well.
        `wakes` lists wakes of subscriptions that it acks, as in `[wake.acked()]`. Raises WakeFenced
        if one of them has ended.
        """
        flow = commit_calls.commit_known_parts(
            self.known_streams,
            commit_calls.CommitId(producer_id, epoch, seq),
            commit_calls.Parts(
                appends or {},
                offsets or {},
                if_ or {},
                transactions,
                metadata or {},
                wakes=list(wakes),
            ),
            self.positions,
        )
        result = await self.run(flow, timeout)
        txn_calls.note_listed(self.unresolved, transactions)
        return result


# ---- tokens and owners ---------------------------------------------------------------------------


class AsyncAccess:
    """The tokens and owners of a server: `client.access`.

    If access is off, only `whoami` and the lists have a result, and tokens cannot be made: the call
    raises Refused with the code `access_off`.
    """

    def __init__(self, client: "AsyncClient") -> None:
        self._client = client

    async def whoami(self, *, timeout: Timeout = CLIENT_DEFAULT) -> WhoAmI:
        """Return the principal and the scopes of the token that this client sends."""
        return await self._client.run(token_calls.who_am_i(self._client.site), timeout)

    async def create_token(
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
        return await self._client.run(flow, timeout)

    async def tokens(self, *, timeout: Timeout = CLIENT_DEFAULT) -> AsyncIterator[TokenEntry]:
        """Yield the tokens that this client may see, sorted by id, without their secrets.

        Revoked and expired tokens are among them.
        """
        after: str | None = None
        while True:
            flow = token_calls.list_tokens(self._client.site, after)
            page = await self._client.run(flow, timeout)
            for entry in page.tokens:
                yield entry
            if page.next is None:
                return
            after = page.next

    async def token(self, id: str, *, timeout: Timeout = CLIENT_DEFAULT) -> TokenEntry:
        """Return a token, without its secret.

        Raises Refused with the code `token_not_found` if this client may not see such a token.
        """
        return await self._client.run(token_calls.show_token(self._client.site, id), timeout)

    async def revoke_token(
        self, id: str, *, children: bool = False, timeout: Timeout = CLIENT_DEFAULT
    ) -> RevokedToken:
        """Revoke a token permanently. With `children`, also revoke all tokens made with it.

        A repeat returns the time of the first revocation. Raises Refused with the code
        `token_not_found` if this client may not see such a token.
        """
        flow = token_calls.revoke_token(self._client.site, id, children=children)
        return await self._client.run(flow, timeout)

    async def change_owner(
        self,
        kind: str,
        name: str,
        owner: str | None,
        *,
        stream: str | None = None,
        timeout: Timeout = CLIENT_DEFAULT,
    ) -> OwnerResponse:
        """Give something another owner, or none (None).

        `kind` is "producer", "transaction", "sink" or "subscription". `stream` is the path of the
        stream in which a producer is. Without it, the registration of the producer id is meant.
        Raises Refused with the code `thing_not_found` if there is no such thing.
        """
        flow = token_calls.change_owner(self._client.site, kind, name, owner, stream=stream)
        return await self._client.run(flow, timeout)
