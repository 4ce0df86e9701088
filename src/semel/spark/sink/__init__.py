"""The Spark sink: tasks stage rows, and the driver commits them once per batch."""
