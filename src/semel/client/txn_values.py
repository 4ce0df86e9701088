"""What callers of transactions, commits and groups pass and get.

The JSON documents among them are defined in `semel.wire.schema`, for client and server.
"""

from collections.abc import Mapping
from typing import Final

from msgspec import UNSET

from semel.model.offsets import parse_offset, print_offset
from semel.model.transactions import READ_COMMITTED, READ_UNCOMMITTED, TXN_INLINE, TXN_STAGED
from semel.wire.schema.commits import CommitResult
from semel.wire.schema.transactions import (
    MoveRequest,
    PinnedRange,
    PinnedStep,
    StreamResult,
    Target,
    TransactionStatus,
)

__all__ = [
    "KIND_INLINE",
    "KIND_STAGED",
    "READ_COMMITTED",
    "READ_UNCOMMITTED",
    "CommitResult",
    "Move",
    "Moves",
    "Offset",
    "PinnedRange",
    "PinnedStep",
    "StreamResult",
    "TransactionStatus",
    "offset_of",
    "ordinal_of",
    "parse_token",
    "targets_of",
    "token_of",
]

KIND_INLINE: Final = TXN_INLINE
KIND_STAGED: Final = TXN_STAGED

Offset = str | int
# Where to move a position: an offset; or (from, to) to move it only from there; with the
# incarnation of the stream that was read, only if the path still has that stream; with the version,
# only if the position was not moved since.
Move = (
    Offset
    | tuple[Offset, Offset]
    | tuple[Offset, Offset, str | None]
    | tuple[Offset, Offset, str | None, int | None]
)
Moves = Mapping[str, Move]


def ordinal_of(offset: Offset | None) -> int:
    """Return the ordinal of an offset. Raises ValueError if it is not an offset."""
    ordinal = parse_offset(offset) if isinstance(offset, str) else offset
    if not isinstance(ordinal, int) or ordinal < 0:
        raise ValueError(f"{offset!r} is not an offset; use next_offset of a message")
    return ordinal


def offset_of(offset: Offset | None) -> str:
    """Print an offset. Raises ValueError if it is not an offset."""
    return print_offset(ordinal_of(offset))


def targets_of(moves: Moves) -> dict[str, Target]:
    """Return the moves of a group as a request carries them, by stream."""
    return {path: _target_of(move) for path, move in moves.items()}


def _target_of(move: Move) -> Target:
    if not isinstance(move, tuple):
        return offset_of(move)
    start, to, incarnation, version = (*move, None, None)[:4]
    return MoveRequest(
        start=offset_of(start),
        to=offset_of(to),
        incarnation=UNSET if incarnation is None else incarnation,
        version=UNSET if version is None else version,
    )


def token_of(transaction_id: str, epoch: int) -> str:
    """Return the token of a transaction, as `prepare` does."""
    return f"{transaction_id}:{epoch}"


def parse_token(token: str) -> tuple[str, int]:
    """Return the id and the epoch of a transaction. Raises ValueError."""
    transaction_id, colon, epoch = token.rpartition(":")
    if not (colon and transaction_id and epoch.isascii() and epoch.isdigit()):
        raise ValueError(f"{token!r} is not the token of a transaction, such as txn-1:1")
    return transaction_id, int(epoch)
