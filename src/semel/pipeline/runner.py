"""Running a graph: one thread for each processor, until all processors have ended or stopped."""

import ssl
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from functools import partial
from typing import Any, Final, NamedTuple, Self

import msgspec

from semel.client.addresses import URL_DEFAULT
from semel.client.computed import FieldValue
from semel.client.credentials import TokenFile, chosen_token
from semel.client.errors import ClientError, StreamGone, StreamNotFound
from semel.client.producer.sync_producer import Producer
from semel.client.requests import CreateHeaders
from semel.client.sync.client import Client
from semel.client.values import Receipt, StreamInfo
from semel.model.messages import JSON_MEDIA_TYPE, is_json
from semel.model.offsets import parse_offset
from semel.pipeline.executor import (
    SPARK,
    AtBoundary,
    Executor,
    Gauge,
    Loop,
    ProcessorRun,
    RunState,
    engine_for,
    make_engine,
)
from semel.pipeline.failures import explained, text_of
from semel.pipeline.graph import topology
from semel.pipeline.graph.graph import Graph
from semel.pipeline.graph.processors import CURSOR, Role, sent_messages, takes_cursor
from semel.pipeline.local.inputs import Inputs
from semel.pipeline.local.step import StepLoop
from semel.pipeline.trace import trace_stream
from semel.pipeline.values import GraphError, ProcessorStopped
from semel.wire.headers import read_instant, to_datetime

# ---- sources -------------------------------------------------------------------------------------


_DELIVERY_SECONDS: Final = 7 * 24 * 3600.0  # how long to retry if the server is unreachable
_PAUSE_SECONDS: Final = 0.005
_SENT_PAUSE_SECONDS: Final = 0.25
YIELDED: Final = "yielded"  # the boundary after each message of a source


class SourceLoop:
    """Runs the generator of one source until the generator ends.

    A producer appends the generator's messages exactly once and in order. If the function has a
    parameter `cursor`, it gets the last stored cursor. Otherwise each run starts at the beginning.
    """

    def __init__(self, running: ProcessorRun) -> None:
        self._running = running
        self._failed: list[ClientError] = []

    def run(self) -> None:
        """Append every message that the generator yields.

        Raises ProcessorStopped if the generator raises an error or an append fails.
        """
        running = self._running
        if running.processor.function is sent_messages:
            self._wait()
            return
        (path,) = running.processor.outputs.values()
        try:
            producer = running.client.stream(path).producer(
                running.name,
                delivery_timeout=_DELIVERY_SECONDS,
                on_error=lambda error, _batch: self._failed.append(error),
            )
            try:
                self._append_all(producer)
            finally:
                self._settle(producer)
        except ClientError as error:
            if not running.stop.is_set:
                raise running.stopped(str(error)) from error
        except Exception as error:
            reason = f"the source raised {type(error).__name__}: {explained(error)}"
            raise running.stopped(reason) from error

    def _wait(self) -> None:
        """Wait until a stop is requested. Programs send the messages of this source themselves."""
        running = self._running
        running.gauge.state = RunState.IDLE
        while not (running.is_draining or running.stop.is_set):
            running.stop.wait(_SENT_PAUSE_SECONDS)

    def _settle(self, producer: Producer) -> None:
        """Wait until all appended messages are stored, then close the producer.

        After a stop request or a failed append, wait only for GRACE_SECONDS. When the producer is
        closed, raise the error of the first failed append, if an append has failed.
        """
        stop = self._running.stop
        while producer.pending_count and not (self._failed or stop.is_set):
            stop.wait(_PAUSE_SECONDS)
        producer.close(GRACE_SECONDS)
        if self._failed:
            raise self._failed[0]

    def _append_all(self, producer: Producer) -> None:
        running, function = self._running, self._running.processor.function
        has_cursor = takes_cursor(function)
        arguments = {}
        if has_cursor:
            stored = producer.cursor
            arguments[CURSOR] = None if stored is None else msgspec.json.decode(stored)
        with closing(running.processor.call(**arguments)) as messages:
            running.gauge.state = RunState.RUNNING
            for item in messages:
                if self._failed or running.stop.is_set:
                    return
                cursor, value = item if has_cursor else (None, item)
                text = msgspec.json.encode(cursor).decode() if has_cursor else None
                producer.append(value, cursor=text)
                running.gauge.written += 1
                running.at(YIELDED)


# ---- runner --------------------------------------------------------------------------------------


GRACE_SECONDS: Final = 5.0  # after a stop, requests to the server are given up after this time
_OVER: Final = (RunState.ENDED, RunState.STOPPED)


