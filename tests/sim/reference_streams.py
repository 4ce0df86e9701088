"""The streams of the reference model: what one holds, and how a batch becomes messages."""

import struct
from dataclasses import dataclass, field
from typing import NamedTuple

from semel.model.commands import Batch
from tests.sim.reference_producers import Producer


class Message(NamedTuple):
    offset: int
    body: bytes
    append_end: int  # the offset after the last message of the append that brought this one


class KeyUse(NamedTuple):
    digest: int
    first_offset: int
    next_offset: int
    time_ms: int


class Origin(NamedTuple):
    """Where a fork began: `offset` and `sub_offset` as the creation used them."""

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
    messages: list[Message] = field(default_factory=list)  # exactly those from head to tail
    producers: dict[str, Producer] = field(default_factory=dict)
    keys: dict[str, KeyUse] = field(default_factory=dict)  # in order of use

    @property
    def tail(self) -> int:
        return self.head + len(self.messages)

    @property
    def is_json(self) -> bool:
        return media_type(self.content_type) == "application/json"

    def store(self, batch: Batch | None) -> None:
        bodies = [] if batch is None else split(batch, self.is_json)
        end = self.tail + len(bodies)
        self.messages += [Message(i, body, end) for i, body in enumerate(bodies, self.tail)]


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
