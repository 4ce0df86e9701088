"""The format "semel" as Spark sees it: one class that hands each request to its reader or writer.

Spark imports this module in every planning process, so it loads only what is asked for.
"""

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
)
from pyspark.sql.types import StructType


class SemelDataSource(DataSource):
    """`spark.read`, `readStream`, `write` and `writeStream` with `.format("semel")`."""

    @classmethod
    def name(cls) -> str:
        """Say what stands in `.format(...)`."""
        return "semel"

    def schema(self) -> StructType:
        """Name the columns of a read that gives no schema of its own."""
        from semel.spark.options import parse_source
        from semel.spark.source.columns import source_schema
        from semel.spark.user_errors import hide_traceback

        return hide_traceback(lambda: source_schema(parse_source(self.options)))()

    def reader(self, schema: StructType) -> DataSourceReader:
        """Read a range once."""
        from semel.spark.options import parse_source
        from semel.spark.source.readers import BatchReader
        from semel.spark.user_errors import hide_traceback

        return hide_traceback(lambda: BatchReader(parse_source(self.options), schema))()

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Read for ever, batch after batch."""
        from semel.spark.options import SparkOptionError, parse_source
        from semel.spark.source.readers import StreamReader
        from semel.spark.user_errors import RefusedReader

        try:
            return StreamReader(parse_source(self.options), schema)
        except SparkOptionError as error:
            return RefusedReader(error)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Write a frame once."""
        from semel.spark.options import parse_sink
        from semel.spark.sink.writers import BatchWriter
        from semel.spark.user_errors import hide_traceback

        return hide_traceback(lambda: BatchWriter(parse_sink(self.options), schema, overwrite))()

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        """Write for ever, batch after batch."""
        from semel.spark.options import parse_sink
        from semel.spark.sink.writers import StreamWriter
        from semel.spark.user_errors import hide_traceback

        return hide_traceback(lambda: StreamWriter(parse_sink(self.options), schema, overwrite))()
