"""The broker's side of a checkpoint: cut the state, then forget the cut or take it back."""

from semel.journal.appender import Appender
from semel.journal.checkpoint import Cut
from semel.journal.index import Index
from semel.journal.segments import Segments
from semel.journal.txn_history import TxnHistory
from semel.machine.retention import retained_range
from semel.machine.state import State
from semel.model.transactions import TXN_STAGED


class Checkpoints:
    """Makes cuts of a running engine, one at a time: `cut`, then `done` or `failed`."""

    def __init__(
        self,
        state: State,
        index: Index,
        txn_history: TxnHistory,
        segments: Segments,
        appender: Appender,
    ) -> None:
        self._state = state
        self._index = index
        self._txn_history = txn_history
        self._segments = segments
        self._appender = appender
        self._cut_lsn = -1

    @property
    def needs_sync(self) -> bool:
        """Whether the last cut waits for frames that are not durable yet."""
        return self._appender.durable < self._cut_lsn

    def cut(self) -> Cut | None:
        """Return the work order for a checkpoint of the state as it is now.

        It may be committed once everything up to its LSN is durable. None if nothing was written
        since the last cut.
        """
        if self._appender.position == self._cut_lsn:
            return None
        self._cut_lsn = self._appender.position
        state, dirty = self._state, self._state.take_dirty()
        pruned = (state.by_number[n] for n in dirty.pruned if n in state.by_number)
        starts: dict[int, int] = {}
        staged = (txn for txn in state.by_txn.values() if txn.row.kind == TXN_STAGED)
        return Cut(
            lsn=self._cut_lsn,
            previous_crc=self._appender.previous_crc,
            meta=state.meta_row(),
            dirty=dirty,
            index_blocks=self._index.cut(),
            kept={stream.row.number: retained_range(state, stream, starts) for stream in pruned},
            segments=self._segments.spans(),
            txn_history=self._txn_history.cut(),
            chunk_blocks=[block for txn in staged for block in txn.chunk_blocks],
        )

    def done(self, dead: list[int]) -> None:
        """Drop what the committed checkpoint holds; the segments in `dead` are no longer read."""
        self._index.finish_cut()
        self._txn_history.finish_cut()
        self._segments.remove(dead)

    def failed(self, cut: Cut) -> None:
        """Take everything back for the next checkpoint: the store had no room for this one."""
        self._index.undo_cut()
        self._txn_history.undo_cut()
        self._state.dirty.absorb(cut.dirty)
        self._cut_lsn = -1
