"""The entries of the refusal table about topics, and about groups whose members share work."""

from typing import Any, Final

from semel.wire.problems import Entry

_PATHS_SHOWN: Final = 5


def _paths_in_use(outcome: Any) -> str:
    shown = ", ".join(outcome.paths[:_PATHS_SHOWN])
    more = len(outcome.paths) - _PATHS_SHOWN
    others = f" and {more} more" if more > 0 else ""
    return (
        f"paths that the topic needs are in use, reserved, or kept for forks: {shown}{others}."
        " Nothing was created"
    )


def _illegal_generation(outcome: Any) -> str:
    epoch, received = outcome.epoch, outcome.received_epoch
    fault = f"the member does not own the stream {outcome.path} in the group {outcome.group}"
    if received is None:
        return f"{fault}; the stream is at epoch {epoch}"
    if received == epoch:
        return f"{fault}: at epoch {epoch}, another member or nobody owns it"
    return f"{fault} at epoch {received}; the stream is at epoch {epoch}"


def _in_use(outcome: Any) -> str:
    reason = "a pending transaction moves one of its positions"
    if outcome.members:
        reason = f"its members are still there ({outcome.members})"
    return f"the group cannot be deleted: {reason}"


TOPIC_REFUSALS: Final = (
    Entry(
        "topic_not_found",
        404,
        outcome="TopicNotFound",
        message="there is no such topic",
        error="TopicNotFound",
        advice="create the topic, or correct its name",
        cli="`semel topics ls` lists the topics, and `semel topics create` creates a topic",
    ),
    Entry(
        "stream_exists",
        409,
        outcome="StreamExists",
        message=_paths_in_use,
        error="StreamExists",
        cli="choose another name, or delete the streams that have these paths",
    ),
    Entry(
        "is_topic",
        409,
        outcome="IsTopic",
        message=(
            "this is the name of a topic, not of a stream; use /v1/topics/{{name}}, or the streams"
            " of its partitions, {{name}}/0 and so on"
        ),
        error="IsTopic",
        advice="use client.topic(name), or the streams of its partitions: name/0 and so on",
        cli="`semel topics show` lists the streams of a topic",
    ),
    Entry(
        "stream_in_topic",
        409,
        outcome="StreamInTopic",
        message=(
            "the stream is a partition of the topic {0.topic}; it can be deleted, closed or"
            " configured only together with the whole topic"
        ),
        error="StreamInTopic",
        advice="make the change for the whole topic",
        cli="`semel topics` has the commands for whole topics",
    ),
    Entry(
        "topic_conflict",
        409,
        outcome="TopicConflict",
        message="the topic already exists with another value of {0.field!r}",
        error="TopicConflict",
        advice="use the configuration of the existing topic, or choose a different name",
        cli="`semel topics show` shows the existing configuration; use it, or choose another name",
    ),
    Entry(
        "partitions_changed",
        409,
        outcome="PartitionsChanged",
        message=(
            "the partitions were selected for another number of partitions or with another"
            " partitioner; the topic has {0.partitions} partitions and the partitioner"
            " {0.partitioner}. Nothing was stored"
        ),
        error="PartitionsChanged",
        advice="select the partitions again, as the topic is now, and send the messages again",
    ),
    Entry(
        "partition_not_found",
        404,
        outcome="NoSuchPartition",
        message="the topic has {0.partitions} partitions, numbered from 0; it has no {0.partition}",
        error="PartitionNotFound",
        advice="use a number from 0 up to, but not including, the number of partitions",
        cli="`semel topics show` lists the partitions",
    ),
    Entry(
        "keys_would_move",
        409,
        outcome="KeysWouldMove",
        message=(
            "the topic has messages with keys, and more partitions would move keys to other"
            " partitions, so that messages with one key are in two of them. Send"
            ' "keys_may_move": true to allow it'
        ),
        error="KeysWouldMove",
        advice="pass keys_may_move=True if all readers can cope with it",
        cli="use --keys-may-move if all readers can cope with it",
    ),
    Entry(
        "too_few_partitions",
        409,
        outcome="TooFewPartitions",
        message="the topic has {0.partitions} partitions, and their number can only grow",
        error="TooFewPartitions",
        advice="use a greater number, or create another topic",
        cli="use a greater number, or create another topic",
    ),
    # This is refused before it reaches the engine.
    Entry("stale_leader", 409),
)

GROUP_REFUSALS: Final = (
    Entry(
        "group_not_found",
        404,
        outcome="UnknownGroup",
        message="there is no such group: it has no positions, no members and no pinned step",
        error="GroupNotFound",
        advice="correct the name of the group",
        cli="`semel groups ls` lists the groups",
    ),
    Entry(
        "unknown_member",
        404,
        outcome="UnknownMember",
        message=(
            "the group has no such member: it has left, was replaced by another member with the"
            " same instance, or its session has timed out. Join again, and give up all streams"
        ),
        error="UnknownMember",
        advice="join again, and give up everything that was not committed",
    ),
    Entry(
        "ILLEGAL_GENERATION",
        409,
        outcome="IllegalGeneration",
        message=_illegal_generation,
        names={"path": "stream"},
        error="IllegalGeneration",
        advice="nothing was applied; give up the stream, which has or will have another owner",
    ),
    Entry(
        "group_is_shared",
        409,
        outcome="GroupIsShared",
        message=(
            "a member of the group {0.group} owns the stream {0.path}, so only that member can move"
            " the position"
        ),
        names={"path": "stream"},
        error="GroupIsShared",
        advice=(
            "read with client.consume(...), which joins the group, or use another group; as an"
            " operator, stop the members first, or use group.set(..., force=True)"
        ),
        cli="stop its members first (`semel groups show` lists them), or use --force",
    ),
    Entry(
        "group_in_use",
        409,
        outcome="GroupInUse",
        message=_in_use,
        error="GroupInUse",
        advice="stop the members of the group, and end the transactions that move its positions",
        cli="stop the members of the group first; `semel groups show` lists them",
    ),
)
