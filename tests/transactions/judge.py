"""The check after a run: the recorded responses against the final streams and groups."""

from collections.abc import Hashable
from pathlib import Path
from typing import Final, NamedTuple

from semel import Client
from semel.client.values import READ_COMMITTED, READ_UNCOMMITTED
from semel.model.offsets import parse_offset
from semel.testing import TransactionHistory, TransactionReport, check_transactions
from tests.transactions.notes import load
from tests.transactions.readers import WAYS
from tests.transactions.shared import GROUPS, SHARED, parse_input
from tests.transactions.writers import STREAMS

_SHOWN_MAX: Final = 10


class Failed(Exception):
    """A guarantee was violated; the message says which one."""


class Evidence(NamedTuple):
    """The recorded history, and the final content of the streams and groups."""

    history: TransactionHistory
    committed: dict[str, list[Hashable]]
    uncommitted: dict[str, list[Hashable]]
    positions: dict[tuple[str, str], int]
    incarnations: dict[str, str]

    def check(self) -> TransactionReport:
        """Run the transaction checker."""
        return check_transactions(
            self.history,
            self.committed,
            self.uncommitted,
            positions=self.positions,
            incarnations=self.incarnations,
        )


def gather(client: Client, folder: Path) -> Evidence:
    """Load all notes, and read all streams and positions."""
    history = load(folder.glob("*.notes"))
    committed = {stream: _values(client, stream, READ_COMMITTED) for stream in STREAMS}
    uncommitted = {stream: _values(client, stream, READ_UNCOMMITTED) for stream in STREAMS}
    positions = _positions(client, history)
    return Evidence(history, committed, uncommitted, positions, _incarnations(client))


def judge(evidence: Evidence) -> TransactionReport:
    """Return the checker's report; raise Failed on anomalies or an incomplete tail."""
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
    for group in sorted(groups | set(GROUPS)):
        for stream, offset in client.group(group).offsets().items():
            position = parse_offset(offset)
            assert position is not None
            found[group, stream] = position
    return found


def _incarnations(client: Client) -> dict[str, str]:
    """Return the final incarnation of each shared input, which its messages contain."""
    return {path: parse_input(_first(client, path)).incarnation for path in SHARED}


def _first(client: Client, path: str) -> str:
    value: str = next(client.stream(path).read(limit=1)).value
    return value


def _require_whole_tails(history: TransactionHistory, lengths: dict[str, int]) -> None:
    ends = {read.reader: read.end for read in history.reads}
    for stream, length in lengths.items():
        for way in WAYS:
            end = ends.get(f"{way} of {stream}")
            if end != length:
                raise Failed(f"the {way} of {stream} ended at {end}, the stream has {length}")
