"""Finds producers whose declared idle time has passed, and tombstones that have stayed long enough.

As in `timers.py`, times are measured by the monotonic clock of the process. What passed before the
process started is known in complete hours only, which the journal counts. So a producer can end
late, but never early, and restarts delay its end by less than two hours of running servers.
The tombstones of idle producers are measured in hours alone.
"""

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Final

from msgspec import Struct

from semel.broker.timers import (
    CHECKS_PER_RESULT,
    QUEUE_SLACK,
    IdleProducers,
    MonotonicMs,
    proven_ms,
)
from semel.machine.lifetimes import is_due, leave_hour
from semel.machine.rows import ProducerRow
from semel.machine.state import State, find_producer
from semel.model.commands import ExpireProducer
from semel.model.limits import NUMBER_MAX, TOMBSTONE_HOURS, TOMBSTONE_MS
from semel.model.producer_commands import DropTombstones, ExpireRegistration, Tombstone

# A producer that declares its idle time is looked at a few times within that time. Its appends are
# not noted one by one: that would cost time in every append. The next look finds out whether the
# producer was used since the last one.

_LOOKS: Final = 4  # within an idle time, so a producer ends at most a quarter of it too late
_TOMBSTONES_MAX: Final = 1_000  # in one frame
_ENTRY_BYTES: Final = 16  # that a tombstone takes in a frame in addition to its id

EndCommand = ExpireProducer | ExpireRegistration | DropTombstones


class _Watch(Struct):
    """What was seen of a producer at the last look, and since when it is certainly unused."""

    mark: object
    limit_ms: int
    since_ms: int
    look_ms: int


