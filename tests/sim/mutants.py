"""Seeded bugs: each breaks one promise on purpose, and the simulator must find it.

A test that cannot fail proves nothing. Every mutant returns a patch of the engine.
"""

import importlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from msgspec.structs import replace

from semel.broker import broker as broker_module
from semel.broker import durable_view
from semel.broker.broker import Broker
from semel.broker.timers import Expiry, Hours
from semel.journal import checkpoint, frame, recovery
from semel.journal.appender import Appender, SegmentPart
from semel.journal.index import Index
from semel.journal.segments import SPARE_NAME
from semel.journal.writer import JournalWriter
from semel.machine import checks, producers
from semel.machine.events import (
    DedupSwitched,
    HourPassed,
    StreamAppended,
    StreamCreated,
    UnguardedCreated,
)
from semel.machine.rows import KeyRow, ProducerRow
from semel.machine.state import Effects, State, Stream, put_producer
from semel.machine.streams import OFFSET_MAX
from semel.model import messages
from semel.model.limits import HOUR_MS
from tests.sim import reference_producers, world
from tests.sim.mutants_access import ACCESS_MUTANTS
from tests.sim.mutants_groups import GROUP_MUTANTS
from tests.sim.mutants_letters import LETTER_MUTANTS
from tests.sim.mutants_lives import LIVES_MUTANTS
from tests.sim.mutants_owners import OWNER_MUTANTS
from tests.sim.mutants_policies import POLICY_MUTANTS
from tests.sim.mutants_subscriptions import SUBSCRIPTION_MUTANTS
from tests.sim.mutants_topics import TOPIC_MUTANTS
from tests.sim.mutants_txn import TXN_MUTANTS

Mutant = Callable[[], Any]


class _Any:
    """Equal to everything."""

    def __ne__(self, other: object) -> bool:
        return False


def answer_before_sync() -> Any:
    """Write groups are written, but never synced."""
    return patch.object(JournalWriter, "_sync", lambda self: None)


def skip_the_recovery_sync() -> Any:
    """Recovery relies on the page cache, and syncs nothing."""
    return patch.object(recovery, "_make_durable", lambda *_: None)


def checkpoint_tentative_state() -> Any:
    """A checkpoint is committed before what it holds is durable."""
    return patch.object(world.World, "is_cut_ready", lambda self: True)


def no_directory_sync() -> Any:
    """A new segment's name is never made durable."""

    def roll(self: JournalWriter, part: SegmentPart) -> None:
        with patch.object(self._disk, "sync_names", lambda: None):
            real(self, part)

    real = JournalWriter._roll
    return patch.object(JournalWriter, "_roll", roll)


def read_past_the_watermark() -> Any:
    """Readers see what was decided, not what is durable."""
    real = Broker._note_changes

    def note(self: Broker, streams: Iterable[Stream]) -> None:
        real(self, streams)
        self.durable_view.promote(self._open.changes.values())

    return patch.object(Broker, "_note_changes", note)


def forget_an_epoch() -> Any:
    """A raised epoch is not stored."""
    return _patched_row(lambda old, new: replace(new, epoch=old.epoch))


def forget_receipts() -> Any:
    """Only the newest receipt is kept."""
    module = importlib.import_module("semel.machine.apply")
    real = module._record_producer

    def record(state: State, stream: Stream, stamp: Any, *rest: Any) -> None:
        real(state, stream, stamp, *rest)
        assert stream.producers is not None
        row = stream.producers[stamp.id]
        row = replace(row, receipts=row.receipts[-producers.RECEIPT_BYTES :])
        stream.producers[stamp.id] = state.dirty.producers[stream.row.number, stamp.id] = row

    return patch.object(module, "_record_producer", record)


@contextmanager
def confirm_what_was_skipped() -> Iterator[None]:
    """All that is below the receipts of a sparse producer is confirmed, also by the model."""
    with (
        patch.object(producers, "is_proven", lambda row, first_seq: True),
        patch.object(reference_producers, "is_proven", lambda known, tag: True),
    ):
        yield


def forget_a_run_in_the_checkpoint() -> Any:
    """The checkpoint omits which sequences of a sparse producer were stored without a gap."""
    real = checkpoint._put_rows

    def put(tables: Any, dirty: Any) -> None:
        for key, row in dirty.producers.items():
            if row is not None:
                dirty.producers[key] = replace(row, stored_from=-1)
        real(tables, dirty)

    return patch.object(checkpoint, "_put_rows", put)


