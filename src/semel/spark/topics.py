"""The streams of a topic: partition 0 of the topic `orders` is the stream `orders/0`, and so on."""

import re
from typing import Final

from semel.client.addresses import checked_path
from semel.client.flows import Flow
from semel.client.server_calls import get
from semel.client.stream_calls import ServerConfig
from semel.client.topic_calls import TopicCalls, TopicConfig, list_topics
from semel.client.topic_values import TopicInfo
from semel.model.limits import TOPIC_PARTITIONS_MAX, TOPIC_PATH_BYTES_MAX

_NUMBER: Final = re.compile("0|[1-9][0-9]{0,3}")


def partition_path(topic: str, partition: int | str) -> str:
    """Return the path of the stream that is a partition of a topic."""
    return f"{topic}/{partition}"


def partition_number(topic: str, path: str) -> int | None:
    """Return the number of a partition from the path of its stream.

    Return None if a topic with this name cannot have such a partition.
    """
    name, _, number = path.rpartition("/")
    if name != topic or _NUMBER.fullmatch(number) is None or int(number) >= TOPIC_PARTITIONS_MAX:
        return None
    return int(number)


def checked_topic(name: str) -> str:
    """Return the name of a topic. Raises ValueError with the reason if it is not valid."""
    if len(name.encode()) > TOPIC_PATH_BYTES_MAX:
        raise ValueError(f"it is longer than {TOPIC_PATH_BYTES_MAX} bytes")
    checked_path(name)
    checked_path(partition_path(name, TOPIC_PARTITIONS_MAX - 1))
    return name


# ---- calls ---------------------------------------------------------------------------------------


_NAMES_MAX: Final = 1_000  # how many names are searched for a similar name


def show_topic(site: ServerConfig, topic: str) -> Flow[TopicInfo]:
    """Return the state of a topic. Raises TopicNotFound if there is no such topic.

    The partitioner can be one that this version does not know, because reading does not need it.
    """
    return get(site, TopicCalls(site, topic).target, TopicInfo, stream=topic)


def create_topic(
    site: ServerConfig, topic: str, *, partitions: int, content_type: str, partitioner: str
) -> Flow[TopicInfo]:
    """Create a topic, unless it exists. Raises TopicConflict if it exists and is different."""
    config = TopicConfig(partitions, content_type, partitioner)
    return TopicCalls(site, topic).create_topic(config, exist_ok=True)


def topic_names(site: ServerConfig) -> Flow[list[str]]:
    """Return the names of some topics of the server."""
    page = yield from list_topics(site, "", None, _NAMES_MAX)
    return [entry.topic for entry in page.topics]
