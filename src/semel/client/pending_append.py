"""One call of append that waits to be sent, and the appends that share a request."""

from collections.abc import Sequence
from enum import Enum
from typing import Any, Final

from msgspec import Struct

from semel.client.errors import TooLarge
from semel.client.extras import Extras
from semel.client.grouping import Grouped, Grouper
from semel.client.requests import AppendHeaders, Fields, ProducerHeaders
from semel.client.stream_calls import DedupKnowledge, encode_body
from semel.client.topic_values import TopicReceipt, split_topic_receipt
from semel.client.values import (
    PREENCODED,
    Receipt,
    encode,
)
from semel.model.commands import Batch as Payloads
from semel.model.limits import BODY_BYTES_MAX
from semel.model.messages import encode_extras, is_json
from semel.model.offsets import parse_offset, print_offset
from semel.wire.headers import TOPIC_BATCH
from semel.wire.json_mode import split_json

PLAIN: Final = AppendHeaders()
_KEY_CHARS_MAX: Final = 1_000  # of a key that is sent as a header
_LENGTH_BYTES: Final = 4  # of one message in the batch format; a comma in JSON is shorter


class AppendState(Enum):
    """What has happened to an append."""

    QUEUED = "not sent yet"
    SENT = "in a request that has no result yet"
    DONE = "its result is known"
    LEFT = "its caller no longer waits"


class PendingAppend(Struct, eq=False):
    """One call of append, until its result is known.

    `deadline` is the time at which the caller stops waiting. `waker` belongs to the driver, and so
    does `thread`: the identifier of the thread that calls. `partition` is the partition of a topic
    that the caller has chosen, or None.
    """

    values: Sequence[Any]
    conditions: AppendHeaders
    extras: Extras
    deadline: float
    state: AppendState = AppendState.QUEUED
    receipt: Receipt | None = None
    error: BaseException | None = None
    waker: Any = None
    thread: int = 0
    is_alone: bool = False
    has_been_retyped: bool = False
    content_type: str | None = None  # None: not encoded
    messages: Sequence[bytes] = ()
    size: int = 0
    held_bytes: int = 0  # the part of HeldBytes.count that is counted for this append
    is_checked: bool = False
    partition: int | None = None

    def __post_init__(self) -> None:
        if self.conditions == PLAIN:
            self.conditions = PLAIN
        else:
            self.is_alone = True

    @property
    def count(self) -> int:
        """The number of messages of the call."""
        return len(self.values)

    def encode(self, content_type: str) -> None:
        """Encode the messages for a stream with this media type.

        Raises TypeError or ValueError if a value cannot be stored there, and TooLarge if the
        messages do not fit into one request.
        """
        messages = [encode(value, content_type) for value in self.values]
        size = sum(map(len, messages)) + _LENGTH_BYTES * len(messages)
        if self.extras:
            extras = self.extras
            size += len(
                encode_extras(
                    self.count,
                    keys=extras.keys,
                    headers=extras.headers,
                    timestamps=extras.timestamps,
                )
            )
        if size - _LENGTH_BYTES * len(messages) > BODY_BYTES_MAX:
            raise TooLarge(
                f"the append has {size} bytes; the maximum is {BODY_BYTES_MAX}", status=413
            )
        self.messages, self.size, self.content_type = messages, size, content_type

    def drop_encoded(self) -> None:
        """Drop the encoded messages. `encode` makes them again."""
        self.messages, self.size, self.content_type = (), 0, None

    def check(self) -> None:
        """Find out whether this append can share a request. Call it after `encode`.

        Bytes for a JSON stream are sent as they are. Only if they are exactly one JSON value, they
        cannot change the meaning of their neighbours in the same array. An empty message of
        another stream is refused by the server, and must not make it refuse the others.
        """
        if self.is_checked or self.is_alone or self.content_type is None:
            return
        self.is_checked = True
        if is_json(self.content_type):
            self.is_alone = not all(
                _is_one_value(raw)
                for value, raw in zip(self.values, self.messages, strict=True)
                if isinstance(value, PREENCODED)
            )
        else:
            self.is_alone = not all(self.messages)

    @property
    def is_done(self) -> bool:
        return self.state is AppendState.DONE

    @property
    def is_pending(self) -> bool:
        """True if its result is not known and its caller waits."""
        return self.state is AppendState.QUEUED or self.state is AppendState.SENT

    def result(self) -> Receipt:
        """Return the receipt, or raise the error. Call this when the append is done."""
        assert self.is_done
        if self.error is not None:
            raise self.error
        assert self.receipt is not None
        return self.receipt


def _is_one_value(raw: bytes) -> bool:
    payloads = split_json(b"[" + raw + b"]")
    return isinstance(payloads, Payloads) and payloads.count == 1


