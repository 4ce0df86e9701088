"""When transactions and streams must time out, by a second record of their uses.

It is kept by the simulator's monotonic clock, from the decisions and the reference model. Nothing
may end before its time, no call may find a transaction after it, and in the end nothing is left.
"""

from collections.abc import Iterator

from semel.model.commands import (
    Append,
    Begin,
    ClaimProducer,
    Commit,
    EngineCommand,
    Expire,
    ExpireProducer,
    ExpireTxn,
    SinkOwner,
    TxnCall,
)
from semel.model.limits import NUMBER_MAX, TOMBSTONE_HOURS
from semel.model.outcomes import Outcome, Retired
from semel.model.outcomes_txn import Begun, Staged
from semel.model.producer_commands import (
    CountHour,
    DropTombstones,
    Tombstone,
)
from semel.model.topic_commands import AppendTopic
from tests.sim.demands import demand
from tests.sim.reference import Model
from tests.sim.reference_producers import Producer
from tests.sim.reference_streams import Stream
from tests.sim.reference_txn import Txn
from tests.sim.workload import STAYED_MS


class Timeouts:
    """The last uses of all transactions and streams since the process started, and its hours."""

    def __init__(self, hour_ms: int) -> None:
        self._hour_ms = hour_ms
        self._hours_began_ms = {0: 0}  # by their number
        self._hour = 0
        self._started_ms = 0
        self._txns: dict[int, int] = {}
        self._streams: dict[int, int] = {}
        self._ends: dict[int, tuple[int, bool]] = {}
        # The uses of each producer and, of a tombstone, its end, with what was stored then.
        self._producers: dict[tuple[int, str], list[tuple[int, Producer]]] = {}

    def restart(self, model: Model, monotonic_ms: int) -> None:
        """Begin again, because a new process knows of no use.

        Of producers it must know enough not to end them early. Uses that got lost do not count.
        """
        self._started_ms = monotonic_ms
        self._hour = model.hours
        self._txns, self._streams = {}, {}
        rows = {
            (s.number, name): p for s in model.streams.values() for name, p in s.producers.items()
        }
        for key, uses in self._producers.items():
            while uses and uses[-1][1] != rows.get(key):
                uses.pop()
        self._ends = {s.number: (s.tail, s.is_closed) for s in model.streams.values()}

    def read(self, number: int, monotonic_ms: int) -> None:
        """Record that a stream was read."""
        self._streams[number] = monotonic_ms

    def written(
        self, command: EngineCommand, outcome: Outcome, model: Model, monotonic_ms: int
    ) -> None:
        """Record the uses by a command whose event was written. The model has executed it."""
        for stream in model.streams.values():
            end = (stream.tail, stream.is_closed)
            if self._ends.get(stream.number) != end:
                self._ends[stream.number] = end
                self._streams[stream.number] = monotonic_ms
        self._hour = model.hours
        for key, row in _ended_or_used(command, outcome, model):
            self._producers.setdefault(key, []).append((monotonic_ms, row))
        if isinstance(command, CountHour):
            self._hours_began_ms[model.hours] = monotonic_ms
        for txn in _named(command, model):
            renews = isinstance(outcome, Begun | Staged) or isinstance(txn.owner, SinkOwner)
            if renews:
                self._txns[txn.number] = monotonic_ms

    def _has_passed(self, txn: Txn, monotonic_ms: int) -> bool:
        since_ms = self._txns.get(txn.number, self._started_ms)
        return txn.has_passed(monotonic_ms - since_ms)

    def demand_not_early(self, command: EngineCommand, model: Model, monotonic_ms: int) -> None:
        """Check a command that ends something. The model has not executed it yet."""
        if isinstance(command, ExpireTxn):
            txn = model.txns.open[command.id]
            demand(self._has_passed(txn, monotonic_ms), f"{command.id} was ended early")
        elif isinstance(command, CountHour):
            run_ms = monotonic_ms - self._hours_began_ms[self._hour]
            demand(run_ms >= self._hour_ms, "an hour was counted early")
        elif isinstance(command, Expire):
            stream = model.streams[command.path]
            if stream.ttl_ms is not None and stream.expires_at_ms is None:
                used_ms = self._used_ms(stream)
                is_due = monotonic_ms >= used_ms + stream.ttl_ms
                demand(is_due, f"{command.path} expired while in use")
        elif isinstance(command, ExpireProducer):
            stream = model.streams[command.path]
            idle_ms = stream.producers[command.producer_id].expires_ms
            since_ms = self._since_ms(stream.number, command.producer_id)
            is_idle = monotonic_ms - since_ms >= idle_ms or command.idle_ms < NUMBER_MAX
            demand(is_idle, f"{command.producer_id} expired while in use")
        elif isinstance(command, DropTombstones) and command.hours == TOMBSTONE_HOURS:
            for each in command.tombstones:
                self._demand_tombstone_over(each, model, monotonic_ms)

    def _used_ms(self, stream: Stream) -> int:
        """Return when a stream, or a topic or one of its partitions, was used last."""
        numbers = (stream.number, *(() if stream.topic is None else stream.topic.partitions))
        return max(self._streams.get(number, self._started_ms) for number in numbers)

    def _since_ms(self, number: int, producer_id: str) -> int:
        uses = self._producers.get((number, producer_id))
        return uses[-1][0] if uses else self._started_ms

    def _demand_tombstone_over(self, each: Tombstone, model: Model, monotonic_ms: int) -> None:
        """Check that a brief tombstone that the broker drops has stayed for 10 minutes."""
        stream = next((s for s in model.streams.values() if s.number == each.stream), None)
        known = None if stream is None else stream.producers.get(each.id)
        if known is not None and known.is_brief and each.elapsed_ms not in STAYED_MS:
            stayed_ms = monotonic_ms - self._since_ms(each.stream, each.id)
            demand(stayed_ms >= 10 * 60_000, f"the tombstone of {each.id} left early")

    def demand_found_in_time(self, command: EngineCommand, model: Model, monotonic_ms: int) -> None:
        """Check that a call finds no transaction whose time has passed."""
        for txn in _named(command, model):
            is_late = self._has_passed(txn, monotonic_ms)
            demand(not is_late, f"{command} found {txn.id} after its time")

    def demand_nothing_left(self, model: Model, *, now_ms: int, monotonic_ms: int) -> None:
        """Check, after a complete sweep, that everything has ended whose time has passed."""
        began_ms = max(self._started_ms, self._hours_began_ms[self._hour])
        demand(monotonic_ms < began_ms + self._hour_ms, "an hour is never counted")
        for txn in model.txns.open.values():
            demand(not self._has_passed(txn, monotonic_ms), f"{txn.id} is never ended")
        for path, stream in model.streams.items():
            used_ms = self._used_ms(stream)
            is_idle = stream.ttl_ms is not None and monotonic_ms >= used_ms + stream.ttl_ms
            is_dated = stream.expires_at_ms is not None and now_ms >= stream.expires_at_ms
            is_left = (is_idle or is_dated) and not stream.is_deleted
            demand(not is_left, f"{path} never expires")


