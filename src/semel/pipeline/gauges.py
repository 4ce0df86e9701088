"""How a processor is doing, as far as a view of it wants to know."""

from dataclasses import dataclass
from enum import StrEnum

from semel.pipeline.processors import Role


class State(StrEnum):
    """Where a processor is in its life."""

    STARTING = "starting"
    RUNNING = "running"
    IDLE = "idle"
    ENDED = "ended"
    STOPPED = "stopped"


@dataclass
class Gauge:
    """The figures of one processor; written by its thread, read by any.

    `read` and `written` count messages since the start, `errors` those of the error stream among
    them; `lag` are offsets not processed yet; `step_seconds` is how long the last step took.
    """

    processor: str
    role: Role
    state: State = State.STARTING
    step: int = 0
    read: int = 0
    written: int = 0
    errors: int = 0
    lag: int = 0
    step_seconds: float = 0.0
    reason: str = ""
