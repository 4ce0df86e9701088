"""Decisions on one-shot commits and on sinks.

A one-shot commit contains appends, position moves, and staged transactions. Either all of them are
applied, or none of them.

Each check has a comment with the name of its row in `docs/reference/transactions.md`.
"""

from collections.abc import Iterator

from semel.machine.checks import check_body, closed
from semel.machine.events import (
    CommitStamp,
    Decided,
    DecidedWithAcks,
    DecidedWithMetadata,
    Decision,
    SinkForgotten,
    SinkRebound,
    SinkStamp,
)
from semel.machine.positions import metadata_of, refuse_commit_moves, refuse_guards
from semel.machine.rows import OwnerKey, RegistryRow, SinkRow, VersionRow
from semel.machine.state import State, Stream, Txn
from semel.machine.streams import find_by_path
from semel.machine.subscription_events import Acked
from semel.machine.subscriptions import find_commit_acks
from semel.machine.topic_append import route
from semel.machine.txn.begin import refuse_producer, refuse_registry_room
from semel.machine.txn.decide_end import already_aborted, chunks_of, incomplete, refuse_closed
from semel.machine.txn.draft import EXTENT_BYTES, Draft, is_raised, result_of_commit, unpack_result
from semel.machine.txn.lookup import ended_refusal, find_txn, refuse_owner
from semel.model.commands import (
    ABORTED,
    BY_COMMIT,
    TXN_STAGED,
    Batch,
    Commit,
    CommitAppend,
    ListedTxn,
    ProducerOwner,
    SinkOwner,
    SinkTag,
    TxnOutcome,
)
from semel.model.limits import SINKS_MAX
from semel.model.messages import is_json, same_media_type
from semel.model.outcomes import (
    BatchTooLarge,
    ContentTypeConflict,
    EpochMustStartAtZero,
    InvalidRequest,
    LimitReached,
    Outcome,
    PreconditionFailed,
    Refusal,
    SequenceGap,
)
from semel.model.outcomes_txn import (
    AppBound,
    BranchMissing,
    CheckpointDiverged,
    CommitDone,
    IncarnationConflict,
    InvalidTxnState,
    NotOwner,
    SinkChanged,
    StreamRefused,
    UnknownSink,
    VersionForgotten,
)
from semel.model.sink_commands import ForgetSink, RebindSink


def decide_commit(state: State, command: Commit) -> Decision:
    """Decide a one-shot commit. All its parts are applied, or none is."""
    sink = command.sink
    early = _check_producer(state, command) if sink is None else check_version(state, sink)
    if early is not None:
        return Decision(early)
    listed = _find_all_listed(state, command)
    if not isinstance(listed, list):
        return Decision(listed)
    streams = _find_streams(state, command)
    if not isinstance(streams, dict):
        return Decision(streams)  # 6
    refusal = (
        _refuse_expects(command, streams)
        or _refuse_bodies(state, command, streams, listed)
        or _refuse_chunks(state, listed)
    )
    if refusal is not None:
        return Decision(refusal)
    draft = Draft(state)
    for append in command.appends:
        assert append.batch is not None
        for stream, batch in _route(state, streams[append.path], append.batch):
            draft.append(stream, batch)
    for txn in listed:
        draft.place_chunks(txn)
    refusal = _refuse_positions(state, command, draft, streams, listed)
    if refusal is not None:
        return Decision(refusal)
    wakes = find_commit_acks(state, command.wakes)  # 9d
    if isinstance(wakes, Refusal):
        return Decision(wakes)
    return _accept(state, command, draft, streams, listed=listed, wakes=wakes)


# ---- the producer of a commit --------------------------------------------------------------------


