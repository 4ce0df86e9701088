"""Receivers of webhooks, and the server's threads that call them.

A delivery that is due is taken from the broker, and its result comes some time later: the receiver
has done everything, has only received it, has failed, or has not responded. If the process crashes
before, nobody learns of the result. What a receiver sends by itself is drawn by the workload.
"""

from collections import Counter
from random import Random
from typing import NamedTuple

from semel.broker.broker import Broker
from semel.machine.subscription_views import DeliveryView, delivery_view
from semel.model.commands import EngineCommand
from semel.model.subscription_commands import WEBHOOK, AckWake, NoteDelivery, WakeAck
from tests.sim.demands import demand, demand_equal
from tests.sim.reference import Model
from tests.sim.workload_subscriptions import SubscriptionWorkload

DELAYS_MS = (0, 0, 1, 20, 5_000)
LATER_MS_MAX = 60_000  # the delay after many failures


class Delivery(NamedTuple):
    """A delivery whose result is not known yet to the server."""

    id: str
    wake_id: str
    generation: int
    ends_ms: int


class Receivers:
    """The deliveries of a run, each subscription with its own share of failures."""

    def __init__(self, rng: Random, workload: SubscriptionWorkload, counts: Counter[str]) -> None:
        self._rng, self._workload, self._counts = rng, workload, counts
        self._failures = rng.choice([0.1, 0.4, 0.8])
        self._open: list[Delivery] = []
        # When the wake, by its id, may be delivered again.
        self._not_before_ms: dict[str, int] = {}

    def restart(self, model: Model, monotonic_ms: int) -> None:
        """Begin again: the results of deliveries are lost, and delays begin again."""
        self._open, self._not_before_ms = [], {}
        for subscription in model.subscriptions.by_id.values():
            wake = subscription.wake
            if wake is not None and wake.attempts:
                self._not_before_ms[wake.id] = monotonic_ms + least_delay_ms(wake.attempts)

    # ---- deliveries ------------------------------------------------------------------------------

    def take(self, broker: Broker, model: Model, durable: Model, monotonic_ms: int) -> None:
        """Deliver what is due."""
        for name in broker.wakes.take_deliveries(self._rng.choice([1, 2, 100])):
            view = delivery_view(broker.state, name)
            demand(view is not None, f"there is nothing to deliver to {name}")
            assert view is not None
            self._demand_due(view, model, durable, monotonic_ms)
            ends_ms = monotonic_ms + self._rng.choice(DELAYS_MS)
            self._open.append(Delivery(name, view.wake_id, view.generation, ends_ms))
            self._counts["deliveries"] += 1

    def _demand_due(
        self, view: DeliveryView, model: Model, durable: Model, monotonic_ms: int
    ) -> None:
        subscription = model.subscriptions.by_id[view.id]
        wake = subscription.wake
        assert wake is not None
        demand_equal((view.wake_id, view.generation), (wake.id, subscription.generation), "a wake")
        demand(not subscription.is_suspended, f"{view.id} is suspended, but is delivered")
        twin = durable.subscriptions.by_id.get(view.id)
        is_durable = twin is not None and twin.wake is not None and twin.wake.id == wake.id
        demand(is_durable, f"the wake of {view.id} is delivered before it is durable")
        is_again = any(each.wake_id == wake.id for each in self._open)
        demand(not is_again, f"the wake of {view.id} is delivered twice at a time")
        due_ms = self._not_before_ms.get(wake.id, 0)
        demand(due_ms <= monotonic_ms, f"the wake of {view.id} is delivered {due_ms} too early")
        self._counts["deliveries again"] += wake.attempts > 0
        paths = {s.number: path for path, s in model.streams.items()}
        expected = [
            (paths[number], offset)
            for number, offset in wake.snapshot
            if number in subscription.links
        ]
        found = [(each.path, each.tail) for each in view.streams]
        demand_equal(found, expected, f"the streams that are delivered to {view.id}")

    def result(self, now_ms: int, monotonic_ms: int) -> EngineCommand | None:
        """Return what the server records of a delivery that has ended, or None."""
        ended = [each for each in self._open if each.ends_ms <= monotonic_ms]
        if not ended or self._rng.random() < 0.3:
            return None
        delivery = self._rng.choice(ended)
        self._open.remove(delivery)
        luck = self._rng.random()
        if luck < self._failures:
            error = self._rng.choice(["status 500", "no response"])
            wake = delivery.id, delivery.wake_id, delivery.generation
            return self._workload.noted(now_ms, *wake, error=error)
        if luck < self._failures + (1 - self._failures) / 3:
            return NoteDelivery(
                now_ms, delivery.id, delivery.generation, None, wake_id=delivery.wake_id
            )
        return done(now_ms, delivery)

    def written(self, command: EngineCommand, model: Model, monotonic_ms: int) -> None:
        """Record that a failed delivery was recorded, or that a suspension has ended."""
        for subscription in model.subscriptions.by_id.values():
            if subscription.wake is not None and not subscription.wake.attempts:
                self._not_before_ms.pop(subscription.wake.id, None)
        if isinstance(command, NoteDelivery) and command.error is not None:
            wake = model.subscriptions.by_id[command.id].wake
            assert wake is not None
            delay_ms = max(least_delay_ms(wake.attempts), command.retry_after_ms)
            self._not_before_ms[wake.id] = monotonic_ms + delay_ms

    # ---- at the end ------------------------------------------------------------------------------

    def finish(self, broker: Broker, now_ms: int) -> list[EngineCommand]:
        """Return the results of all deliveries, when every receiver does all of its work."""
        names = broker.wakes.take_deliveries(1_000)
        views = [delivery_view(broker.state, name) for name in names]
        new = [Delivery(v.id, v.wake_id, v.generation, 0) for v in views if v is not None]
        ended, self._open = [*self._open, *new], []
        return [done(now_ms, each) for each in ended]


def least_delay_ms(attempts: int) -> int:
    """Return how long the next delivery waits at least; W10."""
    return int(min(1_000 * 2 ** (attempts - 1), LATER_MS_MAX) * 0.8)


def done(now_ms: int, delivery: Delivery) -> AckWake:
    """Return what the server sends for a response with `done`."""
    ack = WakeAck(delivery.id, delivery.wake_id, delivery.generation, done=True)
    return AckWake(now_ms, ack, WEBHOOK, by_snapshot=True)
