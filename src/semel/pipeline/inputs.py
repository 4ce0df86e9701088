"""The inputs of a processor together: when there is enough for a step, and what it takes."""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from semel.client.client import Client
from semel.client.errors import ProtocolError
from semel.client.flows import impatient
from semel.client.sync_driver import Stop
from semel.client.values import Message
from semel.pipeline.delivery import Range
from semel.pipeline.feeds import EndFeed, Feed
from semel.pipeline.processors import Processor

STEP_MESSAGES_MAX: Final = 5_000
_PAUSE_SECONDS_MIN: Final = 0.005
_PAUSE_SECONDS_MAX: Final = 0.25
_DRAINING_PAUSE_SECONDS_MAX: Final = 0.02  # the others are at work

Planned = dict[str, tuple[list[Message], Range]]


class Inputs:
    """The feeds of a processor.

    `is_ending()`: nobody in the graph writes to them any more; then it ends where they end.
    `limits`: for streams that others write to, where to end. Both are for runs that drain.
    """

    def __init__(
        self,
        client: Client,
        processor: Processor,
        stop: Stop,
        *,
        is_draining: bool = False,
        is_ending: Callable[[], bool] = lambda: False,
        limits: Mapping[str, int] | None = None,
        reads_ahead: bool = True,
        step_messages_max: int = STEP_MESSAGES_MAX,
    ) -> None:
        self._client = client
        self.stop = stop
        self._is_join = processor.is_join
        self._is_ending = is_ending
        self._count = step_messages_max
        self._pause_max = _DRAINING_PAUSE_SECONDS_MAX if is_draining else _PAUSE_SECONDS_MAX
        # The i-th messages can only be found by reading: offsets may have holes.
        reads = reads_ahead or processor.is_join
        self._is_patient = len(processor.inputs) == 1 and reads and not is_draining
        limits = limits or {}
        self.by_binding = {
            binding: Feed(client, path, stop, is_patient=self._is_patient, limit=limits.get(path))
            if reads
            else EndFeed(client, path, stop, limit=limits.get(path))
            for binding, path in processor.inputs.items()
        }

    @property
    def feeds(self) -> list[Feed]:
        """The feeds, in the order of the bindings."""
        return list(self.by_binding.values())

    @property
    def lag(self) -> int:
        """How many offsets are not processed yet, as far as is known."""
        return sum(feed.lag for feed in self.feeds)

    def place(self, positions: Mapping[str, int]) -> None:
        """Begin where a group stands."""
        for feed in self.feeds:
            calls = self._client.stream(feed.path).calls
            flow = impatient(calls.head(), self._client.timeout)
            found = self._client.driver.run(flow, None, self.stop)
            if found.incarnation is None:
                raise ProtocolError("pipelines need semel; this is another server")
            feed.place(positions.get(feed.path, 0), found.incarnation)

    def move(self, ranges: Iterable[Range]) -> None:
        """Stand behind what was committed."""
        ends = {one.stream: one.to for one in ranges}
        for feed in self.feeds:
            feed.advance(ends[feed.path])

    def wait(self, on_idle: Callable[[], None]) -> bool:
        """Wait until there is enough for a step; False if there will never be, or on a stop."""
        pause = _PAUSE_SECONDS_MIN
        while not self.stop.is_set:
            if self._is_enough():
                return True
            is_ending = self._is_ending()  # before reading: what was written until then is read
            for feed in self.feeds:
                if not feed.has_ready:
                    if feed.is_at_end:
                        on_idle()
                    feed.fetch()
            if self._is_enough():
                return True
            if self._is_exhausted(is_ending=is_ending):
                return False
            if not self._is_patient and all(
                feed.has_ready or feed.is_at_end for feed in self.feeds
            ):
                self.stop.wait(pause)
                pause = min(2 * pause, self._pause_max)
        return False

    def _is_enough(self) -> bool:
        filled = [feed.has_ready for feed in self.feeds]
        return all(filled) if self._is_join else any(filled)

    def _is_exhausted(self, *, is_ending: bool) -> bool:
        """Whether nothing more can come: of any input of a join, of all alternatives."""
        empty = [
            not feed.has_ready and (feed.is_over or (is_ending and feed.is_at_end))
            for feed in self.feeds
        ]
        return any(empty) if self._is_join else all(empty)

    def plan(self) -> Planned:
        """Take what a step is to be made of: of a join the same count from each input."""
        count = max(self._count // (1 if self._is_join else len(self.feeds)), 1)
        if self._is_join:
            count = min(count, *[len(feed.ready) for feed in self.feeds])
        return {binding: feed.take(count) for binding, feed in self.by_binding.items()}
