"""Producers that retry, and a log of all messages that were read, to check what was stored.

A producer sends each batch again, with the same sequence numbers, until it gets a response. The log
holds every message that was ever read; no crash may change or lose one of them.
"""

import struct
import time
from collections import Counter, deque
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from semel.model.commands import (
    DENSE,
    SPARSE,
    Append,
    Batch,
    Command,
    Create,
    Delete,
    ForkRequest,
    ProducerTag,
    Trim,
)
from semel.model.outcomes import (
    Appended,
    Created,
    Deleted,
    Duplicate,
    Gone,
    NotFound,
    Trimmed,
)
from tests.crash.protocol import Link, Text

IN_FLIGHT: Final = 5
KINDS: Final = ("epoch", "session", "sparse", "key", "bare")
MEDIA: Final = {"json": "application/json", "text-1": "text/plain", "text-2": "text/plain"}
_REPEATABLE: Final = 30
_KEPT_MESSAGES: Final = 150
_FILLER: Final = "abcdefghijklmnopqrstuvwxyz0123456789" * 60


@dataclass(slots=True)
class Sent:
    """A batch that is in flight or stored."""

    command: Append
    messages: tuple[bytes, ...]
    first_offset: int = -1


def message(name: str, number: int, size: int) -> bytes:
    """Return a unique message whose bytes follow from the arguments."""
    start = number % 36
    return f'"{name}/{number}/{_FILLER[start : start + size]}"'.encode()


def batch_of(messages: tuple[bytes, ...]) -> Batch:
    if len(messages) == 1:
        return Batch(messages[0])
    lengths = struct.pack(f"<{len(messages)}I", *map(len, messages))
    return Batch(b",".join(messages), len(messages), lengths)


