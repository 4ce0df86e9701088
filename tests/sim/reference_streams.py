"""The streams of the reference model, and how a batch is split into messages."""

import struct
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from semel.model.commands import Batch
from semel.model.outcomes_topics import Parts
from tests.sim.reference_producers import Producer

BAD_EXTRAS = bytes(4)  # no columns: the only malformed extras in simulations


class Extra(NamedTuple):
    """The key, timestamp and headers of a message."""

    key: bytes | None = None
    timestamp_ms: int | None = None
    headers: tuple[tuple[str, bytes], ...] = ()


class Label(NamedTuple):
    """Everything about a message except its bytes."""

    offset: int
    key: bytes | None
    timestamp_ms: int | None
    headers: tuple[tuple[str, bytes], ...]
    producer: tuple[str, int, int, int] | None  # id, epoch, first and last sequence


class Message(NamedTuple):
    offset: int
    body: bytes
    append_end: int  # the next offset of the append that wrote this message
    extra: Extra = Extra()
    producer: tuple[str, int, int, int] | None = None
    txn: int = 0  # the number of the inline transaction that wrote it
    is_control: bool = False


class KeyUse(NamedTuple):
    digest: int
    first_offset: int
    next_offset: int
    time_ms: int
    hour: int


class Origin(NamedTuple):
    """Where a fork begins in its source, as given when it was created."""

    path: str
    number: int
    offset: int
    sub_offset: int


@dataclass(frozen=True)
class Rows:
    """The messages of a part of an append to a topic, in place of a `Batch`."""

    rows: tuple[tuple[bytes, Extra], ...]

    @property
    def count(self) -> int:
        """Return the number of messages."""
        return len(self.rows)


@dataclass
class Topic:
    """What only a topic has; see `reference_topics.py`."""

    partitioner: str
    partitions: tuple[int, ...]  # the numbers of their streams, also of those that are gone
    is_keyed: bool = False  # a message with a key was accepted
    fences: tuple[tuple[int, ...], ...] = ()  # the tails of all partitions before each growth
    parts: dict[int, Parts] = field(default_factory=dict)  # by append; never removed


@dataclass
class Stream:
    number: int
    incarnation: str
    content_type: str
    ttl_ms: int | None
    expires_at_ms: int | None
    written_ms: int
    inherits_expiry: bool = False
    fork: Origin | None = None
    head: int = 0
    is_closed: bool = False
    is_deleted: bool = False
    stream_seq: str | None = None
    dedup_from: int | None = 0  # None: off
    is_own: bool = False  # the switch is the stream's own setting
    messages: list[Message] = field(default_factory=list)  # exactly those from head to tail
    producers: dict[str, Producer] = field(default_factory=dict)
    keys: dict[str, KeyUse] = field(default_factory=dict)  # in order of use
    topic: Topic | None = None  # of a topic, whose `messages` are one for each append
    topic_number: int = 0  # of a partition: that of its topic

    @property
    def tail(self) -> int:
        return self.head + len(self.messages)

    @property
    def is_json(self) -> bool:
        return media_type(self.content_type) == "application/json"

    def store(self, batch: Batch | Rows | None, txn: int = 0) -> None:
        if batch is None:
            return
        rows = batch.rows if isinstance(batch, Rows) else rows_of(batch, self.is_json)
        end = self.tail + len(rows)
        for body, extra in rows:
            self.messages.append(Message(self.tail, body, end, extra, txn=txn))

    def store_control(self, txn: int) -> None:
        """Append a control record."""
        end = self.tail + 1
        self.messages.append(Message(self.tail, b"", end, txn=txn, is_control=True))

    def data_of(self, txn: int) -> list[Message]:
        """Return the messages of a transaction that are not trimmed."""
        return [m for m in self.messages if m.txn == txn and not m.is_control]

    def sign(self, first: int, producer: tuple[str, int, int, int]) -> None:
        """Set the producer of the messages from `first` on."""
        at = first - self.head
        self.messages[at:] = [message._replace(producer=producer) for message in self.messages[at:]]


def media_type(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()


def rows_of(batch: Batch, is_json: bool) -> tuple[tuple[bytes, Extra], ...]:
    """Return the messages of a batch, each with its extras."""
    return tuple(zip(split(batch, is_json), split_extras(batch), strict=True))


def split(batch: Batch, is_json: bool) -> list[bytes]:
    if batch.count == 1:
        return [batch.payload]
    bodies, start = [], 0
    for length in struct.unpack(f"<{batch.count}I", batch.lengths):
        bodies.append(batch.payload[start : start + length])
        start += length + is_json  # the comma
    return bodies


def split_extras(batch: Batch) -> list[Extra]:
    """Decode the columns as `docs/reference/http.md` specifies, without the engine's code."""
    count, data = batch.count, batch.extras
    found = [Extra()] * count
    if not data:
        return found
    columns, at = int.from_bytes(data[:4], "little"), 4
    if columns & 2:
        times = struct.unpack_from(f"<{count}q", data, at)
        at += 8 * count
        known = [None if time == -(2**63) else time for time in times]
        found = [extra._replace(timestamp_ms=t) for extra, t in zip(found, known, strict=True)]
    if columns & 1:
        lengths = struct.unpack_from(f"<{count}I", data, at)
        at += 4 * count
        for i, length in enumerate(lengths):
            if length != 2**32 - 1:
                found[i] = found[i]._replace(key=data[at : at + length])
                at += length
    if columns & 4:
        rows = msgspec.msgpack.decode(data[at + 4 :])
        for i, row in enumerate(rows):
            found[i] = found[i]._replace(headers=tuple((name, value) for name, value in row or ()))
    return found
