"""Lists of very many rows: a page ends early, and what is not shown is not computed."""

from unittest.mock import patch

import pytest

from semel.machine import State
from semel.machine.txn.views import stored_dates
from semel.model.limits import TXN_TIMEOUT_MS_MAX
from semel.server import resources
from semel.server.resources import transactions_page
from semel.wire.transactions import TxnQuery
from tests.unit.machine.builders import create
from tests.unit.machine.txn_builders import begin, by, prepare, txn_machine

STREAMS = ("s", "r", "t")


def state_of(count: int, *, prepared: int = 0) -> State:
    """Return a state with transactions of three streams each. The first ones are prepared."""
    machine = txn_machine(create("t"))
    for index in range(count):
        machine.execute(begin(f"t{index}", by(f"p{index}"), streams=STREAMS))
    for index in range(prepared):
        machine.execute(prepare(f"t{index}", producer_id=f"p{index}", producer_epoch=0))
    assert len(machine.state.by_txn) == count
    return machine.state


def pages(
    state: State, wanted: str | None = None, limit: int = 100, now_ms: int = 0
) -> list[list[str]]:
    """Follow the list to its last page; return the ids on each page."""
    found, after = [], 0
    while True:
        query = TxnQuery(wanted, None, after, limit)
        page = transactions_page(state, query, now_ms, stored_dates)
        found.append([txn.transaction_id for txn in page.transactions])
        if page.next is None:
            return found
        assert page.next > after
        after = page.next


def test_a_page_ends_after_its_limit() -> None:
    state = state_of(4)
    assert pages(state, limit=3) == [["t0", "t1", "t2"], ["t3"]]
    assert pages(state, limit=2) == [["t0", "t1"], ["t2", "t3"]]
    assert pages(state, limit=4) == [["t0", "t1", "t2", "t3"]]


def test_a_page_ends_after_many_streams() -> None:
    state = state_of(5)
    with patch.object(resources, "TXN_PAGE_ROWS_MAX", 6):
        assert pages(state) == [["t0", "t1"], ["t2", "t3"], ["t4"]]
    with patch.object(resources, "TXN_PAGE_ROWS_MAX", 1):  # there is always one on a page
        assert pages(state) == [["t0"], ["t1"], ["t2"], ["t3"], ["t4"]]


def test_a_page_ends_after_many_transactions_that_do_not_match() -> None:
    state = state_of(7, prepared=4)
    with patch.object(resources, "TXN_PAGE_SEARCHED_MAX", 3):
        assert pages(state, "open") == [[], ["t4", "t5"], ["t6"]]
        assert pages(state, "prepared") == [["t0", "t1", "t2"], ["t3"], []]
        assert pages(state, "prepared", limit=2) == [["t0", "t1"], ["t2", "t3"], []]


@pytest.mark.parametrize(("wanted", "shown"), [("stuck", 0), ("prepared", 2), (None, 7)])
def test_what_is_not_shown_is_not_computed(wanted: str | None, shown: int) -> None:
    state = state_of(7, prepared=2)
    with patch.object(resources, "txn_view", wraps=resources.txn_view) as views:
        pages(state, wanted, now_ms=TXN_TIMEOUT_MS_MAX - 1)
    assert views.call_count == shown


def test_a_transaction_is_stuck_after_the_longest_timeout() -> None:
    assert pages(state_of(2), "stuck", now_ms=TXN_TIMEOUT_MS_MAX) == [["t0", "t1"]]
