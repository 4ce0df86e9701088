"""A producer's batches: gathering messages, and when to send a batch again."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from semel.client.errors import (
    NO,
    ClientError,
    Indeterminate,
    PartitionsChanged,
    Refused,
    SequenceGap,
    StreamClosed,
    Unauthenticated,
    Unavailable,
)
from semel.client.extras import Extra
from semel.client.flows import backoff_seconds, error_of
from semel.client.producer.outcomes import BatchAck
from semel.client.producer.settings import ProducerSettings, check_cursor
from semel.client.stream_calls import DedupKnowledge, info_of
from semel.model.commands import SPARSE
from semel.model.limits import NUMBER_MAX, SEQUENCE_SPAN_MAX
from semel.wire.schema.topics import TopicPart

# Encodes messages as a body. The second argument maps the index of a message to its extras, and the
# third is the first sequence of the batch. The same batch always has the same body.
Encode = Callable[[Sequence[bytes], Mapping[int, Extra], int], bytes]


# Called with the refusal of a body that was encoded for another number of partitions. It returns
# True if the body can be encoded again.
Regroup = Callable[[PartitionsChanged, bytes], bool]


def never_regroup(error: PartitionsChanged, body: bytes) -> bool:
    """Return False: what is sent to a stream is not grouped."""
    del error, body
    return False


class ProducerBatch:
    """The messages that one append request sends, until they are stored or abandoned.

    `is_indeterminate` is True if it is unknown whether an earlier attempt stored the batch.
    `is_closing` is True if the batch closes the stream. Only such a batch can have no messages.
    `first_unsettled` is the lowest sequence that was unconfirmed when the batch was last sent. If
    the server reports that a lower sequence is missing, no retry can close this gap.
    """

    __slots__ = (
        "ack",
        "body",
        "born",
        "cursor",
        "extras",
        "first_unsettled",
        "has_renewed_token",
        "is_closing",
        "is_in_flight",
        "is_indeterminate",
        "last_seq",
        "messages",
        "parts",
        "seq",
        "seqs",
        "size",
    )

    def __init__(
        self,
        messages: list[bytes],
        seqs: list[int],
        size: int,
        born: float,
        cursor: str | None,
        extras: dict[int, Extra],
    ) -> None:
        self.messages = messages
        self.extras = extras  # keyed by the index of the message
        self.seqs = seqs  # sparse mode only
        self.size = size
        self.born = born
        self.cursor = cursor
        self.seq: int | None = seqs[0] if seqs else None
        self.last_seq: int | None = seqs[-1] if seqs else None
        self.first_unsettled: int | None = None
        self.body = b""
        self.is_in_flight = False
        self.is_indeterminate = False
        self.is_closing = False
        self.has_renewed_token = False  # it was sent again because its token was refused
        self.ack: BatchAck | None = None
        self.parts: tuple[TopicPart, ...] = ()  # where a topic has stored the messages

    @property
    def count(self) -> int:
        return len(self.messages)

    @property
    def units(self) -> int:
        """The number of messages, and one more if the batch closes the stream."""
        return len(self.messages) + self.is_closing

    def may_renew_token(self, error: ClientError) -> bool:
        """Return True if the batch can be sent with a new token, because its token was refused."""
        return isinstance(error, Unauthenticated) and not self.has_renewed_token

    def split_off(self, count: int) -> "ProducerBatch":
        """Remove the first `count` messages of a sparse batch, and return them as a new batch."""
        extras = self.extras
        removed = {index: extra for index, extra in extras.items() if index < count}
        first = ProducerBatch(self.messages[:count], self.seqs[:count], 0, self.born, None, removed)
        self.messages, self.seqs = self.messages[count:], self.seqs[count:]
        self.extras = {index - count: extra for index, extra in extras.items() if index >= count}
        if self.seqs:
            self.seq = self.seqs[0]
        return first

    def encode(self, encode: Encode) -> None:
        """Encode the messages as the body to send."""
        assert self.seq is not None
        self.body = encode(self.messages, self.extras, self.seq)

    @property
    def printed_seq(self) -> str:
        """The sequence, or the range of sequences, as the Producer-Seq header shows it."""
        return f"{self.seq}" if self.seq == self.last_seq else f"{self.seq}-{self.last_seq}"


# ---- gathering messages into batches -------------------------------------------------------------

# The bytes to add for each message in a body, for the comma or the length that the encoding needs.
MESSAGE_OVERHEAD_BYTES = 4


_MIXED: Final = (
    "pass seq= with every message or with none; with initial_seq=, the producer assigns all"
    " sequences"
)


class BatchBuilder:
    """Gathers messages into batches, in order.

    A batch is due when it is full, or when the linger time after its first message has passed.
    """

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
        # Sparse mode: True if the caller passes the sequences; None until the first message.
        self._is_numbered: bool | None = None if settings.initial_seq is None else False
        self._assigned_seq = (settings.initial_seq or 0) - 1  # sparse mode: the last assigned one
        self._is_continuing = settings.initial_seq is None
        self.last_seq = -1  # sparse mode: the sequence of the newest message

    @property
    def has_new_seqs(self) -> bool:
        """True if this producer assigns sequences that no earlier instance has used."""
        return self._is_continuing and self._is_numbered is False

    def continue_after(self, stored_seq: int) -> None:
        """Assign sequences above the last stored one, unless the caller has chosen the first."""
        if self._is_continuing:
            self._assigned_seq = max(self._assigned_seq, stored_seq)

    @property
    def count(self) -> int:
        """The number of gathered messages that `take` has not returned yet."""
        return sum(batch.count for batch in self._full) + len(self._messages)

    @property
    def units(self) -> int:
        """The number of gathered messages, and one more if the stream is to be closed."""
        return sum(batch.units for batch in self._full) + len(self._messages)

    @property
    def born(self) -> float | None:
        """The time at which the oldest message was appended, or None if there is no message."""
        if self._full:
            return self._full[0].born
        return self._born if self._messages else None

    def due_at(self) -> float | None:
        """Return the time at which the next batch is due, or None if there is no message."""
        if self._full:
            return self._full[0].born
        if not self._messages:
            return None
        return self._born if self._is_hurried else self._born + self._linger

    def number(self, seq: int | None) -> int:
        """Return the sequence of a sparse producer's next message.

        Raises ValueError if the caller passes sequences with some messages and not with others.
        """
        if self._is_numbered is None:
            self._is_numbered = seq is not None
        if self._is_numbered is (seq is None):
            raise ValueError(_MIXED)
        if seq is None:
            seq = self._assigned_seq = self._assigned_seq + 1
        return seq

    def append(
        self,
        raw: bytes,
        now: float,
        cursor: str | None,
        seq: int | None,
        extra: Extra | None = None,
    ) -> bool:
        """Add a message. Return True if the message began a new batch.

        After a new batch has begun, the caller must look at `due_at` again. Raises ValueError if
        the sequence or the cursor is invalid.
        """
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
                self._finish_batch()
                messages = self._messages
            size = own
            self._born = now
            is_fitting = False
        if extra is not None:
            self._extras[len(messages)] = extra
        elif self._extras:
            self._extras.pop(len(messages), None)  # from an append that Ctrl-C interrupted
        self._size = size
        if seq is not None:
            del self._seqs[len(messages) :]  # from an append that Ctrl-C interrupted
            self._seqs.append(seq)
            self.last_seq = seq
        if cursor is not None:
            self._cursor = cursor
        # This is the last change, so an append that is interrupted earlier adds no message.
        messages.append(raw)
        return not is_fitting

    def close_stream(self, now: float, cursor: str | None, stored_seq: int) -> None:
        """Make the last batch close the stream. If there is no batch, add one without messages.

        In sparse mode, a batch without messages gets the sequence after the last one, which is not
        lower than `stored_seq`.
        """
        if cursor is not None:
            check_cursor(cursor)
        if self._messages:
            self._cursor = self._cursor if cursor is None else cursor
            self._finish_batch()
        elif not self._full or cursor is not None:
            last_seq = max(self.last_seq, stored_seq, self._assigned_seq)
            seqs = [last_seq + 1] if self._is_sparse else []
            self._full = [*self._full, ProducerBatch([], seqs, 0, now, cursor, {})]
        self._full[-1].is_closing = True

    def hurry(self) -> None:
        """Make the gathered messages due immediately, without the linger time."""
        self._is_hurried = True

    def take(self) -> ProducerBatch:
        """Remove the next batch and return it. There must be at least one message."""
        if not self._full:
            self._finish_batch()
        return self._full.pop(0)

    def take_all(self) -> list[ProducerBatch]:
        """Remove all batches and return them."""
        if self._messages:
            self._finish_batch()
        batches, self._full = self._full, []
        return batches

    def _finish_batch(self) -> None:
        batch = ProducerBatch(
            self._messages, self._seqs, self._size, self._born, self._cursor, self._extras
        )
        # The lists change in one statement without a call. Ctrl-C cannot interrupt it in the
        # middle, which would leave a message in both lists.
        self._full, self._messages, self._seqs = [*self._full, batch], [], []
        self._extras, self._size, self._cursor = {}, 0, None
        self._is_hurried = False

    def _check_seq(self, seq: int | None) -> None:
        if not self._is_sparse:
            raise ValueError(
                "pass seq= only with mode='sparse'; a dense producer assigns the sequences itself"
            )
        assert seq is not None  # `ProducerCore` has assigned one
        if not self.last_seq < seq <= NUMBER_MAX:
            raise ValueError(
                f"seq={seq} is invalid; it must be above {self.last_seq} and at most {NUMBER_MAX}"
            )


# ---- sending a batch again -----------------------------------------------------------------------

Jitter = Callable[[float], float]


def no_jitter(seconds: float) -> float:
    """Return the whole time, for tests without chance."""
    return seconds


WORTH_A_RETRY: Final = frozenset({408, 425, 429, 500, 502, 503, 504, 507})
_UNAUTHENTICATED: Final = 401
_SECONDS_MIN: Final = 0.05
_SECONDS_MAX: Final = 5.0
_UNSAFE: Final = (
    "a request got no response, and {}. The messages were not sent again, because they could be"
    " stored twice. Look for them before you use a producer again"
)


class Backoff:
    """The pause after a failure. It doubles with each consecutive failure, up to five seconds.

    `jitter` shortens each pause by a random amount.
    """

    def __init__(self, jitter: Jitter) -> None:
        self._jitter = jitter
        self._failures = 0
        self.last_error: ClientError | None = None
        self.ends_at = 0.0

    def begin(self, now: float, error: ClientError, at_least: float | None = None) -> None:
        """Begin a pause after a failure. The pause is at least `at_least` seconds long."""
        seconds = backoff_seconds(self._failures, _SECONDS_MIN, _SECONDS_MAX)
        self._failures += 1
        self.last_error = error
        self.ends_at = max(self.ends_at, now + max(self._jitter(seconds), at_least or 0.0))

    def reset(self) -> None:
        """Make the next pause short again. Called when a batch was stored."""
        self._failures = 0

    def timeout_error(self, seconds: float, oldest: ProducerBatch | None) -> ClientError:
        """Return the error for a message that was not delivered within `seconds`.

        `oldest` is the oldest batch that was sent and is not acknowledged, or None.
        """
        cause = self.last_error
        reason = "" if cause is None else f": {cause.message}"
        message = f"a message was not delivered within {seconds:g} seconds{reason}"
        if oldest is not None and (oldest.is_indeterminate or oldest.is_in_flight):
            return Indeterminate(message)
        error = Unavailable(message)
        if isinstance(cause, Refused):
            error.advice = cause.advice
        return error


class DedupCheck:
    """Finds out whether the stream recognises duplicates, before a batch is sent again.

    A semel stream with `Stream-Dedup: off` ignores the sequences of producers, so a batch whose
    response was lost would be stored twice. A HEAD request shows the setting. Other servers have no
    such setting: without `is_semel` the check is never due. `known` is what was known about the
    stream before the batches were sent. With `renews_token`, the request is sent once more if its
    token is refused.
    """

    def __init__(
        self,
        backoff: Backoff,
        known: DedupKnowledge,
        *,
        is_semel: bool,
        stream: str | None,
        renews_token: bool,
    ) -> None:
        self.stored_until = known.end  # where the earlier batches of this producer end
        self._known = known
        self._backoff, self._stream = backoff, stream
        self._is_semel = is_semel
        self._renews_token = renews_token
        self._has_renewed_token = False
        self.is_due = False
        self.is_in_flight = False

    def note(self, ack: BatchAck) -> None:
        """Record where an acknowledged batch ends. A batch in a topic has no such offset."""
        if not ack.parts:
            self.stored_until = ack.next_offset or self.stored_until

    def require(self) -> None:
        """Make the check due, because it is unknown whether a batch was stored."""
        self.is_due = self._is_semel

    def start(self) -> bool:
        """Return True if the HEAD request must be sent now."""
        self.is_in_flight = self.is_due
        return self.is_due

    def lost(self) -> bool:
        """Record that the connection was lost. Return True if a check was in flight."""
        was_in_flight, self.is_in_flight = self.is_in_flight, False
        return was_in_flight

    def on_response(
        self, status: int, headers: Mapping[str, str], body: bytes, now: float
    ) -> ClientError | None:
        """Return an error if no batch must be sent again.

        After a temporary failure, the check is made again. After any other refusal, such as 404,
        it is not: the server gives the same response to the batch. But the batch could have a newer
        token, so if a renewed token is refused too, the producer ends.
        """
        self.is_in_flight = False
        if status == _UNAUTHENTICATED and self._renews_token:
            is_last, self._has_renewed_token = self._has_renewed_token, True
            return error_of(status, headers, body, self._stream) if is_last else None
        self._has_renewed_token = False
        if status in WORTH_A_RETRY:
            error = error_of(status, headers, body, self._stream)
            self._backoff.begin(now, error, error.retry_after)
            return None
        self.is_due = False
        known = replace(self._known, end=self.stored_until)
        doubt = known.doubt(info_of(headers)) if status < 400 else None
        return None if doubt is None else Indeterminate(_UNSAFE.format(doubt))


def is_own_gap(error: ClientError, batch: ProducerBatch) -> bool:
    """Return True if `error` is a sequence gap that a retry of earlier batches will close.

    The server reports a gap if it refused an earlier batch or has not received it yet. If the
    missing sequence was already confirmed when `batch` was sent, no retry can close the gap.
    """
    if not isinstance(error, SequenceGap):
        return False
    first = batch.first_unsettled
    assert first is not None
    assert batch.seq is not None
    return first < batch.seq and (error.expected is None or error.expected >= first)


def is_end_of(error: ClientError, refused: ProducerBatch) -> bool:
    """Return True if no later batch can be stored, because the stream is closed.

    After another refusal, the sequence of `refused` is missing. But a later batch is stored all the
    same if duplicate detection is switched off between the two.
    """
    is_definite = isinstance(error, StreamClosed) and error.applied == NO
    return is_definite and not refused.is_indeterminate
