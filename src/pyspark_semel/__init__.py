"""Lets Spark find the format "semel".

Spark imports every package whose name begins with `pyspark_`, and looks for formats in it.
"""

from semel.spark.data_source import SemelDataSource as DefaultSource

__all__ = ["DefaultSource"]
