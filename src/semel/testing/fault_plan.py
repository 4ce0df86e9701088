"""The faults that a `FaultProxy` can inject, and the plan that chooses among them."""

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

    `half_open` and `bad_gateway` have two variants. In the variant `_before`, the server does not
    get the request. In the variant `_after`, the server gets the request, but the client does not
    get the server's response.
    """

    PASS = "pass"  # noqa: S105 - no password
    """Forward the request and the response."""
    DELAY = "delay"
    """Delay the request. This also delays all later requests on the same connection."""
    DROP_REQUEST = "drop_request"
    """Close the client's connection. The server does not get the request."""
    DROP_ANSWER = "drop_answer"
    """Drop the server's response, and close the client's connection."""
    DUPLICATE_BEFORE = "duplicate_before"
    """Send a copy of the request on a separate connection, then forward the request itself."""
    DUPLICATE_AFTER = "duplicate_after"
    """After the client got its response, send a copy of the request on a separate connection."""
    REORDER = "reorder"
    """Delay this request until a later request, on any connection, overtakes it."""
    CUT_REQUEST = "cut_request"
    """Forward a part of the request, then close the connections to the client and the server."""
    CUT_ANSWER = "cut_answer"
    """Forward a part of the response, then close both connections.

    If the response is chunked, the part can contain several whole chunks of the body.
    """
    HALF_OPEN_BEFORE = "half_open_before"
    """Keep the client's connection open for a time, but neither read from it nor write to it.

    The server does not get the request.
    """
    HALF_OPEN_AFTER = "half_open_after"
    """Forward the request, drop the response, and keep the client's connection open but silent."""
    TRICKLE = "trickle"
    """Forward the request and the response byte by byte."""
    RESET = "reset"
    """Drop the response, and reset the connections to the client and the server (RST)."""
    BAD_GATEWAY_BEFORE = "bad_gateway_before"
    """Respond with status 502. The server does not get the request."""
    BAD_GATEWAY_AFTER = "bad_gateway_after"
    """Forward the request, but respond with status 502 instead of the server's response."""
    STALE = "stale"
    """Forward the response, then close the connection. No header announces the close."""


class FaultPlan:
    """Chooses an action for each request.

    `only` is the start of a request, such as "POST /v1/commits". A request that does not
    start with `only` gets the action `pass`. The first requests that start with `only` get the
    actions in `script`, in order. Each later one gets a random action: `rates` maps an action to
    its probability, and `pass` gets the remaining probability.

    - `delay_seconds`: the length of each delay, or the minimum and maximum of a random length
    - `trickle_seconds`: the time between two bytes that `trickle` sends
    - `reorder_seconds`: the maximum time that a request waits for a later request
    - `stall_seconds`: the time that a half-open connection stays open, and the time after which
      `trickle` sends all remaining bytes at once

    Raises ValueError if a rate is negative, the sum of rates exceeds 1, or an action is unknown.
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
            raise ValueError(f"rates must be probabilities with a sum of at most 1, not {rates}")
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
        """Return the action for a request. `request` contains at least the start of the request."""
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
        """Return the length of the next delay, in seconds."""
        if isinstance(self.delay_seconds, tuple):
            return self.random.uniform(*self.delay_seconds)
        return self.delay_seconds
