"""The streams of the reference model, and how a batch is split into messages."""

import struct
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from semel.model.commands import Batch
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

    @property
    def tail(self) -> int:
        return self.head + len(self.messages)

    @property
    def is_json(self) -> bool:
        return media_type(self.content_type) == "application/json"

    def store(self, batch: Batch | None, txn: int = 0) -> None:
        if batch is None:
            return
        base, bodies, extras = self.tail, split(batch, self.is_json), split_extras(batch)
        end = base + len(bodies)
        for body, extra in zip(bodies, extras, strict=True):
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


def split(batch: Batch, is_json: bool) -> list[bytes]:
    if batch.count == 1:
        return [batch.payload]
    assert is_json, "outside JSON an append is one message"
    bodies, start = [], 0
    for length in struct.unpack(f"<{batch.count}I", batch.lengths):
        bodies.append(batch.payload[start : start + length])
        start += length + 1  # the comma
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
