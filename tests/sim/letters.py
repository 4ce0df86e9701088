"""Workers that reject messages of one group, and an operator who replays what they have rejected.

Their commits are those of the Python client: `semel.client.dead_letters` builds them, without a
server. `oracle_letters.py` checks what follows from them. A commit is sometimes sent again, with
its own number or as a commit of another client.
"""

from collections import deque
from collections.abc import Mapping
from random import Random
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from semel.client import dead_letter_calls, dead_letters
from semel.client.commit_calls import Parts
from semel.client.flows import Flow
from semel.client.group_calls import GroupCursor
from semel.client.positions import KnownPosition, KnownPositions, Ownership
from semel.client.reading import StreamName
from semel.client.values import Message
from semel.model import commands as ask
from semel.model.commands import Batch, Commit, CommitAppend, Create, EngineCommand, PositionMove
from semel.model.group_commands import JoinGroup, LeaveGroup
from semel.model.offsets import parse_offset
from semel.model.rights import dead_letters_of, retries_of
from tests.sim.reference import Model
from tests.sim.reference_groups import Row

JSON = "application/json"
GROUP = "l 1"  # its streams have an encoded name
INPUT, OUTPUT = "l/in", "l/out"
DEAD, RETRY = dead_letters_of(GROUP), retries_of(GROUP)
REPLAYS = dead_letter_calls.replay_group_of(GROUP)
STREAMS = (INPUT, OUTPUT, DEAD, RETRY)
SHARE = 0.07  # of the commands, in runs with dead letters
MEMBERS = 2
T = TypeVar("T")


def is_of_letters(path: str) -> bool:
    """Return whether a stream is one of the group's, to which nobody else may write."""
    return path in STREAMS


class Sent:
    """Takes the place of the client's `CommitSequence`: it keeps what the client sends."""

    duplicate = False

    def __init__(self) -> None:
        self.parts: list[Parts] = []
        self.streams = self

    def append_letters(self, _path: str, parts: Parts) -> "Flow[Sent]":
        """Keep the parts of a commit, which is taken as accepted."""
        self.parts.append(parts)
        yield from ()
        return self


class Pages:
    """Takes the place of the client's reader of dead letters."""

    def __init__(self, pages: list[list[Message]], incarnation: str) -> None:
        self._pages, self.incarnation = deque(pages), incarnation

    def next_page(self) -> Flow[list[Message] | None]:
        """Return the next messages, or None at the end."""
        yield from ()
        return self._pages.popleft() if self._pages else None


def run(flow: Flow[T]) -> T:
    """Run a flow of the client that sends nothing itself."""
    try:
        next(flow)
    except StopIteration as end:
        result: T = end.value
        return result
    raise AssertionError("the flow sends a request")


def commit_of(parts: Parts, commit: Commit) -> Commit:
    """Return the command that the server makes of the parts of a commit."""
    appends = [_append(path, list(values)) for path, values in parts.appends.items()]
    moves = [
        _move(parts, group, path, move)
        for group, by_path in parts.offsets.items()
        for path, move in by_path.items()
    ]
    return replace(commit, appends=tuple(appends), positions=tuple(moves))


def _append(path: str, values: list[bytes]) -> CommitAppend:
    lengths = b"".join(len(value).to_bytes(4, "little") for value in values)
    batch = Batch(b",".join(values), len(values), lengths if len(values) > 1 else b"")
    return CommitAppend(path, JSON, batch)


def _move(parts: Parts, group: str, path: str, move: Any) -> PositionMove:
    start, to, incarnation, version = move
    epoch = parts.epochs.get(path)
    return PositionMove(
        group, path, to, start, incarnation, version, (), parts.member if epoch else None, epoch
    )


def messages(model: Model, path: str, start: int = 0) -> list[Message]:
    """Return the messages of a stream as the client reads them."""
    stream = model.streams[path]
    source = StreamName(path, stream.incarnation)
    return [
        Message(m.body, JSON, m.offset, m.offset + 1, written_ms=1, source=source)
        for m in stream.messages
        if m.offset >= start
    ]


