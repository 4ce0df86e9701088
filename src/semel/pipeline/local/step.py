"""The loop of a processor. The server is the only truth: nothing is kept here that a kill can lose.

    1. `begin`: register the processor's producer, which refuses an older instance from then on;
       then ask where the group `<graph>/<processor>` stands, and which step it has pinned.
    2. If it stands at the beginning of the pinned step, that one was not done: it is done now,
       with the same ranges, number and hash. Else the next one is pinned. The first pin wins.
    3. The executor carries it out.
    4. One commit appends the outputs and the trace, and moves the group from where it stood.

At-most-once: the group is moved before 3, and 4 appends the outputs. A step is never done again.
"""

import time
from collections.abc import Callable, Mapping
from typing import Final, TypeVar

from semel.client import errors
from semel.client.errors import ClientError, Indeterminate, Unavailable
from semel.client.flows import Flow
from semel.client.group_calls import pin, positions, snapshot
from semel.client.sync.client import Client
from semel.client.sync_driver import Stop
from semel.client.txn_values import CommitResult, PinnedRange, PinnedStep
from semel.client.values import Message
from semel.model.offsets import parse_offset, print_offset
from semel.pipeline import trace
from semel.pipeline.delivery import Range, Step, step_of
from semel.pipeline.evaluate import MessageFailed, text_of
from semel.pipeline.executor import Executor, Gauge, RunState, StepOutput, Work
from semel.pipeline.graph.graph import Graph
from semel.pipeline.graph.processors import AT_MOST_ONCE, Processor, Role
from semel.pipeline.local.committing import Moves
from semel.pipeline.local.inputs import Inputs
from semel.pipeline.problems import EngineFailed, ProcessorStopped
from semel.pipeline.trace import step_from

T = TypeVar("T")

# The boundaries of a step, at each of which a process may die.
BEGUN: Final = "begun"
PLANNED: Final = "planned"
PINNED: Final = "pinned"
RAN: Final = "ran"
COMMITTED: Final = "committed"
BOUNDARIES: Final = (BEGUN, PLANNED, PINNED, RAN, COMMITTED)

AtBoundary = Callable[[str, str], None]
Batches = Mapping[str, list[Message]]


def no_boundary(processor: str, boundary: str) -> None:
    """Let a boundary pass."""
    del processor, boundary