def answer_refusals_at_once() -> Any:
    """Duplicates and refusals do not wait until the state they depend on is durable."""
    return patch.object(Broker, "_release", lambda self, reply, answer: reply(answer))


def cut_a_corrupt_middle() -> Any:
    """A corrupt frame always counts as a torn tail."""
    return patch.object(recovery, "check_torn", lambda *_: None)


def change_before_the_checks() -> Any:
    """Recovery removes the spare segment before it has checked the journal."""
    real = recovery._recover

    def recover(disk: Any, *arguments: Any, **more: Any) -> Any:
        if SPARE_NAME in disk.names():
            disk.unlink(SPARE_NAME)
        return real(disk, *arguments, **more)

    return patch.object(recovery, "_recover", recover)


def data_without_its_producer() -> Any:
    """The frame does not carry the producer, only the data."""
    real = frame.encode_meta

    def encode(event: Any) -> bytes:
        if isinstance(event, StreamAppended):
            event = replace(event, stamp=None)
        return real(event)

    return patch.object(broker_module, "encode_meta", encode)


def checkpoint_without_producers() -> Any:
    """The checkpoint omits the producers."""
    real = checkpoint._put_rows

    def put(tables: Any, dirty: Any) -> None:
        dirty.producers.clear()
        real(tables, dirty)

    return patch.object(checkpoint, "_put_rows", put)


def unlink_a_live_segment() -> Any:
    """Every segment below a checkpoint is removed."""

    def settle(_tables: Any, cut: Any, _counts: Any) -> set[int]:
        return {first for first, end in cut.segments if end <= cut.lsn}

    return patch.object(checkpoint, "_settle_segments", settle)


def sync_again_after_an_error() -> Any:
    """A failed sync is repeated, and its success is trusted."""

    def sync(self: JournalWriter) -> None:
        try:
            self._file.sync()
        except OSError:
            self._file.sync()

    return patch.object(JournalWriter, "_sync", sync)


def begin_a_segment_too_early() -> Any:
    """A roll does not sync the old segment first."""
    real = JournalWriter._roll

    def roll(self: JournalWriter, part: SegmentPart) -> None:
        with patch.object(JournalWriter, "_sync", lambda self: None):
            real(self, part)

    return patch.object(JournalWriter, "_roll", roll)


def lose_an_abandoned_checkpoint() -> Any:
    """When the store is full, the rows of the failed checkpoint are lost."""

    def failed(self: Broker, cut: Any) -> None:
        self._index.undo_cut()
        self._cut_lsn = -1

    return patch.object(Broker, "cut_failed", failed)


def go_on_after_a_short_write() -> Any:
    """A short write is treated as a complete one."""

    real = JournalWriter._write_at

    def write(self: JournalWriter, lsn: int, buffers: Any, _size: int) -> None:
        real(self, lsn, buffers, _Any())  # type: ignore[arg-type]

    return patch.object(JournalWriter, "_write_at", write)


def expire_too_early() -> Any:
    """Reads do not extend the time to live of a stream."""
    return patch.object(Expiry, "touch", lambda self, number: None)


def forget_the_pruned_floor() -> Any:
    """Trimming a source removes messages that its forks still read."""

    def kept(_state: State, stream: Stream, _known: Any) -> tuple[int, int]:
        return stream.tail.tail, OFFSET_MAX

    return patch.object(checkpoint, "retained_range", kept)


def keys_never_age() -> Any:
    """An idempotency key never expires."""
    return patch.object(checks, "is_key_expired", lambda state, row: False)


def retain_keys_by_frame_time() -> Any:
    """A clock that jumps forward makes idempotency keys expire."""
    day_ms = 24 * HOUR_MS

    def is_expired(state: State, row: KeyRow) -> bool:
        return state.time_ms >= row.time_ms + day_ms

    return patch.object(checks, "is_key_expired", is_expired)


