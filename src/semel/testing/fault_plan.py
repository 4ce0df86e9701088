"""What a `FaultProxy` does to a request, and who decides it."""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from random import Random
from typing import Final

_TRICKLE_SECONDS: Final = 0.001
_REORDER_SECONDS: Final = 0.25
_STALL_SECONDS: Final = 5.0
_RATES_TOLERANCE: Final = 1e-9


class Action(StrEnum):
    """One fate of a request. `before`: the server never sees it; `after`: it has answered."""

    PASS = "pass"  # noqa: S105 - no password
    """Hand over the request, hand back the answer."""
    DELAY = "delay"
    """Hold the request for a while; those behind it on its connection wait, too."""
    DROP_REQUEST = "drop_request"
    """Close the client's connection; the server sees nothing."""
    DROP_ANSWER = "drop_answer"
    """Close the client's connection when the server has answered."""
    DUPLICATE_BEFORE = "duplicate_before"
    """Send a copy on another connection first; the client gets the answer to its own request."""
    DUPLICATE_AFTER = "duplicate_after"
    """Send a copy on another connection when the client has its answer."""
    REORDER = "reorder"
    """Let the next request overtake this one: of this connection, or else of any other."""
    CUT_REQUEST = "cut_request"
    """Hand over a part of the request, then close both connections."""
    CUT_ANSWER = "cut_answer"
    """Hand back a part of the answer, of an event stream some events and a part, then close."""
    HALF_OPEN_BEFORE = "half_open_before"
    """Keep the client's connection, and neither read nor say anything; the server sees nothing."""
    HALF_OPEN_AFTER = "half_open_after"
    """The same, but the server got the request and has answered."""
    TRICKLE = "trickle"
    """Hand over the request and the answer byte by byte."""
    RESET = "reset"
    """When the server has answered, reset both connections (RST)."""
    BAD_GATEWAY_BEFORE = "bad_gateway_before"
    """Answer 502; the server sees nothing."""
    BAD_GATEWAY_AFTER = "bad_gateway_after"
    """Answer 502 in place of the server's answer."""
    STALE = "stale"
    """Hand back the answer, then close the connection without having announced it."""


class FaultPlan:
    """Draws an action for each request: first those of `script`, in order, then by `rates`.

    A rate is a probability; what they leave of 1 passes. With `only`, such as "POST /v1/commits",
    every request that does not begin so passes, too. `delay_seconds` is how long a delay is, or
    from where to where it is drawn. The other times: between two bytes of a trickle, how long a
    request that is to be overtaken waits for another, and how long a stall of any kind may last.
    """

    def __init__(
        self,
        rates: Mapping[str, float] | None = None,
        *,
        script: Iterable[str] = (),
        only: str = "",
        seed: int = 0,
        delay_seconds: float | tuple[float, float] = (0.001, 0.05),
        trickle_seconds: float = _TRICKLE_SECONDS,
        reorder_seconds: float = _REORDER_SECONDS,
        stall_seconds: float = _STALL_SECONDS,
    ) -> None:
        rates = rates or {}
        if any(rate < 0 for rate in rates.values()) or sum(rates.values()) > 1 + _RATES_TOLERANCE:
            raise ValueError("rates are probabilities: none below 0, together at most 1")
        self._actions = [Action(name) for name in rates]
        self._weights = list(rates.values())
        self._script = [Action(name) for name in reversed(list(script))]
        self._only = only.encode()
        self.random: Final = Random(seed)
        self.delay_seconds: Final = delay_seconds
        self.trickle_seconds: Final = trickle_seconds
        self.reorder_seconds: Final = reorder_seconds
        self.stall_seconds: Final = stall_seconds

    def draw(self, request: bytes = b"") -> Action:
        """Decide about the next request."""
        if not request.startswith(self._only):
            return Action.PASS
        if self._script:
            return self._script.pop()
        left = self.random.random()
        for action, weight in zip(self._actions, self._weights, strict=True):
            left -= weight
            if left < 0:
                return action
        return Action.PASS

    def draw_delay(self) -> float:
        """Decide how long a delay is."""
        if isinstance(self.delay_seconds, tuple):
            return self.random.uniform(*self.delay_seconds)
        return self.delay_seconds
