"""The subscriptions of the state: links, what is pending, and which ones need a wake.

Only `apply` and the loading of a checkpoint call the functions that change the state. Rules: see
`docs/reference/subscriptions.md`.

An append to a stream looks at `Stream.watchers`: the subscriptions for which nothing of the stream
is pending. They leave this set when something is, and return to it with an ack. So an append to a
stream for which everybody was woken already costs as much as one that nobody follows.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from semel.machine.matching import Matched, PatternIndex, PatternStreams
from semel.machine.rows import TailRow, is_topic
from semel.machine.subscription_events import (
    MATCHED,
    NAMED,
    NEVER_ACKED,
    LinkRow,
    SubscriptionRow,
    WakeRow,
)
from semel.model.patterns import Pattern
from semel.model.rights import is_of_server

if TYPE_CHECKING:
    from semel.machine.state import State, Stream

NO_WAKE: Final = WakeRow()


class Subscription(Struct, gc=False, eq=False):
    """A subscription: its rows, its links by the numbers of the streams, and what is pending."""

    row: SubscriptionRow
    wake: WakeRow
    links: dict[int, LinkRow]
    pending: set[int]


class Subscriptions:
    """All subscriptions of the state.

    `due` are those that need a wake. `by_name` has those that name a path, and `patterns` has those
    with a pattern, in `users`. `searches` finds the streams that the pattern of a new subscription
    matches. The patterns of subscriptions are compared with new streams only.
    """

    def __init__(self, searches: PatternStreams) -> None:
        self.by_id: dict[str, Subscription] = {}
        self.due: set[str] = set()
        self.searches: Final = searches
        self.by_name: dict[str, set[str]] = {}
        self.patterns: dict[str, Matched] = {}
        self._index = PatternIndex()

    def watch_names(self, name: str, paths: Iterable[str]) -> None:
        """Record that a subscription names paths."""
        for path in paths:
            self.by_name.setdefault(path, set()).add(name)

    def forget_names(self, name: str, paths: Iterable[str]) -> None:
        """Record that a subscription no longer names paths."""
        for path in paths:
            names = self.by_name[path]
            names.discard(name)
            if not names:
                del self.by_name[path]

    def watch_pattern(self, name: str, pattern: str) -> None:
        """Compare new streams with the pattern of a subscription."""
        matched = self.patterns.get(pattern)
        if matched is None:
            matched = self.patterns[pattern] = Matched(Pattern(pattern))
            self._index.add(pattern, matched)
        matched.users.add(name)

    def forget_pattern(self, name: str, pattern: str) -> None:
        """Compare new streams no longer with the pattern of a subscription."""
        matched = self.patterns[pattern]
        matched.users.remove(name)
        if not matched.users:
            del self.patterns[pattern]
            self._index.remove(pattern, matched)

    def kinds_of(self, path: str) -> dict[str, int]:
        """Return the subscriptions to which a new stream is linked, with the kinds of the links."""
        kinds = dict.fromkeys(self.by_name.get(path, ()), NAMED)
        for matched in self._index.matching(path):
            for name in matched.users:
                if self.by_id[name].row.wake_stream != path:
                    kinds[name] = kinds.get(name, 0) | MATCHED
        return kinds


# ---- links ---------------------------------------------------------------------------------------


def is_pending(link: LinkRow, tail: TailRow) -> bool:
    """Return True if something in a stream with this tail row is to be processed."""
    return tail.stable > link.acked and tail.stable > tail.head


def put_link(state: "State", name: str, stream: "Stream", link: LinkRow) -> None:
    """Store the link between a stream and a subscription, and whether it is pending."""
    number = stream.row.number
    subscription = state.subscriptions.by_id[name]
    subscription.links[number] = state.dirty.links[number, name] = link
    _add_link(state, name, subscription, stream, link)


def _add_link(
    state: "State", name: str, subscription: Subscription, stream: "Stream", link: LinkRow
) -> None:
    if stream.links is None:
        stream.links, stream.watchers = set(), set()
    assert stream.watchers is not None
    number = stream.row.number
    stream.links.add(name)
    if is_pending(link, stream.tail):
        stream.watchers.discard(name)
        subscription.pending.add(number)
        note_due(state, name, subscription)
    else:
        stream.watchers.add(name)
        _note_settled(state, name, subscription, number)


def _note_settled(state: "State", name: str, subscription: Subscription, number: int) -> None:
    """Record that a stream is not pending. If none is, the subscription needs no wake."""
    subscription.pending.discard(number)
    if not subscription.pending:
        state.subscriptions.due.discard(name)


def drop_link(state: "State", name: str, stream: "Stream") -> None:
    """Drop the link between a stream and a subscription, which must exist."""
    number = stream.row.number
    subscription = state.subscriptions.by_id[name]
    del subscription.links[number]
    _note_settled(state, name, subscription, number)
    state.dirty.links[number, name] = None
    assert stream.links is not None
    assert stream.watchers is not None
    stream.links.remove(name)
    stream.watchers.discard(name)


def note_due(state: "State", name: str, subscription: Subscription) -> None:
    """Record that a subscription needs a wake, if it is pending and none is in flight."""
    if not subscription.wake.wake_id and subscription.pending:
        state.subscriptions.due.add(name)


def put_wake(state: "State", name: str, wake: WakeRow) -> None:
    """Store the wake of a subscription. If none is in flight, another one can be needed."""
    subscription = state.subscriptions.by_id[name]
    subscription.wake = state.dirty.wakes[name] = wake
    if wake.wake_id:
        state.subscriptions.due.discard(name)
    else:
        note_due(state, name, subscription)


# ---- streams -------------------------------------------------------------------------------------


def note_moved(state: "State", stream: "Stream", names: Iterable[str]) -> None:
    """Record, for the links to subscriptions, that the stable offset or the head has moved."""
    by_id, number = state.subscriptions.by_id, stream.row.number
    for name in [*names]:
        subscription = by_id[name]
        _add_link(state, name, subscription, stream, subscription.links[number])


def note_linked_stream(state: "State", stream: "Stream") -> None:
    """Link a new stream to the subscriptions that name it or match it (U6)."""
    subscriptions = state.subscriptions
    if is_topic(stream.row) or is_of_server(stream.row.path):
        return
    subscriptions.searches.note_new(stream)
    if not subscriptions.by_id:
        return
    for name, kinds in subscriptions.kinds_of(stream.row.path).items():
        put_link(state, name, stream, LinkRow(NEVER_ACKED, kinds))


def note_unlinked_stream(state: "State", stream: "Stream") -> None:
    """Drop the links of a stream that is deleted (U8)."""
    state.subscriptions.searches.note_lost(stream)
    for name in [*(stream.links or ())]:
        drop_link(state, name, stream)


# ---- loading a checkpoint ------------------------------------------------------------------------


def load_subscription(state: "State", name: str, row: SubscriptionRow) -> None:
    """Add a subscription without links to a state that is being loaded."""
    state.subscriptions.by_id[name] = Subscription(row, NO_WAKE, {}, set())
    state.subscriptions.watch_names(name, row.names)
    if row.pattern is not None:
        state.subscriptions.watch_pattern(name, row.pattern)


def load_wake(state: "State", name: str, row: WakeRow) -> None:
    """Add the wake of a subscription to a state that is being loaded."""
    state.subscriptions.by_id[name].wake = row


def load_link(state: "State", key: tuple[int, str], row: LinkRow) -> None:
    """Add a link to a state that is being loaded, after the wakes."""
    number, name = key
    subscription = state.subscriptions.by_id[name]
    subscription.links[number] = row
    _add_link(state, name, subscription, state.by_number[number], row)


def with_names(row: SubscriptionRow, names: Iterable[str]) -> SubscriptionRow:
    """Return a row with other names, sorted and without repetition."""
    return replace(row, names=tuple(sorted(set(names))))
