"""Policies of the reference model: what holds for every stream below a prefix."""

from typing import TYPE_CHECKING

from semel.model import limits
from semel.model import outcomes as out
from semel.model import outcomes_txn as txn_out
from semel.model.commands import SwitchDedup
from semel.model.outcomes import Outcome
from semel.model.policies import DedupSource, DeletePolicy, PolicyCommand, SetPolicy
from tests.sim.reference_streams import Stream

if TYPE_CHECKING:
    from tests.sim.reference import Model


class Policies:
    """The policies of the model, by prefix: the setting and the time of its last change."""

    def __init__(self, model: "Model") -> None:
        self._model = model
        self.by_prefix: dict[str, tuple[bool | None, int]] = {}

    def copy(self, model: "Model") -> "Policies":
        twin = Policies(model)
        twin.by_prefix = dict(self.by_prefix)
        return twin

    def execute(self, c: PolicyCommand) -> Outcome:
        """Set or delete a policy."""
        known = self.by_prefix.get(c.prefix)
        if isinstance(c, DeletePolicy):
            if known is None:
                return out.UnknownPolicy()
            self._model.write(c)
            del self.by_prefix[c.prefix]
            return out.PolicyDeleted()
        return self._set(c, known)

    def _set(self, c: SetPolicy, known: tuple[bool | None, int] | None) -> Outcome:
        if known is None or known[0] != c.dedup:
            others = [prefix for prefix in self.by_prefix if prefix]
            if known is None and c.prefix and len(others) >= limits.POLICIES_MAX:
                return out.LimitReached("policies", limits.POLICIES_MAX)
            self.by_prefix[c.prefix] = (c.dedup, self._model.write(c))
        dedup, changed_ms = self.by_prefix[c.prefix]
        return out.PolicySet(c.prefix, dedup, changed_ms, is_new=known is None)

    def wanted(self, path: str) -> tuple[bool, str | None]:
        """Return the setting that a stream at `path` inherits, and the prefix that decides."""
        holding = [
            prefix
            for prefix, (dedup, _) in self.by_prefix.items()
            if dedup is not None and (not prefix or f"{path}/".startswith(f"{prefix}/"))
        ]
        if not holding:
            return True, None
        longest = max(holding, key=len)
        return self.by_prefix[longest][0] is True, longest

    def source(self, path: str, stream: Stream) -> DedupSource:
        """Return where the setting of a stream comes from."""
        if stream.is_own:
            return DedupSource(is_own=True)
        wanted, prefix = self.wanted(path)
        is_pending = not stream.is_closed and wanted != (stream.dedup_from is not None)
        return DedupSource(prefix=prefix, pending=wanted if is_pending else None)

    def due(self, path: str, stream: Stream) -> bool | None:
        """Return the value to which the next append must set the switch, or None."""
        if self._model.txns.open_in(stream):
            return None
        return self.source(path, stream).pending

    def switch(self, stream: Stream, c: SwitchDedup) -> Outcome:
        """Set or remove the own setting of a stream."""
        is_on = stream.dedup_from is not None
        if c.dedup is not None and c.dedup != is_on:
            if not c.dedup and (holders := self._model.txns.open_in(stream)):
                return txn_out.StreamInTransaction(holders[0].id)
            self._model.write(c)
            stream.is_own = True
            set_switch(stream, c.dedup)
        elif stream.is_own != (c.dedup is not None):
            self._model.write(c)
            stream.is_own = c.dedup is not None
        return out.Switched(stream.dedup_from, stream.tail, self.source(c.path, stream))


def set_switch(stream: Stream, is_on: bool) -> None:
    """Start or stop the recognition of duplicates; both begin with nothing stored."""
    stream.dedup_from = stream.tail if is_on else None
    stream.producers, stream.keys = {}, {}
