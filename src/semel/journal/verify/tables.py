"""Verification of the checkpoint's tables of topics, groups, tokens and owners.

Each row must belong to something that exists, and have fields that a command could have stored. Of
groups, these are the positions, the members, and who owns which stream.
"""

import struct
from collections.abc import Iterable, Mapping, Set
from itertools import pairwise
from typing import Final

from semel.journal.store import StoreReader
from semel.journal.verify.report import Corrupt, Decoded
from semel.machine.rows import (
    MEMBER_KEY,
    NAME_KEY,
    NUMBER_KEY,
    OWNED_KEY,
    OWNER_KEY,
    GroupRow,
    KeyRow,
    MemberRow,
    OwnedKey,
    OwnerRow,
    PositionRow,
    ProducerRow,
    ShareRow,
    TokenRow,
    TopicRow,
    TxnRow,
    is_partition,
    is_topic,
)
from semel.machine.state import State, Stream
from semel.machine.topic_receipts import PART_BYTES, unpack_parts
from semel.model.access_commands import (
    TOKEN_ID_BYTES,
    CreateToken,
    invalid_token_field,
    is_principal,
)
from semel.model.commands import Metadata
from semel.model.group_commands import JoinGroup
from semel.model.names import is_number
from semel.model.partitioners import HASHES
from semel.model.rights import PRODUCER, SUBSCRIPTION, TRANSACTION
from semel.model.validation import find_invalid_field, is_metadata

GROUP_TABLES: Final = frozenset({"positions", "groups", "members", "shares"})
ACCESS_TABLES: Final = frozenset({"tokens", "owners"})
_NO_STREAM: Final = "the row belongs to a stream that does not exist"


# ---- topics --------------------------------------------------------------------------------------


def check_topics(decoded: Decoded, state: State, corrupt: Corrupt) -> None:
    """Check that topics and their partitions refer to each other, and load the topics."""
    for key, row in decoded("topics", TopicRow):
        topic = state.by_number.get(NUMBER_KEY.decode(key))
        if topic is None or not is_topic(topic.row):
            corrupt("topics", key, "the row belongs to a topic that does not exist")
            continue
        topic.topic = row
        problem = _topic_problem(state, topic, row)
        if problem is not None:
            corrupt("topics", key, problem)
    for number, stream in state.by_number.items():
        if is_topic(stream.row) and stream.topic is None:
            corrupt("topics", NUMBER_KEY.encode(number), "the row is missing or damaged")
        elif is_partition(stream.row) and not _is_listed(state, stream):
            corrupt("streams", NUMBER_KEY.encode(number), "no topic has this partition")


def _topic_problem(state: State, topic: Stream, row: TopicRow) -> str | None:
    if row.partitioner not in HASHES:
        return f"the partitioner {row.partitioner!r} is unknown"
    streams = [state.by_number.get(number) for number in row.partitions]
    if not topic.tail.is_deleted and None in streams:
        return "a partition of the topic does not exist"
    for partition, stream in enumerate(streams):
        if stream is None:
            continue
        if (stream.row.topic, stream.row.partition) != (topic.row.number, partition):
            return f"stream {stream.row.number} is not the partition {partition} of the topic"
    sizes = [len(fence) for fence in row.fences]
    if any(a >= b for a, b in pairwise((0, *sizes, len(row.partitions)))):
        return "the topic did not grow to the number of partitions that it has"
    for fence in row.fences:
        for offset, stream in zip(fence, streams, strict=False):
            if stream is not None and offset > stream.tail.tail:
                return "the topic grew at an offset that a partition does not have"
    return None


def _is_listed(state: State, stream: Stream) -> bool:
    topic = state.by_number.get(stream.row.topic)
    if topic is None:
        return False
    return topic.topic is None or stream.row.number in topic.topic.partitions


