"""One-shot commits, sinks, groups' positions and snapshots of the reference model."""

from typing import NamedTuple

from semel.model import commands as ask
from semel.model import outcomes as out
from semel.model import outcomes_txn as txn_out
from semel.model import sink_commands as sink_ask
from semel.model.commands import (
    ABORTED,
    BY_COMMIT,
    COMMITTED,
    TXN_INLINE,
    Batch,
    PositionResult,
    ProducerOwner,
    SinkOwner,
    StreamResult,
    TxnResult,
)
from semel.model.outcomes import Outcome
from tests.sim.reference_positions import Mover
from tests.sim.reference_routing import note_keys, route_commit
from tests.sim.reference_streams import BAD_EXTRAS, Rows, Stream, media_type, rows_of
from tests.sim.reference_txn import Note, Transactions, Txn

EXTENT_BYTES = 32  # of a chunk in the decision frame


class Version(NamedTuple):
    """A committed version of a sink."""

    number: int
    input: str | None
    result: TxnResult


class Sink(NamedTuple):
    query_id: str
    last: int
    versions: tuple[Version, ...]  # the newest last

    def kept(self, number: int) -> Version | None:
        return next((version for version in self.versions if version.number == number), None)


class Snapshot(NamedTuple):
    number: int
    ranges: tuple[ask.SnapshotRange, ...]
    hash: str


