"""A bank: transactions move money between eight streams, and the sum never changes.

The check does not use the reference model. Every transfer has two legs: at read_committed, a
reader that sees one also sees the other, unless a pending transaction blocks the other stream.
"""

from collections import deque
from random import Random
from typing import NamedTuple

from msgspec.structs import replace

from semel.machine import MachineLimits
from semel.model.commands import (
    TXN_INLINE,
    TXN_STAGED,
    AbortTxn,
    Append,
    Batch,
    Begin,
    Commit,
    CommitAppend,
    CommitTxn,
    Create,
    EngineCommand,
    ListedTxn,
    Prepare,
    ProducerOwner,
    ProducerTag,
    SinkOwner,
    SinkTag,
    TxnTag,
)
from semel.model.outcomes import Outcome, Refusal
from tests.sim.demands import demand
from tests.sim.reference import Model
from tests.sim.reference_txn import Txn
from tests.sim.workload_groups import GroupWorkload
from tests.sim.workload_subscriptions import SubscriptionWorkload
from tests.sim.world import World

ACCOUNTS = tuple(f"account-{i}" for i in range(8))
CLIENTS = 4
DEPOSIT = 100
STEPS_MAX = 1_000
TEXT = "text/plain"


class Leg(NamedTuple):
    """One message: how a transfer changes one account."""

    transfer: int
    amount: int
    other: str

    @classmethod
    def parse(cls, body: bytes) -> "Leg":
        """Decode a message."""
        transfer, amount, other = body.decode().split()
        return cls(int(transfer), int(amount), other)

    def batch(self) -> Batch:
        """Encode a message."""
        return Batch(f"{self.transfer} {self.amount} {self.other}".encode())


def _no_batch(_is_json: bool) -> Batch:
    raise AssertionError("the clients of the bank commit no acks")


