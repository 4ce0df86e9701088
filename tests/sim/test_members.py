"""Two members of one group: in every order of their steps each message is processed once."""

from collections import Counter

import pytest

from tests.sim import mutants_groups as mutants
from tests.sim.members import (
    AT_ONCE,
    EXPIRE,
    LEAVE,
    LISTED,
    OPEN,
    PREPARED,
    RELEASE,
    REPLACE,
    Plan,
    every_run,
)
from tests.sim.mutants import Mutant

# The number of orders of the steps of both members and of what ends the first one. A member can
# read only when it owns the stream, so there are fewer orders if the first one goes on.
PLANS = {
    Plan((OPEN, OPEN), EXPIRE): 1_751,
    Plan((PREPARED, AT_ONCE), EXPIRE): 1_037,
    Plan((LISTED, AT_ONCE), EXPIRE): 504,
    Plan((AT_ONCE, AT_ONCE), EXPIRE, returns=True): 211,
    Plan((PREPARED, AT_ONCE), LEAVE): 1_037,
    Plan((OPEN, AT_ONCE), RELEASE): 105,
    Plan((PREPARED, AT_ONCE), RELEASE): 168,
    Plan((OPEN, AT_ONCE), REPLACE): 21,
    Plan((PREPARED, AT_ONCE), REPLACE): 34,
}


def tried(plan: Plan) -> tuple[int, Counter[str]]:
    """Run a plan in every order; return the number of orders, and the faults found."""
    found: Counter[str] = Counter()
    count = 0
    for run in every_run(plan):
        count += 1
        found.update(run.faults())
    return count, found


@pytest.mark.sim
@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: f"{'+'.join(plan.ways)}, {plan.end}")
def test_two_members_process_a_message_once(plan: Plan) -> None:
    assert tried(plan) == (PLANS[plan], Counter())


@pytest.mark.sim
def test_an_owner_that_does_not_say_what_it_has_read_is_refused_after_another_producer() -> None:
    _, found = tried(Plan((OPEN, AT_ONCE), EXPIRE, has_from=False))
    assert set(found) == {"the owner was refused", "lost"}


@pytest.mark.sim
@pytest.mark.parametrize(
    ("mutant", "plan", "fault"),
    [
        (mutants.compare_no_epochs, Plan((PREPARED, AT_ONCE), RELEASE), "by a zombie"),
        (mutants.compare_the_owner_only_when_naming, Plan((OPEN, AT_ONCE), RELEASE), "by a zombie"),
        (mutants.keep_the_epoch_of_the_owner_before, Plan((OPEN, AT_ONCE), REPLACE), "two owners"),
        (mutants.release_while_prepared, Plan((PREPARED, AT_ONCE), REPLACE), "two owners"),
    ],
)
def test_without_a_rule_of_groups_a_fault_is_found(mutant: Mutant, plan: Plan, fault: str) -> None:
    with mutant():
        assert fault in tried(plan)[1]
