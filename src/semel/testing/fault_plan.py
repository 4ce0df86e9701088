"""The faults of a `FaultProxy`, and the plan that chooses them."""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from random import Random
from typing import Final

_TRICKLE_SECONDS: Final = 0.001
_REORDER_SECONDS: Final = 0.25
_STALL_SECONDS: Final = 5.0
_RATES_TOLERANCE: Final = 1e-9


class Action(StrEnum):
    """What the proxy does with a request.

    For `half_open` and `bad_gateway`, `before` means that the server does not get the request, and
    `after` that it has responded.
    """

    PASS = "pass"  # noqa: S105 - no password
    """Forward the request and the response."""
    DELAY = "delay"
    """Delay the request, and with it all later requests of the connection."""
    DROP_REQUEST = "drop_request"
    """Close the client's connection; the server gets nothing."""
    DROP_ANSWER = "drop_answer"
    """Close the client's connection after the server has responded."""
    DUPLICATE_BEFORE = "duplicate_before"
    """First send a copy on another connection. The client gets the response to its own request."""
    DUPLICATE_AFTER = "duplicate_after"
    """Send a copy on another connection after the client has its response."""
    REORDER = "reorder"
    """Let a later request, of the same connection or of another one, overtake this one."""
    CUT_REQUEST = "cut_request"
    """Forward a part of the request, then close both connections."""
    CUT_ANSWER = "cut_answer"
    """Forward a part of the response, then close. That part may have several whole body chunks."""
    HALF_OPEN_BEFORE = "half_open_before"
    """Keep the client's connection open without reading or writing; the server gets nothing."""
    HALF_OPEN_AFTER = "half_open_after"
    """The same as half_open_before, but the server has got the request and has responded."""
    TRICKLE = "trickle"
    """Forward the request and the response byte by byte."""
    RESET = "reset"
    """After the server has responded, reset both connections (RST)."""
    BAD_GATEWAY_BEFORE = "bad_gateway_before"
    """Respond with 502; the server gets nothing."""
    BAD_GATEWAY_AFTER = "bad_gateway_after"
    """Respond with 502 instead of the server's response."""
    STALE = "stale"
    """Forward the response, then close the connection without `Connection: close`."""


class FaultPlan:
    """Chooses an action for each request: first the actions of `script`, in order, then by `rates`.

    A rate is the probability of an action; all other requests pass. If `only` is set, such as to
    "POST /v1/commits", requests that do not begin with it pass, too. `delay_seconds` is the length
    of a delay, or a pair of limits between which the length is drawn. `trickle_seconds` is the time
    between two bytes. `reorder_seconds` is how long a request waits for another one to overtake it.
    `stall_seconds` is the maximum length of a stall of any kind. Raises ValueError if the rates are
    not probabilities, or an action is unknown.
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
            raise ValueError(f"rates are {rates}; expected probabilities with a sum of at most 1")
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
        """Return the action for the next request; `request` is the request or its beginning."""
        if not request.startswith(self._only):
            return Action.PASS
        if self._script:
            return self._script.pop()
        number = self.random.random()
        for action, weight in zip(self._actions, self._weights, strict=True):
            number -= weight
            if number < 0:
                return action
        return Action.PASS

    def draw_delay(self) -> float:
        """Return the length of a delay."""
        if isinstance(self.delay_seconds, tuple):
            return self.random.uniform(*self.delay_seconds)
        return self.delay_seconds
