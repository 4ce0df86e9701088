"""The source: streams as Spark DataFrames, batch and streaming."""
