"""Two workers of one group: in every order of their steps each message is processed once."""

from collections import Counter
from itertools import product

import pytest

from tests.sim import mutants_positions as mutants
from tests.sim.mutants import Mutant
from tests.sim.workers import (
    ALL,
    ANEW,
    AT_ONCE,
    DELETE_THEN_CREATE,
    FORWARD,
    FROM,
    LISTED,
    NOTHING,
    ONLY_TO,
    OPEN,
    PREPARED,
    PREPARED_LISTED,
    REWIND,
    Disturbance,
    Plan,
    every_run,
)

SAME, MORE = (10, 10), (10, 15)  # the offsets up to which they read

# The number of orders of the steps of two workers and a third actor with none, one or two steps. A
# worker has 4 steps; 5 if it prepares, 2 if it only sends a one-shot commit.
ORDERS = {
    (4, 4): (70, 630, 3_150),
    (5, 4): (126, 1_260, 6_930),
    (5, 5): (252, 2_772, 16_632),
    (4, 2): (15, 105, 420),
    (5, 2): (21, 168, 756),
    (2, 2): (6, 30, 90),
}
STEPS = {OPEN: 4, PREPARED: 5, LISTED: 4, PREPARED_LISTED: 5, AT_ONCE: 2}

TRANSACTIONS = tuple(product((OPEN, PREPARED), repeat=2))
WITH_ONE_SHOTS = (
    *(
        ways
        for ways in product((OPEN, PREPARED, LISTED, AT_ONCE), repeat=2)
        if ways not in TRANSACTIONS
    ),
    (PREPARED_LISTED, OPEN),
    (PREPARED_LISTED, AT_ONCE),
)


def orders(plan: Plan) -> int:
    one, two = (STEPS[way] for way in plan.ways)
    return ORDERS[max(one, two), min(one, two)][len(plan.disturbance)]


def tried(plan: Plan) -> tuple[int, Counter[str]]:
    """Run a plan in every order; return the number of orders, and the faults found."""
    found: Counter[str] = Counter()
    count = 0
    for run in every_run(plan):
        count += 1
        found.update(run.faults())
    return count, found


def demand_once(plan: Plan) -> None:
    assert tried(plan) == (orders(plan), Counter())


# ---- no message is processed twice ---------------------------------------------------------------


@pytest.mark.sim
@pytest.mark.parametrize("disturbance", [NOTHING, ANEW, REWIND, FORWARD])
@pytest.mark.parametrize("ways", TRANSACTIONS)
@pytest.mark.parametrize("ends", [SAME, MORE])
def test_two_workers_process_a_message_once(
    ends: tuple[int, int], ways: tuple[str, str], disturbance: Disturbance
) -> None:
    demand_once(Plan(ends, ways, disturbance))


@pytest.mark.sim
@pytest.mark.parametrize("ways", TRANSACTIONS)
def test_two_workers_process_a_message_once_if_the_input_is_away_for_a_while(
    ways: tuple[str, str],
) -> None:
    demand_once(Plan(MORE, ways, DELETE_THEN_CREATE))


@pytest.mark.sim
@pytest.mark.parametrize("disturbance", [NOTHING, ANEW, REWIND])
@pytest.mark.parametrize("ways", WITH_ONE_SHOTS)
def test_workers_with_one_shot_commits_process_a_message_once(
    ways: tuple[str, str], disturbance: Disturbance
) -> None:
    demand_once(Plan(MORE, ways, disturbance))


@pytest.mark.sim
@pytest.mark.parametrize("disturbance", [NOTHING, FORWARD])
@pytest.mark.parametrize("ways", [*TRANSACTIONS, *WITH_ONE_SHOTS])
@pytest.mark.parametrize("ends", [SAME, MORE])
def test_workers_that_send_no_from_process_a_message_once(
    ends: tuple[int, int], ways: tuple[str, str], disturbance: Disturbance
) -> None:
    demand_once(Plan(ends, ways, disturbance, sends=ONLY_TO))


