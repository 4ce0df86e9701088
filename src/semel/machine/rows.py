"""The rows of the state, and the declarations of the tables that contain them.

Rows are immutable, so that a checkpoint can refer to them and read them later. Only the row of a
producer can be changed, while no checkpoint refers to it (ADR 0027).
"""

import struct
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, get_args, get_origin, get_type_hints

from msgspec import Struct

from semel.model.commands import Metadata, Owner, SnapshotRange, TxnOutcome
from semel.model.rights import PRODUCER, SINK, SUBSCRIPTION, TRANSACTION, Scope


class Row(Struct, frozen=True, gc=False, array_like=True):
    """A value that the checkpoint stores under a key."""


class ForkRow(Row, frozen=True, gc=False, array_like=True):
    """The source of a fork. The fork's messages before `start` are read from the source.

    The fork was created `sub_offset` units after the offset `anchor`. A unit is a message in a JSON
    stream, and a byte in any other stream. If the create is repeated, its sub-offset must be the
    same. Its offset must be `anchor` or missing.
    """

    source: int
    source_path: str
    anchor: int  # the stable offset that the source had then, if the request had no offset
    sub_offset: int
    start: int


class NewStream(Struct, frozen=True, gc=False, array_like=True):
    """A stream that a frame creates. Topics and their partitions have frames of their own."""

    number: int
    path: str
    incarnation: str
    content_type: str
    created_ms: int
    ttl_ms: int | None = None
    expires_at_ms: int | None = None
    inherits_expiry: bool = False
    fork: ForkRow | None = None


class StreamRow(NewStream, Row, frozen=True, gc=False, array_like=True):
    """The properties of a stream that do not change after it is created."""

    topic: int = 0  # the number of the topic that this is, or whose partition this is; otherwise 0
    partition: int = -1  # the number of the partition, or -1


def is_topic(row: StreamRow) -> bool:
    """Return True if a row is that of a topic, and not of a stream."""
    return row.topic == row.number


def is_partition(row: StreamRow) -> bool:
    """Return True if a stream is a partition of a topic."""
    return row.partition >= 0


class TailRow(Row, frozen=True, gc=False, array_like=True):
    """The properties of a stream that change."""

    head: int
    tail: int
    is_closed: bool
    is_deleted: bool
    stream_seq: str | None
    written_ms: int
    dedup_from: int | None = 0  # the first offset with duplicate detection; None if it is off
    stable: int = -1  # the stable offset; -1 in a row from a version without transactions
    aborted_end: int = 0  # all aborted ranges of the stream are before this offset
    # True if the setting for duplicate detection is the stream's own, and False if the stream
    # inherits it from the policies. None in a row from a version without policies.
    dedup_own: bool | None = None
    controls: int = -1  # the number of control records; -1 if it is not known


class TopicRow(Row, frozen=True, gc=False, array_like=True):
    """The partitions of a topic. The topic has a StreamRow and a TailRow, too.

    The tail row of a topic counts the messages that were appended to the topic. These numbers are
    not offsets: they only distinguish the receipts of its producers.
    """

    partitioner: str
    partitions: tuple[int, ...]  # the numbers of the streams
    is_keyed: bool = False  # a message with a key was appended
    # For each growth of the topic, the tails of the partitions that it had before.
    fences: tuple[tuple[int, ...], ...] = ()


