"""The application of events about subscriptions."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from msgspec.structs import replace

from semel.machine.events import Sections
from semel.machine.rows import TailRow
from semel.machine.state import NO_EFFECTS, Effects, State, advance_tail, drop_owner
from semel.machine.subscribers import (
    NO_WAKE,
    Subscription,
    drop_all_links,
    drop_link,
    new_subscription,
    put_first_links,
    put_link,
    put_wake,
    with_names,
)
from semel.machine.subscription_events import (
    NAMED,
    Acked,
    Claimed,
    DeliveryNoted,
    Linked,
    LinkRow,
    Subscribed,
    SubscriptionRow,
    Unlinked,
    Unsubscribed,
    WakeEnded,
    WakeIssued,
    WakeRow,
)
from semel.model.errors import invariant
from semel.model.rights import SUBSCRIPTION


def _find(state: State, name: str) -> Subscription:
    subscription = state.subscriptions.by_id.get(name)
    invariant(subscription is not None, "the event is about a subscription that does not exist")
    assert subscription is not None
    return subscription


# ---- subscriptions and their streams -------------------------------------------------------------


def _apply_subscribed(state: State, event: Subscribed, _sections: Sections, _time_ms: int) -> None:
    name, row, subscriptions = event.id, event.row, state.subscriptions
    invariant(name not in subscriptions.by_id, "a subscription with this id already exists")
    subscriptions.by_id[name] = new_subscription(name, row)
    state.dirty.subscriptions[name] = row
    put_wake(state, name, NO_WAKE)
    subscriptions.watch_names(name, row.names)
    if row.pattern is not None:
        subscriptions.watch_pattern(name, row.pattern)
    put_first_links(state, name, event.links)


def _apply_unsubscribed(
    state: State, event: Unsubscribed, _sections: Sections, _time_ms: int
) -> None:
    name, subscriptions = event.id, state.subscriptions
    subscription = _find(state, name)
    drop_all_links(state, name)
    subscriptions.forget_names(name, subscription.row.names)
    if subscription.row.pattern is not None:
        subscriptions.forget_pattern(name, subscription.row.pattern)
    del subscriptions.by_id[name]
    drop_owner(state, (SUBSCRIPTION, 0, name))
    state.dirty.subscriptions[name] = state.dirty.wakes[name] = None


def _put_row(state: State, name: str, row: SubscriptionRow) -> None:
    _find(state, name).row = state.dirty.subscriptions[name] = row


def _apply_linked(state: State, event: Linked, _sections: Sections, _time_ms: int) -> None:
    subscription = _find(state, event.id)
    row = subscription.row
    _put_row(state, event.id, with_names(row, (*row.names, *event.names)))
    state.subscriptions.watch_names(event.id, event.names)
    for number, acked in event.links:
        old = subscription.links.get(number)
        kinds = NAMED if old is None else NAMED | old.kinds
        put_link(state, event.id, state.by_number[number], LinkRow(acked, kinds))


def _apply_unlinked(state: State, event: Unlinked, _sections: Sections, _time_ms: int) -> None:
    subscription = _find(state, event.id)
    row = subscription.row
    _put_row(state, event.id, with_names(row, {*row.names} - {event.name}))
    state.subscriptions.forget_names(event.id, (event.name,))
    link = subscription.links.get(event.stream)
    if link is None:
        return
    stream = state.by_number[event.stream]
    kinds = link.kinds & ~NAMED
    if kinds:
        put_link(state, event.id, stream, LinkRow(link.acked, kinds))
    else:
        drop_link(state, event.id, stream)


# ---- wakes ---------------------------------------------------------------------------------------


def _apply_issued(state: State, event: WakeIssued, sections: Sections, time_ms: int) -> Effects:
    wake = WakeRow(
        event.generation,
        event.wake_id,
        time_ms,
        snapshot=event.snapshot,
        next_stream=state.next_stream,
        last=_last_in(event.snapshot, _find(state, event.id)),
    )
    put_wake(state, event.id, wake)
    if not sections:
        return NO_EFFECTS
    (section,) = sections
    stream = state.by_number[section.stream]
    tail: TailRow = stream.tail
    is_next = section.base == tail.tail and not (tail.is_closed or tail.is_deleted)
    invariant(is_next, "the message about the wake is not at the tail of its stream")
    advance_tail(state, stream, tail.tail + section.count, time_ms)
    return Effects((stream,))


def _last_in(snapshot: tuple[tuple[int, int], ...], subscription: Subscription) -> int:
    """Return the stream after which the next snapshot begins, or 0 if this one has all of them.

    A snapshot begins after the last stream of the one before it, and continues with the first ones.
    """
    if len(snapshot) == len(subscription.pending):
        return 0
    numbers = [number for number, _ in snapshot]
    return max([each for each in numbers if each <= subscription.wake.last] or numbers)


def _apply_claimed(state: State, event: Claimed, _sections: Sections, _time_ms: int) -> None:
    put_wake(state, event.id, replace(_find(state, event.id).wake, worker=event.worker))


def _end_wake(state: State, name: str) -> None:
    wake = _find(state, name).wake
    put_wake(state, name, WakeRow(wake.generation, last=wake.last))


def apply_acked(state: State, event: Acked) -> None:
    """Apply the acks of one wake."""
    subscription = _find(state, event.id)
    for number, offset in event.acks:
        link = replace(subscription.links[number], acked=offset)
        put_link(state, event.id, state.by_number[number], link)
    if event.is_done:
        _end_wake(state, event.id)
    elif subscription.wake.attempts:
        _note(state, event.id, attempts=0)


def apply_all_acked(state: State, wakes: Iterable[Acked]) -> None:
    """Apply the acks of a commit."""
    for wake in wakes:
        apply_acked(state, wake)


def _apply_acked(state: State, event: Acked, _sections: Sections, _time_ms: int) -> None:
    apply_acked(state, event)


def _apply_ended(state: State, event: WakeEnded, _sections: Sections, _time_ms: int) -> None:
    _end_wake(state, event.id)


def _note(
    state: State, name: str, *, attempts: int, error: str = "", is_suspended: bool = False
) -> None:
    wake = _find(state, name).wake
    put_wake(state, name, replace(wake, attempts=attempts, error=error, is_suspended=is_suspended))


def _apply_noted(state: State, event: DeliveryNoted, _sections: Sections, _time_ms: int) -> None:
    _note(
        state,
        event.id,
        attempts=event.attempts,
        error=event.error,
        is_suspended=event.is_suspended,
    )


SUBSCRIPTION_APPLIERS: Final[
    Mapping[type, Callable[[State, Any, Sections, int], Effects | None]]
] = {
    Subscribed: _apply_subscribed,
    Unsubscribed: _apply_unsubscribed,
    Linked: _apply_linked,
    Unlinked: _apply_unlinked,
    WakeIssued: _apply_issued,
    Claimed: _apply_claimed,
    Acked: _apply_acked,
    WakeEnded: _apply_ended,
    DeliveryNoted: _apply_noted,
}
