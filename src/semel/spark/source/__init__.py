"""The Spark source: reads streams as DataFrames, in batch and in streaming queries."""
