"""Checks of promises, and comparisons of dumps."""

from semel.model.outcomes import InvalidRequest, Outcome
from semel.model.outcomes_subscriptions import WakeStreamRefused


class Violation(Exception):
    """Raised when a promise is broken."""


def demand(condition: object, message: str) -> None:
    """Raise `Violation` unless a condition holds."""
    if not condition:
        raise Violation(message)


def difference(left: object, right: object, at: str = "state") -> str | None:
    """Return the first difference between two dumps, or None."""
    if isinstance(left, dict) and isinstance(right, dict):
        for key in sorted({*left, *right}, key=str):
            if key not in left or key not in right:
                return f"{at}.{key} is in one dump only"
            if found := difference(left[key], right[key], f"{at}.{key}"):
                return found
        return None
    return None if left == right else f"{at}: {left!r} is not {right!r}"


def demand_equal(left: object, right: object, what: str) -> None:
    """Raise `Violation` unless two dumps are equal."""
    if found := difference(left, right):
        raise Violation(f"{what}: {found}")


def is_same(found: Outcome, expected: Outcome) -> bool:
    """Compare two outcomes; the field of `InvalidRequest` and some reasons are ignored."""
    if isinstance(expected, InvalidRequest):
        return isinstance(found, InvalidRequest)
    if isinstance(found, WakeStreamRefused) and isinstance(expected, WakeStreamRefused):
        return found.path == expected.path
    return found == expected
