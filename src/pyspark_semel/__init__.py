"""Lets Spark find the format "semel": Spark imports every package named `pyspark_...`."""

from semel.spark.data_source import SemelDataSource as DefaultSource

__all__ = ["DefaultSource"]
