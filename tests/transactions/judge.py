"""The end of a run: what all were told, against what the streams and the groups hold."""

from collections.abc import Hashable
from pathlib import Path
from typing import Final, NamedTuple

from semel import Client
from semel.client.txn_values import READ_COMMITTED, READ_UNCOMMITTED
from semel.model.offsets import parse_offset
from semel.testing import TransactionHistory, TransactionReport, check_transactions
from tests.transactions.notes import load
from tests.transactions.readers import WAYS
from tests.transactions.writers import INPUTS, STREAMS

_SHOWN_MAX: Final = 10


class Failed(Exception):
    """A promise was not kept; the message says which."""


class Evidence(NamedTuple):
    """What clients were told, and what is there in the end."""

    history: TransactionHistory
    committed: dict[str, list[Hashable]]
    uncommitted: dict[str, list[Hashable]]
    positions: dict[tuple[str, str], int]

    def check(self) -> TransactionReport:
        """Ask the checker."""
        history, committed, uncommitted, positions = self
        return check_transactions(history, committed, uncommitted, positions=positions)


def gather(client: Client, folder: Path) -> Evidence:
    """Load all notes, and read everything."""
    history = load(folder.glob("*.notes"))
    committed = {stream: _values(client, stream, READ_COMMITTED) for stream in STREAMS}
    uncommitted = {stream: _values(client, stream, READ_UNCOMMITTED) for stream in STREAMS}
    return Evidence(history, committed, uncommitted, _positions(client, history))


def judge(evidence: Evidence) -> TransactionReport:
    """Check everything; Failed if anything is wrong."""
    report = evidence.check()
    if report.anomalies:
        shown = "\n".join(str(anomaly) for anomaly in report.anomalies[:_SHOWN_MAX])
        raise Failed(f"{report}\n{shown}")
    lengths = {stream: len(log) for stream, log in evidence.committed.items()}
    _require_whole_tails(evidence.history, lengths)
    return report


def _values(client: Client, stream: str, isolation: str) -> list[Hashable]:
    return [message.value for message in client.stream(stream).read(isolation=isolation)]


def _positions(client: Client, history: TransactionHistory) -> dict[tuple[str, str], int]:
    groups = {group for each in history.transactions for group, _ in each.moves}
    found = {}
    for group in sorted(groups):
        place = parse_offset(client.group(group).offsets().get(INPUTS, ""))
        if place is not None:
            found[group, INPUTS] = place
    return found


def _require_whole_tails(history: TransactionHistory, lengths: dict[str, int]) -> None:
    ends = {read.reader: read.end for read in history.reads}
    for stream, length in lengths.items():
        for way in WAYS:
            end = ends.get(f"{way} of {stream}")
            if end != length:
                raise Failed(f"the {way} of {stream} ended at {end}, the stream has {length}")
