"""Decisions on sinks: whether a version of an app is new, a repeat, or of another history.

The numbers in the comments are the rows of the table in `docs/reference/transactions.md`.
"""

from semel.machine.events import Decision, SinkForgotten, SinkRebound
from semel.machine.rows import SinkRow, VersionRow
from semel.machine.state import State, Txn
from semel.machine.txn.result import unpack_result
from semel.model.limits import SINKS_MAX
from semel.model.outcomes import LimitReached, Outcome
from semel.model.outcomes_txn import (
    AppBound,
    CheckpointDiverged,
    CommitDone,
    SinkChanged,
    UnknownSink,
    VersionForgotten,
)
from semel.model.transactions import ForgetSink, RebindSink, SinkOwner, SinkTag


def check_version(state: State, tag: SinkTag) -> Outcome | None:
    """Return the outcome of a version that is a repeat or refused; None if it may be committed."""
    sink = state.sinks.get(tag.app)
    if sink is None:
        return LimitReached("sinks", SINKS_MAX) if len(state.sinks) >= SINKS_MAX else None
    if sink.query_id != tag.query_id:
        return AppBound(sink.query_id)  # s1
    if tag.version <= sink.last_version:
        return _repeat(sink, tag)
    last = _version(sink, sink.last_version)
    stored = None if last is None else last.input
    if tag.previous is not None and stored is not None and tag.previous != stored:
        return CheckpointDiverged(sink.last_version)  # s5
    return None


def _version(sink: SinkRow, version: int) -> VersionRow | None:
    return next((row for row in reversed(sink.versions) if row.version == version), None)


def _repeat(sink: SinkRow, tag: SinkTag) -> Outcome:
    row = _version(sink, tag.version)
    if row is None:
        return VersionForgotten(sink.last_version)  # s2
    if tag.input is None or row.input is None:
        if tag.version < sink.last_version:
            return CheckpointDiverged(sink.last_version)  # s4
        return _again(row, is_unchecked=True)  # s4
    if tag.input != row.input:
        return CheckpointDiverged(sink.last_version)  # s3
    return _again(row, is_unchecked=False)  # s3


def _again(row: VersionRow, *, is_unchecked: bool) -> Outcome:
    result = unpack_result(row.result)
    return CommitDone(None, None, result, is_duplicate=True, is_unchecked=is_unchecked)


def superseded_txns(state: State, tag: SinkTag, listed: list[Txn]) -> list[Txn]:
    """Return what an app has staged for this version and older ones, and does not commit."""
    numbers = state.owned.get((False, tag.app), set()) - {txn.row.number for txn in listed}
    txns = (state.by_txn[number] for number in sorted(numbers))
    return [
        txn
        for txn in txns
        if isinstance(txn.row.owner, SinkOwner) and txn.row.owner.version <= tag.version
    ]


def decide_rebind(state: State, command: RebindSink) -> Decision:
    """Bind a sink to another query."""
    if command.app not in state.sinks:
        return Decision(UnknownSink())
    event = SinkRebound(command.app, command.query_id, command.last_version)
    return Decision(SinkChanged(), event)


def decide_forget_sink(state: State, command: ForgetSink) -> Decision:
    """Drop the row of a sink."""
    if command.app not in state.sinks:
        return Decision(UnknownSink())
    return Decision(SinkChanged(), SinkForgotten(command.app))
