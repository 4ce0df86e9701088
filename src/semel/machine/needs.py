"""The needs of each command: the rights on things, and the things that must be the caller's.

The letters and numbers in comments are the rules in `docs/reference/access.md`.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from msgspec.structs import replace

from semel.machine.need_checks import Check, Checks, Rule, listed_stream, matched_streams
from semel.machine.state import State, find_producer
from semel.machine.subscription_needs import SUBSCRIPTION_RULES, acks_of
from semel.machine.tokens import owned_key
from semel.model.access_commands import ChangeOwner
from semel.model.commands import (
    AbortTxn,
    AddPositions,
    AddStreams,
    Append,
    Begin,
    ClaimProducer,
    Commit,
    CommitTxn,
    Create,
    Delete,
    EngineCommand,
    FenceTxn,
    ForgetProducer,
    Owner,
    PinSnapshot,
    PositionMove,
    Prepare,
    ProducerOwner,
    Register,
    SetPositions,
    SwitchDedup,
    Trim,
    TxnCall,
)
from semel.model.group_commands import DeleteGroup, JoinGroup, LeaveGroup, ReleaseStreams
from semel.model.outcomes import (
    NotFound,
    Refusal,
    UnknownPolicy,
)
from semel.model.outcomes_access import Forbidden, ReservedPath, UnknownThing
from semel.model.outcomes_groups import UnknownGroup
from semel.model.outcomes_topics import TopicNotFound
from semel.model.outcomes_txn import StreamRefused, UnknownSink, UnknownTransaction
from semel.model.policies import DeletePolicy, SetPolicy
from semel.model.producer_commands import RetireProducers
from semel.model.rights import (
    ADMIN,
    CLUSTER,
    CREATE,
    DELETE,
    DESCRIBE,
    GROUP,
    IDEMPOTENT,
    POLICY,
    PRODUCER,
    READ,
    RESERVED,
    SINK,
    STREAM,
    TOPIC,
    TRANSACTION,
    TRANSACTIONAL,
    WRITE,
    Caller,
    group_of,
    writes_as_group,
    writes_somewhere,
)
from semel.model.sink_commands import ForgetSink, RebindSink
from semel.model.topic_commands import (
    AppendTopic,
    CloseTopic,
    CreateTopic,
    DeleteTopic,
    GrowTopic,
    OnTopic,
)

# ---- the needs of each command -------------------------------------------------------------------


def _stream(path: str, right: str) -> Check:
    return Check(STREAM, path, right, NotFound())


def _stream_or_topic(state: State, path: str, right: str) -> Check:
    stream = state.by_path.get(path)
    is_topic = stream is not None and stream.topic is not None
    return Check(TOPIC if is_topic else STREAM, path, right, NotFound())


def _ends_producer(state: State, path: str, producer_id: str) -> Checks:
    stream = state.by_path.get(path)
    if stream is not None:
        key = (PRODUCER, stream.row.number, producer_id)
        yield Check(PRODUCER, producer_id, ADMIN, key=key, path=path, is_use=False)


def _uses_producer(
    state: State, path: str, producer_id: str, appender: Caller | None = None
) -> Checks:
    """Yield the checks of a use of a producer in a stream.

    It can raise the registered epoch, so the registration must be the caller's, too (O4). This is
    not checked for an append by the owner of the producer, as in `is_settled`.
    """
    stream = state.by_path.get(path)
    if stream is None:
        return
    key = (PRODUCER, stream.row.number, producer_id)
    yield Check(PRODUCER, producer_id, ADMIN, key=key, path=path)
    if appender is None or state.owners.get(key) != appender.principal:
        registered = (PRODUCER, 0, producer_id)
        yield Check(PRODUCER, producer_id, ADMIN, key=registered, is_taken=False)


def _registration(producer_id: str, *, is_use: bool = True) -> Check:
    key = (PRODUCER, 0, producer_id)
    return Check(PRODUCER, producer_id, ADMIN, key=key, is_use=is_use)


def _registers(state: State, producer_id: str, caller: Caller) -> Checks:
    """Yield the checks of a command that registers a producer id, if it is not registered yet.

    A registration can fence the producers with this id in all streams. So the first one needs that
    they are the caller's, too (O4). All streams are searched, as `decide_register` does.
    """
    yield _registration(producer_id)
    if producer_id not in state.registry:
        if caller.is_strict:
            yield Check(PRODUCER, producer_id, WRITE)  # R4
        for number, stream in state.by_number.items():
            if find_producer(stream, producer_id) is not None:
                yield Check(PRODUCER, producer_id, ADMIN, key=(PRODUCER, number, producer_id))


def _transaction(txn_id: str) -> Check:
    return Check(TRANSACTION, txn_id, ADMIN, UnknownTransaction(), key=(TRANSACTION, 0, txn_id))


def _transaction_of(state: State, txn_id: str) -> Checks:
    """Yield the checks of a call of a transaction."""
    yield _transaction(txn_id)
    yield from _streams_of(state, txn_id, UnknownTransaction())


def _streams_of(state: State, txn_id: str, hidden: Refusal) -> Checks:
    """Yield the checks of a use of a pending transaction without an owner.

    The caller needs the rights with which it could have begun the transaction (O9).
    """
    txn = state.transactions.get(txn_id)
    if txn is not None and (TRANSACTION, 0, txn_id) not in state.owners:
        for number in sorted(txn.streams):
            path = state.by_number[number].row.path
            yield replace(_stream_or_topic(state, path, WRITE), hidden=hidden)


def _sink(app: str) -> Check:
    return Check(SINK, app, ADMIN, UnknownSink(), key=(SINK, 0, app), is_use=False)


def _uses_sink(state: State, app: str, caller: Caller) -> Checks:
    """Yield the checks of a command for a sink.

    Before its first commit a sink has no row, but its transactions have owners: then one of these
    must be the caller's (O10). Usually all have the same owner, and the first one is enough.
    """
    yield Check(SINK, app, ADMIN, key=(SINK, 0, app))
    numbers = state.owned.get((False, app))
    if numbers and app not in state.sinks:
        ids = (state.by_txn[number].row.id for number in numbers)
        owners = (state.owners.get((TRANSACTION, 0, txn_id)) for txn_id in ids)
        allowed = (caller.principal, caller.principal if caller.denies_unowned else None)
        if not any(owner in allowed for owner in owners):
            yield Check(SINK, app, ADMIN)


def _idempotent(caller: Caller, right: str = IDEMPOTENT) -> Checks:
    """Yield the check of a right on the cluster, unless the caller has it by rule R3."""
    if caller.is_strict or not (caller.is_admin or writes_somewhere(caller.scopes)):
        yield Check(CLUSTER, "", right)


def _is_worker(caller: Caller) -> bool:
    """Return whether rule R3 spares a caller the right on the cluster for what a worker does.

    A worker rejects and replays messages, and commits positions of its group, with a producer id
    that the server chooses.
    """
    return not caller.is_strict and writes_as_group(caller.scopes)


def _append(state: State, command: Append, caller: Caller) -> Checks:
    yield _stream(command.path, WRITE)
    if command.transaction is not None:
        yield from _idempotent(caller)
        yield from _transaction_of(state, command.transaction.id)
    if command.producer is not None:
        yield from _idempotent(caller)
        yield from _uses_producer(state, command.path, command.producer.id, caller)


def _create(_state: State, command: Create, _caller: Caller) -> Checks:
    yield Check(STREAM, command.path, CREATE)
    if command.batch is not None:
        yield Check(STREAM, command.path, WRITE)
    if command.fork is not None:
        yield _stream(command.fork.source, READ)


def _register(state: State, command: Register, caller: Caller) -> Checks:
    if command.producer_id is not None or not _is_worker(caller):
        yield from _idempotent(caller)
    if command.producer_id is not None:
        if caller.is_strict:
            yield Check(PRODUCER, command.producer_id, WRITE)  # R4
        yield from _registers(state, command.producer_id, caller)


def _claim(state: State, command: ClaimProducer, caller: Caller) -> Checks:
    yield _stream_or_topic(state, command.path, WRITE)
    yield from _idempotent(caller)
    yield from _uses_producer(state, command.path, command.producer_id)


def _retire(state: State, command: RetireProducers, _caller: Caller) -> Checks:
    for item in command.producers:
        if item.path is None:
            yield _registration(item.id, is_use=False)
        else:
            yield _stream_or_topic(state, item.path, DESCRIBE)
            yield from _ends_producer(state, item.path, item.id)


def _forget(state: State, command: ForgetProducer, _caller: Caller) -> Checks:
    yield _stream_or_topic(state, command.path, DESCRIBE)
    yield from _ends_producer(state, command.path, command.producer_id)


def _owner(state: State, owner: Owner, caller: Caller) -> Checks:
    if isinstance(owner, ProducerOwner):
        yield from _registers(state, owner.id, caller)
    else:
        yield from _uses_sink(state, owner.app, caller)


def _begin(state: State, command: Begin, caller: Caller) -> Checks:
    yield from _idempotent(caller)
    for path in command.streams:
        yield _written(state, path)
    yield Check(TRANSACTION, command.id, ADMIN, key=(TRANSACTION, 0, command.id))
    yield from _streams_of(state, command.id, Forbidden(ADMIN, TRANSACTION, command.id))
    yield from _owner(state, command.owner, caller)


def _call(state: State, command: TxnCall, caller: Caller) -> Checks:
    if command.by_operator:
        yield Check(TRANSACTION, command.id, ADMIN, UnknownTransaction())
        return
    yield from _idempotent(caller)
    yield from _transaction_of(state, command.id)
    if isinstance(command, FenceTxn):
        key = (TRANSACTION, 0, command.id)
        yield Check(TRANSACTION, command.id, ADMIN, UnknownTransaction(), key, is_use=False)


def _prepare(state: State, command: Prepare, caller: Caller) -> Checks:
    yield from _call(state, command, caller)
    yield from _idempotent(caller, TRANSACTIONAL)


def _add_streams(state: State, command: AddStreams, caller: Caller) -> Checks:
    yield from _call(state, command, caller)
    for path in command.streams:
        yield _written(state, path)


def _moves(positions: Iterable[PositionMove]) -> Checks:
    for move in positions:
        yield listed_stream(move.path, READ)
        yield Check(GROUP, move.group, WRITE)


def _add_positions(state: State, command: AddPositions, caller: Caller) -> Checks:
    yield from _call(state, command, caller)
    yield from _moves(command.positions)


def _commit(state: State, command: Commit, caller: Caller) -> Checks:
    is_alone = command.sink is None and not command.transactions
    if not (is_alone and _is_worker(caller)):
        yield from _idempotent(caller)
    for append in command.appends:
        yield _written(state, append.path)
    yield from _moves(command.positions)
    for path, _ in command.expects:
        yield listed_stream(path, DESCRIBE)
    if command.producer_id is not None:
        yield from _registers(state, command.producer_id, caller)
    if command.sink is not None:
        yield from _uses_sink(state, command.sink.app, caller)
    for listed in command.transactions:
        yield from _transaction_of(state, listed.id)
    yield from acks_of(command.wakes)


def _commit_txn(state: State, command: CommitTxn, caller: Caller) -> Checks:
    yield from _call(state, command, caller)
    yield from acks_of(command.wakes)


def _pin(_state: State, command: PinSnapshot, _caller: Caller) -> Checks:
    yield Check(GROUP, command.group, WRITE)
    for pinned in command.ranges:
        yield listed_stream(pinned.path, READ)


def _append_topic(state: State, command: AppendTopic, caller: Caller) -> Checks:
    yield Check(TOPIC, command.path, WRITE, TopicNotFound())
    if command.transaction is not None:
        yield from _idempotent(caller)
        yield from _transaction_of(state, command.transaction.id)
    if command.producer is not None:
        yield from _idempotent(caller)
        yield from _uses_producer(state, command.path, command.producer.id, caller)


def _topic(right: str) -> Rule:
    return lambda _state, command, _caller: [Check(TOPIC, command.path, right, TopicNotFound())]


def _written(state: State, path: str) -> Check:
    """Return the check of a write to a stream or a topic that a command lists."""
    return replace(_stream_or_topic(state, path, WRITE), hidden=StreamRefused(path, NotFound()))


def _join(_state: State, command: JoinGroup, _caller: Caller) -> Checks:
    yield Check(GROUP, command.group, WRITE)
    for path in command.streams:
        yield listed_stream(path, READ)
    for path in command.topics:
        hidden = StreamRefused(path, TopicNotFound())
        yield Check(STREAM, f"{path}/", READ, hidden, is_prefix=True)
    for pattern in command.patterns:
        yield from matched_streams(pattern)


def _set_positions(_state: State, command: SetPositions, _caller: Caller) -> Checks:
    yield from _moves(command.positions)
    if command.by_operator:
        for move in command.positions:
            yield Check(GROUP, move.group, ADMIN)


def _change_owner(state: State, command: ChangeOwner, _caller: Caller) -> Checks:
    key = owned_key(state, command)
    path, hidden = command.path or "", None
    if path:
        yield _stream_or_topic(state, path, DESCRIBE)  # it includes the right to see the producers
    else:
        hidden = UnknownThing()
    yield Check(command.kind, command.name, ADMIN, hidden, key, path, is_use=False)


RULES: Final[Mapping[type, Rule]] = {
    Append: _append,
    Create: _create,
    Delete: lambda _state, command, _caller: [_stream(command.path, DELETE)],
    Trim: lambda _state, command, _caller: [_stream(command.path, DELETE)],
    SwitchDedup: lambda state, command, _caller: [_stream_or_topic(state, command.path, ADMIN)],
    Register: _register,
    ClaimProducer: _claim,
    RetireProducers: _retire,
    ForgetProducer: _forget,
    Begin: _begin,
    AddStreams: _add_streams,
    AddPositions: _add_positions,
    Prepare: _prepare,
    CommitTxn: _commit_txn,
    AbortTxn: _call,
    FenceTxn: _call,
    Commit: _commit,
    SetPositions: _set_positions,
    PinSnapshot: _pin,
    RebindSink: lambda _state, command, _caller: [_sink(command.app)],
    ForgetSink: lambda _state, command, _caller: [_sink(command.app)],
    SetPolicy: lambda _state, command, _caller: [Check(POLICY, command.prefix, WRITE)],
    DeletePolicy: lambda _state, command, _caller: [
        Check(POLICY, command.prefix, DELETE, UnknownPolicy())
    ],
    ChangeOwner: _change_owner,
    CreateTopic: lambda _state, command, _caller: [Check(TOPIC, command.path, CREATE)],
    GrowTopic: _topic(ADMIN),
    CloseTopic: _topic(DELETE),
    DeleteTopic: _topic(DELETE),
    AppendTopic: _append_topic,
    JoinGroup: _join,
    ReleaseStreams: lambda _state, command, _caller: [Check(GROUP, command.group, WRITE)],
    LeaveGroup: lambda _state, command, _caller: [Check(GROUP, command.group, WRITE)],
    DeleteGroup: lambda _state, command, _caller: [
        Check(GROUP, command.group, DELETE, UnknownGroup())
    ],
    **SUBSCRIPTION_RULES,
}


# ---- reserved paths ------------------------------------------------------------------------------


def refuse_reserved(command: EngineCommand) -> Refusal | None:
    """Refuse a client's command that changes a stream below `__semel/`, or writes to one."""
    is_reserved = any(
        path.startswith(RESERVED) and group_of(path) is None for path in _written_paths(command)
    )
    return ReservedPath() if is_reserved else None


def _written_paths(command: EngineCommand) -> Iterable[str]:
    if isinstance(command, Append | Create | Delete | Trim | SwitchDedup | ClaimProducer):
        return (command.path,)
    if isinstance(command, OnTopic):
        return (command.path,)
    if isinstance(command, Begin | AddStreams):
        return command.streams
    if isinstance(command, Commit):
        return (append.path for append in command.appends)
    if isinstance(command, SetPolicy | DeletePolicy):
        return (f"{command.prefix}/",)  # also the prefix `__semel`
    return ()