def _check_producer(state: State, command: Commit) -> Outcome | None:
    producer_id, epoch, seq = command.producer_id, command.producer_epoch, command.producer_seq
    assert producer_id is not None
    assert epoch is not None
    assert seq is not None
    refusal = refuse_producer(state, producer_id, epoch)
    if refusal is not None:
        return refusal  # 2
    registered = state.registry.get(producer_id)
    if registered is None or epoch > registered.epoch:
        if seq != 0:
            return EpochMustStartAtZero(seq)  # 4
        return refuse_registry_room(state, producer_id)
    last = registered.commit_seq
    if seq > last:
        return SequenceGap(last + 1, seq) if seq > last + 1 else None  # 4
    return _repeat(registered, last - seq, command.digest)  # 3


def _repeat(registered: RegistryRow, age: int, digest: int) -> Outcome:
    """Return the outcome of a repeated one-shot commit.

    `age` is the number of commits that the producer made after the original commit.
    """
    results, digests = registered.results, registered.digests
    result = unpack_result(results[-1 - age]) if age < len(results) else None
    is_mismatch = age < len(digests) and digests[-1 - age] != digest
    return CommitDone(None, None, result, is_duplicate=True, is_mismatch=is_mismatch)


# ---- the content of a commit ---------------------------------------------------------------------


def _find_all_listed(state: State, command: Commit) -> list[Txn] | Outcome:
    listed: list[Txn] = []
    names: set[str] = set()
    for named in command.transactions:
        if named.id in names:
            return InvalidRequest("transactions")  # 5
        names.add(named.id)
        txn = _find_listed(state, command, named)
        if not isinstance(txn, Txn):
            return txn  # 5, s6
        listed.append(txn)
    return listed


def _find_listed(state: State, command: Commit, named: ListedTxn) -> Txn | Outcome:
    txn = find_txn(state, named)
    if command.sink is not None:
        return _find_staged(state, txn, command.sink, named)
    if isinstance(txn, TxnOutcome):
        return already_aborted(txn) if txn.decision == ABORTED else ended_refusal(txn)
    if not isinstance(txn, Txn):
        return txn
    if txn.row.kind != TXN_STAGED:
        return InvalidTxnState(txn.row.kind)
    return refuse_owner(txn, command.producer_id, command.producer_epoch) or txn


def _find_staged(
    state: State, txn: Txn | TxnOutcome | Outcome, sink: SinkTag, named: ListedTxn
) -> Txn | Outcome:
    """Return `txn` if it is prepared and the sink can commit it, otherwise a refusal."""
    if not isinstance(txn, Txn):
        return BranchMissing(named.id)  # s6
    owner = txn.row.owner
    if not isinstance(owner, SinkOwner) or owner.app != sink.app or owner.version > sink.version:
        return NotOwner()
    if not txn.row.is_prepared:
        return incomplete(txn)  # s6
    return _refuse_deleted(state, txn) or txn


def _refuse_deleted(state: State, txn: Txn) -> Outcome | None:
    """Return a refusal if a stream of the transaction was deleted or has expired, otherwise None.

    A commit would lose the transaction's chunks for that stream.
    """
    if not txn.row.deleted:
        return None
    path = min(txn.row.deleted)
    streams = find_by_path(state, (path,), finds_topics=True)
    if not isinstance(streams, dict):
        return streams  # s6
    return IncarnationConflict(path, streams[path].row.incarnation)  # s6


def paths_of(command: Commit) -> list[str]:
    """Return the paths in the appends, position moves and expected tails of a one-shot commit.

    The paths of its listed transactions are not included.
    """
    return [
        *(append.path for append in command.appends),
        *(position.path for position in command.positions),
        *(path for path, _ in command.expects),
    ]


def _find_streams(state: State, command: Commit) -> dict[str, Stream] | StreamRefused:
    """Return the streams in a one-shot commit by their paths. Only appends can name topics."""
    written = find_by_path(state, (append.path for append in command.appends), finds_topics=True)
    if not isinstance(written, dict):
        return written
    others = find_by_path(state, paths_of(command)[len(command.appends) :])
    return others if not isinstance(others, dict) else written | others