class ProducerRow(Struct, gc=False, array_like=True):
    """A producer in one stream. An expired row is a tombstone, which keeps old instances fenced.

    Only an append changes a row in place, and only if it is in `Producers.changeable`.

    `last_seq`, `receipts` and `first_receipt` do not include appends inside transactions.
    `first_receipt` is set only for a dense producer. While an instance has no append outside
    transactions (`last_seq` is -1), it is the receipt of the previous instance's last append. Then
    it is the receipt of sequence 0, or empty if sequence 0 was inside a transaction.
    """

    mode: str
    epoch: int
    session: str | None
    old_sessions: tuple[str, ...]
    last_seq: int
    receipts: bytearray  # packed (see `producers.py`)
    first_receipt: bytes  # packed
    cursor: bytes | None
    updated_ms: int
    forgotten_seq: int = -1  # sparse producers: the last sequence of the newest dropped receipt
    is_expired: bool = False
    txn: int = 0  # the latest inline transaction in which the producer wrote to this stream
    txn_receipts: bytes = b""  # the first receipt and the newest receipts of that transaction
    latest_seq: int = -1  # the last sequence inside or outside transactions; -1 if it is `last_seq`
    # Sparse producers: every sequence from this one to `forgotten_seq` is stored. -1 if that is not
    # known of any sequence, also in a row from a version without this field.
    stored_from: int = -1
    expires_ms: int = 0  # the idle time that the producer has declared; 0 if none, or a tombstone
    tombstone: int = 0  # counts all tombstones; 0 in one from a version without this field
    # The hours that were counted before its last use or, of a tombstone, before its end. -1 if that
    # is not known, in a row from a version without this field.
    hour: int = -1
    is_brief: bool = False  # a tombstone that stays for minutes: of a retired or expiring producer
    ended_ms: int = 0  # when it became a tombstone
    # Only in topics: the packed parts of each append with a receipt, by the receipt's next offset.
    parts: dict[int, bytes] | None = None


AnyRow = Row | ProducerRow


class KeyRow(Row, frozen=True, gc=False, array_like=True):
    """The receipt of an append with an idempotency key.

    `number` is the key's number in the stream. Keys are numbered in the order of their use. `hour`
    is the number of hours that were counted before the append.
    """

    number: int
    time_ms: int
    digest: int
    first_offset: int
    next_offset: int
    hour: int = 0
    parts: bytes = b""  # only in topics: the packed parts of the append


class RegistryRow(Row, frozen=True, gc=False, array_like=True):
    """A producer in the server's registry."""

    epoch: int
    commit_seq: int = -1  # the sequence of the last one-shot commit at this epoch
    results: tuple[bytes, ...] = ()  # the packed results of the newest one-shot commits
    decided: int = 0  # the number of the producer's transactions that have ended
    digests: tuple[int, ...] = ()  # for each result, the digest of the request
    txn_epoch: int = 0  # the highest transaction epoch among the ended transactions
    expires_ms: int = 0  # the idle time that the registration has declared; 0 if none
    retired_hour: int = -1  # the hours that were counted before it was retired; -1 if it is in use
    used_hour: int = -1  # those before its last use, if it has declared an idle time


class PolicyRow(Row, frozen=True, gc=False, array_like=True):
    """What holds for every stream below a prefix. A setting that is None is not set."""

    dedup: bool | None = None
    changed_ms: int = 0


class TokenRow(Row, frozen=True, gc=False, array_like=True):
    """A token. `hash` is the SHA-256 of its secret."""

    hash: bytes
    principal: str
    scopes: tuple[Scope, ...]
    created_ms: int
    expires_ms: int | None = None
    description: str = ""
    issuer: str = ""  # the public id of the token with which it was made; empty if there was none
    revoked_ms: int | None = None
    used_ms: int = 0  # the last use, at most an hour late; 0 if it was not used


# What can have an owner: `producer`, `transaction` or `sink`; the number of the stream of a
# producer, or 0 for a registration and everything else; and the id or the app.
OwnedKey = tuple[str, int, str]


class OwnerRow(Row, frozen=True, gc=False, array_like=True):
    """The principal that owns a producer, a transaction id or a sink."""

    principal: str


class MetaRow(Row, frozen=True, gc=False, array_like=True):
    """The counters of the state."""

    next_stream: int
    next_producer: int
    time_ms: int
    next_txn: int = 1
    next_outcome: int = 1
    hours: int = 0
    run_ms: int = 0  # since the last hour was counted
    next_tombstone: int = 1


# ---- transactions, groups and sinks --------------------------------------------------------------


# The owner of transactions, without its epoch or task. For a producer, it is True and the producer
# id. For a sink, it is False and the app.
OwnerKey = tuple[bool, str]


class NewPosition(Struct, frozen=True, gc=False, array_like=True):
    """A position that a transaction names, without the member of the group that moves it.

    `guard` is the version that the position had when the transaction first named it. The commit is
    refused if the version has changed since then.
    """

    group: str
    stream: int
    to: int
    guard: int = 0
    # From the last call that named the position. A repeat of that call has the same values.
    expected: int | None = None
    version: int | None = None


