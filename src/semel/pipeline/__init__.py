"""Pipelines: graphs of sources, streams and sinks, each message's effect exactly once.

Importing this loads neither Spark nor Arrow: an engine imports what it needs.
"""

from semel.pipeline.delivery import Delivery, Range
from semel.pipeline.graph.graph import Graph
from semel.pipeline.problems import GraphError, ProcessorStopped
from semel.pipeline.runner import Runner, run

__all__ = ["Delivery", "Graph", "GraphError", "ProcessorStopped", "Range", "Runner", "run"]
