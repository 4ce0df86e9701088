"""`GET /v1/streams`: the durable streams, in order of their paths, a page at a time."""

from itertools import islice
from typing import Final

from semel.broker.seen import Seen, View
from semel.model.offsets import print_offset
from semel.wire.problems import BadRequest, Problem
from semel.wire.queries import parse_query, read_limit

_PARAMETERS: Final = frozenset({"prefix", "after", "limit"})


def list_streams(seen: Seen, query: str) -> dict[str, object] | Problem:
    """List streams after a path and under a prefix; `next` is where the next page begins."""
    try:
        given = parse_query(query, _PARAMETERS) if query else {}
        limit = read_limit(given.get("limit"))
    except BadRequest as refusal:
        return refusal.problem
    prefix, after = given.get("prefix", ""), given.get("after", "")
    page = list(islice(seen.paths.after(after, prefix), limit + 1))
    more = len(page) > limit
    return {
        "streams": [_describe(path, seen.by_path[path]) for path in page[:limit]],
        "next": page[limit - 1] if more else None,
    }


def _describe(path: str, view: View) -> dict[str, object]:
    row, tail = view.row, view.tail
    assert tail is not None
    return {
        "path": path,
        "content_type": row.content_type,
        "incarnation": row.incarnation,
        "first_offset": print_offset(tail.head),
        "next_offset": print_offset(tail.tail),
        "closed": tail.is_closed,
        "created_at_ms": row.created_ms,
        "written_at_ms": tail.written_ms,
    }
