"""The transactions of the reference model: pending ones, and the outcomes of ended ones.

Written from `docs/reference/transactions.md`. Nothing is indexed: the messages of a transaction
are found by a scan of the stream, the stable offset by a scan of all transactions.
"""

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

from semel.model import commands as ask
from semel.model import limits
from semel.model import outcomes as out
from semel.model import outcomes_topics as topic_out
from semel.model import outcomes_txn as txn_out
from semel.model.commands import (
    ABORTED,
    BY_FENCE,
    BY_OPERATOR,
    BY_REAPER,
    BY_REQUEST,
    BY_TIMEOUT,
    COMMITTED,
    TXN_INLINE,
    TXN_STAGED,
    Batch,
    Owner,
    PositionResult,
    ProducerOwner,
    SinkOwner,
    StreamResult,
    TxnResult,
)
from semel.model.outcomes import Outcome
from semel.model.subscription_commands import WakeAck
from tests.sim.reference_positions import NOBODY, Key, Named, Positions, mover_of
from tests.sim.reference_producers import is_issued_name
from tests.sim.reference_streams import Rows, Stream


class Chunk(NamedTuple):
    """A staged append, which has no offset."""

    seq: int
    stream: int  # its number
    batch: Batch | Rows


class Note(NamedTuple):
    """The outcome of an ended transaction."""

    id: str
    epoch: int
    owner: Owner
    decision: str
    reason: str
    time_ms: int
    result: TxnResult
    hour: int


@dataclass
class Txn:
    """A pending transaction. Streams are numbers: a path may get another stream."""

    number: int
    id: str
    epoch: int
    kind: str
    owner: Owner
    is_implicit: bool
    timeout_ms: int | None
    deadline_ms: int | None
    touched_ms: int
    is_prepared: bool = False
    streams: list[int] = field(default_factory=list)
    positions: dict[Key, Named] = field(default_factory=dict)  # in naming order; never removed
    chunks: list[Chunk] = field(default_factory=list)
    # Stream and digest of each chunk; never removed. An append to a topic has several chunks.
    sent: list[tuple[int, int]] = field(default_factory=list)
    next_seq: int = 0
    deleted: list[str] = field(default_factory=list)  # paths removed from `streams`

    def has_passed(self, elapsed_ms: int) -> bool:
        """Return whether its timeout has passed, this long after it was started or renewed."""
        if isinstance(self.owner, SinkOwner):
            return elapsed_ms >= limits.SINK_IDLE_MS
        return (
            not self.is_prepared and self.timeout_ms is not None and elapsed_ms >= self.timeout_ms
        )


class Bounds(NamedTuple):
    """The limits that a simulation may make small."""

    pending: int = limits.TXN_PENDING_MAX
    open_by_producers: int = limits.TXN_OPEN_MAX
    open_by_sinks: int = limits.SINK_TXN_OPEN_MAX
    streams: int = limits.TXN_STREAMS_MAX
    positions: int = limits.TXN_POSITIONS_MAX
    groups: int = limits.GROUPS_PER_STREAM_MAX
    chunks: int = limits.TXN_CHUNKS_MAX
    results: int = limits.RESULTS_KEPT
    versions: int = limits.SINK_VERSIONS_KEPT
    outcomes: int = limits.OUTCOMES_PER_PRODUCER_MAX
    outcome_hours: int = limits.OUTCOME_HOURS
    registry: int = limits.REGISTRY_MAX
    subscriptions: int = limits.SUBSCRIPTIONS_MAX
    subscription_links: int = limits.SUBSCRIPTION_LINKS_MAX
    subscription_names: int = limits.SUBSCRIPTION_NAMES_MAX
    wake_streams: int = limits.WAKE_STREAMS_MAX
    tokens: int = limits.TOKENS_MAX
    tokens_per_principal: int = limits.TOKENS_PER_PRINCIPAL_MAX


class Lives(Protocol):
    """What is known of the lives of registrations."""

    retired: dict[str, int]

    def use(self, name: str) -> None:
        """Use a registration."""


class Wakes(Protocol):
    """The rules of acks in commits: W12."""

    def refuse_commit(self, wakes: tuple[WakeAck, ...]) -> Outcome | None:
        """Return the refusal of the acks in a commit."""

    def apply_commit(self, wakes: tuple[WakeAck, ...]) -> None:
        """Apply the acks of a commit, in its frame."""


