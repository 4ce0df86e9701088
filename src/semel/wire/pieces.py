"""Messages of one append: as the reader hands them out, and as the frames format brings them."""

from collections.abc import Iterator
from typing import Protocol

from msgspec import Struct

from semel.model.messages import Header, headers_of, keys_of, split_messages, timestamps_of


class ProducerLike(Protocol):
    """Who brought an append, and under which numbers."""

    @property
    def id(self) -> str:
        """The producer's id."""
        ...

    @property
    def epoch(self) -> int:
        """Its epoch."""
        ...

    @property
    def first_seq(self) -> int:
        """The first sequence of the append."""
        ...

    @property
    def last_seq(self) -> int:
        """The last one; the same for a dense producer."""
        ...


class SliceLike(Protocol):
    """Messages of one append, as the reader hands them out."""

    @property
    def offset(self) -> int:
        """The first message's offset."""
        ...

    @property
    def count(self) -> int:
        """How many messages there are."""
        ...

    @property
    def payload(self) -> bytes:
        """The messages."""
        ...

    @property
    def lengths(self) -> bytes:
        """The length of each as u32, if there are several."""
        ...

    @property
    def is_joined(self) -> bool:
        """Whether commas stand between them."""
        ...

    @property
    def time_ms(self) -> int:
        """When they were written."""
        ...

    @property
    def extras(self) -> bytes:
        """Their keys, timestamps and headers, if they have any."""
        ...

    @property
    def producer(self) -> ProducerLike | None:
        """Who brought them."""
        ...


class SliceProducer(Struct, frozen=True, gc=False):
    """Who brought an append; the sequences are those of the whole append."""

    id: str
    epoch: int
    first_seq: int
    last_seq: int


class Piece(Struct, frozen=True, gc=False):
    """Messages of one append, as read from the frames format."""

    offset: int
    count: int
    payload: bytes
    lengths: bytes
    is_joined: bool
    time_ms: int
    extras: bytes = b""
    producer: SliceProducer | None = None

    def messages(self) -> Iterator[bytes]:
        """Split the payload into its messages."""
        return split_messages(self.payload, self.count, self.lengths, is_joined=self.is_joined)

    def keys(self) -> list[bytes | None]:
        """List the key of each message; None where there is none."""
        return keys_of(self.extras, self.count) if self.extras else [None] * self.count

    def headers(self) -> list[list[Header]]:
        """List the headers of each message."""
        if not self.extras:
            return [[] for _ in range(self.count)]
        return headers_of(self.extras, self.count)

    def timestamps(self) -> list[int]:
        """List the time of each message in ms: its own if it has one, else when it was written."""
        if not self.extras:
            return [self.time_ms] * self.count
        own = timestamps_of(self.extras, self.count)
        return [self.time_ms if time is None else time for time in own]
