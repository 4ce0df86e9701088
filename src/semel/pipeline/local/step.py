"""The loop that runs the steps of one processor.

All state of the loop is stored on the server, so nothing is lost if the process is killed. Each
step is pinned before it is run, which means that the server stores its number, ranges and hash.

    1. `begin` registers the processor's producer. The registration fences older instances. Then
       `begin` reads the pinned step and the positions of the group `<graph>/<processor>`.
    2. If the pinned step starts at the group's positions, that step was not committed. The loop
       repeats that step with the same ranges, number and hash. Otherwise the loop pins the next
       step. If two instances pin a step with the same number, the server stores only the first.
    3. The executor runs the step.
    4. One commit appends the outputs and a trace record, and moves the group's positions.

An at-most-once processor makes two commits for each step. The first commit moves the positions
before the step is run, so the step is never repeated. The second commit appends the outputs. Each
of the two commits appends a trace record.
"""

import time
from collections.abc import Callable, Mapping
from typing import Final, TypeVar

from semel.client import errors
from semel.client.errors import ClientError, Indeterminate, Unavailable
from semel.client.flows import Flow
from semel.client.group_calls import pin, positions, snapshot
from semel.client.values import CommitResult, Message, PinnedRange, PinnedStep
from semel.model.offsets import parse_offset, print_offset
from semel.pipeline import trace
from semel.pipeline.error_stream import RETRIES
from semel.pipeline.evaluate import MessageFailed
from semel.pipeline.executor import Executor, Moves, ProcessorRun, RunState, StepOutput, Work
from semel.pipeline.failures import explained
from semel.pipeline.graph.processors import AT_MOST_ONCE, Role
from semel.pipeline.local.inputs import Inputs
from semel.pipeline.trace import step_from
from semel.pipeline.values import EngineFailed, ProcessorStopped, Step, step_of

T = TypeVar("T")

# The boundaries between the phases of a step. Tests kill the process at each boundary.
BEGUN: Final = "begun"
PLANNED: Final = "planned"
PINNED: Final = "pinned"
RAN: Final = "ran"
COMMITTED: Final = "committed"
BOUNDARIES: Final = (BEGUN, PLANNED, PINNED, RAN, COMMITTED)

Batches = Mapping[str, list[Message]]


