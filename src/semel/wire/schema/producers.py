"""The JSON bodies of `/v1/producers`."""

from typing import Any, Generic, TypeVar

from msgspec import Struct

from semel.model.commands import DENSE
from semel.wire.schema import StrictRequest

T = TypeVar("T")


class RegisterRequest(StrictRequest, frozen=True, forbid_unknown_fields=False):
    """`POST /v1/producers`; without an id the server chooses one. Unknown members are ignored."""

    producer_id: str | None = None


class ClaimRequest(StrictRequest, frozen=True, forbid_unknown_fields=False, omit_defaults=False):
    """`POST /v1/producers/claim`. Unknown members are ignored."""

    stream: str
    producer_id: str
    session: str
    mode: str = DENSE


class Registration(Struct, frozen=True):
    """A registered producer id, and its epoch."""

    producer_id: str
    producer_epoch: int


class AssignedProducer(Struct, frozen=True, rename={"producer_id": "producerId"}):
    """A registration in the older dialect."""

    producer_id: str
    epoch: int


class ProducerClaim(Struct, frozen=True, kw_only=True):
    """The epoch that a claim returns, and what an earlier instance stored last."""

    stream: str = ""
    producer_id: str = ""
    producer_epoch: int
    last_seq: int | None = None
    last_offset: str | None = None
    cursor: str | None = None


class ProducerReceipt(Struct, frozen=True):
    """The receipt of one of a producer's last appends."""

    first_seq: int
    last_seq: int
    first_offset: str
    next_offset: str
    digest: str


class RegisteredProducer(Struct, frozen=True):
    """The registration of a producer, without a stream; the base of entries with a stream."""

    stream: str | None
    producer_id: str
    mode: str | None
    epoch: int
    last_seq: int | None = None
    last_offset: str | None = None
    cursor: str | None = None
    updated_at: str | None = None
    registered_epoch: int | None = None


class ProducerEntry(RegisteredProducer, frozen=True):
    """A producer in the listing of a stream."""

    session: str | None = None
    expired: bool = False


class ProducerState(ProducerEntry, frozen=True):
    """The state of a producer in a stream.

    `expired`: it was idle for so long that only its epoch and cursor are stored.
    `registered_epoch` is the epoch of its registration, if it has one. `receipts` are sent for a
    single producer only.
    """

    receipts: list[ProducerReceipt] | None = None


class ProducersPage(Struct, Generic[T], frozen=True):
    """A page of producers; `next` is the id after which the next page begins, if there is one."""

    producers: list[T]
    next: str | None = None


class Explanation(Struct, frozen=True):
    """The outcome that an append would have: its stable code, and a reason for people."""

    outcome: str
    status: int
    reason: str
    facts: dict[str, Any]


class ExplainResponse(Struct, frozen=True, kw_only=True):
    """`GET /v1/producers/explain`: an append, and the outcome it would have.

    `other_payload` is the outcome if the payload differs from the stored one; null if it is the
    same outcome. `known` is the state of the producer in the stream.
    """

    stream: str
    producer_id: str
    mode: str
    epoch: int | None
    session: str | None
    first_seq: int
    last_seq: int
    outcome: str
    status: int
    reason: str
    facts: dict[str, Any]
    other_payload: Explanation | None
    known: ProducerEntry | None
