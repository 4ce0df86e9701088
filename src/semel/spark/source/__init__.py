"""The Spark source: reading streams as DataFrames, batch and streaming."""