def _ended_or_used(
    command: EngineCommand, outcome: Outcome, model: Model
) -> Iterator[tuple[tuple[int, str], Producer]]:
    """Yield the producers that a written command has used or turned into tombstones.

    The command that retires producers can be refused for some of them.
    """
    names: list[tuple[str | None, str]] = []
    if isinstance(command, Append | AppendTopic) and command.producer is not None:
        names = [(command.path, command.producer.id)]
    elif isinstance(command, ClaimProducer | ExpireProducer):
        names = [(command.path, command.producer_id)]
    elif isinstance(outcome, Retired):
        names = [(each.path, each.id) for each in outcome.results if each.refusal is None]
    for path, name in names:
        stream = model.streams.get(path or "")
        if stream is not None and name in stream.producers:
            yield (stream.number, name), stream.producers[name]


def _named(command: EngineCommand, model: Model) -> Iterator[Txn]:
    """Yield the pending transactions that a command names."""
    names: list[tuple[str, int | None]] = []
    if isinstance(command, TxnCall):
        names = [(command.id, command.epoch)]
    elif isinstance(command, Begin):
        names = [(command.id, None)]
    elif isinstance(command, Append | AppendTopic) and command.transaction is not None:
        names = [(command.transaction.id, command.transaction.epoch)]
    elif isinstance(command, Commit):
        names = [(listed.id, listed.epoch) for listed in command.transactions]
    for name, epoch in names:
        txn = model.txns.open.get(name)
        if txn is not None and epoch in (None, txn.epoch):
            yield txn
