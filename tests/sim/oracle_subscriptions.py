"""Checks of subscriptions."""

from semel.machine import State
from semel.machine.subscribers import Subscription
from semel.machine.subscription_events import MATCHED, NAMED, NEVER_ACKED, LinkRow


def subscriptions_view(state: State) -> dict[str, object]:
    """Dump the subscriptions of the engine in the form of the reference model."""
    known = state.subscriptions
    return {
        name: _view(known.by_id[name], is_due=name in known.due) for name in sorted(known.by_id)
    }


def _view(subscription: Subscription, *, is_due: bool) -> dict[str, object]:
    row, wake = subscription.row, subscription.wake
    in_flight = (wake.wake_id, wake.issued_ms, wake.snapshot, wake.worker, wake.attempts)
    return {
        "configuration": (
            row.type,
            row.pattern,
            row.streams,
            row.url,
            row.wake_stream,
            row.lease_ms,
            row.description,
        ),
        "created_ms": row.created_ms,
        "names": sorted(row.names),
        "generation": wake.generation,
        "wake": (*in_flight, wake.error) if wake.wake_id else None,
        "is_suspended": wake.is_suspended,
        "links": {number: _link_view(link) for number, link in subscription.links.items()},
        "pending": sorted(subscription.pending),
        "is_due": is_due,
    }


def _link_view(link: LinkRow) -> tuple[int | None, bool, bool]:
    acked = None if link.acked == NEVER_ACKED else link.acked
    return acked, bool(link.kinds & NAMED), bool(link.kinds & MATCHED)