class LetterWorkload:
    """A seeded generator of the commands of workers that reject; with `is_off`, of none."""

    def __init__(self, rng: Random, *, is_off: bool) -> None:
        self._rng, self.is_off = rng, is_off
        self._count = 0
        self._recent: deque[Commit] = deque(maxlen=12)

    def draw(self, model: Model, now_ms: int) -> EngineCommand | None:
        """Return the next command, or None for a command of another kind."""
        rng = self._rng
        if self.is_off or rng.random() >= SHARE:
            return None
        self._count += 1
        missing = [path for path in STREAMS if path not in model.streams]
        if missing:
            return Create(missing[0], now_ms, f"letters{self._count}", JSON)
        members = [*model.groups.find(GROUP).members]
        if len(members) < MEMBERS and rng.random() < 0.5:
            return JoinGroup(now_ms, GROUP, f"w{self._count}", (INPUT,))
        if members and rng.random() < 0.02:
            return LeaveGroup(now_ms, GROUP, rng.choice(members))
        if rng.random() < 0.2:
            value = msgspec.json.encode({"n": self._count})
            return ask.Append(INPUT, now_ms, JSON, Batch(value))
        return self._commit(model, now_ms)

    def _commit(self, model: Model, now_ms: int) -> EngineCommand:
        rng, name = self._rng, self._rng.choice(["lw0", "lw1"])
        if self._recent and rng.random() < 0.25:  # the same again, or by another call
            last = self._recent[-1] if rng.random() < 0.5 else rng.choice(self._recent)
            again = replace(last, now_ms=now_ms)
            name = again.producer_id or name
            return again if rng.random() < 0.3 else self._numbered(model, again, name)
        commit = self._numbered(model, Commit(now_ms, name, 0, 0), name)
        parts = self._replayed(model) if rng.random() < 0.25 else self._worked(model)
        if not parts:
            return ask.Append(INPUT, now_ms, JSON, Batch(b'{"n":0}'))
        made = replace(commit_of(parts[0], commit), digest=self._count)
        self._recent.append(made)
        return made

    def _numbered(self, model: Model, commit: Commit, name: str) -> Commit:
        """Return a commit with the next number of a producer."""
        epoch = model.registry.get(name, 0)
        seq = model.txns.commit_seqs.get(name, -1) + 1
        return replace(commit, producer_id=name, producer_epoch=epoch, producer_seq=seq)

    # ---- workers ---------------------------------------------------------------------------------

    def _worked(self, model: Model) -> list[Parts]:
        """Let the owner of a stream process the next message, or reject it."""
        rows = model.groups.find(GROUP).rows
        path = self._rng.choice([INPUT, INPUT, RETRY])
        stream = model.streams[path]
        row = rows.get(stream.number, Row())
        stored = model.txns.positions.at(GROUP, path)
        ready = messages(model, path, stored.offset)
        if row.owner is None or not ready:
            return []
        owner = Ownership(row.owner, row.epoch)
        position = KnownPosition(stored.offset, stored.version, stream.incarnation, owner)
        message = ready[0]
        if self._rng.random() < 0.4:
            cursor = GroupCursor(None, GROUP, path, KnownPositions())  # type: ignore[arg-type]
            cursor.position = position
            return self._rejected(cursor, message)
        output = msgspec.json.encode({"stream": path, "offset": message.ordinal})
        moves = {path: position.move_to(message.ordinal + 1)}  # type: ignore[operator]
        return [
            Parts({OUTPUT: [output]}, {GROUP: moves}, member=owner.member, epochs={path: row.epoch})
        ]

    def _rejected(self, cursor: GroupCursor, message: Message) -> list[Parts]:
        """Let the client reject a message."""
        sent = Sent()
        if cursor.path == RETRY:
            dead_letters.unwrap(message)
        flow = dead_letters.reject_message(
            sent,  # type: ignore[arg-type]
            cursor,
            message,
            f"cause {self._count}",
        )
        run(flow)
        return sent.parts

    # ---- operators -------------------------------------------------------------------------------

    def _replayed(self, model: Model) -> list[Parts]:
        """Let the client replay some of the dead letters that were not replayed yet."""
        sent = Sent()
        run(Replayer(model).replay(sent, self._rng.choice([None, 1, 2])))  # type: ignore[arg-type]
        return sent.parts


class Replayer(dead_letter_calls.DeadLetterCalls):
    """The calls of the client on dead letters, which read from the model and not from a server."""

    def __init__(self, model: Model) -> None:
        self.group, self.path, self._replays = GROUP, DEAD, REPLAYS
        self._model = model

    def position(self) -> Flow[KnownPosition]:
        """Return how far the dead letters were replayed."""
        stored = self._model.txns.positions.at(REPLAYS, DEAD)
        yield from ()
        return KnownPosition(stored.offset, stored.version)

    def reader(self, *, is_all: bool = False) -> Flow[Any]:
        """Return a reader of the dead letters that were not replayed."""
        return self._reader_at(0 if is_all else (yield from self.position()).offset)

    def _reader_at(self, ordinal: int) -> Any:
        return Pages([messages(self._model, DEAD, ordinal)], self._model.streams[DEAD].incarnation)

    def _has_letters(self) -> Flow[bool]:
        yield from ()
        return True


def origin_of(body: bytes) -> tuple[str, int] | None:
    """Return where the message of a dead letter was read first, or None if it is no dead letter."""
    found: Mapping[str, Any] = msgspec.json.decode(body)
    if "cause" not in found:
        return None
    return found["stream"], parse_offset(found["offset"]) or 0