class ProducerLives:
    """Watches expiring producers, registrations that can end, and all tombstones.

    A registration is watched as a producer of stream 0.
    """

    def __init__(
        self,
        state: State,
        monotonic_ms: MonotonicMs,
        *,
        idle_ms: int,
        tombstone_hours: int | None,
        frame_bytes_max: int,
        hour_ms: int,
    ) -> None:
        self.idle: Final = (
            IdleProducers(state, monotonic_ms, idle_ms=idle_ms, hour_ms=hour_ms)
            if idle_ms
            else None
        )
        self._hour_ms = hour_ms
        self._state = state
        self._monotonic_ms = monotonic_ms
        self._tombstone_hours = TOMBSTONE_HOURS if tombstone_hours is None else tombstone_hours
        self._bytes_max = frame_bytes_max // 2
        self._watched: dict[tuple[int, str], _Watch] = {}
        self._queue: list[tuple[int, int, str]] = []  # (time of the next look, stream, id)
        self._by_hour: list[tuple[int, int, str]] = []  # (hour of the next look, stream, id)
        self._hourly: set[tuple[int, str]] = set()  # what is in `_by_hour`
        self._take()

    def _take(self) -> None:
        """Begin to watch what has become expiring or a tombstone since the last call."""
        counts = self._state.producer_counts
        fresh, counts.to_watch = counts.to_watch, []
        for number, producer_id in fresh:
            # It may have the same values as an earlier instance that ended: its time starts again.
            self._watched.pop((number, producer_id), None)
            self._look(number, producer_id)
        if len(self._queue) > 2 * len(self._watched) + QUEUE_SLACK:
            # Each beginning has queued one more look. Only the last one of a producer counts.
            self._queue = [(watch.look_ms, *key) for key, watch in self._watched.items()]
            heapify(self._queue)
        count = counts.tombstones + len(self._state.registry)
        if len(self._by_hour) > 2 * count + QUEUE_SLACK:
            self._prune_hours()

    def _prune_hours(self) -> None:
        """Drop what has left before its hour: tombstones over the limit, or of deleted streams."""
        keys, self._hourly, self._by_hour = self._hourly, set(), []
        for key in keys:
            hour = leave_hour(self._state, *key, self._tombstone_hours)
            if hour is not None:
                self._hourly.add(key)
                self._by_hour.append((hour, *key))
        heapify(self._by_hour)

    def _look(self, number: int, producer_id: str) -> _Watch | None:
        """Look at a producer, and queue it for the next look. Return None if it has none by time.

        The times of tombstones of idle producers are hours, so they are queued by hours.
        """
        key, now_ms = (number, producer_id), self._monotonic_ms()
        mark, limit_ms, hour = self._mark_of(number, producer_id)
        if limit_ms is None:
            self._watched.pop(key, None)
            next_hour = leave_hour(self._state, *key, self._tombstone_hours)
            if next_hour is not None and key not in self._hourly:
                self._hourly.add(key)
                heappush(self._by_hour, (next_hour, *key))
            return None
        old = self._watched.get(key)
        if old is not None and old.mark == mark:
            since_ms = old.since_ms
        else:
            since_ms = now_ms - proven_ms(self._state, hour, self._hour_ms)
        look_ms = now_ms + limit_ms // _LOOKS
        if old is None:  # perhaps its time has passed, or does so soon
            look_ms = min(look_ms, max(now_ms, since_ms + limit_ms))
        watch = self._watched[key] = _Watch(mark, limit_ms, since_ms, look_ms)
        heappush(self._queue, (look_ms, *key))
        return watch

    def _mark_of(self, number: int, producer_id: str) -> tuple[object, int | None, int]:
        """Return a value that changes with every use of a producer, and the time until its end.

        The time is None if it is not watched, or is measured in hours. The third value is the
        number of hours that were counted before its last use.
        """
        if number == 0:
            return self._registration_mark(producer_id)
        row = self._row(number, producer_id)
        if row is None or (row.is_expired and not row.is_brief):
            return None, None, 0
        if row.is_expired:
            return row.tombstone, TOMBSTONE_MS, row.hour
        use = (row.epoch, row.last_seq, row.txn, row.latest_seq, row.expires_ms)
        return use, row.expires_ms or None, row.hour

    def _registration_mark(self, producer_id: str) -> tuple[object, int | None, int]:
        row = self._state.registry.get(producer_id)
        if row is None or row.retired_hour >= 0 or not row.expires_ms:
            return None, None, 0
        is_pending = (True, producer_id) in self._state.owned
        is_used = is_pending or producer_id in self._state.producer_counts.expiring
        # While it is in use, every look gives another value, so its idle time starts again.
        busy_ms = self._monotonic_ms() if is_used else -1
        hour = self._state.hours if is_used else row.used_hour
        return (row.epoch, row.commit_seq, row.decided, busy_ms), row.expires_ms, hour

    def _row(self, number: int, producer_id: str) -> ProducerRow | None:
        stream = self._state.by_number.get(number)
        if stream is None or stream.tail.is_deleted:
            return None
        return find_producer(stream, producer_id)

    # ---- what is due -----------------------------------------------------------------------------

    def end_commands(self, now_ms: int, count_max: int) -> Iterator[EndCommand]:
        """Return the commands that end at most `count_max` producers of each kind.

        `now_ms` is the time of the wall clock. Execute each command before the next is requested.
        """
        if self.idle is not None:
            yield from self.idle.end_commands(now_ms, count_max)
        self._take()
        tombstones: list[Tombstone] = []
        for number, producer_id, elapsed_ms in self._due(count_max):
            row = self._row(number, producer_id)
            if number == 0:
                yield ExpireRegistration(now_ms, producer_id, elapsed_ms)
            elif row is not None and row.is_expired:
                tombstones.append(Tombstone(number, producer_id, elapsed_ms))
            else:
                path = self._state.by_number[number].row.path
                yield ExpireProducer(path, now_ms, producer_id, NUMBER_MAX, elapsed_ms)
        tombstones += self._due_by_hour(count_max)
        yield from self._drop(tombstones, now_ms)

    def _due(self, count_max: int) -> list[tuple[int, str, int]]:
        """Return at most `count_max` producers whose time has passed, and how long they waited."""
        due: list[tuple[int, str, int]] = []
        now_ms = self._monotonic_ms()
        for _ in range(CHECKS_PER_RESULT * count_max):
            if not self._queue or self._queue[0][0] > now_ms or len(due) >= count_max:
                break
            look_ms, number, producer_id = heappop(self._queue)
            old = self._watched.get((number, producer_id))
            if old is None or old.look_ms != look_ms:
                continue  # it was looked at since then
            # It is queued again even if it is due: the disk may have no space to end it now.
            watch = self._look(number, producer_id)
            if watch is not None and now_ms - watch.since_ms >= watch.limit_ms:
                due.append((number, producer_id, now_ms - watch.since_ms))
        return due

    def _due_by_hour(self, count_max: int) -> list[Tombstone]:
        """Return at most `count_max` tombstones for which enough hours were counted."""
        due: list[Tombstone] = []
        hours = self._state.hours
        while self._by_hour and self._by_hour[0][0] <= hours and len(due) < count_max:
            _, number, producer_id = heappop(self._by_hour)
            self._hourly.discard((number, producer_id))
            tombstone = Tombstone(number, producer_id)
            hour = leave_hour(self._state, number, producer_id, self._tombstone_hours)
            if hour is not None:
                self._hourly.add((number, producer_id))
                heappush(self._by_hour, (max(hour, hours + 1), number, producer_id))
                if is_due(self._state, tombstone, self._tombstone_hours):
                    due.append(tombstone)
        return due

    def _drop(self, tombstones: list[Tombstone], now_ms: int) -> Iterator[DropTombstones]:
        """Return commands that drop tombstones, as many at once as fit into a frame."""
        batch: list[Tombstone] = []
        size = 0
        for tombstone in tombstones:
            length = len(tombstone.id.encode()) + _ENTRY_BYTES
            if batch and (size + length > self._bytes_max or len(batch) == _TOMBSTONES_MAX):
                yield DropTombstones(now_ms, tuple(batch), self._tombstone_hours)
                batch, size = [], 0
            batch.append(tombstone)
            size += length
        if batch:
            yield DropTombstones(now_ms, tuple(batch), self._tombstone_hours)
