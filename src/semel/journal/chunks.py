"""Making sure that the chunks of a decision are where it says.

A decision gives offsets to chunks that were made durable long before it. Should one of them be gone
or damaged, messages that were committed would be missing: nothing may start on that.
"""

from semel.journal.frame import Frame
from semel.journal.segments import Segments, segment_name
from semel.machine.events import STAGED
from semel.machine.parts import extents_of, parts_of
from semel.machine.state import State
from semel.machine.txn_events import ChunkStaged, Decided
from semel.model.errors import CorruptData, CorruptRead, DiskFailed, ReadFailed


def holds_chunk(frame: Frame, stream: int, count: int) -> bool:
    """Tell whether a frame is a chunk of so many messages for a stream."""
    if not isinstance(frame.record, ChunkStaged):
        return False
    return [(s.kind, s.stream, s.count) for s in frame.sections] == [(STAGED, stream, count)]


def check_chunks(state: State, decided: Decided, segments: Segments, replayed_from: int) -> None:
    """Check a decision that is about to be replayed; raises CorruptData.

    What the transactions staged behind `replayed_from` was read just now. What lies before that is
    known from the checkpoint, and read here.
    """
    ended = [state.by_txn[end.txn] for end in decided.ended if end.is_committed]
    staged = {part for txn in ended for part in parts_of(txn.pages)}
    for lsn, stream, _, count in extents_of(decided.extents):
        is_there = (lsn, stream, count) in staged
        if is_there and lsn < replayed_from:
            is_there = holds_chunk(_read(segments, lsn), stream, count)
        if not is_there:
            first = segments.first_of(lsn)
            message = "a chunk of a committed transaction is not here"
            raise CorruptData(message, file=segment_name(first), position=lsn - first)


def _read(segments: Segments, lsn: int) -> Frame:
    try:
        return segments.read_frame(lsn)
    except CorruptRead as error:
        message = f"a chunk of a committed transaction cannot be read: {error}"
        raise CorruptData(message, file=error.file, position=error.position) from error
    except ReadFailed as error:
        raise DiskFailed(str(error)) from error