class StepLoop:
    """Runs and commits the steps of one processor, one after the other."""

    def __init__(
        self,
        running: ProcessorRun,
        executor: Executor,
        inputs: Inputs,
        *,
        has_run: bool = False,
    ) -> None:
        self._running = running
        self._client = running.client
        self._processor = running.processor
        self._executor = executor
        self._inputs = inputs
        self._has_run = has_run  # whether the graph has run before
        self._gauge = running.gauge
        self._committer = executor.commits(running.client, running.name, running.cut)
        self._is_at_most_once = running.graph.strategy_of(running.processor) == AT_MOST_ONCE
        self._trace = trace.trace_stream(running.graph.id)
        self._before: trace.Outputs | None = None
        self._trimmer = trace.TraceTrimmer()
        self._number = 0

    def run(self) -> None:
        """Run steps until no more input can arrive, or until a stop is requested.

        Raises ProcessorStopped if the processor cannot continue.
        """
        try:
            self._run()
        except (Unavailable, Indeterminate) as error:
            if not self._running.stop.is_set:
                raise self._running.stopped(str(error)) from error
        except ClientError as error:
            raise self._running.stopped(_reason(error)) from error

    def _run(self) -> None:
        uncommitted = self.begin()
        self._running.at(BEGUN)
        if uncommitted is not None:
            self.carry_out(uncommitted, lambda: self._read(uncommitted))
        while not self._running.stop.is_set and self._inputs.wait(self._idle):
            self._gauge.state = RunState.RUNNING
            self.next_step()
        self.trace_outputs()

    # ---- 1 and 2: which step ---------------------------------------------------------------------

    def begin(self) -> Step | None:
        """Fence older instances, and read the group's positions and its pinned (stored) step.

        Return the pinned step if that step still has to be committed. Otherwise return None.
        """
        self._committer.begin()
        site = self._client.site
        stored = self._request(positions(site, self._running.name))
        pinned = self._request(snapshot(site, self._running.name))
        self._inputs.place({path: parse_offset(offset) or 0 for path, offset in stored.items()})
        self._warn({*stored, *(() if pinned is None else pinned.ranges)})
        if pinned is None:
            return None
        step = step_from(pinned)
        is_uncommitted = self._is_uncommitted(step)
        self._number = step.number - 1 if is_uncommitted else step.number
        return step if is_uncommitted else None

    def _warn(self, known: set[str]) -> None:
        """Log a warning for each input without a stored position, if others have one.

        `known` are the streams of the stored positions and of the last step. A processor that is
        new in a graph that has run before has none.
        """
        is_new = self._has_run and self._committer.epoch == 0
        if known or is_new:
            self._running.warn_without_position(
                path for path in self._processor.inputs.values() if path not in known
            )

    def _is_uncommitted(self, step: Step) -> bool:
        """Return True if this step starts at the current position of every input.

        Otherwise, either the step was committed, or the inputs or the positions were changed after
        the step was stored. Such a step is never run again. The retry stream is only in a step that
        takes messages from it.
        """
        named = {r.stream for r in step.ranges}
        starts = {
            (feed.path, feed.incarnation, feed.position)
            for binding, feed in self._inputs.by_binding.items()
            if binding != RETRIES or feed.path in named
        }
        return {(r.stream, r.incarnation, r.start) for r in step.ranges} == starts

    def next_step(self) -> None:
        """Plan a step from the messages that are ready. Pin (store) it, run it and commit it.

        If another instance has already pinned a step, run that step instead. Raises
        ProcessorStopped if the other instance's step does not start at the group's positions.
        """
        planned = self._inputs.plan()
        ranges = [range for _, range in planned.values()]
        plan = step_of(self._running.graph.id, self._processor.id, self._number + 1, ranges)
        self._running.at(PLANNED)
        step = step_from(self._request(pin(self._client.site, self._running.name, _pinned(plan))))
        if step == plan:
            self.carry_out(step, lambda: {name: batch for name, (batch, _) in planned.items()})
            return
        if not self._is_uncommitted(step):
            raise self._running.stopped(
                f"step {step.number}, which another instance has pinned, does not start at the"
                " group's positions; stop all other instances, then start this processor again"
            )
        self.carry_out(step, lambda: self._read(step))

    def _read(self, step: Step) -> Batches:
        ranges = {r.stream: r for r in step.ranges}
        batches = {
            binding: feed.exactly(ranges[feed.path])
            for binding, feed in self._inputs.by_binding.items()
            if feed.path in ranges
        }
        counts = {len(batch) for binding, batch in batches.items() if binding != RETRIES}
        if self._processor.is_join and len(counts) > 1:
            raise self._running.stopped(
                f"messages of {_where(step)} were trimmed, so the inputs cannot be joined any more;"
                " use `semel groups set` to set the group's positions to messages that exist"
            )
        return batches

    # ---- 3 and 4: run and commit -----------------------------------------------------------------

    def carry_out(self, step: Step, messages: Callable[[], Batches]) -> None:
        """Run and commit a pinned step. `messages` returns the step's messages for each binding."""
        self._running.at(PINNED)
        start = time.perf_counter()
        self._number = step.number
        # Each move names the incarnation of its stream. If the stream was deleted and created again
        # in the meantime, the commit fails. Without this check, the move would skip messages of the
        # new stream.
        moves: Moves = {
            self._running.name: {
                r.stream: (r.start, r.to, r.incarnation) for r in step.ranges if r.to > r.start
            }
        }
        if self._is_at_most_once:
            self._commit(step, StepOutput(), moves, trace.TAKEN, start)
            moves = {}
        output = self._output(step, messages)
        self._running.at(RAN)
        result = self._commit(step, output, moves, trace.DONE, start)
        self._running.at(COMMITTED)
        self._inputs.move(step.ranges)
        self._update_gauge(step, output, time.perf_counter() - start)
        self._trim_trace(result)

    def _output(self, step: Step, messages: Callable[[], Batches]) -> StepOutput:
        work = Work(
            graph=self._running.graph,
            processor=self._processor,
            step=step,
            url=self._client.url,
            token=self._running.token,
            producer_id=self._committer.producer_id,
            producer_epoch=self._committer.epoch,
            version=self._committer.version,
            messages=messages,
        )
        try:
            return self._executor.run(work)
        except (ClientError, ProcessorStopped):
            raise
        except Exception as error:
            reason = _failure(error, step, self._processor.role)
            raise self._running.stopped(f"{reason}; {self._on_restart(step)}") from error

    def _on_restart(self, step: Step) -> str:
        """Return the part of an error message that says what a restart will do with this step."""
        if self._is_at_most_once:
            return "this step is lost, because an at-most-once processor never repeats a step"
        return f"a restart repeats the step from its beginning, with the same hash {step.hash}"

    def _commit(
        self,
        step: Step,
        output: StepOutput,
        moves: Moves,
        outcome: str,
        start: float,
    ) -> CommitResult:
        traced = trace.TracedStep(
            processor=self._processor.id,
            number=step.number,
            ranges=trace.printed_ranges(step.ranges),
            hash=step.hash,
            outcome=outcome,
            read=output.read,
            written=dict(output.written),
            milliseconds=round((time.perf_counter() - start) * 1000, 3),
        )
        result = self._committer.commit(
            step,
            output.appends,
            moves,
            transactions=output.transactions,
            record=(self._trace, trace.step_record(traced, self._before)),
        )
        self._before = None
        if outcome == trace.DONE and output.written and result.streams is not None:
            offsets = {
                path: [done.first_offset, done.next_offset]
                for path, done in result.streams.items()
                if path != self._trace
            }
            self._before = trace.Outputs(step.number, offsets)
        return result

    # ---- gauge and trace -------------------------------------------------------------------------

    def _idle(self) -> None:
        self._gauge.state = RunState.IDLE
        self._gauge.lag = self._inputs.lag
        self.trace_outputs()

    def trace_outputs(self) -> None:
        """Append the offsets of the last step's outputs to the trace, unless the trace has them."""
        if self._before is None:
            return
        record = trace.offsets_record(self._processor.id, self._before)
        self._committer.commit(None, {}, {}, record=(self._trace, record))
        self._before = None

    def _update_gauge(self, step: Step, output: StepOutput, seconds: float) -> None:
        gauge, error_stream = self._gauge, self._running.graph.errors_of(self._processor)
        gauge.step = step.number
        gauge.read += output.read
        gauge.written += sum(output.written.values())
        gauge.errors += output.written.get(error_stream or "", 0)
        gauge.lag = self._inputs.lag
        gauge.step_seconds = seconds

    def _trim_trace(self, result: CommitResult) -> None:
        traced = (result.streams or {}).get(self._trace)
        before = self._trimmer.due(None if traced is None else traced.next_offset)
        if before is not None:
            self._request(self._client.stream(self._trace).calls.trim(before))

    def _request(self, flow: Flow[T]) -> T:
        return self._client.run_until_stopped(flow, self._running.cut)


