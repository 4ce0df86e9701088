"""Short words for commands, and a machine that decides, applies and keeps what it wrote."""

import struct
from typing import NamedTuple

from msgspec.structs import replace

from semel.machine import Decision, Event, MachineLimits, Section, State, Stream, apply, decide
from semel.machine.state import Dirty
from semel.model.commands import (
    DENSE,
    SPARSE,
    Append,
    Batch,
    ClaimProducer,
    Create,
    ExpireProducer,
    ForkRequest,
    ProducerTag,
    StoredAppend,
)
from semel.model.outcomes import Outcome, Refusal
from semel.model.transactions import EngineCommand

TEXT = "text/plain"
JSON = "application/json"
DAY_MS = 24 * 60 * 60 * 1000


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
    """Leave but a tombstone of a producer, however short it was idle."""
    return ExpireProducer(path, now, name, 0)


# ---- the machine ---------------------------------------------------------------------------------


class Written(NamedTuple):
    event: Event
    sections: tuple[Section, ...]
    time_ms: int


class Machine:
    """One command after the other, each written at once."""

    def __init__(self, limits: MachineLimits | None = None) -> None:
        self.state = State(limits)
        self.journal: list[Written] = []

    def execute(self, command: EngineCommand) -> Outcome:
        decision = decide(self.state, command)
        if decision.event is None:
            assert decision == Decision(decision.outcome), "nothing to write, but sections to write"
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
        """List what was written to a stream itself, append by append."""
        number = self.stream(path).row.number
        sections = [section for written in self.journal for section in written.sections]
        return [section.payload for section in sections if section.stream == number]


def machine_of(*commands: EngineCommand, limits: MachineLimits | None = None) -> Machine:
    machine = Machine(limits)
    for command in commands:
        assert not isinstance(machine.execute(command), Refusal), command
    return machine


def unchanged(machine: Machine, command: EngineCommand) -> Outcome:
    """Decide a command that must write nothing, and return the answer."""
    decision = decide(machine.state, command)
    assert decision == Decision(decision.outcome)
    return decision.outcome


def snapshot(thing: object) -> object:
    """Copy a state, or a part of one, into values that can be compared; order counts."""
    if isinstance(thing, State | Stream | Dirty):
        names = thing.__struct_fields__ if isinstance(thing, Stream) else thing.__slots__
        return [(name, snapshot(getattr(thing, name))) for name in names]
    if isinstance(thing, dict):
        return [(key, snapshot(value)) for key, value in thing.items()]
    if isinstance(thing, set):
        return sorted(thing)
    if isinstance(thing, list):
        return [snapshot(item) for item in thing]
    return thing  # a row or a number: frozen
