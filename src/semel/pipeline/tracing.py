"""Reading the trace of a graph from the server."""

from semel.client.client import Client
from semel.client.group_calls import positions, snapshot
from semel.client.txn_values import PinnedStep
from semel.model.offsets import parse_offset
from semel.pipeline import trace
from semel.pipeline.delivery import Range, Step


def trace_of(client: Client, graph: str, processor: str | None = None) -> list[trace.Traced]:
    """Tell what became of the steps of a graph, in the order they were done; begun ones last.

    StreamNotFound if the graph has never run.
    """
    stream = client.stream(trace.trace_stream(graph))
    found = trace.read_trace((message.value for message in stream.read()), processor)
    names = dict.fromkeys(one.processor for one in found)
    if processor is not None:
        names.setdefault(processor)
    done = {(one.processor, one.number) for one in found}
    for name in names:
        step = _undone(client, f"{graph}/{name}")
        if step is not None and (name, step.number) not in done:
            found.append(trace.pinned(name, step))
    return found


def _undone(client: Client, group: str) -> Step | None:
    """Find the step a group has pinned, if it stands where that begins."""
    pinned = client.run(snapshot(client.site, group))
    if pinned is None:
        return None
    step = step_from(pinned)
    stands = client.run(positions(client.site, group))
    places = {path: parse_offset(offset) or 0 for path, offset in stands.items()}
    is_undone = all(places.get(one.stream, 0) == one.start for one in step.ranges)
    return step if is_undone else None


def step_from(pinned: PinnedStep) -> Step:
    """Read a step as the server tells it."""
    ranges = sorted(
        Range(path, one.incarnation, parse_offset(one.start) or 0, parse_offset(one.to) or 0)
        for path, one in pinned.ranges.items()
    )
    return Step(pinned.number, tuple(ranges), pinned.hash)
