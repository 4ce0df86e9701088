"""Validation of commands: names, numbers and batches must be within their limits.

This is the last check before a command is decided. A valid command can be stored, indexed and read
back. An invalid command could stop the engine. The HTTP layer refuses malformed requests earlier.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

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
    ForgetSink,
    ForkRequest,
    Metadata,
    Owner,
    PinSnapshot,
    PositionMove,
    Prepare,
    ProducerOwner,
    ProducerTag,
    RebindSink,
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
    NUMBER_MAX,
    PATH_BYTES_MAX,
    POLICY_PREFIX_BYTES_MAX,
    POSITION_METADATA_BYTES_MAX,
    PRODUCER_ID_BYTES_MAX,
    RETIRE_LIST_MAX,
    SESSION_BYTES_MAX,
    STREAM_SEQ_BYTES_MAX,
    TXN_ID_BYTES_MAX,
    TXN_LIST_MAX,
    TXN_TIMEOUT_MS_MAX,
)
from semel.model.names import is_name, is_number
from semel.model.policies import DeletePolicy, PolicyCommand, SetPolicy
from semel.model.producer_commands import (
    CountHour,
    DropTombstones,
    ExpireRegistration,
    RetiredProducer,
    RetireProducers,
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


def _first_invalid(*checks: tuple[str, bool]) -> str | None:
    """Return the name of the first field that is not valid, or None if all are valid.

    Each check is a pair of a field's name and a bool. The bool is True if the field is valid.
    """
    return next((field for field, is_valid in checks if not is_valid), None)


def _is_optional_name(text: str | None, bytes_max: int) -> bool:
    return text is None or is_name(text, bytes_max)


def _is_optional_number(number: int | None) -> bool:
    return number is None or is_number(number)


# ---- transactions, groups and sinks --------------------------------------------------------------


def _in_txn(named: TxnTag | TxnCall | ExpireTxn) -> str | None:
    if not is_name(named.id, TXN_ID_BYTES_MAX):
        return "transaction_id"
    return None if is_number(named.epoch) else "transaction_epoch"


def _in_txn_tag(tag: TxnTag) -> str | None:
    return _in_txn(tag) or (None if _is_optional_number(tag.seq) else "transaction_seq")


def _in_begin(command: Begin) -> str | None:
    is_produced = isinstance(command.owner, ProducerOwner)
    timeout_ms = command.timeout_ms
    is_timeout = timeout_ms is None or (is_produced and 0 < timeout_ms <= TXN_TIMEOUT_MS_MAX)
    field = _first_invalid(
        ("transaction_id", is_name(command.id, TXN_ID_BYTES_MAX)),
        ("kind", command.kind in (TXN_INLINE, TXN_STAGED)),
        ("timeout_ms", is_timeout),
    )
    return field or _in_owner(command.owner) or _in_paths(command.streams)


def _in_owner(owner: Owner) -> str | None:
    if isinstance(owner, ProducerOwner):
        return _in_producer(owner.id, owner.epoch)
    is_valid = is_name(owner.app, TXN_ID_BYTES_MAX)
    return None if is_valid and is_number(owner.version) and is_number(owner.partition) else "sink"


def _in_producer(producer_id: str | None, epoch: int | None) -> str | None:
    if not _is_optional_name(producer_id, PRODUCER_ID_BYTES_MAX):
        return "producer_id"
    return None if _is_optional_number(epoch) else "producer_epoch"


def _in_paths(paths: Iterable[str]) -> str | None:
    return None if all(is_name(path, PATH_BYTES_MAX) for path in paths) else "path"


def _in_call(command: TxnCall) -> str | None:
    return _in_txn(command) or _in_producer(command.producer_id, command.producer_epoch)


def _in_streams(command: AddStreams) -> str | None:
    return _in_call(command) or _in_paths(command.streams)


def _in_added_positions(command: AddPositions) -> str | None:
    return _in_call(command) or _in_positions(command.positions)


def _in_positions(positions: tuple[PositionMove, ...]) -> str | None:
    return next(filter(None, map(_in_position, positions)), None)


def _in_position(position: PositionMove) -> str | None:
    numbers = (position.to, position.expected or 0, position.version or 0)
    return _first_invalid(
        ("group", is_name(position.group, GROUP_NAME_BYTES_MAX)),
        ("path", is_name(position.path, PATH_BYTES_MAX)),
        ("positions", all(map(is_number, numbers))),
        ("incarnation", is_name(position.incarnation or "-", INCARNATION_BYTES_MAX)),
        ("metadata", not position.metadata or is_metadata(position.metadata)),
    )


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
    lists = (command.appends, command.transactions, command.positions, command.expects)
    is_empty = not any(lists) and command.sink is None
    if is_empty or max(map(len, lists)) > TXN_LIST_MAX:
        return "commit"
    return (
        _in_committer(command)
        or next(filter(None, map(_in_commit_append, command.appends)), None)
        or _in_listed(command)
        or _in_moves(command.positions)
        or _in_expects(command)
    )


def _in_committer(command: Commit) -> str | None:
    if command.sink is not None:
        return "sink" if command.producer_id is not None else _in_sink(command.sink)
    if None in (command.producer_id, command.producer_epoch, command.producer_seq):
        return "producer"
    if not _is_optional_number(command.producer_seq):
        return "producer_seq"
    return _in_producer(command.producer_id, command.producer_epoch)


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
    return _first_invalid(
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
    return _first_invalid(
        ("group", is_name(command.group, GROUP_NAME_BYTES_MAX)),
        ("number", is_number(command.number)),
        ("hash", is_name(command.hash, DIGEST_BYTES_MAX)),
        ("ranges", is_sized and all(map(_is_range, command.ranges))),
    )


def _is_range(span: SnapshotRange) -> bool:
    names = is_name(span.path, PATH_BYTES_MAX) and is_name(span.incarnation, INCARNATION_BYTES_MAX)
    return names and 0 <= span.start <= span.end <= NUMBER_MAX


def _in_rebind(command: RebindSink) -> str | None:
    # `last_version` can be -1. Then the next version is 0.
    return _in_sink(SinkTag(command.app, command.query_id, command.last_version + 1))


def _in_forget(command: ForgetSink) -> str | None:
    return None if is_name(command.app, TXN_ID_BYTES_MAX) else "sink"


# ---- streams and producers -----------------------------------------------------------------------


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
    field = _in_producer(command.producer_id, command.first_epoch)
    return field or (None if is_idle_time(command.expires_ms) else "expires")


def _in_retire(command: RetireProducers) -> str | None:
    if not 0 < len(command.producers) <= RETIRE_LIST_MAX:
        return "producers"
    return next(filter(None, map(_in_retired, command.producers)), None)


def _in_retired(item: RetiredProducer) -> str | None:
    has_identity = item.epoch is not None or (item.path is not None and item.session is not None)
    return _in_producer(item.id, item.epoch) or _first_invalid(
        ("path", _is_optional_name(item.path, PATH_BYTES_MAX)),
        ("session", _is_optional_name(item.session, SESSION_BYTES_MAX)),
        ("producer_epoch", has_identity),
    )


def _in_registration(command: ExpireRegistration) -> str | None:
    return _in_producer(command.id, None)


def _in_producer_command(command: ClaimProducer | ForgetProducer | ExpireProducer) -> str | None:
    return _in_path(command) or _in_producer(command.producer_id, None)


def _in_claim(command: ClaimProducer) -> str | None:
    return _in_producer_command(command) or _first_invalid(
        ("producer_mode", command.mode in (DENSE, SPARSE)),
        ("producer_session", is_name(command.session, SESSION_BYTES_MAX)),
        ("expires", is_idle_time(command.expires_ms)),
    )


def _in_create(command: Create) -> str | None:
    expires_at_ms, fork = command.expires_at_ms, command.fork
    return _in_path(command) or _first_invalid(
        ("incarnation", is_name(command.incarnation, INCARNATION_BYTES_MAX)),
        ("content_type", _is_optional_name(command.content_type, MEDIA_TYPE_BYTES_MAX)),
        ("ttl", _is_optional_number(command.ttl_ms)),
        ("expires_at", expires_at_ms is None or abs(expires_at_ms) <= NUMBER_MAX),
        ("batch", command.batch is None or is_batch(command.batch)),
        ("fork", fork is None or _is_fork(fork)),
    )


def _is_fork(fork: ForkRequest) -> bool:
    return is_number(fork.sub_offset) and _is_optional_number(fork.offset)


def is_batch_consistent(batch: Batch, *, is_joined: bool) -> bool:
    """Return True if the lengths of the messages add up to the length of the payload.

    The caller must not pass a batch of one message, because its `lengths` is empty. If `is_joined`
    is True, as it is in a JSON stream, the commas between the messages are counted too.
    """
    commas = batch.count - 1 if is_joined else 0
    return sum(memoryview(batch.lengths).cast("I")) + commas == len(batch.payload)


def _in_policy(command: PolicyCommand) -> str | None:
    if command.prefix and not is_name(command.prefix, POLICY_PREFIX_BYTES_MAX):
        return "prefix"
    return "dedup" if isinstance(command, SetPolicy) and command.dedup is None else None


# ---- all commands --------------------------------------------------------------------------------


_CHECKS: Final[Mapping[type, Callable[[Any], str | None]]] = {
    Append: _in_append,
    Create: _in_create,
    Delete: _in_path,
    Trim: _in_trim,
    SwitchDedup: _in_path,
    SetPolicy: _in_policy,
    DeletePolicy: _in_policy,
    Expire: _in_path,
    Register: _in_register,
    ClaimProducer: _in_claim,
    ForgetProducer: _in_producer_command,
    ExpireProducer: _in_producer_command,
    RetireProducers: _in_retire,
    ExpireRegistration: _in_registration,
    DropTombstones: lambda _command: None,
    CountHour: lambda _command: None,
    Begin: _in_begin,
    AddStreams: _in_streams,
    AddPositions: _in_added_positions,
    Prepare: _in_call,
    CommitTxn: _in_call,
    AbortTxn: _in_call,
    FenceTxn: _in_call,
    ExpireTxn: _in_txn,
    Commit: _in_commit,
    SetPositions: _in_set,
    PinSnapshot: _in_pin,
    RebindSink: _in_rebind,
    ForgetSink: _in_forget,
    CreateToken: invalid_token_field,
    RevokeToken: lambda command: None if is_name(command.id, TOKEN_ID_BYTES) else "id",
    NoteTokenUses: lambda _command: None,
    ChangeOwner: invalid_owner_field,
}


def find_invalid_field(command: EngineCommand) -> str | None:
    """Return the name of the first invalid field of a command, or None if all are valid."""
    return "now" if command.now_ms > NUMBER_MAX else _CHECKS[type(command)](command)