class StepLoop:
    """Carries out the steps of one processor, one after the other.

    The stop of its inputs ends it behind the step it is at; `cut` ends it even if the server does
    not answer.
    """

    def __init__(
        self,
        client: Client,
        graph: Graph,
        processor: Processor,
        executor: Executor,
        inputs: Inputs,
        *,
        cut: Stop,
        gauge: Gauge,
        at: AtBoundary = no_boundary,
    ) -> None:
        self.group = f"{graph.id}/{processor.id}"
        self._client = client
        self._graph = graph
        self._processor = processor
        self._executor = executor
        self._inputs = inputs
        self._stop = inputs.stop
        self._gauge = gauge
        self._at_boundary = at
        self._cut = cut
        self._committer = executor.commits(client, self.group, cut)
        self._is_at_most_once = graph.strategy_of(processor) == AT_MOST_ONCE
        self._trace = trace.trace_stream(graph.id)
        self._before: trace.Outputs | None = None
        self._trimmed_at = 0
        self._number = 0

    def run(self) -> None:
        """Go on until there is nothing more to come, or it is told to stop."""
        try:
            self._run()
        except (Unavailable, Indeterminate) as error:
            if not self._stop.is_set:
                raise self._stopped(str(error)) from error
        except ClientError as error:
            raise self._stopped(_words(error)) from error

    def _run(self) -> None:
        left = self.begin()
        self._at(BEGUN)
        if left is not None:
            self.carry_out(left, lambda: self._read(left))
        while not self._stop.is_set and self._inputs.wait(self._idle):
            self._gauge.state = RunState.RUNNING
            self.next_step()
        self.tell_offsets()

    # ---- 1 and 2: which step ---------------------------------------------------------------------

    def begin(self) -> Step | None:
        """Fence, ask where the processor stands, and tell the step that was begun and not done."""
        self._committer.begin()
        site = self._client.site
        stored = self._ask(positions(site, self.group))
        pinned = self._ask(snapshot(site, self.group))
        places = {path: parse_offset(offset) or 0 for path, offset in stored.items()}
        self._inputs.place(places)
        if pinned is None:
            return None
        self._number = pinned.number
        step = step_from(pinned)
        if not self._is_undone(step):
            return None
        self._number -= 1
        return step

    def _is_undone(self, step: Step) -> bool:
        """Whether the processor stands, in the streams it reads now, where this step begins.

        If its inputs are others by now, or were made anew, or somebody moved the group, the step
        cannot be done any more: the next one begins where the processor stands.
        """
        feeds = {feed.path: feed for feed in self._inputs.feeds}
        return {one.stream for one in step.ranges} == set(feeds) and all(
            feeds[one.stream].incarnation == one.incarnation
            and feeds[one.stream].position == one.start
            for one in step.ranges
        )

    def next_step(self) -> None:
        """Plan a step of what there is, pin it, and carry it out."""
        planned = self._inputs.plan()
        wanted = step_of(
            self._graph.id,
            self._processor.id,
            self._number + 1,
            (one for _, one in planned.values()),
        )
        self._at(PLANNED)
        step = step_from(self._ask(pin(self._client.site, self.group, _pinned(wanted))))
        if step == wanted:
            self.carry_out(step, lambda: {name: found for name, (found, _) in planned.items()})
            return
        if step != wanted and not self._is_undone(step):
            raise self._stopped(
                f"step {step.number} is pinned from other places than the group stands at;"
                " is another instance running? stop it and start again"
            )
        self.carry_out(step, lambda: self._read(step))

    def _read(self, step: Step) -> Batches:
        ranges = {one.stream: one for one in step.ranges}
        found = {
            binding: feed.exactly(ranges[feed.path])
            for binding, feed in self._inputs.by_binding.items()
        }
        if self._processor.is_join and len(set(map(len, found.values()))) > 1:
            raise self._stopped(
                f"messages of {_where(step)} are trimmed, so its inputs do not pair any more;"
                " `semel groups set` moves its group to what is left"
            )
        return found

    # ---- 3 and 4: doing it -----------------------------------------------------------------------

    def carry_out(self, step: Step, messages: Callable[[], Batches]) -> None:
        """Do a pinned step, and commit it."""
        self._at(PINNED)
        begun = time.perf_counter()
        self._number = step.number
        # With the incarnation: in a stream made anew meanwhile nothing must be skipped.
        moves: Moves = {
            self.group: {
                one.stream: (one.start, one.to, one.incarnation)
                for one in step.ranges
                if _moves(one)
            }
        }
        if self._is_at_most_once:
            self._commit(step, StepOutput(), moves, trace.TAKEN, begun)
            moves = {}
        made = self._made(step, messages)
        self._at(RAN)
        result = self._commit(step, made, moves, trace.DONE, begun)
        self._at(COMMITTED)
        self._inputs.move(step.ranges)
        self._note(step, made, result, time.perf_counter() - begun)

    def _made(self, step: Step, messages: Callable[[], Batches]) -> StepOutput:
        work = Work(
            self._graph,
            self._processor,
            step,
            self._client.url,
            self._committer.producer_id,
            self._committer.epoch,
            messages,
        )
        try:
            return self._executor.run(work)
        except (ClientError, ProcessorStopped):
            raise
        except MessageFailed as error:
            raise self._stopped(f"{_poisoned(error, step)}; {self._next(step)}") from error
        except Exception as error:
            told = _failed(error, step, self._processor.role)
            raise self._stopped(f"{told}; {self._next(step)}") from error

    def _next(self, step: Step) -> str:
        """Say what a restart does about a step that failed."""
        if self._is_at_most_once:
            return "it is at-most-once: a restart goes on behind this step, which is lost"
        return f"a restart does the step from its beginning, under the same hash {step.hash}"

    def _commit(
        self,
        step: Step,
        made: StepOutput,
        moves: Moves,
        outcome: str,
        begun: float,
    ) -> CommitResult:
        traced = trace.TracedStep(
            processor=self._processor.id,
            number=step.number,
            ranges=trace.printed_ranges(step.ranges),
            hash=step.hash,
            outcome=outcome,
            read=made.read,
            written=dict(made.written),
            milliseconds=round((time.perf_counter() - begun) * 1000, 3),
        )
        result = self._committer.commit(
            step,
            made.appends,
            moves,
            transactions=made.transactions,
            record=(self._trace, trace.step_record(traced, self._before)),
        )
        self._before = None
        if outcome == trace.DONE and made.written and result.streams is not None:
            found = {
                path: [done.first_offset, done.next_offset]
                for path, done in result.streams.items()
                if path != self._trace
            }
            self._before = trace.Outputs(step.number, found)
        return result

    # ---- telling ---------------------------------------------------------------------------------

    def _idle(self) -> None:
        """Nothing is there at the moment."""
        self._gauge.state = RunState.IDLE
        self._gauge.lag = self._inputs.lag
        self.tell_offsets()

    def tell_offsets(self) -> None:
        """Trace where the last outputs are, if no step is there to do so."""
        if self._before is None:
            return
        record = trace.offsets_record(self._processor.id, self._before)
        self._committer.commit(None, {}, {}, record=(self._trace, record))
        self._before = None

    def _note(self, step: Step, made: StepOutput, result: CommitResult, seconds: float) -> None:
        gauge, errors_to = self._gauge, self._graph.errors_of(self._processor)
        gauge.step = step.number
        gauge.read += made.read
        gauge.written += sum(made.written.values())
        gauge.errors += made.written.get(errors_to or "", 0)
        gauge.lag = self._inputs.lag
        gauge.step_seconds = seconds
        traced = (result.streams or {}).get(self._trace)
        end = parse_offset(traced.next_offset) if traced is not None else None
        if end is not None and end - self._trimmed_at >= trace.TRIMMED_EVERY:
            self._trimmed_at = end
            if end > trace.RECORDS_KEPT:
                self._trim(print_offset(end - trace.RECORDS_KEPT))

    def _trim(self, before: str) -> None:
        calls = self._client.stream(self._trace).calls
        self._ask(calls.trim(before))

    def _ask(self, flow: Flow[T]) -> T:
        return self._client.run_until_stopped(flow, self._cut)

    def _at(self, boundary: str) -> None:
        self._at_boundary(self._processor.id, boundary)

    def _stopped(self, reason: str) -> ProcessorStopped:
        return ProcessorStopped(self._processor.id, reason)


