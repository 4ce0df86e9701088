"""Gathering messages into batches, before any of them is sent."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from semel.client.errors import NotSupported, TooLarge
from semel.client.producer.batches import ProducerBatch, ProducerSettings
from semel.client.values import (
    PREENCODED,
    Extra,
    Headers,
    Key,
    columns_of,
    encode,
    encode_json,
    extra_of,
)
from semel.model.commands import SPARSE
from semel.model.commands import Batch as Payloads
from semel.model.limits import BODY_BYTES_MAX, CURSOR_BYTES_MAX, NUMBER_MAX, SEQUENCE_SPAN_MAX
from semel.model.media import is_json
from semel.wire.bodies import encode_batch
from semel.wire.headers import BATCH
from semel.wire.json_mode import JSON_DEPTH_MAX, split_json

# What one message may cost in a body beside its own bytes: a comma, or a length.
MESSAGE_OVERHEAD_BYTES = 4


class BatchBuilder:
    """Messages in the order they came, cut into batches that are full or due."""

    def __init__(self, settings: ProducerSettings) -> None:
        self._bytes_max = settings.max_batch_bytes
        self._messages_max = settings.max_batch_messages
        self._linger = settings.linger
        self._is_sparse = settings.mode == SPARSE
        self._full: list[ProducerBatch] = []
        self._messages: list[bytes] = []
        self._seqs: list[int] = []
        self._extras: dict[int, Extra] = {}
        self._size = 0
        self._born = 0.0
        self._cursor: str | None = None
        self._is_hurried = False
        self.last_seq = -1  # sparse: of the newest message that was taken or skipped

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits to be sent."""
        return not self._messages and not self._full

    @property
    def count(self) -> int:
        """How many messages wait to be sent."""
        return sum(batch.count for batch in self._full) + len(self._messages)

    @property
    def born(self) -> float:
        """When the oldest message came; only if there is one."""
        return self._full[0].born if self._full else self._born

    def due_at(self) -> float | None:
        """When the next batch may be taken; None if there is none."""
        if self._full:
            return self._full[0].born
        if not self._messages:
            return None
        return self._born if self._is_hurried else self._born + self._linger

    def append(
        self,
        raw: bytes,
        now: float,
        cursor: str | None,
        seq: int | None,
        extra: Extra | None = None,
    ) -> bool:
        """Take a message; True if there is now a batch to look at, or a new time to wait for."""
        if self._is_sparse or seq is not None:
            self._check_seq(seq)
        if cursor is not None:
            check_cursor(cursor)
        own = len(raw) + MESSAGE_OVERHEAD_BYTES
        if extra is not None:
            own += extra.size
        size = self._size + own
        messages = self._messages
        is_fitting = 0 < len(messages) < self._messages_max and size <= self._bytes_max
        if not is_fitting or (seq is not None and seq - self._seqs[0] > SEQUENCE_SPAN_MAX):
            if messages:
                self._seal()
                messages = self._messages
            size = own
            self._born = now
            is_fitting = False
        if extra is not None:
            self._extras[len(messages)] = extra
        elif self._extras:
            self._extras.pop(len(messages), None)  # of one that Ctrl-C kept out
        self._size = size
        if seq is not None:
            del self._seqs[len(messages) :]  # of one that Ctrl-C kept out
            self._seqs.append(seq)
            self.last_seq = seq
        if cursor is not None:
            self._cursor = cursor
        messages.append(raw)  # the last step: nothing is half done if it does not come to this
        return not is_fitting

    def hurry(self) -> None:
        """Let what has been gathered go without waiting for more."""
        self._is_hurried = True

    def take(self) -> ProducerBatch:
        """Hand out the next batch, which is due."""
        if not self._full:
            self._seal()
        return self._full.pop(0)

    def take_all(self) -> list[ProducerBatch]:
        """Hand out everything."""
        if self._messages:
            self._seal()
        batches, self._full = self._full, []
        return batches

    def _seal(self) -> None:
        batch = ProducerBatch(
            self._messages, self._seqs, self._size, self._born, self._cursor, self._extras
        )
        # In one step, without a call in which Ctrl-C could come: a message is in one place only.
        self._full, self._messages, self._seqs = [*self._full, batch], [], []
        self._extras, self._size, self._cursor = {}, 0, None
        self._is_hurried = False

    def _check_seq(self, seq: int | None) -> None:
        if not self._is_sparse:
            raise ValueError("seq= is for mode='sparse'; a dense producer numbers by itself")
        if seq is None:
            raise ValueError("mode='sparse' needs seq= with every message")
        if not self.last_seq < seq <= NUMBER_MAX:
            raise ValueError(f"seq={seq} must be greater than {self.last_seq}, up to {NUMBER_MAX}")


