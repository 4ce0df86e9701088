"""JSON of `/v1/groups`, and the moves of positions that transactions and commits carry."""

from msgspec import UNSET, Struct, UnsetType

from semel.wire.schema import StrictRequest

# An offset in a request: printed, or its ordinal.
Offset = int | str


class MoveRequest(StrictRequest, frozen=True, kw_only=True, rename={"start": "from"}):
    """A position to set, and the conditions for it: its offset, its stream and its version."""

    start: Offset | UnsetType = UNSET
    to: Offset
    incarnation: str | UnsetType = UNSET
    version: int | UnsetType = UNSET


# Where to move a position: an offset, or an offset with conditions.
Target = int | str | MoveRequest


class SetPositionsRequest(StrictRequest, frozen=True):
    """`POST /v1/groups/{group}/offsets`."""

    offsets: dict[str, Target]


class RangeRequest(StrictRequest, frozen=True, rename={"start": "from"}):
    """The part of a stream that a step reads."""

    incarnation: str
    start: Offset
    to: Offset


class PinRequest(StrictRequest, frozen=True):
    """`POST /v1/groups/{group}/snapshot`; a client sends its `PinnedStep`: the same members."""

    number: int
    ranges: dict[str, RangeRequest]
    hash: str


class PendingMove(Struct, frozen=True):
    """A move by a pending transaction, which ends within `remaining_ms` unless that is null."""

    transaction_id: str
    transaction_epoch: int
    state: str
    to: str
    deadline: str | None = None
    remaining_ms: int | None = None


class MovedPositions(Struct, frozen=True):
    """Where a group is now in the streams it was moved in."""

    group: str
    offsets: dict[str, str]
    versions: dict[str, int] = {}


class Positions(MovedPositions, frozen=True):
    """Where a group is, by stream: the offset, how often it was moved, and what is pending."""

    pending: dict[str, PendingMove] = {}


class PinnedRange(Struct, frozen=True, rename={"start": "from"}):
    """The part of a stream that a step reads: from the offset `start` up to `to`."""

    incarnation: str
    start: str
    to: str


class PinnedStep(Struct, frozen=True):
    """The step a group has pinned: its number, what it reads of each stream, and its hash."""

    number: int
    ranges: dict[str, PinnedRange]
    hash: str


class SnapshotResponse(Struct, frozen=True):
    """`GET /v1/groups/{group}/snapshot`: a pinned step with the name of its group."""

    group: str
    number: int
    ranges: dict[str, PinnedRange]
    hash: str
