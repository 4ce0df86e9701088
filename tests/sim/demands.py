"""How a promise is demanded, and two dumps compared."""

from semel.model.outcomes import InvalidRequest, Outcome


class Violation(Exception):
    """A promise was broken."""


def demand(condition: object, message: str) -> None:
    """Stop the run unless a promise holds."""
    if not condition:
        raise Violation(message)


def difference(left: object, right: object, at: str = "state") -> str | None:
    """Name the first place where two dumps differ."""
    if isinstance(left, dict) and isinstance(right, dict):
        for key in sorted({*left, *right}, key=str):
            if key not in left or key not in right:
                return f"{at}.{key} is on one side only"
            if found := difference(left[key], right[key], f"{at}.{key}"):
                return found
        return None
    return None if left == right else f"{at}: {left!r} is not {right!r}"


def demand_equal(left: object, right: object, what: str) -> None:
    """Compare two dumps."""
    if found := difference(left, right):
        raise Violation(f"{what}: {found}")


def is_same(found: Outcome, expected: Outcome) -> bool:
    """Compare two answers; which field a malformed request is refused for is nobody's business."""
    if isinstance(expected, InvalidRequest):
        return isinstance(found, InvalidRequest)
    return found == expected
