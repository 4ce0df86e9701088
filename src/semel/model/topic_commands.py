"""Commands on topics.

A topic is a set of streams, its partitions. Each message goes to one partition, usually the one
that a hash of the message's key selects, so that messages with the same key stay in order. The
rules are in `docs/reference/topics.md`.
"""

from typing import TYPE_CHECKING

from msgspec import Struct

from semel.model.limits import (
    INCARNATION_BYTES_MAX,
    MEDIA_TYPE_BYTES_MAX,
    NUMBER_MAX,
    TOPIC_PARTITIONS_MAX,
    TOPIC_PATH_BYTES_MAX,
)
from semel.model.names import first_invalid, is_name, is_optional_name, is_optional_number
from semel.model.partitioners import CRC32, HASHES

if TYPE_CHECKING:  # `commands.py` imports this module
    from semel.model.commands import Batch, ProducerTag, TxnTag


class OnTopic(Struct, frozen=True, gc=False):
    """Base class for commands on one topic. `path` is the name of the topic."""

    path: str
    now_ms: int


class CreateTopic(OnTopic, frozen=True, gc=False):
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


class GrowTopic(OnTopic, frozen=True, gc=False):
    """Add partitions to a topic, so that it has `partitions` of them.

    After an append with a key, this moves keys to other partitions. It is then refused unless
    `keys_may_move` is True.
    """

    incarnation: str
    partitions: int
    keys_may_move: bool = False


class CloseTopic(OnTopic, frozen=True, gc=False):
    """Close a topic and all its partitions."""


class DeleteTopic(OnTopic, frozen=True, gc=False):
    """Delete a topic and all its partitions. Partitions that have forks are only soft-deleted."""


class AppendTopic(OnTopic, frozen=True, gc=False):
    """Append messages to the partitions of a topic. All of them are stored, or none is.

    The messages are in `batch`, and the server selects their partitions, or in `parts`, and the
    client has selected them for a topic with `partitions` partitions and this `partitioner`. Each
    of the two can be None: it is then not compared. The keys are in the extras of the batches. With
    `partition`, all messages of `batch` go to that partition. `hint` selects the partition of
    messages without a key, modulo the number of partitions.

    `body_error`, `producer`, `key` (an idempotency key) and `transaction` are as in `Append`.
    """

    content_type: str | None = None
    batch: "Batch | None" = None
    parts: "tuple[tuple[int, Batch], ...]" = ()
    body_error: str | None = None
    partition: int | None = None
    hint: int | None = None
    partitions: int | None = None
    partitioner: str | None = None
    producer: "ProducerTag | None" = None
    key: str | None = None
    transaction: "TxnTag | None" = None


TopicCommand = CreateTopic | GrowTopic | CloseTopic | DeleteTopic | AppendTopic


# ---- fields --------------------------------------------------------------------------------------


def invalid_topic_field(command: OnTopic) -> str | None:
    """Return the first invalid field of a command on a topic, or None."""
    return None if is_name(command.path, TOPIC_PATH_BYTES_MAX) else "topic"


def invalid_partitions_field(command: CreateTopic | GrowTopic) -> str | None:
    """Return the first invalid field of a command that makes partitions, or None."""
    return invalid_topic_field(command) or first_invalid(
        ("incarnation", is_name(command.incarnation, INCARNATION_BYTES_MAX - 8)),
        ("partitions", 0 < command.partitions <= TOPIC_PARTITIONS_MAX),
    )


def invalid_create_topic_field(command: CreateTopic) -> str | None:
    """Return the first invalid field of a command that creates a topic, or None."""
    expires_at_ms = command.expires_at_ms
    return invalid_partitions_field(command) or first_invalid(
        ("content_type", is_optional_name(command.content_type, MEDIA_TYPE_BYTES_MAX)),
        ("partitioner", command.partitioner in HASHES),
        ("ttl", is_optional_number(command.ttl_ms)),
        ("expires_at", expires_at_ms is None or abs(expires_at_ms) <= NUMBER_MAX),
    )
