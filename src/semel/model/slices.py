"""A slice contains messages of one append, as read from the journal or from a response."""

from collections.abc import Iterator

from msgspec import Struct

from semel.model.messages import Header, headers_of, keys_of, split_messages, timestamps_of


class SliceProducer(Struct, frozen=True, gc=False):
    """The producer of an append. `first_seq` and `last_seq` are for the append, not for a slice."""

    id: str
    epoch: int
    first_seq: int
    last_seq: int


class Slice(Struct, frozen=True, gc=False):
    """All messages of one append, or only the messages in a range of offsets.

    If `is_joined` is True, `payload` has commas between the messages. `lengths` has each message's
    length as a u32, but is empty for a single message. `extras` has keys, headers and timestamps.
    """

    offset: int
    count: int
    payload: bytes
    lengths: bytes
    is_joined: bool
    time_ms: int
    extras: bytes = b""
    producer: SliceProducer | None = None

    @property
    def next_offset(self) -> int:
        """The offset after the last message of the slice."""
        return self.offset + self.count

    def messages(self) -> Iterator[bytes]:
        """Return an iterator over the messages in the payload."""
        return split_messages(self.payload, self.count, self.lengths, is_joined=self.is_joined)

    def keys(self) -> list[bytes | None]:
        """Return the keys of the messages, with None for each message that has no key."""
        return keys_of(self.extras, self.count) if self.extras else [None] * self.count

    def headers(self) -> list[list[Header]]:
        """Return the headers of each message."""
        if not self.extras:
            return [[] for _ in range(self.count)]
        return headers_of(self.extras, self.count)

    def timestamps(self) -> list[int]:
        """Return the timestamp of each message or, if it has none, the time of its append."""
        if not self.extras:
            return [self.time_ms] * self.count
        own = timestamps_of(self.extras, self.count)
        return [self.time_ms if time is None else time for time in own]
