"""semel: a durable log with exactly-once writes.

Importing this package is cheap on purpose: it loads neither the server nor the broker nor Spark.
"""

__all__ = ["__version__"]

__version__ = "0.1.0"
