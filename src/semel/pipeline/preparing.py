"""The streams of a graph, before it starts: those it writes are made, those it reads must be."""

from collections.abc import Iterator

from semel.client.client import Client
from semel.client.errors import StreamGone, StreamNotFound
from semel.client.values import StreamInfo
from semel.model.media import JSON_MEDIA_TYPE, is_json
from semel.model.offsets import parse_offset
from semel.pipeline import topology
from semel.pipeline.graph import Graph
from semel.pipeline.problems import GraphError
from semel.pipeline.trace import trace_stream


def prepare(client: Client, graph: Graph) -> dict[str, int]:
    """Make the streams that are missing; GraphError, and nothing made, if one does not fit.

    Returns where the streams end that nobody in the graph writes to.
    """
    written = list(topology.writers(graph))
    read = [path for one in graph.processors for path in one.inputs.values()]
    found = {
        path: _found(client, path)
        for path in dict.fromkeys([*read, *written, trace_stream(graph.id)])
    }
    wrong = list(_complaints(graph, found))
    if wrong:
        raise GraphError(graph.id, wrong)
    for path, info in found.items():
        if info is None:
            client.stream(path).create(JSON_MEDIA_TYPE, exist_ok=True)
    return {
        path: parse_offset(info.next_offset) or 0
        for path, info in found.items()
        if info is not None and path not in written
    }


def _found(client: Client, path: str) -> StreamInfo | None:
    try:
        return client.stream(path).head()
    except (StreamNotFound, StreamGone):
        return None


def _complaints(graph: Graph, found: dict[str, StreamInfo | None]) -> Iterator[str]:
    written = topology.writers(graph)
    for one in graph.processors:
        for path in one.inputs.values():
            if found[path] is None and path not in written:
                yield (
                    f"{one.id}: there is no stream {path} on the server, and no processor writes"
                    f" it; make it with `semel create {path} --content-type application/json`,"
                    " or correct the name"
                )
    for path, info in found.items():
        if info is not None and not is_json(info.content_type):
            users = ", ".join(one.id for one in graph.processors if _uses(graph, one.id, path))
            yield (
                f"{users}: {path} holds {info.content_type}; a graph reads and writes"
                f" {JSON_MEDIA_TYPE}: use another stream"
            )
        if info is not None and info.closed and path in written:
            yield f"{', '.join(written[path])}: {path} is closed; write to another stream"


def _uses(graph: Graph, id: str, path: str) -> bool:
    one = graph.processor(id)
    return path in one.inputs.values() or path in topology.written(graph, one)
