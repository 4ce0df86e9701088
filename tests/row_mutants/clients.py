"""Bugs of the client, of pipelines and of Spark's sink. Their rows are in `registry.py`."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import count
from typing import Any

import pytest
from msgspec.structs import replace

from semel.client.producer.core import ProducerCore
from semel.client.producer.sync_producer import Producer
from semel.client.sync.stream import Stream
from semel.pipeline import evaluate as evaluation_module
from semel.pipeline.error_stream import Call
from semel.pipeline.evaluate import Evaluation, Output, evaluate
from semel.pipeline.graph.catalog import Catalog
from semel.pipeline.graph.graph import Graph
from semel.pipeline.graph.processors import Processor
from semel.pipeline.local import engine
from semel.pipeline.local.engine import LocalCommitter
from semel.spark.errors import RowError
from semel.spark.sink.staging import Sender

Function = Callable[..., Any]


# ---- producers -----------------------------------------------------------------------------------


def every_second_callback_is_left_out(patch: pytest.MonkeyPatch) -> None:
    """Make only every second call of `on_batch_ack` and `on_error`."""
    call, number = Producer._call, count()

    def skipping(self: Producer, *given: Any) -> None:
        if next(number) % 2 == 0:
            call(self, *given)

    patch.setattr(Producer, "_call", skipping)


def what_is_sent_is_not_pending(patch: pytest.MonkeyPatch) -> None:
    """Count a message as pending only until it is sent."""

    def unsent(self: Producer) -> int:
        return max(0, self._core.pending_count - self.in_flight_count)

    patch.setattr(Producer, "pending_count", property(unsent))


def one_batch_is_in_flight(patch: pytest.MonkeyPatch) -> None:
    """Send a batch only when the one before has its response, whatever `max_in_flight` says."""
    next_to_send = ProducerCore.next_to_send

    def waiting(self: ProducerCore, now: float) -> Any:
        return None if self.in_flight_count else next_to_send(self, now)

    patch.setattr(ProducerCore, "next_to_send", waiting)


def unnamed_producers_share_a_name(patch: pytest.MonkeyPatch) -> None:
    """Use one id for all producers without an id, whatever `PRODUCER_ID` says."""
    producer = Stream.producer

    def named(self: Stream, id: str | None = None, **options: Any) -> Producer:
        return producer(self, id or "producer", **options)

    patch.setattr(Stream, "producer", named)


# ---- graphs --------------------------------------------------------------------------------------


def _with_function(patch: pytest.MonkeyPatch, change: Callable[[Function], Function]) -> None:
    """Replace the function of every evaluated processor."""

    def changed(evaluation: Evaluation, calls: Sequence[Call]) -> Iterator[Output]:
        return evaluate(replace(evaluation, function=change(evaluation.function)), calls)

    patch.setattr(engine, "evaluate", changed)


def messages_are_taken_in_reverse(patch: pytest.MonkeyPatch) -> None:
    """Call the function with the messages of a step from the last to the first."""

    def reverse(evaluation: Evaluation, calls: Sequence[Call]) -> Iterator[Output]:
        return evaluate(evaluation, calls[::-1])

    patch.setattr(engine, "evaluate", reverse)


def fatal_errors_are_errors_of_a_message(patch: pytest.MonkeyPatch) -> None:
    """Treat interrupts, exits and a lack of memory like any exception of the function."""

    def caught(function: Function) -> Function:
        def call(*given: Any, **named: Any) -> Any:
            try:
                return function(*given, **named)
            except BaseException as error:
                raise RuntimeError(str(error)) from error

        return call

    _with_function(patch, caught)


def each_leg_is_delivered_for_itself(patch: pytest.MonkeyPatch) -> None:
    """Write the legs of a fork that can be written, and an error message for the others."""

    def leg_of(function: Function, binding: str) -> Function:
        def call(*given: Any, **named: Any) -> Any:
            result = function(*given, **named)
            return {binding: result.get(binding)} if isinstance(result, Mapping) else result

        return call

    def by_leg(evaluation: Evaluation, calls: Sequence[Call]) -> Iterator[Output]:
        if evaluation.has_one_output:
            yield from evaluate(evaluation, calls)
            return
        for binding in evaluation.outputs:
            one = replace(evaluation, function=leg_of(evaluation.function, binding))
            yield from evaluate(one, calls)

    patch.setattr(engine, "evaluate", by_leg)


def a_join_needs_every_message_to_match(patch: pytest.MonkeyPatch) -> None:
    """Call a join with filters only if the messages of all its inputs pass."""
    passing = evaluation_module.passing

    def strict(evaluation: Evaluation, call: Call) -> dict[str, Any] | None:
        found = passing(evaluation, call)
        return None if found is None or None in found.values() else found

    for module in (evaluation_module, engine):
        patch.setattr(module, "passing", strict)


def a_step_without_output_moves_nothing(patch: pytest.MonkeyPatch) -> None:
    """Commit a step without output without moving the positions of its inputs."""
    commit = LocalCommitter.commit

    def staying(self: LocalCommitter, step: Any, appends: Any, moves: Any, **more: Any) -> Any:
        return commit(self, step, appends, moves if appends else {}, **more)

    patch.setattr(LocalCommitter, "commit", staying)


def graphs_are_not_checked(patch: pytest.MonkeyPatch) -> None:
    """Accept every graph."""
    patch.setattr(Graph, "check", lambda self: None)


def default_options_are_not_merged(patch: pytest.MonkeyPatch) -> None:
    """Create a stream of a graph only with its own options, without the default ones."""

    def own(self: Any, path: str) -> dict[str, Any]:
        return {k: v for k, v in self.streams.get(path, {}).items() if v is not None}

    patch.setattr(Graph, "options_of", own, raising=False)


def opts_are_passed_as_text(patch: pytest.MonkeyPatch) -> None:
    """Pass the values in the `opts` of a processor to its function as strings."""

    def as_text(function: Function) -> Function:
        if not isinstance(function, partial):
            return function
        opts = {name: str(value) for name, value in function.keywords["opts"].items()}
        return partial(function.func, opts=opts)

    _with_function(patch, as_text)


def the_topology_has_no_edges(patch: pytest.MonkeyPatch) -> None:
    """Report that no processor reads what another one writes."""

    def edgeless(self: Graph) -> dict[str, set[str]]:
        return {processor.id: set() for processor in self.processors}

    patch.setattr(Graph, "topology", edgeless, raising=False)


def bindings_of_a_join_are_exchanged(patch: pytest.MonkeyPatch) -> None:
    """Bind the inputs of a join to the streams in reverse order."""
    bind = Processor.bind

    def exchanged(self: Processor, **streams: Any) -> Processor:
        if isinstance(streams.get("in_"), Mapping):
            paths = reversed(streams["in_"].values())
            streams["in_"] = dict(zip(streams["in_"], paths, strict=True))
        return bind(self, **streams)

    patch.setattr(Processor, "bind", exchanged)


def a_merge_replaces_processors(patch: pytest.MonkeyPatch) -> None:
    """Let the merged catalog replace processors of the same id without an error."""

    def replacing(self: Catalog, other: Catalog) -> Catalog:
        merged = {each.id: each for each in (*self.processors, *other.processors)}
        self.processors[:] = merged.values()
        return self

    patch.setattr(Catalog, "merge", replacing)


# ---- Spark ---------------------------------------------------------------------------------------


def rows_that_are_too_large_are_left_out(patch: pytest.MonkeyPatch) -> None:
    """Skip a row that the server refuses because of its size, and write the others."""
    send = Sender._send_in_parts

    def skipping(self: Sender, rows: Any) -> None:
        try:
            send(self, rows)
        except RowError:
            if len(rows) > 1:
                raise

    patch.setattr(Sender, "_send_in_parts", skipping)