class Commits:
    """The sinks and snapshots, and the rules of one-shot commits."""

    def __init__(self, txns: Transactions) -> None:
        self.txns = txns
        self.sinks: dict[str, Sink] = {}
        self.snapshots: dict[str, Snapshot] = {}

    def copy(self, txns: Transactions) -> "Commits":
        twin = Commits(txns)
        twin.sinks, twin.snapshots = dict(self.sinks), dict(self.snapshots)
        return twin

    # ---- one-shot commits ------------------------------------------------------------------------

    def commit(self, c: ask.Commit) -> Outcome:
        is_empty = not (c.appends or c.transactions or c.positions or c.expects or c.wakes)
        if is_empty and c.sink is None:
            return out.InvalidRequest("appends")  # 1
        if len({path for path, _ in c.expects}) < len(c.expects):
            return out.InvalidRequest("expects")
        answer = self._judge_producer(c) if c.sink is None else self._judge_sink(c.sink)
        if answer is not None:
            return answer
        listed = self._find_listed(c)
        if isinstance(listed, Outcome):
            return listed
        answer = self._judge_streams(c, listed) or self._judge_positions(c, listed)
        answer = answer or self.txns.fenced(c.wakes)
        return answer or self._accept(c, listed)

    def _judge_producer(self, c: ask.Commit) -> Outcome | None:
        assert c.producer_id is not None
        assert c.producer_epoch is not None
        assert c.producer_seq is not None
        txns, seq = self.txns, c.producer_seq
        refusal = txns.identity(ProducerOwner(c.producer_id, c.producer_epoch))
        if refusal is not None:
            return refusal  # 2
        if txns.book.registry.get(c.producer_id) != c.producer_epoch:
            if seq != 0:
                return out.EpochMustStartAtZero(seq)  # 4
            return txns.no_room_in_registry(c.producer_id)  # 4b
        last = txns.commit_seqs.get(c.producer_id, -1)
        if seq <= last:
            held, brought = dict(txns.results[c.producer_id]), txns.digests[c.producer_id]
            other = seq in held and brought[seq] != c.digest
            return txn_out.CommitDone(
                None, None, held.get(seq), is_duplicate=True, is_mismatch=other
            )  # 3
        return out.SequenceGap(last + 1, seq) if seq > last + 1 else None  # 4

    def _judge_sink(self, tag: ask.SinkTag) -> Outcome | None:
        sink = self.sinks.get(tag.app)
        if sink is None:
            return None
        if sink.query_id != tag.query_id:
            return txn_out.AppBound(sink.query_id)  # s1
        diverged = txn_out.CheckpointDiverged(sink.last)
        if tag.version > sink.last:
            before = sink.kept(sink.last)
            known = None if before is None else before.input
            is_other = tag.previous is not None and known is not None and tag.previous != known
            return diverged if is_other else None  # s5
        kept = sink.kept(tag.version)
        if kept is None:
            return txn_out.VersionForgotten(sink.last)  # s2
        if tag.input is not None and kept.input is not None:
            again = txn_out.CommitDone(None, None, kept.result, is_duplicate=True)
            return again if tag.input == kept.input else diverged  # s3
        if tag.version < sink.last:
            return diverged  # s4
        return txn_out.CommitDone(None, None, kept.result, is_duplicate=True, is_unchecked=True)

    def _find_listed(self, c: ask.Commit) -> list[Txn] | Outcome:
        """Row 5, and s6."""
        found: list[Txn] = []
        for listed in c.transactions:
            if any(txn.id == listed.id for txn in found):
                return out.InvalidRequest("transactions")
            txn = self._find_one(c, listed)
            if isinstance(txn, Outcome):
                return txn
            found.append(txn)
        return found

    def _find_one(self, c: ask.Commit, listed: ask.ListedTxn) -> Txn | Outcome:
        txns = self.txns
        txn = txns.find(listed.id, listed.epoch, None)
        if not isinstance(txn, Txn):
            if c.sink is not None:
                return txn_out.BranchMissing(listed.id)
            return txns.refuse_commit(txn) if isinstance(txn, Note) else txn
        if c.sink is not None:
            if not _is_sinks(txn, c.sink):
                return txn_out.NotOwner()
            return (self._left_out(txn) or txn) if txn.is_prepared else txns.incomplete(txn)
        if txn.kind == TXN_INLINE:
            return txn_out.InvalidTxnState("inline")
        return txns.find_undecided(txn.id, txn.epoch, (c.producer_id, c.producer_epoch))

    def _left_out(self, txn: Txn) -> Outcome | None:
        """Refuse if a stream of the transaction was deleted, or deleted and created again; s6."""
        for path in sorted(set(txn.deleted)):
            stream = self.txns.book.streams.get(path)
            if stream is None:
                return txn_out.StreamRefused(path, out.NotFound())
            if stream.is_deleted:
                return txn_out.StreamRefused(path, out.Gone())
            return txn_out.IncarnationConflict(path, stream.incarnation)
        return None

    def _judge_streams(self, c: ask.Commit, listed: list[Txn]) -> Outcome | None:
        """Rows 6 to 8."""
        read = [p.path for p in c.positions] + [path for path, _ in c.expects]
        refusal = self.txns.missing([a.path for a in c.appends], topics=True)
        refusal = refusal or self.txns.missing(read)
        if refusal is not None:
            return refusal  # 6
        streams = self.txns.book.streams
        for path, tail in c.expects:
            if streams[path].tail != tail:
                cause: out.Refusal = out.PreconditionFailed(streams[path].tail)
                return txn_out.StreamRefused(path, cause)  # 7
        for append in c.appends:
            if (judged := _judge_append(streams[append.path], append)) is not None:
                return txn_out.StreamRefused(append.path, judged)  # 8
        for txn in listed:
            if (refusal := self.txns.closed_under(txn)) is not None:
                return refusal
        chunks_max = self.txns.bounds.chunks
        if sum(len(txn.chunks) for txn in listed) > chunks_max:
            return out.BatchTooLarge(chunks_max * EXTENT_BYTES)
        return None

    def _growth(self, c: ask.Commit, listed: list[Txn]) -> dict[int, int]:
        """Return how many messages the commit will add, by stream number."""
        growth: dict[int, int] = {}
        for append in c.appends:
            for number, rows in self._routed(append):
                growth[number] = growth.get(number, 0) + rows.count
        for txn in listed:
            for chunk in txn.chunks:
                growth[chunk.stream] = growth.get(chunk.stream, 0) + chunk.batch.count
        return growth

    def _routed(self, append: ask.CommitAppend) -> list[tuple[int, Batch | Rows]]:
        """Return what an append adds, by stream number: of a topic, to some partitions."""
        assert append.batch is not None
        stream = self.txns.book.streams[append.path]
        if stream.topic is None:
            return [(stream.number, append.batch)]
        routed = route_commit(stream, append)
        return [(stream.topic.partitions[n], rows) for n, rows in routed.items()]

    def _note_keys(self, append: ask.CommitAppend) -> None:
        """Note the keys of messages that go to a topic, or to one of its partitions."""
        stream = self.txns.book.streams[append.path]
        topic = stream.topic
        if stream.topic_number:
            topic = self.txns.by_number(stream.topic_number)[1].topic
        if topic is not None:
            assert append.batch is not None
            note_keys(topic, {0: Rows(rows_of(append.batch, stream.is_json))})

    def _judge_positions(self, c: ask.Commit, listed: list[Txn]) -> Outcome | None:
        """Rows 8c to 9c; A18."""
        positions = self.txns.positions
        keys = [positions.key(move.group, move.path) for move in c.positions]
        keys += [key for txn in listed for key, _ in positions.alive(txn.positions)]
        if len(set(keys)) < len(keys):
            return out.InvalidRequest("positions")  # 8c
        ending = {txn.number for txn in (*listed, *self._ended_by(c))}
        mover, growth = _mover_of(c), self._growth(c, listed)
        if (refusal := positions.judge_own(c.positions, mover, growth, ending)) is not None:
            return refusal  # 9
        for txn in listed:
            if (refusal := self.txns.moved_under(txn, ending)) is not None:
                return refusal  # 9c
        return None

    def _ended_by(self, c: ask.Commit) -> list[Txn]:
        """Return the transactions that a commit ends: fenced, or of its sink."""
        txns = self.txns
        if c.sink is not None:
            return [txn for txn in txns.open.values() if _is_sinks(txn, c.sink)]
        assert c.producer_id is not None
        assert c.producer_epoch is not None
        is_raised = txns.book.registry.get(c.producer_id, -1) < c.producer_epoch
        return txns.pending_of(c.producer_id) if is_raised else []

    def _accept(self, c: ask.Commit, listed: list[Txn]) -> Outcome:
        txns, now = self.txns, self.txns.write(c.now_ms)
        parts: list[TxnResult] = []
        for append in c.appends:
            self._note_keys(append)
            for number, rows in self._routed(append):
                path, stream = txns.by_number(number)
                first = stream.tail
                stream.store(rows)
                stream.written_ms = now
                done = StreamResult(path, first, stream.tail, rows.count)
                parts.append(TxnResult((done,)))
        if c.sink is not None:
            self._forget_notes_of(c.sink.app)
        parts += [txns.finish(txn, COMMITTED, "", now) for txn in listed]
        moved = [PositionResult(p.group, p.path, p.to) for p in c.positions]
        self._move(c.positions, _mover_of(c))
        parts.append(TxnResult((), tuple(moved)))
        self.txns.ack(c.wakes)
        result = _joined(parts)
        if c.sink is not None:
            self._remember_version(c.sink, result, now)
        else:
            self._remember_seq(c, result, now)
        return txn_out.CommitDone(None, None, result)

    def _remember_seq(self, c: ask.Commit, result: TxnResult, now: int) -> None:
        assert c.producer_id is not None
        assert c.producer_epoch is not None
        assert c.producer_seq is not None
        txns, name = self.txns, c.producer_id
        txns.raise_epoch(name, c.producer_epoch, now)
        txns.use_registration(name)
        txns.commit_seqs[name] = c.producer_seq
        held = [*txns.results.get(name, []), (c.producer_seq, result)]
        txns.results[name] = held[-txns.bounds.results :]
        txns.digests.setdefault(name, {})[c.producer_seq] = c.digest

    def _remember_version(self, tag: ask.SinkTag, result: TxnResult, now: int) -> None:
        old = self.sinks.get(tag.app, Sink(tag.query_id, -1, ()))
        versions = (*old.versions, Version(tag.version, tag.input, result))
        kept = versions[-self.txns.bounds.versions :]
        self.sinks[tag.app] = Sink(tag.query_id, tag.version, kept)
        for txn in list(self.txns.open.values()):
            if _is_sinks(txn, tag):
                self.txns.finish(txn, ABORTED, BY_COMMIT, now)  # s7

    def _forget_notes_of(self, app: str) -> None:
        notes = self.txns.notes
        notes[:] = [n for n in notes if not (isinstance(n.owner, SinkOwner) and n.owner.app == app)]

    def rebind(self, c: sink_ask.RebindSink) -> Outcome:
        sink = self.sinks.get(c.app)
        if sink is None:
            return txn_out.UnknownSink()
        self.txns.write(c.now_ms)
        kept = tuple(version for version in sink.versions if version.number <= c.last_version)
        kept = kept if c.query_id == sink.query_id else ()
        self.sinks[c.app] = Sink(c.query_id, c.last_version, kept)
        return txn_out.SinkChanged()

    def forget(self, c: sink_ask.ForgetSink) -> Outcome:
        if c.app not in self.sinks:
            return txn_out.UnknownSink()
        self.txns.write(c.now_ms)
        del self.sinks[c.app]
        return txn_out.SinkChanged()

    # ---- groups ----------------------------------------------------------------------------------

    def set_positions(self, c: ask.SetPositions) -> Outcome:
        refusal = self.txns.missing([position.path for position in c.positions])
        refusal = refusal or self.txns.positions.judge_set(c.positions, c.by_operator)
        if refusal is not None:
            return refusal
        self.txns.write(c.now_ms)
        return txn_out.PositionsSet(self._move(c.positions, None))  # A19

    def _move(self, moves: tuple[ask.PositionMove, ...], mover: Mover | None) -> tuple[int, ...]:
        """Move positions, and return the new versions."""
        positions = self.txns.positions
        return tuple(
            positions.move(positions.key(m.group, m.path), m.to, mover, m.metadata) for m in moves
        )

    def pin(self, c: ask.PinSnapshot) -> Outcome:
        pinned = self.snapshots.get(c.group)
        if pinned is not None and c.number == pinned.number:
            return txn_out.Pinned(*pinned, is_new=False)
        if pinned is not None and c.number != pinned.number + 1:
            return txn_out.SnapshotConflict(pinned.number)
        if (refusal := self.txns.missing([span.path for span in c.ranges])) is not None:
            return refusal
        for span in c.ranges:
            incarnation = self.txns.book.streams[span.path].incarnation
            if span.incarnation != incarnation:
                return txn_out.IncarnationConflict(span.path, incarnation)
        self.txns.write(c.now_ms)
        self.snapshots[c.group] = Snapshot(c.number, c.ranges, c.hash)
        return txn_out.Pinned(c.number, c.ranges, c.hash, is_new=True)


