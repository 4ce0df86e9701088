"""Rows for streams as Arrow: `stream` and `value`; what a task stages and a query writes."""

from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from semel.pipeline.errors_stream import error_message
from semel.pipeline.evaluate import Evaluation, Poisoned, Row, Seen
from semel.spark.json_rows import json_objects
from semel.spark.sink_columns import SinkColumns

TAGGED: Final = pa.schema([("stream", pa.string()), ("value", pa.binary())])
TAGGED_DDL: Final = "stream string, value binary"
TAGGED_COLUMNS: Final = SinkColumns(1, 0, None, None, None, ())
ERROR: Final = "_error"
VALUE: Final = "value"
# Which message a row with an error is about.
PLACE: Final = ("stream", "offset")

# The class that an error message names for what a function marked by itself.
Marked: Final = type(ERROR, (Exception,), {"__module__": "builtins"})


def tagged(rows: Iterable[Row]) -> pa.RecordBatch:
    """Put rows into a batch."""
    found = list(rows)
    return pa.record_batch(
        [[row.stream for row in found], [row.raw for row in found]], schema=TAGGED
    )


class Tagger(Struct, frozen=True):
    """Turns the rows of a DataFrame into messages of one output, and of the error stream.

    A column `value` is the message, as JSON; else a row is one object of all its columns. Rows
    with an `_error` are about the message of their `stream` and `offset`.
    """

    evaluation: Evaluation
    path: str
    names: tuple[str, ...]

    def complaint(self) -> str | None:
        """Say what is wrong with the columns."""
        if ERROR in self.names and not set(PLACE) <= set(self.names):
            return (
                f"a frame with {ERROR} needs the columns {' and '.join(PLACE)} of its input, to say"
                " which message the error is about"
            )
        if not self._message_names:
            return "a frame has no columns that could be a message"
        return None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Tag batch after batch; Poisoned if a row has an error and there is nowhere to put it."""
        for batch in batches:
            if ERROR not in self.names:
                yield self._good(batch)
                continue
            is_good = pc.is_null(batch.column(ERROR))
            yield self._good(batch.filter(is_good))
            bad = batch.filter(pc.invert(is_good))
            if bad.num_rows:
                yield tagged(self._bad(bad))

    @property
    def _message_names(self) -> list[str]:
        beside = (ERROR, *PLACE) if ERROR in self.names else ()
        return [name for name in self.names if name not in beside]

    def _values(self, batch: pa.RecordBatch) -> pa.Array:
        if VALUE in self.names:
            return batch.column(VALUE).cast(pa.binary())
        names = self._message_names
        return json_objects(names, [batch.column(name) for name in names]).cast(pa.binary())

    def _good(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        streams = pa.repeat(pa.scalar(self.path, pa.string()), batch.num_rows)
        return pa.RecordBatch.from_arrays([streams, self._values(batch)], schema=TAGGED)

    def _bad(self, batch: pa.RecordBatch) -> Iterator[Row]:
        columns = [batch.column(name).to_pylist() for name in (*PLACE, ERROR)]
        raws = self._values(batch).to_pylist()
        for stream, offset, told, raw in zip(*columns, raws, strict=True):
            seen = Seen("", stream, offset, raw or b"null")
            error = Marked(str(told))
            if self.evaluation.errors is None:
                raise Poisoned([seen]) from error
            yield Row(self.evaluation.errors, error_message(self.evaluation, [seen], error))
