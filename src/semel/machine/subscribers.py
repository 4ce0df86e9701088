"""The subscriptions of the state: links, what is pending, and which ones need a wake.

Only `apply` and the loading of a checkpoint call the functions that change the state. Rules: see
`docs/reference/subscriptions.md`.

An append to a stream looks at `Stream.watchers`: the subscriptions for which nothing of the stream
is pending. They leave this set when something is, and return to it with an ack. So an append to a
stream for which everybody was woken already costs as much as one that nobody follows.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from semel.machine.matching import Matched, PatternIndex
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
_KINDS: Final = (NAMED, MATCHED, NAMED | MATCHED)
_NEW_LINKS: Final = {kinds: LinkRow(NEVER_ACKED, kinds) for kinds in _KINDS}
Names = set[str] | frozenset[str]  # ids of subscriptions


class Subscription(Struct, gc=False, eq=False):
    """A subscription: its rows, its links by the numbers of the streams, and what is pending."""

    row: SubscriptionRow
    wake: WakeRow
    links: dict[int, LinkRow]
    pending: set[int]
    alone: frozenset[str]  # its id, for all streams that it alone follows


def new_subscription(name: str, row: SubscriptionRow) -> Subscription:
    """Return a subscription without links and without a wake."""
    return Subscription(row, NO_WAKE, {}, set(), frozenset((name,)))


class Subscriptions:
    """All subscriptions of the state.

    `due` are those that need a wake. `by_name` has those that name a path, and `patterns` has those
    with a pattern, in `users`. These patterns are compared with new streams only.
    """

    def __init__(self) -> None:
        self.by_id: dict[str, Subscription] = {}
        self.due: set[str] = set()
        self.by_name: dict[str, set[str]] = {}
        self.patterns: dict[str, Matched] = {}
        self._index = PatternIndex()
        self._newest: frozenset[str] = frozenset()  # that of the stream that was created last

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

    def share(self, names: Mapping[str, object]) -> frozenset[str]:
        """Return a frozenset of names: the same one for streams that are created one by one."""
        if len(names) == 1:
            return self.by_id[next(iter(names))].alone
        if names.keys() != self._newest:
            self._newest = frozenset(names)
        return self._newest

    def count_naming(self, path: str) -> int:
        """Return how many subscriptions name a path."""
        return len(self.by_name.get(path, ()))

    def count_beside(self, pattern: str) -> int:
        """Return how many subscriptions have a pattern with the same part before a wildcard."""
        return sum(len(each.users) for each in self._index.beside(Pattern(pattern)))

    def kinds_of(self, path: str) -> dict[str, int]:
        """Return the subscriptions to which a new stream is linked, with the kinds of the links."""
        kinds = dict.fromkeys(self.by_name.get(path, ()), NAMED)
        for matched in self._index.matching(path):
            for name in matched.users:
                if self.by_id[name].row.wake_stream != path:
                    kinds[name] = kinds.get(name, 0) | MATCHED
        return kinds


# ---- links ---------------------------------------------------------------------------------------
# A frozenset is shared by many streams with the same subscriptions. A stream gets a set of its own
# when it becomes different.


def _with(names: Names | None, name: str, alone: frozenset[str]) -> Names:
    if not names:
        return alone
    if isinstance(names, set):
        names.add(name)
    elif name not in names:
        return {*names, name}
    return names


def _with_shared(
    names: Names | None, alone: frozenset[str], shared: dict[frozenset[str], frozenset[str]]
) -> Names:
    """Do the same as `_with`, but streams that had the same frozenset share one again."""
    if not names:
        return alone
    if isinstance(names, set):
        names |= alone
        return names
    found = shared.get(names)
    if found is None:
        found = shared[names] = names | alone
    return found


def _without_shared(
    names: Names | None, name: str, shared: dict[Names, Names | None]
) -> Names | None:
    """Do the same as `_without`, but streams that had the same frozenset share one again."""
    if not isinstance(names, frozenset):
        return _without(names, name)
    if names not in shared:
        shared[names] = names.difference((name,)) or None
    return shared[names]


def _without(names: Names | None, name: str) -> Names | None:
    if names is None or name not in names:
        return names
    if isinstance(names, frozenset):
        return {*names}.difference((name,)) or None
    names.remove(name)
    return names or None


def is_pending(link: LinkRow, tail: TailRow) -> bool:
    """Return True if something in a stream with this tail row is to be processed."""
    return tail.stable > link.acked and tail.stable > tail.head


def put_first_links(state: "State", name: str, links: Iterable[tuple[int, int, int]]) -> None:
    """Store the links of a new subscription: the number, the acked offset and the kinds of each.

    This does the same as `put_link` for each of them, but faster: there can be very many links, and
    usually nothing is pending.
    """
    subscription, by_number, dirty = state.subscriptions.by_id[name], state.by_number, state.dirty
    own, stored = subscription.links, dirty.links
    shared: dict[frozenset[str], frozenset[str]] = {}  # the same names with this one
    for number, acked, kinds in links:
        stream = by_number[number]
        link = LinkRow(acked, kinds)
        if is_pending(link, stream.tail):
            put_link(state, name, stream, link)
            continue
        own[number] = stored[number, name] = link
        stream.links = _with_shared(stream.links, subscription.alone, shared)
        stream.watchers = _with_shared(stream.watchers, subscription.alone, shared)


def put_link(state: "State", name: str, stream: "Stream", link: LinkRow) -> None:
    """Store the link between a stream and a subscription, and whether it is pending."""
    number = stream.row.number
    subscription = state.subscriptions.by_id[name]
    subscription.links[number] = state.dirty.links[number, name] = link
    _add_link(state, name, subscription, stream, link)


def _add_link(
    state: "State", name: str, subscription: Subscription, stream: "Stream", link: LinkRow
) -> None:
    number = stream.row.number
    stream.links = _with(stream.links, name, subscription.alone)
    if is_pending(link, stream.tail):
        stream.watchers = _without(stream.watchers, name)
        subscription.pending.add(number)
        note_due(state, name, subscription)
    else:
        stream.watchers = _with(stream.watchers, name, subscription.alone)
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
    stream.links = _without(stream.links, name)
    stream.watchers = _without(stream.watchers, name)


def drop_all_links(state: "State", name: str) -> None:
    """Drop all links of a subscription.

    This does the same as `drop_link` for each of them, but faster: there can be very many links.
    """
    subscription, by_number, stored = (
        state.subscriptions.by_id[name],
        state.by_number,
        state.dirty.links,
    )
    shared: dict[Names, Names | None] = {}  # the same names without this one
    for number in subscription.links:
        stream = by_number[number]
        stored[number, name] = None
        stream.links = _without_shared(stream.links, name, shared)
        stream.watchers = _without_shared(stream.watchers, name, shared)
    subscription.links.clear()
    subscription.pending.clear()
    state.subscriptions.due.discard(name)


def note_due(state: "State", name: str, subscription: Subscription) -> None:
    """Record that a subscription needs a wake, if it is pending and none is in flight."""
    if not subscription.wake.wake_id and subscription.pending:
        state.subscriptions.due.add(name)


def next_streams(subscription: Subscription, count: int) -> list[int]:
    """Return the streams of the next snapshot, sorted: those after the last one come first (W1).

    So streams that are always pending do not keep others out of all snapshots.
    """
    numbers = sorted(subscription.pending)
    start = bisect_right(numbers, subscription.wake.last) if len(numbers) > count else 0
    return sorted([*numbers[start:], *numbers[:start]][:count])


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
    if not subscriptions.by_id:
        return
    kinds_of = subscriptions.kinds_of(stream.row.path)
    if not kinds_of:
        return
    number, by_id, stored = stream.row.number, subscriptions.by_id, state.dirty.links
    for name, kinds in kinds_of.items():
        by_id[name].links[number] = stored[number, name] = _NEW_LINKS[kinds]
    stream.links = subscriptions.share(kinds_of)
    if not is_pending(_NEW_LINKS[MATCHED], stream.tail):
        stream.watchers = stream.links
        return
    for name in kinds_of:
        by_id[name].pending.add(number)
        note_due(state, name, by_id[name])


def note_unlinked_stream(state: "State", stream: "Stream") -> None:
    """Drop the links of a stream that is deleted (U8)."""
    number, by_id = stream.row.number, state.subscriptions.by_id
    for name in stream.links or ():
        subscription = by_id[name]
        del subscription.links[number]
        _note_settled(state, name, subscription, number)
        state.dirty.links[number, name] = None
    stream.links = stream.watchers = None


# ---- loading a checkpoint ------------------------------------------------------------------------


def load_subscription(state: "State", name: str, row: SubscriptionRow) -> None:
    """Add a subscription without links to a state that is being loaded."""
    state.subscriptions.by_id[name] = new_subscription(name, row)
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
