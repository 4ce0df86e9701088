"""The lag of groups: how many messages they have not read, and how old the first of these is.

A range of offsets can contain aborted messages and control records, which nobody reads. The index
shows which messages are aborted. Only its frame shows whether an append of one offset is a control
record. So a response that shows lags has a budget of appends and of frames.
"""

from collections.abc import Callable
from typing import Final

from msgspec import Struct

from semel.broker.durable_view import BrokerReader, DurableView, FrameSpan, StreamView
from semel.journal.segments import FrameTooLong
from semel.machine.group_views import NO_LAG, Lag, SharedStreamView
from semel.model.errors import ReadFailed
from semel.model.limits import KIB, MIB
from semel.model.steps import STEP_ROWS, Steps

SPANS_MAX: Final = 10_000  # appends that are counted in one stream
_SPANS_IN_ALL: Final = 20 * SPANS_MAX
_FRAMES_IN_ALL: Final = 20_000  # frames that are read for one response
_FRAMES_PER_STEP: Final = 32
_FRAME_BYTES_MAX: Final = 64 * KIB
# The frame of the first message shows its age, so it is also read if it is longer, alone in a step.
_FIRST_FRAME_BYTES_MAX: Final = 8 * MIB
_LONG_BYTES_IN_ALL: Final = 64 * MIB  # of these longer frames


class _Walk(Struct):
    """The messages of a range that were counted so far.

    `controls` is how many control records the stream still can have, or negative if that is not
    known. `first_ms` is the time of the first message, or None if it is not known.
    """

    at: int
    end: int
    controls: int
    messages: int = 0
    spans: int = 0
    is_begun: bool = False  # the first message was found
    first_ms: int | None = None


class LagCounter:
    """Counts the lag in the streams of one response. `now_ms` is a wall clock."""

    def __init__(self, view: DurableView, reader: BrokerReader, now_ms: Callable[[], int]) -> None:
        self._view = view
        self._reader = reader
        self._now_ms = now_ms
        self._spans_left = _SPANS_IN_ALL
        self._frames_left = _FRAMES_IN_ALL
        self._long_bytes_left = _LONG_BYTES_IN_ALL

    def steps(self, stream: SharedStreamView) -> Steps[Lag]:
        """Return the lag of a group in a stream, in steps."""
        start = max(stream.position, stream.head)
        bound = stream.end - start
        if bound <= 0:
            return NO_LAG
        view = self._view.by_number.get(stream.number)
        if view is None or view.tail is None:
            return Lag(None, bound, None)  # the stream was deleted
        fork = view.row.fork
        is_of_source = fork is not None and start < fork.start  # their controls are not counted
        walk = _Walk(start, stream.end, -1 if is_of_source else stream.controls)
        is_plain = walk.controls == 0 and view.durable_tail.aborted_end <= start
        messages: int | None
        try:
            is_complete = yield from self._walk(view, walk, is_plain=is_plain)
            messages = walk.messages if is_complete else None
        except ReadFailed:
            messages = None
        return Lag(bound if is_plain else messages, bound, self._age(walk, messages))

    def _age(self, walk: _Walk, messages: int | None) -> float | None:
        if walk.first_ms is not None:
            return max(0, self._now_ms() - walk.first_ms) / 1000
        return 0.0 if messages == 0 else None

    def _walk(self, view: StreamView, walk: _Walk, *, is_plain: bool) -> Steps[bool]:
        """Count the messages of a range, in steps. Raises ReadFailed.

        Return False if the budget ends before the range. If the range `is_plain`, it has only
        messages, and only the first of them is looked at.
        """
        while walk.at < walk.end:
            frames_left, long_bytes_left = self._frames_left, self._long_bytes_left
            # The index can change between two steps, so each step begins a search of its own.
            for count, span in enumerate(self._reader.spans(view, walk.at, walk.end), 1):
                if not self._count(walk, span):
                    return False
                if is_plain and walk.is_begun:
                    return True
                is_long = self._long_bytes_left < long_bytes_left
                frames = frames_left - self._frames_left
                if is_long or count >= STEP_ROWS or frames >= _FRAMES_PER_STEP:
                    break
            else:
                return True
            yield
        return True

    def _count(self, walk: _Walk, span: FrameSpan) -> bool:
        """Count the messages of a span. Return False if the budget does not allow it."""
        walk.spans += 1
        self._spans_left -= 1
        if walk.spans > SPANS_MAX or self._spans_left < 0:
            return False
        size = span.end - span.start
        is_suspect = size == 1 and walk.controls != 0
        if is_suspect or not walk.is_begun:
            looked = self._look(span, is_first=not walk.is_begun)
            if looked is None and is_suspect:
                return False
            if looked is not None and looked[1]:
                walk.controls -= 1
                walk.at = span.end
                return True
            if not walk.is_begun:
                walk.is_begun = True
                walk.first_ms = None if looked is None else looked[0]
        walk.messages += size
        walk.at = span.end
        return True

    def _look(self, span: FrameSpan, *, is_first: bool) -> tuple[int, bool] | None:
        """Return the time of a span's frame, and whether the span is a control record.

        Return None if the budget is used up, or if the frame is too long. Raises ReadFailed.
        """
        if self._frames_left <= 0:
            return None
        self._frames_left -= 1
        long_max = min(_FIRST_FRAME_BYTES_MAX, self._long_bytes_left) if is_first else 0
        try:
            time_ms, is_control, size = self._reader.look(span, max(_FRAME_BYTES_MAX, long_max))
        except FrameTooLong:
            return None
        if size > _FRAME_BYTES_MAX:
            self._long_bytes_left -= size
        return time_ms, is_control
