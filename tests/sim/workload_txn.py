"""The commands of the simulated clients about transactions, groups and sinks.

A few producers share a few transaction ids, and some commands carry an old epoch. Commits and
aborts are sent again late, and some transactions of sinks are never ended. The moves of positions
are drawn by `workload_positions.py`.
"""

from collections import deque
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, TypeVar

from msgspec.structs import replace

from semel.model import commands as ask
from semel.model import sink_commands as sink_ask
from semel.model.commands import (
    DENSE,
    SPARSE,
    TXN_INLINE,
    TXN_STAGED,
    Append,
    Batch,
    Create,
    EngineCommand,
    ForkRequest,
    ProducerOwner,
    ProducerTag,
    SinkOwner,
    Trim,
    TxnTag,
)
from tests.sim.letters import is_of_letters
from tests.sim.reference import Model
from tests.sim.reference_streams import Stream
from tests.sim.reference_txn import Txn
from tests.sim.workload_positions import PositionWorkload

T = TypeVar("T")

CROWD = 7  # more transactions than one producer may have pending

# The commands that are sent again much later.
LATE = (ask.CommitTxn, ask.AbortTxn, ask.Commit, ask.Prepare, ask.AddPositions)

Weights = dict[Callable[[Model, int], EngineCommand], float]


