"""The JSON bodies of `/v1/topics`."""

from msgspec import UNSET, Struct, UnsetType

from semel.model.partitioners import CRC32
from semel.wire.schema import StrictRequest

# ---- requests ------------------------------------------------------------------------------------


class TopicRequest(StrictRequest, frozen=True):
    """The body of `PUT /v1/topics/{name}`. `dedup` is `on` or `off`."""

    partitions: int
    content_type: str | None = None
    partitioner: str = CRC32
    ttl_seconds: int | None = None
    expires_at: str | None = None
    dedup: str | None = None


class TopicChange(StrictRequest, frozen=True):
    """The body of `PATCH /v1/topics/{name}`: one change.

    `partitions` is the new number of partitions, and `keys_may_move` allows that keys move to other
    partitions. `dedup` is `on`, `off` or `inherit`. `closed` can only be true.
    """

    partitions: int | UnsetType = UNSET
    keys_may_move: bool | UnsetType = UNSET
    dedup: str | UnsetType = UNSET
    closed: bool | UnsetType = UNSET


# ---- responses -----------------------------------------------------------------------------------


class PartitionEntry(Struct, frozen=True):
    """A partition of a topic. `stream` is the path of the stream that has its messages."""

    partition: int
    stream: str
    incarnation: str
    first_offset: str
    next_offset: str
    stable_offset: str
    closed: bool


class GrowthEntry(Struct, frozen=True):
    """A growth of a topic. `offsets` has the tail of each partition that existed before it."""

    partitions_before: int
    offsets: list[str]


class TopicDocument(Struct, frozen=True):
    """A topic with its partitions, and its growths from the first to the newest.

    `keyed` is True if a message with a key was appended. `appended` is the number of messages that
    were appended to the topic. `dedup` is `on` if the topic recognises duplicates. `dedup_from` is
    what `appended` was when this was switched on: 0 if the topic has always recognised them, None
    if it does not. `dedup_source`, `dedup_policy` and `dedup_pending` are as in `StreamEntry`. Only
    the response to a growth has `moved_at`, the offsets of the newest growth.
    """

    topic: str
    partitions: list[PartitionEntry]
    partition_count: int
    partitioner: str
    content_type: str
    incarnation: str
    keyed: bool
    closed: bool
    created_at_ms: int
    appended: int
    dedup: str
    dedup_from: int | None
    dedup_source: str
    dedup_policy: str | None
    dedup_pending: str | None
    growths: list[GrowthEntry]
    ttl_seconds: int | None = None
    expires_at: str | None = None
    moved_at: list[str] | UnsetType = UNSET


class TopicEntry(Struct, frozen=True):
    """A topic in a listing."""

    topic: str
    partition_count: int
    partitioner: str
    content_type: str
    keyed: bool
    closed: bool
    created_at_ms: int


class TopicsPage(Struct, frozen=True):
    """A page of the list of topics. `next` is the name after which the next page begins."""

    topics: list[TopicEntry]
    next: str | None = None


class TopicPart(Struct, frozen=True):
    """The messages of an append that are in one partition: from `offset` up to `next_offset`."""

    partition: int
    stream: str
    offset: str
    next_offset: str


class TopicAppendResponse(Struct, frozen=True):
    """The response to an append to a topic.

    `parts` is null if the messages are staged in a transaction, or if the append is a duplicate
    whose receipt is no longer retained. Only a staged append has `next_seq`, the `Transaction-Seq`
    of the next one.
    """

    topic: str
    duplicate: bool
    parts: list[TopicPart] | None
    next_seq: int | UnsetType = UNSET