class NamedPosition(NewPosition, frozen=True, gc=False, array_like=True):
    """A named position, and the member of the group that moves it, if one does."""

    member: str | None = None
    member_epoch: int | None = None  # the epoch at which the member owns the stream


class TxnRow(Row, frozen=True, gc=False, array_like=True):
    """A pending transaction."""

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
    next_seq: int = 0  # the number of the next chunk of a staged transaction
    positions: tuple[NamedPosition, ...] = ()
    deleted: tuple[str, ...] = ()  # the paths of its streams that were deleted or have expired
    lost: tuple[tuple[str, str], ...] = ()  # (group, path) of each position named in such a stream
    # (group, stream, metadata) of each named position whose move sets metadata
    metadata: tuple[tuple[str, int, Metadata], ...] = ()


class TxnStreamRow(Row, frozen=True, gc=False, array_like=True):
    """A stream to which a transaction is allowed to write.

    `messages` and `chunks` count the transaction's messages and chunks in the stream.
    """

    first: int = -1  # the first offset of an inline transaction's messages; -1 if there are none
    messages: int = 0
    chunks: int = 0


class ChunkBlockRow(Row, frozen=True, gc=False, array_like=True):
    """A block of packed chunks or extents of a transaction (see `txn/draft.py`)."""

    packed: bytes


class PositionRow(Row, frozen=True, gc=False, array_like=True):
    """The position of a group in a stream. `version` counts all moves of the position.

    `mover` is the owner of the last transaction or commit that moved the position, or None.
    `metadata` is that of the last move.
    """

    offset: int
    time_ms: int
    version: int = 0
    mover: OwnerKey | None = None
    metadata: Metadata = ()


class GroupRow(Row, frozen=True, gc=False, array_like=True):
    """A group that has or had members. `version` counts the changes of members and owners."""

    version: int
    next_stream: int  # when the group was created


class MemberRow(Row, frozen=True, gc=False, array_like=True):
    """A member of a group, and what it takes part in sharing."""

    id: str
    streams: tuple[str, ...]
    topics: tuple[str, ...]
    patterns: tuple[str, ...]
    session_timeout_ms: int
    rebalance_timeout_ms: int
    instance: str | None
    start: str
    joined_ms: int


class ShareRow(Row, frozen=True, gc=False, array_like=True):
    """Who owns a stream in a group. The row stays when nobody does, so that epochs never go back.

    `starts` is how often in a row the stream was taken from an owner that did not give it up. It
    counts only while the position has the version `counted_version`.
    """

    owner: str | None
    epoch: int
    is_revoking: bool = False  # the owner was asked to release the stream
    starts: int = 0
    counted_version: int = 0


class SnapshotRow(Row, frozen=True, gc=False, array_like=True):
    """The step that a group has pinned."""

    number: int
    ranges: tuple[SnapshotRange, ...]
    hash: str


class VersionRow(Row, frozen=True, gc=False, array_like=True):
    """One version of a sink, which is one of the sink's numbered commits.

    `input` is the digest of the version's input. `result` is the packed result of the commit.
    """

    version: int
    input: str | None
    result: bytes


class SinkRow(Row, frozen=True, gc=False, array_like=True):
    """A sink and its retained versions. The oldest version comes first.

    `outcomes_from` is the lowest outcome number that is still valid for the sink's transactions.
    """

    query_id: str
    last_version: int
    versions: tuple[VersionRow, ...] = ()
    outcomes_from: int = 0


class OutcomeRow(Row, frozen=True, gc=False, array_like=True):
    """A transaction outcome.

    `number` counts all outcomes. `ordinal` counts the outcomes of one producer. If the owner is a
    sink, `ordinal` is 0. `hour` is the number of hours that were counted before the end of the
    transaction.
    """

    number: int
    ordinal: int
    owner: Owner
    outcome: TxnOutcome
    hour: int = 0
    principal: str | None = None  # that owned the transaction id, or None