class AppendBatch(Struct, eq=False):
    """The appends of one request."""

    appends: list[PendingAppend]
    content_type: str | None
    encoded: tuple[str, bytes] | None = None  # a repeat has the same bytes
    tag: ProducerHeaders | None = None  # a repeat has the same sequence
    is_posted: bool = False  # the server may have received it
    is_repeatable: bool = False  # the server recognises a repeat
    was_lost: bool = False
    known: DedupKnowledge = DedupKnowledge()  # before it was first sent
    grouped: Grouped | None = None  # how it was encoded for a topic
    key: str | None = None  # of its only message, if the server selects the partition

    @property
    def fields(self) -> Fields:
        """The headers of the request that say for which partitions it is encoded."""
        if self.grouped is not None:
            return self.grouped.fields
        if self.key is not None:
            return (("Message-Key", self.key),)
        partition = self.appends[0].partition
        return () if partition is None else (("Stream-Partition", str(partition)),)

    @property
    def deadline(self) -> float:
        """The time at which its last caller stops waiting."""
        if len(self.appends) == 1:
            return self.appends[0].deadline
        return max([append.deadline for append in self.appends])

    @property
    def waiting(self) -> list[PendingAppend]:
        return [append for append in self.appends if append.state is AppendState.SENT]

    def regroup(self, grouper: Grouper | None) -> None:
        """Let `body` group the messages again if the topic has changed.

        Call this only if the request is certainly not stored.
        """
        if self.grouped is not None and not (grouper and grouper.groups_as(self.grouped)):
            self.grouped = self.encoded = None

    def encode(self, content_type: str) -> None:
        """Encode the only append of this batch. Raises what `PendingAppend.encode` raises."""
        (append,) = self.appends
        append.encode(content_type)
        self.content_type = content_type

    def body(self, grouper: Grouper | None = None) -> tuple[str, bytes]:
        """Return the media type and the body of the request. Only `regroup` changes them.

        `grouper` groups the messages by the partitions of a topic. It is None for a stream. The
        server selects the partition of a single message with a key, because that is cheaper. With
        an idempotency key the server groups, so that it recognises a repeat after a growth.
        """
        if self.encoded is None:
            assert self.content_type is not None
            first = self.appends[0]
            messages, extras = first.messages, first.extras
            if len(self.appends) > 1:
                messages = [raw for append in self.appends for raw in append.messages]
                extras = _join_extras(self.appends)
            self.key = None if grouper is None else self._only_key()
            if self.key is not None:
                self.encoded = encode_body(messages, self.content_type, Extras())
            elif grouper is None or first.conditions.idempotency_key is not None:
                self.encoded = encode_body(messages, self.content_type, extras)
            else:
                chosen = self._chosen()
                self.grouped = grouper.group(self.content_type, messages, extras, chosen)
                self.encoded = TOPIC_BATCH, self.grouped.body
        return self.encoded

    def _only_key(self) -> str | None:
        """Return the key of the only message, if a header can have it and all else is default."""
        append, extras = self.appends[0], self.appends[0].extras
        append.check()  # bytes that are not one JSON value must not be put into an array
        is_single = len(self.appends) == 1 and append.count == 1 and append.partition is None
        is_single = is_single and not (append.is_checked and append.is_alone)
        if not is_single or extras.keys is None or extras.headers or extras.timestamps:
            return None
        raw = extras.keys[0]
        key = "" if raw is None or not raw.isascii() else raw.decode()
        is_header = key.isprintable() and key == key.strip() and len(key) <= _KEY_CHARS_MAX
        return key if key and is_header else None

    def _chosen(self) -> list[int | None] | None:
        """Return the partition that the caller has chosen for each message, or None."""
        if all(append.partition is None for append in self.appends):
            return None
        return [append.partition for append in self.appends for _ in range(append.count)]

    def receipts(self, receipt: Receipt) -> list[Receipt]:
        """Return the receipt of each append. `receipt` is that of the whole request."""
        if len(self.appends) == 1:
            return [receipt]
        counts = [append.count for append in self.appends]
        if isinstance(receipt, TopicReceipt):
            assert self.grouped is not None
            return list(split_topic_receipt(receipt, counts, self.grouped.places))
        return _split_receipt(receipt, counts)


def _split_receipt(receipt: Receipt, counts: Sequence[int]) -> list[Receipt]:
    """Return the receipt of each append. `counts` has the number of messages of each of them."""
    offset = receipt.next_offset
    end = None if offset is None else parse_offset(offset)
    receipts = [receipt]
    for count in counts[:0:-1]:
        end = None if end is None else end - count
        offset = None if end is None else print_offset(end)
        receipts.append(Receipt(offset, receipt.duplicate, receipt.closed))
    return receipts[::-1]


def _join_extras(appends: Sequence[PendingAppend]) -> Extras:
    """Return the extras of all messages of these appends."""
    if not any(append.extras for append in appends):
        return Extras()
    return Extras(
        [key for each in appends for key in each.extras.keys or [None] * each.count],
        [pairs for each in appends for pairs in each.extras.headers or [()] * each.count],
        [time for each in appends for time in each.extras.timestamps or [None] * each.count],
    )
