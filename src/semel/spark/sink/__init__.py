"""The Spark sink. Tasks stage rows, and the driver commits all rows of a batch together."""
