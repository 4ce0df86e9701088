"""Pipelines: graphs of sources, streams and sinks that process each message exactly once.

Importing this package imports neither Spark nor Arrow. Each engine imports the libraries it needs.
"""

from semel.pipeline.graph.graph import Graph
from semel.pipeline.runner import Runner, run
from semel.pipeline.values import Delivery, GraphError, ProcessorStopped, Range

__all__ = ["Delivery", "Graph", "GraphError", "ProcessorStopped", "Range", "Runner", "run"]
