"""The rows of the state, and the declaration of its tables.

Rows are immutable, so that a checkpoint can refer to them and read them later.
"""

import struct
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, get_args, get_origin, get_type_hints

from msgspec import Struct

from semel.model.commands import Owner, SnapshotRange, TxnOutcome


class Row(Struct, frozen=True, gc=False, array_like=True):
    """A value that the checkpoint stores under a key."""


class ForkRow(Row, frozen=True, gc=False, array_like=True):
    """The source of a fork: everything before `start` is read there.

    `anchor` and `sub_offset` are those of the request, to compare a repeated one with.
    """

    source: int
    source_path: str
    anchor: int
    sub_offset: int
    start: int


class StreamRow(Row, frozen=True, gc=False, array_like=True):
    """What is fixed when a stream is created."""

    number: int
    path: str
    incarnation: str
    content_type: str
    created_ms: int
    ttl_ms: int | None = None
    expires_at_ms: int | None = None
    inherits_expiry: bool = False
    fork: ForkRow | None = None


class TailRow(Row, frozen=True, gc=False, array_like=True):
    """What changes with every append, and what an operator changes.

    `dedup_from` is the offset from which duplicates are recognised; None if they are not. `stable`
    is the first offset of the oldest pending inline transaction in the stream, else the tail; -1
    in rows from before transactions. From `aborted_end` on there are no aborted ranges.
    """

    head: int
    tail: int
    is_closed: bool
    is_deleted: bool
    stream_seq: str | None
    written_ms: int
    dedup_from: int | None = 0
    stable: int = -1
    aborted_end: int = 0


class ProducerRow(Row, frozen=True, gc=False, array_like=True):
    """A producer in one stream.

    `receipts` and `first_receipt` are packed (`producers.py`). `forgotten_seq` is the last sequence
    of the newest receipt that a sparse producer dropped, -1 before the first. An expired row is a
    tombstone. Between a claim and the first append after it, `last_seq` of a dense producer is -1
    and `first_receipt` holds the last append before the claim (`claims.py`).

    `last_seq` and `receipts` do not cover transactions. `txn` is the number of the latest inline
    transaction in which the producer wrote to this stream, `txn_receipts` are its receipts: the
    first, then the newest. `latest_seq` is the last sequence of either kind; -1 if that is
    `last_seq`.
    """

    mode: str
    epoch: int
    session: str | None
    old_sessions: tuple[str, ...]
    last_seq: int
    receipts: bytes
    first_receipt: bytes
    cursor: bytes | None
    updated_ms: int
    forgotten_seq: int = -1
    is_expired: bool = False
    txn: int = 0
    txn_receipts: bytes = b""
    latest_seq: int = -1


class KeyRow(Row, frozen=True, gc=False, array_like=True):
    """What the append with an idempotency key returned; `number` keeps the order of use."""

    number: int
    time_ms: int
    digest: int
    first_offset: int
    next_offset: int


class RegistryRow(Row, frozen=True, gc=False, array_like=True):
    """A producer in the registry of the server.

    `commit_seq` numbers its one-shot commits at this epoch; `results` are the packed results of the
    newest ones, and `digests` those of their requests. `decided` counts its ended transactions;
    `txn_epoch` is the highest transaction epoch of those.
    """

    epoch: int
    commit_seq: int = -1
    results: tuple[bytes, ...] = ()
    decided: int = 0
    digests: tuple[int, ...] = ()
    txn_epoch: int = 0


class MetaRow(Row, frozen=True, gc=False, array_like=True):
    """The counters of the state."""

    next_stream: int
    next_producer: int
    time_ms: int
    next_txn: int = 1
    next_outcome: int = 1


# ---- transactions, groups and sinks --------------------------------------------------------------


# A producer (True) whatever its epoch, or a sink's app (False) whatever its task.
OwnerKey = tuple[bool, str]


class NamedPosition(Struct, frozen=True, gc=False, array_like=True):
    """A position that the commit of a transaction moves to the offset `to`.

    `guard` is the stored version when the transaction first named it: the commit compares it.
    `expected` and `version` are those of the last call that named it, to recognise a repeat.
    """

    group: str
    stream: int
    to: int
    guard: int = 0
    expected: int | None = None
    version: int | None = None


