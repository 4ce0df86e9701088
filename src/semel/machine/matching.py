"""What patterns of stream paths match: found once for each pattern, and kept up to date.

A search compares all streams with patterns. From its beginning on, new and deleted streams change
its result. So a search can be made in steps, between other commands, and `apply` uses what `decide`
has found.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from semel.model.patterns import Pattern
from semel.model.steps import Steps, finish

if TYPE_CHECKING:
    from semel.machine.state import Stream


_WILD: Final = "*"  # stands for the first segment of patterns that begin with a wildcard
_STEP_COMPARISONS: Final = 2_000  # a step of a search takes one to five milliseconds
_STEP_STREAMS: Final = 10_000


class Matched(Struct, eq=False):
    """The numbers of the streams that a pattern matches, and who uses the pattern."""

    pattern: Pattern
    numbers: set[int] = set()
    users: set[str] = set()
    is_complete: bool = False


class PatternIndex:
    """Patterns by the segments before their first wildcard. It finds those that can match a path.

    Paths with the same parent, such as partitions of a topic, often follow each other. What can
    match them is kept until the parent or a pattern changes. `comparisons` counts the work.
    """

    def __init__(self) -> None:
        self._by_parent: dict[str, dict[str, Matched]] = {}
        self._parent: str | None = None
        self._below_parent: dict[str, list[Matched]] = {}  # by the last segment
        self.comparisons = 0

    def add(self, text: str, matched: Matched) -> None:
        self._by_parent.setdefault(matched.pattern.parent, {})[text] = matched
        self._parent = None

    def remove(self, text: str, matched: Matched) -> None:
        parent = matched.pattern.parent
        del self._by_parent[parent][text]
        if not self._by_parent[parent]:
            del self._by_parent[parent]
        self._parent = None

    def beside(self, pattern: Pattern) -> Iterable[Matched]:
        """Return the patterns that have the same segments before their first wildcard."""
        return self._by_parent.get(pattern.parent, {}).values()

    def candidates(self, path: str) -> Collection[Matched]:
        """Return the patterns that can match a path."""
        self.comparisons += 1
        if not self._by_parent:
            return ()
        own = self._by_parent.get(path, {}).values()  # the path itself, and what ends with /**
        parent, slash, last = path.rpartition("/")
        if not slash:
            return [*own, *self._by_parent.get("", {}).values()]
        if parent != self._parent:
            self._parent, self._below_parent = parent, {}
            for each in self._above(parent):
                self.comparisons += 1
                if each.pattern.can_match_below(parent):
                    self._below_parent.setdefault(each.pattern.last or _WILD, []).append(each)
        found = self._below_parent.get(_WILD, [])
        return (
            [*own, *found] if last == _WILD else [*own, *self._below_parent.get(last, ()), *found]
        )

    def _above(self, parent: str) -> Iterator[Matched]:
        """Yield the patterns whose first segments are those of a parent, or its first ones."""
        end = len(parent)
        while end > 0:
            yield from self._by_parent.get(parent[:end], {}).values()
            end = parent.rfind("/", 0, end)
        yield from self._by_parent.get("", {}).values()

    def matching(self, path: str) -> list[Matched]:
        """Return the patterns that match a path."""
        candidates = self.candidates(path)
        self.comparisons += len(candidates)
        return [each for each in candidates if each.pattern.matches(path)]


class PatternStreams:
    """The patterns that are in use, and those of the newest search, with what they match.

    `streams` are all streams and topics, by their numbers. The first search for patterns that begin
    with a literal segment groups the streams by their first segments. From then on, such a search
    compares only the streams that begin with the same segment.
    """

    def __init__(self, streams: Mapping[int, "Stream"]) -> None:
        self._streams = streams
        self._by_first: dict[str, set[int]] | None = None
        self._table: dict[str, Matched] = {}
        self._index = PatternIndex()
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
        searches that nobody uses.
        """
        wanted = [*dict.fromkeys(patterns)]
        for text in self._unused.difference(wanted):
            self._index.remove(text, self._table.pop(text))
        self._unused.intersection_update(wanted)
        index, found = PatternIndex(), []
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
        numbers = yield from self._candidates(found)
        for _ in self._compare(index, numbers):
            if count_max is not None and any(len(each.numbers) > count_max for each in found):
                return
            yield
        for matched in found:
            matched.is_complete = True

    def _candidates(self, found: list[Matched]) -> Steps[list[int]]:
        """Return the numbers of the streams that patterns can match, in steps."""
        firsts = {each.pattern.first for each in found}
        if None in firsts:
            return [*self._streams]
        if self._by_first is None:
            by_first: dict[str, set[int]] = {}
            self._by_first = by_first
            for count, number in enumerate([*self._streams], 1):
                stream = self._streams.get(number)
                if stream is not None and not stream.tail.is_deleted:
                    by_first.setdefault(_first_of(stream), set()).add(number)
                if count % _STEP_STREAMS == 0:
                    yield
        empty: set[int] = set()
        numbers = [number for first in firsts for number in self._by_first.get(first or "", empty)]
        pattern = found[0].pattern
        if len(found) > 1 or pattern.parent == pattern.first:
            return numbers
        return (yield from self._below(pattern.parent, numbers))

    def _below(self, parent: str, numbers: list[int]) -> Steps[list[int]]:
        """Return the streams at a path and below it, in steps: much faster than by a pattern."""
        found: list[int] = []
        for at in range(0, len(numbers), _STEP_STREAMS):
            for number in numbers[at : at + _STEP_STREAMS]:
                stream = self._streams.get(number)
                if stream is not None and f"{stream.row.path}/".startswith(f"{parent}/"):
                    found.append(number)
            yield
        return found

    def _compare(self, index: PatternIndex, numbers: list[int]) -> Iterator[None]:
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

    def use(self, pattern: str, user: str) -> set[int]:
        """Record that somebody uses a pattern, after a search. Return the streams it matches.

        The set changes when streams are created and deleted.
        """
        matched = self._table[pattern]
        matched.users.add(user)
        self._unused.discard(pattern)
        return matched.numbers

    def release(self, pattern: str, user: str) -> None:
        """Record that somebody does not use a pattern any more."""
        matched = self._table[pattern]
        matched.users.remove(user)
        if not matched.users:
            del self._table[pattern]
            self._index.remove(pattern, matched)

    # ---- streams -------------------------------------------------------------------------------

    def note_new(self, stream: "Stream") -> set[str]:
        """Add a new stream, which is no topic. Return the users of patterns that match it."""
        users: set[str] = set()
        if self._by_first is not None:
            self._by_first.setdefault(_first_of(stream), set()).add(stream.row.number)
        for matched in self._index.matching(stream.row.path):
            matched.numbers.add(stream.row.number)
            users |= matched.users
        return users

    def note_lost(self, stream: "Stream") -> set[str]:
        """Remove a stream that is deleted. Return the users of patterns that matched it."""
        users: set[str] = set()
        if self._by_first is not None:
            self._by_first.get(_first_of(stream), set()).discard(stream.row.number)
        for matched in self._index.candidates(stream.row.path):
            if stream.row.number in matched.numbers:
                matched.numbers.remove(stream.row.number)
                users |= matched.users
        return users


def _first_of(stream: "Stream") -> str:
    return stream.row.path.partition("/")[0]