class Producer:
    """One producer on one stream."""

    def __init__(self, kind: str, path: str, random: Random) -> None:
        self.name = f"{kind}@{path}"
        self.path = path
        self.pending: deque[Sent] = deque()
        self.stored: list[Sent] = []
        self.repeatable: deque[Sent] = deque(maxlen=_REPEATABLE)
        self._kind = kind
        self._random = random
        self._generation = 1
        self._seq = 0
        self._count = 0

    def next(self) -> Sent:
        """Return the next batch, and add it to `pending`."""
        random = self._random
        if not self.pending and self._kind in ("epoch", "session") and random.random() < 0.05:
            self._generation, self._seq = self._generation + 1, 0
            self.repeatable.clear()
        size = random.choice((1, 1, 1, 4)) if self.path == "json" else 1
        messages = tuple(
            message(self.name, self._count + i, random.choice((20, 200, 1500))) for i in range(size)
        )
        self._count += size
        sent = Sent(self._command(messages), messages)
        self.pending.append(sent)
        return sent

    def _command(self, messages: tuple[bytes, ...]) -> Append:
        first, last = self._seq, self._seq
        if self._kind == "sparse":
            first += self._random.randrange(3)
            last = first + len(messages) - 1
        self._seq = last + 1
        tag = ProducerTag(
            self.name,
            first,
            last,
            epoch=self._generation if self._kind == "epoch" else None,
            session=f"run {self._generation}" if self._kind == "session" else None,
            mode=SPARSE if self._kind == "sparse" else DENSE,
        )
        return Append(
            self.path,
            now_ms(),
            MEDIA[self.path],
            batch_of(messages),
            producer=None if self._kind == "key" else tag,
            key=f"{self.name}/{first}" if self._kind == "key" else None,
        )

    def answered(self, sent: Sent, outcome: object) -> None:
        """Record the offset of a batch; a repeated batch must have the same offset as before."""
        assert isinstance(outcome, Appended | Duplicate), f"{self.name}: {outcome}"
        first = outcome.first_offset
        assert first is not None, f"{self.name}: the response has no offset: {outcome}"
        assert outcome.next_offset == first + len(sent.messages), f"{self.name}: torn: {outcome}"
        if sent.first_offset >= 0:
            assert isinstance(outcome, Duplicate), f"{self.name}: stored twice: {outcome}"
            assert sent.first_offset == first, f"{self.name}: moved: {outcome}, {sent}"
            return
        assert sent is self.pending[0], f"{self.name}: response out of order"
        self.pending.popleft()
        sent.first_offset = first
        self.stored.append(sent)
        self.repeatable.append(sent)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Keeper:
    """Trims, forks and deletes, one at a time: segments are removed, and streams share data."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._number = 0
        self.heads = dict.fromkeys(MEDIA, 0)
        self.forks: dict[str, tuple[str, int, int]] = {}
        self.removed: list[str] = []
        self.command: Command | None = None
        self.done: Counter[str] = Counter()

    def next(self, log: dict[str, list[bytes]]) -> Command:
        """Return the next command."""
        path = self._random.choice(list(MEDIA))
        end = len(log[path])
        choice = self._random.random()
        if len(self.forks) > 3 or (choice < 0.1 and self.forks):
            self.command = Delete(next(iter(self.forks)), now_ms())
        elif choice < 0.4 and end > self.heads[path]:
            offset = self._random.randint(self.heads[path], end)
            self._number += 1
            fork = ForkRequest(path, offset)
            self.command = Create(f"fork-{self._number}", now_ms(), "i", fork=fork)
        else:
            before = max(self.heads[path], end - _KEPT_MESSAGES)
            self.command = Trim(path, now_ms(), before)
        return self.command

    def answered(self, outcome: object) -> None:
        """Record the outcome; a command that is sent again may already have been applied."""
        command, self.command = self.command, None
        self.done[type(command).__name__] += 1
        match command:
            case Trim():
                assert outcome == Trimmed(command.before), outcome
                self.heads[command.path] = command.before
            case Create(fork=ForkRequest(source=source, offset=int(offset))):
                assert isinstance(outcome, Created), outcome
                assert outcome.next_offset == offset
                self.forks[command.path] = (source, self.heads[source], offset)
            case Delete():
                assert isinstance(outcome, Deleted | NotFound | Gone), outcome
                del self.forks[command.path]
                self.removed.append(command.path)


class Load:
    """All producers, the keeper and the log, across all restarts of the server."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self.producers = [Producer(kind, path, random) for kind in KINDS for path in MEDIA]
        self.keeper = Keeper(random)
        self.log: dict[str, list[bytes]] = {path: [] for path in MEDIA}
        self.duplicates = 0
        self._waiting: dict[int, Any] = {}

    def create_streams(self, link: Link) -> None:
        for path, media in MEDIA.items():
            outcome = link.ask("submit", Create(path, now_ms(), path, media))
            assert isinstance(outcome, Created), outcome

    def resume(self, link: Link) -> None:
        """Continue after a restart: send every command again that has no response yet."""
        self._waiting.clear()
        for path in MEDIA:
            self._read(link, path)
        for producer in self.producers:
            for sent in producer.pending:
                self._waiting[link.send("submit", sent.command)] = (producer, sent)
        if self.keeper.command is not None:
            self._waiting[link.send("submit", self.keeper.command)] = self.keeper

    def run(self, link: Link, seconds: float) -> None:
        """Send commands and handle responses for some time."""
        deadline = time.monotonic() + seconds
        while link.is_open and (left := deadline - time.monotonic()) > 0:
            self._fill(link)
            self.take(link.receive(left))

    def finish(self, link: Link) -> None:
        """Wait until every request has a response."""
        deadline = time.monotonic() + 30
        while self._waiting and link.is_open and time.monotonic() < deadline:
            self.take(link.receive(1.0))
        assert not self._waiting, f"{len(self._waiting)} requests got no response"

    def _fill(self, link: Link) -> None:
        for producer in self.producers:
            while len(producer.pending) < IN_FLIGHT:
                sent = producer.next()
                self._waiting[link.send("submit", sent.command)] = (producer, sent)
            if producer.repeatable and self._random.random() < 0.1:
                again = self._random.choice(producer.repeatable)
                self._waiting[link.send("submit", again.command)] = (producer, again)
        if self.keeper.command is None:
            command = self.keeper.next(self.log)
            self._waiting[link.send("submit", command)] = self.keeper
        if self._random.random() < 0.3:
            self._read(link, self._random.choice(list(MEDIA)))

    def _read(self, link: Link, path: str) -> None:
        self._waiting[link.send("read", path, len(self.log[path]))] = path

    def take(self, answers: Any) -> None:
        """Check and record responses."""
        for number, value in answers:
            match self._waiting.pop(number, None):
                case (Producer() as producer, Sent() as sent):
                    producer.answered(sent, value)
                    self.duplicates += isinstance(value, Duplicate)
                case Keeper() as keeper:
                    keeper.answered(value)
                case str(path):
                    self._seen(path, value)

    def _seen(self, path: str, value: object) -> None:
        assert isinstance(value, Text), f"{path}: {value}"
        log = self.log[path]
        known = log[value.offset : value.offset + len(value.messages)]
        assert value.messages[: len(known)] == tuple(known), f"{path}: a read message has changed"
        log.extend(value.messages[len(known) :])

    # ---- verification ------------------------------------------------------------------------

    def verify(self, link: Link) -> None:
        """Check that every acked batch is stored once and in order, and nothing else is stored."""
        for path in MEDIA:
            self._read_to_end(link, path)
            self._verify_stream(path)
            self._verify_kept(link, path, self.keeper.heads[path], self.log[path])
        for path, (source, head, end) in self.keeper.forks.items():
            self._verify_kept(link, path, head, self.log[source][:end])
        for path in self.keeper.removed:
            assert isinstance(link.ask("read", path, None), NotFound), path

    def _read_to_end(self, link: Link, path: str) -> None:
        text = link.ask("read", path, len(self.log[path]))
        self._seen(path, text)
        if len(self.log[path]) < text.tail:
            self._read_to_end(link, path)

    def _verify_stream(self, path: str) -> None:
        log = self.log[path]
        stored = 0
        for producer in self.producers:
            if producer.path != path:
                continue
            end = 0
            for sent in producer.stored:
                first = sent.first_offset
                stored += len(sent.messages)
                assert first >= end, f"{producer.name}: out of order at {first}"
                end = first + len(sent.messages)
                assert tuple(log[first:end]) == sent.messages, f"{producer.name}: lost at {first}"
        assert len(log) == len(set(log)), f"{path}: a message is stored twice"
        assert len(log) == stored, f"{path}: {len(log)} messages, {stored} acknowledged"

    def _verify_kept(self, link: Link, path: str, head: int, expected: list[bytes]) -> None:
        offset = head
        while offset < len(expected):
            text = link.ask("read", path, offset)
            assert isinstance(text, Text), f"{path}: {text}"
            assert text.head == head
            assert text.tail == len(expected), f"{path}: {text.tail} of {len(expected)}"
            end = offset + len(text.messages)
            assert text.messages == tuple(expected[offset:end]), f"{path}: changed at {offset}"
            assert end > offset
            offset = end

    @property
    def acked(self) -> int:
        return sum(len(producer.stored) for producer in self.producers)
