"""The trace of a graph: a stream with a record of each step.

The commit of a step also appends the step's record to `<graph>/trace`. Therefore the record exists
if and only if the step was committed.

The offsets of a step's outputs are known only after the commit. Therefore the processor's next
record contains them. If the runner is killed before it appends that record, they stay unknown.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from msgspec import Struct, convert
from msgspec.structs import asdict, replace

from semel.client.group_calls import positions, snapshot
from semel.client.sync.client import Client
from semel.client.values import PinnedStep
from semel.model.offsets import parse_offset, print_offset
from semel.pipeline.values import Range, Step

STEP_TYPE: Final = "q.type.trace/step"
OFFSETS_TYPE: Final = "q.type.trace/offsets"

DONE: Final = "done"
TAKEN: Final = "taken"  # at-most-once: the positions were moved, no outputs are stored yet
PINNED: Final = "pinned"  # the step was started, but not committed

# After every TRIMMED_EVERY new records, all but the last RECORDS_KEPT records are trimmed.
RECORDS_KEPT: Final = 10_000
TRIMMED_EVERY: Final = 1_000

Offsets = dict[str, list[str]]


class Outputs(Struct, frozen=True):
    """The outputs of one step. `offsets` maps each stream to the outputs' range [first, next)."""

    number: int
    offsets: Offsets


class TracedStep(Struct, frozen=True, kw_only=True):
    """One step in the trace.

    Each of the `ranges` is a tuple (stream, incarnation, first offset, next offset). `outputs` maps
    each output stream to the offsets [first, next) of the outputs. If the offsets are unknown,
    `outputs` is None. `outcome` is DONE, TAKEN or PINNED.
    """

    processor: str
    number: int
    ranges: list[tuple[str, str, str, str]]
    hash: str
    outcome: str
    read: int = 0
    written: dict[str, int] = {}
    milliseconds: float = 0.0
    outputs: Offsets | None = None


class TraceTrimmer:
    """Decides when the writer of a trace has to trim its oldest records."""

    def __init__(self) -> None:
        self._trimmed_at = 0

    def due(self, next_offset: str | None) -> str | None:
        """Return the offset before which to trim the trace, or None if that can wait.

        `next_offset` is the tail of the trace after the last record, or None if it is unknown.
        """
        end = None if next_offset is None else parse_offset(next_offset)
        if end is None or end - self._trimmed_at < TRIMMED_EVERY:
            return None
        self._trimmed_at = end
        return print_offset(end - RECORDS_KEPT) if end > RECORDS_KEPT else None


def trace_stream(graph: str) -> str:
    return f"{graph}/trace"


def step_record(traced: TracedStep, before: Outputs | None) -> dict[str, Any]:
    """Return the record of a step, with the previous step's outputs if `before` is not None."""
    record = {"type": STEP_TYPE, **asdict(traced)}
    del record["outputs"]
    return record if before is None else {**record, "before": before}


def offsets_record(processor: str, before: Outputs) -> dict[str, Any]:
    """Return a record of the last step's outputs. It is appended if no next step is ready."""
    return {"type": OFFSETS_TYPE, "processor": processor, "before": before}


def printed_ranges(ranges: Iterable[Range]) -> list[tuple[str, str, str, str]]:
    """Convert each range to the tuple (stream, incarnation, first offset, next offset)."""
    return [(r.stream, r.incarnation, print_offset(r.start), print_offset(r.to)) for r in ranges]


def pinned_step(processor: str, step: Step) -> TracedStep:
    """Return a TracedStep for a step that is pinned but not committed."""
    return TracedStep(
        processor=processor,
        number=step.number,
        ranges=printed_ranges(step.ranges),
        hash=step.hash,
        outcome=PINNED,
    )


def read_trace(records: Iterable[Any], processor: str | None = None) -> list[TracedStep]:
    """Return the steps of a trace. If `processor` is not None, return only its steps.

    The steps are in the order of their first records. A step can have two: TAKEN, then DONE.
    """
    steps: dict[tuple[str, int], TracedStep] = {}
    for record in records:
        if not isinstance(record, Mapping) or processor not in (None, record.get("processor")):
            continue
        name = record["processor"]
        before = record.get("before")
        if before is not None and (step := steps.get((name, before["number"]))) is not None:
            steps[name, before["number"]] = replace(step, outputs=before["offsets"])
        if record["type"] == STEP_TYPE:
            step = convert(record, TracedStep)
            steps[name, step.number] = replace(step, outputs=None if step.written else {})
    return list(steps.values())


def trace_of(client: Client, graph: str, processor: str | None = None) -> list[TracedStep]:
    """Return the steps in the trace of a graph, then the steps that started but did not commit.

    `processor` selects one processor's steps. Raises StreamNotFound if the graph has never run.
    """
    stream = client.stream(trace_stream(graph))
    steps = read_trace((message.value for message in stream.read()), processor)
    names = dict.fromkeys(step.processor for step in steps)
    if processor is not None:
        names.setdefault(processor)
    done = {(step.processor, step.number) for step in steps}
    for name in names:
        step = _uncommitted(client, f"{graph}/{name}")
        if step is not None and (name, step.number) not in done:
            steps.append(pinned_step(name, step))
    return steps


def _uncommitted(client: Client, group: str) -> Step | None:
    """Return the pinned (last started) step of a group if it was not committed, otherwise None.

    The step was not committed if the group's positions are still the starts of the step's ranges.
    """
    pinned = client.run(snapshot(client.site, group))
    if pinned is None:
        return None
    step = step_from(pinned)
    stored = client.run(positions(client.site, group))
    ordinals = {path: parse_offset(offset) or 0 for path, offset in stored.items()}
    return step if all(ordinals.get(r.stream, 0) == r.start for r in step.ranges) else None


def step_from(pinned: PinnedStep) -> Step:
    """Convert a pinned step from the server to a Step. The offsets of a Step are integers."""
    ranges = sorted(
        Range(path, r.incarnation, parse_offset(r.start) or 0, parse_offset(r.to) or 0)
        for path, r in pinned.ranges.items()
    )
    return Step(pinned.number, tuple(ranges), pinned.hash)
