"""The rows of transactions, groups and sinks."""

from msgspec import Struct

from semel.machine.rows import Row
from semel.model.remembered import Remembered
from semel.model.transactions import Owner, SnapshotRange

# A producer (True) whatever its epoch, or a sink's app (False) whatever its task.
OwnerKey = tuple[bool, str]


class NamedPosition(Struct, frozen=True, gc=False, array_like=True):
    """A position that the commit of a transaction moves to the offset `to`.

    `guard` is the stored version when the transaction first named it: the commit compares. The
    last two are those of the call that named it last, to recognise a repeat.
    """

    group: str
    stream: int
    to: int
    guard: int = 0
    expected: int | None = None
    version: int | None = None


class TxnRow(Row, frozen=True, gc=False, array_like=True):
    """A transaction that is not decided.

    `deleted` are the paths of streams it knew that ended under it, `lost` the positions it named in
    such streams: (group, path), in this order. `next_seq` is the next chunk's number of a staged
    one.
    """

    number: int
    id: str
    epoch: int
    kind: str
    owner: Owner
    is_implicit: bool
    begun_ms: int
    timeout_ms: int | None
    deadline_ms: int | None
    touched_ms: int
    is_prepared: bool = False
    next_seq: int = 0
    positions: tuple[NamedPosition, ...] = ()
    deleted: tuple[str, ...] = ()
    lost: tuple[tuple[str, str], ...] = ()


class TxnStreamRow(Row, frozen=True, gc=False, array_like=True):
    """A stream a transaction may write, and what it did there; `first` is -1 without an offset."""

    first: int = -1
    messages: int = 0
    chunks: int = 0


class PartsRow(Row, frozen=True, gc=False, array_like=True):
    """A page of a transaction's parts, packed: see `parts.py`."""

    packed: bytes


class PositionRow(Row, frozen=True, gc=False, array_like=True):
    """Where a group is in a stream. `version` counts its moves, of every kind.

    `mover`: who moved it last by a transaction or a one-shot commit, if anybody did.
    """

    offset: int
    time_ms: int
    version: int = 0
    mover: OwnerKey | None = None


class SnapshotRow(Row, frozen=True, gc=False, array_like=True):
    """The step a group has pinned."""

    number: int
    ranges: tuple[SnapshotRange, ...]
    hash: str


class VersionRow(Row, frozen=True, gc=False, array_like=True):
    """One version a sink committed: digest of its input, and the packed result."""

    version: int
    input: str | None
    result: bytes


class SinkRow(Row, frozen=True, gc=False, array_like=True):
    """A sink; `versions` oldest first. Outcomes numbered below `outcomes_from` are let go."""

    query_id: str
    last_version: int
    versions: tuple[VersionRow, ...] = ()
    outcomes_from: int = 0


class OutcomeRow(Row, frozen=True, gc=False, array_like=True):
    """How a transaction ended. `number` counts all outcomes, `ordinal` those of its producer."""

    number: int
    ordinal: int
    owner: Owner
    outcome: Remembered


class AbortedRow(Struct, frozen=True, gc=False):
    """Offsets of a stream that an aborted transaction wrote, from `first` up to `next`."""

    stream: int
    first: int
    next: int


class PlacedRow(Struct, frozen=True, gc=False):
    """A staged chunk that a decision gave its offsets."""

    lsn: int
    stream: int
    base: int
    count: int


# What `apply` tells the journal's own tables: the state does not keep these.
News = OutcomeRow | AbortedRow | PlacedRow
