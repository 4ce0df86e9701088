"""`semel topics`: topics, which spread messages over partitions by their keys."""

from itertools import islice
from typing import Any, Final

import click
import msgspec

from semel.cli.options import Moment, Name, Number, TokenText, remote, topic_argument
from semel.cli.output import (
    ChangingCommand,
    confirm,
    json_line,
    print_facts,
    print_list,
    report,
    write_lines,
    write_stdout,
)
from semel.client.errors import StreamExists
from semel.client.flows import Flow
from semel.client.sync.client import Client
from semel.client.topic_calls import TopicCalls, TopicConfig
from semel.client.topic_values import TopicInfo, TopicPartition
from semel.model.limits import NUMBER_MAX, TOPIC_PARTITIONS_MAX
from semel.model.partitioners import HASHES

_TITLES: Final = ("topic", "partitions", "partitioner", "type", "keyed", "state")
_OK: Final = 200  # the status of the response if the topic exists already


@click.group("topics")
def topics_command() -> None:
    """Create, inspect, grow, close and delete topics.

    A topic is a set of streams, its partitions: the topic orders has the streams orders/0, orders/1
    and so on. The key of a message selects its partition, so that the messages of one key are in
    order.
    """


@topics_command.command("create", cls=ChangingCommand)
@topic_argument
@click.option(
    "--partitions",
    type=Number(1, TOPIC_PARTITIONS_MAX),
    required=True,
    help="Number of partitions. It can grow later, but then keys move to other partitions.",
)
@click.option(
    "--content-type",
    type=TokenText(),
    metavar="TYPE",
    help="Content type. The default is application/json: each message is a JSON value.",
)
@click.option(
    "--partitioner",
    type=click.Choice(sorted(HASHES)),
    help="How a key selects the partition: like librdkafka (crc32, the default) or like Kafka's"
    " Java clients (murmur2). It cannot be changed later.",
)
@click.option(
    "--ttl",
    type=Number(0, NUMBER_MAX // 1000),
    help="Expire the topic this many seconds after the last read or write of any partition.",
)
@click.option("--expires-at", type=Moment(), help="Time of expiry, such as 2030-01-31T12:00:00Z.")
@click.option(
    "--dedup",
    type=click.Choice(["on", "off"]),
    help="Whether the topic recognises repeated appends. By default, the policies decide (see"
    " `semel policies`).",
)
@remote
def create_topic_command(
    client: Client, *, topic: str, dedup: str | None, is_json: bool, **options: Any
) -> None:
    """Create TOPIC with all its partitions.

    Succeeds if the topic already exists with the same configuration. The exit code is 1 if it
    exists with a different configuration, or if a path that it needs is in use.
    """
    is_on = None if dedup is None else dedup == "on"
    config = TopicConfig(dedup=is_on, **options)
    is_new, info = client.run(_create(TopicCalls(client.site, topic), config))
    what = "created" if is_new else "the topic already exists with this configuration:"
    sentence = f"{what} {topic} ({info.content_type}), {_partitions(info.partition_count)}"
    report(sentence, {"created": is_new, **_facts(info)}, is_json=is_json)


def _create(calls: TopicCalls, config: TopicConfig) -> Flow[tuple[bool, TopicInfo]]:
    """Create a topic. Return whether it is new, and its state."""
    try:
        return True, (yield from calls.create_topic(config))
    except StreamExists as error:
        if error.status != _OK:  # paths that the topic needs are in use
            raise
    return False, (yield from calls.show())


def _partitions(count: int) -> str:
    return f"{count:,} partition" if count == 1 else f"{count:,} partitions"


def _facts(info: TopicInfo) -> dict[str, Any]:
    """Return the state of a topic for --json. Only a growth has `moved_at`."""
    facts: dict[str, Any] = msgspec.to_builtins(info)
    if not info.moved_at:
        del facts["moved_at"]
    return facts


@topics_command.command("ls")
@click.option(
    "--prefix",
    type=Name(can_be_empty=True),
    default="",
    help="List only topics with this prefix.",
)
@click.option("--limit", type=Number(1), help="Maximum number of topics.")
@remote
def list_topics_command(client: Client, *, prefix: str, limit: int | None, is_json: bool) -> None:
    """List the topics, sorted by name.

    Prints a table on a terminal. Otherwise prints one name per line.
    """
    topics = list(islice(client.topics(prefix), limit))
    rows = [
        (
            each.topic,
            each.partition_count,
            each.partitioner,
            each.content_type,
            ("no", "yes")[each.keyed],
            "closed" if each.closed else "open",
        )
        for each in topics
    ]
    print_list(
        map(msgspec.to_builtins, topics), _TITLES, rows, is_json=is_json, right={"partitions"}
    )


@topics_command.command("show")
@topic_argument
@remote
def show_topic_command(client: Client, *, topic: str, is_json: bool) -> None:
    """Show a topic and its partitions.

    Prints the path and the offsets of each partition. After a growth, prints from which offsets on
    a key can be in another partition.
    """
    info = client.run(TopicCalls(client.site, topic).show())
    if is_json:
        write_stdout(json_line(_facts(info)))
        return
    names = ("topic", "content_type", "partitioner", "keyed", "closed", "dedup", "incarnation")
    print_facts(
        {**{name: getattr(info, name) for name in names}, "partitions": len(info.partitions)}
    )
    write_lines(map(_partition_line, info.partitions))
    for growth in info.growths:
        after = _pairs(info, growth.offsets)
        write_lines([f"grown from {_partitions(growth.partitions_before)} at {after}"])


def _partition_line(partition: TopicPartition) -> str:
    first, end, stable = partition.first_offset, partition.next_offset, partition.stable_offset
    pending = "" if stable == end else f", stable offset {stable}"
    return f"{partition.stream}: {first} to {end}{pending}"


def _pairs(info: TopicInfo, offsets: tuple[str, ...]) -> str:
    paths = (each.stream for each in info.partitions)
    return ", ".join(f"{offset} in {path}" for path, offset in zip(paths, offsets, strict=False))


@topics_command.command("grow", cls=ChangingCommand)
@topic_argument
@click.argument("partitions", type=Number(1, TOPIC_PARTITIONS_MAX))
@click.option(
    "--keys-may-move",
    is_flag=True,
    help="Allow that keys move to other partitions. It is required if the topic has messages with"
    " keys.",
)
@remote
def grow_topic_command(
    client: Client, *, topic: str, partitions: int, keys_may_move: bool, is_json: bool
) -> None:
    """Give TOPIC more partitions.

    PARTITIONS is the new number, which cannot be less than the present one. The messages that are
    stored stay where they are. A key can select another partition afterwards, so that messages with
    this key are in two partitions. The members of a group still get them in order. Other readers of
    several partitions can get the later ones first.

    Waits until no staged transaction has messages for the topic.
    """
    growth = TopicCalls(client.site, topic).grow(partitions, keys_may_move=keys_may_move)
    info = client.run(growth)
    sentence = f"{topic} has {_partitions(info.partition_count)}"
    if info.keyed and info.moved_at:
        sentence += f"; keys can be in another partition from {_pairs(info, info.moved_at)}"
    report(sentence, _facts(info), is_json=is_json)


@topics_command.command("close", cls=ChangingCommand)
@topic_argument
@remote
def close_topic_command(client: Client, *, topic: str, is_json: bool) -> None:
    """Close TOPIC with all its partitions. It cannot be opened again."""
    info = client.run(TopicCalls(client.site, topic).change(closed=True))
    report(f"closed {topic}", _facts(info), is_json=is_json)


@topics_command.command("delete", cls=ChangingCommand)
@topic_argument
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@remote
def delete_topic_command(client: Client, *, topic: str, yes: bool, is_json: bool) -> None:
    """Delete TOPIC with all its partitions and their messages."""
    if not yes:
        question = f"Delete the topic {topic} with all its partitions and their messages?"
        confirm(question, f"the topic {topic} was not deleted")
    client.run(TopicCalls(client.site, topic).delete())
    report(f"deleted the topic {topic}", {"topic": topic, "deleted": True}, is_json=is_json)