def parts_problem(state: State, number: int, row: ProducerRow | KeyRow) -> str | None:
    """Return what is wrong with the parts of a receipt, or None if they are valid.

    `number` is that of the stream or topic to which the row belongs.
    """
    packed = (row.parts,) if isinstance(row, KeyRow) else (row.parts or {}).values()
    blocks = [block for block in packed if block]
    stream = state.by_number.get(number)
    if not blocks or stream is None:
        return None
    if stream.topic is None:
        return "a row of a stream has the parts of an append to a topic"
    for block in blocks:
        if len(block) % PART_BYTES:
            return "the parts of an append have a wrong size"
        for part in unpack_parts(block):
            if part.partition >= len(stream.topic.partitions):
                return f"an append has a part in the partition {part.partition}, which is missing"
    return None


# ---- groups --------------------------------------------------------------------------------------


def check_groups(decoded: Decoded, state: State, txns: Iterable[TxnRow], corrupt: Corrupt) -> None:
    """Check what is stored about groups, and the positions that transactions will move."""
    versions: dict[tuple[int, str], int] = {}
    for key, row in decoded("positions", PositionRow):
        owned = OWNED_KEY.decode(key)
        versions[owned] = row.version
        if owned[0] not in state.by_number:
            corrupt("positions", key, _NO_STREAM)
        _check_metadata(corrupt, "positions", key, row.metadata)
    for txn in txns:
        _check_named(state, txn, versions, corrupt)
    members = _check_members(decoded, corrupt)
    for key, row in decoded("shares", ShareRow):
        number, group = OWNED_KEY.decode(key)
        if number not in state.by_number:
            corrupt("shares", key, _NO_STREAM)
        elif group not in members:
            corrupt("shares", key, f"the row belongs to a group that does not exist: {group}")
        else:
            version = versions.get((number, group), 0)
            problem = _share_problem(row, version, is_member=row.owner in members[group])
            if problem is not None:
                corrupt("shares", key, problem)


# ---- positions of groups -------------------------------------------------------------------------


def _check_named(
    state: State, txn: TxnRow, versions: Mapping[tuple[int, str], int], corrupt: Corrupt
) -> None:
    """Check the positions that a pending transaction will move.

    The transaction requires that a position still has a certain version. This version must not be
    higher than the stored version.
    """
    key = NUMBER_KEY.encode(txn.number)
    for named in txn.positions:
        if named.stream not in state.by_number:
            corrupt("transactions", key, _NO_STREAM)
        stored = versions.get((named.stream, named.group), 0)
        if named.guard > stored:
            corrupt(
                "transactions",
                key,
                f"the transaction requires version {named.guard} of a group's position,"
                f" but the stored version is {stored}",
            )
    named_keys = {(named.group, named.stream) for named in txn.positions}
    for group, number, metadata in txn.metadata:
        _check_metadata(corrupt, "transactions", key, metadata)
        if (group, number) not in named_keys:
            corrupt("transactions", key, "the transaction has metadata of a position it lacks")


def _check_metadata(corrupt: Corrupt, table: str, key: bytes, metadata: Metadata) -> None:
    if not is_metadata(metadata):
        corrupt(table, key, "the metadata of a position is invalid or too long")


# ---- members and owners --------------------------------------------------------------------------


def _check_members(decoded: Decoded, corrupt: Corrupt) -> dict[str, set[str]]:
    """Check the members of all groups, and return their ids by group."""
    members: dict[str, set[str]] = {
        NAME_KEY.decode(key): set() for key, _ in decoded("groups", GroupRow)
    }
    for key, row in decoded("members", MemberRow):
        group, name = MEMBER_KEY.decode(key)
        if group in members:
            members[group].add(name)
        else:
            corrupt("members", key, f"the row belongs to a group that does not exist: {group}")
        field = find_invalid_field(_join_of(group, row))
        if row.id != name:
            corrupt("members", key, f"the key is wrong for the member {row.id}")
        elif field is not None:
            corrupt("members", key, f"the field `{field}` of the member is invalid")
    return members


