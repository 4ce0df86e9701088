"""How many transactions began and how they ended, since the start of the process."""

from collections import Counter
from collections.abc import Iterable

from semel.machine.txn_rows import News, OutcomeRow
from semel.model.remembered import BY_TIMEOUT, COMMITTED


class TxnTally:
    """Counts for those who watch the server."""

    def __init__(self) -> None:
        self.started = 0
        self.committed = 0
        self.aborted: Counter[str] = Counter()  # by reason

    @property
    def timed_out(self) -> int:
        """How many took too long; they count as aborted too."""
        return self.aborted[BY_TIMEOUT]

    def note(self, news: Iterable[News]) -> None:
        """Count what ended."""
        for row in news:
            if not isinstance(row, OutcomeRow):
                continue
            if row.outcome.decision == COMMITTED:
                self.committed += 1
            else:
                self.aborted[row.outcome.reason] += 1
