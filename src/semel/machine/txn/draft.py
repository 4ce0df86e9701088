"""The draft of a frame that changes several streams: only here are their offsets assigned."""

from semel.machine.checks import section_of
from semel.machine.events import SECTION_CONTROL, Ended, Section
from semel.machine.rows import RegistryRow
from semel.machine.state import State, Stream, Txn
from semel.machine.txn.chunk_list import chunks_in, pack_extent
from semel.model.commands import Batch
from semel.model.transactions import TXN_INLINE, ProducerOwner
from semel.model.txn_outcome import BY_FENCE, BY_OPERATOR


class Draft:
    """The sections and ends of one frame: messages first, then control records."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._tails: dict[int, int] = {}
        self._extents: list[bytes] = []
        self.sections: list[Section] = []
        self.ended: list[Ended] = []

    @property
    def extents(self) -> bytes:
        """The extents of all chunks, packed."""
        return b"".join(self._extents)

    def tail_of(self, stream: Stream) -> int:
        """Return the tail of a stream after the draft."""
        return self._tails.get(stream.row.number, stream.tail.tail)

    def append(self, stream: Stream, batch: Batch) -> None:
        row, base = stream.row, self.tail_of(stream)
        self.sections.append(section_of(row.number, base, batch, row.content_type))
        self._tails[row.number] = base + batch.count

    def advance(self, stream: Stream, count: int) -> None:
        """Count messages for which the caller makes the section."""
        self._tails[stream.row.number] = self.tail_of(stream) + count

    def place_chunks(self, txn: Txn) -> None:
        """Assign offsets to the chunks of a staged transaction, except those of ended streams.

        The loop runs once per chunk, of which there may be a million.
        """
        if txn.row.kind == TXN_INLINE:
            return
        tails, streams, by_number = self._tails, txn.streams, self._state.by_number
        for lsn, number, count in chunks_in(txn.chunk_blocks):
            if number in streams:
                base = tails.get(number, by_number[number].tail.tail)
                self._extents.append(pack_extent(lsn, number, base, count))
                tails[number] = base + count

    def end(self, txn: Txn, *, is_committed: bool, reason: str = "") -> None:
        """End a transaction, with a control record in each stream that has messages of it."""
        markers: list[tuple[int, int]] = []
        if txn.row.kind == TXN_INLINE:
            for number, row in txn.streams.items():
                if row.first >= 0:
                    stream = self._state.by_number[number]
                    base = self.tail_of(stream)
                    self.sections.append(Section(number, base, 1, b"", kind=SECTION_CONTROL))
                    self._tails[number] = base + 1
                    markers.append((number, base))
        self.ended.append(Ended(txn.row.number, is_committed, reason, tuple(markers)))

    def fence(self, producer_id: str, epoch: int, *, named: int = 0) -> None:
        """Abort pending transactions of older instances; an operator has `named` one of them."""
        for number in sorted(self._state.owned.get((True, producer_id), ())):
            txn = self._state.by_txn[number]
            owner = txn.row.owner
            assert isinstance(owner, ProducerOwner)
            if owner.epoch < epoch:
                reason = BY_OPERATOR if number == named else BY_FENCE
                self.end(txn, is_committed=False, reason=reason)


def is_raised(registered: RegistryRow | None, epoch: int) -> bool:
    """Return whether an epoch is above that of the registry, or the producer not in it."""
    return registered is None or epoch > registered.epoch
