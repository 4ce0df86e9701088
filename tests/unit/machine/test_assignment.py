"""The assignment of streams to members: even, sticky, cooperative, and complete."""

from collections.abc import Mapping, Set

from hypothesis import given
from hypothesis import strategies as st

from semel.machine.assignment import _classes_of, plan

MEMBERS = ["a", "b", "c", "d", "e"]
Owners = dict[int, str]
Subscriptions = dict[str, frozenset[int]]


def step(subscriptions: Mapping[str, Set[int]], owned: Owners, free: set[int]) -> set[int]:
    """Make one step: give the streams, and return those that must be released."""
    result = plan(subscriptions, owned, frozenset(free), frozenset())
    for stream, member in result.given:
        assert stream in free, "only a free stream is given"
        assert stream in subscriptions[member]
        free.discard(stream)
        owned[stream] = member
    assert len(set(result.revoked)) == len(result.revoked)
    assert set(result.revoked) <= owned.keys()
    return set(result.revoked)


def settle(subscriptions: Mapping[str, Set[int]], owned: Owners) -> tuple[Owners, int]:
    """Make steps until nothing changes. Return the owners, and how many streams had to move."""
    owned = dict(owned)
    every = set().union(*subscriptions.values())
    moved = 0
    for _ in range(50):
        free = every - owned.keys()
        revoked = step(subscriptions, owned, free)
        moved += len(revoked)
        for stream in revoked:
            del owned[stream]
        if not revoked:
            return owned, moved
    raise AssertionError("the assignment does not come to rest")


def loads(subscriptions: Mapping[str, Set[int]], owned: Owners) -> dict[str, int]:
    return {member: sum(each == member for each in owned.values()) for member in subscriptions}


# ---- members with equal subscriptions ------------------------------------------------------------


@given(st.integers(0, 30), st.integers(1, 5), st.integers(1, 5))
def test_equal_members_own_numbers_that_differ_by_at_most_one(
    streams: int, before: int, after: int
) -> None:
    every = frozenset(range(streams))
    owned, _ = settle(dict.fromkeys(MEMBERS[:before], every), {})
    assert owned.keys() == every
    later = dict.fromkeys(MEMBERS[5 - after :], every)
    kept = {stream: owner for stream, owner in owned.items() if owner in later}
    again, moved = settle(later, kept)
    assert again.keys() == every
    counts = loads(later, again).values()
    assert max(counts) - min(counts) <= 1
    stays = sum(again[stream] == owner for stream, owner in kept.items())
    # No more streams move than every assignment that is as even has to move.
    least = sum(max(0, have - -(-streams // after)) for have in loads(later, kept).values())
    assert least <= moved <= least + after
    assert stays == len(kept) - moved


@given(st.integers(1, 30), st.integers(1, 4))
def test_an_even_assignment_is_left_alone(streams: int, members: int) -> None:
    subscriptions = dict.fromkeys(MEMBERS[:members], frozenset(range(streams)))
    owned, _ = settle(subscriptions, {})
    result = plan(subscriptions, owned, frozenset(), frozenset())
    assert (result.given, result.revoked) == ([], [])


def test_a_new_member_gets_nothing_before_it_is_released() -> None:
    every = frozenset(range(4))
    owned = dict.fromkeys(every, "a")
    result = plan({"a": every, "b": every}, owned, frozenset(), frozenset())
    assert result.given == []
    assert len(result.revoked) == 2


def test_streams_that_are_being_released_are_planned_for() -> None:
    """Otherwise more streams would be revoked than necessary."""
    every = frozenset(range(4))
    owned = {0: "a", 1: "a"}
    result = plan({"a": every, "b": every}, owned, frozenset(), frozenset({2, 3}))
    assert (result.given, result.revoked) == ([], [])


def test_no_member_means_no_plan() -> None:
    result = plan({}, {}, frozenset(), frozenset())
    assert (result.given, result.revoked) == ([], [])


def test_a_stream_goes_to_its_preferred_member_if_that_is_as_even() -> None:
    every = frozenset(range(4))
    subscriptions = {"a": every, "b": every}
    wishes = {2: "b", 3: "b"}
    result = plan(subscriptions, {0: "a", 1: "a"}, frozenset({2, 3}), frozenset(), wishes)
    assert sorted(result.given) == [(2, "b"), (3, "b")]
    uneven = dict.fromkeys((1, 2, 3), "b")
    result = plan(subscriptions, {0: "a"}, frozenset({1, 2, 3}), frozenset(), uneven)
    assert sorted(member for _, member in result.given) == ["a", "b", "b"]


# ---- members with different subscriptions --------------------------------------------------------

subscriptions_of_some = st.dictionaries(
    st.sampled_from(MEMBERS), st.frozensets(st.integers(0, 11)), min_size=1
)


@given(subscriptions_of_some, subscriptions_of_some)
def test_every_stream_has_an_owner_that_wants_it(
    before: Subscriptions, after: Subscriptions
) -> None:
    owned, _ = settle(before, {})
    kept = {stream: owner for stream, owner in owned.items() if owner in after}
    again, _ = settle(after, kept)
    assert again.keys() == frozenset().union(*after.values())
    assert all(stream in after[owner] for stream, owner in again.items())


@given(subscriptions_of_some)
def test_no_stream_can_go_to_a_member_with_two_fewer(subscriptions: Subscriptions) -> None:
    owned, _ = settle(subscriptions, {})
    counts = loads(subscriptions, owned)
    for stream, owner in owned.items():
        for member, wanted in subscriptions.items():
            assert stream not in wanted or counts[owner] - counts[member] < 2


@given(subscriptions_of_some)
def test_the_plan_does_not_depend_on_the_order_of_members(subscriptions: Subscriptions) -> None:
    every = frozenset().union(*subscriptions.values())
    turned = dict(reversed(subscriptions.items()))
    one = plan(subscriptions, {}, every, frozenset())
    other = plan(turned, {}, every, frozenset())
    assert (one.given, one.revoked) == (other.given, other.revoked)


def test_equal_sets_are_one_subscription() -> None:
    subscriptions = {name: frozenset(range(6)) for name in MEMBERS[:3]}
    owned, moved = settle(subscriptions, {})
    assert (sorted(loads(subscriptions, owned).values()), moved) == ([2, 2, 2], 0)


@given(subscriptions_of_some, st.dictionaries(st.integers(0, 11), st.sampled_from(MEMBERS)))
def test_a_plan_gives_to_those_with_the_fewest_streams(
    subscriptions: Subscriptions, before: Owners
) -> None:
    owned = {
        stream: owner
        for stream, owner in before.items()
        if stream in subscriptions.get(owner, frozenset())
    }
    again, moved = settle(subscriptions, owned)
    counts = loads(subscriptions, again)
    for stream, owner in again.items():
        for member, wanted in subscriptions.items():
            assert stream not in wanted or counts[owner] - counts[member] < 2
    assert sum(again[stream] != owner for stream, owner in owned.items()) <= moved


def test_many_members_with_different_lists_own_even_numbers() -> None:
    streams = range(1_000)
    subscriptions = {
        f"m{member:03}": {stream for stream in streams if (stream * member) % 997 < 500}
        for member in range(300)
    }
    classes = _classes_of(list(subscriptions.values()))
    assert len(set(classes.values())) > 900
    owned, _ = settle(subscriptions, {})
    counts = loads(subscriptions, owned)
    assert max(counts.values()) <= 5
    for stream, owner in owned.items():
        lowest = min(counts[each] for each, wanted in subscriptions.items() if stream in wanted)
        assert counts[owner] - lowest < 2
