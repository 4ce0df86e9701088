"""One simulated computer: a disk, two clocks, a process that crashes and restarts, and its clients.

The process is the real broker, journal and machine. One seeded scheduler replaces its loop and its
two threads: any command, write, completion, checkpoint step, read, fault or crash may come next.
Two other states are compared with it: the reference model, which executes every command in the
order of the broker's decisions, and a shadow state, folded from the frames the broker queued.
"""

import hashlib
from collections import Counter
from random import Random

from msgspec.structs import replace

from semel.broker.broker import ReadDone
from semel.broker.memberships import REBALANCE_MS
from semel.broker.timers import can_expire
from semel.journal.appender import WriteGroup, chunks_max, streams_max
from semel.journal.checkpoint import Cut, commit_cut
from semel.journal.recovery import Recovered, recover
from semel.journal.segments import Segments, unlink_segments
from semel.journal.store import StoreFull
from semel.journal.writer import JournalWriter
from semel.machine import Decision, MachineLimits, State
from semel.machine.events import StreamConfigured, StreamExpired
from semel.model.commands import (
    DENSE,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    Append,
    EngineCommand,
)
from semel.model.errors import DiskFailed, SemelError
from semel.model.outcomes import (
    Duplicate,
    InvalidRequest,
    Outcome,
    Overloaded,
    Unreadable,
)
from semel.model.outcomes_topics import TopicStored
from semel.model.rights import Caller
from semel.model.subscription_commands import WEBHOOK, ResumeSubscription
from semel.model.topic_commands import AppendTopic
from semel.testing import CRASH_MODES, Death, PowerLost, VirtualDisk, VirtualStore
from tests.sim.demands import Violation, demand, demand_equal, is_same
from tests.sim.faults import Injector, Swarm
from tests.sim.leases import Leases
from tests.sim.letters import LetterWorkload
from tests.sim.observer_access import AccessObserver
from tests.sim.oracle import demand_readable, demand_same_messages, read_all, state_view
from tests.sim.oracle_access import TokenPromises, demand_ended_owners
from tests.sim.oracle_groups import Choices, demand_noticed, demand_settled
from tests.sim.oracle_letters import demand_letters
from tests.sim.oracle_subscriptions import WakeHistory, count_wakes, demand_awake
from tests.sim.oracle_topics import TopicPromises
from tests.sim.oracle_txn import demand_chunks_kept, demand_outcomes, parts_view
from tests.sim.receivers import Receivers
from tests.sim.reference import Model
from tests.sim.reference_access import TakeOwners
from tests.sim.reference_groups import Shared
from tests.sim.reference_producers import was_stored
from tests.sim.reference_txn import Bounds
from tests.sim.tally import count
from tests.sim.tap import Entry, TappedBroker
from tests.sim.timeouts import Timeouts
from tests.sim.wake_leases import WakeLeases
from tests.sim.workload import Workload, is_broken
from tests.sim.workload_access import AccessWorkload, who_of

START_MS = 1_700_000_000_000
SECOND_MS = 1_000
MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
TEN_YEARS_MS = 10 * 365 * 24 * HOUR_MS
BOOTS_MAX = 50
SWEEP_ALL = 1_000_000
REBALANCES_MAX = 100
SETTLE_ROUNDS = 20


