"""The ends of producers in the reference model: idle times, retirement, tombstones.

Written from "How a producer ends" in `docs/reference/machine.md`.
"""

from typing import TYPE_CHECKING

from semel.model import limits
from semel.model import outcomes as out
from semel.model import outcomes_txn as txn_out
from semel.model.outcomes import Outcome, RetireResult
from semel.model.producer_commands import (
    CountHour,
    DropTombstones,
    ExpireRegistration,
    LifeCommand,
    RetiredProducer,
    RetireProducers,
    Tombstone,
)
from tests.sim import reference_producers as rules
from tests.sim.reference_producers import Producer
from tests.sim.reference_streams import Stream

if TYPE_CHECKING:
    from tests.sim.reference import Model

MINUTE_MS = 60_000


class Lives:
    """Idle times, retired registrations and tombstones."""

    def __init__(self, model: "Model", expiring_max: int, tombstones_max: int) -> None:
        self.model = model
        self.expiring_max, self.tombstones_max = expiring_max, tombstones_max
        self.idle: dict[str, int] = {}  # of registrations
        self.retired: dict[str, int] = {}  # registrations with a name, and their hour
        self.used: dict[str, int] = {}  # registrations with an idle time, and the hour of their use
        self.tombstone_count = 0  # ever

    def copy(self, model: "Model") -> "Lives":
        """Return an independent copy for a copy of the model."""
        twin = Lives(model, self.expiring_max, self.tombstones_max)
        twin.idle, twin.retired = dict(self.idle), dict(self.retired)
        twin.used = dict(self.used)
        twin.tombstone_count = self.tombstone_count
        return twin

    def view(self) -> dict[str, object]:
        names = self.model.registry
        busy = self.expiring()  # their last use is not over yet
        used = {name: hour for name, hour in self.used.items() if name not in busy}
        parts = (self.idle.get, 0), (self.retired.get, -1), (used.get, -1)
        return {name: tuple(get(name, other) for get, other in parts) for name in names}

    def use(self, name: str) -> None:
        """Use a registration: it is no longer retired, and its idle time starts again."""
        self.retired.pop(name, None)
        if name in self.idle:
            self.used[name] = self.model.hours

    def expiring(self) -> set[str]:
        """Return the ids that are expiring producers on a stream."""
        streams = self.model.streams.values()
        return {name for s in streams for name, row in s.producers.items() if row.expires_ms}

    def note_ends(self, before: set[str]) -> None:
        """Record that ids which were expiring producers before are none any more."""
        for name in before - self.expiring():
            if name in self.idle:
                self.used[name] = self.model.hours

    def execute(self, command: LifeCommand) -> Outcome:
        """Execute a command on the lifetimes of producers."""
        match command:
            case CountHour():
                self.model.write(command)
                self.model.hours += 1
                return out.HourCounted()
            case RetireProducers():
                return self._retire(command)
            case ExpireRegistration():
                return self._expire_registration(command)
            case DropTombstones():
                return self._drop(command)

    # ---- idle times and room ---------------------------------------------------------------------

    def idle_of(self, known: Producer | None, name: str, asked: int) -> int:
        """Return the idle time of a producer after an append or a claim."""
        if asked:
            return asked
        if known is None or known.is_tombstone:
            return self.idle.get(name, 0)
        return known.expires_ms

    def no_room(self, stream: Stream, name: str, asked: int) -> Outcome | None:
        known = stream.producers.get(name)
        is_live = known is not None and not known.is_tombstone
        becomes_expiring = self.idle_of(known, name, asked) > 0
        if is_live and known is not None and bool(known.expires_ms) == becomes_expiring:
            return None
        live = [each for each in stream.producers.values() if not each.is_tombstone]
        expiring = [each for each in live if each.expires_ms]
        if becomes_expiring:
            is_full = len(expiring) >= self.expiring_max
            name, maximum = "expiring_producers_per_stream", self.expiring_max
        else:
            is_full = len(live) - len(expiring) >= self.model.producers_max
            name, maximum = "producers_per_stream", self.model.producers_max
        return out.LimitReached(name, maximum) if is_full else None

    # ---- ends ------------------------------------------------------------------------------------

    def bury(self, stream: Stream, name: str, is_brief: bool, now: int) -> None:
        """Turn a producer into a tombstone."""
        self.tombstone_count += 1
        stream.producers[name] = rules.tombstone(stream.producers[name])._replace(
            expires_ms=0,
            is_brief=is_brief,
            hour=self.model.hours,
            order=self.tombstone_count,
            ended_ms=now,
        )
        all_of_them = {n: p.order for n, p in stream.producers.items() if p.is_tombstone}
        if len(all_of_them) > self.tombstones_max:
            del stream.producers[min(all_of_them, key=all_of_them.__getitem__)]

    def _retire(self, c: RetireProducers) -> Outcome:
        results = [RetireResult(e.id, e.path, self._refusal(e)) for e in c.producers]
        ended = []
        for entry, result in zip(c.producers, results, strict=True):
            if result.refusal is None and not self._has_ended(entry) and entry not in ended:
                ended.append(entry)
        for name, path in dict.fromkeys((entry.id, entry.path) for entry in ended):
            now = self.model.write(c)
            if path is None:
                self._end_registration(name)
            else:
                self.bury(self.model.streams[path], name, True, now)
        return out.Retired(tuple(results))

    def _has_ended(self, entry: RetiredProducer) -> bool:
        if entry.path is None:
            return entry.id in self.retired
        return self.model.streams[entry.path].producers[entry.id].is_tombstone

    def _refusal(self, entry: RetiredProducer) -> out.Refusal | None:
        registered = self.model.registry.get(entry.id)
        if entry.path is None:
            return self._registration_refusal(entry, registered)
        stream = self.model.streams.get(entry.path)
        if stream is None:
            return out.NotFound()  # a
        if stream.is_deleted:
            return out.Gone()  # a
        known = stream.producers.get(entry.id)
        if known is None:
            return out.UnknownProducer()  # b
        highest = max(known.epoch, registered or 0)
        if (known.epoch if entry.epoch is None else entry.epoch) < highest:
            return out.StaleEpoch(highest, entry.epoch)  # c
        if entry.session is not None and entry.session in known.older_sessions:
            return out.StaleSession(known.epoch)  # d
        is_epoch = entry.epoch in (None, known.epoch)
        if not is_epoch or entry.session not in (None, known.session):
            return out.UnknownProducer()  # e
        writing = self.model.writing(stream, entry.id)
        return txn_out.StreamInTransaction(writing[0].id) if writing else None  # f

    def _registration_refusal(
        self, entry: RetiredProducer, registered: int | None
    ) -> out.Refusal | None:
        assert entry.epoch is not None
        if registered is None or entry.epoch > registered:
            return out.UnknownProducer()  # b, e
        if entry.epoch < registered:
            return out.StaleEpoch(registered, entry.epoch)  # c
        pending = sorted(self.model.txns.pending_of(entry.id), key=lambda txn: txn.number)
        return txn_out.ConcurrentTransactions(pending[0].id) if pending else None  # f

    def _end_registration(self, name: str) -> None:
        if rules.is_issued_name(name):
            self._unregister(name)
        else:
            self.retired[name] = self.model.hours

    def _unregister(self, name: str) -> None:
        txns = self.model.txns
        del self.model.registry[name]
        for rows in (
            self.idle,
            self.retired,
            self.used,
            txns.commit_seqs,
            txns.results,
            txns.digests,
        ):
            rows.pop(name, None)
        txns.ended.pop(name, None)

    def _expire_registration(self, c: ExpireRegistration) -> Outcome:
        if c.id not in self.model.registry or c.id not in self.idle or c.id in self.retired:
            return out.UnknownProducer()
        rows = [stream.producers.get(c.id) for stream in self.model.streams.values()]
        is_expiring = any(row is not None and row.expires_ms for row in rows)
        is_used = bool(self.model.txns.pending_of(c.id)) or is_expiring
        if is_used or c.elapsed_ms < self.idle[c.id]:
            return out.StillAlive()
        self.model.write(c)
        self._end_registration(c.id)
        return out.Forgotten()

    # ---- tombstones ------------------------------------------------------------------------------

    def _drop(self, c: DropTombstones) -> Outcome:
        due = {(each.stream, each.id) for each in c.tombstones if self._is_due(each, c.hours)}
        for number, name in due:
            self.model.write(c)
            if number == 0:
                self._unregister(name)
            else:
                del self._stream(number).producers[name]
        return out.DropDone(len(due))

    def _stream(self, number: int) -> Stream:
        return next(s for s in self.model.streams.values() if s.number == number)

    def _is_due(self, tombstone: Tombstone, hours: int) -> bool:
        if tombstone.stream == 0:
            if tombstone.id not in self.retired or self.model.txns.pending_of(tombstone.id):
                return False
            outcomes = self.model.bounds.outcome_hours + limits.REGISTRATION_MORE_HOURS
            return self.model.hours > self.retired[tombstone.id] + max(hours, outcomes)
        if not any(s.number == tombstone.stream for s in self.model.streams.values()):
            return False
        known = self._stream(tombstone.stream).producers.get(tombstone.id)
        if known is None or not known.is_tombstone:
            return False
        if known.is_brief:
            return tombstone.elapsed_ms >= 10 * MINUTE_MS
        return self.model.hours > known.hour + hours