def count_short_hours() -> Any:
    """Idempotency keys and transaction outcomes expire after half of their time."""
    real = Hours.__init__

    def start(self: Hours, hour_ms: int, monotonic_ms: Callable[[], int], run_ms: int) -> None:
        real(self, hour_ms // 2, monotonic_ms, run_ms)

    return patch.object(Hours, "__init__", start)


def count_a_part_of_an_hour_twice() -> Any:
    """The part of an hour that a checkpoint stores also counts for the hour after it."""

    def count(state: State, *_arguments: Any) -> None:
        state.hours += 1

    module = importlib.import_module("semel.machine.apply")
    return patch.dict(module._APPLIERS, {HourPassed: count})


def index_forgets_a_cut() -> Any:
    """During a checkpoint, the frames in it cannot be found."""
    real = Index.cut

    def cut(self: Index) -> Any:
        chunks = real(self)
        self._sealing = {}
        return chunks

    return patch.object(Index, "cut", cut)


def promise_one_spare_twice() -> Any:
    """A spare segment is offered again during a roll that needs it."""

    def offer(self: Appender, _segment: int, capacity: int) -> None:
        self._spare_bytes = capacity

    return patch.object(Appender, "offer_spare", offer)


def mix_up_extras() -> Any:
    """A read that begins inside an append gets the extras of the append's first messages."""
    real = messages.slice_extras

    def cut(block: bytes, count: int, start: int, end: int) -> bytes:
        return real(block, count, 0, end - start)

    return patch.object(durable_view, "slice_extras", cut)


def skip_a_long_append() -> Any:
    """A short read that ends before a long append says that it has reached the end."""
    real = durable_view.BrokerReader.read_on

    def read_on(self: Any, view: Any, offset: int, end: int, *rest: Any, **more: Any) -> Any:
        slices, reached = real(self, view, offset, end, *rest, **more)
        return slices, end if more.get("is_short") else reached

    return patch.object(durable_view.BrokerReader, "read_on", read_on)


def keep_producers_over_a_switch() -> Any:
    """A stream keeps its producers when deduplication is switched off."""
    module = importlib.import_module("semel.machine.apply")
    real = module._APPLIERS[DedupSwitched]

    def switched(state: State, event: DedupSwitched, *rest: Any) -> Effects:
        stream = state.by_number[event.stream]
        kept = dict(stream.producers or {})
        effects: Effects = real(state, event, *rest)
        for producer_id, row in kept.items():
            put_producer(state, stream, producer_id, row)
            state.dirty.producers[event.stream, producer_id] = row
        return effects

    return patch.dict(module._APPLIERS, {DedupSwitched: switched})


def claim_without_fencing() -> Any:
    """A claim returns what is stored, but does not fence the older instance."""
    module = importlib.import_module("semel.machine.apply")
    real = module.claimed_row

    def claimed(state: State, old: ProducerRow | None, event: Any, time_ms: int) -> ProducerRow:
        if old is not None:
            return replace(old, updated_ms=time_ms, is_expired=False)
        row: ProducerRow = real(state, old, event, time_ms)
        return row

    return patch.object(module, "claimed_row", claimed)


def create_guarded_after_all() -> Any:
    """The frame of a creation does not record that deduplication is off."""
    return patch.dict(frame.KINDS, {UnguardedCreated: frame.KINDS[StreamCreated]})


def _patched_row(change: Callable[[ProducerRow, ProducerRow], ProducerRow]) -> Any:
    module = importlib.import_module("semel.machine.apply")
    real = module._continue_producer

    def continued(state: State, old: ProducerRow, *rest: Any) -> ProducerRow:
        return change(old, real(state, old, *rest))

    return patch.object(module, "_continue_producer", continued)


MUTANTS: tuple[Mutant, ...] = (
    answer_before_sync,
    skip_the_recovery_sync,
    checkpoint_tentative_state,
    no_directory_sync,
    read_past_the_watermark,
    forget_an_epoch,
    forget_receipts,
    confirm_what_was_skipped,
    forget_a_run_in_the_checkpoint,
    answer_refusals_at_once,
    cut_a_corrupt_middle,
    change_before_the_checks,
    data_without_its_producer,
    checkpoint_without_producers,
    unlink_a_live_segment,
    sync_again_after_an_error,
    begin_a_segment_too_early,
    lose_an_abandoned_checkpoint,
    go_on_after_a_short_write,
    expire_too_early,
    forget_the_pruned_floor,
    keys_never_age,
    retain_keys_by_frame_time,
    count_short_hours,
    count_a_part_of_an_hour_twice,
    index_forgets_a_cut,
    promise_one_spare_twice,
    mix_up_extras,
    skip_a_long_append,
    keep_producers_over_a_switch,
    create_guarded_after_all,
    claim_without_fencing,
    *ACCESS_MUTANTS,
    *OWNER_MUTANTS,
    *LIVES_MUTANTS,
    *POLICY_MUTANTS,
    *TXN_MUTANTS,
    *GROUP_MUTANTS,
    *TOPIC_MUTANTS,
    *LETTER_MUTANTS,
    *SUBSCRIPTION_MUTANTS,
)
