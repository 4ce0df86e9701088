"""The machine alone against the reference model: no journal, no crashes, hence many commands.

After every command, both outcomes and both complete states must be equal.
"""

from collections import Counter
from random import Random

from semel.machine import MachineLimits, State, apply, validate_and_decide
from semel.model.commands import EngineCommand, ExpireTxn
from semel.model.outcomes import InvalidRequest
from semel.model.producer_commands import CountHour
from tests.sim.demands import demand, demand_equal, is_same
from tests.sim.facts import with_facts
from tests.sim.oracle import state_view
from tests.sim.oracle_groups import Choices
from tests.sim.reference import Model
from tests.sim.reference_txn import Bounds
from tests.sim.tally import count
from tests.sim.workload import Workload, is_broken

START_MS = 1_700_000_000_000
DAY_MS = 24 * 60 * 60 * 1000
FRAME_BYTES = 8  # any value will do: it gives each chunk its own LSN


class Alone:
    """A machine and a reference model that get the same commands."""

    def __init__(self, seed: int, txn_share: float = 0.6) -> None:
        rng = self.rng = Random(seed)
        self.limits = MachineLimits(
            receipts=rng.choice([5, 8, 64]),
            registry=rng.choice([4, 1000]),
            key_hours=2,
            outcome_hours=3,
        )
        self.state = State(self.limits)
        self.model = Model(
            self.limits.receipts,
            key_hours=2,
            registry_max=self.limits.registry,
            bounds=Bounds(outcome_hours=3),
        )
        self.workload = Workload(
            rng,
            payload_bytes_max=512,
            txn_rng=Random(f"txn {seed}"),
            txn_share=txn_share,
            policy_rng=Random(f"policies {seed}"),
            topic_rng=Random(f"topics {seed}") if seed % 3 else None,
            group_rng=Random(f"groups {seed}") if seed % 2 else None,
            wake_rng=Random(f"wakes {seed}") if seed % 5 > 1 else None,
        )
        self.has_jumps = rng.random() < 0.3
        self.now_ms = START_MS
        self.end = 0
        self.counts: Counter[str] = Counter()
        self.choices = Choices(self.counts)

    def step(self) -> None:
        """Sometimes advance the clock; send the next command."""
        if self.rng.random() < 0.1:
            self.now_ms += self.rng.choice([1, 5, 30])
        if self.has_jumps and self.rng.random() < 0.01:
            self.now_ms += self.rng.choice([DAY_MS // 2, DAY_MS, 3 * DAY_MS, -DAY_MS])
        command = self.workload.draw(self.model, self.now_ms)
        for txn in list(self.model.txns.open.values()):
            if self.rng.random() < 0.002:  # as the broker's sweep does
                elapsed_ms = self.rng.choice([100, 60_000, DAY_MS - 1, DAY_MS])
                self.ask(ExpireTxn(self.now_ms, txn.id, txn.epoch, elapsed_ms))
        if self.rng.random() < 0.002:
            self.ask(CountHour(self.now_ms))
        late = self.workload.groups.late(self.model, self.now_ms)
        if late is not None:
            self.ask(late)
        wake = self.workload.subscriptions.late(self.model, self.now_ms)
        if wake is not None:
            self.ask(wake)
        self.ask(command)

    def ask(self, command: EngineCommand) -> None:
        """Send a command to both, and compare outcomes and states."""
        command = with_facts(self.model, command)
        decision = validate_and_decide(self.state, command)
        if is_broken(command):
            demand(isinstance(decision.outcome, InvalidRequest), f"{command}: {decision.outcome}")
            return
        asked = self.choices.before(self.model, command, decision)
        expected = self.model.execute(asked)
        count(self.counts, expected)
        demand(
            is_same(decision.outcome, expected),
            f"{command}\n  engine: {decision.outcome}\n  model:  {expected}",
        )
        self.choices.after(self.model, asked)
        if decision.event is not None:
            time_ms = self.state.frame_time(command.now_ms)
            apply(self.state, decision.event, decision.sections, time_ms, self.end)
            self.end += FRAME_BYTES
        demand_equal(state_view(self.state), self.model.view(), f"engine and model after {command}")
