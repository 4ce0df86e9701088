"""How the messages of an append to a topic are divided among its partitions.

Written from the rows "hash" and "count the caller hashed with" of table T.
"""

from zlib import crc32

from semel.model.commands import CommitAppend
from semel.model.topic_commands import AppendTopic
from tests.sim.reference_streams import Extra, Rows, Stream, Topic, rows_of

Routed = dict[int, Rows]  # by partition, in the order of the partitions


def murmur2(data: bytes) -> int:
    """Return the hash of Kafka's Java client, written from its `Utils.murmur2`."""
    mask, m, r = 0xFFFFFFFF, 0x5BD1E995, 24
    h = (0x9747B28C ^ len(data)) & mask
    for at in range(0, len(data) // 4 * 4, 4):
        k = int.from_bytes(data[at : at + 4], "little") * m & mask
        k = (k ^ k >> r) * m & mask
        h = (h * m & mask) ^ k
    left = data[len(data) // 4 * 4 :]
    for place, byte in reversed(list(enumerate(left))):
        h ^= byte << 8 * place
    if left:
        h = h * m & mask
    h = (h ^ h >> 13) * m & mask
    return h ^ h >> 15


def partition_of(partitioner: str, key: bytes, count: int) -> int:
    """Return the partition of a key."""
    hashed = crc32(key) if partitioner == "crc32" else murmur2(key) & 0x7FFFFFFF
    return hashed % count


def _select(topic: Topic, c: AppendTopic, body: bytes, extra: Extra) -> int:
    count = len(topic.partitions)
    if c.partition is not None:
        return c.partition
    if extra.key is not None:
        return partition_of(topic.partitioner, extra.key, count)
    return (crc32(body) if c.hint is None else c.hint) % count


def route(stream: Stream, c: AppendTopic) -> Routed:
    """Return the messages of an append by partition, each in the order of the request."""
    topic = stream.topic
    assert topic is not None
    if c.parts:
        return {n: Rows(rows_of(batch, stream.is_json)) for n, batch in sorted(c.parts)}
    assert c.batch is not None
    found: dict[int, list[tuple[bytes, Extra]]] = {}
    for body, extra in rows_of(c.batch, stream.is_json):
        found.setdefault(_select(topic, c, body, extra), []).append((body, extra))
    return {n: Rows(tuple(found[n])) for n in sorted(found)}


def route_commit(stream: Stream, append: CommitAppend) -> Routed:
    """Return the messages of an append in a one-shot commit by partition."""
    return route(stream, AppendTopic(append.path, 0, append.content_type, append.batch))


def note_keys(topic: Topic, routed: Routed) -> None:
    """Note that a topic has messages with keys."""
    keys = [extra.key for rows in routed.values() for _, extra in rows.rows]
    topic.is_keyed = topic.is_keyed or any(key is not None for key in keys)
