"""A producer's id and settings."""

import os
import secrets
import socket
from typing import Final

from msgspec import Struct

from semel.model.commands import DENSE, SPARSE
from semel.model.limits import (
    BATCH_MESSAGES_MAX,
    CURSOR_BYTES_MAX,
    NUMBER_MAX,
    PRODUCER_ID_BYTES_MAX,
)

BATCH_BYTES_MAX: Final = 4_000_000  # with the encoding, the body is at most 4 MiB
# After this idle time, a producer without a name moves to a higher epoch. The server keeps a
# producer that it has forgotten as a tombstone for at least ten minutes, so a shorter idle time
# ends with ProducerExpired at worst, never with a sequence gap.
RENEWAL_SECONDS: Final = 60.0
EXPIRES_SECONDS: Final = 86_400  # the server forgets a producer without a name after this idle time
_HOST_CHARS_MAX: Final = 100


class ProducerSettings(Struct, frozen=True, kw_only=True):
    """A producer's identity and the limits of its batches. Times are in seconds, sizes in bytes.

    `session` is a random id of this instance. The epoch has one of three sources:

    - The caller passes `epoch`. Then `session` is None.
    - `is_claiming` is True: the epoch is the server's stored epoch plus one. If two instances use
      the same epoch, `session` distinguishes them.
    - Only `session` is set: the server assigns the next epoch to each new `session`.

    If `expires` is set, no other instance uses `id`. The server forgets the producer after this
    many seconds without an append. `initial_seq` is the first sequence that a sparse producer
    assigns itself. `content_type` is the stream's media type, if the caller has passed it.
    """

    id: str
    session: str | None = None
    epoch: int | None = None
    is_claiming: bool = False
    mode: str = DENSE
    max_in_flight: int = 5
    max_batch_bytes: int = 1_000_000
    max_batch_messages: int = BATCH_MESSAGES_MAX
    linger: float = 0.0
    delivery_timeout: float = 120.0
    expires: int | None = None
    initial_seq: int | None = None
    content_type: str | None = None

    @property
    def has_past(self) -> bool:
        """True if an earlier instance can have stored messages with this id."""
        return self.expires is None

    @property
    def is_claimed_first(self) -> bool:
        """True if the stored state must be read before the first append.

        A sparse producer needs the last stored sequence, so that it can skip what is stored.
        """
        return self.epoch is not None or self.is_claiming or (self.mode == SPARSE and self.has_past)

    def __post_init__(self) -> None:
        has_epoch, has_session = self.epoch is not None, self.session is not None
        for is_valid, message in (
            (
                _is_text(self.id, PRODUCER_ID_BYTES_MAX),
                f"{self.id!r} is not a producer id; expected 1 to {PRODUCER_ID_BYTES_MAX} bytes of"
                " printable UTF-8 text without leading or trailing spaces",
            ),
            (
                not (has_epoch and (self.is_claiming or has_session)),
                "pass epoch= or auto_claim=True, not both",
            ),
            (
                has_epoch or self.is_claiming or has_session,
                "a producer needs session=, epoch= or is_claiming=True",
            ),
            (
                self.mode in (DENSE, SPARSE),
                f"mode={self.mode!r} is invalid; expected 'dense' or 'sparse'",
            ),
            (
                self.initial_seq is None or self.mode == SPARSE,
                "pass initial_seq= only with mode='sparse'; a dense producer begins with 0",
            ),
        ):
            if not is_valid:
                raise ValueError(message)
        self._check_numbers()

    def _check_numbers(self) -> None:
        """Raise ValueError or TypeError if a number is invalid."""
        for name, value, low, high in (
            ("epoch", self.epoch, 0, NUMBER_MAX),
            ("initial_seq", self.initial_seq, 0, NUMBER_MAX),
            ("max_batch_messages", self.max_batch_messages, 1, BATCH_MESSAGES_MAX),
            ("max_batch_bytes", self.max_batch_bytes, 1, BATCH_BYTES_MAX),
            ("max_in_flight", self.max_in_flight, 1, NUMBER_MAX),
        ):
            _check_whole(name, value, low, high)
        if not self.linger >= 0:
            raise ValueError(f"linger_ms={self.linger * 1000:g} is invalid; expected 0 or more")
        if not self.delivery_timeout > 0:
            raise ValueError(
                f"delivery_timeout={self.delivery_timeout:g} is invalid; expected a number of"
                " seconds greater than 0"
            )
        # A batch must not be sent again after the server has forgotten the producer.
        if self.expires is not None and self.delivery_timeout > self.expires:
            raise ValueError(
                f"delivery_timeout={self.delivery_timeout:g} is too long for a producer without an"
                f" id; pass an id, or at most {self.expires}"
            )


def _check_whole(name: str, value: object, low: int, high: int) -> None:
    if value is not None and not isinstance(value, int):
        raise TypeError(f"{name} must be a whole number, not {type(value).__name__}")
    if value is not None and not low <= value <= high:
        raise ValueError(f"{name}={value} is invalid; expected a number from {low} to {high}")


def check_cursor(cursor: str) -> None:
    """Raise ValueError if the cursor cannot be sent in a header."""
    if not _is_header_value(cursor, CURSOR_BYTES_MAX):
        raise ValueError(
            f"{cursor!r} is not a cursor; expected 1 to {CURSOR_BYTES_MAX} printable ASCII"
            " characters without leading or trailing spaces"
        )


def _is_header_value(text: str, bytes_max: int) -> bool:
    return text.isascii() and _is_text(text, bytes_max)


def _is_text(text: str, bytes_max: int) -> bool:
    is_printable = text.isprintable() and text == text.strip()
    return is_printable and 0 < len(text.encode()) <= bytes_max


# ---- ids -----------------------------------------------------------------------------------------


class GeneratedId(str):
    """A producer id that no other producer has. The server can forget it when it is not used."""

    __slots__ = ()


def generated_id(prefix: str) -> GeneratedId:
    """Return `prefix` and a random text, joined by a hyphen."""
    return GeneratedId(f"{prefix}-{secrets.token_hex(8)}")


def default_id() -> str:
    """Return the value of the environment variable `PRODUCER_ID`.

    If the variable is not set, return an id that is unique for each call: the host name, the
    process id and a random text, joined by hyphens.
    """
    named = os.environ.get("PRODUCER_ID")
    return named or generated_id(f"{socket.gethostname()[:_HOST_CHARS_MAX]}-{os.getpid()}")
