"""The loop of a processor. All its state is on the server, so nothing is lost if it is killed.

    1. `begin`: register the processor's producer, which fences older instances. Then read the
       positions of the group `<graph>/<processor>`, and the pinned step.
    2. If the group is at the start of the pinned step, that step was not committed. It is repeated
       with the same ranges, number and hash. Otherwise the next step is pinned. If two instances
       pin a step with the same number, the server stores the first one.
    3. The executor runs the step.
    4. One commit appends the outputs and the trace record, and moves the group.

At-most-once: one commit moves the group before 3, and 4 only appends the outputs and a trace
record. A step is never repeated after its group was moved.
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
from semel.pipeline.evaluate import MessageFailed, text_of
from semel.pipeline.executor import Executor, Moves, ProcessorRun, RunState, StepOutput, Work
from semel.pipeline.graph.processors import AT_MOST_ONCE, Role
from semel.pipeline.local.inputs import Inputs
from semel.pipeline.trace import step_from
from semel.pipeline.values import EngineFailed, ProcessorStopped, Step, step_of

T = TypeVar("T")

# The boundaries of a step. Tests kill the process at each of them.
BEGUN: Final = "begun"
PLANNED: Final = "planned"
PINNED: Final = "pinned"
RAN: Final = "ran"
COMMITTED: Final = "committed"
BOUNDARIES: Final = (BEGUN, PLANNED, PINNED, RAN, COMMITTED)

Batches = Mapping[str, list[Message]]


class StepLoop:
    """Runs and commits the steps of one processor, one after the other."""

    def __init__(self, running: ProcessorRun, executor: Executor, inputs: Inputs) -> None:
        self._running = running
        self._client = running.client
        self._processor = running.processor
        self._executor = executor
        self._inputs = inputs
        self._gauge = running.gauge
        self._committer = executor.commits(running.client, running.name, running.cut)
        self._is_at_most_once = running.graph.strategy_of(running.processor) == AT_MOST_ONCE
        self._trace = trace.trace_stream(running.graph.id)
        self._before: trace.Outputs | None = None
        self._trimmed_at = 0
        self._number = 0

    def run(self) -> None:
        """Process until no more input can come, or until a stop is requested.

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
        """Fence older instances and read the positions of the group.

        Returns the pinned step if it was not committed, otherwise None.
        """
        self._committer.begin()
        site = self._client.site
        stored = self._request(positions(site, self._running.name))
        pinned = self._request(snapshot(site, self._running.name))
        self._inputs.place({path: parse_offset(offset) or 0 for path, offset in stored.items()})
        if pinned is None:
            return None
        step = step_from(pinned)
        is_uncommitted = self._is_uncommitted(step)
        self._number = step.number - 1 if is_uncommitted else step.number
        return step if is_uncommitted else None

    def _is_uncommitted(self, step: Step) -> bool:
        """Return whether the current positions of the inputs are the starts of this step.

        Otherwise the step was committed, or it cannot be repeated: the graph has other inputs now,
        an input was deleted and created again, or the group was moved by hand. Then the next step
        starts at the current positions.
        """
        starts = {(feed.path, feed.incarnation, feed.position) for feed in self._inputs.feeds}
        return {(r.stream, r.incarnation, r.start) for r in step.ranges} == starts

    def next_step(self) -> None:
        """Plan a step from the messages that are ready, pin it, run it and commit it.

        If another instance has pinned a step, that step is used instead. Raises ProcessorStopped if
        that step does not start at the positions of the group.
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
                f"step {step.number} is pinned, but it does not start at the positions of the"
                " group; another instance may be running: stop it, then start this one again"
            )
        self.carry_out(step, lambda: self._read(step))

    def _read(self, step: Step) -> Batches:
        ranges = {r.stream: r for r in step.ranges}
        batches = {
            binding: feed.exactly(ranges[feed.path])
            for binding, feed in self._inputs.by_binding.items()
        }
        if self._processor.is_join and len(set(map(len, batches.values()))) > 1:
            raise self._running.stopped(
                f"messages of {_where(step)} were trimmed, so its inputs cannot be joined any more;"
                " move its group to the messages that are kept with `semel groups set`"
            )
        return batches

    # ---- 3 and 4: run and commit -----------------------------------------------------------------

    def carry_out(self, step: Step, messages: Callable[[], Batches]) -> None:
        """Run a pinned step and commit it; `messages` reads its messages, by binding."""
        self._running.at(PINNED)
        start = time.perf_counter()
        self._number = step.number
        # The incarnation makes the commit fail if a stream was deleted and created again meanwhile.
        # Otherwise the move would skip messages of the new stream.
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
        """Return a text that says what a restart does after this step has failed."""
        if self._is_at_most_once:
            return "at-most-once: this step is lost, and a restart continues after it"
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
        """Append the offsets of the last outputs to the trace, unless a later record has them."""
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
        end = parse_offset(traced.next_offset) if traced is not None else None
        if end is not None and end - self._trimmed_at >= trace.TRIMMED_EVERY:
            self._trimmed_at = end
            if end > trace.RECORDS_KEPT:
                calls = self._client.stream(self._trace).calls
                self._request(calls.trim(print_offset(end - trace.RECORDS_KEPT)))

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
            f"{type(cause).__name__}: {text_of(cause)}; the message is {error}, in {_where(step)}."
            " The processor has no error stream: set one with errors=, or fix the function"
        )
    what = "the sink" if role is Role.SINK else "the function"
    return f"{what} raised {type(error).__name__}: {text_of(error)} in {_where(step)}"


def _reason(error: ClientError) -> str:
    if isinstance(error, errors.ProducerFenced | errors.AppBound):
        return "a newer instance of this processor is running and has taken over"
    if isinstance(error, errors.PositionConflict):
        return f"its group was moved by another client: {error.message}; start again to continue"
    if isinstance(error, errors.OffsetTrimmed):
        return f"{error.message}; move its group to a kept offset with `semel groups set`"
    return str(error)