class Book(Protocol):
    """The fields of the model that the rules of transactions use."""

    streams: dict[str, Stream]
    registry: dict[str, int]

    @property
    def lives(self) -> Lives: ...

    time_ms: int
    hours: int


class Transactions:
    """The pending transactions, the retained outcomes, and the positions of groups."""

    def __init__(self, book: Book, bounds: Bounds) -> None:
        self.book, self.bounds = book, bounds
        self.next_number = 1
        self.open: dict[str, Txn] = {}  # by id, prepared ones included
        self.notes: list[Note] = []  # in the order they ended
        self.aborted: set[int] = set()  # numbers; never removed
        self.positions = Positions(book.streams, self.open, bounds.groups)
        self.subscriptions: Wakes | None = None  # set by the model
        self.commit_seqs: dict[str, int] = {}  # of producers, at their epoch in the registry
        self.results: dict[str, list[tuple[int, TxnResult]]] = {}
        self.digests: dict[str, dict[int, int]] = {}  # of commits, by producer and sequence
        self.ended: dict[str, list[int]] = {}  # epochs by producer; never removed

    def copy(self, book: Book) -> "Transactions":
        twin = Transactions(book, self.bounds)
        twin.next_number = self.next_number
        for name, txn in self.open.items():
            new = replace(txn, streams=list(txn.streams), positions=dict(txn.positions))
            twin.open[name] = replace(
                new, chunks=list(txn.chunks), sent=list(txn.sent), deleted=list(txn.deleted)
            )
        twin.notes, twin.aborted = list(self.notes), set(self.aborted)
        twin.positions.stored = dict(self.positions.stored)
        twin.commit_seqs = dict(self.commit_seqs)
        twin.results = {name: list(held) for name, held in self.results.items()}
        twin.digests = {name: dict(held) for name, held in self.digests.items()}
        twin.ended = {name: list(epochs) for name, epochs in self.ended.items()}
        return twin

    # ---- lookups ---------------------------------------------------------------------------------

    def now(self, now_ms: int) -> int:
        return max(now_ms, self.book.time_ms)

    def write(self, now_ms: int) -> int:
        """Advance the time of the last write to now, and return it."""
        self.book.time_ms = self.now(now_ms)
        return self.book.time_ms

    def here(self, path: str) -> Stream | Outcome:
        stream = self.book.streams.get(path)
        if stream is None:
            return out.NotFound()
        return out.Gone() if stream.is_deleted else stream

    def by_number(self, number: int) -> tuple[str, Stream]:
        return next((p, s) for p, s in self.book.streams.items() if s.number == number)

    def missing(self, paths: list[str], topics: bool = False) -> Outcome | None:
        """Refuse the first path that has no stream, or a topic unless `topics` are possible."""
        for path in paths:
            if isinstance(found := self.here(path), out.Refusal):
                return txn_out.StreamRefused(path, found)
            if isinstance(found, Stream) and found.topic is not None and not topics:
                return txn_out.StreamRefused(path, topic_out.IsTopic())
        return None

    def open_in(self, stream: Stream) -> list[Txn]:
        """Return the inline transactions with messages in a stream, oldest first.

        In a topic these are the transactions with messages in one of its partitions.
        """
        if stream.topic is not None:
            numbers = stream.topic.partitions
            partitions = [s for s in self.book.streams.values() if s.number in numbers]
            found = {txn.number: txn for each in partitions for txn in self.open_in(each)}
            return [found[number] for number in sorted(found)]
        inline = [
            t for t in self.open.values() if t.kind == TXN_INLINE and stream.number in t.streams
        ]
        held = [txn for txn in inline if stream.data_of(txn.number)]
        return sorted(held, key=lambda txn: txn.number)

    def stable(self, stream: Stream) -> int:
        if stream.topic is not None:
            return stream.tail
        firsts = [stream.data_of(txn.number)[0].offset for txn in self.open_in(stream)]
        return min(firsts, default=stream.tail)

    def pending_of(self, producer_id: str) -> list[Txn]:
        owned = [t for t in self.open.values() if isinstance(t.owner, ProducerOwner)]
        return [
            t for t in owned if isinstance(t.owner, ProducerOwner) and t.owner.id == producer_id
        ]

    def notes_of(self, txn_id: str) -> list[Note]:
        """Return the outcomes since which fewer than `outcome_hours` complete hours have passed."""
        kept = [n for n in self.notes if self.book.hours - (n.hour + 1) < self.bounds.outcome_hours]
        return [note for note in kept if note.id == txn_id]

    def find(
        self, txn_id: str, epoch: int, producer: tuple[str | None, int | None] | None
    ) -> Txn | Note | Outcome:
        """Find the transaction that a call names; `producer` is None for an operator's call."""
        notes, txn = self.notes_of(txn_id), self.open.get(txn_id)
        for note in notes:
            if note.epoch == epoch:
                return note  # a
        if txn is None and not notes:
            return txn_out.UnknownTransaction()  # b
        last = max(n.epoch for n in notes) if txn is None else txn.epoch
        if epoch < last:
            return txn_out.StaleTransaction(last)  # c
        if epoch > last or txn is None:
            return txn_out.UnknownTransaction()  # d
        name, producer_epoch = producer or (None, None)
        owner = txn.owner
        if name is None:
            return txn
        if not isinstance(owner, ProducerOwner) or owner.id != name:
            return txn_out.NotOwner()  # e
        if producer_epoch not in (None, owner.epoch):
            return out.StaleEpoch(owner.epoch, producer_epoch)  # f
        return txn

    def find_undecided(
        self, txn_id: str, epoch: int, producer: tuple[str | None, int | None] | None
    ) -> Txn | Outcome:
        """Find a transaction for a call that needs it pending."""
        found = self.find(txn_id, epoch, producer)
        if not isinstance(found, Note):
            return found
        is_late = found.reason == BY_TIMEOUT
        refusal = txn_out.InvalidTxnState(found.decision, found.reason or None)
        return txn_out.TxnTimedOut() if is_late else refusal

    def find_open(self, c: ask.TxnCall) -> Txn | Outcome:
        """Find a transaction for a call that adds to it."""
        found = self.find_undecided(c.id, c.epoch, claim(c))
        if isinstance(found, Txn) and found.is_prepared:
            return txn_out.InvalidTxnState("prepared")
        return found

    # ---- begin -----------------------------------------------------------------------------------

    def begin(self, c: ask.Begin) -> Outcome:
        owner = c.owner
        if isinstance(owner, SinkOwner) and c.kind != TXN_STAGED:
            return out.InvalidRequest("kind")  # 1
        txn = self.open.get(c.id)
        if txn is not None and (txn.owner, txn.kind) == (owner, c.kind):  # 2
            if txn.is_prepared:
                return txn_out.InvalidTxnState("prepared")
            return txn_out.Begun(txn.id, txn.epoch, c.due_ms, is_new=False)
        refusal = (
            self.identity(owner)
            or self._in_the_way(c, txn)
            or self._no_room_for(owner)
            or self.missing(list(c.streams), topics=True)  # 10
        )
        if refusal is not None:
            return refusal
        if len(set(c.streams)) > self.bounds.streams:
            return out.LimitReached("transaction_streams", self.bounds.streams)
        return self._begin_new(c, self.write(c.now_ms))

    def identity(self, owner: Owner) -> Outcome | None:
        """Rows 3 and 4."""
        if isinstance(owner, SinkOwner):
            return None
        registered = self.book.registry.get(owner.id)
        if registered is None:
            return out.UnknownProducer() if is_issued_name(owner.id) else None  # 3
        return out.StaleEpoch(registered, owner.epoch) if owner.epoch < registered else None  # 4

    def _in_the_way(self, c: ask.Begin, txn: Txn | None) -> Outcome | None:
        """Rows 5, 7 and 8."""
        owner = c.owner
        if txn is not None:
            is_successor = (
                isinstance(owner, ProducerOwner)
                and isinstance(txn.owner, ProducerOwner)
                and owner.id == txn.owner.id
                and txn.owner.epoch < owner.epoch
            )
            if not is_successor:
                return txn_out.ConcurrentTransactions(c.id)  # 5
        if isinstance(owner, SinkOwner):
            return None
        mine = [other for other in self.pending_of(owner.id) if other.owner == owner]
        for other in mine:
            if c.kind == TXN_INLINE and other.kind == TXN_INLINE and not other.is_prepared:
                return txn_out.ConcurrentTransactions(other.id)  # 7
        if len(mine) >= self.bounds.pending:
            return txn_out.TooManyTransactions(self.bounds.pending)  # 8
        return None

    def _no_room_for(self, owner: Owner) -> Outcome | None:
        """Row 9."""
        sinks = sum(isinstance(txn.owner, SinkOwner) for txn in self.open.values())
        if isinstance(owner, SinkOwner):
            is_full = sinks >= self.bounds.open_by_sinks
            maximum = self.bounds.open_by_sinks
            return out.LimitReached("sink_transactions", maximum) if is_full else None
        if len(self.open) - sinks >= self.bounds.open_by_producers:
            return out.LimitReached("transactions", self.bounds.open_by_producers)
        return self.no_room_in_registry(owner.id)

    def no_room_in_registry(self, producer_id: str) -> Outcome | None:
        registry, maximum = self.book.registry, self.bounds.registry
        is_full = producer_id not in registry and len(registry) >= maximum
        return out.LimitReached("registry", maximum) if is_full else None

    def _begin_new(self, c: ask.Begin, now: int) -> Outcome:
        known = [note.epoch for note in self.notes_of(c.id)]
        if c.id in self.open:
            known.append(self.open[c.id].epoch)  # it is about to be fenced
        if isinstance(c.owner, ProducerOwner):
            ended = self.ended.get(c.owner.id, [])
            known += ended if len(ended) > self.bounds.outcomes else []
        last = max(known, default=0)
        if isinstance(c.owner, ProducerOwner):
            self.raise_epoch(c.owner.id, c.owner.epoch, now)  # 6
            self.use_registration(c.owner.id)
        timeout = None
        if isinstance(c.owner, ProducerOwner):
            timeout = limits.TXN_TIMEOUT_MS_DEFAULT if c.timeout_ms is None else c.timeout_ms
        deadline = None if timeout is None else now + timeout
        txn = Txn(
            self.next_number,
            c.id,
            last + 1,
            c.kind,
            c.owner,
            c.is_implicit,
            timeout,
            deadline,
            now,
            streams=unique([self.book.streams[path].number for path in c.streams]),
        )
        self.next_number += 1
        self.open[c.id] = txn
        deadline_ms = None if timeout is None else c.now_ms + timeout
        return txn_out.Begun(c.id, txn.epoch, deadline_ms, is_new=True)

    def raise_epoch(
        self, producer_id: str, epoch: int, now: int, fenced_by_hand: Txn | None = None
    ) -> None:
        """Register an epoch; a higher one aborts the transactions of the older ones."""
        if self.book.registry.get(producer_id, -1) >= epoch:
            return
        self.use_registration(producer_id)
        self.book.registry[producer_id] = epoch
        self.commit_seqs.pop(producer_id, None)
        self.results.pop(producer_id, None)
        self.digests.pop(producer_id, None)
        for txn in sorted(self.pending_of(producer_id), key=lambda txn: txn.number):
            reason = BY_OPERATOR if txn is fenced_by_hand else BY_FENCE
            self.finish(txn, ABORTED, reason, now)

    def use_registration(self, producer_id: str) -> None:
        """Use a registration: it is no longer retired."""
        self.book.lives.use(producer_id)

    # ---- adding ----------------------------------------------------------------------------------

    def add_streams(self, c: ask.AddStreams) -> Outcome:
        txn = self.find_open(c)
        if not isinstance(txn, Txn):
            return txn
        if (refusal := self.missing(list(c.streams), topics=True)) is not None:
            return refusal
        both = unique([*txn.streams, *(self.book.streams[path].number for path in c.streams)])
        if len(both) > self.bounds.streams:
            return out.LimitReached("transaction_streams", self.bounds.streams)
        if both != txn.streams:
            txn.streams, txn.touched_ms = both, self.write(c.now_ms)
        return txn_out.ExtendDone(txn.id, len(both))

    def add_positions(self, c: ask.AddPositions) -> Outcome:
        txn = self.find_open(c)
        if not isinstance(txn, Txn):
            return txn
        if (refusal := self.missing([position.path for position in c.positions])) is not None:
            return refusal
        names = self.positions.name(txn, c.positions)
        if isinstance(names, Outcome):
            return names
        if (count := self.positions.count(names)) > self.bounds.positions:
            return out.LimitReached("transaction_positions", self.bounds.positions)  # A9c
        if names != txn.positions:
            txn.positions, txn.touched_ms = names, self.write(c.now_ms)
        return txn_out.ExtendDone(txn.id, count)

    # ---- prepare, commit, abort ------------------------------------------------------------------

    def prepare(self, c: ask.Prepare) -> Outcome:
        txn = self.find_undecided(c.id, c.epoch, claim(c))
        if not isinstance(txn, Txn):
            return txn
        if not txn.is_prepared:
            if txn.kind == TXN_STAGED and not self._is_counted(txn, c):
                return self.incomplete(txn)
            if (refusal := self.positions.judge_named(txn)) is not None:
                return refusal  # A10
            txn.touched_ms = self.write(c.now_ms)
            txn.is_prepared, txn.deadline_ms = True, None  # A11: from now on it holds its positions
        return txn_out.Prepared(txn.id, txn.epoch, f"{txn.id}:{txn.epoch}")

    def _is_counted(self, txn: Txn, c: ask.Prepare) -> bool:
        if c.chunks is not None and c.chunks != len(txn.chunks):
            return False
        staged: dict[str, int] = {}
        for chunk in txn.chunks:
            path, _ = self.by_number(chunk.stream)
            staged[path] = staged.get(path, 0) + chunk.batch.count
        return c.messages is None or {p: n for p, n in c.messages if n > 0} == staged

    def incomplete(self, txn: Txn) -> Outcome:
        messages = sum(chunk.batch.count for chunk in txn.chunks)
        return txn_out.BranchIncomplete(txn.id, len(txn.chunks), messages)

    def commit(self, c: ask.CommitTxn) -> Outcome:
        found = self.find(c.id, c.epoch, claim(c))
        if isinstance(found, Note):
            if found.decision == COMMITTED:
                result = found.result  # A12
                return txn_out.CommitDone(found.id, found.epoch, result, is_duplicate=True)
            return self.refuse_commit(found)
        if not isinstance(found, Txn):
            return found
        if isinstance(found.owner, SinkOwner):
            return txn_out.InvalidTxnState("sink")
        refusal = self.closed_under(found) or self.moved_under(found) or self.fenced(c.wakes)
        if refusal is not None:
            return refusal
        result = self.finish(found, COMMITTED, "", self.write(c.now_ms))
        self.ack(c.wakes)
        return txn_out.CommitDone(found.id, found.epoch, result)

    def refuse_commit(self, note: Note) -> Outcome:
        """Return the refusal to commit a transaction that has ended."""
        if note.decision == COMMITTED:
            return txn_out.InvalidTxnState(COMMITTED)
        is_late = note.reason == BY_TIMEOUT
        return txn_out.TxnTimedOut() if is_late else txn_out.AlreadyAborted(note.reason)

    def closed_under(self, txn: Txn) -> Outcome | None:
        for chunk in txn.chunks:
            path, stream = self.by_number(chunk.stream)
            if stream.is_closed:
                return txn_out.StreamRefused(path, out.StreamClosed(stream.tail))
        return None

    def moved_under(self, txn: Txn, besides: Collection[int] = NOBODY) -> Outcome | None:
        """A13 and A14: check what an open transaction has named; a prepared one passes."""
        return None if txn.is_prepared else self.positions.judge_named(txn, besides)

    def fenced(self, wakes: tuple[WakeAck, ...]) -> Outcome | None:
        """W12: check the acks in a commit, after everything else."""
        return None if self.subscriptions is None else self.subscriptions.refuse_commit(wakes)

    def ack(self, wakes: tuple[WakeAck, ...]) -> None:
        """Apply the acks in a commit."""
        if self.subscriptions is not None:
            self.subscriptions.apply_commit(wakes)

    def abort(self, c: ask.AbortTxn | ask.FenceTxn) -> Outcome:
        is_fence = isinstance(c, ask.FenceTxn)
        found = self.find(c.id, c.epoch, None if is_fence else claim(c))
        if isinstance(found, Note):
            if found.decision == COMMITTED:
                return txn_out.AlreadyCommitted()
            return txn_out.AbortDone(found.id, found.epoch, found.reason)
        if not isinstance(found, Txn):
            return found
        reason = BY_OPERATOR if is_fence or c.by_operator else BY_REQUEST
        owner = found.owner
        if is_fence and isinstance(owner, ProducerOwner):
            epoch = self.book.registry[owner.id]
            if epoch >= limits.NUMBER_MAX:
                return out.EpochExhausted(epoch)
            self.raise_epoch(owner.id, epoch + 1, self.write(c.now_ms), fenced_by_hand=found)
        else:
            self.finish(found, ABORTED, reason, self.write(c.now_ms))
        return txn_out.AbortDone(found.id, found.epoch, reason)

    def expire(self, c: ask.ExpireTxn) -> Outcome:
        txn = self.open.get(c.id)
        if txn is not None and c.epoch < txn.epoch:
            return txn_out.StaleTransaction(txn.epoch)
        if txn is None or c.epoch > txn.epoch:
            return txn_out.UnknownTransaction()
        if not txn.has_passed(c.elapsed_ms):
            return out.StillAlive()
        reason = BY_REAPER if isinstance(txn.owner, SinkOwner) else BY_TIMEOUT
        self.finish(txn, ABORTED, reason, self.write(c.now_ms))
        return txn_out.AbortDone(txn.id, txn.epoch, reason)

    # ---- the decision ----------------------------------------------------------------------------

    def finish(self, txn: Txn, decision: str, reason: str, now: int) -> TxnResult:
        """End a transaction: give out offsets, move positions, store the outcome."""
        del self.open[txn.id]
        if isinstance(txn.owner, ProducerOwner):
            self.use_registration(txn.owner.id)
        deleted = {*txn.deleted, *(path for _, path in self.positions.lost(txn.positions))}  # A13
        if decision == ABORTED:
            self.aborted.add(txn.number)
        if txn.kind == TXN_INLINE:
            streams = self._mark(txn, now)
        else:
            streams = self._unfold(txn, now) if decision == COMMITTED else ()
        if decision == COMMITTED:
            result = TxnResult(streams, self._move(txn), tuple(sorted(deleted)))
        else:
            result = TxnResult()  # A16
        note = Note(txn.id, txn.epoch, txn.owner, decision, reason, now, result, self.book.hours)
        self.notes.append(note)
        self._forget_oldest(note)
        return result

    def _mark(self, txn: Txn, now: int) -> tuple[StreamResult, ...]:
        """Append a control record to each stream in which the transaction has messages."""
        results = []
        for number in txn.streams:
            path, stream = self.by_number(number)
            data = stream.data_of(txn.number)
            if data and stream.topic is None:  # a topic has no control record, its partitions do
                stream.store_control(txn.number)
                stream.written_ms = now
                results.append(StreamResult(path, data[0].offset, stream.tail, len(data)))
        return tuple(sorted(results, key=lambda result: result.path))

    def _unfold(self, txn: Txn, now: int) -> tuple[StreamResult, ...]:
        """Append the chunks to their streams, which gives them offsets."""
        results: dict[str, StreamResult] = {}
        for chunk in txn.chunks:
            path, stream = self.by_number(chunk.stream)
            before = results.get(path, StreamResult(path, stream.tail, stream.tail, 0))
            stream.store(chunk.batch)
            stream.written_ms = now
            count = before.messages + chunk.batch.count
            results[path] = StreamResult(path, before.first_offset, stream.tail, count)
        return tuple(results[path] for path in sorted(results))

    def _move(self, txn: Txn) -> tuple[PositionResult, ...]:
        moved = []
        for (group, number), named in self.positions.alive(txn.positions):
            mover = mover_of(txn.owner)
            self.positions.move((group, number), named.to, mover, named.metadata)
            moved.append(PositionResult(group, named.path, named.to))
        return tuple(sorted(moved, key=lambda position: (position.group, position.path)))

    def _forget_oldest(self, newest: Note) -> None:
        if isinstance(newest.owner, SinkOwner):
            return
        self.ended.setdefault(newest.owner.id, []).append(newest.epoch)
        mine = [n for n in self.notes if _producer_of(n) == newest.owner.id]
        for note in mine[: -self.bounds.outcomes]:
            self.notes.remove(note)

    def drop_stream(self, path: str, number: int) -> None:
        """Remove a stream that was deleted or has expired; its named positions stay named."""
        for txn in self.open.values():
            if number in txn.streams:
                txn.streams.remove(number)
                txn.deleted.append(path)
            txn.chunks = [chunk for chunk in txn.chunks if chunk.stream != number]
        self.positions.drop(number)


def claim(c: ask.TxnCall) -> tuple[str | None, int | None] | None:
    """Return the producer that a call names; None for an operator."""
    return None if c.by_operator else (c.producer_id, c.producer_epoch)


def unique(numbers: list[int]) -> list[int]:
    return list(dict.fromkeys(numbers))


def _producer_of(note: Note) -> str | None:
    return note.owner.id if isinstance(note.owner, ProducerOwner) else None
