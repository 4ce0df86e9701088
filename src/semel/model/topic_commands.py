"""Commands on topics.

A topic is a set of streams, its partitions. Each message goes to one partition, usually the one
that a hash of the message's key selects, so that messages with the same key stay in order. The
rules are in `docs/reference/topics.md`.
"""

from semel.model.commands import Batch, ProducerTag, StreamCommand, TxnTag
from semel.model.partitioners import CRC32


class CreateTopic(StreamCommand, frozen=True, gc=False):
    """Create a topic with all its partitions, or check that it exists with this configuration.

    The partitions are the streams `{path}/0`, `{path}/1` and so on. `dedup` is as in `Create`.
    """

    incarnation: str
    partitions: int
    content_type: str | None = None
    partitioner: str = CRC32
    ttl_ms: int | None = None
    expires_at_ms: int | None = None
    dedup: bool | None = None


class GrowTopic(StreamCommand, frozen=True, gc=False):
    """Add partitions to a topic, so that it has `partitions` of them.

    After an append with a key, this moves keys to other partitions. It is then refused unless
    `keys_may_move` is True.
    """

    incarnation: str
    partitions: int
    keys_may_move: bool = False


class CloseTopic(StreamCommand, frozen=True, gc=False):
    """Close a topic and all its partitions."""


class DeleteTopic(StreamCommand, frozen=True, gc=False):
    """Delete a topic and all its partitions. Partitions that have forks are only soft-deleted."""


class AppendTopic(StreamCommand, frozen=True, gc=False):
    """Append messages to the partitions of a topic. All of them are stored, or none is.

    The messages are in `batch`, and the server selects their partitions, or in `parts`, and the
    client has selected them for a topic with `partitions` partitions. The keys are in the extras of
    the batches. With `partition`, all messages of `batch` go to that partition. `hint` selects the
    partition of messages without a key, modulo the number of partitions.

    `body_error`, `producer`, `key` (an idempotency key) and `transaction` are as in `Append`.
    """

    content_type: str | None = None
    batch: Batch | None = None
    parts: tuple[tuple[int, Batch], ...] = ()
    body_error: str | None = None
    partition: int | None = None
    hint: int | None = None
    partitions: int | None = None
    producer: ProducerTag | None = None
    key: str | None = None
    transaction: TxnTag | None = None


TopicCommand = CreateTopic | GrowTopic | CloseTopic | DeleteTopic | AppendTopic