class AbortedRow(Struct, frozen=True, gc=False):
    """An aborted range of a stream, from `first` up to, but not including, `next`."""

    stream: int
    first: int
    next: int


# ---- tables --------------------------------------------------------------------------------------
# How keys are encoded, and how tables are declared. An annotated field of `Dirty` in `state.py`
# declares a table of the checkpoint. The table has the same name as the field. The code that
# stores, loads, removes and verifies rows uses these declarations.


_NUMBER: Final = struct.Struct(">Q")
_PAIR: Final = struct.Struct(">QQ")

# The values of `Table.owner`.
OF_STREAM: Final = "stream"
OF_TXN: Final = "transaction"


class KeyCodec(Struct, frozen=True):
    """The encoder and the decoder for one kind of key.

    Encoded keys sort in the same order as the keys.
    """

    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]


def _encode_owned(key: tuple[int, str]) -> bytes:
    number, name = key
    return _NUMBER.pack(number) + name.encode()


def _decode_owned(key: bytes) -> tuple[int, str]:
    return _NUMBER.unpack_from(key)[0], key[_NUMBER.size :].decode()


def _encode_prefix(prefix: str) -> bytes:
    return b"/" + prefix.encode()  # a key of LMDB cannot be empty, but the prefix of the root is


def _decode_prefix(key: bytes) -> str:
    return key[1:].decode()


def is_prefix_key(key: bytes) -> bool:
    """Return True if a key of the table `policies` is `/` and a prefix of whole segments."""
    try:
        segments = key.decode().split("/")
    except UnicodeDecodeError:
        return False
    return segments[:1] == [""] and (segments[1:] == [""] or all(segments[1:]))


# The first byte of a key in the table `owners`.
OWNED_KINDS: Final = {PRODUCER: b"p", SINK: b"s", TRANSACTION: b"t", SUBSCRIPTION: b"u"}
_OWNED_BY_BYTE: Final = {byte: kind for kind, byte in OWNED_KINDS.items()}


def _encode_owner(key: OwnedKey) -> bytes:
    kind, number, name = key
    return OWNED_KINDS[kind] + _encode_owned((number, name))


def _decode_owner(key: bytes) -> OwnedKey:
    return _OWNED_BY_BYTE[key[:1]], *_decode_owned(key[1:])


def _encode_member(key: tuple[str, str]) -> bytes:
    group, member = key
    return group.encode() + b"\0" + member.encode()


def _decode_member(key: bytes) -> tuple[str, str]:
    group, _, member = key.rpartition(b"\0")  # the id of a member has no zero byte
    return group.decode(), member.decode()


def _encode_pair(key: tuple[int, int]) -> bytes:
    return _PAIR.pack(*key)


def _decode_number(key: bytes) -> int:
    number: int = _NUMBER.unpack(key)[0]
    return number


NUMBER_KEY: Final = KeyCodec(_NUMBER.pack, _decode_number)
NAME_KEY: Final = KeyCodec(str.encode, bytes.decode)
OWNED_KEY: Final = KeyCodec(_encode_owned, _decode_owned)
PREFIX_KEY: Final = KeyCodec(_encode_prefix, _decode_prefix)
OWNER_KEY: Final = KeyCodec(_encode_owner, _decode_owner)
MEMBER_KEY: Final = KeyCodec(_encode_member, _decode_member)
PAIR_KEY: Final = KeyCodec(_encode_pair, _PAIR.unpack)


class Table(Struct, frozen=True):
    """The declaration of one table of the state. Tables are loaded in the order of declaration.

    If `owner` is set, each key begins with the number of a stream or a transaction. The row is
    removed together with that stream or transaction.
    """

    key: KeyCodec
    row: type[AnyRow]
    load: Callable[[Any, Any, Any], None]  # `load(state, key, row)` adds a stored row to the state
    owner: str | None = None


def tables_of(holder: type) -> Mapping[str, Table]:
    """Return the tables that the annotated fields of a class declare, in the order of fields."""
    hints = get_type_hints(holder, include_extras=True)
    return {
        name: get_args(hint)[1] for name, hint in hints.items() if get_origin(hint) is Annotated
    }
