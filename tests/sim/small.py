"""Limits of transactions that a run reaches; they are patched, because they are not settings."""

import importlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

from tests.sim.reference_txn import Bounds

SMALL = Bounds(
    open_by_producers=4,
    open_by_sinks=4,
    streams=4,
    positions=2,
    groups=2,
    chunks=5,
    results=3,
    versions=2,
    subscriptions=3,
    subscription_links=4,
    subscription_names=3,
    wake_streams=2,
    outcomes=8,
    tokens=9,
    tokens_per_principal=5,
)

_NAMES = {
    "TXN_OPEN_MAX": SMALL.open_by_producers,
    "SINK_TXN_OPEN_MAX": SMALL.open_by_sinks,
    "TXN_POSITIONS_MAX": SMALL.positions,
    "GROUPS_PER_STREAM_MAX": SMALL.groups,
    "RESULTS_KEPT": SMALL.results,
    "SINK_VERSIONS_KEPT": SMALL.versions,
    "OUTCOMES_PER_PRODUCER_MAX": SMALL.outcomes,
    "SUBSCRIPTIONS_MAX": SMALL.subscriptions,
    "SUBSCRIPTION_LINKS_MAX": SMALL.subscription_links,
    "SUBSCRIPTION_NAMES_MAX": SMALL.subscription_names,
    "WAKE_STREAMS_MAX": SMALL.wake_streams,
    "TOKENS_MAX": SMALL.tokens,
    "TOKENS_PER_PRINCIPAL_MAX": SMALL.tokens_per_principal,
}

_USERS = (
    "semel.journal.txn_history",
    "semel.machine.txn.lookup",
    "semel.machine.positions",
    "semel.machine.txn.draft",
    "semel.machine.txn.begin",
    "semel.machine.txn.apply_end",
    "semel.machine.append",
    "semel.machine.subscriptions",
    "semel.machine.tokens",
    "semel.machine.access",
)


@contextmanager
def small_limits() -> Iterator[None]:
    """Patch the small limits into every module of the engine that uses them."""
    with ExitStack() as stack:
        for module in map(importlib.import_module, _USERS):
            for name, value in _NAMES.items():
                if hasattr(module, name):
                    stack.enter_context(patch.object(module, name, value))
        yield
