"""Lists of very many rows: a page ends early, and what is not shown is not computed."""

from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

from semel.broker import figures
from semel.broker.figures import figure_steps
from semel.machine import State
from semel.machine.producers import unpack_receipt
from semel.machine.txn.views import stored_dates, txn_view
from semel.model.commands import (
    TXN_INLINE,
    TXN_STAGED,
    AbortTxn,
    Append,
    Batch,
    Begin,
    ProducerOwner,
    ProducerTag,
    TxnTag,
)
from semel.model.limits import TXN_TIMEOUT_MS_MAX
from semel.model.offsets import print_offset
from semel.model.outcomes import Appended
from semel.server import listings, producers
from semel.server.listings import transactions_page
from semel.server.producers import producers_page
from semel.wire.producers import ProducerQuery
from semel.wire.schema.producers import ProducersPage
from semel.wire.transactions import TxnQuery
from tests.unit.broker.bed import Bed
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
    with patch.object(listings, "TXN_PAGE_ROWS_MAX", 6):
        assert pages(state) == [["t0", "t1"], ["t2", "t3"], ["t4"]]
    with patch.object(listings, "TXN_PAGE_ROWS_MAX", 1):  # there is always one on a page
        assert pages(state) == [["t0"], ["t1"], ["t2"], ["t3"], ["t4"]]


def test_a_page_ends_after_many_transactions_that_do_not_match() -> None:
    state = state_of(7, prepared=4)
    with patch.object(listings, "TXN_PAGE_SEARCHED_MAX", 3):
        assert pages(state, "open") == [[], ["t4", "t5"], ["t6"]]
        assert pages(state, "prepared") == [["t0", "t1", "t2"], ["t3"], []]
        assert pages(state, "prepared", limit=2) == [["t0", "t1"], ["t2", "t3"], []]


@pytest.mark.parametrize(("wanted", "shown"), [("stuck", 0), ("prepared", 2), (None, 7)])
def test_what_is_not_shown_is_not_computed(wanted: str | None, shown: int) -> None:
    state = state_of(7, prepared=2)
    with patch.object(listings, "txn_view", wraps=txn_view) as views:
        pages(state, wanted, now_ms=TXN_TIMEOUT_MS_MAX - 1)
    assert views.call_count == shown


def test_a_transaction_is_stuck_after_the_longest_timeout() -> None:
    assert pages(state_of(2), "stuck", now_ms=TXN_TIMEOUT_MS_MAX) == [["t0", "t1"]]


# ---- producers -----------------------------------------------------------------------------------


def test_a_list_of_producers_unpacks_one_receipt_of_each() -> None:
    bed = Bed(segment_bytes=65_536)
    bed.execute(bed.create())
    for name in ("a", "b"):
        for seq in range(5):
            tag = ProducerTag(name, seq, seq, epoch=0)
            bed.execute(Append("s", bed.now_ms, "text/plain", Batch(b"x"), producer=tag))
    query = ProducerQuery("s", None, "", 10)
    with patch.object(producers, "unpack_receipt", wraps=unpack_receipt) as unpacked:
        page = producers_page(bed.broker.state, query, 0)
    assert isinstance(page, ProducersPage)
    assert [entry.last_offset for entry in page.producers] == [print_offset(5), print_offset(10)]
    assert unpacked.call_count == 2


# ---- figures -------------------------------------------------------------------------------------


def begin_three(bed: Bed) -> None:
    """Begin an inline transaction with a message, one without, and a staged one."""
    for path in STREAMS:
        bed.execute(bed.create(path))
    for index, kind in enumerate((TXN_INLINE, TXN_INLINE, TXN_STAGED)):
        owner = ProducerOwner(f"p{index}", 0)
        bed.execute(Begin(bed.now_ms, f"t{index}", owner, kind, 60_000, STREAMS))
        bed.now_ms += 100
    tag, producer = TxnTag("t0", 1, None), ProducerTag("p0", 0, 0, epoch=0)
    append = Append("s", bed.now_ms, "text/plain", Batch(b"x"), producer=producer, transaction=tag)
    assert isinstance(bed.execute(append), Appended)


def engine_of(bed: Bed) -> Any:
    return SimpleNamespace(
        broker=bed.broker,
        clock=SimpleNamespace(now_ms=lambda: bed.now_ms),
        sync_count=0,
        checkpoint_count=0,
        replayed_bytes=0,
        space=SimpleNamespace(segments=[], age_seconds=None),
    )


def test_figures_look_at_some_transactions_in_each_step() -> None:
    bed = Bed(segment_bytes=65_536)
    begin_three(bed)
    with patch.object(figures, "STEP_ROWS", 3):
        steps = figure_steps(engine_of(bed))
        next(steps)  # it has looked at the first transaction
        bed.execute(AbortTxn(bed.now_ms, "t1", 1, "p1", 0))
        next(steps)
        next(steps)  # it has looked at three streams
        with pytest.raises(StopIteration) as done:
            next(steps)
    found = done.value.value
    assert (found.txns_pending, found.txns_prepared) == (2, 0)
    assert (found.stable_lag, found.stable_lag_age_ms, found.oldest_txn_age_ms) == (1, 300, 300)


def test_figures_of_few_transactions_need_no_pause() -> None:
    bed = Bed(segment_bytes=65_536)
    begin_three(bed)
    assert not list(figure_steps(engine_of(bed)))
