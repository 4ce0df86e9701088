"""Comparisons of the engine's state and reads with the reference model."""

from functools import partial

from msgspec.structs import astuple

from semel.broker.broker import Broker, ReadDone
from semel.broker.durable_view import ReadTooLong
from semel.machine import State, producers
from semel.machine.rows import ForkRow, ProducerRow
from semel.machine.state import Stream
from semel.model.commands import DENSE, READ_COMMITTED
from semel.model.messages import headers_of, keys_of, timestamps_of
from semel.model.outcomes import Outcome
from semel.model.slices import Slice
from tests.sim.demands import demand, demand_equal
from tests.sim.oracle_groups import groups_view
from tests.sim.oracle_subscriptions import subscriptions_view
from tests.sim.oracle_topics import topic_view
from tests.sim.oracle_txn import txn_state_view
from tests.sim.reference import Model
from tests.sim.reference_streams import Label


def state_view(state: State) -> dict[str, object]:
    """Dump the engine's state in the form of the reference model."""
    busy = state.producer_counts.expiring
    return {
        "time_ms": state.time_ms,
        "hours": state.hours,
        "next_stream": state.next_stream,
        "next_producer": state.next_producer,
        "registry": {name: row.epoch for name, row in state.registry.items()},
        "policies": {prefix: (row.dedup, row.changed_ms) for prefix, row in state.policies.items()},
        "registrations": {
            name: (row.expires_ms, row.retired_hour, -1 if name in busy else row.used_hour)
            for name, row in state.registry.items()
        },
        "tombstones": state.next_tombstone - 1,
        "streams": {
            path: _stream_view(state, stream) for path, stream in sorted(state.by_path.items())
        },
        "transactions": txn_state_view(state),
        "groups": groups_view(state),
        "subscriptions": subscriptions_view(state),
        "tokens": {name: astuple(row) for name, row in sorted(state.tokens.items())},
        "owners": dict(state.owners),
    }


def _stream_view(state: State, stream: Stream) -> dict[str, object]:
    row, tail = stream.row, stream.tail
    oldest_hour = state.hours - state.limits.key_hours
    return {
        "number": row.number,
        "incarnation": row.incarnation,
        "content_type": row.content_type,
        "ttl_ms": row.ttl_ms,
        "expires_at_ms": row.expires_at_ms,
        "written_ms": tail.written_ms,
        "inherits_expiry": row.inherits_expiry,
        "fork": None if row.fork is None else _fork_view(row.fork),
        "head": tail.head,
        "tail": tail.tail,
        "stable": tail.stable,
        "is_closed": tail.is_closed,
        "is_deleted": tail.is_deleted,
        "stream_seq": tail.stream_seq,
        "dedup_from": tail.dedup_from,
        "is_own": tail.dedup_own,
        "producers": {
            name: _producer_view(state, producer)
            for name, producer in sorted((stream.producers or {}).items())
        },
        "keys": [
            (key, use.digest, use.first_offset, use.next_offset, use.time_ms, use.hour)
            for key, use in (stream.keys or {}).items()
            if use.hour >= oldest_hour
        ],
    } | topic_view(state, stream, _producer_view)


def _fork_view(fork: ForkRow) -> dict[str, object]:
    return {
        "path": fork.source_path,
        "number": fork.source,
        "offset": fork.anchor,
        "sub_offset": fork.sub_offset,
    }


def _receipts(ring: bytes | bytearray) -> list[producers.Receipt]:
    return [producers.unpack_receipt(ring, i) for i in range(producers.receipts_of(ring))]


