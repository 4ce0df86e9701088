"""What only the running process stores about the members of groups: times, and who waits.

A heartbeat writes no frame. When a member was last heard, and since when a stream is to be
released, is measured by the monotonic clock of the process, as all timeouts are (see `timers.py`).
After a restart every timeout starts again, and time in which the event loop stood still does not
count: see `LoopClock`. So a member can expire late, but never early.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from heapq import heapify, heappop, heappush
from typing import Final, Generic, TypeVar

from msgspec import Struct

from semel.broker.timers import CHECKS_PER_RESULT, QUEUE_SLACK, MonotonicMs
from semel.journal.identity import SHARED_FORMAT_VERSION, SUBSCRIPTIONS_FORMAT_VERSION
from semel.machine import Event
from semel.machine.events import Decided, PositionsMoved
from semel.machine.shared_events import GroupChanged, GroupForgotten, TopicAdded
from semel.machine.state import State
from semel.machine.subscription_events import Subscribed
from semel.model.group_commands import ExpireMember, RebalanceGroup, TakeStream

REBALANCE_MS: Final = 1_000  # the time between two rebalances of a group that no member requests
_SUSPECTS_MAX: Final = 100  # streams that a member can say it processes alone
TICK_MS: Final = 250  # the time between two calls of `LoopClock.tick`
_TICK_LATE_MS: Final = 2 * TICK_MS
# The events that older versions would ignore, and the format version of a directory that has them.
FORMAT_EVENTS: Final[Mapping[type, int]] = {
    TopicAdded: SHARED_FORMAT_VERSION,
    GroupChanged: SHARED_FORMAT_VERSION,
    Subscribed: SUBSCRIPTIONS_FORMAT_VERSION,
}
WAITS_MAX: Final = 16_384  # heartbeats that wait for a change of their group

K = TypeVar("K", str, tuple[str, str], tuple[str, int])
Notice = tuple[Callable[[str], None], str]  # a function to call with a group, when it is durable


# ---- the clock -----------------------------------------------------------------------------------


class LoopClock:
    """A monotonic clock that stands still while the event loop does.

    While the loop is busy with one thing for long, or the process is stopped, the requests of
    members wait in their connections. Their sessions must not end before these have been read. The
    loop calls `tick` every TICK_MS. If the next call comes more than twice this time later, the
    clock stands still from then on until the call. Without `watch`, nothing is left out.
    """

    def __init__(self, monotonic_ms: MonotonicMs) -> None:
        self._monotonic_ms = monotonic_ms
        self._loop_seconds: Callable[[], float] = lambda: 0.0
        self._lost_ms = 0
        self._due_ms = 0.0  # the latest time of the next tick, by the clock of the loop

    def watch(self, loop_seconds: Callable[[], float]) -> Callable[[], None]:
        """Begin to watch a loop by its own clock. Return `tick`, for the loop to call."""
        self._loop_seconds = loop_seconds
        self._due_ms = loop_seconds() * 1000 + _TICK_LATE_MS
        return self.tick

    def now_ms(self) -> int:
        """Return the time, without what was left out."""
        return self._monotonic_ms() - self._lost_ms - self._late_ms()

    def _late_ms(self) -> int:
        return max(0, int(self._loop_seconds() * 1000 - self._due_ms))

    def tick(self) -> None:
        """Record that the loop runs. It has looked at its connections before."""
        self._lost_ms += self._late_ms()
        self._due_ms = self._loop_seconds() * 1000 + _TICK_LATE_MS


# ---- timeouts ------------------------------------------------------------------------------------


class _Lease(Struct, gc=False):
    """When a timeout was renewed, how long it is, and when it is checked next."""

    since_ms: int
    timeout_ms: int
    check_ms: int


class Leases(Generic[K]):
    """Keys that have a timeout each, and a queue with the next check of each key.

    When a timeout is renewed, its place in the queue does not change. If the check then comes
    before the timeout has passed, the key is queued again.
    """

    def __init__(self, monotonic_ms: MonotonicMs) -> None:
        self._monotonic_ms = monotonic_ms
        self._leases: dict[K, _Lease] = {}
        self._queue: list[tuple[int, K]] = []

    def __len__(self) -> int:
        return len(self._leases)

    def __contains__(self, key: K) -> bool:
        return key in self._leases

    def start(self, key: K, timeout_ms: int) -> None:
        """Start the timeout of a key, also if it is running."""
        now_ms = self._monotonic_ms()
        self._leases[key] = _Lease(now_ms, timeout_ms, now_ms + timeout_ms)
        heappush(self._queue, (now_ms + timeout_ms, key))
        if len(self._queue) > 2 * len(self._leases) + QUEUE_SLACK:
            self._queue = [(lease.check_ms, each) for each, lease in self._leases.items()]
            heapify(self._queue)

    def renew(self, key: K) -> None:
        """Let the timeout of a key start again, unless it has passed or there is none."""
        lease, now_ms = self._leases.get(key), self._monotonic_ms()
        if lease is not None and now_ms - lease.since_ms < lease.timeout_ms:
            lease.since_ms = now_ms

    def stop(self, key: K) -> None:
        """Remove a key. Its entry may stay in the queue until its time."""
        self._leases.pop(key, None)

    def elapsed_ms(self, key: K) -> int:
        """Return how long ago the timeout of a key started or was renewed."""
        return self._monotonic_ms() - self._leases[key].since_ms

    def is_due(self, key: K) -> bool:
        """Return True if a key has a timeout and the timeout has passed."""
        lease = self._leases.get(key)
        return lease is not None and self._monotonic_ms() - lease.since_ms >= lease.timeout_ms

    def due(self, count_max: int) -> list[K]:
        """Return at most `count_max` keys whose timeout has passed."""
        overdue: list[K] = []
        now_ms = self._monotonic_ms()
        for _ in range(CHECKS_PER_RESULT * count_max):
            if not self._queue or self._queue[0][0] > now_ms or len(overdue) >= count_max:
                break
            check_ms, key = heappop(self._queue)
            lease = self._leases.get(key)
            if lease is None or lease.check_ms != check_ms:
                continue  # it was stopped, or started again
            end_ms = lease.since_ms + lease.timeout_ms
            # It is queued again even if it is due: the disk may have no space for its end now.
            lease.check_ms = max(end_ms, now_ms + 1)
            heappush(self._queue, (lease.check_ms, key))
            if end_ms <= now_ms:
                overdue.append(key)
        return overdue


# ---- members -------------------------------------------------------------------------------------


class HeartbeatWait(Struct, eq=False):
    """A heartbeat that waits for a change of its group. `wake` is called once.

    With `has_limits`, a move of a position of the group can be such a change.
    """

    group: str
    wake: Callable[[], None]
    has_limits: bool


class Memberships:
    """The members of all groups: their timeouts, due rebalances, and heartbeats that wait.

    `rebalances` and `expired` count since the start of the process: the frames that changed the
    owners of streams, and the members whose session has timed out.

    Before a frame with one of FORMAT_EVENTS, `allow_format` makes the directory ready for it,
    with the format version of the event. It returns False if the disk is too full for that.
    """

    def __init__(self, state: State, monotonic_ms: MonotonicMs) -> None:
        self._state = state
        self.allow_format: Callable[[int], bool] = lambda _version: True
        self.clock: Final = LoopClock(monotonic_ms)
        self._monotonic_ms = monotonic_ms = self.clock.now_ms
        self._sessions: Leases[tuple[str, str]] = Leases(monotonic_ms)  # (group, member)
        self._releases: Leases[tuple[str, int]] = Leases(monotonic_ms)  # (group, stream number)
        # What members process alone, as they said last. After a restart, nothing is known of it.
        self._suspects: dict[tuple[str, str], tuple[str, ...] | None] = {}
        self._rebalanced_ms: dict[str, int] = {}  # by group, if it was less than REBALANCE_MS ago
        self._waits: dict[str, dict[HeartbeatWait, None]] = {}
        self._displacements: dict[str, int] = {}
        self._announced: set[str] = set()  # groups in `unsettled` whose waits were woken
        self.wait_count = self.limited_count = 0
        self.rebalances = self.expired = 0
        for group, share in state.shares.items():
            for member, row in share.members.items():
                self._sessions.start((group, member), row.session_timeout_ms)
            self._await_releases(group, [*share.streams])

    def __len__(self) -> int:
        """Return the number of members of all groups."""
        return len(self._sessions)

    def allows_first(self, kind: type) -> bool:
        """Make the directory ready for a kind of FORMAT_EVENTS. Return False if it is too full."""
        return self.allow_format(FORMAT_EVENTS[kind])

    def hear(self, group: str, member: str, suspects: tuple[str, ...] | None = None) -> None:
        """Record that a member was heard. This does not revive a member that has expired.

        `suspects` are the streams whose next message it processes alone, or None if it does not
        say.
        """
        self._sessions.renew((group, member))
        share = self._state.shares.get(group)
        if suspects is not None and share is not None and member in share.members:
            self._suspects[group, member] = suspects[:_SUSPECTS_MAX]

    def suspects_of(self, group: str, member: str) -> tuple[str, ...] | None:
        """Return what a member processes alone, or None if it has never said so.

        If this process has not heard the member at all, it is not known, and nothing is suspect.
        """
        return self._suspects.get((group, member), ())

    def suspects_of_instance(self, group: str, instance: str | None) -> tuple[str, ...] | None:
        """Return what the member with this instance name processes alone, if there is one."""
        share = self._state.shares.get(group)
        if share is not None and instance is not None:
            for member in share.members.values():
                if member.instance == instance:
                    return self.suspects_of(group, member.id)
        return None

    def heard_ms_ago(self, group: str, member: str) -> int | None:
        """Return how long ago a member was heard, or the process started; None if it is gone."""
        key = (group, member)
        return self._sessions.elapsed_ms(key) if key in self._sessions else None

    def has_expired(self, group: str, member: str) -> bool:
        """Return True if the session of a member has timed out, but the member is still there."""
        return self._sessions.is_due((group, member))

    # ---- events --------------------------------------------------------------------------------

    def note(self, event: Event) -> list[Notice]:
        """Record an event that was just applied. Return what to call when it is durable.

        These calls wake the heartbeats that wait for such a change.
        """
        if isinstance(event, GroupChanged):
            self._note_change(event)
            return self._notices(event.group)
        if isinstance(event, GroupForgotten):
            self._displacements.pop(event.group, None)
            return self._notices(event.group)
        notices: list[Notice] = []
        if self.limited_count and isinstance(event, Decided | PositionsMoved):
            notices += [(self.wake_limited, group) for group in self._waits]
        for group in self._newly_unsettled():
            notices += self._notices(group)
        return notices

    def _note_change(self, event: GroupChanged) -> None:
        group, row = event.group, event.joined
        for member in event.left:
            self.expired += self._sessions.is_due((group, member))
            self._sessions.stop((group, member))
            self._suspects.pop((group, member), None)
        if row is not None:
            self._suspects[group, row.id] = None
            self._sessions.start((group, row.id), row.session_timeout_ms)
        for number, _starts in event.freed:
            self._releases.stop((group, number))
        for assigned in event.assigned:
            self._releases.stop((group, assigned.stream))
        self._await_releases(group, event.revoking)
        if event.freed or event.revoking or event.assigned:
            self.rebalances += 1

    def _await_releases(self, group: str, numbers: Iterable[int]) -> None:
        """Start the timeouts of the streams that their owners must release.

        The owner may have left, if a prepared transaction holds the position. Then the stream is
        free when the transaction ends.
        """
        share = self._state.shares[group]
        for number in numbers:
            row = share.streams[number]
            owner = share.members.get(row.owner or "") if row.is_revoking else None
            if owner is not None:
                self._releases.start((group, number), owner.rebalance_timeout_ms)

    def _newly_unsettled(self) -> set[str]:
        """Return the groups that must be rebalanced since the last call.

        A stream of such a group may be deleted. Its owner must not wait for the rebalance to hear
        of it, because the rebalance may have nothing to change.
        """
        unsettled = self._state.unsettled
        if not unsettled and not self._announced:
            return set()
        fresh = unsettled - self._announced
        self._announced = set(unsettled)
        return fresh

    # ---- what is due ---------------------------------------------------------------------------

    def due(self, now_ms: int, count_max: int) -> Iterator[ExpireMember | TakeStream]:
        """Return the commands that end at most `count_max` sessions, and as many releases.

        `now_ms` is the time of the wall clock. Execute each command before the next is requested.
        Time can pass between two of them, so what is no longer due is left out.
        """
        for group, member in self._sessions.due(count_max):
            if self.has_expired(group, member):
                yield self.expire_command(group, member, now_ms)
        for group, number in self._releases.due(count_max):
            if not self._releases.is_due((group, number)):
                continue
            share = self._state.shares.get(group)
            row = None if share is None else share.streams.get(number)
            if row is None or not row.is_revoking:
                self._releases.stop((group, number))  # it was deleted, or stays with its owner
                continue
            path = self._state.by_number[number].row.path
            elapsed_ms = self._releases.elapsed_ms((group, number))
            yield TakeStream(now_ms, group, path, elapsed_ms)

    def expire_command(self, group: str, member: str, now_ms: int) -> ExpireMember:
        """Return the command that removes a member whose session has timed out."""
        elapsed_ms = self._sessions.elapsed_ms((group, member))
        return ExpireMember(now_ms, group, member, elapsed_ms, self.suspects_of(group, member))

    def due_rebalances(self, now_ms: int, count_max: int) -> Iterator[RebalanceGroup]:
        """Return the commands that rebalance at most `count_max` groups that are unsettled.

        A group is rebalanced at most once per REBALANCE_MS. It is no longer unsettled, unless the
        caller adds it again because the command has to wait.
        """
        time_ms = self._monotonic_ms()
        self._rebalanced_ms = {
            group: at_ms
            for group, at_ms in self._rebalanced_ms.items()
            if time_ms - at_ms < REBALANCE_MS
        }
        unsettled = self._state.unsettled
        groups = sorted(group for group in unsettled if group not in self._rebalanced_ms)
        for group in groups[:count_max]:
            if group not in unsettled:  # it was deleted meanwhile
                continue
            self._rebalanced_ms[group] = time_ms
            unsettled.discard(group)
            yield RebalanceGroup(now_ms, group)

    # ---- heartbeats that wait ------------------------------------------------------------------

    def wait(
        self, group: str, wake: Callable[[], None], *, has_limits: bool
    ) -> HeartbeatWait | None:
        """Call `wake` once, when the group may have changed. Return None if too many wait."""
        if self.wait_count >= WAITS_MAX:
            return None
        wait = HeartbeatWait(group, wake, has_limits)
        self._waits.setdefault(group, {})[wait] = None
        self.wait_count += 1
        self.limited_count += has_limits
        return wait

    def stop_waiting(self, wait: HeartbeatWait) -> None:
        """Cancel a wait. Do nothing if it was already woken."""
        waits = self._waits.get(wait.group)
        if waits is None or wait not in waits:
            return
        del waits[wait]
        self.wait_count -= 1
        self.limited_count -= wait.has_limits
        if not waits:
            del self._waits[wait.group]

    def wake(self, group: str) -> None:
        """Wake all heartbeats that wait for a change of a group."""
        self._wake([*self._waits.get(group, ())])

    def displace(self, group: str) -> None:
        """Let the members of a group hear that an operator has moved a position of the group."""
        if group in self._state.shares:
            self._displacements[group] = self._displacements.get(group, 0) + 1
            self.wake(group)

    def displacements(self, group: str) -> int:
        """Return how often an operator has moved positions of a group since the process started."""
        return self._displacements.get(group, 0)

    def wake_limited(self, group: str) -> None:
        """Wake the heartbeats of a group for which a move of a position can be a change."""
        self._wake([wait for wait in self._waits.get(group, ()) if wait.has_limits])

    def _wake(self, waits: list[HeartbeatWait]) -> None:
        for wait in waits:
            self.stop_waiting(wait)
            wait.wake()

    def _notices(self, group: str) -> list[Notice]:
        return [(self.wake, group)] if group in self._waits else []
