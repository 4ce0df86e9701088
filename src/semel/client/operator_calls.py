"""The calls of an operator: transactions decided by hand, sinks and groups looked after."""

from typing import Any, Final
from urllib.parse import quote

import msgspec
from msgspec import Struct

from semel.client.addresses import query
from semel.client.calls import Site
from semel.client.documents import decoded, get, require_page
from semel.client.errors import ProtocolError, Refused
from semel.client.flows import Flow, Kind, ask
from semel.client.outgoing import Request
from semel.model.media import JSON_MEDIA_TYPE

Document = dict[str, Any]
_TRANSACTIONS: Final = "/v1/transactions"
_SINKS: Final = "/v1/sinks"
_GROUPS: Final = "/v1/groups"
_JSON: Final = (("Content-Type", JSON_MEDIA_TYPE),)
_LISTING_COUNT: Final = 1_000


class _Transactions(Struct, frozen=True):
    transactions: list[Document]
    next: int | None = None


class _Sinks(Struct, frozen=True):
    sinks: list[Document]


# ---- transactions --------------------------------------------------------------------------------


def list_transactions(site: Site, state: str | None, stream: str | None) -> Flow[list[Document]]:
    """List the transactions that are not decided."""
    found: list[Document] = []
    after = 0
    while True:
        target = _target(site, _TRANSACTIONS) + query(
            state=state, stream=stream, after=after, limit=_LISTING_COUNT
        )
        page = decoded((yield from get(site, target)), _Transactions)
        found += page.transactions
        if page.next is None:
            return found
        if page.next <= after:
            raise ProtocolError("a list does not go on after its page")
        after = page.next


def show_transaction(site: Site, name: str, epoch: int | None) -> Flow[Document]:
    """Tell all about a transaction: the newest of its id, or that of an epoch."""
    target = _target(site, _TRANSACTIONS, name) + query(epoch=epoch)
    return decoded((yield from get(site, target)), Document)


def end_transaction(site: Site, name: str, epoch: int, action: str) -> Flow[Document]:
    """Commit, abort or fence a transaction by hand, whoever owns it."""
    target = _target(site, _TRANSACTIONS, name, action)
    wanted = {"transaction_epoch": epoch, "operator": True}
    return (yield from _post(site, target, wanted))


# ---- sinks ---------------------------------------------------------------------------------------


def list_sinks(site: Site) -> Flow[list[Document]]:
    """List the sinks."""
    return decoded((yield from get(site, _target(site, _SINKS))), _Sinks).sinks


def show_sink(site: Site, app: str) -> Flow[Document]:
    """Tell all about a sink."""
    return decoded((yield from get(site, _target(site, _SINKS, app))), Document)


def rebind_sink(site: Site, app: str, query_id: str, last_version: int) -> Flow[Document]:
    """Give a sink to another query, at a version."""
    wanted = {"query_id": query_id, "last_version": last_version}
    return (yield from _post(site, _target(site, _SINKS, app, "rebind"), wanted))


def forget_sink(site: Site, app: str) -> Flow[None]:
    """Drop what is known of a sink."""
    request = Request("DELETE", _target(site, _SINKS, app))
    asked = yield from ask(request, Kind.REPEATABLE, retries=site.retries)
    require_page(asked)
    if asked.was_lost and asked.answer.status == 404:
        return  # the try whose answer was lost did it
    asked.expect(204)


# ---- groups --------------------------------------------------------------------------------------


def show_group(site: Site, group: str) -> Flow[Document]:
    """Tell where a group stands, and the step it has pinned."""
    found = decoded((yield from get(site, _target(site, _GROUPS, group, "offsets"))), Document)
    try:
        page = yield from get(site, _target(site, _GROUPS, group, "snapshot"))
    except Refused as error:
        if error.code != "snapshot_not_found":
            raise
        return {**found, "snapshot": None}
    return {**found, "snapshot": decoded(page, Document)}


# ---- all of them ---------------------------------------------------------------------------------


def _target(site: Site, prefix: str, *names: str) -> str:
    return site.address.target("/".join([prefix, *[quote(name, safe="") for name in names]]))


def _post(
    site: Site, target: str, document: object, kind: Kind = Kind.REPEATABLE
) -> Flow[Document]:
    request = Request("POST", target, _JSON, msgspec.json.encode(document))
    asked = yield from ask(request, kind, retries=site.retries)
    require_page(asked)
    return decoded(asked.expect(200), Document)