def _route(state: State, stream: Stream, batch: Batch) -> Iterator[tuple[Stream, Batch]]:
    """Yield the streams to which an append goes: those of its partitions if `stream` is a topic."""
    if stream.topic is None:
        yield stream, batch
        return
    is_joined = is_json(stream.row.content_type)
    for partition, part in route(stream.topic, batch, is_joined=is_joined):
        yield state.by_number[stream.topic.partitions[partition]], part


def _refuse_expects(command: Commit, streams: dict[str, Stream]) -> Refusal | None:
    for path, expected in command.expects:
        tail = streams[path].tail.tail
        if tail != expected:
            return StreamRefused(path, PreconditionFailed(tail))  # 7
    return None


def _refuse_bodies(
    state: State, command: Commit, streams: dict[str, Stream], listed: list[Txn]
) -> Outcome | None:  # 8
    for append in command.appends:
        cause = _refuse_append(streams[append.path], append)
        if cause is not None:
            return StreamRefused(append.path, cause)
    for txn in listed:
        refusal = refuse_closed(state, txn)
        if refusal is not None:
            return refusal
    return None


def _refuse_chunks(state: State, listed: list[Txn]) -> Outcome | None:
    """Return a refusal if the listed transactions have too many chunks in total, otherwise None.

    The total has the same limit as a single transaction, to bound the size of the commit's frame.
    """
    maximum = state.limits.chunks
    is_fit = sum(map(chunks_of, listed)) <= maximum
    return None if is_fit else BatchTooLarge(maximum * EXTENT_BYTES)  # 8


def _refuse_positions(
    state: State, command: Commit, draft: Draft, streams: dict[str, Stream], listed: list[Txn]
) -> Refusal | None:
    names = [(move.group, streams[move.path].row.number) for move in command.positions]
    names += [(named.group, named.stream) for txn in listed for named in txn.row.positions]
    if len(set(names)) < len(names):
        return InvalidRequest("positions")  # 8c
    ending = _ending(state, command, listed) if names else set()
    refusal = refuse_commit_moves(
        state,
        streams,
        command.positions,
        tail_of=draft.tail_of,
        mover=_mover_of(command),
        ending=ending,
    )  # 9
    for txn in listed:
        if refusal is None and not txn.row.is_prepared:
            refusal = refuse_guards(state, txn, ending)  # 9c
    return refusal


def _mover_of(command: Commit) -> OwnerKey:
    if command.sink is not None:
        return False, command.sink.app
    assert command.producer_id is not None
    return True, command.producer_id


def _ending(state: State, command: Commit, listed: list[Txn]) -> set[int]:
    """Return the numbers of all transactions that the one-shot commit ends.

    The commit can move a position even if one of these transactions holds it.
    """
    ending = {txn.row.number for txn in listed}
    if command.sink is not None:
        return ending | {txn.row.number for txn in superseded_txns(state, command.sink, listed)}
    for number in state.owned.get(_mover_of(command), ()):
        owner = state.by_txn[number].row.owner
        if isinstance(owner, ProducerOwner) and owner.epoch < (command.producer_epoch or 0):
            ending.add(number)
    return ending


def _refuse_append(stream: Stream, append: CommitAppend) -> Refusal | None:
    expected = stream.row.content_type
    if stream.tail.is_closed:
        return closed(stream)
    media_type = append.content_type
    if media_type != expected and not (media_type and same_media_type(media_type, expected)):
        return ContentTypeConflict(expected)
    return check_body(append.batch, append.body_error, expected)


# ---- the frame -----------------------------------------------------------------------------------