def _join_of(group: str, row: MemberRow) -> JoinGroup:
    return JoinGroup(
        row.joined_ms,
        group,
        row.id,
        streams=row.streams,
        topics=row.topics,
        patterns=row.patterns,
        session_timeout_ms=row.session_timeout_ms,
        rebalance_timeout_ms=row.rebalance_timeout_ms,
        instance=row.instance,
        start=row.start,
    )


def _share_problem(row: ShareRow, version: int, *, is_member: bool) -> str | None:
    if row.epoch < 1 or row.starts < 0:
        return "the epoch or the number of starts is invalid"
    if row.counted_version > version:
        return (
            f"starts were counted at version {row.counted_version} of the position, but the stored"
            f" version is {version}"
        )
    if row.owner is None:
        return "nobody owns the stream that must be released" if row.is_revoking else None
    # The stream of a member that is gone stays with it while a transaction holds the position.
    if not is_member and not row.is_revoking:
        return f"the owner is not a member of the group: {row.owner}"
    return None


# ---- tokens and owners ---------------------------------------------------------------------------


def check_tokens(decoded: Decoded, corrupt: Corrupt) -> None:
    """Check that each token has an id, and fields that a command could have stored.

    The token's issuer need not exist: a full table drops tokens that are no longer valid.
    """
    for key, row in decoded("tokens", TokenRow):
        problem = _token_problem(key, row)
        if problem is not None:
            corrupt("tokens", key, problem)


def _token_problem(key: bytes, row: TokenRow) -> str | None:
    if len(key) != TOKEN_ID_BYTES or not key.isascii():
        return f"the key is not an id of {TOKEN_ID_BYTES} characters"
    command = CreateToken(
        row.created_ms,
        NAME_KEY.decode(key),
        row.hash,
        row.principal,
        row.scopes,
        expires_ms=row.expires_ms,
        description=row.description,
        issuer=row.issuer,
    )
    field = invalid_token_field(command)
    if field is not None:
        return f"the field `{field}` of the token is invalid"
    if row.issuer and (len(row.issuer) != TOKEN_ID_BYTES or row.issuer == command.id):
        return "the token has an invalid issuer"
    if not is_number(row.created_ms) or not is_number(row.used_ms):
        return "the token has an invalid time"
    if row.revoked_ms is not None and row.revoked_ms < row.created_ms:
        return "the token was revoked before it was made"
    return None


def check_owners(decoded: Decoded, view: StoreReader, pending: Set[str], corrupt: Corrupt) -> None:
    """Check that each owner is a principal, and that what it owns exists.

    `pending` has the ids of all pending transactions.
    """
    for key, row in decoded("owners", OwnerRow):
        if not is_principal(row.principal):
            corrupt("owners", key, "the owner is not a principal")
        owned = _owned_of(key)
        if owned is None:
            corrupt("owners", key, "the key does not name a thing that can have an owner")
        elif not _exists(owned, view, pending):
            kind, _, name = owned
            corrupt("owners", key, f"the row belongs to a {kind} that does not exist: {name}")


def _owned_of(key: bytes) -> OwnedKey | None:
    """Return the decoded key of an owner, or None if the key is invalid."""
    try:
        kind, number, name = OWNER_KEY.decode(key)
    except (KeyError, struct.error, UnicodeDecodeError):
        return None
    return (kind, number, name) if name and (kind == PRODUCER or number == 0) else None


def _exists(owned: OwnedKey, view: StoreReader, pending: Set[str]) -> bool:
    kind, number, name = owned
    if kind == TRANSACTION:
        return name in pending
    if kind != PRODUCER:
        table = "subscriptions" if kind == SUBSCRIPTION else "sinks"
        return view.get(table, NAME_KEY.encode(name)) is not None
    if number:
        return view.get("producers", OWNED_KEY.encode((number, name))) is not None
    return view.get("registry", NAME_KEY.encode(name)) is not None
