"""The lookups of a command, taken from the reference model instead of the store.

They are for runs of the machine alone, without a journal.
"""

from msgspec.structs import replace

from semel.model import commands as ask
from semel.model.commands import Append, Create, EngineCommand, StoredAppend, TxnOutcome
from semel.model.topic_commands import AppendTopic
from tests.sim.reference import Model
from tests.sim.reference_txn import Note


def with_facts(model: Model, command: EngineCommand) -> EngineCommand:
    """Return the command with its lookups, as the model has them now."""
    if isinstance(command, ask.Begin):
        return replace(command, last_epoch=_last_epoch(model, command.id))
    if isinstance(command, ask.TxnCall):
        return replace(command, **_facts(model, command.id, command.epoch))
    if isinstance(command, Append | AppendTopic) and command.transaction is not None:
        tag = command.transaction
        tag = replace(tag, **_facts(model, tag.id, tag.epoch))
        return replace(command, transaction=tag)
    if isinstance(command, ask.Commit):
        listed = [replace(t, **_facts(model, t.id, t.epoch)) for t in command.transactions]
        return replace(command, transactions=tuple(listed))
    if isinstance(command, Create):
        return _with_stored(model, command)
    return command


def _last_epoch(model: Model, txn_id: str) -> int:
    return max([note.epoch for note in model.txns.notes_of(txn_id)], default=0)


def _facts(model: Model, txn_id: str, epoch: int) -> dict[str, object]:
    notes = model.txns.notes_of(txn_id)
    found = next((note for note in notes if note.epoch == epoch), None)
    remembered = None if found is None else _remembered(found)
    return {"remembered": remembered, "last_epoch": _last_epoch(model, txn_id)}


def _remembered(note: Note) -> TxnOutcome:
    return TxnOutcome(note.id, note.epoch, note.decision, note.reason, note.time_ms, note.result)


def _with_stored(model: Model, command: Create) -> Create:
    fork = command.fork
    source = None if fork is None else model.streams.get(fork.source)
    if fork is None or source is None or not source.head <= (fork.offset or 0) < source.tail:
        return command
    offset = model.txns.stable(source) if fork.offset is None else fork.offset
    if offset >= source.tail:
        return command
    units = model.units_left(source, offset)
    message = source.messages[offset - source.head]
    stored = StoredAppend(source.number, offset, units, b"" if source.is_json else message.body)
    return replace(command, fork=replace(fork, stored=stored if units else None))
