"""What a frame says happened, and what a decision proposes.

An event is the meta of one frame; the messages travel beside it in sections. `apply` reads nothing
else, so whatever the state needs of a command has to be in here.
"""

from typing import Final

from msgspec import Struct

from semel.machine.rows import StreamRow
from semel.machine.txn_events import Ended, TxnEvent
from semel.model.outcomes import Outcome

# What a section holds: messages, a control record, or messages that have no offset yet.
DATA: Final = 0
CONTROL: Final = 4
STAGED: Final = 8


class Section(Struct, frozen=True, gc=False):
    """Messages of one stream inside a frame, from offset `base` on.

    `is_joined`: the messages of `payload` stand with a comma between them (a JSON stream), else end
    to end. `lengths` holds a little-endian u32 for each; it is empty for a single message.
    `extras` holds what the messages carry beside their bytes, if they do. A section that is
    `STAGED` has no base; a `CONTROL` record takes an offset and no reader is given it.
    """

    stream: int
    base: int
    count: int
    payload: bytes
    lengths: bytes = b""
    is_joined: bool = False
    extras: bytes = b""
    kind: int = DATA


class Mark(Struct, frozen=True, gc=False, array_like=True):
    """The producer side of an append, in the same frame as its data."""

    id: str
    mode: str
    epoch: int
    session: str | None
    first_seq: int
    last_seq: int
    digest: int
    cursor: bytes | None


class StreamCreated(Struct, frozen=True, gc=False, array_like=True):
    """A stream begins, its first messages in the sections."""

    row: StreamRow
    head: int
    is_closed: bool


class UnguardedCreated(StreamCreated, frozen=True, gc=False, array_like=True):
    """A stream begins that recognises no duplicates."""


class StreamAppended(Struct, frozen=True, gc=False, array_like=True):
    """Messages (in the section), a close, or both."""

    stream: int
    close: bool = False
    stream_seq: str | None = None
    mark: Mark | None = None
    key: str | None = None
    digest: int = 0


class StreamDeleted(Struct, frozen=True, gc=False, array_like=True):
    """A stream ends on request."""

    stream: int


class StreamExpired(Struct, frozen=True, gc=False, array_like=True):
    """A stream ends because its time is over."""

    stream: int


class StreamTrimmed(Struct, frozen=True, gc=False, array_like=True):
    """A stream's head moves."""

    stream: int
    head: int


class DedupSwitched(Struct, frozen=True, gc=False, array_like=True):
    """A stream recognises duplicates from an offset on, or (None) forgets and does not."""

    stream: int
    dedup_from: int | None


class ProducerRegistered(Struct, frozen=True, gc=False, array_like=True):
    """A producer identity is given out or its epoch raised."""

    id: str
    epoch: int
    is_assigned: bool


class ProducerClaimed(Struct, frozen=True, gc=False, array_like=True):
    """A session takes a producer over; whoever wrote before is fenced."""

    stream: int
    id: str
    mode: str
    epoch: int
    session: str


class ProducerForgotten(Struct, frozen=True, gc=False, array_like=True):
    """A stream drops a producer."""

    stream: int
    id: str


class ProducerExpired(Struct, frozen=True, gc=False, array_like=True):
    """A stream keeps only a producer's tombstone."""

    stream: int
    id: str


class TxnPublished(Struct, frozen=True, gc=False, array_like=True):
    """An append that is part of an inline transaction."""

    txn: int
    append: StreamAppended


class ProducerRaised(Struct, frozen=True, gc=False, array_like=True):
    """Something that raises an epoch, and with it the older instance's transactions end."""

    ended: tuple[Ended, ...]
    append: StreamAppended | None = None
    registered: ProducerRegistered | None = None
    claimed: ProducerClaimed | None = None


Event = (
    StreamCreated
    | UnguardedCreated
    | StreamAppended
    | StreamDeleted
    | StreamExpired
    | StreamTrimmed
    | DedupSwitched
    | ProducerRegistered
    | ProducerForgotten
    | ProducerExpired
    | ProducerClaimed
    | TxnPublished
    | ProducerRaised
    | TxnEvent
)


class Decision(Struct, frozen=True, gc=False):
    """The answer, and the event to make durable before it is given (None: nothing changes).

    `grows` tells whether the event needs room a full disk cannot give; what frees room, or ends
    something, uses the reserve.
    """

    outcome: Outcome
    event: Event | None = None
    sections: tuple[Section, ...] = ()
    grows: bool = False