@pytest.mark.sim
@pytest.mark.parametrize("disturbance", [NOTHING, ANEW, REWIND])
@pytest.mark.parametrize("ways", [(OPEN, OPEN), (PREPARED, OPEN), (AT_ONCE, PREPARED)])
def test_workers_that_send_no_version_process_a_message_once(
    ways: tuple[str, str], disturbance: Disturbance
) -> None:
    demand_once(Plan(MORE, ways, disturbance, FROM))


# Here the number of orders depends on the outcomes: a worker that was refused has more steps.
RETRIES = [
    (SAME, (OPEN, OPEN), NOTHING, 70),
    (SAME, (PREPARED, OPEN), NOTHING, 216),
    (SAME, (PREPARED, PREPARED), NOTHING, 362),
    (MORE, (OPEN, OPEN), NOTHING, 70),
    (MORE, (OPEN, PREPARED), NOTHING, 216),
    (MORE, (PREPARED, OPEN), NOTHING, 216),
    (MORE, (PREPARED, PREPARED), NOTHING, 362),
    (MORE, (OPEN, OPEN), ANEW, 21_223),
    (MORE, (AT_ONCE, OPEN), REWIND, 755),
    (MORE, (PREPARED, AT_ONCE), ANEW, 1_182),
]


@pytest.mark.sim
@pytest.mark.parametrize(("ends", "ways", "disturbance", "count"), RETRIES)
def test_a_worker_that_was_refused_may_try_again(
    ends: tuple[int, int], ways: tuple[str, str], disturbance: Disturbance, count: int
) -> None:
    assert tried(Plan(ends, ways, disturbance, retries=1)) == (count, Counter())


# ---- the test can fail ---------------------------------------------------------------------------

BROKEN: list[tuple[Mutant, Plan, str]] = [
    (mutants.compare_nothing, Plan(SAME), "doubled"),
    (mutants.compare_nothing, Plan(MORE, (AT_ONCE, AT_ONCE)), "doubled"),
    (mutants.compare_only_when_naming, Plan(SAME), "doubled"),
    (mutants.compare_only_when_naming, Plan(MORE, (LISTED, OPEN)), "doubled"),
    (mutants.compare_only_when_naming, Plan(MORE, (OPEN, OPEN), REWIND), "undone"),
    (mutants.hold_nothing, Plan(SAME, (PREPARED, OPEN)), "doubled"),
    (mutants.hold_nothing, Plan(SAME, (PREPARED, AT_ONCE)), "doubled"),
    (mutants.hold_nothing, Plan(SAME, (PREPARED_LISTED, OPEN)), "doubled"),
    (mutants.hold_nothing, Plan(MORE, (PREPARED, OPEN), REWIND), "undone"),
    (mutants.drop_a_position_with_its_stream, Plan(SAME, (OPEN, OPEN), ANEW), "doubled"),
    (mutants.drop_a_position_with_its_stream, Plan(SAME, (LISTED, OPEN), ANEW), "doubled"),
    (mutants.leave_guards_alone_in_a_rewind, Plan(MORE, (OPEN, OPEN), REWIND), "undone"),
    (mutants.forget_the_mover, Plan(SAME, sends=ONLY_TO), "doubled"),
    (mutants.clear_the_mover_by_a_plain_set, Plan(SAME, (OPEN, OPEN), FORWARD, ONLY_TO), "doubled"),
    (mutants.forget_the_mover, Plan(MORE, (AT_ONCE, OPEN), sends=ONLY_TO), "doubled"),
]


@pytest.mark.sim
@pytest.mark.parametrize(("mutant", "plan", "fault"), BROKEN)
def test_without_its_rule_a_fault_is_found(mutant: Mutant, plan: Plan, fault: str) -> None:
    with mutant():
        count, found = tried(plan)
    assert count == orders(plan)
    assert found[fault] > 0


@pytest.mark.sim
def test_without_the_incarnation_a_stream_created_anew_is_taken_for_the_old_one() -> None:
    """Both streams begin at position 0: this is why a worker sends the incarnation."""
    _, found = tried(Plan(SAME, (OPEN, OPEN), ANEW, ONLY_TO))
    assert found["doubled"] > 0
    _, found = tried(Plan(SAME, (OPEN, OPEN), ANEW, ALL))
    assert not found
