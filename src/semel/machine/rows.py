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
    """The source of a fork; the messages before `start` are read from it.

    `anchor` and `sub_offset` are those of the request; a repeated request is compared with them.
    """

    source: int
    source_path: str
    anchor: int
    sub_offset: int
    start: int


class StreamRow(Row, frozen=True, gc=False, array_like=True):
    """The properties of a stream that do not change after it is created."""

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
    """The properties of a stream that change.

    `dedup_from` is the offset from which duplicates are recognised; None if they are not. `stable`
    is the stable offset; -1 in rows written by versions without transactions. There are no aborted
    ranges at or after `aborted_end`.
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

    `receipts` and `first_receipt` are packed (see `producers.py`). `forgotten_seq` is the last
    sequence of the newest receipt that a sparse producer has dropped; -1 if it has dropped none. An
    expired row is a tombstone. Between a claim and the first append after it, a dense producer has
    `last_seq` -1, and `first_receipt` is the receipt of the last append before the claim.

    `last_seq` and `receipts` do not include appends inside transactions. `txn` is the number of the
    latest inline transaction in which the producer wrote to this stream. `txn_receipts` are the
    receipts of that transaction: the first, then the newest ones. `latest_seq` is the sequence used
    last, inside transactions or outside; -1 if it is `last_seq`.
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
    """The receipt of an append with an idempotency key; `number` keeps the order of use."""

    number: int
    time_ms: int
    digest: int
    first_offset: int
    next_offset: int


class RegistryRow(Row, frozen=True, gc=False, array_like=True):
    """A producer in the registry of the server.

    `commit_seq` is the sequence of its last one-shot commit at this epoch. `results` are the packed
    results of the newest one-shot commits, and `digests` the digests of their requests. `decided`
    counts its ended transactions; `txn_epoch` is the highest transaction epoch among them.
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


# The owner of transactions without epoch or task: True and a producer id, or False and an app.
OwnerKey = tuple[bool, str]


class NamedPosition(Struct, frozen=True, gc=False, array_like=True):
    """A position that the commit of a transaction moves to the offset `to`.

    `guard` is the version that the position had when the transaction first named it; the commit is
    refused if the version has changed. `expected` and `version` are those of the last call that
    named the position; they identify a repeated call.
    """

    group: str
    stream: int
    to: int
    guard: int = 0
    expected: int | None = None
    version: int | None = None


class TxnRow(Row, frozen=True, gc=False, array_like=True):
    """A pending transaction.

    `deleted` are the paths of its streams that were deleted or have expired since. `lost` are the
    positions (group, path) that it named in such streams. `next_seq` is the number of the next
    chunk of a staged transaction.
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
    """A stream that a transaction may write, with the counts of its messages and chunks there.

    `first` is the first offset of an inline transaction in the stream; -1 if there is none.
    """

    first: int = -1
    messages: int = 0
    chunks: int = 0


class ChunkBlockRow(Row, frozen=True, gc=False, array_like=True):
    """A block of packed chunks or extents of a transaction (see `txn/draft.py`)."""

    packed: bytes


class PositionRow(Row, frozen=True, gc=False, array_like=True):
    """The position of a group in a stream; `version` counts all its moves.

    `mover` is the owner of the last transaction or one-shot commit that moved the position; None if
    there was none.
    """

    offset: int
    time_ms: int
    version: int = 0
    mover: OwnerKey | None = None


class SnapshotRow(Row, frozen=True, gc=False, array_like=True):
    """The step that a group has pinned."""

    number: int
    ranges: tuple[SnapshotRange, ...]
    hash: str


class VersionRow(Row, frozen=True, gc=False, array_like=True):
    """One version that a sink committed: the digest of its input, and the packed result."""

    version: int
    input: str | None
    result: bytes


class SinkRow(Row, frozen=True, gc=False, array_like=True):
    """A sink, with its retained versions, oldest first.

    Outcomes of its transactions with a number below `outcomes_from` have expired.
    """

    query_id: str
    last_version: int
    versions: tuple[VersionRow, ...] = ()
    outcomes_from: int = 0


class OutcomeRow(Row, frozen=True, gc=False, array_like=True):
    """A transaction outcome, numbered among all outcomes and (`ordinal`) those of its producer."""

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
    """A chunk to which a decision frame assigned offsets, from `base` on."""

    lsn: int
    stream: int
    base: int
    count: int


# ---- tables --------------------------------------------------------------------------------------
# The encoding of keys, and the declaration of tables. An annotated field of `Dirty` in `state.py`
# declares a table of the checkpoint with the name of the field. The code that stores, loads,
# removes and verifies rows uses these declarations.


_NUMBER: Final = struct.Struct(">Q")
_PAIR: Final = struct.Struct(">QQ")

# The values of `Table.owner`.
OF_STREAM: Final = "stream"
OF_TXN: Final = "transaction"


class KeyCodec(Struct, frozen=True):
    """The encoder and the decoder of a kind of key; encoded keys sort like the keys."""

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

    `load(state, key, row)` adds a stored row to the state; tables are loaded in the order of their
    declaration. If a table has an `owner`, its keys begin with the number of a stream or a
    transaction, and the rows are removed together with that stream or transaction.
    """

    key: KeyCodec
    row: type[Row]
    load: Callable[[Any, Any, Any], None]
    owner: str | None = None


def tables_of(holder: type) -> Mapping[str, Table]:
    """Return the tables that the annotated fields of a class declare, in the same order."""
    hints = get_type_hints(holder, include_extras=True)
    return {
        name: get_args(hint)[1] for name, hint in hints.items() if get_origin(hint) is Annotated
    }
