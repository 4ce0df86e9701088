"""The outcomes of commands on topics."""

from msgspec import Struct

from semel.model.outcomes import Outcome, Refusal
from semel.model.policies import DedupSource


class PartResult(Struct, frozen=True, gc=False, array_like=True):
    """The range of offsets that an append to a topic got in one partition."""

    partition: int
    first_offset: int
    next_offset: int


Parts = tuple[PartResult, ...]


class TopicCreated(Outcome, frozen=True):
    """The topic exists. `is_new` is False if it already existed with the same configuration."""

    partitions: int
    partitioner: str
    content_type: str
    incarnation: str
    is_new: bool
    dedup_from: int | None = 0
    source: DedupSource = DedupSource()


class TopicGrown(Outcome, frozen=True):
    """The topic has `partitions` partitions.

    `moved_at` has the offset in each partition at which the newest growth took place. It is empty
    if the topic has never grown. `is_new` is False if the topic already had so many partitions.
    """

    partitions: int
    moved_at: tuple[int, ...]
    is_new: bool


class TopicClosed(Outcome, frozen=True, gc=False):
    """The topic and all its partitions are closed."""


class TopicDeleted(Outcome, frozen=True, gc=False):
    """The topic is deleted. `is_soft` is True if some of its partitions are kept for forks."""

    is_soft: bool


class TopicStored(Outcome, frozen=True):
    """The messages are stored. `parts` has the offsets in each partition, sorted by partition.

    With `is_duplicate`, they had been stored before. Then `parts` is None if the receipt of the
    append is no longer retained. The other fields are as in `Appended` and `Duplicate`.
    """

    parts: Parts | None
    epoch: int | None = None
    seq: int | None = None
    is_duplicate: bool = False
    is_unguarded: bool = False
    is_mismatch: bool = False


# ---- refused -------------------------------------------------------------------------------------


class TopicNotFound(Refusal, frozen=True, gc=False):
    """There is no such topic."""

    code = "topic_not_found"


class StreamExists(Refusal, frozen=True):
    """The topic cannot be created or grown, because these paths are in use or reserved."""

    code = "stream_exists"
    paths: tuple[str, ...]


class IsTopic(Refusal, frozen=True, gc=False):
    """The path names a topic, but the command needs a stream."""

    code = "is_topic"


class StreamInTopic(Refusal, frozen=True, gc=False):
    """The stream is a partition of `topic`. The command is possible only for the whole topic."""

    code = "stream_in_topic"
    topic: str


class TopicConflict(Refusal, frozen=True, gc=False):
    """The topic exists with a different configuration. `field` is the first that differs."""

    code = "topic_conflict"
    field: str


class PartitionsChanged(Refusal, frozen=True, gc=False):
    """The client has selected partitions for another number of them, or with another partitioner.

    `partitions` and `partitioner` are those of the topic.
    """

    code = "partitions_changed"
    partitions: int
    partitioner: str


class NoSuchPartition(Refusal, frozen=True, gc=False):
    """The topic has no partition with this number."""

    code = "partition_not_found"
    partition: int
    partitions: int


class KeysWouldMove(Refusal, frozen=True, gc=False):
    """More partitions would move keys to other partitions, and the caller has not allowed it."""

    code = "keys_would_move"


class TooFewPartitions(Refusal, frozen=True, gc=False):
    """A topic cannot get fewer partitions than the `partitions` that it has."""

    code = "too_few_partitions"
    partitions: int
