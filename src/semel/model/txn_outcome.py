"""What is retained of an ended transaction."""

from typing import Final

from msgspec import Struct

COMMITTED: Final = "committed"
ABORTED: Final = "aborted"

# Why a transaction was aborted.
BY_REQUEST: Final = "abort"
BY_TIMEOUT: Final = "timeout"
BY_FENCE: Final = "fenced"
BY_COMMIT: Final = "superseded"
BY_REAPER: Final = "reaped"
BY_OPERATOR: Final = "operator"


class StreamResult(Struct, frozen=True, gc=False, array_like=True):
    """What a commit wrote to one stream: `messages` between the two offsets."""

    path: str
    first_offset: int
    next_offset: int
    messages: int


class PositionResult(Struct, frozen=True, gc=False, array_like=True):
    """A position that a commit moved."""

    group: str
    path: str
    offset: int


class TxnResult(Struct, frozen=True, array_like=True):
    """The result of a commit; retained to answer a repeat."""

    streams: tuple[StreamResult, ...] = ()
    positions: tuple[PositionResult, ...] = ()
    deleted: tuple[str, ...] = ()


class TxnOutcome(Struct, frozen=True, array_like=True):
    """The outcome of a transaction, as it is stored."""

    id: str
    epoch: int
    decision: str
    reason: str
    time_ms: int
    result: TxnResult
