"""The checker finds every fault that is planted in a good run."""

from collections.abc import Callable
from random import Random
from typing import Final

import pytest

from tests.sharing.checker import (
    APPENDED_WRONG,
    DOUBLED,
    INVENTED,
    LOST,
    OUT_OF_ORDER,
    SPLIT,
    Effect,
    Findings,
    Input,
    check_effects,
    check_inputs,
    check_letters,
    keys_that_moved,
)

KEYS: Final = 7
PER_KEY: Final = 9
GROWN_AT: Final = 5  # from this number on, the keys are in other partitions

Effects = list[Effect]


def good_inputs() -> list[Input]:
    """Return messages in 3 partitions, of which some keys move to others."""
    found = []
    ends: dict[str, int] = {}
    for number in range(PER_KEY):
        for key in range(KEYS):
            stream = f"orders/{key % 3 if number < GROWN_AT else key % 4}"
            ends[stream] = offset = ends.get(stream, -1) + 1
            found.append(Input(f"k{key}", number, stream, f"{offset:04}"))
    return found


def good_effects(inputs: list[Input], output: str = "done") -> Effects:
    """Return one effect for each input. Only messages of one key keep their order."""
    random = Random(1)
    waiting = {
        key: [each for each in inputs if each.key == key] for key in {each.key for each in inputs}
    }
    effects = []
    while waiting:
        key = random.choice(sorted(waiting))
        each = waiting[key].pop(0)
        effects.append(Effect(*each[:4], worker="w1", output=output))
        if not waiting[key]:
            del waiting[key]
    return effects


INPUTS: Final = good_inputs()
APPENDED: Final = {f"k{key}": PER_KEY for key in range(KEYS)}


def test_a_good_run_has_no_findings() -> None:
    effects = good_effects(INPUTS)
    assert not check_inputs(INPUTS, APPENDED)
    assert not check_effects(INPUTS, effects)
    assert str(check_effects(INPUTS, effects)) == "nothing"
    assert keys_that_moved(INPUTS) == sum(key % 3 != key % 4 for key in range(KEYS)) > 0


def lose_one(effects: Effects) -> None:
    del effects[10]


def lose_the_last_of_a_key(effects: Effects) -> None:
    """Remove an effect that leaves no gap in the numbers."""
    last = max(index for index, each in enumerate(effects) if each.key == "k2")
    del effects[last]


def double_one_at_once(effects: Effects) -> None:
    effects.insert(10, effects[10])


def double_one_by_another_worker(effects: Effects) -> None:
    last = max(index for index, each in enumerate(effects) if each.key == "k2")
    effects.insert(last + 1, effects[last]._replace(worker="w2"))


def swap_two_of_a_key(effects: Effects) -> None:
    first, second = [index for index, each in enumerate(effects) if each.key == "k3"][2:4]
    effects[first], effects[second] = effects[second], effects[first]


def swap_across_the_growth(effects: Effects) -> None:
    """Let a worker read the new partition of a key before the old one is read to its end."""
    own = [index for index, each in enumerate(effects) if each.key == "k5"]
    before, after = own[GROWN_AT - 1], own[GROWN_AT]
    effects[before], effects[after] = effects[after], effects[before]


def name_another_place(effects: Effects) -> None:
    effects[4] = effects[4]._replace(offset="9999")


def name_another_number(effects: Effects) -> None:
    effects[4] = effects[4]._replace(number=effects[4].number + 1)


def put_a_key_into_two_outputs(effects: Effects) -> None:
    last = max(index for index, each in enumerate(effects) if each.key == "k1")
    effects[last] = effects[last]._replace(output="done/1")


PLANTED: Final = [
    (lose_one, {LOST}),
    (lose_the_last_of_a_key, {LOST}),
    (double_one_at_once, {DOUBLED}),
    (double_one_by_another_worker, {DOUBLED}),
    (swap_two_of_a_key, {OUT_OF_ORDER}),
    (swap_across_the_growth, {OUT_OF_ORDER}),
    (name_another_place, {INVENTED, LOST}),
    (name_another_number, {INVENTED, LOST}),
    (put_a_key_into_two_outputs, {SPLIT}),
]


@pytest.mark.parametrize(("plant", "kinds"), PLANTED)
def test_a_planted_fault_is_found(plant: Callable[[Effects], None], kinds: set[str]) -> None:
    effects = good_effects(INPUTS)
    plant(effects)
    found = check_effects(INPUTS, effects)
    assert found
    assert kinds <= set(found.kinds)
    # A wrong number can also be out of order. Nothing else is reported beside the planted fault.
    assert set(found.kinds) <= kinds | {OUT_OF_ORDER}
    assert all(found.count(kind) == 1 for kind in kinds)


def test_every_lost_and_every_doubled_effect_is_counted() -> None:
    effects = good_effects(INPUTS)
    found = check_effects(INPUTS, effects[3:] + effects[-2:])
    assert found.count(LOST) == 3
    assert found.count(DOUBLED) == 2


def test_a_run_without_any_effect_is_not_good() -> None:
    found = check_effects(INPUTS, [])
    assert found.count(LOST) == len(INPUTS)


def test_an_effect_that_must_not_be_there_is_found() -> None:
    effects = good_effects(INPUTS)
    poisoned = INPUTS[5]
    found = check_effects(INPUTS, effects, without_effect=[poisoned.place])
    assert found.count(INVENTED) == 1
    rest = [each for each in effects if each.place != poisoned.place]
    assert not check_effects(INPUTS, rest, without_effect=[poisoned.place])


def test_a_replayed_input_may_come_late_but_only_once() -> None:
    effects = good_effects(INPUTS)
    poisoned = next(each for each in INPUTS if each.number == 2)
    (own,) = [each for each in effects if each.place == poisoned.place]
    late = [*(each for each in effects if each is not own), own]
    assert check_effects(INPUTS, late).kinds == [OUT_OF_ORDER]
    assert not check_effects(INPUTS, late, without_order=[poisoned.place])
    again = check_effects(INPUTS, [*late, own], without_order=[poisoned.place])
    assert again.kinds == [DOUBLED]


@pytest.mark.parametrize(
    "wrong",
    [
        INPUTS[:-1],
        [*INPUTS, INPUTS[-1]._replace(offset="9999")],
        [*INPUTS, Input("another", 0, "orders/0", "9999")],
    ],
)
def test_a_topic_without_a_message_or_with_one_too_many_is_found(wrong: list[Input]) -> None:
    assert check_inputs(wrong, APPENDED).count(APPENDED_WRONG) == 1


LETTERS: Final = [("orders/1", "0003"), ("orders/2", "0001")]


def test_good_dead_letters_have_no_findings() -> None:
    assert not check_letters(LETTERS, reversed(LETTERS))


@pytest.mark.parametrize(
    ("letters", "kind"),
    [
        (LETTERS[1:], LOST),
        ([*LETTERS, LETTERS[0]], DOUBLED),
        ([*LETTERS, ("orders/1", "0004")], INVENTED),
    ],
)
def test_a_wrong_dead_letter_is_found(letters: list[tuple[str, str]], kind: str) -> None:
    found = check_letters(letters, LETTERS)
    assert found.kinds == [kind]
    assert found.count(kind) == 1


def test_findings_say_how_many_there_are_and_show_only_some() -> None:
    found = Findings()
    for number in range(50):
        found.add(LOST, f"number {number}")
    other = Findings()
    other.add(DOUBLED, "twice")
    found.merge(other)
    assert found.kinds == [DOUBLED, LOST]
    assert str(found).startswith("1 doubled, 50 lost\n")
    assert str(found).count("\n") < 15
