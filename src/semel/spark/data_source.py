"""The entry point for Spark: the class for the format "semel". It creates readers and writers.

Every process that plans a query imports this module. To keep this import fast, each method imports
only the modules that it needs.
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
    """The data source of `.format("semel")`, for batch and streaming reads and writes."""

    @classmethod
    def name(cls) -> str:
        """Return the name that users pass to `.format(...)`."""
        return "semel"

    def schema(self) -> StructType:
        """Return the columns that a read has if the user sets no schema."""
        from semel.spark.errors import hide_traceback
        from semel.spark.options import parse_source
        from semel.spark.source.columns import source_schema

        return hide_traceback(lambda: source_schema(parse_source(self.options)))()

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader for `spark.read`."""
        from semel.spark.errors import hide_traceback
        from semel.spark.options import parse_source
        from semel.spark.source.readers import BatchReader

        return hide_traceback(lambda: BatchReader(parse_source(self.options), schema))()

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return a reader for `spark.readStream`.

        If an option is wrong, return a RefusedReader. Its methods raise the error.
        """
        from semel.spark.options import SparkOptionError, parse_source
        from semel.spark.source.readers import RefusedReader, StreamReader

        try:
            return StreamReader(parse_source(self.options), schema)
        except SparkOptionError as error:
            return RefusedReader(error)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Return a writer for `df.write`."""
        from semel.spark.errors import hide_traceback
        from semel.spark.options import parse_sink
        from semel.spark.sink.writers import BatchWriter

        return hide_traceback(lambda: BatchWriter(parse_sink(self.options), schema, overwrite))()

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        """Return a writer for `df.writeStream`."""
        from semel.spark.errors import hide_traceback
        from semel.spark.options import parse_sink
        from semel.spark.sink.writers import StreamWriter

        return hide_traceback(lambda: StreamWriter(parse_sink(self.options), schema, overwrite))()
