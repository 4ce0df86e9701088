"""Running a graph: one thread per processor, until all have ended or one has stopped."""

import threading
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Final, Self

from semel.client.errors import StreamGone, StreamNotFound
from semel.client.requests import URL_DEFAULT
from semel.client.sync.client import Client
from semel.client.sync_driver import Stop
from semel.client.values import StreamInfo
from semel.model.messages import JSON_MEDIA_TYPE, is_json
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
from semel.pipeline.trace import trace_stream
from semel.pipeline.values import GraphError, ProcessorStopped

GRACE_SECONDS: Final = 5.0  # how long a stop waits for a server that does not respond
_OVER: Final = (RunState.ENDED, RunState.STOPPED)


class Runner:
    """One run of a graph.

    `available_now`: end when everything that is stored is processed. Otherwise it runs until
    `stop`, or until a processor stops, which stops the others too. A stop lets every step end, if
    the server responds; the next run repeats what was not committed. `master` and `checkpoints`, a
    directory for stateful processors, are for Spark. Raises GraphError if the graph cannot run.
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
        complaints = self._executor.complaints(graph)
        if complaints:
            raise GraphError(graph.id, complaints)
        self._client = Client(url or graph.url or URL_DEFAULT)
        self._is_draining = available_now
        self._at = at
        self._stops = {one.id: Stop() for one in graph.processors}
        self._cuts = {one.id: Stop() for one in graph.processors}
        self._cut_timer: threading.Timer | None = None
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
        """Create missing streams and start the processors; a second call does nothing."""
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
        """The processors that have stopped, with the reasons."""
        gauges = self.gauges.values()
        return {one.processor: one.reason for one in gauges if one.state is RunState.STOPPED}

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until all have ended or stopped; return False on a timeout."""
        with self._changed:
            return self._changed.wait_for(lambda: self.is_over, timeout)

    def stop(self) -> None:
        """Request all processors to end; `wait` waits until they have."""
        for stop in self._stops.values():
            stop.set()
        if self._cut_timer is None:
            self._cut_timer = threading.Timer(GRACE_SECONDS, self._cut)
            self._cut_timer.daemon = True
            self._cut_timer.start()

    def _cut(self) -> None:
        for cut in self._cuts.values():
            cut.set()

    def close(self) -> None:
        """Stop, wait for the processors, and release all resources."""
        self.stop()
        for thread in self._threads:
            thread.join(3 * GRACE_SECONDS)  # a function of the user may never return
        assert self._cut_timer is not None
        self._cut_timer.cancel()
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
        except BaseException as error:  # noqa: BLE001 - every failure must be reported
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
                    client=self._client,
                    graph=self.graph,
                    processor=processor,
                    stop=stop,
                    gauge=gauge,
                    is_draining=self._is_draining,
                    is_ending=lambda: self._is_ending(processor),
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
        """Return whether this run drains and no processor feeds this one any more."""
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
    """Run a graph until it has ended, and return the gauge of each processor.

    Raises GraphError before anything starts, and ProcessorStopped if a processor has stopped.
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


# ---- streams -------------------------------------------------------------------------------------


def prepare(client: Client, graph: Graph) -> dict[str, int]:
    """Create the streams that the graph writes to and that are missing.

    Returns the tails of the streams that only other applications write to. Raises GraphError,
    before anything is created, if a stream does not exist or does not suit the graph.
    """
    written = list(topology.writers(graph))
    read = [path for one in graph.processors for path in one.inputs.values()]
    infos = {
        path: _head(client, path)
        for path in dict.fromkeys([*read, *written, trace_stream(graph.id)])
    }
    complaints = list(_complaints(graph, infos))
    if complaints:
        raise GraphError(graph.id, complaints)
    for path, info in infos.items():
        if info is None:
            client.stream(path).create(JSON_MEDIA_TYPE, exist_ok=True)
    return {
        path: parse_offset(info.next_offset) or 0
        for path, info in infos.items()
        if info is not None and path not in written
    }


def _head(client: Client, path: str) -> StreamInfo | None:
    try:
        return client.stream(path).head()
    except (StreamNotFound, StreamGone):
        return None


def _complaints(graph: Graph, infos: dict[str, StreamInfo | None]) -> Iterator[str]:
    written = topology.writers(graph)
    for one in graph.processors:
        for path in one.inputs.values():
            if infos[path] is None and path not in written:
                yield (
                    f"{one.id}: the stream {path} does not exist on the server, and no processor"
                    f" writes to it; run `semel create {path} --content-type application/json`,"
                    " or correct the name"
                )
    for path, info in infos.items():
        if info is not None and not is_json(info.content_type):
            users = ", ".join(one.id for one in graph.processors if _uses(graph, one, path))
            yield (
                f"{users}: {path} has the content type {info.content_type}; use a stream of"
                f" {JSON_MEDIA_TYPE}"
            )
        if info is not None and info.closed and path in written:
            yield f"{', '.join(written[path])}: {path} is closed; write to another stream"


def _uses(graph: Graph, one: Processor, path: str) -> bool:
    return path in one.inputs.values() or path in topology.written(graph, one)
