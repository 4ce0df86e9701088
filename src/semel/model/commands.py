"""What a caller asks of the engine.

A command carries everything its decision needs: the time, random identities and facts read from
the journal. That is what makes the decision a pure function.
"""

from typing import Final

from msgspec import Struct

from semel.model.txn_outcome import TxnOutcome

DENSE: Final = "dense"
SPARSE: Final = "sparse"


class Batch(Struct, frozen=True, gc=False):
    """The messages of one append, all or nothing.

    One message: `payload` is the message. Several: the messages byte for byte, joined by commas,
    and `lengths` holds each one's length as a little-endian u32. `extras`, if not empty, holds
    their keys, timestamps and headers: see `extras.py`.
    """

    payload: bytes
    count: int = 1
    lengths: bytes = b""
    extras: bytes = b""


class ProducerTag(Struct, frozen=True, gc=False):
    """The identity an append claims.

    A dense producer numbers its appends 0, 1, 2, ...: `first_seq == last_seq`. A sparse one numbers
    them as it likes, upwards, and may cover a range. With neither epoch nor session the claim is
    bare, and the payload's digest has to tell a retry from a restart.
    """

    id: str
    first_seq: int
    last_seq: int
    epoch: int | None = None
    session: str | None = None
    mode: str = DENSE
    cursor: bytes | None = None
    is_strict: bool = False


class TxnTag(Struct, frozen=True, gc=False):
    """The transaction an append claims to be part of; `seq` numbers the chunks of a staged one.

    `is_strict`: a chunk that differs from the one stored under its number is refused. The last two
    are facts: the outcome of it, and the epoch of the id's newest outcome.
    """

    id: str
    epoch: int
    seq: int | None = None
    is_strict: bool = False
    remembered: TxnOutcome | None = None
    last_epoch: int = 0


class Append(Struct, frozen=True, gc=False):
    """Append a batch, close the stream, or both.

    `body_error` is what was wrong with the body; it speaks at its place in the order of checks.
    """

    path: str
    now_ms: int
    content_type: str | None = None
    batch: Batch | None = None
    body_error: str | None = None
    close: bool = False
    producer: ProducerTag | None = None
    stream_seq: str | None = None
    if_match: int | None = None
    key: str | None = None
    transaction: TxnTag | None = None


class StoredAppend(Struct, frozen=True, gc=False):
    """A fact the broker read from the journal for a fork inside an append.

    `stream` and `offset` say what was read: the stored append that holds `offset`. `units` is how
    many units of it lie at or after `offset`: messages of a JSON stream, bytes of any other, for
    which `payload` is the message itself.
    """

    stream: int
    offset: int
    units: int
    payload: bytes = b""


class ForkRequest(Struct, frozen=True, gc=False):
    """Start a stream as a copy of another up to `offset` (default: its tail) plus `sub_offset`."""

    source: str
    offset: int | None = None
    sub_offset: int = 0
    stored: StoredAppend | None = None


class Create(Struct, frozen=True, gc=False):
    """Create a stream, or make sure it is there with this configuration.

    `dedup` is what was asked for, if anything was; `dedup_default` what the server does otherwise.
    """

    path: str
    now_ms: int
    incarnation: str
    content_type: str | None = None
    ttl_ms: int | None = None
    expires_at_ms: int | None = None
    closed: bool = False
    batch: Batch | None = None
    body_error: str | None = None
    fork: ForkRequest | None = None
    dedup: bool | None = None
    dedup_default: bool = True


class Delete(Struct, frozen=True, gc=False):
    """Delete a stream; while forks live on it, its data stays for them."""

    path: str
    now_ms: int


class Trim(Struct, frozen=True, gc=False):
    """Give up the messages before an offset."""

    path: str
    now_ms: int
    before: int


class SwitchDedup(Struct, frozen=True, gc=False):
    """Recognise duplicates on a stream from now on, or no longer."""

    path: str
    now_ms: int
    dedup: bool


class Expire(Struct, frozen=True, gc=False):
    """End a stream whose time is over; `touched_ms` is its latest use the broker knows of."""

    path: str
    now_ms: int
    touched_ms: int


class Register(Struct, frozen=True, gc=False):
    """Give out a producer identity, or raise the epoch of a known one.

    An id that was not registered before begins with `first_epoch`.
    """

    now_ms: int
    producer_id: str | None = None
    first_epoch: int = 0


class ClaimProducer(Struct, frozen=True, gc=False):
    """Take a producer over: fence whoever wrote before, and only then tell what is stored.

    `session` is fresh for each instance. The same one again is a retry of the same claim.
    """

    path: str
    now_ms: int
    producer_id: str
    session: str
    mode: str = DENSE


class ForgetProducer(Struct, frozen=True, gc=False):
    """Drop what a stream remembers of a producer (an operator's reset)."""

    path: str
    now_ms: int
    producer_id: str


class ExpireProducer(Struct, frozen=True, gc=False):
    """Replace a producer idle for `idle_ms` by a tombstone that keeps its epoch fenced."""

    path: str
    now_ms: int
    producer_id: str
    idle_ms: int


Command = (
    Append
    | Create
    | Delete
    | Trim
    | SwitchDedup
    | Expire
    | Register
    | ClaimProducer
    | ForgetProducer
    | ExpireProducer
)
