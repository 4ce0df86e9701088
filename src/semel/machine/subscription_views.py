"""Views of subscriptions: plain values for requests, deliveries and claims."""

from collections.abc import Callable
from heapq import nsmallest
from typing import Final

from msgspec import Struct

from semel.machine.state import State
from semel.machine.subscribers import Subscription, is_pending
from semel.machine.subscription_events import NAMED, NEVER_ACKED, LinkRow, SubscriptionRow, WakeRow
from semel.model.limits import SUBSCRIPTION_STREAMS_LISTED

ACTIVE: Final = "active"
FAILED: Final = "failed"  # the last delivery has failed; it is repeated
SUSPENDED: Final = "suspended"


class LinkView(Struct, frozen=True, gc=False):
    """A stream that a subscription follows, or a name without a stream.

    `kinds` is as in `LinkRow`. `acked` is NEVER_ACKED before the first ack, and `tail` is None if
    the stream does not exist.
    """

    path: str
    kinds: int
    acked: int
    tail: int | None
    has_pending: bool


class SubscriptionView(Struct, frozen=True):
    """A subscription, and one page of its streams.

    `streams` has, on the first page, first the names without a stream, and then, on every page, the
    links by the numbers of the streams. `streams_next` is the number after which the next page
    begins, or None on the last one. In a list of subscriptions, `streams` is empty.
    """

    id: str
    row: SubscriptionRow
    wake: WakeRow
    status: str
    stream_count: int
    pending_count: int
    streams: tuple[LinkView, ...] = ()
    streams_next: int | None = None


class SubscriptionPage(Struct, frozen=True):
    """Some subscriptions, sorted by id. `next` is the last id if there are more, or None."""

    subscriptions: tuple[SubscriptionView, ...]
    next: str | None


class DeliveryView(Struct, frozen=True):
    """What is delivered for the wake of a webhook. `tail` of the streams is from its snapshot."""

    id: str
    wake_id: str
    generation: int
    url: str
    streams: tuple[LinkView, ...]


class ClaimView(Struct, frozen=True):
    """What a worker gets that has claimed a wake. `tail` of the streams is from its snapshot."""

    id: str
    wake_id: str
    generation: int
    worker: str
    lease_ms: int
    streams: tuple[LinkView, ...]


def status_of(wake: WakeRow) -> str:
    """Return whether deliveries of a wake fail, or whether its subscription is suspended."""
    if wake.is_suspended:
        return SUSPENDED
    return FAILED if wake.attempts else ACTIVE


def subscription_view(
    state: State, name: str, after: int = 0, limit: int = SUBSCRIPTION_STREAMS_LISTED
) -> SubscriptionView | None:
    """Return a subscription with a page of its streams, or None if there is no such subscription.

    The page begins after the stream with the number `after`.
    """
    subscription = state.subscriptions.by_id.get(name)
    if subscription is None:
        return None
    links = subscription.links
    numbers = nsmallest(limit + 1, (number for number in links if number > after))
    shown = numbers[:limit]
    missing = _missing(state, subscription) if after == 0 else ()
    streams = (*missing, *(_link_view(state, number, links[number]) for number in shown))
    following = shown[-1] if len(numbers) > limit else None
    return _view(name, subscription, streams, following)


def subscription_page(
    state: State,
    *,
    prefix: str = "",
    after: str = "",
    limit: int,
    may_see: Callable[[str], bool] = lambda _name: True,
) -> SubscriptionPage:
    """Return the subscriptions whose ids begin with `prefix` and follow `after`, without streams.

    Those that the caller may not see are left out.
    """
    by_id = state.subscriptions.by_id
    found = sorted(name for name in by_id if name > after and name.startswith(prefix))
    shown: list[SubscriptionView] = []
    for name in found:
        if may_see(name):
            if len(shown) == limit:
                return SubscriptionPage(tuple(shown), shown[-1].id)
            shown.append(_view(name, by_id[name]))
    return SubscriptionPage(tuple(shown), None)


def delivery_view(state: State, name: str) -> DeliveryView | None:
    """Return what is to be delivered to a webhook, or None if no wake of it is in flight."""
    subscription = state.subscriptions.by_id.get(name)
    if subscription is None or subscription.row.url is None or not subscription.wake.wake_id:
        return None
    wake = subscription.wake
    streams = _snapshot(state, subscription)
    return DeliveryView(name, wake.wake_id, wake.generation, subscription.row.url, streams)


def claim_view(state: State, name: str) -> ClaimView | None:
    """Return what a worker gets with its claim, or None if no worker has claimed a wake."""
    subscription = state.subscriptions.by_id.get(name)
    if subscription is None or not subscription.wake.worker:
        return None
    wake = subscription.wake
    return ClaimView(
        name,
        wake.wake_id,
        wake.generation,
        worker=wake.worker,
        lease_ms=subscription.row.lease_ms,
        streams=_snapshot(state, subscription),
    )


def _view(
    name: str,
    subscription: Subscription,
    streams: tuple[LinkView, ...] = (),
    streams_next: int | None = None,
) -> SubscriptionView:
    return SubscriptionView(
        name,
        subscription.row,
        subscription.wake,
        status_of(subscription.wake),
        stream_count=len(subscription.links),
        pending_count=len(subscription.pending),
        streams=streams,
        streams_next=streams_next,
    )


def _missing(state: State, subscription: Subscription) -> tuple[LinkView, ...]:
    """Return the names of a subscription that have no stream."""
    by_path, links = state.by_path, subscription.links
    return tuple(
        LinkView(path, NAMED, NEVER_ACKED, None, has_pending=False)
        for path in subscription.row.names
        if path not in by_path or by_path[path].row.number not in links
    )


def _link_view(state: State, number: int, link: LinkRow) -> LinkView:
    stream = state.by_number[number]
    is_behind = is_pending(link, stream.tail)
    return LinkView(stream.row.path, link.kinds, link.acked, stream.tail.stable, is_behind)


def _snapshot(state: State, subscription: Subscription) -> tuple[LinkView, ...]:
    """Return the streams in the snapshot of a wake that are still linked."""
    views: list[LinkView] = []
    for number, offset in subscription.wake.snapshot:
        link = subscription.links.get(number)
        if link is not None:
            stream = state.by_number[number]
            is_behind = offset > max(link.acked, stream.tail.head)
            views.append(LinkView(stream.row.path, link.kinds, link.acked, offset, is_behind))
    return tuple(views)
