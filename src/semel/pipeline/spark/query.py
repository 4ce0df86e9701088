"""A stateful processor: a query of Structured Streaming, whose progress is its Spark checkpoint.

The positions of its group on the server are a copy of it, for `semel groups`.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar

from msgspec.structs import replace
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession, functions
from pyspark.sql.streaming.query import StreamingQuery

from semel.client import commit_calls
from semel.client.commit_calls import KnownStreams, Parts, SinkInfo, Version
from semel.client.errors import AppBound, ClientError, Refused
from semel.client.flows import Flow
from semel.client.server_calls import register_producer
from semel.client.sync.client import Client
from semel.client.sync_driver import Stop
from semel.client.values import CommitResult
from semel.model.offsets import parse_offset
from semel.pipeline.evaluate import evaluation_of
from semel.pipeline.executor import ProcessorRun, RunState
from semel.pipeline.local.committing import Appends, Moves, Record, commit_parts_of
from semel.pipeline.spark.frames import outputs_of, tagger_of, union, without_function
from semel.pipeline.spark.reading import FRAME_NAMES
from semel.pipeline.spark.tasks import TAGGED_DDL, error_text
from semel.pipeline.values import EngineFailed, ProcessorStopped, Step
from semel.spark.runtime.session import make_active

_PAUSE_SECONDS: Final = 0.25


class QueryLoop:
    """Runs the query of one processor until it has ended, or is stopped."""

    def __init__(self, spark: SparkSession, running: ProcessorRun, checkpoints: str) -> None:
        graph, processor = running.graph, running.processor
        self.group = f"{graph.id}/{processor.id}"
        self._spark = spark
        self._running = running
        self._url = running.client.url
        self._checkpoint = f"{checkpoints.rstrip('/')}/{graph.id}/{processor.id}"
        self._last_batch = -1

    def run(self) -> None:
        """Run the query; with `is_draining`, start it when the processors before it have ended.

        Raises ProcessorStopped if the query fails.
        """
        running = self._running
        while running.is_draining and not running.is_ending():
            if running.stop.is_set:
                return
            running.stop.wait(_PAUSE_SECONDS)
        try:
            self._watch(self._start())
        except (PySparkException, EngineFailed) as error:
            raise ProcessorStopped(
                running.processor.id,
                f"its query failed: {error_text(error)}; a restart continues from its checkpoint"
                f" {self._checkpoint}",
            ) from error

    def _watch(self, query: StreamingQuery) -> None:
        running = self._running
        try:
            while query.isActive and not running.stop.is_set:
                running.stop.wait(_PAUSE_SECONDS)
                self._note(query)
            if not query.isActive:
                query.awaitTermination()  # raises the error of the query
                self._note(query)
        finally:
            query.stop()

    def _start(self) -> StreamingQuery:
        running = self._running
        make_active(self._spark)
        writer = (
            self._tagged()
            .writeStream.format("semel")
            .queryName(self.group)
            .option("url", self._url)
            .option("txnAppId", self.group)
            .option("createStream", "false")
            .option("checkpointLocation", self._checkpoint)
        )
        if running.is_draining:
            writer = writer.trigger(availableNow=True)
        return writer.start()

    def _tagged(self) -> DataFrame:
        """Call the function once, with streaming DataFrames; all outputs are one query."""
        graph, processor = self._running.graph, self._running.processor
        frames = {binding: self._frame(path) for binding, path in processor.inputs.items()}
        function = processor.function
        result = function(**frames) if processor.is_join else function(union(frames))
        evaluation = without_function(
            evaluation_of(
                graph.id,
                processor,
                strategy=graph.strategy_of(processor),
                errors=graph.errors_of(processor),
                hash="",
            )
        )
        tagged = {
            path: frame.mapInArrow(tagger_of(evaluation, path, frame), TAGGED_DDL)
            for path, frame in outputs_of(processor, result).items()
        }
        return union(tagged)

    def _frame(self, path: str) -> DataFrame:
        reader = self._spark.readStream.format("semel").options(url=self._url, stream=path)
        frame = reader.load().withColumn("value", functions.col("value").cast("string"))
        return frame.select(*FRAME_NAMES)

    def _note(self, query: StreamingQuery) -> None:
        """Update the gauge and the positions on the server."""
        gauge = self._running.gauge
        new = [one for one in query.recentProgress if one["batchId"] > self._last_batch]
        if not new:
            gauge.state = RunState.IDLE
            return
        gauge.state = RunState.RUNNING
        last = new[-1]
        self._last_batch = last["batchId"]
        gauge.step = self._last_batch + 1
        gauge.read += sum(one["numInputRows"] for one in new)
        gauge.step_seconds = last["batchDuration"] / 1000
        positions = _positions(last["sources"])
        if positions:
            self._copy(positions)

    def _copy(self, positions: Mapping[str, int]) -> None:
        client, gauge = self._running.client, self._running.gauge
        try:
            client.group(self.group).set(positions)
            ends = {path: client.stream(path).head().next_offset for path in positions}
        except ClientError:
            return  # only a copy; the next batch updates it
        gauge.lag = sum(
            max((parse_offset(end) or 0) - positions[path], 0) for path, end in ends.items()
        )


def _positions(sources: Any) -> dict[str, int]:
    """Return the positions of the sources from the progress that Spark reports."""
    positions: dict[str, int] = {}
    for source in sources:
        end = source["endOffset"]
        document = json.loads(end) if isinstance(end, str) else end
        if isinstance(document, dict):
            for path, span in document.items():
                if isinstance(span, dict) and "next" in span:
                    positions[path] = span["next"]
    return positions


# ---- commits -------------------------------------------------------------------------------------
# Steps are committed as versions of a sink, because a producer can have only five staged
# transactions, and a sink any number. The sink is called `<graph>/<processor>`, and its versions
# count its commits: whether a step was committed follows from the positions the commit moves, never
# from the version. So a step with two commits, a trace record, and a group that was set back by
# hand need no special rules.


T = TypeVar("T")


class SinkCommitter:
    """Commits the steps of one processor. `version` is that of the next commit.

    `begin` binds the sink to this instance: older ones are refused from then on, and the next
    commit drops what they have staged. It also registers the next epoch of the producer of the same
    name, which distinguishes instances and fences one that runs on the other engine.
    """

    def __init__(self, client: Client, name: str, stop: Stop) -> None:
        self.producer_id = name
        self.epoch = 0
        self.version = 0
        self._client = client
        self._stop = stop
        self._known = KnownStreams(replace(client.site, retries=None))

    def begin(self) -> None:
        registered = self._run(register_producer(self._client.site, self.producer_id))
        self.epoch = registered.producer_epoch
        info = self._info()
        if info is None:
            # The first commit creates the sink and sets its owner. It is empty.
            try:
                self.version = 0
                self._commit(None, Parts())
            except AppBound:
                info = self._info()  # another instance was faster
        if info is not None:
            last = info.last_version
            self._run(
                commit_calls.rebind_sink_info(
                    self._client.site, self.producer_id, self._owner, last
                )
            )
            self.version = last + 1

    def commit(
        self,
        step: Step | None,
        appends: Appends,
        moves: Moves,
        *,
        transactions: Sequence[str] = (),
        record: Record | None = None,
    ) -> CommitResult:
        """Commit; appends are small, because tasks stage what they write."""
        return self._commit(step, commit_parts_of(appends, moves, transactions, record))

    def _commit(self, step: Step | None, parts: Parts) -> CommitResult:
        hash = None if step is None else step.hash
        version = Version(self.producer_id, self._owner, self.version, hash)
        result = self._run(commit_calls.commit_version(self._known, version, parts))
        self.version += 1
        return result

    @property
    def _owner(self) -> str:
        return f"{self.producer_id} instance {self.epoch}"

    def _info(self) -> SinkInfo | None:
        try:
            return self._run(commit_calls.show_sink_info(self._client.site, self.producer_id))
        except Refused as error:
            if error.code == "unknown_sink":
                return None
            raise

    def _run(self, flow: Flow[T]) -> T:
        return self._client.run_until_stopped(flow, self._stop)
