"""The disk space of a running engine: how much of each segment is still needed."""

from time import monotonic
from typing import Final

import msgspec

from semel.journal.disk import Disk
from semel.journal.space import SegmentSpace, survey
from semel.journal.store import BadSeal, Store
from semel.model.errors import EngineError

# A survey begins only if so many times the duration of the last one has passed since.
_PAUSE: Final = 50


class SpaceSurvey:
    """The result of the last survey of the segments.

    The space that is needed changes only with checkpoints. So the thread that commits checkpoints
    makes the survey after a checkpoint, but never for more than about 2 % of its time.
    """

    def __init__(self, disk: Disk, store: Store) -> None:
        self._disk = disk
        self._store = store
        self._next_at = 0.0
        self.segments: list[SegmentSpace] = []

    def refresh(self) -> None:
        """Make a survey, unless the last one was too recent.

        If the checkpoint or a segment cannot be read, the last result stays: reads report damage.
        """
        started = monotonic()
        if started < self._next_at:
            return
        try:
            with self._store.read() as view:
                self.segments = survey(view, self._disk)
        except (OSError, BadSeal, EngineError, msgspec.DecodeError):
            return
        finally:
            finished = monotonic()
            self._next_at = finished + _PAUSE * (finished - started)