def _accept(
    state: State,
    command: Commit,
    draft: Draft,
    streams: dict[str, Stream],
    *,
    listed: list[Txn],
    wakes: tuple[Acked, ...],
) -> Decision:
    for txn in listed:
        draft.end(txn, is_committed=True)
    producer, sink = None, None
    if command.sink is not None:
        tag = command.sink
        sink = SinkStamp(tag.app, tag.query_id, tag.version, tag.input)
        for txn in superseded_txns(state, tag, listed):
            draft.end(txn, is_committed=False, reason=BY_COMMIT)
    else:
        producer = _stamp_of(state, command, draft)
    moves = tuple(
        (position.group, streams[position.path].row.number, position.to)
        for position in command.positions
    )
    fields = (tuple(draft.ended), draft.extents, moves, producer, sink)
    metadata = metadata_of(command.positions)
    event = Decided(*fields)
    if wakes:
        event = DecidedWithAcks(*fields, metadata=metadata, wakes=wakes)
    elif metadata:
        event = DecidedWithMetadata(*fields, metadata=metadata)
    sections = tuple(draft.sections)
    outcome = CommitDone(None, None, result_of_commit(state, event, sections, draft.spans))
    return Decision(outcome, event, sections, grows=bool(command.appends or moves))


def _stamp_of(state: State, command: Commit, draft: Draft) -> CommitStamp:
    producer_id, epoch, seq = command.producer_id, command.producer_epoch, command.producer_seq
    assert producer_id is not None
    assert epoch is not None
    if is_raised(state.registry.get(producer_id), epoch):
        draft.fence(producer_id, epoch)
    return CommitStamp(producer_id, epoch, seq, command.digest)


# ---- sinks ---------------------------------------------------------------------------------------


def check_version(state: State, tag: SinkTag) -> Outcome | None:
    """Return the outcome of a sink's commit if it repeats an earlier commit or is refused.

    Return None if the version is new and can be committed.
    """
    sink = state.sinks.get(tag.app)
    if sink is None:
        return LimitReached("sinks", SINKS_MAX) if len(state.sinks) >= SINKS_MAX else None
    if sink.query_id != tag.query_id:
        return AppBound(sink.query_id)  # s1
    if tag.version <= sink.last_version:
        return _repeated_version(sink, tag)
    last = _version(sink, sink.last_version)
    stored = None if last is None else last.input
    is_same = tag.previous is None or stored is None or tag.previous == stored
    return None if is_same else CheckpointDiverged(sink.last_version)  # s5


def _version(sink: SinkRow, version: int) -> VersionRow | None:
    return next((row for row in reversed(sink.versions) if row.version == version), None)


def _repeated_version(sink: SinkRow, tag: SinkTag) -> Outcome:
    row = _version(sink, tag.version)
    if row is None:
        return VersionForgotten(sink.last_version)  # s2
    if tag.input is None or row.input is None:
        if tag.version < sink.last_version:
            return CheckpointDiverged(sink.last_version)  # s4
        return _again(row, is_unchecked=True)  # s4
    if tag.input != row.input:
        return CheckpointDiverged(sink.last_version)  # s3
    return _again(row, is_unchecked=False)  # s3


def _again(row: VersionRow, *, is_unchecked: bool) -> Outcome:
    result = unpack_result(row.result)
    return CommitDone(None, None, result, is_duplicate=True, is_unchecked=is_unchecked)


def superseded_txns(state: State, tag: SinkTag, listed: list[Txn]) -> list[Txn]:
    """Return the sink's transactions that a commit of `tag.version` aborts.

    The commit aborts the sink's pending transactions for this version and for older versions. The
    transactions in `listed` are not aborted.
    """
    numbers = state.owned.get((False, tag.app), set()) - {txn.row.number for txn in listed}
    txns = (state.by_txn[number] for number in sorted(numbers))
    return [
        txn
        for txn in txns
        if isinstance(txn.row.owner, SinkOwner) and txn.row.owner.version <= tag.version
    ]


def decide_rebind(state: State, command: RebindSink) -> Decision:
    """Return the decision on a command that binds a sink to a query."""
    if command.app not in state.sinks:
        return Decision(UnknownSink())
    event = SinkRebound(command.app, command.query_id, command.last_version)
    return Decision(SinkChanged(), event)


def decide_forget_sink(state: State, command: ForgetSink) -> Decision:
    """Return the decision on a command that drops a sink's row."""
    if command.app not in state.sinks:
        return Decision(UnknownSink())
    return Decision(SinkChanged(), SinkForgotten(command.app))
