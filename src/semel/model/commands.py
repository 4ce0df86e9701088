"""The commands of streams and producers.

A command carries everything its decision needs: the time, random ids, and lookups from the journal.
So the decision is a pure function.
"""

from typing import Final

from msgspec import Struct

from semel.model.txn_outcome import TxnOutcome

DENSE: Final = "dense"
SPARSE: Final = "sparse"


class Batch(Struct, frozen=True, gc=False):
    """The messages of one append, stored together or not at all.

    One message: `payload` is the message. Several: `payload` is the messages one after another, of
    a JSON stream with commas between them, and `lengths` holds a little-endian u32 for each.
    `extras`, if not empty, holds their keys, timestamps and headers: see `messages.py`.
    """

    payload: bytes
    count: int = 1
    lengths: bytes = b""
    extras: bytes = b""


class ProducerTag(Struct, frozen=True, gc=False):
    """The identity that an append carries.

    A dense producer numbers its appends 0, 1, 2, ...: `first_seq == last_seq`. A sparse one chooses
    growing numbers, and one append may cover a range. With neither epoch nor session the append is
    bare, and the digest of its payload has to distinguish a retry from a restart.
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
    """The transaction that an append names; `seq` numbers the chunks of a staged one.

    `is_strict`: a chunk that differs from the one stored under its number is refused. The last two
    are lookups: the outcome of the transaction, and the epoch of the newest outcome of its id.
    """

    id: str
    epoch: int
    seq: int | None = None
    is_strict: bool = False
    remembered: TxnOutcome | None = None
    last_epoch: int = 0


class Append(Struct, frozen=True, gc=False):
    """Append a batch, close the stream, or both.

    `body_error` says what is wrong with the body; it is reported in the order of checks.
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
    """A lookup for a fork inside an append: the stored append at an offset of a stream.

    `units` is how many units of it are at or after `offset`: messages of a JSON stream, bytes of
    any other, for which `payload` is the message itself.
    """

    stream: int
    offset: int
    units: int
    payload: bytes = b""


class ForkRequest(Struct, frozen=True, gc=False):
    """Fork another stream at `offset` (default: its stable offset) plus `sub_offset`."""

    source: str
    offset: int | None = None
    sub_offset: int = 0
    stored: StoredAppend | None = None


class Create(Struct, frozen=True, gc=False):
    """Create a stream, or check that it exists with this configuration.

    `dedup` is that of the request, if it has one; `dedup_default` is that of the server.
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
    """Delete a stream; while forks need its messages, it is soft-deleted."""

    path: str
    now_ms: int


class Trim(Struct, frozen=True, gc=False):
    """Drop the messages before an offset."""

    path: str
    now_ms: int
    before: int


class SwitchDedup(Struct, frozen=True, gc=False):
    """Switch duplicate detection of a stream on or off."""

    path: str
    now_ms: int
    dedup: bool


class Expire(Struct, frozen=True, gc=False):
    """End an expired stream; `touched_ms` is its last use as the broker has it."""

    path: str
    now_ms: int
    touched_ms: int


class Register(Struct, frozen=True, gc=False):
    """Assign a producer id, or raise the epoch of a registered one.

    A producer that is not registered begins with `first_epoch`.
    """

    now_ms: int
    producer_id: str | None = None
    first_epoch: int = 0


class ClaimProducer(Struct, frozen=True, gc=False):
    """Take a producer over: fence the previous instance, then report how far it came.

    `session` is new for each instance. The same session again is a retry of the same claim.
    """

    path: str
    now_ms: int
    producer_id: str
    session: str
    mode: str = DENSE


class ForgetProducer(Struct, frozen=True, gc=False):
    """Drop the row of a producer in a stream, on the request of an operator."""

    path: str
    now_ms: int
    producer_id: str


class ExpireProducer(Struct, frozen=True, gc=False):
    """Replace a producer that is idle for `idle_ms` by a tombstone, which keeps it fenced."""

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
