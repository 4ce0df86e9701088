"""The row of docs/reference/seeds.md about topics, word for word with a real server.

`tests/row_mutants` has bugs of the server for it, and the test must fail with each of them.
"""

from typing import Any, Final
from zlib import crc32

from tests.spec.process import Server, offset_of
from tests.spec.topic_calls import Topic

PARTITIONS: Final = 4


# rows: R07
def test_a_publish_names_or_leaves_the_partition_and_returns_offset_partition_and_duplicate(
    server: Server,
) -> None:
    topic = Topic(server).create(PARTITIONS)
    leader_epoch = server.ask("GET", "/health").json["generation"]

    def publish(seq: int, value: Any, **more: Any) -> tuple[str, int, bool]:
        """Publish one message. Return its offset, its partition, and whether it is a duplicate."""
        key = {"Message-Key": more.pop("key")} if "key" in more else {}
        answer = topic.send(
            value,
            key,
            producer_id="till",
            producer_epoch=0,
            producer_seq=seq,
            content_type="application/json",
            **more,
        )
        assert answer.status == 200, answer
        (found,) = answer.json["parts"]
        assert found["stream"] == f"{topic.name}/{found['partition']}"
        return found["offset"], found["partition"], answer.json["duplicate"]

    # The server partitions by key, with the CRC-32 of its bytes.
    keys = ["alice", "bob", "carol", "dave", "erin", "frank"]
    assert len({crc32(key.encode()) % PARTITIONS for key in keys}) > 2
    ends = [0] * PARTITIONS
    for seq, key in enumerate(keys):
        place = crc32(key.encode()) % PARTITIONS
        assert publish(seq, {"key": key}, key=key) == (offset_of(ends[place]), place, False)
        ends[place] += 1
    # The partition is given, and the key is another one's.
    named = (crc32(b"alice") + 1) % PARTITIONS
    assert publish(6, "x", key="alice", stream_partition=named) == (
        offset_of(ends[named]),
        named,
        False,
    )
    # Neither: some partition, and the same one for a repeat.
    kept = publish(7, "y", leader_epoch=leader_epoch)
    assert kept[2] is False
    assert publish(7, "y", leader_epoch=leader_epoch) == (*kept[:2], True)
    # A repeat has the offset and the partition of the first one, also after others.
    alice = crc32(b"alice") % PARTITIONS
    assert publish(0, {"key": "alice"}, key="alice") == (offset_of(0), alice, True)
    assert sum(map(len, topic.texts())) == len(keys) + 2
    # Another leader epoch is that of another copy of the data.
    stale = topic.post(
        "z",
        producer_id="till",
        producer_epoch=0,
        producer_seq=8,
        content_type="application/json",
        leader_epoch=leader_epoch + 1,
    )
    assert (stale.status, stale.code) == (409, "stale_leader")
    assert sum(map(len, topic.texts())) == len(keys) + 2