def check_cursor(cursor: str) -> None:
    """Refuse what cannot travel in a header."""
    is_sound = cursor.isascii() and cursor.isprintable() and cursor == cursor.strip()
    if not is_sound or not 0 < len(cursor) <= CURSOR_BYTES_MAX:
        raise ValueError(
            f"a cursor is 1 to {CURSOR_BYTES_MAX} printable ASCII characters without spaces around"
        )


# ---- producer packing ----------------------------------------------------------------------------
# From a value to the bytes of a message, and from messages to the body of an append.


_FRAME_BYTES: Final = 512  # around one message: brackets, or the head of a batch
_DEEP_BYTES_MIN: Final = 2 * (JSON_DEPTH_MAX + 1)


class BodyEncoder:
    """How messages travel to a stream of some media type.

    JSON goes as an array. Other messages keep their bounds in semel's batch format; a server that
    does not know it gets them one after the other, as all Durable Streams servers understand it.
    What messages carry beside their values goes in the batch format, too.
    """

    def __init__(self, content_type: str, *, is_semel: bool) -> None:
        self._content_type = content_type
        self._is_json = is_json(content_type)
        self._is_batching = is_semel and not self._is_json
        self._is_semel = is_semel
        self.to_raw: Callable[[Any], bytes] = self._to_json if self._is_json else self._to_bytes

    def content_type(self, count: int, extras: Mapping[int, Extra]) -> str:
        """Name the media type of a body of so many messages."""
        is_batch = extras or (self._is_batching and count > 1)
        return BATCH if is_batch else self._content_type

    def body(self, messages: Sequence[bytes], extras: Mapping[int, Extra]) -> bytes:
        """Make the body of an append."""
        if extras:
            columns = columns_of(len(messages), extras)
            return encode_batch(
                self._content_type,
                messages,
                keys=columns.keys,
                headers=columns.headers,
                timestamps=columns.timestamps,
            )
        if self._is_json:
            return b"[" + b",".join(messages) + b"]"
        if self._is_batching and len(messages) > 1:
            return encode_batch(self._content_type, messages)
        return b"".join(messages)

    def carried(
        self, raw: bytes, key: Key, headers: Headers, timestamp: datetime | None
    ) -> Extra | None:
        """Take what a message carries; refused if no semel is there to store it."""
        extra = extra_of(key, headers, timestamp)
        if extra is None:
            return None
        if not self._is_semel:
            raise NotSupported("this server does not know keys, headers and timestamps")
        self._check_size(len(raw) + extra.size)
        return extra

    def _to_json(self, value: Any) -> bytes:
        """Encode; what would spoil a whole batch is refused here."""
        raw = encode_json(value)
        if len(raw) >= _DEEP_BYTES_MIN or isinstance(value, PREENCODED):
            self._check_json(raw, is_ready=isinstance(value, PREENCODED))
        return raw

    def _check_json(self, raw: bytes, *, is_ready: bool) -> None:
        if is_ready or raw.count(b"[") + raw.count(b"{") > JSON_DEPTH_MAX:
            found = split_json(b"[" + raw + b"]")
            if not isinstance(found, Payloads) or found.count != 1:
                reason = found if isinstance(found, str) else "not exactly one value"
                raise ValueError(f"the message is no JSON a stream can hold: {reason}")
        self._check_size(len(raw))

    def _to_bytes(self, value: Any) -> bytes:
        raw = encode(value, self._content_type)
        if not raw:
            raise ValueError("an empty message cannot be stored")
        self._check_size(len(raw))
        return raw

    def _check_size(self, size: int) -> None:
        if size > BODY_BYTES_MAX - _FRAME_BYTES and self._is_semel:
            raise TooLarge(f"a message may have {BODY_BYTES_MAX - _FRAME_BYTES} bytes")
