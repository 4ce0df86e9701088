"""What only the running process stores about wakes: leases, retry times, and who is to be called.

The rules are in `docs/reference/subscriptions.md`. Times are measured like those of members of
groups (see `memberships.py`): by a monotonic clock that stands still while the event loop does.
After a restart every lease and every delay starts again. So a wake can end late, but never early.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Final
from zlib import crc32

from semel.broker.memberships import Leases, LoopClock
from semel.machine import Event
from semel.machine.events import DecidedWithAcks
from semel.machine.state import State
from semel.machine.subscribers import Subscription
from semel.machine.subscription_events import (
    Acked,
    Claimed,
    DeliveryNoted,
    Unsubscribed,
    WakeEnded,
    WakeIssued,
)
from semel.model.commands import Commit, CommitTxn, EngineCommand
from semel.model.limits import RETRY_MS_MAX, RETRY_MS_MIN, WAKES_PER_GROUP_MAX
from semel.model.outcomes import Outcome, Refusal
from semel.model.subscription_commands import (
    WEBHOOK,
    AckWake,
    ClaimWake,
    ExpireWake,
    IssueWake,
    NoteDelivery,
    ReleaseWake,
)

_WAKE_ID_BYTES: Final = 16
_SEARCHED_MAX: Final = 20_000  # pending streams of the wakes that are issued in one write group
_JITTER: Final = 0.2  # a delay is so much longer or shorter, at most

Notice = tuple[Callable[[str], None], str]  # a function to call with an id, when it is durable
# Executes a command that no client has sent. Returns False if the command has to wait.
Execute = Callable[[EngineCommand], bool]


def retry_ms(name: str, attempts: int) -> int:
    """Return the delay after so many failed deliveries in a row (W10).

    It differs between subscriptions, so that those of one target are not all delivered at once.
    """
    delay_ms = min(RETRY_MS_MIN << min(attempts - 1, 30), RETRY_MS_MAX)
    share = crc32(f"{attempts} {name}".encode(errors="surrogatepass")) / 0xFFFFFFFF
    return round(delay_ms * (1 + _JITTER * (2 * share - 1)))


def affected_wakes(command: EngineCommand) -> Iterable[str]:
    """Return the subscriptions whose wake a command uses."""
    if isinstance(command, AckWake):
        return (command.ack.id,)
    if isinstance(command, ClaimWake | ReleaseWake | NoteDelivery):
        return (command.id,)
    if isinstance(command, Commit | CommitTxn):
        return [wake.id for wake in command.wakes]
    return ()


class Wakes:
    """Issues wakes, ends those whose lease has expired, and finds the deliveries that are due.

    A wake of a webhook that is in flight is in one of these states: its delivery is due, it is
    being delivered, it waits for a retry, it is leased, or its subscription is suspended.

    `on_deliverable` is called with the id of each subscription whose delivery becomes due. Without
    it, `take_deliveries` returns them. `expire_stream` is `Endings.expire_stream`. `issued`,
    `expired`, `delivered` and `failed` count since the start of the process.
    """

    def __init__(
        self,
        state: State,
        execute: Execute,
        clock: LoopClock,
        random_bytes: Callable[[int], bytes],
    ) -> None:
        self._state = state
        self._execute = execute
        self._random_bytes = random_bytes
        self._leases: Leases[str] = Leases(clock.now_ms)
        self._retries: Leases[str] = Leases(clock.now_ms)
        self._deliverable: dict[str, None] = {}
        self._queue: dict[str, None] = {}  # subscriptions that need a wake, the oldest first
        self.on_deliverable: Callable[[str], None] | None = None
        self.expire_stream: Callable[[str, int], bool] = lambda _path, _now_ms: True
        self.issued = self.expired = self.delivered = self.failed = 0
        for name, subscription in sorted(state.subscriptions.by_id.items()):
            self._resume(name, subscription)

    def _resume(self, name: str, subscription: Subscription) -> None:
        """Continue with a wake that was in flight when the process started (W9, W11)."""
        wake = subscription.wake
        if wake.worker:
            self._lease(name, subscription)
        elif not self._is_deliverable(subscription):
            return
        elif wake.attempts:
            self._retries.start(name, retry_ms(name, wake.attempts))
        else:
            self._deliverable[name] = None

    @property
    def leased(self) -> int:
        """The number of wakes that a worker or a receiver has."""
        return len(self._leases)

    def _find(self, name: str) -> Subscription | None:
        return self._state.subscriptions.by_id.get(name)

    @staticmethod
    def _is_deliverable(subscription: Subscription) -> bool:
        wake = subscription.wake
        return subscription.row.type == WEBHOOK and bool(wake.wake_id) and not wake.is_suspended

    def _lease(self, name: str, subscription: Subscription) -> None:
        self._retries.stop(name)
        self._leases.start(name, subscription.row.lease_ms)

    # ---- issuing -------------------------------------------------------------------------------

    def issue_due(self) -> None:
        """Issue the wakes that subscriptions need, at most WAKES_PER_GROUP_MAX (W1).

        Fewer, if these have very many pending streams, so that this takes a few milliseconds. The
        time of the frames is that of the newest one, which has made the wakes necessary.
        """
        due, queue = self._state.subscriptions.due, self._queue
        count = searched = 0
        while count < WAKES_PER_GROUP_MAX:
            # The message about a wake can make the subscriptions due that follow its wake stream.
            for name in sorted(due.difference(queue)):
                queue[name] = None
            names = [*queue][: WAKES_PER_GROUP_MAX - count]
            if not names:
                return
            count += len(names)
            for name in names:
                if name in due:
                    searched += len(self._state.subscriptions.by_id[name].pending)
                    if not self._issue(name, self._state.time_ms):
                        return
                del queue[name]
                if searched > _SEARCHED_MAX:
                    return

    def issue_for(self, command: EngineCommand) -> bool:
        """Issue the wake that a claim needs. Return False if that has to wait (W4)."""
        if isinstance(command, ClaimWake) and command.id in self._state.subscriptions.due:
            return self._issue(command.id, command.now_ms)
        return True

    def _issue(self, name: str, now_ms: int) -> bool:
        """Issue a wake. Return False if that has to wait.

        First delete the wake stream if its TTL has passed, because the message about the wake would
        start its TTL again. It does not change a date, and the time of frames can be after that of
        the clock.
        """
        path = self._state.subscriptions.by_id[name].row.wake_stream
        stream = None if path is None else self._state.by_path.get(path)
        has_ttl = stream is not None and stream.row.expires_at_ms is None
        if path is not None and has_ttl and not self.expire_stream(path, now_ms):
            return False
        wake_id = f"w_{self._random_bytes(_WAKE_ID_BYTES).hex()}"
        return self._execute(IssueWake(now_ms, name, wake_id))

    # ---- leases --------------------------------------------------------------------------------

    def end_expired(self, command: EngineCommand) -> bool:
        """End the wakes that a command uses, if their leases have expired.

        So a late worker does not renew a lease that has already expired. Return False if that has
        to wait.
        """
        return not len(self._leases) or all(
            self._execute(each)
            for name in affected_wakes(command)
            if self._leases.is_due(name)
            for each in self._expire_commands(name, command.now_ms)
        )

    def due(self, now_ms: int, count_max: int) -> Iterator[ExpireWake]:
        """Return the commands that end at most `count_max` wakes whose leases have expired.

        `now_ms` is the time of the wall clock. Execute each command before the next is requested.
        """
        for name in self._leases.due(count_max):
            if self._leases.is_due(name):
                yield from self._expire_commands(name, now_ms)

    def _expire_commands(self, name: str, now_ms: int) -> Iterator[ExpireWake]:
        subscription = self._find(name)
        if subscription is None or not subscription.wake.wake_id:
            self._leases.stop(name)
            return
        elapsed_ms = self._leases.elapsed_ms(name)
        yield ExpireWake(now_ms, name, subscription.wake.generation, elapsed_ms)

    # ---- deliveries ----------------------------------------------------------------------------

    def take_deliveries(self, count_max: int) -> list[str]:
        """Return at most `count_max` subscriptions whose delivery is due, each of them once."""
        names = [*self._deliverable][:count_max]
        for name in names:
            del self._deliverable[name]
        return names

    def is_deliverable(self, name: str) -> bool:
        """Return True if the wake of a subscription is to be delivered: it is not leased."""
        subscription = self._find(name)
        is_open = subscription is not None and self._is_deliverable(subscription)
        return is_open and name not in self._leases

    def offer_due(self, count_max: int = WAKES_PER_GROUP_MAX) -> None:
        """Let at most `count_max` deliveries be made again whose delay has passed."""
        for name in self._retries.due(count_max):
            self._retries.stop(name)
            self._offer(name)

    def _offer(self, name: str) -> None:
        if not self.is_deliverable(name):
            return
        if self.on_deliverable is None:
            self._deliverable[name] = None
        else:
            self.on_deliverable(name)

    def _offer_later(self, name: str) -> Notice:
        """Return what to call when the wake that is in flight is durable.

        By then another wake can be in flight, which is not durable yet.
        """
        subscription = self._find(name)
        wake_id = "" if subscription is None else subscription.wake.wake_id
        return partial(self._offer_wake, wake_id), name

    def _offer_wake(self, wake_id: str, name: str) -> None:
        subscription = self._find(name)
        if subscription is not None and subscription.wake.wake_id == wake_id:
            self._offer(name)

    def note_outcome(self, command: EngineCommand, outcome: Outcome) -> None:
        """Record a command of a worker or a delivery that was accepted, if it starts a time.

        Some of these commands write no frame, and the disk can be too full for the frame of others.
        """
        if isinstance(outcome, Refusal):
            return
        if isinstance(command, AckWake):
            self._renew(command.ack.id, is_done=command.ack.done)
        elif isinstance(command, NoteDelivery):
            if command.error is None:
                self.delivered += 1
                self._renew(command.id, is_done=False)
            else:
                self.failed += 1
                self._retry(command)

    def _renew(self, name: str, *, is_done: bool) -> None:
        subscription = self._find(name)
        if subscription is not None and not is_done:
            self._lease(name, subscription)

    def _retry(self, command: NoteDelivery) -> None:
        subscription = self._find(command.id)
        if subscription is not None and command.id not in self._leases:
            delay_ms = retry_ms(command.id, subscription.wake.attempts + 1)
            self._retries.start(command.id, max(delay_ms, command.retry_after_ms))

    # ---- events --------------------------------------------------------------------------------

    def note(self, event: Event) -> list[Notice]:
        """Record an event that was just applied. Return what to call when it is durable."""
        if isinstance(event, WakeIssued):
            self.issued += 1
            return [self._offer_later(event.id)]
        if isinstance(event, DeliveryNoted):
            return self._note_delivery(event)
        if isinstance(event, Claimed):
            self._renew(event.id, is_done=False)
        elif isinstance(event, Acked):
            self._note_acks([event])
        elif isinstance(event, DecidedWithAcks):
            self._note_acks(event.wakes)
        elif isinstance(event, WakeEnded | Unsubscribed):
            self.expired += isinstance(event, WakeEnded) and event.is_expired
            self._stop(event.id)
        return []

    def _note_delivery(self, event: DeliveryNoted) -> list[Notice]:
        if event.is_suspended:
            self._stop(event.id)
        return [self._offer_later(event.id)] if event.is_resumed else []

    def _note_acks(self, wakes: Iterable[Acked]) -> None:
        for wake in wakes:
            if wake.is_done:
                self._stop(wake.id)
            else:
                self._renew(wake.id, is_done=False)

    def _stop(self, name: str) -> None:
        self._leases.stop(name)
        self._retries.stop(name)
        self._deliverable.pop(name, None)
