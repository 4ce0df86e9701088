"""Groups whose members share work: who wants and who owns which stream.

Only `apply` and the loading of a checkpoint call the functions that change the state. Rules: see
`docs/reference/groups.md`.

What the patterns of members match is found once for all groups. A search compares all streams with
patterns. From its beginning on, new and deleted streams change its result. So a search can be made
in steps, between other commands, and `apply` uses what `decide` has found.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from semel.machine.rows import GroupRow, MemberRow, ShareRow, is_partition, is_topic
from semel.model.patterns import Pattern
from semel.model.rights import group_of
from semel.model.steps import Steps, finish

if TYPE_CHECKING:
    from semel.machine.state import State, Stream


_WILD: Final = "*"  # stands for the first segment of patterns that begin with a wildcard
_STEP_COMPARISONS: Final = 2_000  # a step of a search takes one to five milliseconds

# ---- what patterns match -------------------------------------------------------------------------


class Matched(Struct, eq=False):
    """The numbers of the streams that a pattern matches, and the groups that use the pattern."""

    pattern: Pattern
    numbers: set[int] = set()
    groups: set[str] = set()
    is_complete: bool = False


class _Index:
    """Patterns by their first segments. It finds those that can match a path.

    Paths with the same parent, such as partitions of a topic, often follow each other. What can
    match them is kept until the parent or a pattern changes. `comparisons` counts the work.
    """

    def __init__(self) -> None:
        self._by_first: dict[str, dict[str, Matched]] = {}
        self._parent: str | None = None
        self._below_parent: dict[str, list[Matched]] = {}  # by the last segment
        self.comparisons = 0

    def add(self, text: str, matched: Matched) -> None:
        self._by_first.setdefault(matched.pattern.first or _WILD, {})[text] = matched
        self._parent = None

    def remove(self, text: str, matched: Matched) -> None:
        first = matched.pattern.first or _WILD
        del self._by_first[first][text]
        if not self._by_first[first]:
            del self._by_first[first]
        self._parent = None

    def candidates(self, path: str) -> Collection[Matched]:
        """Return the patterns that can match a path."""
        self.comparisons += 1
        if not self._by_first:
            return ()
        parent, slash, last = path.rpartition("/")
        if not slash:
            return self._of_first(path)
        if parent != self._parent:
            self._parent, self._below_parent = parent, {}
            for each in self._of_first(parent.partition("/")[0]):
                self.comparisons += 1
                if each.pattern.can_match_below(parent):
                    self._below_parent.setdefault(each.pattern.last or _WILD, []).append(each)
        found = self._below_parent.get(_WILD, [])
        return found if last == _WILD else [*self._below_parent.get(last, ()), *found]

    def _of_first(self, first: str) -> list[Matched]:
        found = [*self._by_first.get(first, {}).values()]
        return found if first == _WILD else [*found, *self._by_first.get(_WILD, {}).values()]

    def matching(self, path: str) -> list[Matched]:
        """Return the patterns that match a path."""
        candidates = self.candidates(path)
        self.comparisons += len(candidates)
        return [each for each in candidates if each.pattern.matches(path)]


class PatternStreams:
    """The patterns that groups use, and those of the newest search, with what they match.

    `streams` are all streams and topics, by their numbers.
    """

    def __init__(self, streams: Mapping[int, "Stream"]) -> None:
        self._streams = streams
        self._table: dict[str, Matched] = {}
        self._index = _Index()
        self._unused: set[str] = set()

    def __len__(self) -> int:
        return len(self._table)

    # ---- searches ------------------------------------------------------------------------------

    def must_search(self, patterns: Iterable[str]) -> bool:
        """Return True if it is not known which streams all of the patterns match."""
        table = self._table
        return any(text not in table or not table[text].is_complete for text in patterns)

    def search(self, patterns: Iterable[str], count_max: int | None = None) -> bool:
        """Find the streams that patterns match, unless they are known: see `search_steps`."""
        if self.must_search(patterns):
            finish(self.search_steps(patterns, count_max))
        return count_max is None or all(
            len(self._table[text].numbers) <= count_max for text in patterns
        )

    def search_steps(self, patterns: Iterable[str], count_max: int | None = None) -> Steps[None]:
        """Find the streams that patterns match, in steps, until the decision that uses them.

        End early if one of them matches more than `count_max` streams. Drop the results of earlier
        searches that no group uses.
        """
        wanted = [*dict.fromkeys(patterns)]
        for text in self._unused.difference(wanted):
            self._index.remove(text, self._table.pop(text))
        self._unused.intersection_update(wanted)
        index, found = _Index(), []
        for text in wanted:
            matched = self._table.get(text)
            if matched is None:
                matched = self._table[text] = Matched(Pattern(text))
                self._index.add(text, matched)
                self._unused.add(text)
            if not matched.is_complete:
                index.add(text, matched)
                found.append(matched)
        if not found:
            return
        for _ in self._compare(index, [*self._streams]):
            if count_max is not None and any(len(each.numbers) > count_max for each in found):
                return
            yield
        for matched in found:
            matched.is_complete = True

    def _compare(self, index: _Index, numbers: list[int]) -> Iterator[None]:
        """Compare the streams with these numbers with patterns. Yield after each step."""
        ends_at = _STEP_COMPARISONS
        for number in numbers:
            stream = self._streams.get(number)
            if stream is None or stream.topic is not None or stream.tail.is_deleted:
                index.comparisons += 1
            else:
                for matched in index.matching(stream.row.path):
                    matched.numbers.add(number)
            if index.comparisons >= ends_at:
                ends_at = index.comparisons + _STEP_COMPARISONS
                yield
        yield

    # ---- patterns in use -----------------------------------------------------------------------

    def known(self, pattern: str) -> set[int]:
        """Return the streams that a pattern matches, after a search for it."""
        return self._table[pattern].numbers

    def use(self, pattern: str, group: str) -> set[int]:
        """Record that a group uses a pattern, after a search. Return the streams it matches.

        The set changes when streams are created and deleted.
        """
        matched = self._table[pattern]
        matched.groups.add(group)
        self._unused.discard(pattern)
        return matched.numbers

    def release(self, pattern: str, group: str) -> None:
        """Record that a group does not use a pattern any more."""
        matched = self._table[pattern]
        matched.groups.remove(group)
        if not matched.groups:
            del self._table[pattern]
            self._index.remove(pattern, matched)

    # ---- streams -------------------------------------------------------------------------------

    def note_new(self, stream: "Stream") -> set[str]:
        """Add a new stream, which is no topic. Return the groups with patterns that match it."""
        groups: set[str] = set()
        for matched in self._index.matching(stream.row.path):
            matched.numbers.add(stream.row.number)
            groups |= matched.groups
        return groups

    def note_lost(self, stream: "Stream") -> set[str]:
        """Remove a stream that is deleted. Return the groups with patterns that matched it."""
        groups: set[str] = set()
        for matched in self._index.candidates(stream.row.path):
            if stream.row.number in matched.numbers:
                matched.numbers.remove(stream.row.number)
                groups |= matched.groups
        return groups


# ---- groups --------------------------------------------------------------------------------------

Names = tuple[tuple[str, ...], ...]  # the streams, topics and patterns of a member


class Wanted(Struct, gc=False, eq=False):
    """The streams that the members of a group take part in sharing, kept between two decisions.

    Members with the same names have the same set. Everything is dropped when a stream that one of
    them wants is created or deleted. So it must not contain names of others.
    """

    by_member: dict[str, set[int]] = {}
    by_names: dict[Names, set[int]] = {}

    def clear(self) -> None:
        """Drop everything, so that it is computed again when it is needed."""
        if self.by_names:
            self.by_member.clear()
            self.by_names.clear()


class Share(Struct, gc=False, eq=False):
    """A group whose members share work: its rows, and the streams that its patterns match."""

    row: GroupRow
    members: dict[str, MemberRow]
    streams: dict[int, ShareRow]  # by the number of the stream
    matches: dict[str, set[int]]  # pattern -> the numbers of the streams that it matches
    wanted: Wanted


def names_of(member: MemberRow) -> Names:
    """Return the names and patterns by which a member takes part in sharing streams."""
    return member.streams, member.topics, member.patterns


def put_share(state: "State", group: str, number: int, row: ShareRow) -> None:
    """Store who owns a stream in a group."""
    state.shares[group].streams[number] = row
    stream = state.by_number[number]
    stream.sharing = stream.sharing or set()
    stream.sharing.add(group)


def load_group(state: "State", group: str, row: GroupRow) -> None:
    """Add a group without members to a state that is being loaded."""
    state.shares[group] = Share(row, {}, {}, {}, Wanted())


def load_member(state: "State", key: tuple[str, str], row: MemberRow) -> None:
    """Add a member to a group of a state that is being loaded."""
    group, member = key
    state.shares[group].members[member] = row


def load_share(state: "State", key: tuple[int, str], row: ShareRow) -> None:
    """Add the owner of a stream to a state that is being loaded."""
    number, group = key
    put_share(state, group, number, row)


def load_shares(state: "State") -> None:
    """Compute the derived data of all groups. Those with members or owners are unsettled.

    An owner can be gone: a transaction that has ended meanwhile has held the stream for it.
    """
    shares = state.shares.values()
    members = [member for share in shares for member in share.members.values()]
    state.patterns.search([pattern for member in members for pattern in member.patterns])
    for group, share in state.shares.items():
        for member in share.members.values():
            watch_for(state, group, share, member)
        if share.members or any(row.owner is not None for row in share.streams.values()):
            state.unsettled.add(group)


def watch_for(state: "State", group: str, share: Share, member: MemberRow) -> None:
    """Find the streams that a member's patterns match, and remember the names that it wants."""
    for path in (*member.streams, *member.topics):
        state.wanted.setdefault(path, set()).add(group)
    fresh = [pattern for pattern in member.patterns if pattern not in share.matches]
    state.patterns.search(fresh)
    for pattern in fresh:
        share.matches[pattern] = state.patterns.use(pattern, group)