class Clients:
    """Four clients, each with one transaction at a time; some decisions are sent again late."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._count = 0
        self._late: deque[EngineCommand] = deque(maxlen=30)
        self.durable: Model | None = None
        self.groups = GroupWorkload(Random(0), [], is_off=True)
        self.subscriptions = SubscriptionWorkload(Random(0), [], _no_batch, is_off=True)

    def path_to_read(self, _model: Model) -> str:
        """Choose an account."""
        return self._rng.choice(ACCOUNTS)

    def draw(self, model: Model, now_ms: int) -> EngineCommand:
        """Return the next command of one client."""
        rng = self._rng
        if self._late and rng.random() < 0.1:
            return replace(rng.choice(self._late), now_ms=now_ms)
        client = rng.randrange(CLIENTS)
        txn = model.txns.open.get(f"t{client}")
        if txn is None:
            return self._start(model, client, now_ms)
        legs = self._legs(model, txn)
        if len(legs) < 2:
            return self._publish(model, txn, legs, now_ms)
        if self.durable is None or not self._is_stored(self.durable, txn):
            return self._one_shot(model, client, now_ms)
        command = self._decide(model, txn, now_ms)
        self._late.append(command)
        return command

    def _legs(self, model: Model, txn: Txn) -> list[tuple[str, Leg]]:
        """Return the legs that a transaction has written so far."""
        staged = [
            (chunk.stream, chunk.batch.payload)
            for chunk in txn.chunks
            if isinstance(chunk.batch, Batch)
        ]
        for number in txn.streams:
            _, stream = model.txns.by_number(number)
            staged += [(number, message.body) for message in stream.data_of(txn.number)]
        legs = [(model.txns.by_number(number)[0], Leg.parse(body)) for number, body in staged]
        return sorted(legs, key=lambda leg: leg[1].amount)

    def _is_stored(self, durable: Model, txn: Txn) -> bool:
        """Return whether both legs are durable: a client commits only what was acknowledged."""
        known = durable.txns.open.get(txn.id)
        is_same = known is not None and known.number == txn.number
        return known is not None and is_same and len(self._legs(durable, known)) == 2

    def _start(self, model: Model, client: int, now_ms: int) -> EngineCommand:
        rng, name = self._rng, f"q{client}"
        if rng.random() < 0.25:
            return self._one_shot(model, client, now_ms)
        timeout_ms = rng.choice([50, 500, 60_000])
        if rng.random() < 0.2:
            sink = model.commits.sinks.get(f"a{client}")
            owner = SinkOwner(f"a{client}", 0 if sink is None else sink.last + 1, 0)
            return Begin(now_ms, f"t{client}", owner, TXN_STAGED, is_implicit=True)
        epoch = model.registry.get(name, 0) + (rng.random() < 0.05)
        kind = rng.choice([TXN_INLINE, TXN_STAGED])
        by = ProducerOwner(name, epoch)
        return Begin(now_ms, f"t{client}", by, kind, timeout_ms, is_implicit=True)

    def _pair(self) -> tuple[str, Leg, str, Leg]:
        self._count += 1
        one, other = self._rng.sample(ACCOUNTS, 2)
        amount = self._rng.randint(1, 9)
        return one, Leg(self._count, -amount, other), other, Leg(self._count, amount, one)

    def _publish(
        self, model: Model, txn: Txn, legs: list[tuple[str, Leg]], now_ms: int
    ) -> EngineCommand:
        """Append the first leg, or the second one."""
        path, leg, _, _ = self._pair()
        if legs:
            there, known = legs[0]
            path, leg = known.other, Leg(known.transfer, -known.amount, there)
        if txn.kind == TXN_STAGED:
            tag = TxnTag(txn.id, txn.epoch, txn.next_seq)
            return Append(path, now_ms, TEXT, leg.batch(), transaction=tag)
        owner = txn.owner
        assert isinstance(owner, ProducerOwner)
        known_producer = model.streams[path].producers.get(owner.id)
        is_here = known_producer is not None and known_producer.epoch == owner.epoch
        seq = known_producer.last + 1 if known_producer is not None and is_here else 0
        by = ProducerTag(owner.id, seq, seq, owner.epoch)
        tag = TxnTag(txn.id, txn.epoch)
        return Append(path, now_ms, TEXT, leg.batch(), producer=by, transaction=tag)

    def _decide(self, model: Model, txn: Txn, now_ms: int) -> EngineCommand:
        if self._rng.random() < 0.25:
            return AbortTxn(now_ms, txn.id, txn.epoch)
        owner = txn.owner
        if isinstance(owner, ProducerOwner):
            return CommitTxn(now_ms, txn.id, txn.epoch, owner.id, owner.epoch)
        if not txn.is_prepared:
            return Prepare(now_ms, txn.id, txn.epoch, chunks=2)
        tag = SinkTag(owner.app, "query", owner.version, f"d{owner.version}")
        return Commit(now_ms, sink=tag, transactions=(ListedTxn(txn.id, txn.epoch),))

    def _one_shot(self, model: Model, client: int, now_ms: int) -> EngineCommand:
        name = f"q{client}"
        seq = model.txns.commit_seqs.get(name, -1) + 1
        one, debit, other, credit = self._pair()
        appends = (
            CommitAppend(one, TEXT, debit.batch()),
            CommitAppend(other, TEXT, credit.batch()),
        )
        return Commit(now_ms, name, model.registry.get(name, 0), seq, appends=appends)


class Bank(World):
    """A World whose clients only make transfers."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, txn_share=0)
        self.clients = Clients(self.txn_rng)
        self.workload = self.clients  # type: ignore[assignment]
        self.swarm.no_room = False
        self.injector.is_on = False
        for path in ACCOUNTS:
            self._do(Create(path, self.now_ms, f"i-{path}", TEXT))
            self._do(Append(path, self.now_ms, TEXT, Leg(0, DEPOSIT, path).batch()))
        self.injector.is_on = True
        self.is_open = True

    def draw_limits(self) -> MachineLimits:
        """Return limits that allow all accounts; producers do not expire."""
        self.producer_idle_ms = 0
        return MachineLimits(
            receipts=self.rng.choice([5, 64]), outcome_hours=self.bounds.outcome_hours
        )

    def _do(self, command: EngineCommand) -> None:
        got: list[Outcome] = []
        self.broker.submit(command, got.append)
        for _ in range(STEPS_MAX):
            if got:
                break
            self.find_room()
            self.write()
        assert got, command
        assert not isinstance(got[0], Refusal), got

    def ask(self) -> None:
        """Show a client what is durable; let it send a command unless another one waits."""
        self.clients.durable = self.durable_model
        if not self.broker.is_congested:
            super().ask()

    def complete(self) -> None:
        """Check all accounts whenever something became durable."""
        super().complete()
        self.audit()

    def _recover(self) -> None:
        super()._recover()
        self.audit()

    def audit(self) -> None:
        """Read all accounts at read_committed; check their legs and their sum."""
        if not getattr(self, "is_open", False):
            return
        seen: dict[str, list[Leg]] = {}
        blocked: set[str] = set()
        for path in ACCOUNTS:
            view = self.broker.durable_view.by_path[path]
            assert view.tail is not None
            end = view.tail.stable
            slices, _ = self.broker.reader.read_on(view, 0, end, 1 << 40, is_committed=True)
            seen[path] = [Leg.parse(body) for piece in slices for body in piece.messages()]
            if end < view.tail.tail:
                blocked.add(path)
        self._check_legs(seen, blocked)
        total = sum(leg.amount for legs in seen.values() for leg in legs)
        if not blocked:
            demand(total == DEPOSIT * len(ACCOUNTS), f"the sum of all accounts is {total}")
            self.counts["audits, whole"] += 1

    def _check_legs(self, seen: dict[str, list[Leg]], blocked: set[str]) -> None:
        for path, legs in seen.items():
            for leg in legs:
                if leg.transfer == 0 or leg.other in blocked:
                    continue
                twin = Leg(leg.transfer, -leg.amount, path)
                count = seen[leg.other].count(twin)
                demand(count == legs.count(leg) == 1, f"{leg} in {path}, other leg {count} times")
