"""Surveys of disk space in a running engine: short steps, with pauses between them.

A survey reads the whole index, so its time grows with the history. It must not delay a checkpoint
or the end of the engine.
"""

import asyncio
from collections.abc import Iterator
from time import monotonic
from typing import Final

import msgspec

from semel.broker.worker import Worker
from semel.journal.disk import Files
from semel.journal.space import SegmentSpace, Survey
from semel.journal.store import BadSeal, TableReader
from semel.model.errors import EngineError

# A step ends after this time. The pause after it is this multiple of its time, so a survey takes at
# most 5 % of the time of one core.
_STEP_SECONDS: Final = 0.005
_PAUSE: Final = 19


class SpaceSurvey:
    """The surveys of a running engine, and the result of the last complete one.

    The thread that commits checkpoints makes them, in short steps with pauses. So a checkpoint, or
    the end of the engine, waits for one step at most.
    """

    def __init__(self, disk: Files, store: TableReader) -> None:
        self._disk = disk
        self._store = store
        self._survey: Survey | None = None
        self._steps: Iterator[None] = iter(())
        self._made_at = 0.0
        self.segments: list[SegmentSpace] | None = None  # None before the first survey is complete

    @property
    def age_seconds(self) -> float:
        """The time since the last survey was complete."""
        return monotonic() - self._made_at

    @property
    def is_under_way(self) -> bool:
        """True if a survey has begun and needs more steps."""
        return self._survey is not None

    def step(self) -> float:
        """Work on a survey for some milliseconds. Return for how many seconds to pause then.

        If the checkpoint or a segment cannot be read, the survey ends and the last result stays:
        reads report damage.
        """
        started = monotonic()
        if self._survey is None:
            self._survey = Survey(self._store, self._disk)
            self._steps = self._survey.steps()
        try:
            # The loop ends early when the time of this step is over.
            is_complete = all(monotonic() - started <= _STEP_SECONDS for _ in self._steps)
        except (OSError, BadSeal, EngineError, msgspec.DecodeError):
            self.stop()
        else:
            if is_complete:
                self.segments = self._survey.segments
                self._made_at = monotonic()
                self.stop()
        return _PAUSE * (monotonic() - started)

    def stop(self) -> None:
        """Give up the survey that is under way, and close its file."""
        self._survey = None
        self._steps = iter(())


class SurveyTurns:
    """Runs the steps of surveys of disk space on a worker, with the pauses that they request.

    Between two steps the worker can do other jobs.
    """

    def __init__(self, worker: Worker, survey: SpaceSurvey) -> None:
        self._loop = asyncio.get_running_loop()
        self._worker = worker
        self._survey = survey
        self._is_busy = False
        self._is_stopped = False

    def begin(self) -> None:
        """Begin a survey, unless one is under way or the pause after the last one is not over."""
        if not (self._is_busy or self._is_stopped):
            self._is_busy = True
            self._worker.do(self._survey.step, self._pause)

    def stop(self) -> None:
        """Run no further steps. A step that has begun ends after some milliseconds."""
        self._is_stopped = True
        self._worker.do(self._survey.stop, lambda _: None)

    def _pause(self, seconds: float) -> None:
        self._loop.call_later(seconds, self._continue)

    def _continue(self) -> None:
        self._is_busy = False
        if self._survey.is_under_way:
            self.begin()
