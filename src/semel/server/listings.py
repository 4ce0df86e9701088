"""Pages of lists: `GET /v1/streams`, `GET /v1/topics` and `GET /v1/transactions`.

The lists of streams and topics have the durable ones, sorted by path. Each request returns one
page.
"""

from collections.abc import Callable, Iterable, Iterator
from heapq import merge
from itertools import islice
from typing import Final

from msgspec import UNSET, Struct, UnsetType

from semel.broker.durable_view import DurableView, StreamView
from semel.broker.sorted_paths import SortedPaths
from semel.machine.policies import Policies, dedup_source
from semel.machine.state import State, Txn
from semel.machine.txn.views import Dates, pending_txns, txn_state, txn_view
from semel.model.limits import TXN_PAGE_ROWS_MAX, TXN_PAGE_SEARCHED_MAX
from semel.model.offsets import print_offset
from semel.model.rights import DESCRIBE, STREAM, TOPIC, Caller
from semel.wire.paths import parse_query, read_limit
from semel.wire.policies import print_switch
from semel.wire.schema import StreamEntry, StreamsPage
from semel.wire.schema.topics import TopicEntry, TopicsPage
from semel.wire.schema.transactions import PendingTransaction, TransactionsPage
from semel.wire.transactions import STUCK, TxnQuery, is_stuck, pending_transaction

_PARAMETERS: Final = frozenset({"prefix", "after", "limit"})


class PageQuery(Struct, frozen=True):
    """The names on a page: those after `after` that begin with `prefix`, at most `limit`."""

    prefix: str
    after: str
    limit: int


def parse_page_query(query: str) -> PageQuery:
    """Parse the query of a list. Raises MalformedRequest if it is invalid."""
    parameters = parse_query(query, _PARAMETERS) if query else {}
    limit = read_limit(parameters.get("limit"))
    return PageQuery(parameters.get("prefix", ""), parameters.get("after", ""), limit)


def shown_paths(
    paths: SortedPaths, kind: str, caller: Caller | None, *, after: str = "", prefix: str = ""
) -> Iterator[str]:
    """Yield the paths after `after` that begin with `prefix` and that the caller may see, sorted.

    `kind` is that of the things with these paths. Only the names and prefixes of the caller's
    scopes are searched. So hidden paths cost no time, however many there are, and a page never ends
    with one.
    """
    if caller is None or caller.is_admin:
        yield from paths.after(after, prefix)
        return
    scopes = [scope for scope in caller.scopes if scope.kind == kind]
    exact = {scope.name for scope in scopes if not scope.is_prefix}
    ranges: list[Iterable[str]] = [
        sorted(name for name in exact if name in paths and name > after and name.startswith(prefix))
    ]
    for start in {scope.name for scope in scopes if scope.is_prefix}:
        if start.startswith(prefix):
            ranges.append(paths.after(after, start))
        elif prefix.startswith(start):
            ranges.append(paths.after(after, prefix))
    last = ""
    for path in merge(*ranges):
        if path != last and caller.may(kind, path, DESCRIBE):
            last = path
            yield path


# ---- streams -------------------------------------------------------------------------------------


def streams_page(
    view: DurableView, query: str, *, generation: int, caller: Caller | None = None
) -> StreamsPage:
    """Return a page of streams, sorted by path. Raises MalformedRequest if `query` is invalid.

    With a `caller`, the page has only the streams that the caller may see.
    """
    page = parse_page_query(query)
    shown = shown_paths(view.paths, STREAM, caller, after=page.after, prefix=page.prefix)
    names = list(islice(shown, page.limit + 1))
    return StreamsPage(
        [_stream_entry(path, view.by_path[path], view.policies) for path in names[: page.limit]],
        generation,
        names[page.limit - 1] if len(names) > page.limit else None,
    )


def _stream_entry(path: str, view: StreamView, policies: Policies) -> StreamEntry:
    row, tail = view.row, view.durable_tail
    source = dedup_source(policies, path, tail)
    return StreamEntry(
        path=path,
        content_type=row.content_type,
        incarnation=row.incarnation,
        first_offset=print_offset(tail.head),
        next_offset=print_offset(tail.tail),
        closed=tail.is_closed,
        created_at_ms=row.created_ms,
        written_at_ms=tail.written_ms,
        dedup=print_switch(tail.dedup_from is not None),
        dedup_source=source.name,
        dedup_policy=source.prefix,
        dedup_pending=None if source.pending is None else print_switch(source.pending),
    )


# ---- topics --------------------------------------------------------------------------------------


def topics_page(
    state: State, view: DurableView, page: PageQuery, caller: Caller | None = None
) -> TopicsPage:
    """Return a page of topics, sorted by name.

    With a `caller`, the page has only the topics that the caller may see.
    """
    shown = shown_paths(view.topics, TOPIC, caller, after=page.after, prefix=page.prefix)
    names = list(islice(shown, page.limit + 1))
    # A topic that is durable can have been deleted in the state, which is ahead.
    entries = [entry for name in names[: page.limit] for entry in _topic_entries(state, name)]
    return TopicsPage(entries, names[page.limit - 1] if len(names) > page.limit else None)


def _topic_entries(state: State, name: str) -> Iterator[TopicEntry]:
    topic = state.by_path.get(name)
    if topic is not None and topic.topic is not None and not topic.tail.is_deleted:
        yield TopicEntry(
            topic=name,
            partition_count=len(topic.topic.partitions),
            partitioner=topic.topic.partitioner,
            content_type=topic.row.content_type,
            keyed=topic.topic.is_keyed,
            closed=topic.tail.is_closed,
            created_at_ms=topic.row.created_ms,
        )


# ---- transactions --------------------------------------------------------------------------------


def transactions_page(
    state: State,
    query: TxnQuery,
    now_ms: int,
    dates: Dates,
    is_shown: Callable[[str], bool] = lambda _name: True,
    owner_of: Callable[[str], str | UnsetType | None] = lambda _name: UNSET,
) -> TransactionsPage[PendingTransaction]:
    """Return a page of the pending transactions that match `query`, oldest first.

    `is_shown` returns True for the ids of transactions that the caller may see. `owner_of` returns
    the owner of an id, or UNSET if the page does not show it.

    The page also ends after transactions with TXN_PAGE_ROWS_MAX streams and positions together, and
    after TXN_PAGE_SEARCHED_MAX transactions of which some do not match. So a page takes a few
    milliseconds, and it can be empty although there is a next one.
    """
    entries: list[PendingTransaction] = []
    rows, last = 0, query.after
    for searched, txn in enumerate(pending_txns(state, query.stream, query.after)):
        if searched == TXN_PAGE_SEARCHED_MAX:
            return TransactionsPage(entries, last)
        if is_shown(txn.row.id) and _is_in_state(txn, query.state, now_ms, dates):
            if len(entries) == query.limit or rows >= TXN_PAGE_ROWS_MAX:
                return TransactionsPage(entries, last)
            view, owner = txn_view(state, txn, dates), owner_of(txn.row.id)
            entries.append(pending_transaction(view, now_ms, owner))
            rows += len(txn.streams) + len(txn.row.positions)
        last = txn.row.number
    return TransactionsPage(entries)


def _is_in_state(txn: Txn, wanted: str | None, now_ms: int, dates: Dates) -> bool:
    """Return True if a transaction is in the state of a query. Every one is in the state None."""
    if wanted == STUCK:
        return is_stuck(dates(txn).touched_ms, now_ms)
    return wanted in (None, txn_state(txn))
