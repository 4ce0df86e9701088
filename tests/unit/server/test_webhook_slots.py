"""Which deliveries are made next: classes, hosts, and that nothing is lost."""

import random
import resource
from collections import Counter

import pytest

from semel.model.limits import DELIVERIES_MAX, SUBSCRIPTIONS_MAX
from semel.server.limits_http import HttpLimits, connections_allowed, deliveries_allowed
from semel.server.webhook_slots import FAST, NEW, SLOW, DeliverySlots


def take_all(slots: DeliverySlots, now: float = 0.0) -> list[str]:
    taken = []
    while (name := slots.take(now)) is not None:
        taken.append(name)
    return taken


def offer(slots: DeliverySlots, count: int, name: str = "n", host: str = "") -> list[str]:
    names = [f"{name}{number}" for number in range(count)]
    for each in names:
        slots.offer(each, host or each)
    return names


def make(slots: DeliverySlots, name: str, *, is_fast: bool) -> None:
    """Let a subscription have a delivery, so that its class is known."""
    slots.offer(name, name)
    assert slots.take() == name
    slots.release(name, is_fast=is_fast)


def test_deliveries_are_made_in_the_order_in_which_they_became_due() -> None:
    slots = DeliverySlots()
    names = offer(slots, 10)
    assert take_all(slots) == names
    assert slots.in_flight == 10


def test_a_subscription_has_one_delivery_at_a_time() -> None:
    slots = DeliverySlots()
    slots.offer("a", "host")
    slots.offer("a", "host")
    assert take_all(slots) == ["a"]
    slots.offer("a", "host")
    slots.offer("a", "host")
    assert take_all(slots) == []
    slots.release("a", is_fast=True)
    assert take_all(slots) == ["a"]
    slots.release("a", is_fast=True)
    assert take_all(slots) == []


def test_each_class_has_its_share() -> None:
    slots = DeliverySlots(100)
    for name in offer(slots, 30):
        assert slots.take() == name
        assert slots.class_of(name) is NEW
    offer(slots, 1_000, "more")
    assert slots.take() is None
    for number in range(30):
        slots.release(f"n{number}", is_fast=number < 20)
    assert slots.class_of("n19") is FAST
    assert slots.class_of("n20") is SLOW
    assert len(take_all(slots)) == 30
    assert slots.in_flight == 30


def test_a_fast_one_does_not_wait_for_any_others() -> None:
    slots = DeliverySlots(100)
    make(slots, "fast", is_fast=True)
    for number in range(200):
        make(slots, f"slow{number}", is_fast=False)
    offer(slots, 200, "slow")
    offer(slots, 200, "new")
    assert Counter(name[:3] for name in take_all(slots)) == {"slo": 40, "new": 30}
    slots.offer("fast", "fast")
    assert take_all(slots) == ["fast"]


def test_a_new_one_does_not_wait_for_those_that_fail() -> None:
    slots = DeliverySlots(10)
    for number in range(200):
        make(slots, f"slow{number}", is_fast=False)
    offer(slots, 200, "slow")
    slots.offer("new", "new")
    assert take_all(slots)[0] == "new"


def test_a_host_has_a_bound_and_others_pass() -> None:
    slots = DeliverySlots(1_000, per_host=2)
    names = offer(slots, 5, host="busy")
    slots.offer("other", "idle")
    assert take_all(slots) == [*names[:2], "other"]
    slots.release(names[0], is_fast=True)
    assert take_all(slots) == [names[2]]
    slots.release("other")
    assert take_all(slots) == []
    slots.release(names[1])
    slots.release(names[2])
    assert sorted(take_all(slots)) == names[3:]


def test_what_waits_for_a_host_is_next_when_that_is_free() -> None:
    slots = DeliverySlots(10, per_host=1)  # 3 new ones at the same time
    slots.offer("a", "busy")
    slots.offer("b", "busy")
    slots.offer("c", "x")
    slots.offer("d", "y")
    slots.offer("e", "z")
    assert take_all(slots) == ["a", "c", "d"]
    slots.release("a")
    assert take_all(slots) == ["b"]


def test_without_a_request_the_class_stays() -> None:
    slots = DeliverySlots()
    make(slots, "a", is_fast=True)
    slots.offer("a", "a")
    assert slots.take() == "a"
    slots.release("a")
    assert slots.class_of("a") is FAST


