"""When the leases of wakes must end, and when deliveries may be repeated, kept a second time.

Many renewals write no frame, so the reference model does not know of them. A lease never ends
early, and nobody uses a wake whose lease has expired. After a restart every time starts again.
"""

from collections import Counter
from collections.abc import Iterable

from semel.model import subscription_commands as sub_ask
from semel.model.commands import Commit, CommitTxn, EngineCommand
from semel.model.outcomes import Outcome, Refusal
from semel.model.outcomes_txn import CommitDone
from semel.model.subscription_commands import WakeAck
from tests.sim.demands import demand
from tests.sim.reference import Model
from tests.sim.reference_subscriptions import Wake


def acks_of(command: EngineCommand) -> Iterable[WakeAck]:
    """Return the acks in a command."""
    if isinstance(command, sub_ask.AckWake):
        return (command.ack,)
    return command.wakes if isinstance(command, Commit | CommitTxn) else ()


def users_of(command: EngineCommand) -> set[str]:
    """Return the subscriptions whose wake a command uses."""
    if isinstance(command, sub_ask.ClaimWake | sub_ask.ReleaseWake | sub_ask.NoteDelivery):
        return {command.id}
    return {ack.id for ack in acks_of(command)}


class WakeLeases:
    """Since when the wakes in flight are leased, by their ids."""

    def __init__(self, counts: Counter[str]) -> None:
        self._counts = counts
        self._since_ms: dict[str, int] = {}

    def restart(self, model: Model, monotonic_ms: int) -> None:
        """Begin again: a wake that is claimed stays with its worker, for a whole lease."""
        wakes = [each.wake for each in model.subscriptions.by_id.values()]
        self._since_ms = {
            wake.id: monotonic_ms for wake in wakes if wake is not None and wake.worker
        }

    def is_leased(self, model: Model, name: str) -> bool:
        """Return whether somebody has the wake of a subscription."""
        wake = self._wake(model, name)
        return wake is not None and wake.id in self._since_ms

    def _wake(self, model: Model, name: str) -> Wake | None:
        subscription = model.subscriptions.by_id.get(name)
        return None if subscription is None else subscription.wake

    def is_over(self, model: Model, name: str, monotonic_ms: int) -> bool:
        """Return whether the lease of the wake in flight has expired."""
        wake = self._wake(model, name)
        if wake is None or wake.id not in self._since_ms:
            return False
        lease_ms = model.subscriptions.by_id[name].configuration.lease_ms
        return monotonic_ms - self._since_ms[wake.id] >= lease_ms

    # ---- commands --------------------------------------------------------------------------------

    def demand_in_time(self, command: EngineCommand, model: Model, monotonic_ms: int) -> None:
        """Check that a command finds no wake whose lease has expired. It is not executed yet."""
        for name in users_of(command):
            is_over = self.is_over(model, name, monotonic_ms)
            demand(not is_over, f"{command} found the wake of {name} after its lease")

    def demand_not_early(self, command: EngineCommand, model: Model, monotonic_ms: int) -> None:
        """Check a command that ends a wake. It is not executed yet."""
        if isinstance(command, sub_ask.ExpireWake):
            is_over = self.is_over(model, command.id, monotonic_ms)
            demand(is_over, f"the wake of {command.id} has ended before its lease")
            self._counts["wakes ended by their lease"] += 1

    def decided(
        self, command: EngineCommand, outcome: Outcome, model: Model, monotonic_ms: int
    ) -> None:
        """Record an accepted ack, and a response to a delivery. It is not executed yet.

        Some of them write no frame. While the disk is full, a wake whose lease has expired can
        still be in flight. Its lease stays expired.
        """
        if isinstance(outcome, Refusal):
            return
        if isinstance(command, sub_ask.AckWake) and not command.ack.done:
            self._renew(model, command.ack.id, monotonic_ms)
        elif isinstance(command, sub_ask.NoteDelivery) and command.error is None:
            self._renew(model, command.id, monotonic_ms)

    def written(
        self, command: EngineCommand, outcome: Outcome, model: Model, monotonic_ms: int
    ) -> None:
        """Record a claim, the acks of a commit, or a suspension, which is written and executed."""
        if isinstance(command, sub_ask.ClaimWake):
            self._renew(model, command.id, monotonic_ms)
        elif isinstance(command, sub_ask.NoteDelivery):
            subscription = model.subscriptions.by_id[command.id]
            if subscription.is_suspended and subscription.wake is not None:
                self._since_ms.pop(subscription.wake.id, None)
        elif isinstance(outcome, CommitDone):
            for ack in acks_of(command):
                if not ack.done:
                    self._renew(model, ack.id, monotonic_ms)

    def _renew(self, model: Model, name: str, monotonic_ms: int) -> None:
        wake = self._wake(model, name)
        assert wake is not None
        if not self.is_over(model, name, monotonic_ms):
            self._since_ms[wake.id] = monotonic_ms

    # ---- after a sweep ---------------------------------------------------------------------------

    def demand_nothing_left(self, model: Model, monotonic_ms: int) -> None:
        """Check, after a complete sweep, that no wake is left whose lease has expired."""
        for name in model.subscriptions.by_id:
            is_over = self.is_over(model, name, monotonic_ms)
            demand(not is_over, f"the wake of {name} never ends")
