"""Running a graph: a thread for each processor, until all have ended or one has stopped."""

import threading
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Final, Self

from semel.client.errors import StreamGone, StreamNotFound
from semel.client.requests import URL_DEFAULT
from semel.client.sync.client import Client
from semel.client.sync_driver import Stop
from semel.client.values import StreamInfo
from semel.model.media import JSON_MEDIA_TYPE, is_json
from semel.model.offsets import parse_offset
from semel.pipeline.evaluate import text_of
from semel.pipeline.executor import (
    Executor,
    Gauge,
    Loop,
    ProcessorRun,
    RunState,
    engine_for,
    make_engine,
)
from semel.pipeline.graph import topology
from semel.pipeline.graph.graph import Graph
from semel.pipeline.graph.processors import Processor, Role
from semel.pipeline.local.inputs import Inputs
from semel.pipeline.local.sources import SourceLoop
from semel.pipeline.local.step import AtBoundary, StepLoop, no_boundary
from semel.pipeline.problems import GraphError, ProcessorStopped
from semel.pipeline.trace import trace_stream

GRACE_SECONDS: Final = 5.0  # for a server that does not answer
_OVER: Final = (RunState.ENDED, RunState.STOPPED)


class Runner:
    """A graph at work.

    `available_now`: end when everything that is there is processed. Otherwise it goes on until
    `stop`, or until a processor stops, which stops the others too. A stop lets every step end, if
    the server answers; what was not committed is done again by the next run. `master` and
    `checkpoints`, a directory for stateful processors, are for Spark.
    """

    def __init__(
        self,
        graph: Graph,
        *,
        url: str | None = None,
        engine: str | None = None,
        master: str | None = None,
        checkpoints: str | None = None,
        available_now: bool = False,
        executor: Executor | None = None,
        at: AtBoundary = no_boundary,
    ) -> None:
        graph.check()
        self.graph = graph
        self.engine = engine or engine_for(graph, master=master)
        self.gauges = {one.id: Gauge(one.id, one.role) for one in graph.processors}
        self._executor = executor or make_engine(
            self.engine, graph, master=master, checkpoints=checkpoints
        )
        wrong = self._executor.complaints(graph)
        if wrong:
            raise GraphError(graph.id, wrong)
        self._client = Client(url or graph.url or URL_DEFAULT)
        self._is_draining = available_now
        self._at = at
        self._stops = {one.id: Stop() for one in graph.processors}
        self._cuts = {one.id: Stop() for one in graph.processors}
        self._last_call: threading.Timer | None = None
        self._threads: list[threading.Thread] = []
        self._changed = threading.Condition()

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def start(self) -> Self:
        """Make the streams that are missing, and start the processors; once is enough."""
        if self._threads:
            return self
        limits = prepare(self._client, self.graph)
        self._threads = [
            threading.Thread(
                target=self._work, args=(one, limits), name=f"{self.graph.id}/{one.id}", daemon=True
            )
            for one in self.graph.processors
        ]
        for thread in self._threads:
            thread.start()
        return self

    @property
    def is_over(self) -> bool:
        """Whether all processors have ended or stopped."""
        return all(gauge.state in _OVER for gauge in self.gauges.values())

    @property
    def stopped(self) -> dict[str, str]:
        """The processors that have stopped, and why."""
        gauges = self.gauges.values()
        return {one.processor: one.reason for one in gauges if one.state is RunState.STOPPED}

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until all have ended or stopped; False if the time is over before."""
        with self._changed:
            return self._changed.wait_for(lambda: self.is_over, timeout)

    def stop(self) -> None:
        """Tell all processors to end; `wait` waits for it."""
        for stop in self._stops.values():
            stop.set()
        if self._last_call is None:
            self._last_call = threading.Timer(GRACE_SECONDS, self._cut)
            self._last_call.daemon = True
            self._last_call.start()

    def _cut(self) -> None:
        for cut in self._cuts.values():
            cut.set()

    def close(self) -> None:
        """Stop, wait, and let go of everything."""
        self.stop()
        for thread in self._threads:
            thread.join(3 * GRACE_SECONDS)  # a function of the user's may never return
        assert self._last_call is not None
        self._last_call.cancel()
        self._executor.close()
        self._client.close()

    # ---- on the threads --------------------------------------------------------------------------

    def _work(self, processor: Processor, limits: Mapping[str, int]) -> None:
        gauge = self.gauges[processor.id]
        state, reason = RunState.ENDED, ""
        try:
            self._loop(processor, limits).run()
        except ProcessorStopped as error:
            state, reason = RunState.STOPPED, error.reason
        except BaseException as error:  # noqa: BLE001 - whatever it is, it must be told
            state, reason = RunState.STOPPED, f"{type(error).__name__}: {text_of(error)}"
        with self._changed:
            gauge.state, gauge.reason = state, reason
            self._changed.notify_all()
        if state is RunState.STOPPED and not self._is_draining:
            self.stop()

    def _loop(self, processor: Processor, limits: Mapping[str, int]) -> Loop:
        stop, gauge = self._stops[processor.id], self.gauges[processor.id]
        if processor.role is Role.SOURCE:
            return SourceLoop(
                self._client, self.graph, processor, stop=stop, gauge=gauge, at=self._at
            )
        if processor.stateful:
            return self._executor.query(
                ProcessorRun(
                    self._client,
                    self.graph,
                    processor,
                    stop,
                    gauge,
                    self._is_draining,
                    lambda: self._is_ending(processor),
                )
            )
        inputs = Inputs(
            self._client,
            processor,
            stop,
            is_draining=self._is_draining,
            is_ending=lambda: self._is_ending(processor),
            limits=limits if self._is_draining else None,
            reads_ahead=self._executor.reads_ahead,
            step_messages_max=self._executor.step_messages_max,
        )
        return StepLoop(
            self._client,
            self.graph,
            processor,
            self._executor,
            inputs,
            cut=self._cuts[processor.id],
            gauge=gauge,
            at=self._at,
        )

    def _is_ending(self, processor: Processor) -> bool:
        """Whether this run drains, and nobody in the graph feeds this processor any more."""
        above = topology.upstream(self.graph)[processor.id]
        return self._is_draining and all(self.gauges[id].state in _OVER for id in above)


def run(
    graph: Graph,
    *,
    url: str | None = None,
    engine: str | None = None,
    master: str | None = None,
    checkpoints: str | None = None,
    available_now: bool = True,
) -> dict[str, Gauge]:
    """Run a graph until it has ended, and tell the figures of each processor.

    Raises GraphError before anything starts, ProcessorStopped if a processor has stopped.
    """
    runner = Runner(
        graph,
        url=url,
        engine=engine,
        master=master,
        checkpoints=checkpoints,
        available_now=available_now,
    )
    try:
        runner.start()
        runner.wait()
    finally:
        runner.close()
    for id, reason in runner.stopped.items():
        raise ProcessorStopped(id, reason)
    return runner.gauges


# ---- preparing -----------------------------------------------------------------------------------
# The streams of a graph, before it starts: those it writes are made, those it reads must be.


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
