"""A decision in the making: here, and nowhere else, offsets are given out to several streams."""

from semel.machine.checks import section_of
from semel.machine.events import SECTION_CONTROL, Ended, Section
from semel.machine.rows import RegistryRow
from semel.machine.state import State, Stream, Txn
from semel.machine.txn.chunk_list import chunks_in, pack_extent
from semel.model.commands import Batch
from semel.model.transactions import TXN_INLINE, ProducerOwner
from semel.model.txn_outcome import BY_FENCE, BY_OPERATOR


class Draft:
    """What one frame is going to hold. Messages first, then control records."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._tails: dict[int, int] = {}
        self._extents: list[bytes] = []
        self.sections: list[Section] = []
        self.ended: list[Ended] = []

    @property
    def extents(self) -> bytes:
        """The places of all chunks, packed."""
        return b"".join(self._extents)

    def tail_of(self, stream: Stream) -> int:
        """Tell where a stream ends by now."""
        return self._tails.get(stream.row.number, stream.tail.tail)

    def append(self, stream: Stream, batch: Batch) -> None:
        """Place messages."""
        row, base = stream.row, self.tail_of(stream)
        self.sections.append(section_of(row.number, base, batch, row.content_type))
        self._tails[row.number] = base + batch.count

    def advance(self, stream: Stream, count: int) -> None:
        """Count messages that the caller places by itself."""
        self._tails[stream.row.number] = self.tail_of(stream) + count

    def place_chunks(self, txn: Txn) -> None:
        """Give a staged transaction's chunks their offsets; those of streams that ended have none.

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
        """End a transaction; one control record goes into each stream that holds its messages."""
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
        """Abort what a producer's older instances left open; one is `named` by an operator."""
        for number in sorted(self._state.owned.get((True, producer_id), ())):
            txn = self._state.by_txn[number]
            owner = txn.row.owner
            assert isinstance(owner, ProducerOwner)
            if owner.epoch < epoch:
                reason = BY_OPERATOR if number == named else BY_FENCE
                self.end(txn, is_committed=False, reason=reason)


def is_raised(registered: RegistryRow | None, epoch: int) -> bool:
    """Tell whether an epoch is above the registry's, or the producer new to it."""
    return registered is None or epoch > registered.epoch
