"""Which deliveries are made next, so that slow and dead targets do not delay the others.

Each subscription is in one of three classes, by its last delivery: *fast*, if it succeeded within a
second; *new*, if there was none; and *slow*, if it failed or took longer. Each class has its own
share of all deliveries at the same time, so a delivery never waits for one of a worse class.

A delivery that is being made and takes longer than a second counts as slow from then on, as long as
the share of the slow ones has room. So targets that all become dead at once, or that are fast only
every other time, occupy the share of the fast ones for a second each.
"""

from collections import Counter, deque
from typing import Final

from semel.model.limits import DELIVERIES_MAX, DELIVERIES_PER_HOST_MAX, SUBSCRIPTIONS_MAX

FAST: Final = "fast"
NEW: Final = "new"
SLOW: Final = "slow"
CLASSES: Final = (FAST, NEW, SLOW)
FAST_SECONDS_MAX: Final = 1.0

# Of 10 deliveries. The slow class has more, because each of its deliveries can take 10 seconds.
_SHARES: Final = {FAST: 3, NEW: 3, SLOW: 4}


class DeliverySlots:
    """The deliveries that wait and those that are being made: one for each subscription.

    `total` is how many are made at the same time, and `per_host` how many of them to one host.
    """

    def __init__(
        self, total: int = DELIVERIES_MAX, per_host: int = DELIVERIES_PER_HOST_MAX
    ) -> None:
        self._sizes = {name: max(1, total * share // 10) for name, share in _SHARES.items()}
        self._per_host = per_host
        self._hosts: dict[str, str] = {}  # of all that wait or are being made
        self._classes: dict[str, str] = {}  # of deliveries that are being made, the oldest first
        self._begun: dict[str, float] = {}  # when these were taken
        self._again: dict[str, str] = {}  # of those, the ones that are due again, with their hosts
        self._waiting: dict[str, deque[str]] = {name: deque() for name in CLASSES}
        self._parked: dict[str, deque[str]] = {}  # what waits for a host
        self._counts: Counter[str] = Counter()  # being made, by class
        self._host_counts: Counter[str] = Counter()
        self._is_fast: dict[str, bool] = {}  # whether the last delivery was

    @property
    def in_flight(self) -> int:
        """How many deliveries are being made."""
        return len(self._classes)

    def class_of(self, name: str) -> str:
        """Return the class of a subscription."""
        is_fast = self._is_fast.get(name)
        return NEW if is_fast is None else FAST if is_fast else SLOW

    def offer(self, name: str, host: str) -> None:
        """Let a delivery be made, or once more, if one is being made. It can wait already."""
        if name in self._classes:
            self._again[name] = host
        elif name not in self._hosts:
            self._hosts[name] = host
            self._waiting[self.class_of(name)].append(name)

    def take(self, now: float = 0.0) -> str | None:
        """Return a subscription whose delivery is to be made now, or None. See `release`.

        `now` is the time of a monotonic clock, in seconds.
        """
        for each in CLASSES:
            waiting = self._waiting[each]
            while waiting and self._counts[each] < self._sizes[each]:
                name = waiting.popleft()
                host = self._hosts[name]
                if self._host_counts[host] < self._per_host:
                    self._classes[name] = each
                    self._begun[name] = now
                    self._counts[each] += 1
                    self._host_counts[host] += 1
                    return name
                self._parked.setdefault(host, deque()).append(name)
        return None

    def note_slow(self, now: float) -> None:
        """Count deliveries that have taken longer than FAST_SECONDS_MAX as slow ones.

        Those of fast subscriptions come first, because their share is worth the most.
        """
        for slot_class in (FAST, NEW):
            for name, begun in self._begun.items():
                is_slow = now - begun > FAST_SECONDS_MAX
                if not is_slow or self._counts[SLOW] >= self._sizes[SLOW]:
                    break
                if self._classes[name] == slot_class:
                    self._classes[name] = SLOW
                    self._counts[slot_class] -= 1
                    self._counts[SLOW] += 1

    def release(self, name: str, *, is_fast: bool | None = None) -> None:
        """Record that a delivery has ended. `is_fast` is None if no request was sent."""
        self._counts[self._classes.pop(name)] -= 1
        del self._begun[name]
        host = self._hosts.pop(name)
        self._host_counts[host] -= 1
        if not self._host_counts[host]:
            del self._host_counts[host]
        if is_fast is not None:
            self._is_fast.pop(name, None)  # so that the oldest is first
            self._is_fast[name] = is_fast
            if len(self._is_fast) > 2 * SUBSCRIPTIONS_MAX:
                del self._is_fast[next(iter(self._is_fast))]
        self._unpark(host)
        if name in self._again:
            self.offer(name, self._again.pop(name))

    def _unpark(self, host: str) -> None:
        """Let a delivery that waits for a host be made before others of its class."""
        parked = self._parked.get(host)
        if parked:
            name = parked.popleft()
            self._waiting[self.class_of(name)].appendleft(name)
            if not parked:
                del self._parked[host]
