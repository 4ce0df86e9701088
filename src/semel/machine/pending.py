"""Indexes of pending transactions and of positions: streams, named positions, and what is held.

Only `apply` and the loading of a checkpoint call these functions.
"""

from typing import TYPE_CHECKING

from semel.machine.rows import NamedPosition, OwnerKey, PositionRow
from semel.model.commands import Owner, ProducerOwner

if TYPE_CHECKING:
    from semel.machine.state import State, Stream, Txn


def index_stream(stream: "Stream", txn_number: int) -> None:
    """Record that a pending transaction can write to `stream` or names a position in it."""
    stream.txns = stream.txns or set()
    stream.txns.add(txn_number)


def mark_open_in(stream: "Stream", txn_number: int, first: int) -> None:
    """Record that `first` is the first offset of an inline transaction's messages in `stream`."""
    stream.open = stream.open or {}
    stream.open[txn_number] = first


def owner_key(owner: Owner) -> OwnerKey:
    """Return (True, producer id) or (False, sink id) for the owner of a transaction."""
    if isinstance(owner, ProducerOwner):
        return True, owner.id
    return False, owner.app


def add_transaction(state: "State", txn: "Txn") -> None:
    """Add a transaction to the indexes that are keyed by id, number and owner."""
    row = txn.row
    state.transactions[row.id] = state.by_txn[row.number] = txn
    state.owned.setdefault(owner_key(row.owner), set()).add(row.number)
    state.sink_txn_count += not isinstance(row.owner, ProducerOwner)


def add_named_position(state: "State", txn_number: int, named: NamedPosition) -> None:
    """Record that a transaction names a position, which its commit will move."""
    index_stream(state.by_number[named.stream], txn_number)
    state.named.setdefault(named.group, {}).setdefault(named.stream, set()).add(txn_number)


def hold_positions(state: "State", txn: "Txn") -> None:
    """Record that a prepared transaction holds the positions it names. Nobody else can move them.

    In a journal from an older version, several prepared transactions can name the same position. In
    that case, the oldest of these transactions holds the position.
    """
    number = txn.row.number
    for named in txn.row.positions:
        stream = state.by_number[named.stream]
        stream.holds = stream.holds or {}
        stream.holds[named.group] = min(number, stream.holds.get(named.group, number))


def add_position(state: "State", stream: "Stream", group: str, row: PositionRow) -> None:
    """Set the position of a group in a stream."""
    if stream.positions is None:
        stream.positions = {}
    stream.positions[group] = row
    state.groups.setdefault(group, {})[stream.row.path] = row