# ---- words ---------------------------------------------------------------------------------------


def _pinned(step: Step) -> PinnedStep:
    ranges = {
        one.stream: PinnedRange(one.incarnation, print_offset(one.start), print_offset(one.to))
        for one in step.ranges
    }
    return PinnedStep(step.number, ranges, step.hash)


def _moves(one: Range) -> bool:
    return one.to > one.start


def _where(step: Step) -> str:
    ranges = ", ".join(f"{one.stream} {one.start}..{one.to}" for one in step.ranges if _moves(one))
    return f"step {step.number} ({ranges})"


def _poisoned(error: MessageFailed, step: Step) -> str:
    cause = error.__cause__
    assert cause is not None
    return (
        f"{type(cause).__name__}: {text_of(cause)}; the message is {error}, in {_where(step)}."
        " There is no error stream to put it into: name one with errors=, or mend the function"
    )


def _failed(error: Exception, step: Step, role: Role) -> str:
    what = "the sink" if role is Role.SINK else "the function"
    told = f"{what} raised {type(error).__name__}: {text_of(error)}"
    if isinstance(error, EngineFailed):
        told = str(error)
    return f"{told} in {_where(step)}"


def _words(error: ClientError) -> str:
    if isinstance(error, errors.ProducerFenced | errors.AppBound):
        return "a newer instance of this processor is running; this one leaves it the work"
    if isinstance(error, errors.PositionConflict):
        return f"somebody has moved its group: {error.message}; start again to go on from there"
    if isinstance(error, errors.OffsetTrimmed):
        return f"{error.message}; `semel groups set` moves its group to what is left"
    return str(error)