class World(AccessObserver):
    """A run of the simulator, determined by its seed."""

    def __init__(
        self, seed: int, txn_share: float | None = None, bounds: Bounds | None = None
    ) -> None:
        self.seed = seed
        # A separate generator: without transactions a seed runs as it did before they existed.
        self.txn_rng = Random(f"transactions {seed}")
        drawn = self.txn_rng.choice([0.0, 0.3, 0.6, 0.8])
        self.txn_share = drawn if txn_share is None else txn_share
        self.clock_rng = Random(f"clock {seed}")
        self.lives_rng = Random(f"lives {seed}")
        rng = self.rng = Random(seed)
        self.swarm = Swarm.draw(rng)
        self.injector = Injector(Random(rng.random()), self.swarm)
        self.segment_sizes = rng.choice([[4096], [8192], [16384], [65536], [4096, 16384, 65536]])
        self.segment_bytes = rng.choice(self.segment_sizes)
        self.reserve_bytes = rng.choice([0, 8192])
        self.producer_idle_ms = rng.choice([0, 0, 100, 10_000])
        hours_rng = Random(f"hours {seed}")
        # Short, so that some hours pass in a run, or so long that idle times pass in few of them.
        self.hour_ms = hours_rng.choice([100, 20_000, HOUR_MS])
        self.bounds = bounds or Bounds()
        smallest = min(self.segment_sizes)
        self.bounds = self.bounds._replace(
            chunks=min(self.bounds.chunks, chunks_max(smallest)),
            streams=min(self.bounds.streams, streams_max(smallest)),
            outcome_hours=hours_rng.choice([2, self.bounds.outcome_hours]),
        )
        self.limits = replace(
            self.draw_limits(), chunks=self.bounds.chunks, txn_streams=self.bounds.streams
        )
        self.disk = VirtualDisk(faults=self.injector)
        self.store = VirtualStore(faults=self.injector)
        self.workload = Workload(
            rng,
            payload_bytes_max=min(self.segment_sizes) // 8,
            txn_rng=self.txn_rng,
            txn_share=self.txn_share,
            policy_rng=None if txn_share == 0 else Random(f"policies {seed}"),
            group_rng=None if txn_share == 0 or seed % 4 > 1 else Random(f"groups {seed}"),
            topic_rng=None if txn_share == 0 or seed % 5 > 2 else Random(f"topics {seed}"),
            wake_rng=None if txn_share == 0 or seed % 3 == 1 else Random(f"wakes {seed}"),
        )
        self.letters = LetterWorkload(
            Random(f"letters {seed}"), is_off=self.txn_share == 0 or seed % 3 == 0
        )
        # Each second group of four seeds, since the limits of every fourth seed are small.
        has_access = txn_share != 0 and seed // 4 % 2 == 1
        self.access = AccessWorkload(
            Random(f"access {seed}"), self.workload.names(), is_off=not has_access
        )
        self.now_ms = START_MS
        self.monotonic_ms = 0
        self.counts: Counter[str] = Counter()
        self.promises = TokenPromises(self.bounds.tokens)
        self.topics = TopicPromises(self.counts)
        self.timeouts = Timeouts(self.hour_ms)
        self.leases = Leases(self.counts)
        self.choices = Choices(self.counts)
        self.wakes, self.durable_wakes = WakeHistory(), WakeHistory()
        self.wake_leases = WakeLeases(self.counts)
        self.wake_rng = Random(f"wakes of the world {seed}")
        self.receivers = Receivers(
            Random(f"receivers {seed}"), self.workload.subscriptions, self.counts
        )
        self.trace = hashlib.sha256()
        self.model = self._new_model()
        self.durable_model = self._new_model()
        self.shadow = State(self.limits)
        self.log: list[Entry] = []
        self.promised_end = 0
        self.durable_end = 0
        self.waiters: list[tuple[str, int, bool, list[bool]]] = []
        self.ends: dict[int, tuple[int, int]] = {}  # stream -> last known stable offset and tail
        self.boot()

    def draw_limits(self) -> MachineLimits:
        """Draw the limits of the run, often small ones, so that they are reached."""
        rng = self.rng
        return MachineLimits(
            receipts=rng.choice([5, 8, 64]),
            streams=rng.choice([6, 1000]),
            producers_per_stream=rng.choice([3, 1000]),
            expiring_producers_per_stream=self.lives_rng.choice([1, 2, 1000]),
            tombstones_per_stream=self.lives_rng.choice([1, 2, 1000]),
            registry=rng.choice([4, 1000]),
            keys=rng.choice([4, 1000]),
            key_hours=rng.choice([2, 1000]),
            outcome_hours=self.bounds.outcome_hours,
        )

    def _new_model(self) -> Model:
        limits = self.limits
        return Model(
            limits.receipts,
            limits.streams,
            limits.producers_per_stream,
            limits.keys,
            limits.key_hours,
            limits.registry,
            self.bounds,
            expiring_max=limits.expiring_producers_per_stream,
            tombstones_max=limits.tombstones_per_stream,
        )

    # ---- the process: start ----------------------------------------------------------------------

    def boot(self) -> None:
        """Start the process; faults may crash it again during recovery."""
        for attempt in range(BOOTS_MAX):
            self.injector.is_on = attempt < BOOTS_MAX // 2 and self.rng.random() < 0.5
            try:
                self._recover()
            except Death as death:
                self._fall(is_power=isinstance(death, PowerLost))
            except DiskFailed:
                self._fall(is_power=self.rng.random() < 0.5)
            except SemelError as error:
                raise Violation(f"a crash left a directory that is refused: {error}") from error
            else:
                self.injector.is_on = True
                return
            self.counts["crash in recovery"] += 1
        raise Violation("the process does not start")

    def _recover(self) -> None:
        self.disk.lock()
        self.segment_bytes = self.rng.choice(self.segment_sizes)  # a setting may change
        recovered = self.recover(self.disk, self.store)
        self.writer = JournalWriter(
            self.disk,
            segment=recovered.segments.firsts[-1],
            segment_bytes=self.segment_bytes,
            reserve_bytes=self.reserve_bytes,
        )
        room = self.writer.prepare()
        was_on, self.injector.is_on = self.injector.is_on, False
        self._compare_with_past(recovered)
        self.injector.is_on = was_on
        self.broker = TappedBroker(
            recovered,
            monotonic_ms=lambda: self.monotonic_ms,
            segment_bytes=self.segment_bytes,
            observer=self,
            producer_idle_ms=self.producer_idle_ms,
            hour_ms=self.hour_ms,
            random_bytes=self.wake_rng.randbytes,
        )
        self.broker.set_room(room)
        self.group: WriteGroup | None = None
        self.is_group_on_disk = False
        self.cut: Cut | None = None
        self.dead: list[int] | None = None
        self.waiters = []
        self.timeouts.restart(self.model, self.monotonic_ms)
        self.leases.restart(self.monotonic_ms)
        self.wake_leases.restart(self.model, self.monotonic_ms)
        self.receivers.restart(self.model, self.monotonic_ms)
        self.access.restart()
        demand_readable(self.broker, self.model)
        demand_outcomes(self.broker, self.model)
        demand_ended_owners(self.broker, self.model)
        demand_letters(self.model, self.counts)
        self.wakes.demand_messages(self.model)
        self._check_ends()

    def _check_ends(self) -> None:
        """Check that no stable offset and no tail has decreased."""
        for number, view in self.broker.durable_view.by_number.items():
            if view.tail is None:
                continue
            stable, tail = view.tail.stable, view.tail.tail
            before = self.ends.get(number, (0, 0))
            demand(before[0] <= stable <= tail, f"stable went from {before} to {stable}, {tail}")
            demand(before[1] <= tail, f"the tail went from {before} to {tail}")
            self.ends[number] = stable, tail

    def recover(self, disk: VirtualDisk, store: VirtualStore) -> Recovered:
        """Run the real recovery."""
        return recover(
            disk,
            store,
            fresh_identity=self.seed.to_bytes(16, "little"),
            segment_bytes=self.segment_bytes,
            limits=self.limits,
        )

    def _compare_with_past(self, recovered: Recovered) -> None:
        """Check that a prefix of the decisions was recovered, with all that was promised."""
        end = recovered.position
        demand(end >= self.promised_end, f"promised up to {self.promised_end}, found {end}")
        demand(end >= self.durable_end, f"synced up to {self.durable_end}, found {end}")
        survived = [entry for entry in self.log if entry.end <= end]
        self.model, self.wakes = self.durable_model, self.durable_wakes
        for entry in survived:
            self.model.replay(entry.command)
            entry.replay(self.shadow)
            self.wakes.fold(entry.event, entry.sections)
        lost = self.log[len(survived) :]
        self.counts["lost in a crash, never answered"] += len(lost)
        if lost and isinstance(lost[0].command, TakeOwners):
            self.counts["owners separated from their command"] += 1
        self.durable_model, self.durable_wakes = self.model.copy(), self.wakes.copy()
        self.log = []
        self.promised_end = self.durable_end = end
        found = state_view(recovered.state)
        demand_equal(found, state_view(self.shadow), "recovered state and live state")
        demand_equal(found, self.model.view(), "recovered state and model")
        parts = parts_view(recovered.state)
        demand_equal(parts, parts_view(self.shadow), "recovered parts and live parts")
        self.promises.demand_kept(recovered.state)
        self.wakes.demand_kept(recovered.state)
        self._compare_full_replay(found, recovered.segments)

    def _compare_full_replay(self, found: dict[str, object], segments: Segments) -> None:
        """Check that the journal alone gives the same state, if it still begins at LSN 0."""
        spans = segments.spans()
        ends = [0, *(end for _, end in spans[:-1])]
        if [first for first, _ in spans] != ends:
            return
        disk = self.disk.copy()
        disk.kill()
        disk.lock()
        replayed = self.recover(disk, VirtualStore())
        demand_equal(found, state_view(replayed.state), "recovered state and full replay")
        self.counts["full replays compared"] += 1

    # ---- the process: running --------------------------------------------------------------------

    def decided(
        self,
        command: EngineCommand,
        decision: Decision,
        *,
        is_written: bool,
        caller: Caller | None = None,
    ) -> None:
        """Compare a decision with that of the model, and record its frame."""
        self._note_times(command, decision.outcome)
        if decision.event is not None and not is_written:
            self.counts["refused for room"] += 1
            return
        if decision.event is not None:
            self._demand_not_early(command)
        if caller is not None:
            self.promises.demand_not_revoked(caller)
        who = None if caller is None else who_of(caller)
        asked = self.choices.before(self.model, command, decision)
        expected = InvalidRequest("") if is_broken(command) else self.model.execute(asked, who)
        by = "" if who is None else f" by {who}"
        demand(
            is_same(decision.outcome, expected),
            f"{command}{by}\n  engine: {decision.outcome}\n  model:  {expected}",
        )
        if isinstance(decision.outcome, Duplicate) and isinstance(command, Append):
            self._check_confirmed(command)
        if isinstance(decision.outcome, TopicStored) and isinstance(command, AppendTopic):
            self.topics.stored(command, decision, self.model)
            if decision.outcome.is_duplicate and command.transaction is None:
                self._check_confirmed(command)
        self._check_groups(asked)
        if decision.event is not None:
            self.counts["Expired"] += isinstance(decision.event, StreamExpired)
            if isinstance(decision.event, StreamConfigured) and decision.event.append is not None:
                self.counts["appends that carry a switch"] += 1
            self.timeouts.written(command, expected, self.model, self.monotonic_ms)
            self._note_wakes(command, decision)
            self.note_frame(asked, decision)
            self.expect_record(command, who)

    def _note_times(self, command: EngineCommand, outcome: Outcome) -> None:
        """Check that nothing overdue was found, and record who was heard."""
        if not self.broker.is_full:
            self.timeouts.demand_found_in_time(command, self.model, self.monotonic_ms)
        for leases in (self.leases, self.wake_leases):
            if not self.broker.is_full:
                leases.demand_in_time(command, self.model, self.monotonic_ms)
            leases.decided(command, outcome, self.model, self.monotonic_ms)

    def _demand_not_early(self, command: EngineCommand) -> None:
        self.timeouts.demand_not_early(command, self.model, self.monotonic_ms)
        self.leases.demand_not_early(command, self.model, self.monotonic_ms)
        self.wake_leases.demand_not_early(command, self.model, self.monotonic_ms)

    def _note_wakes(self, command: EngineCommand, decision: Decision) -> None:
        """Check what a frame changes about wakes."""
        event, sections = decision.event, decision.sections
        assert event is not None
        self.wakes.demand_allowed(command, event, sections, self.model)
        self.wakes.fold(event, sections)
        count_wakes(self.counts, event, sections)
        self.wake_leases.written(command, decision.outcome, self.model, self.monotonic_ms)
        self.receivers.written(command, self.model, self.monotonic_ms)

    def _check_groups(self, asked: EngineCommand | Shared) -> None:
        self.choices.after(self.model, asked)
        if isinstance(asked, Shared) and asked.change is not None:
            self.leases.changed(asked, self.monotonic_ms)
        demand_noticed(self.model, self.broker.state.unsettled, asked)

    def _check_confirmed(self, command: Append | AppendTopic) -> None:
        """Check that a sparse append that is confirmed as a repeat was stored before."""
        tag = command.producer
        if tag is None or tag.mode == DENSE:
            return
        known = self.model.streams[command.path].producers[tag.id]
        demand(was_stored(known, tag), f"confirmed, but never stored: {command}")
        self.counts["confirmed repeats of sparse producers"] += 1

    def note(self, entry: Entry) -> None:
        """Record a frame that is not durable yet."""
        self.log.append(entry)

    def facts_end(self) -> int:
        """Return the end of the last frame decided so far."""
        return self.log[-1].end if self.log else self.durable_end

    def answered(self, outcome: Outcome, facts_end: int) -> None:
        """Record a returned outcome: what it depends on must survive any crash."""
        count(self.counts, outcome)
        self.promises.answered(outcome)
        self.trace.update(repr(outcome).encode())
        if not isinstance(outcome, Overloaded):
            self.promised_end = max(self.promised_end, facts_end)

    def ask(self) -> None:
        """Let a client send a command, sometimes in a moment in which the clock is wrong."""
        self.counts["operations"] += 1
        self.counts["queued after a waiting command"] += self.broker.is_congested
        self._hear()
        self._deliver()
        now_ms = self.now_ms
        if self.swarm.jumps and self.clock_rng.random() < 0.005:
            now_ms += self.clock_rng.choice([-TEN_YEARS_MS, TEN_YEARS_MS])
            self.counts["commands with a wrong clock"] += 1
        command = self.access.draw(self.model, now_ms)
        if command is None:
            command = self.letters.draw(self.model, now_ms)
        if command is None:
            command = self.workload.draw(self.model, now_ms)
        self.topics.asked(command)
        caller = self.access.caller(self.model, self.broker.state, command)
        if caller is not None or not self.access.is_reserved(command):
            self.broker.submit(command, _ignore, caller)

    def _hear(self) -> None:
        """Let some members send a heartbeat, which writes nothing unless it comes too late."""
        for group, member in self.workload.groups.heartbeats(self.model):
            end = self.broker.end
            is_late = self.leases.is_over(self.model, (group, member), self.monotonic_ms)
            suspects = self.workload.groups.suspects()
            self.broker.endings.hear(group, member, self.now_ms, suspects)
            demand(is_late or self.broker.end == end, "a heartbeat has written a frame")
            self.leases.heard(self.model, (group, member), self.monotonic_ms)

    def _deliver(self) -> None:
        """Let some wakes be delivered to webhooks, and some deliveries end."""
        if self.workload.subscriptions.is_off:
            return
        if self.wake_rng.random() < 0.02:
            self.let_pass(SECOND_MS)  # the shortest lease can expire before the next sweep
        self.receivers.take(self.broker, self.model, self.durable_model, self.monotonic_ms)
        result = self.receivers.result(self.now_ms, self.monotonic_ms)
        if result is not None:
            self.broker.submit(result, _ignore)

    def write(self) -> None:
        """Run one step of the journal's thread: take a write group, write it, or complete it."""
        if self.group is None:
            had_room = not (self.broker.needs_room or self.broker.is_congested)
            self.group = self.broker.next_group()
            self.is_group_on_disk = False
            if had_room and not self.broker.is_congested:
                demand_awake(self.broker.state)
        elif not self.is_group_on_disk:
            self.writer.write(self.group)
            self.is_group_on_disk = True
        else:
            self.complete()

    def complete(self) -> None:
        """Run what the loop does after a write."""
        group, self.group = self.group, None
        assert group is not None
        if group.is_synced:
            self._advance_durable(group.end)
        self.broker.written(group)
        self._check_ends()

    def find_room(self) -> None:
        """Let the journal's thread look for a spare segment; commands may wait for it."""
        if self.broker.needs_room and (self.group is None or not self.is_group_on_disk):
            self.broker.set_room(self.writer.make_room())

    def _advance_durable(self, end: int) -> None:
        while self.log and self.log[0].end <= end:
            entry = self.log.pop(0)
            self.durable_model.replay(entry.command)
            entry.replay(self.shadow)
            self.durable_wakes.fold(entry.event, entry.sections)
            self.durable_end = entry.end

    def checkpoint(self) -> None:
        """Run one step of the checkpoint's thread."""
        if self.dead is not None:
            unlink_segments(self.disk, self.dead)
            self.counts["segments unlinked"] += len(self.dead)
            self.dead = self.cut = None
        elif self.cut is None:
            self.cut = self.broker.cut()
        elif self.is_cut_ready():
            self._commit_cut(self.cut)

    def is_cut_ready(self) -> bool:
        """Return whether everything in the cut is durable."""
        return self.cut is not None and self.broker.durable >= self.cut.lsn

    def _commit_cut(self, cut: Cut) -> None:
        try:
            dead = commit_cut(self.store, cut)
        except StoreFull:
            self.broker.cut_failed(cut)
            self.cut = None
            self.counts["checkpoint without room"] += 1
            return
        self.broker.cut_done(dead)
        demand_chunks_kept(self.broker.state, cut.segments, dead)
        self.dead = dead
        self.counts["checkpoints"] += 1

    def read(self) -> None:
        """Let a client read a whole stream, and check that it gets exactly what is durable."""
        path = self.workload.path_to_read(self.model)
        self.counts["operations"] += 1
        view = self.broker.durable_view.by_path.get(path)
        if view is not None and can_expire(view.row):
            self._read_mortal(path)
            return
        isolation = self.txn_rng.choice([READ_COMMITTED, READ_UNCOMMITTED])
        found = read_all(self.broker, path, self.now_ms, isolation)
        if isinstance(found, list):
            is_committed = isolation == READ_COMMITTED
            demand_same_messages(found, self.durable_model, path, is_committed)
            self.counts["reads"] += 1
            self.counts[isolation] += 1
        elif found is not None:
            demand(not isinstance(found, Unreadable), f"{path} cannot be read: {found}")
            self.counts[f"read {type(found).__name__}"] += 1

    def _read_mortal(self, path: str) -> None:
        got: list[Outcome] = []
        self.broker.read(path, None, now_ms=self.now_ms, reply=got.append)
        demand(not (got and isinstance(got[0], Unreadable)), f"{path} cannot be read: {got}")
        if got and isinstance(got[0], ReadDone):
            self.timeouts.read(got[0].row.number, self.monotonic_ms)
            self.counts["reads"] += 1

    def wait(self) -> None:
        """Let a client wait for new messages of a stream."""
        path = self.workload.path_to_read(self.model)
        view = self.broker.durable_view.by_path.get(path)
        if view is None or view.tail is None:
            return
        woken: list[bool] = []
        is_committed = self.txn_rng.random() < 0.5
        isolation = READ_COMMITTED if is_committed else READ_UNCOMMITTED
        end = view.tail.stable if is_committed else view.tail.tail
        if self.broker.durable_view.wait(path, end, lambda: woken.append(True), isolation):
            self.waiters.append((path, end, is_committed, woken))

    def tick(self) -> None:
        """Let time pass, or let the wall clock jump; expire what is due."""
        self.let_pass(self.rng.choice([1, 5, 30]))
        if self.swarm.jumps and self.clock_rng.random() < 0.02:
            self.let_pass(self.clock_rng.choice([MINUTE_MS, HOUR_MS, 25 * HOUR_MS]))
        if self.lives_rng.random() < 0.1:
            quarter_ms = MINUTE_MS // 4
            self.let_pass(self.lives_rng.choice([*[quarter_ms] * 6, MINUTE_MS, 10 * MINUTE_MS]))
        if self.swarm.jumps and self.rng.random() < 0.05:
            self.now_ms += self.rng.choice([-TEN_YEARS_MS, -HOUR_MS, -1, HOUR_MS, TEN_YEARS_MS])
        self._sweep(10)
        self.broker.count_hour(self.now_ms)

    def _sweep(self, count_max: int) -> None:
        self.broker.endings.sweep(self.now_ms, count_max)
        for _ in self.broker.sweep_groups(self.now_ms, count_max):
            pass
        self.broker.wakes.offer_due()

    def let_pass(self, ms: int) -> None:
        """Let time pass: the wall clock and the monotonic clock go on."""
        self.now_ms += ms
        self.monotonic_ms += ms

    def change_capacity(self) -> None:
        """Let the disk become full, or give it room again."""
        if self.swarm.no_room:
            used = sum(map(len, self.disk.files().values()))
            self.disk.capacity_bytes = self.rng.choice([None, None, used, used // 2])
            self.broker.set_room(self.writer.make_room())

    # ---- the process: crash ----------------------------------------------------------------------

    def crash(self, *, is_power: bool) -> None:
        """Kill the process, or lose power if `is_power`, and start it again."""
        self._fall(is_power=is_power)
        self.disk.capacity_bytes = None
        self.boot()

    def _fall(self, *, is_power: bool) -> None:
        self.injector.is_on = False
        self.counts["crashes"] += 1
        if is_power:
            mode = self.rng.choice(CRASH_MODES)
            self.counts[f"power loss, {mode}"] += 1
            self.disk.crash(self.rng, mode)
            self.store.crash(self.rng)
        else:
            self.disk.kill()
            self.store.kill()

    def settle(self) -> None:
        """Finish everything that is in progress, without faults, and compare all of it."""
        self.injector.is_on = False
        self.disk.capacity_bytes = None
        self.broker.set_room(self.writer.make_room())
        self._finish()
        for _ in range(REBALANCES_MAX):
            if not self.broker.state.unsettled:
                break
            self.let_pass(REBALANCE_MS)
            self._finish()
        demand(not self.log, "some frames are never written")
        self.timeouts.demand_nothing_left(
            self.model, now_ms=self.now_ms, monotonic_ms=self.monotonic_ms
        )
        demand_equal(state_view(self.broker.state), self.model.view(), "live state and model")
        demand_outcomes(self.broker, self.model)
        demand_ended_owners(self.broker, self.model)
        self.leases.demand_nothing_left(self.model, self.monotonic_ms)
        demand_settled(self.model)
        demand_letters(self.model, self.counts)
        self._check_wakes()
        for path, offset, is_committed, woken in self.waiters:
            view = self.broker.durable_view.by_path.get(path)
            is_past = view is None or view.tail is None
            if view is not None and view.tail is not None:
                is_past = (view.tail.stable if is_committed else view.tail.tail) > offset
            demand(woken or not is_past, f"a reader of {path} was never woken")

    def _check_wakes(self) -> None:
        demand_awake(self.broker.state)
        self.wakes.demand_messages(self.model)
        self.wake_leases.demand_nothing_left(self.model, self.monotonic_ms)

    def settle_wakes(self) -> None:
        """Let every receiver do all of its work, and all leases expire: nothing is left pending."""
        for name in list(self.model.subscriptions.by_id):
            self.broker.submit(ResumeSubscription(self.now_ms, name), _ignore)
        for _ in range(SETTLE_ROUNDS):
            self._finish()
            results = self.receivers.finish(self.broker, self.now_ms)
            for result in results:
                self.broker.submit(result, _ignore)
            self._finish()
            if not results and not any(map(self._is_busy, self.model.subscriptions.by_id)):
                return
            self.let_pass(HOUR_MS)
        raise Violation(f"some wakes are never delivered: {self.model.subscriptions.by_id}")

    def _is_busy(self, name: str) -> bool:
        """Return whether a wake is in flight that somebody has or must get."""
        subscription = self.model.subscriptions.by_id[name]
        is_webhook = subscription.configuration.type == WEBHOOK
        wake = subscription.wake
        return wake is not None and (is_webhook or bool(wake.worker))

    def _finish(self) -> None:
        """Write everything that is decided, and end everything that is due."""
        for _ in range(10_000):
            self.let_pass(1)  # what has to wait for room is tried again a millisecond later
            self.find_room()
            self._sweep(SWEEP_ALL)
            self.broker.count_hour(self.now_ms)
            was_idle = self.group is None
            self.write()
            if was_idle and self.group is None:
                break


def _ignore(_outcome: Outcome) -> None:
    """Ignore an outcome; the observer has already received it."""
