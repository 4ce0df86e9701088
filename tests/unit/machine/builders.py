"""Helpers that build commands, and a machine that decides, applies and keeps its journal."""

import struct
from typing import Any, NamedTuple

from msgspec.structs import replace

from semel.machine import (
    Decision,
    Event,
    MachineLimits,
    Section,
    State,
    Stream,
    apply,
    validate_and_decide,
)
from semel.machine.rows import ChunkBlockRow, OwnerRow
from semel.machine.state import STATE_TABLES, Dirty
from semel.machine.subscribers import Subscription, Subscriptions
from semel.model.commands import (
    DENSE,
    SPARSE,
    Append,
    Batch,
    ClaimProducer,
    Create,
    EngineCommand,
    ExpireProducer,
    ForkRequest,
    ProducerTag,
    StoredAppend,
)
from semel.model.outcomes import Outcome, Refusal
from semel.model.producer_commands import CountHour

TEXT = "text/plain"
JSON = "application/json"
DAY_MS = 24 * 60 * 60 * 1000
KEY_HOURS = 25  # a key is used in one hour and retained for 24 more


# ---- commands ------------------------------------------------------------------------------------


def json_batch(*bodies: bytes) -> Batch:
    if len(bodies) == 1:
        return Batch(bodies[0])
    lengths = struct.pack(f"<{len(bodies)}I", *map(len, bodies))
    return Batch(b",".join(bodies), len(bodies), lengths)


def create(
    path: str = "s",
    *,
    now: int = 0,
    kind: str | None = TEXT,
    ttl: int | None = None,
    expires_at: int | None = None,
    closed: bool = False,
    batch: Batch | None = None,
    error: str | None = None,
    fork: ForkRequest | None = None,
) -> Create:
    return Create(path, now, f"i-{path}-{now}", kind, ttl, expires_at, closed, batch, error, fork)


def fork(
    path: str = "f",
    source: str = "s",
    offset: int | None = None,
    sub: int = 0,
    *,
    now: int = 0,
    ttl: int | None = None,
    expires_at: int | None = None,
    batch: Batch | None = None,
    error: str | None = None,
    stored: StoredAppend | None = None,
) -> Create:
    wanted = ForkRequest(source, offset, sub, stored)
    plain = create(path, now=now, kind=None, ttl=ttl, expires_at=expires_at, batch=batch)
    return replace(plain, body_error=error, fork=wanted)


def append(
    body: bytes | Batch | None = b"x",
    *,
    path: str = "s",
    now: int = 0,
    kind: str | None = TEXT,
    error: str | None = None,
    close: bool = False,
    by: ProducerTag | None = None,
    stream_seq: str | None = None,
    if_match: int | None = None,
    key: str | None = None,
) -> Append:
    batch = Batch(body) if isinstance(body, bytes) else body
    return Append(path, now, kind, batch, error, close, by, stream_seq, if_match, key)


def dense(
    seq: int,
    *,
    epoch: int | None = None,
    session: str | None = None,
    name: str = "p",
    cursor: bytes | None = None,
    strict: bool = False,
) -> ProducerTag:
    return ProducerTag(name, seq, seq, epoch, session, DENSE, cursor, strict)


def sparse(
    first: int,
    last: int | None = None,
    *,
    epoch: int | None = None,
    session: str | None = None,
    name: str = "p",
    strict: bool = False,
) -> ProducerTag:
    end = first if last is None else last
    return ProducerTag(name, first, end, epoch, session, SPARSE, None, strict)


def claim(
    session: str, *, mode: str = DENSE, name: str = "p", path: str = "s", now: int = 0
) -> ClaimProducer:
    return ClaimProducer(path, now, name, session, mode)


def bury(name: str = "p", *, path: str = "s", now: int = 0) -> ExpireProducer:
    """Return a command that expires a producer at once, which leaves only a tombstone."""
    return ExpireProducer(path, now, name, 0)


def hours(count: int, *, now: int = 0) -> list[CountHour]:
    return [CountHour(now)] * count


# ---- the machine ---------------------------------------------------------------------------------


class Written(NamedTuple):
    event: Event
    sections: tuple[Section, ...]
    time_ms: int


class Machine:
    """Executes one command after another and applies each event immediately."""

    def __init__(self, limits: MachineLimits | None = None) -> None:
        self.state = State(limits)
        self.journal: list[Written] = []

    def execute(self, command: EngineCommand) -> Outcome:
        decision = validate_and_decide(self.state, command)
        if decision.event is None:
            assert decision == Decision(decision.outcome), "sections without an event"
        else:
            assert not isinstance(decision.outcome, Refusal), "a refusal changes nothing"
            time_ms = self.state.frame_time(command.now_ms)
            self.replay(Written(decision.event, decision.sections, time_ms))
        return decision.outcome

    def replay(self, written: Written) -> None:
        self.journal.append(written)
        apply(self.state, *written)

    def stream(self, path: str = "s") -> Stream:
        return self.state.by_path[path]

    def payloads(self, path: str = "s") -> list[bytes]:
        """Return the payload of every append to a stream, without inherited messages."""
        number = self.stream(path).row.number
        sections = [section for written in self.journal for section in written.sections]
        return [section.payload for section in sections if section.stream == number]


