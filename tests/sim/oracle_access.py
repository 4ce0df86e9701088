"""Checks of access: what was promised about tokens, and the owners of ended transactions."""

from semel.broker.broker import Broker
from semel.machine import State
from semel.model.commands import AbortTxn
from semel.model.outcomes import Outcome
from semel.model.outcomes_access import TokenEnded, TokenStored
from semel.model.rights import Caller
from tests.sim.demands import demand
from tests.sim.reference import Model


class TokenPromises:
    """The tokens whose creation or revocation was answered. These sets only grow."""

    def __init__(self, tokens_max: int) -> None:
        self._tokens_max = tokens_max
        self._created: set[str] = set()
        self._revoked: set[str] = set()

    def answered(self, outcome: Outcome) -> None:
        """Note an outcome that a client has got."""
        if isinstance(outcome, TokenStored):
            self._created.add(outcome.id)
        elif isinstance(outcome, TokenEnded):
            self._revoked.add(outcome.id)

    def demand_kept(self, state: State) -> None:
        """Check a recovered state: nothing is lost, and nothing revoked is valid again."""
        is_full = len(state.tokens) >= self._tokens_max  # then tokens replace others
        for name in self._created:
            demand(is_full or name in state.tokens, f"the token {name} is lost")
        for name in self._revoked:
            row = state.tokens.get(name)
            demand(row is None or row.revoked_ms is not None, f"{name} is no longer revoked")

    def demand_not_revoked(self, caller: Caller) -> None:
        """Check the caller of a command that is decided."""
        demand(caller.token not in self._revoked, f"a command of the revoked {caller.token}")


def demand_ended_owners(broker: Broker, model: Model) -> None:
    """Compare the owner of every transaction id that has an outcome and is not pending."""
    for name in {note.id for note in model.txns.notes} - model.txns.open.keys():
        found = broker._lookups.ended_owners(AbortTxn(0, name, 1))[name]
        expected = model.access.owner(("transaction", 0, name))
        demand(found == expected, f"the owner of the ended {name} is {found}, not {expected}")
