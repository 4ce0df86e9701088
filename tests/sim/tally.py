"""Counts of outcomes: by type, and by reason where one type covers several rules."""

from collections import Counter

from semel.model.outcomes import DropDone, InvalidRequest, LimitReached, Outcome, Retired
from semel.model.outcomes_txn import PositionConflict


def count(counts: Counter[str], outcome: Outcome) -> None:
    """Count an outcome by its type; if the type covers several rules, by its reason too."""
    name = type(outcome).__name__
    counts[name] += 1
    match outcome:
        case PositionConflict(reason=reason):
            counts[f"{name}, {reason}"] += 1
        case LimitReached(
            limit="groups_per_stream"
            | "transaction_positions"
            | "expiring_producers_per_stream"
            | "tokens_per_principal"
            | "subscriptions"
            | "subscription_streams"
            | "subscription_names" as what
        ):
            counts[f"{name}, {what}"] += 1
        case Retired(results=results) if any(each.refusal is None for each in results):
            counts[f"{name}, at least one"] += 1
        case DropDone(count=dropped) if dropped:
            counts[f"{name}, at least one"] += 1
        case InvalidRequest(field="positions" as what):
            counts[f"{name}, {what}"] += 1