def _producer_view(state: State, row: ProducerRow) -> dict[str, object]:
    held = _receipts(row.receipts)
    is_writing = row.txn in state.by_txn
    past = None
    if row.first_receipt and row.last_seq < 0:
        last = producers.unpack_receipt(row.first_receipt, 0)
        past = (last.last_seq, last.next_offset if last.first_offset >= 0 else None)
    elif row.first_receipt and not (held and held[0].first_seq == 0):
        held.insert(0, producers.unpack_receipt(row.first_receipt, 0))
    view: dict[str, object] = {
        "mode": row.mode,
        "epoch": row.epoch,
        "last": row.last_seq if row.latest_seq < 0 else row.latest_seq,
        "session": row.session,
        "older_sessions": row.old_sessions,
        "receipts": tuple(map(_receipt_view, held)),
        "cursor": row.cursor,
        "updated_ms": row.updated_ms,
        "is_tombstone": row.is_expired,
        "expires_ms": row.expires_ms,
        "is_brief": row.is_brief,
        "hour": row.hour,
        "order": row.tombstone,
        "ended_ms": row.ended_ms,
        "past": past,
        "txn": row.txn if is_writing else 0,
        "txn_receipts": tuple(
            map(_receipt_view, _receipts(row.txn_receipts if is_writing else b""))
        ),
    }
    if row.mode == DENSE:
        view["plain"] = row.last_seq
    else:
        view["forgotten"] = row.forgotten_seq
        view["stored_from"] = row.stored_from
    return view


def _receipt_view(r: producers.Receipt) -> tuple[int, int, int, int, int]:
    return r.first_seq, r.last_seq, r.first_offset, r.next_offset, r.digest


def labels_of(piece: Slice) -> list[Label]:
    """Return the extras and the producer of each message of a slice."""
    extras, count, by = piece.extras, piece.count, piece.producer
    producer = None if by is None else (by.id, by.epoch, by.first_seq, by.last_seq)
    if not extras:
        return [Label(piece.offset + i, None, None, (), producer) for i in range(count)]
    columns = zip(
        keys_of(extras, count),
        timestamps_of(extras, count),
        headers_of(extras, count),
        strict=True,
    )
    return [
        Label(piece.offset + i, key, time_ms, tuple(headers), producer)
        for i, (key, time_ms, headers) in enumerate(columns)
    ]


SHORT_BYTES = 250  # some frames are longer


def read_all(
    broker: Broker, path: str, now_ms: int, isolation: str
) -> list[Slice] | Outcome | None:
    """Read a stream from its head to its end, in several reads. Some of them are short reads.

    Return None if the stream's deletion is not durable yet: the outcome waits for that.
    """
    found: list[Slice] = []
    offset: int | None = None
    while True:
        got: list[Outcome] = []
        begin = partial(
            broker.read, path, offset, now_ms=now_ms, reply=got.append, isolation=isolation
        )
        if offset is not None and offset % 2:
            begin(bytes_max=SHORT_BYTES, is_short=True)
        if not got or isinstance(got[0], ReadTooLong):
            got.clear()
            begin(bytes_max=1)
        if not got:
            demand(path not in broker.state.by_path, f"a read of {path} has no outcome")
            return None
        done = got[0]
        if not isinstance(done, ReadDone):
            return done
        found.extend(done.slices)
        if offset == done.next_offset:
            tail, is_committed = done.tail, isolation == READ_COMMITTED
            end = tail.stable if is_committed else tail.tail
            demand(offset == end, f"{path} ends at {end}, its reader is at {offset}")
            return found
        offset = done.next_offset


def demand_readable(broker: Broker, model: Model) -> None:
    """Compare every message of every stream, without the side effects of a client's read."""
    for path, stream in model.streams.items():
        if stream.is_deleted or stream.topic is not None:
            continue
        view = broker.durable_view.by_path[path]
        tail = view.tail
        assert tail is not None
        for end, is_committed in ((tail.tail, False), (tail.stable, True)):
            slices, _ = broker.reader.read_on(
                view, tail.head, end, 1 << 40, is_committed=is_committed
            )
            demand_same_messages(slices, model, path, is_committed)


def demand_same_messages(
    slices: list[Slice], model: Model, path: str, is_committed: bool = False
) -> None:
    """Compare what was read from a stream with the messages of the model."""
    found = [pair for piece in slices for pair in enumerate(piece.messages(), piece.offset)]
    how = f"{path}, {'committed' if is_committed else 'uncommitted'}"
    demand_equal(found, model.messages(path, committed=is_committed), f"messages of {how}")
    labels = [label for piece in slices for label in labels_of(piece)]
    expected = model.labels(path, committed=is_committed)
    demand_equal(labels, expected, f"keys, headers, times and producers of {how}")