def machine_of(*commands: EngineCommand, limits: MachineLimits | None = None) -> Machine:
    machine = Machine(limits)
    for command in commands:
        assert not isinstance(machine.execute(command), Refusal), command
    return machine


def unchanged(machine: Machine, command: EngineCommand) -> Outcome:
    """Decide a command that must write nothing, and return its outcome."""
    decision = validate_and_decide(machine.state, command)
    assert decision == Decision(decision.outcome)
    return decision.outcome


def rows_of(state: State) -> dict[str, dict[Any, Any]]:
    """Return every row of a state, by table, with the newest streams and keys first."""
    streams = dict(reversed(state.by_number.items()))
    txns = dict(reversed(state.by_txn.items()))
    return {
        "streams": {n: stream.row for n, stream in streams.items()},
        "tails": {n: stream.tail for n, stream in streams.items()},
        "producers": {
            (n, k): r for n, s in streams.items() for k, r in (s.producers or {}).items()
        },
        "keys": {
            (n, k): r for n, s in streams.items() for k, r in reversed((s.keys or {}).items())
        },
        "registry": state.registry,
        "transactions": {n: txn.row for n, txn in txns.items()},
        "txn_streams": {(n, k): r for n, txn in txns.items() for k, r in txn.streams.items()},
        "parts": {
            (n, k): ChunkBlockRow(packed)
            for n, txn in txns.items()
            for k, packed in enumerate(txn.chunk_blocks)
        },
        "positions": {
            (n, k): r for n, s in streams.items() for k, r in (s.positions or {}).items()
        },
        "snapshots": state.snapshots,
        "sinks": state.sinks,
        "policies": dict(state.policies),
        "tokens": state.tokens,
        "owners": {key: OwnerRow(owner) for key, owner in state.owners.items()},
        "topics": {n: s.topic for n, s in streams.items() if s.topic is not None},
        "groups": {name: share.row for name, share in state.shares.items()},
        "members": {
            (name, m): row
            for name, share in state.shares.items()
            for m, row in share.members.items()
        },
        "shares": {
            (n, name): row
            for name, share in state.shares.items()
            for n, row in share.streams.items()
        },
        **_rows_of_subscriptions(state),
    }


def _rows_of_subscriptions(state: State) -> dict[str, dict[Any, Any]]:
    by_id = state.subscriptions.by_id
    return {
        "subscriptions": {name: each.row for name, each in by_id.items()},
        "wakes": {name: each.wake for name, each in by_id.items()},
        "links": {(n, name): row for name, each in by_id.items() for n, row in each.links.items()},
    }


def reloaded(state: State, limits: MachineLimits | None = None) -> State:
    """Return the state loaded from the rows that a checkpoint would store."""
    twin = State(limits or state.limits)
    twin.load_meta(state.meta_row())
    rows = rows_of(state)
    assert rows.keys() == STATE_TABLES.keys()
    for name, table in STATE_TABLES.items():
        for key, row in rows[name].items():
            table.load(twin, key, row)
    twin.load_links()
    return twin


def snapshot(thing: object) -> object:
    """Copy a state, or a part of it, into comparable values. The order counts."""
    if isinstance(thing, State | Stream | Dirty):
        names = thing.__slots__ if isinstance(thing, State) else thing.__struct_fields__
        # The versions of policies and tokens save a comparison. They are not stored. The same is
        # true of cuts, and of the streams that patterns match.
        unstored = ("policy_version", "access_version", "cuts", "patterns")
        kept = [name for name in names if name not in unstored]
        return [(name, snapshot(getattr(thing, name))) for name in kept]
    if isinstance(thing, Subscriptions):
        return snapshot(dict(sorted(thing.by_id.items()))), sorted(thing.due), watched_in(thing)
    if isinstance(thing, Subscription):
        return thing.row, thing.wake, sorted(thing.links.items()), sorted(thing.pending)
    if isinstance(thing, dict):
        return [(key, snapshot(value)) for key, value in thing.items()]
    if isinstance(thing, set | frozenset):
        return sorted(thing)
    if isinstance(thing, list):
        return [snapshot(item) for item in thing]
    return thing  # an immutable row or number


def watched_in(subscriptions: Subscriptions) -> object:
    """Return which subscriptions name each path, and which have each pattern."""
    named = sorted((path, sorted(names)) for path, names in subscriptions.by_name.items())
    patterns = subscriptions.patterns
    return named, sorted((text, sorted(matched.users)) for text, matched in patterns.items())