class Runner:
    """One run of a graph.

    - With `available_now`, the run ends when all stored messages are processed. An error stops only
      the processor in which it occurs.
    - Otherwise, the run continues until `stop` is called. An error stops all processors.

    After a stop, each processor still completes its current step if the server responds. The next
    run repeats the steps that were not committed.

    `token` and `tls` are those of `Client`. With Spark, `token` is a text or a `TokenFile`, which
    every executor reads, and the certificates to trust are those of SSL_CERT_FILE.

    Only Spark uses `master` and the directory `checkpoints`. Raises GraphError if the graph cannot
    run.
    """

    def __init__(  # noqa: PLR0913 - the options of a run are keywords
        self,
        graph: Graph,
        *,
        url: str | None = None,
        token: FieldValue | None = None,
        tls: ssl.SSLContext | str | None = None,
        engine: str | None = None,
        master: str | None = None,
        checkpoints: str | None = None,
        available_now: bool = False,
        executor: Executor | None = None,
        at: AtBoundary = lambda processor, boundary: None,
    ) -> None:
        graph.check()
        self.graph = graph
        self.engine = engine or engine_for(graph, master=master)
        self.gauges = {p.id: Gauge(p.id, p.role) for p in graph.processors}
        self._executor = executor or make_engine(
            self.engine, graph, master=master, checkpoints=checkpoints
        )
        own_token = chosen_token(token, None)
        complaints = [
            *(_secret_complaints(own_token, tls) if self.engine == SPARK else ()),
            *self._executor.complaints(graph),
        ]
        if complaints:
            raise GraphError(graph.id, complaints)
        self._client = Client(url or graph.url or URL_DEFAULT, token=own_token or "", tls=tls)
        self._is_draining = available_now
        above = topology.upstream(graph)
        self._runs = [
            ProcessorRun(
                client=self._client,
                token=own_token,
                graph=graph,
                processor=processor,
                gauge=self.gauges[processor.id],
                at_boundary=at,
                is_draining=available_now,
                is_ending=partial(self._is_ending, above[processor.id]),
            )
            for processor in graph.processors
        ]
        self._cut_timer: threading.Timer | None = None
        self._threads: list[threading.Thread] = []
        self._changed = threading.Condition()

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *exc: object) -> None:
        self.close()

    def start(self) -> Self:
        """Create missing streams and start the processors. A second call does nothing.

        Raises GraphError if an input stream is missing, or if an existing stream cannot be used.
        """
        if self._threads:
            return self
        prepared = prepare(self._client, self.graph)
        self._threads = [
            threading.Thread(
                target=self._work, args=(running, prepared), name=running.name, daemon=True
            )
            for running in self._runs
        ]
        for thread in self._threads:
            thread.start()
        return self

    @property
    def is_over(self) -> bool:
        """True if every processor has ended normally or has stopped because of an error."""
        return all(gauge.state in _OVER for gauge in self.gauges.values())

    @property
    def stopped(self) -> dict[str, str]:
        """A mapping from the id of each stopped processor to the reason why it stopped."""
        return {
            gauge.processor: gauge.reason
            for gauge in self.gauges.values()
            if gauge.state is RunState.STOPPED
        }

    def send(
        self, value: Any, *, source: str | None = None, idempotency_key: str | None = None
    ) -> Receipt:
        """Append a message to the stream of a source, and return the receipt.

        Without `source`, use the graph's default source or its only source. If a call is repeated
        with the same `idempotency_key`, the message is stored once. Raises ValueError if the graph
        has no such source. Call this method after `start`, which creates the stream.
        """
        (path,) = self.graph.source_of(source).outputs.values()
        return self._client.stream(path).append(value, idempotency_key=idempotency_key)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until every processor has ended or stopped. Return False after a timeout."""
        with self._changed:
            return self._changed.wait_for(lambda: self.is_over, timeout)

    def stop(self) -> None:
        """Ask all processors to end, and return immediately. `wait` waits until they have ended."""
        for running in self._runs:
            running.stop.set()
        if self._cut_timer is None:
            self._cut_timer = threading.Timer(GRACE_SECONDS, self._cut)
            self._cut_timer.daemon = True
            self._cut_timer.start()

    def _cut(self) -> None:
        for running in self._runs:
            running.cut.set()

    def close(self) -> None:
        """Stop the processors, wait a limited time until they end, and release all resources."""
        self.stop()
        for thread in self._threads:
            thread.join(3 * GRACE_SECONDS)  # a limit, because a user's function can hang
        assert self._cut_timer is not None
        self._cut_timer.cancel()
        self._executor.close()
        self._client.close()

    # ---- on the threads --------------------------------------------------------------------------

    def _work(self, running: ProcessorRun, prepared: "PreparedStreams") -> None:
        state, reason = RunState.ENDED, ""
        try:
            self._loop(running, prepared).run()
        except ProcessorStopped as error:
            state, reason = RunState.STOPPED, error.reason
        except BaseException as error:  # noqa: BLE001 - every failure must be reported
            state, reason = RunState.STOPPED, f"{type(error).__name__}: {text_of(error)}"
        with self._changed:
            running.gauge.state, running.gauge.reason = state, reason
            self._changed.notify_all()
        if state is RunState.STOPPED and not self._is_draining:
            self.stop()

    def _loop(self, running: ProcessorRun, prepared: "PreparedStreams") -> Loop:
        if running.processor.role is Role.SOURCE:
            return SourceLoop(running)
        if running.processor.stateful:
            return self._executor.query(running)
        inputs = Inputs(
            running,
            limits=prepared.limits if self._is_draining else {},
            reads_ahead=self._executor.reads_ahead,
            step_messages_max=self._executor.step_messages_max,
        )
        return StepLoop(running, self._executor, inputs, has_run=prepared.has_run)

    def _is_ending(self, above: Iterable[str]) -> bool:
        """Return True if the run has `available_now` and all of `above` have ended or stopped."""
        return self._is_draining and all(self.gauges[id].state in _OVER for id in above)


def _secret_complaints(token: FieldValue | None, tls: ssl.SSLContext | str | None) -> Iterator[str]:
    """Yield what Spark's executors cannot get from the driver."""
    if callable(token) and not isinstance(token, TokenFile):
        yield "with Spark, token= cannot be a function; pass a text or a TokenFile"
    if tls is not None:
        yield (
            "Spark does not use the certificates of tls= or of a context; set SSL_CERT_FILE on the"
            " driver and on the executors"
        )


