"""The JSON bodies of `/v1/producers`."""

from typing import Any, Generic, TypeVar

from msgspec import UNSET, Struct, UnsetType

from semel.model.commands import DENSE
from semel.wire.schema import StrictRequest
from semel.wire.schema.topics import TopicPart

T = TypeVar("T")


class RegisterRequest(StrictRequest, frozen=True, forbid_unknown_fields=False):
    """The body of `POST /v1/producers`. Unknown members are ignored.

    If `producer_id` is None, the server chooses the id. With `expires`, a new id leaves the
    registry by itself when it was not used for that many seconds.
    """

    producer_id: str | None = None
    expires: int | UnsetType = UNSET


class ClaimRequest(StrictRequest, frozen=True, forbid_unknown_fields=False, omit_defaults=False):
    """The body of `POST /v1/producers/claim`. Unknown members are ignored."""

    stream: str
    producer_id: str
    session: str
    mode: str = DENSE
    expires: int | UnsetType = UNSET


class RetireEntry(StrictRequest, frozen=True):
    """A producer to retire. Without `stream`, it is the registration of the id.

    At least one of `producer_epoch` and `session` must be that of the current instance. Without
    `stream`, `producer_epoch` is required.
    """

    producer_id: str
    stream: str | None = None
    producer_epoch: int | None = None
    session: str | None = None


class RetireRequest(StrictRequest, frozen=True):
    """The body of `POST /v1/producers/retire`: 1 to 1,000 producers."""

    producers: list[RetireEntry]


class RetiredEntry(Struct, frozen=True, omit_defaults=True):
    """What became of one producer. If `retired` is False, `code` says why."""

    producer_id: str
    stream: str | None
    retired: bool
    code: str | UnsetType = UNSET


class RetireResponse(Struct, frozen=True):
    """The response to `POST /v1/producers/retire`, in the order of the request."""

    producers: list[RetiredEntry]


class Registration(Struct, frozen=True):
    """The response to a registration: the producer id and its epoch."""

    producer_id: str
    producer_epoch: int


class AssignedProducer(Struct, frozen=True, rename={"producer_id": "producerId"}):
    """The response to `POST /v1/stream/{path}/producer`: the producer id and its epoch."""

    producer_id: str
    epoch: int


class ProducerClaim(Struct, frozen=True, kw_only=True):
    """The response to a claim: the new epoch, and what the producer last stored before the claim.

    Each of `last_seq`, `last_offset` and `cursor` is None if the server does not have this value.
    """

    stream: str = ""
    producer_id: str = ""
    producer_epoch: int
    last_seq: int | None = None
    last_offset: str | None = None
    cursor: str | None = None


class ProducerReceipt(Struct, frozen=True, omit_defaults=True):
    """One of a producer's most recent appends: its sequence numbers, offsets and digest.

    The receipt of an append to a topic has no offsets of its own, but `parts`. It is left out of
    other receipts.
    """

    first_seq: int
    last_seq: int
    first_offset: str | None
    next_offset: str | None
    digest: str
    parts: list[TopicPart] | None = None


class RegisteredProducer(Struct, frozen=True):
    """The registration of a producer id. It belongs to no stream, so `stream` is None.

    The subclasses describe a producer's state in one stream. There, `stream` is the stream's path.
    `owner` is the principal that owns it. It is UNSET if access is off or the caller may not see
    it.
    """

    stream: str | None
    producer_id: str
    mode: str | None
    epoch: int
    last_seq: int | None = None
    last_offset: str | None = None
    cursor: str | None = None
    updated_at: str | None = None
    registered_epoch: int | None = None
    owner: str | UnsetType | None = UNSET


class ProducerEntry(RegisteredProducer, frozen=True):
    """A producer in the list of a stream's producers.

    `state` is `live`, `expiring` (it has declared an idle time of `expires` seconds), `expired` or
    `retired`. In the last two states, `expired` is True, the producer ended at `ended_at`, and its
    late copies are refused at least until `until`.
    """

    session: str | None = None
    expired: bool = False
    state: str = "live"
    expires: int | None = None
    ended_at: str | None = None
    until: str | None = None


class ProducerDetails(ProducerEntry, frozen=True, kw_only=True):
    """A producer in a stream, with the receipts of its recent appends."""

    receipts: list[ProducerReceipt]


class ProducerState(ProducerEntry, frozen=True):
    """The state of a producer in a stream, as the client returns it to its caller.

    `owner` is the principal that owns it. It is None if it has no owner, if access is off, or if
    the caller may not see it.

    If `expired` is True, the producer was idle for too long or was retired, and the server has
    deleted the receipts of its recent appends. Then `last_offset` is None. `registered_epoch` is
    None if the producer is not registered. `receipts` is None in a list of producers.
    """

    owner: str | None = None
    receipts: list[ProducerReceipt] | None = None


class ProducersPage(Struct, Generic[T], frozen=True):
    """A page of the list of producers.

    `next` is the producer id after which the next page begins. It is None on the last page.
    """

    producers: list[T]
    next: str | None = None


class Explanation(Struct, frozen=True):
    """The outcome that an append would have.

    `outcome` is a code that never changes. `reason` is an explanation for people.
    """

    outcome: str
    status: int
    reason: str
    facts: dict[str, Any]


class ExplainResponse(Struct, frozen=True, kw_only=True):
    """The response to `GET /v1/producers/explain`: an append, and the outcome it would have.

    If these sequences are already stored, the outcome can depend on the payload. Then `outcome` is
    the outcome for the stored payload, and `other_payload` is the outcome for any other payload.
    Otherwise `other_payload` is null. `known` is the producer's stored state; null if none.
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