class TxnWorkload:
    """A seeded generator of commands about transactions."""

    def __init__(self, rng: Random, paths: Sequence[str], batch: Callable[[bool], Batch]) -> None:
        self._rng = rng
        self._paths = list(paths)
        self._batch = batch
        self._ids = [f"t{i}" for i in range(rng.choice([2, 4, 6, 12]))]
        self._producers = [f"q{i}" for i in range(rng.randint(1, 3))]
        self._apps = [f"a{i}" for i in range(rng.randint(1, 2))]
        if rng.random() < 0.3:
            self._producers.append("sink:a0")  # as a mover it is printed like the sink
        self._groups = ["g0", "g1"]
        self._positions = PositionWorkload(rng, self._path)
        self._kinds = rng.choice([[TXN_INLINE, TXN_INLINE, TXN_STAGED], [TXN_INLINE], [TXN_STAGED]])
        self._late: deque[EngineCommand] = deque(maxlen=60)
        self._count = 0
        self.sign: Callable[[Model, EngineCommand], EngineCommand] = lambda _model, command: command
        self._crowd = 0  # how many transactions one producer still begins in a row
        self._weights: Weights = {
            self._begin: 12,
            self._begin_sink: 5,
            self._publish: 26,
            self._stage: 18,
            self._add_streams: 3,
            self._add_positions: 16,
            self._prepare: 7,
            self._decide: 14,
            self._fence: 0.7,
            self._expire: 1.5,
            self._one_shot: 9,
            self._sink_commit: 7,
            self._set_positions: 4,
            self._end_input: 1.2,
            self._pin: 2,
            self._change_sink: 0.8,
            self._disturb: 2,
            self._fill_hole: 1,
        }
        if rng.random() < 0.2:
            self._weights[self._stage] = 150  # whole segments with chunks only

    def names(self) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
        """Return the ids of producers and transactions, and the apps of sinks."""
        return tuple(self._producers), tuple(self._ids), tuple(self._apps)

    def draw(self, model: Model, now_ms: int) -> EngineCommand:
        """Return the next command; some commands are sent again much later."""
        self._count += 1
        if self._rng.random() < 0.002:
            self._crowd = CROWD
        if self._crowd:
            self._crowd -= 1
            return self._begin_one_more(model, now_ms)
        if self._late and self._rng.random() < 0.08:
            return replace(self._rng.choice(self._late), now_ms=now_ms)
        make = self._rng.choices(list(self._weights), list(self._weights.values()))[0]
        command = self.sign(model, make(model, now_ms))
        if isinstance(command, LATE):
            self._late.append(command)
        return command

    # ---- choosing --------------------------------------------------------------------------------

    def _often(self, usual: T, *others: T, rate: float = 0.88) -> T:
        return usual if self._rng.random() < rate else self._rng.choice(others)

    def _some(self, items: Sequence[T], most: int) -> tuple[T, ...]:
        return tuple(self._rng.sample(items, min(len(items), self._rng.randint(0, most))))

    def _path(self, model: Model) -> str:
        open_streams = [p for p, s in model.streams.items() if not s.is_deleted and not s.is_closed]
        live = [path for path in open_streams if not is_of_letters(path)]
        return self._rng.choice(live if live and self._rng.random() < 0.93 else self._paths)

    def _open(self, model: Model, kind: str | None = None) -> Txn | None:
        txns = [t for t in model.txns.open.values() if kind in (None, t.kind)]
        return self._rng.choice(txns) if txns else None

    def _target(self, model: Model, kind: str | None = None) -> tuple[str, int, Txn | None]:
        """Choose a transaction, mostly a pending one: its id, an epoch and, if pending, itself."""
        rng, luck = self._rng, self._rng.random()
        notes = model.txns.notes[-30:]
        if luck < 0.07 and notes:
            note = rng.choice(notes)
            return note.id, note.epoch, None
        txn = self._open(model, kind)
        if txn is None:
            return rng.choice(self._ids), rng.randint(1, 3), None
        return txn.id, max(0, txn.epoch + (luck > 0.96) - (luck > 0.98) * 2), txn

    def _claim(self, txn: Txn | None) -> dict[str, Any]:
        """Draw who sends a call: the owner, nobody, or rarely an operator or another producer."""
        rng = self._rng
        if rng.random() < 0.04:
            return {"by_operator": True}
        if txn is None or isinstance(txn.owner, SinkOwner) or rng.random() < 0.3:
            return {"producer_id": "q0", "producer_epoch": 0} if rng.random() < 0.03 else {}
        owner = txn.owner
        return {
            "producer_id": self._often(owner.id, "q0", "stranger", rate=0.95),
            "producer_epoch": self._often(owner.epoch, owner.epoch + 1, 0, rate=0.95),
        }

    # ---- transactions ----------------------------------------------------------------------------

    def _begin(self, model: Model, now_ms: int) -> EngineCommand:
        rng = self._rng
        name = rng.choice([*self._producers, "p0"]) if rng.random() < 0.97 else "99"
        epoch = model.registry.get(name, 0)
        if rng.random() < 0.12:
            epoch = max(0, epoch + rng.choice([1, 1, 2, -1]))
        return ask.Begin(
            now_ms,
            rng.choice(self._ids),
            ProducerOwner(name, epoch),
            rng.choice(self._kinds),
            rng.choice([None, 1, 20, 200, 2_000, 60_000]),
            tuple(self._path(model) for _ in range(rng.choice([0, 1, 3]))),
            rng.random() < 0.7,
        )

    def _begin_one_more(self, model: Model, now_ms: int) -> EngineCommand:
        """Begin another transaction of the first producer, without ending one in between."""
        name = self._producers[0]
        owner = ProducerOwner(name, model.registry.get(name, 0))
        return ask.Begin(now_ms, f"m{self._count}", owner, TXN_STAGED, 60_000, (), True)

    def _begin_sink(self, model: Model, now_ms: int) -> EngineCommand:
        rng, app = self._rng, self._rng.choice(self._apps)
        version = self._next_version(model, app) + rng.choice([0, 0, 0, 1])
        self._count += 1
        owner = SinkOwner(app, version, rng.randint(0, 2))
        name = self._often(f"k{self._count}", rng.choice(self._ids), rate=0.9)
        kind = self._often(TXN_STAGED, TXN_INLINE, rate=0.97)
        return ask.Begin(now_ms, name, owner, kind, None, (), rng.random() < 0.95)

    def _next_version(self, model: Model, app: str) -> int:
        sink = model.commits.sinks.get(app)
        return 0 if sink is None else sink.last + 1

    def _add_streams(self, model: Model, now_ms: int) -> EngineCommand:
        name, epoch, txn = self._target(model)
        paths = tuple(self._path(model) for _ in range(self._rng.randint(1, 3)))
        return ask.AddStreams(now_ms, name, epoch, **self._claim(txn), streams=paths)

    def _add_positions(self, model: Model, now_ms: int) -> EngineCommand:
        name, epoch, txn = self._target(model)
        moves = self._positions.naming(model, txn)
        return ask.AddPositions(now_ms, name, epoch, **self._claim(txn), positions=moves)

    def _end_input(self, model: Model, now_ms: int) -> EngineCommand:
        found = self._positions.ending(model, now_ms)
        return self._add_positions(model, now_ms) if found is None else found

    def _namer(self, model: Model) -> tuple[str, int, Txn | None]:
        """Choose an open transaction that has named positions, or any."""
        txns = [t for t in model.txns.open.values() if t.positions]
        if not txns or self._rng.random() < 0.4:
            return self._target(model)
        txn = self._rng.choice(txns)
        return txn.id, txn.epoch, txn

    def _prepare(self, model: Model, now_ms: int) -> EngineCommand:
        name, epoch, txn = self._target(model, self._often(TXN_STAGED, None, rate=0.8))
        if self._rng.random() < 0.3:
            name, epoch, txn = self._namer(model)
        command = ask.Prepare(now_ms, name, epoch, **self._claim(txn))
        if txn is None or self._rng.random() < 0.4:
            return command
        counts: dict[str, int] = {}
        for chunk in txn.chunks:
            path, _ = model.txns.by_number(chunk.stream)
            counts[path] = counts.get(path, 0) + chunk.batch.count
        if self._rng.random() < 0.08:
            counts["s"] = counts.get("s", 0) + 1
        chunks = len(txn.chunks) + (self._rng.random() < 0.05)
        return replace(command, chunks=chunks, messages=tuple(counts.items()))

    def _decide(self, model: Model, now_ms: int) -> EngineCommand:
        name, epoch, txn = self._namer(model)
        if txn is not None and isinstance(txn.owner, SinkOwner) and self._rng.random() < 0.8:
            name, epoch, txn = self._target(model, TXN_INLINE)
        make = ask.CommitTxn if self._rng.random() < 0.65 else ask.AbortTxn
        return make(now_ms, name, epoch, **self._claim(txn))

    def _fence(self, model: Model, now_ms: int) -> EngineCommand:
        name, epoch, _ = self._target(model)
        return ask.FenceTxn(now_ms, name, epoch, by_operator=self._rng.random() < 0.9)

    def _expire(self, model: Model, now_ms: int) -> EngineCommand:
        name, epoch, _ = self._target(model)
        return ask.ExpireTxn(now_ms, name, epoch)

    # ---- publishing ------------------------------------------------------------------------------

    def _stream_of(self, model: Model, txn: Txn | None) -> str:
        if txn is not None and txn.streams and self._rng.random() < 0.7:
            path, _ = model.txns.by_number(self._rng.choice(txn.streams))
            return path
        return self._path(model)

    def _body(self, stream: Stream | None) -> tuple[str, Batch]:
        kind = "text/plain" if stream is None else stream.content_type
        return kind, self._batch(stream is not None and stream.is_json)

    def _publish(self, model: Model, now_ms: int) -> EngineCommand:
        rng = self._rng
        name, epoch, txn = self._target(model, TXN_INLINE)
        if txn is None:
            return self._begin(model, now_ms)
        path = self._stream_of(model, txn)
        stream = model.streams.get(path)
        kind, batch = self._body(stream)
        command = Append(path, now_ms, kind, batch, transaction=TxnTag(name, epoch))
        owner = txn.owner
        assert isinstance(owner, ProducerOwner)
        seq = self._next_seq(stream, owner, txn)
        by = ProducerTag(
            self._often(owner.id, "stranger", rate=0.99),
            seq,
            seq,
            self._often(owner.epoch, owner.epoch + 1, None, rate=0.97),
            None,
            DENSE,
            None,
            rng.random() < 0.1,
        )
        command = replace(command, producer=by if rng.random() < 0.99 else None)
        if rng.random() < 0.01:
            command = replace(command, close=True)
        if rng.random() < 0.02:
            command = replace(command, batch=None, body_error="bad")
        if stream is not None and rng.random() < 0.04:
            command = replace(command, if_match=self._often(stream.tail, 0, rate=0.7))
        return command

    def _next_seq(self, stream: Stream | None, owner: ProducerOwner, txn: Txn) -> int:
        known = None if stream is None else stream.producers.get(owner.id)
        last = -1 if known is None or known.epoch != owner.epoch else known.last
        is_first = stream is None or not stream.data_of(txn.number)
        if is_first and self._rng.random() < 0.4:
            return 0
        return max(0, last + self._rng.choices([1, 0, -1, 2], [80, 12, 5, 3])[0])

    def _stage(self, model: Model, now_ms: int) -> EngineCommand:
        rng = self._rng
        name, epoch, txn = self._target(model, TXN_STAGED)
        if txn is None:
            return self._begin_sink(model, now_ms)
        path = self._stream_of(model, txn)
        kind, batch = self._body(model.streams.get(path))
        seq = max(0, txn.next_seq + rng.choices([0, -1, 1], [85, 10, 5])[0])
        tag = TxnTag(name, epoch, self._often(seq, None, rate=0.99), is_strict=seq % 4 == 3)
        command = Append(path, now_ms, kind, batch, transaction=tag)
        if rng.random() < 0.02:
            command = replace(command, content_type="a/b")
        if rng.random() < 0.01:
            command = replace(command, if_match=0)
        if rng.random() < 0.01:
            command = replace(command, key="k")
        return command

    def _disturb(self, model: Model, now_ms: int) -> EngineCommand:
        """Close, trim or fork a stream, mostly one that is part of a transaction."""
        rng, txn = self._rng, self._open(model, TXN_INLINE)
        path = self._stream_of(model, txn)
        stream = model.streams.get(path)
        tail = 0 if stream is None else stream.tail
        self._count += 1
        if rng.random() < 0.3:
            return Append(path, now_ms, close=True)
        if rng.random() < 0.5:
            return Trim(path, now_ms, max(0, tail - rng.choice([0, 0, 1, 2])))
        fork = ForkRequest(
            path, rng.choice([None, max(0, tail - rng.randint(0, 3))]), rng.randint(0, 1)
        )
        return Create(rng.choice(self._paths), now_ms, f"f{self._count}", fork=fork)

    # ---- one-shot commits ------------------------------------------------------------------------

    def _one_shot(self, model: Model, now_ms: int) -> EngineCommand:
        rng = self._rng
        name = rng.choice(self._producers)
        epoch = model.registry.get(name, 0)
        seq = model.txns.commit_seqs.get(name, -1) + rng.choices([1, 0, -2, 2], [80, 12, 4, 4])[0]
        if rng.random() < 0.06:
            epoch, seq = max(0, epoch + rng.choice([1, 1, -1])), rng.choice([0, 0, 0, 1])
        owner = ProducerOwner(name, epoch)
        mine = [t for t in model.txns.open.values() if t.owner == owner and t.kind == TXN_STAGED]
        chosen = self._some(mine, 2)
        listed = [ask.ListedTxn(txn.id, txn.epoch) for txn in chosen]
        # A transaction that a raised epoch aborts holds no positions.
        near = chosen or [t for t in model.txns.open.values() if t.is_prepared and _is_by(t, name)]
        if rng.random() < 0.04:
            listed.append(ask.ListedTxn(*self._target(model)[:2]))
        appends = tuple(self._commit_append(model) for _ in range(rng.choice([0, 1, 2, 3])))
        expects = {}
        if rng.random() < 0.15 and (stream := model.streams.get(path := self._path(model))):
            expects[path] = self._often(stream.tail, stream.tail + 1, rate=0.7)
        return ask.Commit(
            now_ms,
            name,
            epoch,
            max(seq, 0),
            appends=appends,
            transactions=tuple(listed),
            positions=self._positions.own(model, near),
            expects=tuple(expects.items()),
            digest=len(appends),
        )

    def _commit_append(self, model: Model) -> ask.CommitAppend:
        path = self._path(model)
        kind, batch = self._body(model.streams.get(path))
        if self._rng.random() < 0.02:
            return ask.CommitAppend(path, kind, None, "bad")
        return ask.CommitAppend(path, self._often(kind, "a/b", rate=0.98), batch)

    def _sink_commit(self, model: Model, now_ms: int) -> EngineCommand:
        rng, app = self._rng, self._rng.choice(self._apps)
        version = max(
            0, self._next_version(model, app) - rng.choices([0, 1, 2, 9], [80, 14, 4, 2])[0]
        )
        mine = [t for t in model.txns.open.values() if _is_of(t, app, version)]
        ready = [t for t in mine if t.is_prepared or rng.random() < 0.05]
        listed = [ask.ListedTxn(txn.id, txn.epoch) for txn in self._some(ready, 4)]
        if rng.random() < 0.05:
            listed.append(ask.ListedTxn(*self._target(model)[:2]))
        tag = ask.SinkTag(
            app,
            self._often("query", "other", rate=0.97),
            version,
            self._often(f"d{version}", None, "elsewhere", rate=0.9),
            self._often(f"d{version - 1}", None, "elsewhere", rate=0.9),
        )
        positions = self._positions.own(model, mine) if rng.random() < 0.4 else ()
        return ask.Commit(now_ms, sink=tag, transactions=tuple(listed), positions=positions)

    def _change_sink(self, model: Model, now_ms: int) -> EngineCommand:
        app = self._rng.choice([*self._apps, "nobody"])
        if self._rng.random() < 0.4:
            return sink_ask.ForgetSink(now_ms, app)
        last = max(-1, self._next_version(model, app) - self._rng.choice([0, 1, 2]))
        return sink_ask.RebindSink(now_ms, app, self._often("query", "other"), last)

    # ---- sequences that were skipped -------------------------------------------------------------

    def _fill_hole(self, model: Model, now_ms: int) -> EngineCommand:
        """Send a sequence that a sparse producer has skipped; if there is none, skip some.

        Sequences below the retained receipts are drawn too, whether they are stored or not.
        """
        found = [
            (path, name, known)
            for path, stream in model.streams.items()
            if not is_of_letters(path)
            for name, known in stream.producers.items()
            if known.mode == SPARSE and not (known.is_tombstone or stream.is_deleted)
        ]
        if not found:
            return self._sparse(model, now_ms, self._path(model), "w0", 3, 0)
        path, name, known = self._rng.choice(found)
        stored = [seq for r in known.receipts for seq in range(r.first_seq, r.last_seq + 1)]
        holes = set(range(max(0, known.forgotten - 3), known.last)) - set(stored)
        seq = self._rng.choice(sorted(holes)) if holes else known.last + 3
        return self._sparse(model, now_ms, path, name, seq, known.epoch)

    def _sparse(
        self, model: Model, now_ms: int, path: str, name: str, seq: int, epoch: int
    ) -> EngineCommand:
        kind, batch = self._body(model.streams.get(path))
        tag = ProducerTag(name, seq, seq, epoch, None, SPARSE)
        return Append(path, now_ms, kind, batch, producer=tag)

    # ---- groups ----------------------------------------------------------------------------------

    def _set_positions(self, model: Model, now_ms: int) -> EngineCommand:
        return ask.SetPositions(now_ms, self._positions.setting(model))

    def _pin(self, model: Model, now_ms: int) -> EngineCommand:
        group = self._rng.choice(self._groups)
        pinned = model.commits.snapshots.get(group)
        number = 0 if pinned is None else pinned.number + self._rng.choices([1, 0, 2], [7, 2, 1])[0]
        ranges = []
        for path in dict.fromkeys([self._path(model), self._path(model)]):
            stream = model.streams.get(path)
            incarnation = "i0" if stream is None else stream.incarnation
            end = 0 if stream is None else stream.tail
            ranges.append(ask.SnapshotRange(path, self._often(incarnation, "i0"), 0, end))
        ranges.sort(key=lambda span: span.path)
        return ask.PinSnapshot(now_ms, group, number, tuple(ranges), f"h{self._count}")


def _is_by(txn: Txn, producer_id: str) -> bool:
    return isinstance(txn.owner, ProducerOwner) and txn.owner.id == producer_id


def _is_of(txn: Txn, app: str, version: int) -> bool:
    owner = txn.owner
    return isinstance(owner, SinkOwner) and owner.app == app and owner.version <= version
