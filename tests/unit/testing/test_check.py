from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.testing.check import VIOLATIONS_MAX, History, Violation, check_history
from tests.unit.testing.histories import Clock, World

SEEDS = st.integers(0, 2**32)


def names(found: list[Violation]) -> set[str]:
    return {violation.name for violation in found}


def a_world(seed: int, steps: int = 60) -> World:
    world = World(Random(seed))
    world.run(steps)
    return world


# ---------------------------------------------------------------- correct histories pass


@given(SEEDS, st.integers(0, 120))
def test_a_history_of_a_log_that_keeps_its_promises_passes(seed: int, steps: int) -> None:
    world = a_world(seed, steps)
    assert check_history(world.history, world.log) == []


@given(SEEDS)
def test_a_trimmed_log_passes_as_well(seed: int) -> None:
    world = a_world(seed)
    first = world.random.randint(0, len(world.log))
    assert check_history(world.history, world.log[first:], first_offset=first) == []


def test_an_append_without_an_answer_may_be_there_or_not() -> None:
    history = History(Clock())
    history.append("a")
    assert check_history(history, []) == []
    assert check_history(history, ["a"]) == []


def test_appends_under_way_at_the_same_time_may_stand_in_any_order() -> None:
    history = History(Clock())
    first, second = history.append("a"), history.append("b")
    first.ok(1)
    second.ok(0)
    assert check_history(history, ["b", "a"]) == []


# ---------------------------------------------------------------- every anomaly is reported


def acknowledged(count: int = 4) -> tuple[History, list[object]]:
    """Return a history of one producer that waits for every response, with a read after each."""
    history = History(Clock())
    log: list[object] = []
    for seq in range(count):
        operation = history.append(f"v{seq}", producer="p", seq=seq)
        log.append(operation.value)
        operation.ok(seq)
        history.read(list(log), invoked_at=history.clock())
    return history, log


def test_the_plain_history_passes() -> None:
    assert check_history(*acknowledged()) == []


def test_an_append_acknowledged_without_an_offset_must_be_somewhere() -> None:
    history = History(Clock())
    history.append("a").ok(None)
    assert check_history(history, ["a"]) == []
    assert check_history(history, [], first_offset=1) == []  # it may have been trimmed
    (violation,) = check_history(history, [])
    assert violation == Violation("lost", {"value": "a", "acknowledged_offset": None})


def test_a_lost_append_is_named_with_its_offset() -> None:
    history, log = acknowledged()
    history.reads.clear()
    (violation,) = check_history(history, log[:3])
    assert violation == Violation("lost", {"value": "v3", "acknowledged_offset": 3})
    assert str(violation) == "lost: value='v3', acknowledged_offset=3"


def test_a_duplicate_is_named() -> None:
    history, log = acknowledged()
    assert Violation("duplicated", {"value": "v1", "offset": 4, "first_offset": 1}) in (
        check_history(history, [*log, "v1"])
    )


def test_a_duplicate_of_an_append_that_was_never_answered_is_named() -> None:
    history = History(Clock())
    history.append("a")
    assert names(check_history(history, ["a", "a"])) == {"duplicated"}


def test_a_refused_append_that_is_there_is_named() -> None:
    history = History(Clock())
    history.append("a").refuse()
    (violation,) = check_history(history, ["a"])
    assert violation == Violation("refused_but_present", {"value": "a", "offset": 0})


def test_an_answer_with_the_offset_of_another_is_named() -> None:
    history, log = acknowledged()
    history.operations[2].offset = 1
    (violation,) = check_history(history, log)
    facts = {"value": "v2", "acknowledged_offset": 1, "offset": 2}
    assert violation == Violation("wrong_offset", facts)


def test_a_value_nobody_sent_is_named() -> None:
    history, log = acknowledged()
    (violation,) = check_history(history, [*log, "ghost"])
    assert violation == Violation("never_sent", {"value": "ghost", "offset": 4})


def test_an_append_behind_one_that_began_after_its_answer_is_named() -> None:
    history = History(Clock())
    history.append("a").ok(1)
    history.append("b").ok(0)
    (violation,) = check_history(history, ["b", "a"])
    assert violation.name == "real_time_order"
    assert violation.facts["value"] == "a"
    assert violation.facts["before"] == "b"


def test_the_order_in_time_is_compared_with_all_earlier_offsets_not_only_the_last() -> None:
    history = History(Clock())
    open_since_long = history.append("c")
    history.append("a").ok(2)
    history.append("b").ok(0)
    open_since_long.ok(1)
    assert names(check_history(history, ["b", "c", "a"])) == {"real_time_order"}


@pytest.mark.parametrize(
    ("first", "second"),
    [((0, 1, 0), (0, 0, 0)), ((1, 0, 0), (0, 5, 0)), ((0, 0, 1), (0, 0, 0))],
    ids=["sequence", "epoch", "place in a batch"],
)
def test_a_producer_whose_messages_changed_places_is_named(
    first: tuple[int, int, int], second: tuple[int, int, int]
) -> None:
    history = History(Clock())
    for value, (epoch, seq, index) in (("a", first), ("b", second)):
        history.append(value, producer="p", epoch=epoch, seq=seq, index=index)
    (violation,) = check_history(history, ["a", "b"])
    assert violation.name == "producer_order"
    assert violation.facts["here"] == second
    assert violation.facts["before"] == first


