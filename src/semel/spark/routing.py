"""Where rows go: the batches of one partition, split by stream."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel.model.limits import MESSAGE_KEY_BYTES_MAX
from semel.model.media import is_json
from semel.spark.json_rows import json_objects
from semel.spark.rows import RowError, Rows, compact, lengths_of, nulls_as_json
from semel.spark.sink_columns import SinkColumns

# Tells the media type of a stream; ValueError if no stream can have that path.
TypeOf = Callable[[str], str]


class RowSplitter:
    """Splits the batches of one partition by stream, and counts its rows."""

    def __init__(
        self, columns: SinkColumns, stream: str | None, type_of: TypeOf, partition: int
    ) -> None:
        self._columns = columns
        self._stream = stream
        self._type_of = type_of
        self._partition = partition
        self._seen = 0

    def split(self, batch: pa.RecordBatch) -> Iterator[Rows]:
        """Give the rows of a batch, one piece for each stream."""
        numbers = np.arange(self._seen, self._seen + batch.num_rows)
        self._seen += batch.num_rows
        if not batch.num_rows:
            return
        try:
            values = self._values(batch)
        except ValueError as error:
            raise self._wrong(numbers[0], f"or behind it: {error}") from None
        whole = Rows("", "", values, numbers, *self._beside(batch))
        if self._columns.stream is None:
            assert self._stream is not None
            yield self._targeted(whole, self._stream)
            return
        for path, places in self._routes(batch.column(self._columns.stream), numbers):
            found = whole if places is None else whole.take(places)
            yield self._targeted(found, path)

    def _values(self, batch: pa.RecordBatch) -> pa.Array:
        if self._columns.value is not None:
            return compact(batch.column(self._columns.value))
        places = [place for place, _ in self._columns.named]
        names = [name for _, name in self._columns.named]
        return json_objects(names, [batch.column(place) for place in places])

    def _beside(self, batch: pa.RecordBatch) -> Iterator[pa.Array | None]:
        columns = self._columns
        key, headers, time = columns.key, columns.headers, columns.timestamp
        yield None if key is None else compact(batch.column(key))
        yield None if headers is None else batch.column(headers)
        yield None if time is None else batch.column(time)

    def _routes(self, column: pa.Array, numbers: Any) -> Iterator[tuple[str, Any]]:
        if column.null_count:
            at = int(np.argmax(column.is_null().to_numpy(zero_copy_only=False)))
            raise self._wrong(
                numbers[at], 'stream is null; name one, or add .option("stream", "...")'
            )
        coded = column.dictionary_encode()
        paths = coded.dictionary.to_pylist()
        if len(paths) == 1:
            yield paths[0], None
            return
        codes = coded.indices.to_numpy()
        order = np.argsort(codes, kind="stable")  # rows of one stream stay in their order
        bounds = np.searchsorted(codes[order], np.arange(len(paths) + 1))
        for code, path in enumerate(paths):
            yield path, order[bounds[code] : bounds[code + 1]]

    def _targeted(self, rows: Rows, path: str) -> Rows:
        try:
            content_type = self._type_of(path)
        except ValueError as error:
            raise self._wrong(rows.numbers[0], f"stream is {path!r}: {error}") from None
        values = rows.values
        if is_json(content_type):
            values = nulls_as_json(values)
        elif self._columns.value is None:
            raise self._wrong(
                rows.numbers[0],
                f"{path} is {content_type}, and rows without a column value are JSON",
            )
        elif values.null_count:
            at = int(np.argmax(values.is_null().to_numpy(zero_copy_only=False)))
            raise self._wrong(rows.numbers[at], f"value is null, which {content_type} cannot say")
        return self._checked(
            Rows(path, content_type, values, rows.numbers, rows.keys, rows.headers, rows.times)
        )

    def _checked(self, rows: Rows) -> Rows:
        lengths = lengths_of(rows.values)
        if not lengths.all():
            at = int(np.argmin(lengths))
            wanted = "not JSON" if is_json(rows.content_type) else "not a message"
            raise self._wrong(rows.numbers[at], f"value is empty, which is {wanted}")
        if rows.keys is not None:
            keys = pc.fill_null(pc.binary_length(rows.keys), 0).to_numpy(zero_copy_only=False)
            if len(keys) and keys.max() > MESSAGE_KEY_BYTES_MAX:
                at = int(np.argmax(keys))
                raise self._wrong(
                    rows.numbers[at],
                    f"key has {keys[at]} bytes, and may have {MESSAGE_KEY_BYTES_MAX}",
                )
        return rows

    def _wrong(self, number: int, what: str) -> RowError:
        return RowError(self._partition, int(number), what)