def forget_member(state: "State", group: str, share: Share, member: MemberRow) -> None:
    """Drop what is derived of a member that has left, unless another one needs it."""
    share.wanted.by_member.pop(member.id, None)
    names = names_of(member)
    if all(names_of(each) != names for each in share.members.values()):
        share.wanted.by_names.pop(names, None)
    used = {pattern for each in share.members.values() for pattern in each.patterns}
    for pattern in share.matches.keys() - used:
        del share.matches[pattern]
        state.patterns.release(pattern, group)


def note_new_stream(state: "State", stream: "Stream") -> None:
    """Mark the groups whose members want a new stream."""
    groups = _wanting(state, stream)
    if not is_topic(stream.row):
        groups = groups | state.patterns.note_new(stream)
    _forget_wanted(state, groups)
    state.unsettled |= groups


def note_lost_stream(state: "State", stream: "Stream") -> None:
    """Drop what groups store about a stream that is deleted."""
    number = stream.row.number
    for group in stream.sharing or ():
        del state.shares[group].streams[number]
        state.dirty.shares[number, group] = None
        state.unsettled.add(group)
    stream.sharing = None
    _forget_wanted(state, _wanting(state, stream) | state.patterns.note_lost(stream))


def _wanting(state: "State", stream: "Stream") -> set[str]:
    """Return the groups whose members want a stream by its name, or by that of its topic.

    There can be too many.
    """
    path = stream.row.path
    groups = state.wanted.get(path, set())
    if is_partition(stream.row):
        groups = groups | state.wanted.get(state.by_number[stream.row.topic].row.path, set())
    group = group_of(path)
    return groups if group not in state.shares else {group, *groups}


def _forget_wanted(state: "State", groups: set[str]) -> None:
    for group in groups:
        share = state.shares.get(group)
        if share is not None:
            share.wanted.clear()
