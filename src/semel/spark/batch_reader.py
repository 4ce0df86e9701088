"""The batch source: `spark.read.format("semel")`."""

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from semel.spark.columns import columns_for
from semel.spark.look import End, Look
from semel.spark.offsets import LATEST, LATEST_NUMBER
from semel.spark.options import SourceOptions, SparkOptionError
from semel.spark.pages import read_portion
from semel.spark.slices import Portion, Span, cut
from semel.spark.telling import told, told_rows


class BatchReader(DataSourceReader):
    """Reads a range of each stream once. The range is fixed when the read is planned."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        if options.max_offsets_per_trigger is not None:
            raise SparkOptionError(
                "maxOffsetsPerTrigger has no meaning in a batch: remove it, or set endingOffsets"
            )
        self._options = options
        self._columns = columns_for(options, schema)

    @told
    def partitions(self) -> list[InputPartition]:
        """Find the ranges, and cut them into what each task reads."""
        look = Look(self._options)
        ends = look.ends()
        look.require(ends)
        spans = {}
        for stream, begin in look.starts(ends).items():
            end = self._end(stream, ends[stream])
            spans[stream] = Span(begin.id, min(begin.next, end), end)
        return list(cut(spans, self._options.min_partitions))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read what one task reads."""
        if not isinstance(partition, Portion):
            return iter(())  # Spark runs one empty task for an empty read
        return told_rows(read_portion(self._options, self._columns, partition))

    def _end(self, stream: str, end: End) -> int:
        wanted = (self._options.ends or LATEST).of(stream)
        if wanted == LATEST_NUMBER:
            return end.stable
        if wanted > end.stable:
            raise SparkOptionError(
                f"endingOffsets: {stream} is to be read up to {wanted} and only"
                f" {end.stable} is there and decided: write a smaller offset, or latest"
            )
        return wanted
