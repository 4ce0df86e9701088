"""What runs inside Spark's tasks: reading, the function and the staging, in one pass."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

import msgspec
import pyarrow as pa
from msgspec import Struct
from pyspark import TaskContext

from semel.client.errors import ClientError
from semel.pipeline.evaluate import Call, Evaluation, Poisoned, Seen, evaluate, passing
from semel.pipeline.spark_parts import Part
from semel.pipeline.spark_reading import framed, pages, seen
from semel.pipeline.spark_tagging import TAGGED_COLUMNS, Tagger, tagged
from semel.spark.options import parse_sink
from semel.spark.staging import Place, stage
from semel.spark.troubles import DataLossError

TOLD_DDL: Final = "told string"
_TOLD: Final = pa.schema([("told", pa.string())])


class Poison(Struct, frozen=True):
    """A message that failed without an error stream: where it is, and why it failed."""

    inputs: list[tuple[str, str, int]]
    kind: str
    message: str


class Outcome(Struct, frozen=True):
    """What a task tells the driver. Without a `token` it had nothing to write.

    A task that raises is tried again by Spark. What would be the same every time is told instead:
    `poison`, or `lost` for messages that are not there any more.
    """

    part: int
    token: str | None = None
    read: int = 0
    written: dict[str, int] = {}
    poison: Poison | None = None
    lost: str | None = None


class Target(Struct, frozen=True):
    """Whose version the staged rows belong to."""

    url: str
    app: str
    version: int


class EvaluateTask(Struct, frozen=True):
    """Calls a function of messages or Arrow batches for one part: one call for all legs."""

    evaluation: Evaluation
    parts: tuple[Part, ...]
    target: Target

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Work on the parts that the rows number: one in every task."""
        for number in _numbers(batches):
            yield _told(self._outcome(number))

    def _outcome(self, number: int) -> Outcome:
        read: Counter[str] = Counter()

        def rows() -> Iterator[pa.RecordBatch]:
            for calls in self._calls(self.parts[number]):
                read.update(one.stream for call in calls for one in call)
                yield tagged(evaluate(self.evaluation, calls))

        return staged(self.target, number, rows, read)

    def _calls(self, part: Part) -> Iterator[list[Call]]:
        """Put messages together as the function is called with them, some at a time."""
        if self.evaluation.is_join:
            columns = [
                [one for page in self._pages(part, binding) for one in page]
                for binding in part.ranges
            ]
            yield list(zip(*columns, strict=True))
            return
        for binding in part.ranges:
            for page in self._pages(part, binding):
                yield [(one,) for one in page]

    def _pages(self, part: Part, binding: str) -> Iterator[list[Seen]]:
        wanted = part.ranges[binding]
        for page in pages(self.target.url, wanted, is_open=part.is_open):
            yield seen(binding, page, wanted.stream)


class ReadTask(Struct, frozen=True):
    """Reads one part as rows of a DataFrame: those that pass the filters."""

    evaluation: Evaluation
    parts: tuple[Part, ...]
    url: str

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Read the parts that the rows number."""
        for number in _numbers(batches):
            part = self.parts[number]
            for binding, wanted in part.ranges.items():
                for page in pages(self.url, wanted, is_open=part.is_open):
                    yield framed(self._passing(binding, page, wanted.stream))

    def _passing(self, binding: str, page: pa.RecordBatch, stream: str) -> pa.RecordBatch:
        if not (self.evaluation.types or self.evaluation.topics):
            return page
        kept = [passing(self.evaluation, [one]) is not None for one in seen(binding, page, stream)]
        return page.filter(pa.array(kept, pa.bool_()))


class StageTask(Struct, frozen=True):
    """Stages the rows of one partition of a function's DataFrame."""

    tagger: Tagger
    target: Target

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Stage all rows; one row comes out."""
        context = TaskContext.get()
        assert context is not None
        yield _told(staged(self.target, context.partitionId(), lambda: self.tagger(batches), {}))


def staged(
    target: Target,
    number: int,
    rows: Callable[[], Iterator[pa.RecordBatch]],
    read: Mapping[str, int],
) -> Outcome:
    """Stage and seal tagged rows, and tell how many there were; `read` is filled on the way."""
    written: Counter[str] = Counter()

    def counted() -> Iterator[pa.RecordBatch]:
        for batch in rows():
            for found in batch.column("stream").value_counts().to_pylist():
                written[found["values"]] += found["counts"]
            yield batch

    options = parse_sink({"url": target.url, "createStream": "false"})
    place = Place(target.app, target.version, number)
    try:
        token = stage(options, TAGGED_COLUMNS, place, counted())
    except Poisoned as error:
        return Outcome(number, poison=_poison(error))
    except DataLossError as error:
        return Outcome(number, lost=str(error))
    except ClientError as error:
        raise error.with_traceback(None) from None
    return Outcome(number, token, sum(read.values()), dict(written))


def _poison(error: Poisoned) -> Poison:
    cause = error.__cause__
    places = [(one.binding, one.stream, one.offset) for one in error.inputs]
    return Poison(places, type(cause).__name__, str(cause))


def _numbers(batches: Iterable[pa.RecordBatch]) -> Iterator[int]:
    for batch in batches:
        yield from batch.column(0).to_pylist()


def _told(outcome: Outcome) -> pa.RecordBatch:
    return pa.record_batch([[msgspec.json.encode(outcome).decode()]], schema=_TOLD)
