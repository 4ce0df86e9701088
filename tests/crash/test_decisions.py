"""Commits and aborts on a faulty network: no outcome changes, no other transaction is ended."""

import random
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import pytest

from semel import Client, errors, local
from semel.testing import FaultPlan, FaultProxy

OWNERS: Final = 3
TRANSACTIONS_PER_OWNER: Final = 120
RATE: Final = 0.04
FAULTS: Final = (
    "drop_request",
    "drop_answer",
    "delay",
    "duplicate_before",
    "duplicate_after",
    "reorder",
    "reset",
)
STREAMS: Final = ("left", "right")
SEED: Final = 29


def transact(url: str, owner: int, verdicts: dict[int, str]) -> None:
    """Use one id for all transactions, so that a late decision would find the next one open."""
    chance = random.Random(SEED + owner)
    before = f"t-{owner}:1"
    with Client(url) as client:
        for number in range(TRANSACTIONS_PER_OWNER):
            value = owner * TRANSACTIONS_PER_OWNER + number
            is_wanted = chance.random() < 0.6
            try:
                with client.transaction(
                    f"t-{owner}", producer_id=f"p-{owner}", producer_epoch=0, streams=STREAMS
                ) as txn:
                    for stream in STREAMS:
                        txn.append(stream, value)
                    for decide in (client.commit_prepared, client.abort_prepared):
                        if txn.token != before:
                            with suppress(errors.Refused):
                                decide(before)  # a late decision on the previous one
                    before = txn.token
                    if not is_wanted:
                        txn.abort()
                verdicts[value] = "committed" if is_wanted else "aborted"
            except errors.SemelError:
                verdicts[value] = "unknown"


# rows: X25
@pytest.mark.crash
def test_a_late_or_doubled_decision_touches_no_other_transaction(
    figure: Callable[[str], None],
) -> None:
    verdicts: dict[int, str] = {}
    plan = FaultPlan(dict.fromkeys(FAULTS, RATE), seed=SEED)
    with local() as server, FaultProxy(server.url, plan) as proxy:
        for stream in STREAMS:
            server.stream(stream).create("application/json")
        owners = [
            threading.Thread(target=transact, args=(proxy.url, owner, verdicts))
            for owner in range(OWNERS)
        ]
        for thread in owners:
            thread.start()
        for thread in owners:
            thread.join()
        for owner in range(OWNERS):  # aborts what is still open
            server.register_producer(f"p-{owner}")
        left, right = (
            Counter(message.value for message in server.stream(stream).read()) for stream in STREAMS
        )
    assert left == right, "a transaction was applied to one stream only"
    assert set(left.values()) == {1}, "a transaction was applied twice"
    totals = Counter(verdicts.values())
    for value, verdict in verdicts.items():
        assert verdict != "committed" or value in left, f"{value} was committed but is missing"
        assert verdict != "aborted" or value not in left, f"{value} was aborted but is present"
    assert totals["committed"] > len(verdicts) // 3
    assert totals["aborted"] > len(verdicts) // 5
    figure(
        f"decisions on a bad network: {len(verdicts)} transactions {dict(totals)},"
        f" {proxy.dropped_after_commit} answers dropped after the commit, actions"
        f" {dict(proxy.counts)}; none torn, doubled, or flipped"
    )