# ---- messages ------------------------------------------------------------------------------------


def _pinned(step: Step) -> PinnedStep:
    ranges = {
        r.stream: PinnedRange(r.incarnation, print_offset(r.start), print_offset(r.to))
        for r in step.ranges
    }
    return PinnedStep(step.number, ranges, step.hash)


def _where(step: Step) -> str:
    ranges = ", ".join(f"{r.stream} {r.start}..{r.to}" for r in step.ranges if r.to > r.start)
    return f"step {step.number} ({ranges})"


def _failure(error: Exception, step: Step, role: Role) -> str:
    if isinstance(error, EngineFailed):
        return f"{error} in {_where(step)}"
    if isinstance(error, MessageFailed):
        cause = error.__cause__
        assert cause is not None
        return (
            f"{type(cause).__name__}: {explained(cause)}; the failed message is {error}, in"
            f" {_where(step)}. The processor has no error stream. Fix the function, or set an error"
            " stream with errors="
        )
    what = "the sink" if role is Role.SINK else "the function"
    return f"{what} raised {type(error).__name__}: {explained(error)} in {_where(step)}"


def _reason(error: ClientError) -> str:
    if isinstance(error, errors.ProducerFenced | errors.AppBound):
        return "a newer instance of this processor is running and has taken over"
    if isinstance(error, errors.PositionConflict):
        return f"another client changed the group's positions: {error.message}; start the run again"
    if isinstance(error, errors.OffsetTrimmed):
        return f"{error.message}; set the group's position to a later offset (`semel groups set`)"
    return str(error)