def _mover_of(c: ask.Commit) -> Mover:
    if c.sink is not None:
        return False, c.sink.app
    assert c.producer_id is not None
    return True, c.producer_id


def _is_sinks(txn: Txn, tag: ask.SinkTag) -> bool:
    """Return whether a transaction belongs to a sink, at this version or an earlier one."""
    owner = txn.owner
    return isinstance(owner, SinkOwner) and owner.app == tag.app and owner.version <= tag.version


def _judge_append(stream: Stream, append: ask.CommitAppend) -> out.Refusal | None:
    if stream.is_closed:
        return out.StreamClosed(None if stream.topic is not None else stream.tail)
    if media_type(append.content_type or "") != media_type(stream.content_type):
        return out.ContentTypeConflict(stream.content_type)
    return bad_batch(append.batch, append.body_error)


def bad_batch(batch: Batch | None, body_error: str | None) -> out.Refusal | None:
    """Return the refusal of an invalid body, or None."""
    if body_error is not None:
        return out.BadBody(body_error)
    if batch is not None and batch.extras == BAD_EXTRAS:
        return out.BadBody("the keys, timestamps or headers are malformed: unknown columns")
    return None


def _joined(parts: list[TxnResult]) -> TxnResult:
    """Merge the results of a commit: one row per stream, one per position."""
    streams: dict[str, StreamResult] = {}
    positions: dict[tuple[str, str], PositionResult] = {}
    deleted: set[str] = set()
    for part in parts:
        for r in part.streams:
            old = streams.get(r.path, StreamResult(r.path, r.first_offset, 0, 0))
            count = old.messages + r.messages
            streams[r.path] = StreamResult(r.path, old.first_offset, r.next_offset, count)
        positions |= {(moved.group, moved.path): moved for moved in part.positions}
        deleted |= set(part.deleted)
    return TxnResult(
        tuple(streams[path] for path in sorted(streams)),
        tuple(positions[key] for key in sorted(positions)),
        tuple(sorted(deleted)),
    )
