"""What transactions, commits and groups take and return."""

from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct

from semel.model.offsets import parse_offset, print_offset

KIND_INLINE: Final = "inline"
KIND_STAGED: Final = "staged"
READ_COMMITTED: Final = "read_committed"
READ_UNCOMMITTED: Final = "read_uncommitted"

Offset = str | int
# Where to move a group: an offset; or (from, to) to move it only from there; with the incarnation
# of the stream that was read, only if the path still has that stream; with the version, only if
# the position was not moved since.
Move = (
    Offset
    | tuple[Offset, Offset]
    | tuple[Offset, Offset, str | None]
    | tuple[Offset, Offset, str | None, int | None]
)
Moves = Mapping[str, Move]


class StreamResult(Struct, frozen=True):
    """What a decision put into a stream."""

    first_offset: str
    next_offset: str
    messages: int


class CommitResult(Struct, frozen=True):
    """What a commit did. `duplicate`: it was done before, and this is what was done then.

    `streams` by path; `offsets` by group and stream; `deleted` are streams of it that are gone. All
    three are None if the server no longer knows. `warning`: a sink's version was taken for one that
    was committed before, and could not be compared with it.
    """

    streams: dict[str, StreamResult] | None = None
    offsets: dict[str, dict[str, str]] | None = None
    deleted: list[str] | None = None
    duplicate: bool = False
    warning: str | None = None


class TransactionStatus(Struct, frozen=True):
    """What the server knows of a transaction: `open`, `prepared`, `committed` or `aborted`.

    `streams` of a decided one are as in `CommitResult`, those of an open one what it holds so far.
    """

    transaction_id: str
    transaction_epoch: int
    state: str
    reason: str | None = None
    kind: str | None = None
    producer_id: str | None = None
    producer_epoch: int | None = None
    deadline: str | None = None
    streams: dict[str, dict[str, Any]] = {}
    offsets: dict[str, dict[str, str]] = {}
    deleted: list[str] = []
    next_seq: int = 0

    @property
    def is_empty(self) -> bool:
        """Whether nothing was done in it so far."""
        messages = sum(held.get("messages", 0) for held in self.streams.values())
        return self.state == "open" and not (messages or self.next_seq or self.offsets)


class PinnedRange(Struct, frozen=True, rename={"start": "from"}):
    """The part of a stream that a step takes: from the offset `start` up to `to`."""

    incarnation: str
    start: str
    to: str


class PinnedStep(Struct, frozen=True):
    """The step a group has pinned: its number, what it takes of each stream, and its hash."""

    number: int
    ranges: dict[str, PinnedRange]
    hash: str


def ordinal_of(offset: Offset | None) -> int:
    """Return the number of an offset; ValueError if no group can be there."""
    ordinal = parse_offset(offset) if isinstance(offset, str) else offset
    if not isinstance(ordinal, int) or ordinal < 0:
        raise ValueError(f"{offset!r} is no offset; take next_offset of a message")
    return ordinal


def offset_of(offset: Offset | None) -> str:
    """Print an offset; ValueError if no group can be there."""
    return print_offset(ordinal_of(offset))


def moves_document(moves: Moves) -> dict[str, Any]:
    """Return the document of moves of a group, by stream."""
    return {path: _move(move) for path, move in moves.items()}


def _move(move: Move) -> Any:
    if not isinstance(move, tuple):
        return offset_of(move)
    start, to, incarnation, version = (*move, None, None)[:4]
    found: dict[str, Any] = {"from": offset_of(start), "to": offset_of(to)}
    if incarnation is not None:
        found["incarnation"] = incarnation
    if version is not None:
        found["version"] = version
    return found


def token_of(transaction_id: str, epoch: int) -> str:
    """Name one transaction of an id, as `prepare` does."""
    return f"{transaction_id}:{epoch}"


def parse_token(token: str) -> tuple[str, int]:
    """Read the name of a transaction; ValueError if it is none."""
    transaction_id, colon, epoch = token.rpartition(":")
    if not (colon and transaction_id and epoch.isascii() and epoch.isdigit()):
        raise ValueError(f"{token!r} is no token of a transaction, such as txn-1:1")
    return transaction_id, int(epoch)
