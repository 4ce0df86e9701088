"""What an append would be answered, without making it."""

from typing import Final

from msgspec import Struct

from semel.machine import receipts
from semel.machine.decide import decide
from semel.machine.producers import judge
from semel.machine.receipts import Receipt
from semel.machine.rows import ProducerRow
from semel.machine.state import State
from semel.model.commands import DENSE, Append, Batch, ProducerTag
from semel.model.outcomes import InvalidRequest, Outcome

# Nobody's payload: it must not equal one that is stored.
_PROBE: Final = Batch(b"\x00what would a semel say?\x00")


class DryRun(Struct, frozen=True):
    """The answer to expect.

    Where the payload decides, `outcome` is for the payload that was stored under this sequence, and
    `other` for any other one; else `other` is None.
    """

    outcome: Outcome
    other: Outcome | None = None


def dry_run(state: State, path: str, tag: ProducerTag, *, now_ms: int) -> DryRun:
    """Decide an append of a producer that brings some payload of the stream's own type."""
    stream = state.by_path.get(path)
    content_type = None if stream is None else stream.row.content_type
    command = Append(path, now_ms, content_type, _PROBE, producer=tag)
    outcome = decide(state, command).outcome
    if stream is None or stream.tail.dedup_from is None or isinstance(outcome, InvalidRequest):
        return DryRun(outcome)
    row = stream.producers.get(tag.id) if stream.producers else None
    receipt = None if row is None else _receipt_of(row, tag)
    if receipt is None:
        return DryRun(outcome)
    repeated = judge(state, stream, tag, receipt.digest).at_once
    if stream.tail.is_deleted or repeated is None or repeated == outcome:
        return DryRun(outcome)
    return DryRun(repeated, outcome)


def _receipt_of(row: ProducerRow, tag: ProducerTag) -> Receipt | None:
    """Find what is remembered of this very sequence."""
    first, last = tag.first_seq, tag.last_seq
    if last > row.last_seq:
        return None
    if row.mode == DENSE:
        return receipts.find_dense(row.receipts, row.zero, seq=last, last_seq=row.last_seq)
    found = receipts.find_sparse(row.receipts, first_seq=first, last_seq=last)
    is_same = found is not None and (found.first_seq, found.last_seq) == (first, last)
    return found if is_same else None
