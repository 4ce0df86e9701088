"""Pages of the lists of streams and topics: `GET /v1/streams` and `GET /v1/topics`.

The lists have the durable streams or topics, sorted by path. Each request returns one page.
"""

from collections.abc import Iterable, Iterator
from heapq import merge
from itertools import islice
from typing import Final

from msgspec import Struct

from semel.broker.durable_view import DurableView, StreamView
from semel.broker.sorted_paths import SortedPaths
from semel.machine.policies import Policies, dedup_source
from semel.machine.state import State
from semel.model.offsets import print_offset
from semel.model.rights import DESCRIBE, STREAM, TOPIC, Caller
from semel.wire.paths import parse_query, read_limit
from semel.wire.policies import print_switch
from semel.wire.schema import StreamEntry, StreamsPage
from semel.wire.schema.topics import TopicEntry, TopicsPage

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