def run(
    graph: Graph,
    *,
    url: str | None = None,
    token: FieldValue | None = None,
    engine: str | None = None,
    master: str | None = None,
    checkpoints: str | None = None,
    available_now: bool = True,
) -> dict[str, Gauge]:
    """Run a graph until every processor has ended. Return a mapping from processor id to gauge.

    Raises GraphError, before any processor starts, if the graph cannot run. Raises ProcessorStopped
    if an error has stopped a processor.
    """
    with Runner(
        graph,
        url=url,
        token=token,
        engine=engine,
        master=master,
        checkpoints=checkpoints,
        available_now=available_now,
    ) as runner:
        runner.wait()
    for id, reason in runner.stopped.items():
        raise ProcessorStopped(id, reason)
    return runner.gauges


# ---- streams -------------------------------------------------------------------------------------


class PreparedStreams(NamedTuple):
    """What was found when the streams of a graph were created.

    `limits` is the tail of each stream that existed before and that no processor writes to.
    `has_run` is True if the graph has a trace, so that it has run before.
    """

    limits: dict[str, int]
    has_run: bool


def prepare(client: Client, graph: Graph) -> PreparedStreams:
    """Create the missing streams, with the options of the graph.

    Raises GraphError, before any stream is created, if an input stream is missing and no processor
    writes to it, or if an existing stream cannot be used.
    """
    written = list(topology.writers(graph))
    read = [path for processor in graph.processors for path in processor.inputs.values()]
    infos = {
        path: _head(client, path)
        for path in dict.fromkeys([*read, *written, trace_stream(graph.id)])
    }
    complaints = list(_complaints(graph, infos))
    if complaints:
        raise GraphError(graph.id, complaints)
    for path, info in infos.items():
        if info is None:
            _create(client, path, graph.options_of(path))
    tails = {
        path: parse_offset(info.next_offset) or 0
        for path, info in infos.items()
        if info is not None
    }
    return PreparedStreams(
        {path: tail for path, tail in tails.items() if path not in written},
        has_run=tails.get(trace_stream(graph.id), 0) > 0,
    )


def _create(client: Client, path: str, options: Mapping[str, Any]) -> None:
    expires = read_instant(options, "expires_at")
    configuration = CreateHeaders(
        options.get("content_type", JSON_MEDIA_TYPE),
        ttl=options.get("ttl"),
        expires_at=None if expires is None else to_datetime(expires),
        dedup=options.get("dedup"),
    )
    client.run(client.stream(path).calls.create(configuration, exist_ok=True))


def _head(client: Client, path: str) -> StreamInfo | None:
    try:
        return client.stream(path).head()
    except (StreamNotFound, StreamGone):
        return None


def _complaints(graph: Graph, infos: dict[str, StreamInfo | None]) -> Iterator[str]:
    written = topology.writers(graph)
    for processor in graph.processors:
        for path in processor.inputs.values():
            if infos[path] is None and path not in written:
                yield (
                    f"{processor.id}: the stream {path} does not exist on the server, and no"
                    f" processor writes to it; run `semel create {path} --content-type"
                    " application/json`, or correct the name"
                )
    for path, info in infos.items():
        if info is not None and not is_json(info.content_type):
            users = [
                processor.id
                for processor in graph.processors
                if path in (*processor.inputs.values(), *topology.written(graph, processor))
            ]
            yield (
                f"{', '.join(users)}: stream {path} has the content type {info.content_type}; use a"
                f" stream with the content type {JSON_MEDIA_TYPE}"
            )
        if info is not None and info.closed and path in written:
            yield f"{', '.join(written[path])}: stream {path} is closed; use a different stream"
