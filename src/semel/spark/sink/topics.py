"""Selects the partition of each row that is written to a topic.

The driver reads the layout of the topic once for each batch, and the layout goes to the tasks
together with the writer. A task reads it again when its transaction has begun: see `stage`.
"""

from typing import Any, Final
from zlib import crc32

import numpy as np
import pyarrow as pa
from msgspec import Struct

from semel.client.errors import (
    Indeterminate,
    NotSupported,
    ProtocolError,
    TopicConflict,
    TopicNotFound,
    Unavailable,
)
from semel.client.sync.client import Client
from semel.client.topic_values import TopicInfo
from semel.model.partitioners import HASHES, partition_of
from semel.spark.errors import (
    FIRST_SECONDS,
    not_a_semel_server,
    server_unreachable,
    topic_missing,
)
from semel.spark.options import SinkOptions, SparkOptionError, client_for
from semel.spark.sink.rows import nulls_as_json
from semel.spark.topics import create_topic, partition_path, show_topic, topic_names

# The servers that have responded to this process. See FIRST_SECONDS.
_responded: Final[set[str]] = set()


class TopicLayout(Struct, frozen=True):
    """How rows are distributed over the partitions of a topic, and the topic's content type."""

    topic: str
    partitions: int
    partitioner: str
    content_type: str

    def path(self, partition: int) -> str:
        return partition_path(self.topic, partition)

    def read_again(self, client: Client) -> "TopicLayout":
        """Return the present layout of the topic. Raises TopicNotFound if it was deleted."""
        return layout_of(client.run(show_topic(client.site, self.topic)))

    def partitions_of(self, keys: pa.Array | None, values: pa.Array) -> Any:
        """Return the partition of each row, as an array.

        The partition of a row with a key depends only on the key. It is the same for all other
        writers. The partition of a row without a key depends only on its value.
        """
        if self.partitions == 1:
            return np.zeros(len(values), np.int64)
        if keys is None:
            return self._digests(values)
        coded = keys.view(pa.binary()).dictionary_encode()  # each key is hashed once
        by_code = [
            partition_of(self.partitioner, key, self.partitions)
            for key in coded.dictionary.to_pylist()
        ]
        if not keys.null_count:
            return np.array(by_code, np.int64)[coded.indices.to_numpy()]
        is_null = keys.is_null().to_numpy(zero_copy_only=False)
        numbers = np.empty(len(keys), np.int64)
        numbers[is_null] = self._digests(values.filter(keys.is_null()))
        numbers[~is_null] = np.array(by_code, np.int64)[coded.indices.drop_null().to_numpy()]
        return numbers

    def _digests(self, values: pa.Array) -> Any:
        raw = nulls_as_json(values).view(pa.binary()).to_pylist()
        return np.array([crc32(value) % self.partitions for value in raw], np.int64)


def layout_of(info: TopicInfo) -> TopicLayout:
    """Return the layout of a topic."""
    return TopicLayout(info.topic, info.partition_count, info.partitioner, info.content_type)


def read_layout(options: SinkOptions) -> TopicLayout | None:
    """Ask the server for the layout of the topic in `options`. Return None if there is no topic.

    If the topic does not exist and the option `partitions` is set, create it. Otherwise raises
    TopicMissing. Raises SparkOptionError if this version of semel does not know the partitioner,
    and ServerUnreachable if the server does not respond.
    """
    topic = options.topic
    if topic is None:
        return None
    try:
        found = _find_or_create(client_for(options), options, topic)
    except (Indeterminate, Unavailable) as error:
        raise server_unreachable(error) from None
    except (NotSupported, ProtocolError) as error:
        raise not_a_semel_server(options.url, error) from None
    _responded.add(options.url)
    if found.partitioner not in HASHES:
        raise SparkOptionError(
            f"the topic {topic} has the partitioner {found.partitioner!r}, which this version of"
            f" semel does not know; it knows {' and '.join(HASHES)}: install the version that the"
            " server has"
        )
    return layout_of(found)


def _find_or_create(client: Client, options: SinkOptions, topic: str) -> TopicInfo:
    seconds = options.retry_seconds
    timeout = seconds if options.url in _responded else min(seconds, FIRST_SECONDS)
    try:
        return client.run(show_topic(client.site, topic), timeout)
    except TopicNotFound:
        if options.partitions is None:
            advice = ', and so does .option("partitions", 8)' if options.is_creating else ""
            names = client.run(topic_names(client.site))
            raise topic_missing(options.url, topic, names, advice) from None
    try:
        return client.run(
            create_topic(
                client.site,
                topic,
                partitions=options.partitions,
                content_type=options.content_type,
                partitioner=options.partitioner,
            )
        )
    except TopicConflict:  # another writer has created it in the meantime
        return client.run(show_topic(client.site, topic))
