"""Pipelines: graphs of processors that process each message exactly once.

Importing this package does not import Spark or Arrow. They are imported only when they are needed.
"""

from semel.pipeline.failures import wrap_error
from semel.pipeline.graph.catalog import Catalog
from semel.pipeline.graph.graph import Graph
from semel.pipeline.runner import Runner, run
from semel.pipeline.values import Delivery, GraphError, ProcessorStopped, Range

__all__ = [
    "Catalog",
    "Delivery",
    "Graph",
    "GraphError",
    "ProcessorStopped",
    "Range",
    "Runner",
    "run",
    "wrap_error",
]
