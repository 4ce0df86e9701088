"""The trace of a graph: what became of each step, told in the commit that did it.

A record is appended to `<graph>/trace` by the same commit as the outputs and the positions of its
step, so it is there if and only if the step was done. Which offsets the outputs got only the
answer to that commit tells: the next record of the processor carries them, or one of their own
when there is nothing more to do. A runner that is killed in between leaves them unknown.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from semel.client.group_calls import positions, snapshot
from semel.client.sync.client import Client
from semel.client.txn_values import PinnedStep
from semel.model.offsets import parse_offset, print_offset
from semel.pipeline.delivery import Range, Step

STEP_TYPE: Final = "q.type.trace/step"
OFFSETS_TYPE: Final = "q.type.trace/offsets"

DONE: Final = "done"
TAKEN: Final = "taken"  # at-most-once: read for good, and its outputs not stored yet
PINNED: Final = "pinned"  # begun, and not committed

# A graph keeps at least so many records; every so often the older ones are trimmed.
RECORDS_KEPT: Final = 10_000
TRIMMED_EVERY: Final = 1_000

Offsets = dict[str, list[str]]


class Outputs(Struct, frozen=True):
    """Where the outputs of a step are: first and next offset, by stream."""

    number: int
    offsets: Offsets


class TracedStep(Struct, frozen=True, kw_only=True):
    """What is known of a step. `read` and `written` count messages; `outputs` None: not known."""

    processor: str
    number: int
    ranges: list[tuple[str, str, str, str]]
    hash: str
    outcome: str
    read: int = 0
    written: dict[str, int] = {}
    milliseconds: float = 0.0
    outputs: Offsets | None = None


def trace_stream(graph: str) -> str:
    """Name the stream of a graph's trace."""
    return f"{graph}/trace"


def step_record(traced: TracedStep, before: Outputs | None) -> dict[str, Any]:
    """Word a step, and where the outputs of the one before are."""
    record: dict[str, Any] = {
        "type": STEP_TYPE,
        "processor": traced.processor,
        "number": traced.number,
        "ranges": traced.ranges,
        "hash": traced.hash,
        "outcome": traced.outcome,
        "read": traced.read,
        "written": traced.written,
        "milliseconds": traced.milliseconds,
    }
    return record if before is None else {**record, "before": before}


def offsets_record(processor: str, before: Outputs) -> dict[str, Any]:
    """Word where the outputs of the last step are, when no step follows soon."""
    return {"type": OFFSETS_TYPE, "processor": processor, "before": before}


def printed_ranges(ranges: Iterable[Range]) -> list[tuple[str, str, str, str]]:
    """Word ranges: stream, incarnation, from and to."""
    return [
        (one.stream, one.incarnation, print_offset(one.start), print_offset(one.to))
        for one in ranges
    ]


def pinned(processor: str, step: Step) -> TracedStep:
    """Word a step that is begun and not done."""
    return TracedStep(
        processor=processor,
        number=step.number,
        ranges=printed_ranges(step.ranges),
        hash=step.hash,
        outcome=PINNED,
    )


def read_trace(records: Iterable[Any], processor: str | None = None) -> list[TracedStep]:
    """Put the records of a trace together, in the order of the steps' first ones."""
    found: dict[tuple[str, int], TracedStep] = {}
    for record in records:
        if not isinstance(record, Mapping) or processor not in (None, record.get("processor")):
            continue
        name = record["processor"]
        before = record.get("before")
        if before is not None and (known := found.get((name, before["number"]))) is not None:
            found[name, before["number"]] = replace(known, outputs=before["offsets"])
        if record["type"] == STEP_TYPE:
            found[name, record["number"]] = _traced(record)
    return list(found.values())


def _traced(record: Mapping[str, Any]) -> TracedStep:
    return TracedStep(
        processor=record["processor"],
        number=record["number"],
        ranges=[(one[0], one[1], one[2], one[3]) for one in record["ranges"]],
        hash=record["hash"],
        outcome=record["outcome"],
        read=record["read"],
        written=dict(record["written"]),
        milliseconds=record["milliseconds"],
        outputs=None if record["written"] else {},
    )


# ---- tracing -------------------------------------------------------------------------------------
# Reading the trace of a graph from the server.


def trace_of(client: Client, graph: str, processor: str | None = None) -> list[TracedStep]:
    """Tell what became of the steps of a graph, in the order they were done; begun ones last.

    StreamNotFound if the graph has never run.
    """
    stream = client.stream(trace_stream(graph))
    found = read_trace((message.value for message in stream.read()), processor)
    names = dict.fromkeys(one.processor for one in found)
    if processor is not None:
        names.setdefault(processor)
    done = {(one.processor, one.number) for one in found}
    for name in names:
        step = _undone(client, f"{graph}/{name}")
        if step is not None and (name, step.number) not in done:
            found.append(pinned(name, step))
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
