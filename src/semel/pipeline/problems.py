"""What can be wrong with a graph, and what ends a processor."""

from collections.abc import Sequence

from semel.model.errors import SemelError


class GraphError(SemelError):
    """A graph cannot run; nothing was started. `complaints` are all that was found."""

    code = "bad_graph"

    def __init__(self, graph: str, complaints: Sequence[str]) -> None:
        self.complaints = tuple(complaints)
        listed = "".join(f"\n  - {one}" for one in self.complaints)
        super().__init__(f"the graph {graph!r} cannot run:{listed}")


class ProcessorStopped(SemelError):
    """A processor cannot go on. Its step stays pinned: a restart does the same one again."""

    code = "processor_stopped"

    def __init__(self, processor: str, reason: str) -> None:
        self.processor = processor
        self.reason = reason
        super().__init__(f"{processor} stopped: {reason}")


class EngineFailed(SemelError):
    """An engine could not carry out a step, for a reason that is not about one message."""

    code = "engine_failed"