def test_a_read_of_something_else_is_named_with_the_place() -> None:
    history, log = acknowledged()
    history.reads[-1].values = ["v0", "v2", "v1", "v3"]
    (violation,) = check_history(history, log)
    facts = {"reader": "reader", "offset": 1, "read": "v2", "log": "v1"}
    assert violation == Violation("read_differs", facts)


def test_a_read_of_something_that_vanished_is_named() -> None:
    history = History(Clock())
    history.append("a")
    history.read(["a"], invoked_at=history.clock())
    (violation,) = check_history(history, [])
    facts = {"reader": "reader", "offset": 0, "read": "a", "log": None}
    assert violation == Violation("read_differs", facts)


def test_a_read_that_misses_what_was_acknowledged_before_is_named() -> None:
    history = History(Clock())
    history.append("a").ok(0)
    history.read([], invoked_at=history.clock())
    (violation,) = check_history(history, ["a"])
    facts = {"reader": "reader", "next_offset": 0, "acknowledged_until": 1}
    assert violation == Violation("stale_read", facts)


def test_a_read_that_does_not_claim_to_be_whole_may_miss_it() -> None:
    history = History(Clock())
    history.append("a").ok(0)
    history.read([], invoked_at=history.clock(), is_up_to_date=False)
    assert check_history(history, ["a"]) == []


def test_a_reader_that_saw_the_end_go_back_is_named() -> None:
    history = History(Clock())
    history.append("a")
    history.read(["a"], invoked_at=history.clock(), reader="x")
    history.read([], invoked_at=history.clock(), reader="y")
    history.read([], invoked_at=history.clock(), reader="x")
    (violation,) = check_history(history, ["a"])
    facts = {"reader": "x", "next_offset": 0, "seen_until": 1}
    assert violation == Violation("read_went_back", facts)


def test_a_read_of_something_not_yet_sent_is_named() -> None:
    history = History(Clock())
    history.read(["a"], invoked_at=history.clock())
    history.append("a").ok(0)
    (violation,) = check_history(history, ["a"])
    assert violation == Violation("read_before_sent", {"reader": "reader", "value": "a"})


# ---------------------------------------------------------------- planted in generated histories


def plant_loss(world: World) -> tuple[str, bool]:
    told = [one for one in world.history.operations if one.outcome == "ok"]
    if told:
        world.log.remove(world.random.choice(told).value)
    return "lost", bool(told)


def plant_duplicate(world: World) -> tuple[str, bool]:
    if world.log:
        world.log.append(world.random.choice(world.log))
    return "duplicated", bool(world.log)


def plant_refused(world: World) -> tuple[str, bool]:
    refused = [one for one in world.history.operations if one.outcome == "refused"]
    if refused:
        world.log.append(world.random.choice(refused).value)
    return "refused_but_present", bool(refused)


def plant_wrong_offset(world: World) -> tuple[str, bool]:
    told = [one for one in world.history.operations if one.outcome == "ok"]
    if told:
        chosen = world.random.choice(told)
        assert chosen.offset is not None
        chosen.offset += world.random.choice([-1, 1])
    return "wrong_offset", bool(told)


def plant_swap(world: World) -> tuple[str, bool]:
    mine = [offset for offset, value in enumerate(world.log) if str(value).startswith("a")]
    if len(mine) < 2:
        return "producer_order", False
    one, other = sorted(world.random.sample(mine, 2))
    world.log[one], world.log[other] = world.log[other], world.log[one]
    return "producer_order", True


def plant_read(world: World) -> tuple[str, bool]:
    reads = [read for read in world.history.reads if read.values]
    if reads:
        read = world.random.choice(reads)
        read.values = [*read.values[:-1], "other"]
    return "read_differs", bool(reads)


def plant_stale(world: World) -> tuple[str, bool]:
    told = any(one.outcome == "ok" for one in world.history.operations)
    world.history.read([], invoked_at=world.history.clock(), reader="late")
    return "stale_read", told


@pytest.mark.parametrize(
    "plant",
    [
        plant_loss,
        plant_duplicate,
        plant_refused,
        plant_wrong_offset,
        plant_swap,
        plant_read,
        plant_stale,
    ],
)
def test_what_is_planted_in_a_generated_history_is_found(plant: object) -> None:
    assert callable(plant)
    planted = 0
    for seed in range(60):
        world = a_world(seed, 80)
        name, is_planted = plant(world)
        planted += is_planted
        assert not is_planted or name in names(check_history(world.history, world.log)), seed
    assert planted > 30


# ---------------------------------------------------------------- edge cases


def test_two_operations_with_one_value_are_a_mistake_of_the_test() -> None:
    history = History()
    history.append("a")
    history.append("a")
    with pytest.raises(ValueError, match="'a'; make each value unique"):
        check_history(history, [])


def test_the_list_of_violations_ends() -> None:
    assert len(check_history(History(), range(VIOLATIONS_MAX + 5))) == VIOLATIONS_MAX


def test_a_great_history_is_checked_before_the_test_runs_out_of_time() -> None:
    count = 100_000
    history = History(Clock())
    for number in range(count):
        history.append(number, producer=f"p{number % 7}", seq=number).ok(number)
        if number % 100 == 0:
            values = range(number - number % 1000, number + 1)
            history.read(values, invoked_at=history.clock(), offset=values.start)
    assert check_history(history, range(count)) == []
