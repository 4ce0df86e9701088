"""When a batch may be sent again: the pause after a failure, the check for dedup, and gaps."""

from collections.abc import Callable, Mapping
from typing import Final

from semel.client.errors import (
    NO,
    ClientError,
    Indeterminate,
    PayloadMismatch,
    Refused,
    SequenceGap,
    Unavailable,
)
from semel.client.flows import backoff_seconds, error_of
from semel.client.producer.batches import ProducerBatch

Jitter = Callable[[float], float]

WORTH_A_RETRY: Final = frozenset({408, 425, 429, 500, 502, 503, 504, 507})
_SECONDS_MIN: Final = 0.05
_SECONDS_MAX: Final = 5.0
_UNGUARDED: Final = (
    "a request got no response, and the stream does not recognise duplicates (Stream-Dedup: off)."
    " The messages were not sent again, because they could be stored twice. Look for them in the"
    " stream, and switch dedup on before you use a producer"
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
        reason = "" if self.last_error is None else f": {self.last_error}"
        message = f"a message was not delivered within {seconds:g} seconds{reason}"
        if oldest is not None and (oldest.is_indeterminate or oldest.is_in_flight):
            return Indeterminate(message)
        return Unavailable(message)


class DedupCheck:
    """Finds out whether the stream recognises duplicates, before a batch is sent again.

    A semel stream with `Stream-Dedup: off` ignores the sequences of producers, so a batch whose
    response was lost would be stored twice. A HEAD request shows the setting. Other servers have no
    such setting: for them `is_semel` is False, and the check is never due.
    """

    def __init__(self, backoff: Backoff, *, is_semel: bool) -> None:
        self._backoff = backoff
        self._is_semel = is_semel
        self.is_due = False
        self.is_in_flight = False

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
        it is not: the server gives the same response to the batch.
        """
        self.is_in_flight = False
        if status in WORTH_A_RETRY:
            error = error_of(status, headers, body)
            self._backoff.begin(now, error, error.retry_after)
            return None
        self.is_due = False
        settings = (headers.get(name, "").lower() for name in _SETTINGS)
        return Indeterminate(_UNGUARDED) if "off" in settings else None


_SETTINGS: Final = ("stream-dedup", "stream-dedup-pending")


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
    """Return True if no later batch can be stored, because the sequence of `refused` is missing."""
    is_definite = isinstance(error, Refused) and error.applied == NO
    return is_definite and not refused.is_indeterminate and not isinstance(error, PayloadMismatch)
