"""Validation of commands: names, numbers and batches must be within their limits.

This is the last check before a command is decided. A valid command can be stored, indexed and read
back. An invalid command could stop the engine. The HTTP layer refuses malformed requests earlier.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, get_args

import msgspec

from semel.model.access_commands import (
    TOKEN_ID_BYTES,
    ChangeOwner,
    CreateToken,
    NoteTokenUses,
    RevokeToken,
    invalid_owner_field,
    invalid_token_field,
)
from semel.model.commands import (
    DENSE,
    SPARSE,
    TXN_INLINE,
    TXN_STAGED,
    AbortTxn,
    AddPositions,
    AddStreams,
    Append,
    Batch,
    Begin,
    ClaimProducer,
    Commit,
    CommitAppend,
    CommitTxn,
    Create,
    Delete,
    EngineCommand,
    Expire,
    ExpireProducer,
    ExpireTxn,
    FenceTxn,
    ForgetProducer,
    ForkRequest,
    Metadata,
    Owner,
    PinSnapshot,
    PositionMove,
    Prepare,
    ProducerOwner,
    ProducerTag,
    Register,
    SetPositions,
    SinkTag,
    SnapshotRange,
    StreamCommand,
    SwitchDedup,
    Trim,
    TxnCall,
    TxnTag,
)
from semel.model.group_commands import (
    DeleteGroup,
    ExpireMember,
    JoinGroup,
    LeaveGroup,
    RebalanceGroup,
    ReleaseStreams,
    TakeStream,
    invalid_group_field,
    invalid_join_field,
    invalid_member_field,
    invalid_release_field,
    invalid_take_field,
)
from semel.model.limits import (
    BATCH_MESSAGES_MAX,
    CURSOR_BYTES_MAX,
    DIGEST_BYTES_MAX,
    EXPIRES_MS_MAX,
    EXPIRES_MS_MIN,
    GROUP_NAME_BYTES_MAX,
    IDEMPOTENCY_KEY_BYTES_MAX,
    INCARNATION_BYTES_MAX,
    MEDIA_TYPE_BYTES_MAX,
    MEMBER_ID_BYTES_MAX,
    NUMBER_MAX,
    PATH_BYTES_MAX,
    POSITION_METADATA_BYTES_MAX,
    PRODUCER_ID_BYTES_MAX,
    SESSION_BYTES_MAX,
    STREAM_SEQ_BYTES_MAX,
    TOPIC_PATH_BYTES_MAX,
    TXN_ID_BYTES_MAX,
    TXN_LIST_MAX,
    TXN_TIMEOUT_MS_MAX,
)
from semel.model.names import (
    first_invalid,
    is_name,
    is_number,
    is_optional_name,
    is_optional_number,
)
from semel.model.partitioners import HASHES
from semel.model.policies import DeletePolicy, SetPolicy, invalid_policy_field
from semel.model.producer_commands import (
    CountHour,
    DropTombstones,
    ExpireRegistration,
    RetireProducers,
    invalid_producer_field,
    invalid_registration_field,
    invalid_retire_field,
)
from semel.model.sink_commands import ForgetSink, RebindSink, invalid_sink_field
from semel.model.subscription_commands import (
    SubscriptionCommand,
    invalid_subscription_field,
    invalid_wake_acks,
)
from semel.model.topic_commands import (
    AppendTopic,
    CloseTopic,
    CreateTopic,
    DeleteTopic,
    GrowTopic,
    invalid_create_topic_field,
    invalid_partitions_field,
    invalid_topic_field,
)

# ---- names, numbers, batches ---------------------------------------------------------------------


def is_assigned_id(producer_id: str) -> bool:
    """Return True if an id consists of digits only. Only the server assigns such ids."""
    return producer_id.isascii() and producer_id.isdigit()


def is_batch(batch: Batch) -> bool:
    """Return True if the batch's number of messages and its field `lengths` are valid.

    For a batch of one message, `lengths` must be empty. Otherwise it must have one u32 per message.
    """
    if batch.count == 1:
        return not batch.lengths
    return 1 < batch.count <= BATCH_MESSAGES_MAX and len(batch.lengths) == 4 * batch.count


# ---- transactions, groups and sinks --------------------------------------------------------------


def _in_txn(named: TxnTag | TxnCall | ExpireTxn) -> str | None:
    if not is_name(named.id, TXN_ID_BYTES_MAX):
        return "transaction_id"
    return None if is_number(named.epoch) else "transaction_epoch"


def _in_txn_tag(tag: TxnTag) -> str | None:
    return _in_txn(tag) or (None if is_optional_number(tag.seq) else "transaction_seq")


def _in_begin(command: Begin) -> str | None:
    is_produced = isinstance(command.owner, ProducerOwner)
    timeout_ms = command.timeout_ms
    is_timeout = timeout_ms is None or (is_produced and 0 < timeout_ms <= TXN_TIMEOUT_MS_MAX)
    field = first_invalid(
        ("transaction_id", is_name(command.id, TXN_ID_BYTES_MAX)),
        ("kind", command.kind in (TXN_INLINE, TXN_STAGED)),
        ("timeout_ms", is_timeout),
    )
    return field or _in_owner(command.owner) or _in_paths(command.streams)


def _in_owner(owner: Owner) -> str | None:
    if isinstance(owner, ProducerOwner):
        return invalid_producer_field(owner.id, owner.epoch)
    is_valid = is_name(owner.app, TXN_ID_BYTES_MAX)
    return None if is_valid and is_number(owner.version) and is_number(owner.partition) else "sink"


def _in_paths(paths: Iterable[str]) -> str | None:
    return None if all(is_name(path, PATH_BYTES_MAX) for path in paths) else "path"


def _in_call(command: TxnCall) -> str | None:
    return _in_txn(command) or invalid_producer_field(command.producer_id, command.producer_epoch)


def _in_streams(command: AddStreams) -> str | None:
    return _in_call(command) or _in_paths(command.streams)


def _in_added_positions(command: AddPositions) -> str | None:
    return _in_call(command) or _in_positions(command.positions)


def _in_positions(positions: tuple[PositionMove, ...]) -> str | None:
    return next(filter(None, map(_in_position, positions)), None)


def _in_position(position: PositionMove) -> str | None:
    numbers = (position.to, position.expected or 0, position.version or 0)
    return first_invalid(
        ("group", is_name(position.group, GROUP_NAME_BYTES_MAX)),
        ("path", is_name(position.path, PATH_BYTES_MAX)),
        ("positions", all(map(is_number, numbers))),
        ("incarnation", is_name(position.incarnation or "-", INCARNATION_BYTES_MAX)),
        ("metadata", not position.metadata or is_metadata(position.metadata)),
        ("member", _is_member(position)),
    )


def _is_member(position: PositionMove) -> bool:
    """Return True if a move has both a member and an epoch, or neither."""
    member, epoch = position.member, position.member_epoch
    if member is None or epoch is None:
        return member is None and epoch is None
    return is_name(member, MEMBER_ID_BYTES_MAX) and is_number(epoch)


def is_metadata(metadata: Metadata) -> bool:
    """Return True if the metadata of a position is valid.

    Names must be different, integers must have at most 64 bits, and the JSON object with these
    names and values must have at most POSITION_METADATA_BYTES_MAX bytes.
    """
    document = dict(metadata)
    integers = [value for value in document.values() if isinstance(value, int)]
    if len(document) < len(metadata) or not all(-(2**63) <= n < 2**63 for n in integers):
        return False
    try:
        return len(msgspec.json.encode(document)) <= POSITION_METADATA_BYTES_MAX
    except UnicodeEncodeError:
        return False


def _in_commit(command: Commit) -> str | None:
    lists = (
        command.appends,
        command.transactions,
        command.positions,
        command.expects,
        command.wakes,
    )
    is_empty = not any(lists) and command.sink is None
    if is_empty or max(map(len, lists)) > TXN_LIST_MAX:
        return "commit"
    return (
        _in_committer(command)
        or next(filter(None, map(_in_commit_append, command.appends)), None)
        or _in_listed(command)
        or _in_moves(command.positions)
        or _in_expects(command)
        or invalid_wake_acks(command.wakes)
    )


def _in_committer(command: Commit) -> str | None:
    if command.sink is not None:
        return "sink" if command.producer_id is not None else _in_sink(command.sink)
    if None in (command.producer_id, command.producer_epoch, command.producer_seq):
        return "producer"
    if not is_optional_number(command.producer_seq):
        return "producer_seq"
    return invalid_producer_field(command.producer_id, command.producer_epoch)


def _in_sink(tag: SinkTag) -> str | None:
    digests = (tag.input or "-", tag.previous or "-")
    is_valid = (
        is_name(tag.app, TXN_ID_BYTES_MAX)
        and is_name(tag.query_id, TXN_ID_BYTES_MAX)
        and is_number(tag.version)
        and all(is_name(digest, DIGEST_BYTES_MAX) for digest in digests)
    )
    return None if is_valid else "sink"


def _in_commit_append(append: CommitAppend) -> str | None:
    batch = append.batch
    return first_invalid(
        ("path", is_name(append.path, PATH_BYTES_MAX)),
        ("appends", batch is not None or append.body_error is not None),
        ("batch", batch is None or is_batch(batch)),
    )


def _in_listed(command: Commit) -> str | None:
    is_valid = all(
        is_name(listed.id, TXN_ID_BYTES_MAX) and is_number(listed.epoch)
        for listed in command.transactions
    )
    return None if is_valid else "transactions"


def _in_moves(positions: tuple[PositionMove, ...]) -> str | None:
    names = {(position.group, position.path) for position in positions}
    return "positions" if len(names) < len(positions) else _in_positions(positions)


def _in_expects(command: Commit) -> str | None:
    paths = dict(command.expects)
    is_valid = len(paths) == len(command.expects) and all(map(is_number, paths.values()))
    return _in_paths(paths) if is_valid else "expects"


def _in_set(command: SetPositions) -> str | None:
    is_sized = 0 < len(command.positions) <= TXN_LIST_MAX
    return _in_moves(command.positions) if is_sized else "positions"


def _in_pin(command: PinSnapshot) -> str | None:
    is_sized = len(command.ranges) <= TXN_LIST_MAX
    return first_invalid(
        ("group", is_name(command.group, GROUP_NAME_BYTES_MAX)),
        ("number", is_number(command.number)),
        ("hash", is_name(command.hash, DIGEST_BYTES_MAX)),
        ("ranges", is_sized and all(map(_is_range, command.ranges))),
    )


def _is_range(span: SnapshotRange) -> bool:
    names = is_name(span.path, PATH_BYTES_MAX) and is_name(span.incarnation, INCARNATION_BYTES_MAX)
    return names and 0 <= span.start <= span.end <= NUMBER_MAX


# ---- streams, topics and producers ---------------------------------------------------------------


def _in_append(command: Append) -> str | None:
    batch = command.batch
    if batch is not None and (batch.count != 1 or batch.lengths) and not is_batch(batch):
        return "batch"
    tag = command.producer
    field = None if tag is None or tag.is_checked else _in_tag(tag)
    if field is None and command.transaction is not None:
        field = _in_txn_tag(command.transaction)
    if field is not None:
        return field
    if command.stream_seq is not None and not is_name(command.stream_seq, STREAM_SEQ_BYTES_MAX):
        return "stream_seq"
    if command.key is None:
        return None
    is_valid = command.producer is None and is_name(command.key, IDEMPOTENCY_KEY_BYTES_MAX)
    return None if is_valid else "idempotency_key"


def _in_tag(tag: ProducerTag) -> str | None:
    if not is_name(tag.id, PRODUCER_ID_BYTES_MAX):
        return "producer_id"
    if not 0 <= tag.first_seq <= tag.last_seq <= NUMBER_MAX:
        return "producer_seq"
    if tag.mode != SPARSE and (tag.mode != DENSE or tag.first_seq != tag.last_seq):
        return "producer_mode"
    if tag.epoch is not None and not 0 <= tag.epoch <= NUMBER_MAX:
        return "producer_epoch"
    if tag.session is not None and not is_name(tag.session, SESSION_BYTES_MAX):
        return "producer_session"
    if tag.expires_ms and not is_idle_time(tag.expires_ms):
        return "producer_expires"
    is_valid = tag.cursor is None or len(tag.cursor) <= CURSOR_BYTES_MAX
    return None if is_valid else "producer_cursor"


def is_idle_time(expires_ms: int) -> bool:
    """Return True if a producer can declare this idle time; 0 means that it declares none."""
    return expires_ms == 0 or EXPIRES_MS_MIN <= expires_ms <= EXPIRES_MS_MAX


def _in_path(command: StreamCommand) -> str | None:
    return None if is_name(command.path, PATH_BYTES_MAX) else "path"


def _in_trim(command: Trim) -> str | None:
    return _in_path(command) or (None if is_number(command.before) else "before")


def _in_register(command: Register) -> str | None:
    field = invalid_producer_field(command.producer_id, command.first_epoch)
    return field or (None if is_idle_time(command.expires_ms) else "expires")


def _in_producer_command(command: ClaimProducer | ForgetProducer | ExpireProducer) -> str | None:
    return _in_path(command) or invalid_producer_field(command.producer_id, None)


def _in_claim(command: ClaimProducer) -> str | None:
    return _in_producer_command(command) or first_invalid(
        ("producer_mode", command.mode in (DENSE, SPARSE)),
        ("producer_session", is_name(command.session, SESSION_BYTES_MAX)),
        ("expires", is_idle_time(command.expires_ms)),
    )


def _in_create(command: Create) -> str | None:
    expires_at_ms, fork = command.expires_at_ms, command.fork
    return _in_path(command) or first_invalid(
        ("incarnation", is_name(command.incarnation, INCARNATION_BYTES_MAX)),
        ("content_type", is_optional_name(command.content_type, MEDIA_TYPE_BYTES_MAX)),
        ("ttl", is_optional_number(command.ttl_ms)),
        ("expires_at", expires_at_ms is None or abs(expires_at_ms) <= NUMBER_MAX),
        ("batch", command.batch is None or is_batch(command.batch)),
        ("fork", fork is None or _is_fork(fork)),
    )


def _is_fork(fork: ForkRequest) -> bool:
    return is_number(fork.sub_offset) and is_optional_number(fork.offset)


def _in_append_topic(command: AppendTopic) -> str | None:
    batch, transaction = command.batch, command.transaction
    is_counted = command.partitions or command.partitioner
    is_placed = command.partition or command.hint or is_counted or command.parts
    is_plain = command.producer is None and command.key is None and transaction is None
    # The most frequent command. The whole check would look at nothing but the name.
    if batch is not None and batch.count == 1 and is_plain and not (batch.lengths or is_placed):
        return None if is_name(command.path, TOPIC_PATH_BYTES_MAX) else "topic"
    batches = [each for _, each in command.parts] + ([] if batch is None else [batch])
    partitions = [partition for partition, _ in command.parts]
    is_grouped, count = bool(command.parts), sum(batch.count for batch in batches)
    numbers = (command.partition or 0, command.hint or 0, command.partitions or 0, *partitions)
    field = first_invalid(
        ("topic", is_name(command.path, TOPIC_PATH_BYTES_MAX)),
        ("batch", all(map(is_batch, batches)) and (batch is None or not is_grouped)),
        ("batch", bool(batches) or command.body_error is not None),
        ("parts", partitions == sorted(set(partitions)) and count <= BATCH_MESSAGES_MAX),
        ("partitions", not is_grouped or command.partitions is not None),
        ("partition", all(map(is_number, numbers))),
    )
    if field is not None:
        return field
    if command.partitioner is not None and command.partitioner not in HASHES:
        return "partitioner"
    append = Append("-", command.now_ms, producer=command.producer, key=command.key)
    return _in_append(append) or (None if transaction is None else _in_txn_tag(transaction))


# ---- all commands --------------------------------------------------------------------------------


_CHECKS: Final[Mapping[type, Callable[[Any], str | None]]] = {
    Append: _in_append,
    Create: _in_create,
    Delete: _in_path,
    Trim: _in_trim,
    SwitchDedup: _in_path,
    SetPolicy: invalid_policy_field,
    DeletePolicy: invalid_policy_field,
    Expire: _in_path,
    Register: _in_register,
    ClaimProducer: _in_claim,
    ForgetProducer: _in_producer_command,
    ExpireProducer: _in_producer_command,
    RetireProducers: invalid_retire_field,
    ExpireRegistration: invalid_registration_field,
    DropTombstones: lambda _command: None,
    CountHour: lambda _command: None,
    Begin: _in_begin,
    AddStreams: _in_streams,
    AddPositions: _in_added_positions,
    Prepare: _in_call,
    CommitTxn: lambda command: _in_call(command) or invalid_wake_acks(command.wakes),
    AbortTxn: _in_call,
    FenceTxn: _in_call,
    ExpireTxn: _in_txn,
    Commit: _in_commit,
    SetPositions: _in_set,
    PinSnapshot: _in_pin,
    RebindSink: invalid_sink_field,
    ForgetSink: invalid_sink_field,
    CreateToken: invalid_token_field,
    RevokeToken: lambda command: None if is_name(command.id, TOKEN_ID_BYTES) else "id",
    NoteTokenUses: lambda _command: None,
    ChangeOwner: invalid_owner_field,
    CreateTopic: invalid_create_topic_field,
    GrowTopic: invalid_partitions_field,
    CloseTopic: invalid_topic_field,
    DeleteTopic: invalid_topic_field,
    AppendTopic: _in_append_topic,
    JoinGroup: invalid_join_field,
    ReleaseStreams: invalid_release_field,
    LeaveGroup: invalid_member_field,
    ExpireMember: invalid_member_field,
    TakeStream: invalid_take_field,
    RebalanceGroup: invalid_group_field,
    DeleteGroup: invalid_group_field,
    **dict.fromkeys(get_args(SubscriptionCommand), invalid_subscription_field),
}


def find_invalid_field(command: EngineCommand) -> str | None:
    """Return the name of the first invalid field of a command, or None if all are valid."""
    return "now" if command.now_ms > NUMBER_MAX else _CHECKS[type(command)](command)