def test_classes_of_removed_subscriptions_are_dropped() -> None:
    slots = DeliverySlots()
    for number in range(2 * SUBSCRIPTIONS_MAX + 1):
        make(slots, f"n{number}", is_fast=True)
    assert slots.class_of("n0") is NEW
    assert slots.class_of("n1") is FAST


def make_fast(slots: DeliverySlots, count: int) -> list[str]:
    names = [f"f{number}" for number in range(count)]
    for name in names:
        make(slots, name, is_fast=True)
    return names


def test_fast_ones_that_are_all_dead_are_in_the_way_for_a_second_each() -> None:
    slots = DeliverySlots(100)
    names = [*make_fast(slots, 60), "healthy"]
    make(slots, "healthy", is_fast=True)
    for name in names:
        slots.offer(name, name)
    assert take_all(slots, 0.0) == names[:30]
    slots.note_slow(1.0)
    assert take_all(slots, 1.0) == []
    slots.note_slow(1.1)
    assert take_all(slots, 1.1) == names[30:60]
    slots.note_slow(2.2)
    assert take_all(slots, 2.2) == ["healthy"]
    slots.release("healthy", is_fast=True)
    for name in names[:60]:
        slots.release(name, is_fast=False)
    assert slots.in_flight == 0
    assert (slots.class_of("f0"), slots.class_of("healthy")) == (SLOW, FAST)


def test_new_ones_that_take_long_make_room_for_others() -> None:
    slots = DeliverySlots(100)
    names = offer(slots, 200)
    assert take_all(slots, 0.0) == names[:30]
    slots.note_slow(1.1)
    assert take_all(slots, 1.1) == names[30:60]
    slots.note_slow(2.2)
    assert take_all(slots, 2.2) == names[60:70], "40 of 100 are for slow ones"
    slots.note_slow(3.3)
    assert take_all(slots, 3.3) == []


def test_slow_ones_never_have_more_than_their_share() -> None:
    slots = DeliverySlots(100)
    fast = make_fast(slots, 90)
    for name in fast:
        slots.offer(name, name)
    offer(slots, 1_000)
    for step in range(20):
        slots.note_slow(2.0 * step)
        take_all(slots, 2.0 * step)
    assert slots.in_flight == 100
    slots.release("f0", is_fast=False)
    assert take_all(slots, 40.0) == []
    slots.note_slow(40.0)
    assert take_all(slots, 40.0) == ["f60"], "fast ones are the first to become slow"


@pytest.mark.parametrize("seed", range(20))
def test_nothing_is_lost_and_every_bound_holds(seed: int) -> None:
    rng = random.Random(seed)
    slots = DeliverySlots(total := rng.choice([4, 10, 20]), per_host=(per_host := 2))
    host_of = {f"n{number}": f"h{number % 7}" for number in range(40)}
    due: set[str] = set()
    flying: set[str] = set()
    for step in range(2_000):
        if rng.random() < 0.2:
            slots.note_slow(step / 10)
        if rng.random() < 0.4:
            name = rng.choice(list(host_of))
            slots.offer(name, host_of[name])
            due.add(name)
        elif flying and rng.random() < 0.5:
            name = rng.choice(sorted(flying))
            flying.remove(name)
            slots.release(name, is_fast=rng.choice([True, False, None]))
        else:
            for name in take_all(slots, step / 10):
                assert name not in flying
                flying.add(name)
                due.remove(name)
            assert len(flying) == slots.in_flight <= total
            assert max(Counter(host_of[name] for name in flying).values(), default=0) <= per_host
    while flying or due:
        for name in flying:
            slots.release(name, is_fast=True)
        flying = set(take_all(slots))
        assert flying
        due -= flying
        if not due:
            break


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (resource.RLIM_INFINITY, DELIVERIES_MAX),
        (100_000, DELIVERIES_MAX),
        (20_544, DELIVERIES_MAX),
        (1_024, 141),
        (256, 4),
        (64, 4),
    ],
)
def test_few_files_leave_fewer_deliveries(
    monkeypatch: pytest.MonkeyPatch, files: int, expected: int
) -> None:
    monkeypatch.setattr("semel.server.limits_http.resource.getrlimit", lambda _: (files, files))
    limits = HttpLimits()
    assert deliveries_allowed(limits) == expected
    if 256 < files < 20_000:
        assert connections_allowed(limits) + expected + 64 == files
