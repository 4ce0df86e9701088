"""What must be true: comparisons between the engine, the reference model and the journal's fold."""

from semel.broker.broker import Broker, ReadDone
from semel.broker.reader import Slice
from semel.machine import State, receipts
from semel.machine.rows import ForkRow, ProducerRow
from semel.machine.state import Stream
from semel.model.commands import DENSE
from semel.model.extras import headers_of, keys_of, timestamps_of
from semel.model.outcomes import Outcome
from tests.sim.reference import Model
from tests.sim.reference_streams import Label


class Violation(Exception):
    """A promise was broken."""


def demand(condition: object, message: str) -> None:
    """Stop the run unless a promise holds."""
    if not condition:
        raise Violation(message)


def state_view(state: State) -> dict[str, object]:
    """Dump the engine's state in the reference model's words."""
    return {
        "time_ms": state.time_ms,
        "next_stream": state.next_stream,
        "next_producer": state.next_producer,
        "registry": {name: row.epoch for name, row in state.registry.items()},
        "streams": {
            path: _stream_view(state, stream) for path, stream in sorted(state.by_path.items())
        },
    }


def _stream_view(state: State, stream: Stream) -> dict[str, object]:
    row, tail = stream.row, stream.tail
    alive = state.time_ms - state.limits.key_window_ms
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
        "is_closed": tail.is_closed,
        "is_deleted": tail.is_deleted,
        "stream_seq": tail.stream_seq,
        "dedup_from": tail.dedup_from,
        "producers": {
            name: _producer_view(producer)
            for name, producer in sorted((stream.producers or {}).items())
        },
        "keys": [
            (key, use.digest, use.first_offset, use.next_offset, use.time_ms)
            for key, use in (stream.keys or {}).items()
            if use.time_ms > alive
        ],
    }


def _fork_view(fork: ForkRow) -> dict[str, object]:
    return {
        "path": fork.source_path,
        "number": fork.source,
        "offset": fork.anchor,
        "sub_offset": fork.sub_offset,
    }


def _producer_view(row: ProducerRow) -> dict[str, object]:
    held = [receipts.unpack(row.receipts, i) for i in range(receipts.held(row.receipts))]
    past = None
    if row.zero and row.last_seq < 0:
        last = receipts.unpack(row.zero, 0)
        past = (last.last_seq, last.next_offset if last.first_offset >= 0 else None)
    elif row.zero and not (held and held[0].first_seq == 0):
        held.insert(0, receipts.unpack(row.zero, 0))
    view: dict[str, object] = {
        "mode": row.mode,
        "epoch": row.epoch,
        "last": row.last_seq,
        "session": row.session,
        "older_sessions": row.older,
        "receipts": tuple(
            (r.first_seq, r.last_seq, r.first_offset, r.next_offset, r.digest) for r in held
        ),
        "cursor": row.cursor,
        "updated_ms": row.updated_ms,
        "is_tombstone": row.is_expired,
        "past": past,
    }
    if row.mode != DENSE:
        view["forgotten"] = row.forgotten_seq
    return view


def difference(left: object, right: object, at: str = "state") -> str | None:
    """Name the first place where two dumps differ."""
    if isinstance(left, dict) and isinstance(right, dict):
        for key in sorted({*left, *right}, key=str):
            if key not in left or key not in right:
                return f"{at}.{key} is on one side only"
            if found := difference(left[key], right[key], f"{at}.{key}"):
                return found
        return None
    return None if left == right else f"{at}: {left!r} is not {right!r}"


def demand_equal(left: object, right: object, what: str) -> None:
    """Compare two dumps."""
    if found := difference(left, right):
        raise Violation(f"{what}: {found}")


def labels_of(piece: Slice) -> list[Label]:
    """List what goes with each message of a slice."""
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


def read_all(broker: Broker, path: str, now_ms: int) -> list[Slice] | Outcome | None:
    """Read a stream from its head to its end, in as many reads as it takes.

    None: the stream's end is on its way to the disk, and the answer waits for it.
    """
    found: list[Slice] = []
    offset: int | None = None
    while True:
        got: list[Outcome] = []
        broker.read(path, offset, now_ms=now_ms, reply=got.append, bytes_max=1)
        if not got:
            demand(path not in broker.state.by_path, f"a read of {path} got no answer")
            return None
        done = got[0]
        if not isinstance(done, ReadDone):
            return done
        found.extend(done.slices)
        if not done.slices:
            return found
        offset = done.next_offset


def demand_readable(broker: Broker, model: Model) -> None:
    """Compare every message of every stream, without leaving a trace of the reading."""
    for path, stream in model.streams.items():
        if stream.is_deleted:
            continue
        view = broker.seen.by_path[path]
        assert view.tail is not None
        slices = broker.reader.read(view, view.tail.head, view.tail.tail, 1 << 40)
        demand_same_messages(slices, model, path)


def demand_same_messages(slices: list[Slice], model: Model, path: str) -> None:
    """Compare what was read of a stream with what the model holds."""
    found = [pair for piece in slices for pair in enumerate(piece.messages(), piece.offset)]
    demand_equal(found, model.messages(path), f"messages of {path}")
    labels = [label for piece in slices for label in labels_of(piece)]
    demand_equal(labels, model.labels(path), f"keys, headers, times and producers of {path}")