class TxnRow(Row, frozen=True, gc=False, array_like=True):
    """A pending transaction.

    `deleted` are the paths of its streams that ended since, `lost` the positions that it named in
    such streams: (group, path). `next_seq` is the number of the next chunk of a staged one.
    """

    number: int
    id: str
    epoch: int
    kind: str
    owner: Owner
    is_implicit: bool
    begun_ms: int
    timeout_ms: int | None
    deadline_ms: int | None
    touched_ms: int
    is_prepared: bool = False
    next_seq: int = 0
    positions: tuple[NamedPosition, ...] = ()
    deleted: tuple[str, ...] = ()
    lost: tuple[tuple[str, str], ...] = ()


class TxnStreamRow(Row, frozen=True, gc=False, array_like=True):
    """A stream that a transaction may write, and what it wrote; `first` is -1 without messages."""

    first: int = -1
    messages: int = 0
    chunks: int = 0


class ChunkBlockRow(Row, frozen=True, gc=False, array_like=True):
    """A block of the chunks or extents of a transaction, packed (`txn/draft.py`)."""

    packed: bytes


class PositionRow(Row, frozen=True, gc=False, array_like=True):
    """The position of a group in a stream. `version` counts its moves of every kind.

    `mover` moved it last by a transaction or a one-shot commit; None if there was none.
    """

    offset: int
    time_ms: int
    version: int = 0
    mover: OwnerKey | None = None


class SnapshotRow(Row, frozen=True, gc=False, array_like=True):
    """The step a group has pinned."""

    number: int
    ranges: tuple[SnapshotRange, ...]
    hash: str


class VersionRow(Row, frozen=True, gc=False, array_like=True):
    """One version that a sink committed: the digest of its input, and the packed result."""

    version: int
    input: str | None
    result: bytes


class SinkRow(Row, frozen=True, gc=False, array_like=True):
    """A sink; `versions` oldest first. Outcomes numbered below `outcomes_from` have expired."""

    query_id: str
    last_version: int
    versions: tuple[VersionRow, ...] = ()
    outcomes_from: int = 0


class OutcomeRow(Row, frozen=True, gc=False, array_like=True):
    """A transaction outcome. `number` counts all outcomes, `ordinal` those of its producer."""

    number: int
    ordinal: int
    owner: Owner
    outcome: TxnOutcome


class AbortedRow(Struct, frozen=True, gc=False):
    """An aborted range of a stream, from `first` up to `next`."""

    stream: int
    first: int
    next: int


class PlacedChunkRow(Struct, frozen=True, gc=False):
    """A chunk to which a decision frame gave offsets, from `base` on."""

    lsn: int
    stream: int
    base: int
    count: int


# ---- tables --------------------------------------------------------------------------------------
# How keys become bytes, and how tables are declared. The declarations are the annotated fields of
# `Dirty` in `state.py`: one field is one table of the checkpoint, named like the field. Storing,
# loading, removing and verifying follow from it.


_NUMBER: Final = struct.Struct(">Q")
_PAIR: Final = struct.Struct(">QQ")

# The owners of rows: see `Table.owner`.
OF_STREAM: Final = "stream"
OF_TXN: Final = "transaction"


class KeyCodec(Struct, frozen=True):
    """The two directions between a key and its bytes; bytes sort like the keys."""

    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]


def _encode_owned(key: tuple[int, str]) -> bytes:
    number, name = key
    return _NUMBER.pack(number) + name.encode()


def _decode_owned(key: bytes) -> tuple[int, str]:
    return _NUMBER.unpack_from(key)[0], key[_NUMBER.size :].decode()


def _encode_pair(key: tuple[int, int]) -> bytes:
    return _PAIR.pack(*key)


def _decode_number(key: bytes) -> int:
    number: int = _NUMBER.unpack(key)[0]
    return number


NUMBER_KEY: Final = KeyCodec(_NUMBER.pack, _decode_number)
NAME_KEY: Final = KeyCodec(str.encode, bytes.decode)
OWNED_KEY: Final = KeyCodec(_encode_owned, _decode_owned)
PAIR_KEY: Final = KeyCodec(_encode_pair, _PAIR.unpack)


class Table(Struct, frozen=True):
    """One table of the state.

    `load(state, key, row)` puts a stored row back; tables are loaded in the order of their
    declaration. With an `owner`, keys begin with the number of a stream or a transaction, and its
    rows are removed with it.
    """

    key: KeyCodec
    row: type[Row]
    load: Callable[[Any, Any, Any], None]
    owner: str | None = None


def tables_of(holder: type) -> Mapping[str, Table]:
    """Return the tables that the annotated fields of a class declare, in their order."""
    hints = get_type_hints(holder, include_extras=True)
    return {
        name: get_args(hint)[1] for name, hint in hints.items() if get_origin(hint) is Annotated
    }
