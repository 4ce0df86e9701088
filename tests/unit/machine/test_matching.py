"""What members take part in sharing is known at all times, however it was found."""

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.machine import State, groups
from semel.machine import matching as module
from semel.machine.matching import PatternStreams
from semel.machine.rows import MemberRow
from semel.model.commands import Delete
from semel.model.group_commands import DeleteGroup
from semel.model.outcomes import LimitReached
from semel.model.outcomes_groups import GroupDeleted, Joined
from semel.model.patterns import Pattern
from semel.model.rights import retries_of
from semel.model.steps import finish
from semel.model.topic_commands import DeleteTopic
from tests.unit.machine.builders import Machine, create, machine_of, reloaded
from tests.unit.machine.topic_builders import create_topic, grow, join, leave

PATTERNS = ("**", "*", "a/*", "a/**", "*/b", "t/*", "t/1", "**/0", "none/*", "t/*/c", "a")
PATHS = ("a", "b", "a/a", "a/b", "b/b", "b/c/d", "t/1/c", "c/0", "__semel/retry/g")


def matched(state: State, pattern: str) -> set[int]:
    """Compare all streams with a pattern."""
    compiled = Pattern(pattern)
    return {
        stream.row.number
        for path, stream in state.by_path.items()
        if stream.topic is None and not stream.tail.is_deleted and compiled.matches(path)
    }


def wanted(state: State, group: str, member: MemberRow) -> set[int]:
    """Compute what a member takes part in sharing from the rows alone."""
    found = set().union(*(matched(state, pattern) for pattern in member.patterns))
    for path in (*member.streams, retries_of(group)):
        stream = state.by_path.get(path)
        if stream is not None and stream.topic is None:
            found.add(stream.row.number)
    for path in member.topics:
        topic = state.by_path.get(path)
        if topic is not None and topic.topic is not None:
            found.update(topic.topic.partitions)
    return found


def check(state: State) -> None:
    for group, share in state.shares.items():
        change = groups._Change(state, group)
        for member in share.members.values():
            assert change.wanted_by(member) == wanted(state, group, member), member
        used = {pattern for member in share.members.values() for pattern in member.patterns}
        assert share.matches == {pattern: matched(state, pattern) for pattern in used}
        assert len(share.wanted.by_names) <= len(share.members)


def one_of(choose: random.Random, machine: Machine, number: int) -> None:
    """Execute a command that changes streams or members."""
    group, member = choose.choice("gh"), f"m{choose.randrange(4)}"
    path = choose.choice(PATHS)
    names = [each for each in PATHS if each in machine.state.by_path]
    patterns = choose.sample(PATTERNS, choose.randrange(3))
    topics = ["t"] * ("t" in machine.state.by_path and choose.random() < 0.5)
    commands: tuple[Callable[[], object], ...] = (
        lambda: create(path),
        lambda: Delete(path, 0),
        lambda: create_topic("t", 2),
        lambda: grow("t", 2 + number % 7, moves=True),
        lambda: DeleteTopic("t", 0),
        lambda: leave(member, group=group),
        lambda: join(
            f"m{choose.randrange(4)}",
            *choose.sample(names, min(2, len(names))),
            topics=tuple(topics),
            patterns=(*patterns, "x/*"),
            group=group,
        ),
    )
    weights = (4, 3, 1, 1, 1, 3, 5)
    machine.execute(choose.choices(commands, weights)[0]())  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(40))
def test_what_members_want_is_what_the_rows_say_after_every_command(seed: int) -> None:
    choose, machine = random.Random(seed), machine_of()
    for number in range(60):
        one_of(choose, machine, number)
        check(machine.state)
    check(reloaded(machine.state))


