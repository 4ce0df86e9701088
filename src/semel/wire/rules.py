"""What the tables of refusals are made of."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from semel.model.outcomes import Outcome


class Rule(NamedTuple):
    """How an outcome is answered.

    `message` is formatted with the outcome; `names` are facts that have another name outside.
    """

    status: int
    message: str | Callable[[Any], str] = ""
    names: Mapping[str, str] = {}

    def tell(self, outcome: Outcome) -> str:
        """Say it to people."""
        if isinstance(self.message, str):
            return self.message.format(outcome)
        return self.message(outcome)