@pytest.mark.parametrize("seed", range(40))
def test_a_search_in_steps_is_complete_whatever_happens_between_them(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_STEP_COMPARISONS", 4)
    choose = random.Random(seed)
    machine = machine_of(*(create(f"{first}/{last}") for first in "abc" for last in range(4)))
    asked = choose.sample(PATTERNS, 4)
    patterns = machine.state.patterns
    count = 0
    for _ in patterns.search_steps(asked):
        count += 1
        one_of(choose, machine, count)
    assert count > 1
    patterns.search(asked)  # for what another search or the end of a membership has dropped
    for pattern in asked:
        assert patterns.known(pattern) == matched(machine.state, pattern)


def test_streams_are_created_and_deleted_while_they_are_grouped_by_their_first_segments(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_STEP_STREAMS", 1)
    machine = machine_of(*(create(f"a/{number}") for number in range(4)))
    patterns = machine.state.patterns
    steps = patterns.search_steps(("a/*",))
    next(steps)
    machine.execute(Delete("a/0", 0))
    machine.execute(Delete("a/2", 0))
    machine.execute(create("a/4"))
    finish(steps)
    assert patterns.known("a/*") == matched(machine.state, "a/*")
    assert len(patterns.known("a/*")) == 3


@pytest.mark.parametrize("steps_first", range(7))
def test_streams_are_created_and_deleted_while_those_below_a_path_are_found(
    monkeypatch: pytest.MonkeyPatch, steps_first: int
) -> None:
    monkeypatch.setattr(module, "_STEP_STREAMS", 1)
    paths = ("a/b", "a/b/0", "a/b/1", "a/bc/0", "a/c", "b/0")
    machine = machine_of(*(create(path) for path in paths))
    patterns = machine.state.patterns
    patterns.search(("a/*",))  # groups the streams
    steps = patterns.search_steps(("a/b/**",))
    for _ in range(steps_first):
        next(steps)
    machine.execute(Delete("a/b/0", 0))
    machine.execute(create("a/b/2"))
    finish(steps)
    assert patterns.known("a/b/**") == matched(machine.state, "a/b/**")
    assert len(patterns.known("a/b/**")) == 3


def test_streams_that_are_not_below_the_path_of_a_pattern_are_not_compared_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = machine_of(*(create(f"a/{number}/x") for number in range(50)))
    patterns, count = machine.state.patterns, 0
    monkeypatch.setattr(module, "_STEP_COMPARISONS", 1)
    for _ in patterns.search_steps(("a/7/*",)):
        count += 1
    assert count < 5
    assert patterns.known("a/7/*") == matched(machine.state, "a/7/*")


def test_the_result_of_a_search_is_kept_until_the_join_or_the_next_search() -> None:
    machine = machine_of(create("a/1"), create("b/1"))
    patterns = machine.state.patterns
    assert patterns.must_search(("a/*",))
    patterns.search(("a/*", "b/*"))
    assert not patterns.must_search(("a/*", "b/*"))
    machine.execute(join("m", patterns=("a/*",)))
    patterns.search(("c/*",))
    assert [patterns.must_search((each,)) for each in ("a/*", "b/*", "c/*")] == [False, True, False]
    machine.execute(leave("m"))
    assert patterns.must_search(("a/*",)), "nobody uses it any more"
    assert len(patterns) == 1


def test_a_search_that_is_not_at_its_end_is_not_used() -> None:
    machine = machine_of(create("a/1"))
    patterns = machine.state.patterns
    next(patterns.search_steps(("a/*",)))
    assert patterns.must_search(("a/*",))
    assert patterns.search(("a/*",))
    assert not patterns.must_search(("a/*",))
    finish(patterns.search_steps(("a/*",)))
    assert patterns.known("a/*") == matched(machine.state, "a/*")


def test_a_search_ends_early_when_there_are_too_many_streams(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(groups, "GROUP_STREAMS_MAX", 3)
    monkeypatch.setattr(groups, "TXN_STREAMS_MAX", 3)
    monkeypatch.setattr(module, "_STEP_COMPARISONS", 1)
    machine = machine_of(*(create(f"s/{number}") for number in range(50)))
    machine.state.limits = type(machine.state.limits)(txn_streams=3)  # type: ignore[misc]
    assert machine.execute(join("m", patterns=("**",))) == LimitReached("group_streams", 3)
    assert len(machine.state.patterns.known("**")) == 4
    assert machine.execute(join("m", patterns=("s/1",))) == Joined("g", "m")
    for number in range(47):
        machine.execute(Delete(f"s/{number}", 0))
    assert machine.execute(join("n", patterns=("**",))) == Joined("g", "n")
    check(machine.state)


def test_a_group_that_was_deleted_wants_nothing() -> None:
    machine = machine_of(create("a"), join("m", "a", patterns=("b/*",)), leave("m"))
    assert machine.execute(DeleteGroup(0, "g")) == GroupDeleted()
    machine.execute(Delete("a", 0))
    machine.execute(create("a"))
    machine.execute(create("b/1"))
    assert (machine.state.shares, len(machine.state.patterns)) == ({}, 0)
    machine.execute(join("m", "a", patterns=("b/*",)))
    check(machine.state)


segments = st.sampled_from(["a", "b", "*", "**", "x"])
some_patterns = st.lists(st.lists(segments, min_size=1, max_size=4).map("/".join), max_size=8)
some_paths = st.lists(
    st.lists(st.sampled_from(["a", "b", "x", "*", ""]), min_size=1, max_size=5)
    .map("/".join)
    .filter(bool)  # no path is empty
)


@given(some_patterns, some_paths, st.integers(0, 7))
def test_an_index_finds_each_pattern_that_matches_a_path_once(
    texts: list[str], paths: list[str], removed: int
) -> None:
    index = module.PatternIndex()
    matched = {text: module.Matched(Pattern(text)) for text in texts}
    for text, each in matched.items():
        index.add(text, each)
    for number, path in enumerate(paths):
        if number == removed and matched:
            index.remove(*matched.popitem())
        found = [id(each) for each in index.matching(path)]
        assert sorted(found) == sorted(
            id(each) for each in matched.values() if each.pattern.matches(path)
        )
    for each in matched.values():
        beside = [id(other) for other in index.beside(each.pattern)]
        assert sorted(beside) == sorted(
            id(other) for other in matched.values() if other.pattern.parent == each.pattern.parent
        )


def test_patterns_with_other_segments_before_their_wildcards_are_not_compared() -> None:
    index = module.PatternIndex()
    for number in range(1_000):
        for end in ("*", "**"):
            index.add(f"t/{number}/{end}", module.Matched(Pattern(f"t/{number}/{end}")))
    for number in range(1_000):
        assert len(index.matching(f"t/{number}/x")) == 2
        assert len(index.matching(f"t/{number}")) == 1
    assert index.comparisons <= 10_000


def test_most_paths_are_not_compared_with_patterns_that_begin_with_another_name() -> None:
    machine = machine_of(create_topic("t", 1_000), create_topic("u", 1_000))
    patterns = PatternStreams(machine.state.by_number)
    index = module.PatternIndex()
    for number in range(1_000):
        index.add(f"none{number}/*", module.Matched(Pattern(f"none{number}/*")))
    for stream in machine.state.by_number.values():
        assert index.matching(stream.row.path) == []
    assert index.comparisons < 3_000
    patterns.search(("t/*",))
    assert len(patterns.known("t/*")) == 1_000


def test_partitions_are_compared_only_with_patterns_that_can_match_below_the_topic() -> None:
    index = module.PatternIndex()
    for number in range(1_000):
        index.add(f"**/x{number}/*", module.Matched(Pattern(f"**/x{number}/*")))
    for partition in range(1_000):
        assert len(index.matching(f"x7/{partition}")) == 1
    assert index.comparisons <= 4_000


def test_a_pattern_that_ends_with_a_name_is_compared_only_with_paths_that_do() -> None:
    index = module.PatternIndex()
    for number in range(1_000):
        index.add(f"**/x{number}", module.Matched(Pattern(f"**/x{number}")))
    for partition in range(1_000):
        assert index.matching(f"t/{partition}") == []
    assert len(index.matching("t/x7")) == 1
    assert index.comparisons <= 3_000
