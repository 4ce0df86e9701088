"""Table T, row by row, by requests to a real server: topics, their keys, and their producers."""

import json
import re
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any, Final
from urllib.parse import quote, unquote_to_bytes
from zlib import crc32

import msgspec
import pytest

from semel.model.limits import BODY_BYTES_MAX, MESSAGE_KEY_BYTES_MAX, RECEIPTS_DEFAULT
from semel.wire.bodies import decode_frames, encode_batch, encode_parts
from semel.wire.headers import BATCH, FRAMES, TOPIC_BATCH
from tests.access.rig import frames_in
from tests.spec.clock_rig import Machine, eventually
from tests.spec.process import SEMEL, Answer, Later, Server, Stream, offset_of, sound_server
from tests.spec.rules_calls import (
    JSON,
    TEXT,
    Topic,
    is_repeat_of,
    join,
    key_for,
    ordinal,
    parts_of,
    shared_machine,
)
from tests.spec.txn_calls import (
    COMMITTED,
    Txn,
    call,
    commit,
    committed,
    fresh,
    positions,
    refusal,
)

SECOND_MS: Final = 1_000


@pytest.fixture
def topic(server: Server) -> Topic:
    """A topic of text with three partitions."""
    return Topic(server).create(3)


@pytest.fixture
def objects(server: Server) -> Topic:
    """A topic of JSON with three partitions."""
    return Topic(server).create(3, JSON)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """A machine whose clock the tests of this module move. Each uses names of its own."""
    with shared_machine(tmp_path_factory.mktemp("shared")) as it:
        yield it


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


def frames_of(data: Path) -> list[str]:
    """Return the kinds of the frames in a journal that store what a request has changed."""
    kinds = [type(frame.record).__name__ for frame in frames_in(data)]
    return [kind for kind in kinds if kind not in ("WatermarkMoved", "SegmentStarted")]


def keys_in(stream: Stream) -> list[bytes | None]:
    """Return the keys of all messages of a stream."""
    page = stream.get("offset=-1", accept=FRAMES)
    return [key for piece in decode_frames(page.body).slices for key in piece.keys()]  # noqa: SIM118 - a method


# ---- create --------------------------------------------------------------------------------------


def test_a_topic_is_created_with_all_its_streams(server: Server) -> None:
    topic = Topic(server)
    answer = topic.put(3, content_type=JSON, partitioner="murmur2")
    assert answer.status == 201
    assert answer.headers["location"] == f"{server.url}{topic.target}"
    assert answer.headers["topic-partitions"] == "3"
    found = answer.json
    assert (found["topic"], found["partition_count"]) == (topic.name, 3)
    assert (found["partitioner"], found["content_type"]) == ("murmur2", JSON)
    assert [each["stream"] for each in found["partitions"]] == [
        f"{topic.name}/{n}" for n in (0, 1, 2)
    ]
    for stream in topic.parts:
        head = stream.head()
        assert (head.status, head.headers["content-type"]) == (200, JSON)
    assert topic.show().json == found
    assert server.ask("HEAD", topic.target).headers["topic-partitions"] == "3"


def test_a_topic_says_since_when_it_recognises_duplicates(server: Server) -> None:
    topic = Topic(server)
    made = topic.put(2, content_type=TEXT)
    shown = ("appended", "dedup", "dedup_from", "dedup_source", "dedup_pending")
    assert [made.json[each] for each in shown] == [0, "on", 0, "built-in", None]
    assert "stream-dedup-source" not in made.headers
    topic.post(b"a")
    off = topic.patch(dedup="off")
    assert [off.json[each] for each in shown] == [1, "off", None, "own", None]
    assert off.headers["stream-dedup"] == "off"
    topic.post(b"b")
    on = topic.patch(dedup="on")
    assert [on.json[each] for each in shown] == [2, "on", 2, "own", None]
    head = server.ask("HEAD", topic.target).headers
    assert on.headers["stream-dedup-from"] == head["stream-dedup-from"] == offset_of(2)
    topic.patch(dedup="inherit")
    policy = f"/v1/policies?prefix={topic.name}"
    assert server.ask("PUT", policy, b'{"dedup":"off"}', content_type=JSON).status == 201
    assert topic.show().json["dedup_pending"] == "off"
    assert topic.show().headers["stream-dedup-pending"] == "off"
    assert topic.show().json["dedup_policy"] == topic.name


def test_the_default_is_crc32_and_bytes(server: Server) -> None:
    topic = Topic(server)
    found = topic.put(1).json
    assert (found["partitioner"], found["content_type"]) == ("crc32", "application/octet-stream")


@pytest.mark.parametrize("taken", ["stream", "fork source", "name", "partition of another"])
def test_a_taken_path_is_named_and_nothing_is_made(server: Server, taken: str) -> None:
    topic = Topic(server)
    stream = topic.part(1)
    if taken == "name":
        stream = server.stream(topic.name)
    if taken == "partition of another":
        other = Topic(server, f"{topic.name}/1").create(1)
        stream = server.stream(other.name)
    else:
        stream.create(b"x")
    if taken == "fork source":  # it is only soft-deleted
        assert server.stream().put(stream_forked_from=stream.target).status == 201
        assert stream.delete().status == 204
    answer = topic.put(3)
    assert refusal(answer) == (409, "stream_exists")
    assert answer.json["paths"] == [stream.path]
    assert refusal(topic.show()) == (404, "topic_not_found")
    assert [topic.part(n).head().status for n in (0, 2)] == [404, 404]


def test_all_taken_paths_are_in_the_list(server: Server) -> None:
    topic = Topic(server)
    for partition in (2, 0):
        topic.part(partition).create()
    answer = topic.put(4)
    assert answer.json["paths"] == [f"{topic.name}/0", f"{topic.name}/2"]


@pytest.mark.parametrize("name", ["__semel/x", "__semel/dead/g", "__semel/retry/g"])
def test_a_reserved_name_makes_no_topic(server: Server, name: str) -> None:
    answer = Topic(server, name).put(2)
    assert refusal(answer) in [(403, "reserved_stream"), (409, "stream_exists")]
    assert Topic(server, name).show().status != 200


def test_the_same_topic_again_is_200_and_changes_nothing(topic: Topic) -> None:
    first = topic.show().json
    again = topic.put(3, content_type="Text/Plain")
    assert (again.status, again.json) == (200, first)


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("partitions", {"partitions": 4}),
        ("partitions", {"partitions": 2}),
        ("content_type", {"content_type": JSON}),
        ("partitioner", {"partitioner": "murmur2"}),
        ("ttl", {"ttl_seconds": 60}),
        ("expires_at", {"expires_at": "2099-01-01T00:00:00Z"}),
        ("dedup", {"dedup": "off"}),
    ],
)
def test_another_configuration_is_409(topic: Topic, field: str, change: dict[str, Any]) -> None:
    answer = topic.put(**{"partitions": 3, "content_type": TEXT, **change})
    assert refusal(answer) == (409, "topic_conflict")
    assert answer.json["field"] == field
    assert len(topic.parts) == 3


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"partitions": 0},
        {"partitions": 1_001},
        {"partitions": -1},
        {"partitions": 2**60},
        {"partitions": True},
        {"partitions": 1.5},
        {"partitions": "3"},
        {"partitions": None},
        {"partitions": 3, "extra": 1},
        {"partitions": 3, "partitioner": "md5"},
        {"partitions": 3, "partitioner": None},
        {"partitions": 3, "content_type": ""},
        {"partitions": 3, "content_type": "a\nb: c"},
        {"partitions": 3, "content_type": BATCH},
        {"partitions": 3, "content_type": TOPIC_BATCH},
        {"partitions": 3, "ttl_seconds": -1},
        {"partitions": 3, "ttl_seconds": 1, "expires_at": "2099-01-01T00:00:00Z"},
        {"partitions": 3, "expires_at": "soon"},
        {"partitions": 3, "dedup": "inherit"},
        [],
        3,
    ],
)
def test_a_topic_that_cannot_be_is_400(server: Server, document: Any) -> None:
    topic = Topic(server)
    answer = call(server, "PUT", topic.target, document)
    assert answer.status == 400, answer
    assert answer.code
    assert topic.show().status == 404
    assert topic.part(0).head().status == 404


def test_a_thousand_partitions_are_the_most(server: Server) -> None:
    topic = Topic(server).create(1_000)
    assert len(topic.parts) == 1_000
    refused = topic.patch(partitions=1_001)
    assert refusal(refused) == (400, "invalid_request")
    assert topic.post(b"x", stream_partition=999).json["parts"][0]["partition"] == 999
    assert topic.delete().status == 204


def test_creation_growth_an_append_and_a_deletion_are_one_frame_each(data: Path) -> None:
    with sound_server(data) as server:
        topic = Topic(server, "orders")
        counts = [Counter(frames_of(data))]
        topic.create(50, JSON)
        counts.append(Counter(frames_of(data)))
        body = msgspec.json.encode([{"k": key_for(n, 50)} for n in range(50)])
        answer = topic.post(body, content_type=JSON, message_key_pointer="/k")
        assert len(parts_of(answer)) == 50
        counts.append(Counter(frames_of(data)))
        assert topic.patch(partitions=100, keys_may_move=True).status == 200
        counts.append(Counter(frames_of(data)))
        assert topic.delete().status == 204
        counts.append(Counter(frames_of(data)))
    for before, after in pairwise(counts):
        assert sum((after - before).values()) == 1, after - before


@pytest.mark.crash
def test_doctor_finds_nothing_wrong_with_topics_and_groups(data: Path) -> None:
    server = Server(data)
    try:
        topic = Topic(server, "t").create(3, JSON)
        gone = Topic(server, "gone").create(2, JSON)
        for n in range(2):
            assert send(topic, BODIES[n], **MODES["dense"][n]).status == 200
            assert send(topic, BODIES[n], **MODES["key"][n]).status == 200
            assert send(gone, BODIES[n]).status == 200
            txn = begun_on(topic)
            assert in_txn(topic, txn, 0, ["a", "b", "c"]).status == 200
            assert txn.call("abort" if n else "commit").status == 200
            staged = Txn(server)
            assert staged.begin(kind="staged", implicit=True).status == 201
            assert stage(topic, staged, 0, ["a", "b", "c"]).status == 200
            assert staged.commit().status == 200
            member = join(server, "g", topics=["t"])
            assert member.move(topic.part(0), 1).status == 200
            assert member.leave().status == 204
            if n == 0:
                assert topic.patch(partitions=5, keys_may_move=True).status == 200
                assert gone.delete().status == 204
                gone.create(2, JSON)
                server.signal(15)  # an orderly end writes a checkpoint
                assert server.wait() == 0
                server.kill()
                verified(data)
                server = Server(data)
                topic.server = gone.server = server
        server.kill()
        verified(data)
    finally:
        server.kill()


def verified(data: Path) -> None:
    code = [str(SEMEL), "doctor", "--data", str(data), "--json", "--verify"]
    found = subprocess.run(code, check=False, capture_output=True, text=True)
    report = msgspec.json.decode(found.stdout)["verify"]
    assert report["is_sound"], report


def test_the_list_has_pages_and_a_prefix(server: Server) -> None:
    word = fresh("page")
    for n in range(3):
        Topic(server, f"{word}/{n}x").create(1)
    target = f"/v1/topics?prefix={word}"
    found = call(server, "GET", target).json
    assert [each["topic"] for each in found["topics"]] == [f"{word}/{n}x" for n in range(3)]
    assert found["next"] is None
    first = call(server, "GET", f"{target}&limit=2").json
    assert [each["topic"] for each in first["topics"]] == [f"{word}/0x", f"{word}/1x"]
    rest = call(server, "GET", f"{target}&limit=2&after={first['next']}").json
    assert [each["topic"] for each in rest["topics"]] == [f"{word}/2x"]
    assert rest["next"] is None


# ---- partition streams ---------------------------------------------------------------------------


def test_a_partition_is_read_and_written_like_any_stream(topic: Topic) -> None:
    stream = topic.part(1)
    waiting = Later(stream, f"offset={offset_of(0)}&live=long-poll")
    topic.post(b"a", stream_partition=1)
    assert waiting.answer().body == b"a"
    direct = stream.post(b"b")
    assert (direct.status, direct.next_offset) == (204, offset_of(2))
    assert topic.texts() == ["", "ab", ""]
    with stream.listen(offset_of(1)) as events:
        event = events.next()
        assert event is not None
        assert event.data == "b"


def test_a_partition_has_positions_forks_and_a_head(topic: Topic) -> None:
    stream, fork, group = topic.part(2), topic.server.stream(), fresh("g")
    topic.post(b"a", stream_partition=2)
    topic.post(b"b", stream_partition=2)
    moved = call(topic.server, "POST", f"/v1/groups/{group}/offsets", {"offsets": {stream.path: 1}})
    assert moved.status == 200
    assert positions(topic.server, group) == {stream.path: offset_of(1)}
    assert fork.put(stream_forked_from=stream.target).status == 201
    assert fork.post(b"c").status == 204
    assert (fork.text, stream.text) == ("abc", "ab")
    assert fork.delete().status == 204, "the fork itself is not in the topic"
    assert stream.delete("before=1").status == 204, "a partition can be trimmed"
    assert stream.get("offset=-1").status in (200, 410)
    assert stream.get(f"offset={offset_of(1)}").body == b"b"
    assert topic.show().json["partitions"][2]["first_offset"] == offset_of(1)


def test_what_is_the_topics_is_refused_for_a_partition(topic: Topic) -> None:
    server, stream = topic.server, topic.part(0)
    refused: list[Answer] = [
        stream.delete(),
        stream.post(stream_closed="true"),
        stream.post(b"last", stream_closed="true"),
        stream.put(content_type=TEXT, stream_closed="true"),
        stream.put(content_type=TEXT, stream_ttl="60"),
        stream.put(content_type=TEXT, stream_expires_at="2099-01-01T00:00:00Z"),
        stream.put(content_type=TEXT, stream_dedup="off"),
        server.ask("PATCH", stream.target, stream_dedup="off"),
        server.ask("PATCH", stream.target, stream_dedup="inherit"),
    ]
    for answer in refused:
        assert refusal(answer) == (409, "stream_in_topic"), answer
        assert answer.json["topic"] == topic.name
        assert answer.json["applied"] == "no"
    assert topic.show().json["closed"] is False
    assert stream.post(b"x").status == 204
    assert stream.text == "x"


def test_a_put_of_a_partition_as_it_is_finds_it(topic: Topic) -> None:
    assert topic.part(0).put(content_type=TEXT).status == 200
    other = topic.part(0).put(content_type=JSON)
    assert other.status == 409


def test_a_stream_beside_the_partitions_is_no_partition(topic: Topic) -> None:
    beside = topic.part(7)
    beside.create(b"x")
    assert beside.delete().status == 204
    beside.create(b"x")
    answer = topic.patch(partitions=8)
    assert refusal(answer) == (409, "stream_exists")
    assert answer.json["paths"] == [beside.path]
    assert len(topic.parts) == 3, "nothing was created"


def test_a_topic_is_not_a_stream(topic: Topic) -> None:
    stream = topic.server.stream(topic.name)
    for answer in (
        stream.get(),
        stream.post(b"x"),
        stream.put(content_type=TEXT),
        stream.delete(),
        stream.delete("before=0"),
        topic.server.stream().put(stream_forked_from=stream.target),
    ):
        assert refusal(answer) == (409, "is_topic"), answer
    assert stream.head().status == 409
    assert topic.show().status == 200


def test_a_stream_is_not_a_topic(stream: Stream) -> None:
    stream.create()
    topic = Topic(stream.server, stream.path)
    for answer in (topic.show(), topic.post(b"x"), topic.patch(partitions=2), topic.delete()):
        assert refusal(answer) == (404, "topic_not_found")


def test_a_closed_topic_takes_nothing_in_any_partition(topic: Topic) -> None:
    topic.post(b"a", stream_partition=0)
    assert topic.patch(closed=True).status == 200
    assert topic.patch(closed=True).status == 200
    assert refusal(topic.post(b"b")) == (409, "stream_closed")
    assert refusal(topic.part(1).post(b"b")) == (409, "stream_closed")
    assert refusal(topic.patch(partitions=4)) == (409, "stream_closed")
    for stream in topic.parts:
        assert stream.get("offset=-1").headers["stream-closed"] == "true"
    assert topic.show().json["closed"] is True


# ---- time to live --------------------------------------------------------------------------------


@pytest.mark.parametrize("use", ["topic", "direct", "read"])
def test_the_ttl_of_a_topic_looks_at_the_last_use_of_any_partition(
    shared: Machine, use: str
) -> None:
    topic = Topic(shared.server).create(2, ttl_seconds=10)
    for _ in range(4):
        shared.let_pass(6 * SECOND_MS)
        if use == "topic":
            assert topic.post(b"x", stream_partition=1).status == 200
        elif use == "direct":
            assert topic.part(1).post(b"x").status == 204
        else:
            assert topic.part(1).get("offset=-1").status == 200
    assert topic.part(0).head().status == 200, "the partition that nobody used"
    shared.let_pass(11 * SECOND_MS)
    assert eventually(lambda: topic.show().status == 404)
    assert [topic.part(n).head().status for n in (0, 1)] == [404, 404]


def test_a_topic_expires_as_a_whole(shared: Machine) -> None:
    topic = Topic(shared.server).create(2, ttl_seconds=10)
    shared.let_pass(5 * SECOND_MS)
    assert topic.put(2, content_type=TEXT, ttl_seconds=10).status == 200
    shared.let_pass(11 * SECOND_MS)
    assert topic.part(1).head().status == 404
    assert topic.post(b"x").status == 404
    assert topic.put(3, content_type=TEXT).status == 201, "the name is free again"


# ---- delete --------------------------------------------------------------------------------------


def test_a_topic_is_deleted_with_its_streams(topic: Topic) -> None:
    streams, group = topic.parts, fresh("g")
    moves = {"offsets": {stream.path: 0 for stream in streams}}
    assert call(topic.server, "POST", f"/v1/groups/{group}/offsets", moves).status == 200
    topic.post(b"x")
    assert topic.delete().status == 204
    assert refusal(topic.delete()) == (404, "topic_not_found")
    assert refusal(topic.post(b"x")) == (404, "topic_not_found")
    assert [stream.head().status for stream in streams] == [404] * 3
    assert positions(topic.server, group) == {}
    assert topic.put(2).status == 201
    assert topic.tails == [0, 0]


def test_forks_keep_their_partitions_and_the_name(topic: Topic) -> None:
    source, fork = topic.part(1), topic.server.stream()
    topic.post(b"a", stream_partition=1)
    assert fork.put(stream_forked_from=source.target).status == 201
    assert topic.delete().status == 204
    assert topic.part(0).head().status == 404
    assert source.head().status == 410
    assert topic.show().status in (404, 410)
    assert topic.post(b"x").status in (404, 410)
    assert fork.text == "a"
    answer = topic.put(3)
    assert refusal(answer) == (409, "stream_exists")
    assert source.path in answer.json["paths"]
    assert fork.delete().status == 204
    assert topic.put(3).status == 201, "the forks are gone, so the name is free"


# ---- keys ----------------------------------------------------------------------------------------


# The values are those of `kafka-python` and of Kafka's own test, UtilsTest.testMurmur2.
JAVA_HASHES: Final = {
    "21": -973932308,
    "foobar": -790332482,
    "a-little-bit-long-string": -985981536,
    "a-little-bit-longer-string": -1486304829,
    "lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
}


def test_the_header_selects_the_partition_as_librdkafka_does(server: Server) -> None:
    topic = Topic(server).create(7)
    for key in ("a", "b", "customer-17", "x y", "%41", "21", '"quoted"', "~"):
        (partition,) = parts_of(topic.post(b"x", message_key=key))
        assert partition == crc32(key.encode()) % 7
        assert keys_in(topic.part(partition))[-1] == key.encode(), "the key is stored as it is"


def test_murmur2_selects_the_partition_as_javas_client_does(server: Server) -> None:
    topic = Topic(server).create(7, partitioner="murmur2")
    for key, value in JAVA_HASHES.items():
        (partition,) = parts_of(topic.post(b"x", message_key=key))
        assert partition == (value & 0x7FFF_FFFF) % 7


@pytest.mark.parametrize("key", ["é", "日本語", "a/b", "line\nend", "\x00", "%", "🙂"])
def test_any_text_is_a_key_in_the_form_of_rfc_8187(topic: Topic, key: str) -> None:
    raw = {"message_key*": "UTF-8''" + quote(key, safe="")}
    answer = topic.post(b"x", **raw)
    (partition,) = parts_of(answer)
    assert partition == crc32(key.encode()) % 3
    assert keys_in(topic.part(partition)) == [key.encode()]


@pytest.mark.parametrize(
    "headers",
    [
        {"message_key": "\xe9"},
        {"message_key": "a\tb"},
        {"message_key": "a", "message_key*": "UTF-8''a"},
        {"message_key*": "a"},
        {"message_key*": "UTF-8''%"},
        {"message_key*": "UTF-8''%zz"},
        {"message_key*": "UTF-8''%ff"},
        {"message_key*": "UTF-16''a"},
        {"message_key*": "iso-8859-1''%e9"},
        {"message_key*": "UTF-8''a b"},
        {"message_key": "a", "message_key_pointer": "/a"},
        {"message_key_pointer": "/a"},
        {"stream_partition": "-1"},
        {"stream_partition": "01"},
        {"stream_partition": "1.0"},
        {"stream_partition": "x"},
        {"stream_partition": ""},
        {"stream_partition": "1" * 40},
        {"stream_partition": "1", "topic_partition_hint": "1"},
        {"topic_partition_hint": "x"},
        {"topic_partition_hint": "-1"},
        {"topic_partitions": "0"},
        {"topic_partitions": "three"},
        {"topic_partitions": "1001"},
        {"topic_partitions": "3;partitioner=md5"},
        {"topic_partitions": "3;seed=1"},
        {"stream_closed": "true"},
        {"stream_seq": "a"},
        {"if_match": offset_of(0)},
        {"x_producer_id": "p", "x_producer_seq": "0"},
    ],
)
def test_headers_that_cannot_be_are_400(topic: Topic, headers: dict[str, str]) -> None:
    answer = topic.post(b"x", **headers)
    assert answer.status == 400, answer
    assert answer.json["applied"] == "no"
    assert topic.tails == [0, 0, 0]


def test_a_key_has_at_most_64_kib(server: Server, objects: Topic) -> None:
    for size, status in ((MESSAGE_KEY_BYTES_MAX, 200), (MESSAGE_KEY_BYTES_MAX + 1, 400)):
        body = msgspec.json.encode([{"k": "x" * size}])
        answer = objects.post(body, content_type=JSON, message_key_pointer="/k")
        assert answer.status == status, answer
    assert server.is_sound()


def test_a_pointer_finds_strings_and_integers(objects: Topic) -> None:
    values = ["a", "é", "", "a\nb", 7, -7, 0, 12345678901234567890]
    wanted = ["a", "é", "", "a\nb", "7", "-7", "0", "12345678901234567890"]
    body = msgspec.json.encode([{"customer": {"id": value}} for value in values])
    answer = objects.post(body, content_type=JSON, message_key_pointer="/customer/id")
    counts = Counter(crc32(key.encode()) % 3 for key in wanted)
    assert {n: end - start for n, (start, end) in parts_of(answer).items()} == dict(counts)
    for partition, stream in enumerate(objects.parts):
        mine = [key.encode() for key in wanted if crc32(key.encode()) % 3 == partition]
        assert keys_in(stream) == mine, "the order within a partition is that of the request"


@pytest.mark.parametrize(
    ("pointer", "message", "key"),
    [
        ("/a~1b", {"a/b": "k"}, "k"),
        ("/a~0b", {"a~b": "k"}, "k"),
        ("/a~01", {"a~1": "k"}, "k"),
        ("/", {"": "k"}, "k"),
        ("//x", {"": {"x": "k"}}, "k"),
        ("/list/1", {"list": ["no", "k"]}, "k"),
        ("/0", {"0": "k"}, "k"),
        ("/a b", {"a b": 5}, "5"),
    ],
)
def test_a_pointer_is_that_of_rfc_6901(
    objects: Topic, pointer: str, message: Any, key: str
) -> None:
    body = msgspec.json.encode([message])
    answer = objects.post(body, content_type=JSON, message_key_pointer=pointer)
    (partition,) = parts_of(answer)
    assert keys_in(objects.part(partition)) == [key.encode()]


@pytest.mark.parametrize(
    "value",
    [b"null", b"true", b"1.5", b"1e3", b"-0.0", b"{}", b'{"a":1}', b"[]", b'["k"]', b"missing"],
)
def test_any_other_value_is_400_and_names_the_index(objects: Topic, value: bytes) -> None:
    bad = b"{}" if value == b"missing" else b'{"id":%b}' % value
    body = b'[{"id":"a"},{"id":1},%b,{"id":"b"}]' % bad
    answer = objects.post(body, content_type=JSON, message_key_pointer="/id")
    assert answer.status == 400, answer
    assert answer.code == "bad_body"
    assert "message 2 " in answer.json["message"]
    assert objects.tails == [0, 0, 0], "all or nothing"


@pytest.mark.parametrize("message", [b"1", b'"id"', b"null", b"[]", b'[{"id":"a"}]'])
def test_a_message_that_is_no_object_has_no_member(objects: Topic, message: bytes) -> None:
    answer = objects.post(b"[%b]" % message, content_type=JSON, message_key_pointer="/id")
    assert answer.status == 400
    assert "message 0 " in answer.json["message"]


@pytest.mark.parametrize("pointer", ["id", "#/id", "/a~2", "/a~", "", "/" + "x" * 2000, "\xe9"])
def test_what_is_no_pointer_is_400(objects: Topic, pointer: str) -> None:
    answer = objects.post(b'[{"id":"a"}]', content_type=JSON, message_key_pointer=pointer)
    assert answer.status == 400, answer
    assert objects.tails == [0, 0, 0]


def test_the_batch_format_brings_any_bytes_as_keys(topic: Topic) -> None:
    keys = [b"\xff\x00", b"a", None, b"", b"\xff\x00"]
    messages = [b"%d" % n for n in range(5)]
    answer = topic.post(
        encode_batch(TEXT, messages, keys=keys), content_type=BATCH, topic_partition_hint=2
    )
    assert answer.status == 200, answer
    wanted: list[list[bytes]] = [[], [], []]
    stored: list[list[bytes | None]] = [[], [], []]
    for key, message in zip(keys, messages, strict=True):
        partition = 2 if key is None else crc32(key) % 3
        wanted[partition].append(message)
        stored[partition].append(key)
    assert [stream.text.encode() for stream in topic.parts] == [b"".join(each) for each in wanted]
    assert [keys_in(stream) for stream in topic.parts] == stored


def test_a_batch_keeps_headers_and_times_in_every_partition(topic: Topic) -> None:
    keys = [key_for(0, 3).encode(), key_for(1, 3).encode(), key_for(0, 3).encode()]
    headers = [[("n", b"0")], [("n", b"1")], []]
    times = [10, 11, 12]
    body = encode_batch(TEXT, [b"a", b"b", b"c"], keys=keys, headers=headers, timestamps=times)
    assert topic.post(body, content_type=BATCH).status == 200
    (first,) = decode_frames(topic.part(0).get("offset=-1", accept=FRAMES).body).slices
    (second,) = decode_frames(topic.part(1).get("offset=-1", accept=FRAMES).body).slices
    assert (first.headers(), first.timestamps()) == ([[("n", b"0")], []], [10, 12])
    assert (second.headers(), second.timestamps()) == ([[("n", b"1")]], [11])


def test_a_partition_can_be_picked_by_hand(topic: Topic) -> None:
    key = key_for(0, 3)
    answer = topic.post(b"x", message_key=key, stream_partition=2)
    assert parts_of(answer) == {2: (0, 1)}
    assert answer.headers["stream-partition"] == "2"
    assert answer.headers["stream-next-offset"] == offset_of(1)
    assert keys_in(topic.part(2)) == [key.encode()]
    beyond = topic.post(b"x", stream_partition=3)
    assert refusal(beyond) == (404, "partition_not_found")


def test_without_a_key_the_hint_or_the_message_selects(topic: Topic) -> None:
    for hint in (0, 1, 2, 5, 2**53 - 1):
        assert list(parts_of(topic.post(b"x", topic_partition_hint=hint))) == [hint % 3]
    chosen = [list(parts_of(topic.post(b"message %d" % n))) for n in range(12)]
    again = [list(parts_of(topic.post(b"message %d" % n))) for n in range(12)]
    assert chosen == again, "a retry goes to the same place"
    assert len({each[0] for each in chosen}) == 3, "different messages are spread"
    keyed = topic.post(b"x", message_key=key_for(0, 3), topic_partition_hint=1)
    assert list(parts_of(keyed)) == [0], "a key is stronger than a hint"


@pytest.mark.parametrize("key", ["", " "])
def test_an_empty_key_is_either_a_key_or_refused(topic: Topic, key: str) -> None:
    answer = topic.post(b"x", message_key=key)
    if answer.status == 200:
        (partition,) = parts_of(answer)
        assert partition == crc32(b"") % 3
        assert keys_in(topic.part(partition)) == [b""]
    else:
        assert answer.status == 400
        assert topic.tails == [0, 0, 0]
    extended = topic.post(b"y", **{"message_key*": "UTF-8''"})
    assert extended.status in (200, 400)


# ---- all or nothing ------------------------------------------------------------------------------


@pytest.mark.parametrize("body", [b"", b"[]", b"[1,", b"[1,]", b"{}}", b"[1]x", b'["\xff"]'])
def test_a_bad_body_stores_nothing(objects: Topic, body: bytes) -> None:
    answer = objects.post(body, content_type=JSON)
    assert answer.status == 400, answer
    assert objects.tails == [0, 0, 0]


def test_another_media_type_is_409(topic: Topic) -> None:
    answer = topic.post(b"[1]", content_type=JSON)
    assert refusal(answer) == (409, "content_type_conflict")
    missing = topic.server.raw(
        b"POST %b HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nConnection: close\r\n\r\nx"
        % topic.target.encode()
    )
    assert missing is not None
    assert refusal(missing) == (400, "missing_content_type")


def test_too_large_a_request_is_413_before_anything_is_decided(topic: Topic) -> None:
    large = topic.post(b"x" * (BODY_BYTES_MAX + 1))
    assert refusal(large) == (413, "body_too_large")
    keys = topic.post(
        b"[" + b",".join([b"1"] * 5_000) + b"]", content_type=JSON, message_key="k" * 4_000
    )
    assert keys.status in (409, 413), "the key of every message is stored"
    assert topic.tails == [0, 0, 0]


def test_the_keys_of_all_messages_count_towards_the_size(objects: Topic) -> None:
    body = b"[" + b",".join([b"1"] * 5_000) + b"]"
    answer = objects.post(body, content_type=JSON, message_key="k" * 4_000)
    assert refusal(answer) == (413, "body_too_large")
    assert objects.tails == [0, 0, 0]


# ---- the count the caller hashed with ------------------------------------------------------------


def grouped(keys: list[bytes], partitions: int, content_type: str = TEXT) -> bytes:
    """Return a topic batch of messages that are equal to their keys."""
    parts: dict[int, list[bytes]] = {}
    for key in keys:
        parts.setdefault(crc32(key) % partitions, []).append(key)
    return encode_parts(
        {n: encode_batch(content_type, each, keys=each) for n, each in parts.items()}
    )


def test_what_the_client_has_grouped_is_stored_where_the_server_would_store_it(
    server: Server,
) -> None:
    keys = [b"key-%d;" % n for n in range(30)]
    by_client, by_server = Topic(server).create(5), Topic(server).create(5)
    mine = by_client.post(grouped(keys, 5), content_type=TOPIC_BATCH, topic_partitions=5)
    theirs = by_server.post(encode_batch(TEXT, keys, keys=keys), content_type=BATCH)
    assert parts_of(mine) == parts_of(theirs)
    assert by_client.texts() == by_server.texts()
    assert by_client.show().json["keyed"] is True


def test_an_append_to_one_partition_ignores_the_headers_of_a_topic(topic: Topic) -> None:
    stream = topic.part(0)
    headers = {"message_key": "k", "topic_partitions": "9", "stream_partition": "2"}
    answer = stream.post(b"x", content_type=TEXT, **headers)
    assert answer.status in (200, 204)
    assert topic.tails == [1, 0, 0]
    assert topic.show().json["keyed"] is False


def test_a_count_that_is_not_the_topics_is_409_and_stores_nothing(topic: Topic) -> None:
    body = grouped([b"a", b"b"], 2)
    answer = topic.post(body, content_type=TOPIC_BATCH, topic_partitions=2)
    assert refusal(answer) == (409, "partitions_changed")
    assert answer.json["partitions"] == 3
    single = topic.post(b"x", topic_partitions=4)
    assert refusal(single) == (409, "partitions_changed")
    assert topic.tails == [0, 0, 0]
    right = topic.post(b"x", topic_partitions=3)
    assert right.status == 200


def test_a_partitioner_that_is_not_the_topics_is_409_and_stores_nothing(topic: Topic) -> None:
    body = grouped([b"a", b"b"], 3)
    murmur2 = "3;partitioner=murmur2"
    answer = topic.post(body, content_type=TOPIC_BATCH, topic_partitions=murmur2)
    assert refusal(answer) == (409, "partitions_changed")
    assert (answer.json["partitions"], answer.json["partitioner"]) == (3, "crc32")
    assert refusal(topic.post(b"x", topic_partitions=murmur2)) == (409, "partitions_changed")
    assert topic.tails == [0, 0, 0]
    for value in ("3;partitioner=crc32", "3"):
        assert topic.post(body, content_type=TOPIC_BATCH, topic_partitions=value).status == 200


def test_a_topic_batch_needs_the_count(topic: Topic) -> None:
    answer = topic.post(grouped([b"a"], 3), content_type=TOPIC_BATCH)
    assert answer.status == 400
    assert topic.tails == [0, 0, 0]


@pytest.mark.parametrize("damage", ["empty", "cut", "more", "order", "twice", "beyond", "types"])
def test_a_damaged_topic_batch_stores_nothing(topic: Topic, damage: str) -> None:
    part = encode_batch(TEXT, [b"x"])
    good = encode_parts({0: part, 1: part})
    pair = good[8 : 8 + 8 + len(part)]
    second = good[8 + len(pair) :]
    body = {
        "empty": good[:4] + (0).to_bytes(4, "little"),
        "cut": good[:-1],
        "more": good + b"x",
        "order": good[:8] + second + pair,
        "twice": good[:8] + pair + pair,
        "beyond": encode_parts({0: part, 3: part}),
        "types": encode_parts({0: part, 1: encode_batch(JSON, [b"1"])}),
    }[damage]
    answer = topic.post(body, content_type=TOPIC_BATCH, topic_partitions=3)
    assert answer.status in (400, 404), answer
    assert answer.code
    assert topic.tails == [0, 0, 0]


# ---- growth --------------------------------------------------------------------------------------


def test_a_topic_without_keys_grows(topic: Topic) -> None:
    topic.post(b"a", stream_partition=1)
    answer = topic.patch(partitions=5)
    assert answer.status == 200
    assert answer.headers["topic-partitions"] == "5"
    assert len(topic.parts) == 5
    assert answer.json["moved_at"] == [offset_of(0), offset_of(1), offset_of(0)]
    head = topic.server.ask("HEAD", topic.target)
    assert head.headers["topic-growth-offsets"] == ",".join(answer.json["moved_at"])
    assert topic.post(b"x", stream_partition=4).status == 200


def test_after_a_keyed_append_growth_has_to_be_allowed(topic: Topic) -> None:
    key = next(
        key_for(0, 3, other=n) for n in range(50) if crc32(key_for(0, 3, other=n).encode()) % 4
    )
    topic.post(b"a", message_key=key)
    assert refusal(topic.patch(partitions=4)) == (409, "keys_would_move")
    assert refusal(topic.patch(partitions=4, keys_may_move=False)) == (409, "keys_would_move")
    assert len(topic.parts) == 3
    grown = topic.patch(partitions=4, keys_may_move=True)
    assert grown.json["moved_at"] == [offset_of(1), offset_of(0), offset_of(0)]
    (partition,) = parts_of(topic.post(b"b", message_key=key))
    assert partition == crc32(key.encode()) % 4 != 0


@pytest.mark.parametrize("way", ["pointer", "batch", "direct", "commit", "staged"])
def test_every_way_of_sending_a_key_counts(server: Server, way: str) -> None:
    topic = Topic(server).create(2, JSON)
    if way == "pointer":
        answer = topic.post(b'[{"k":1}]', content_type=JSON, message_key_pointer="/k")
    elif way == "batch":
        answer = topic.post(encode_batch(JSON, [b"1"], keys=[b"k"]), content_type=BATCH)
    elif way == "direct":
        body = encode_batch(JSON, [b"1"], keys=[b"k"])
        assert topic.part(0).post(body, content_type=BATCH).status == 204
        answer = topic.show()
    elif way == "commit":
        appends = [{"stream": topic.name, "messages": [1], "keys": ["k"]}]
        answer = commit(
            server, producer_id=fresh("p"), producer_epoch=0, producer_seq=0, appends=appends
        )
    else:
        txn = Txn(server)
        txn.begin(kind="staged", implicit=True)
        answer = topic.post(
            b"1",
            content_type=JSON,
            message_key="k",
            transaction_id=txn.id,
            transaction_epoch=txn.epoch,
            transaction_seq=0,
        )
    assert answer.status == 200, answer
    assert refusal(topic.patch(partitions=3)) == (409, "keys_would_move")


def test_a_topic_never_shrinks_and_the_same_count_is_no_growth(topic: Topic) -> None:
    answer = topic.patch(partitions=2)
    assert refusal(answer) == (409, "too_few_partitions")
    assert topic.patch(partitions=3).status == 200
    assert topic.show().json["growths"] == []


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"partitions": 0},
        {"partitions": "4"},
        {"partitions": 4, "closed": True},
        {"keys_may_move": True},
        {"closed": False},
        {"dedup": "maybe"},
        {"dedup": "on", "keys_may_move": True},
        {"name": "x"},
    ],
)
def test_a_change_that_cannot_be_is_400(topic: Topic, change: dict[str, Any]) -> None:
    before = topic.show().json
    answer = topic.patch(**change)
    assert answer.status == 400, answer
    assert topic.show().json == before


# ---- producers -----------------------------------------------------------------------------------

MODES: Final[dict[str, list[dict[str, Any]]]] = {
    "dense": [{"producer_id": "p", "producer_epoch": 0, "producer_seq": n} for n in range(3)],
    "session": [{"producer_id": "p", "producer_session": "s", "producer_seq": n} for n in range(3)],
    "sparse": [
        {"producer_id": "p", "producer_mode": "sparse", "producer_seq": seq}
        for seq in ("5", "7-9", "100")
    ],
    "key": [{"idempotency_key": f"key {n}"} for n in range(3)],
}
BODIES: Final = [
    msgspec.json.encode([{"k": f"{n}-{i}"} for i in range(12)]) for n in range(len(MODES["dense"]))
]


def send(topic: Topic, body: bytes, **headers: Any) -> Answer:
    return topic.post(body, content_type=JSON, message_key_pointer="/k", **headers)


@pytest.mark.parametrize("mode", MODES)
def test_a_duplicate_gets_the_first_parts_in_every_mode(objects: Topic, mode: str) -> None:
    first = [send(objects, body, **more) for body, more in zip(BODIES, MODES[mode], strict=True)]
    assert [answer.status for answer in first] == [200] * 3
    assert all(len(parts_of(answer)) == 3 for answer in first), "over several partitions"
    tails = objects.tails
    assert sum(tails) == 36
    objects.post(b'["other"]', content_type=JSON)
    assert objects.patch(partitions=5, keys_may_move=True).status == 200
    for body, more, answer in zip(BODIES, MODES[mode], first, strict=True):
        again = send(objects, body, **more)
        assert is_repeat_of(again, answer), again
        # A client that grouped for three partitions sends its retry as it was.
        late = send(objects, body, topic_partitions=3, **more)
        assert is_repeat_of(late, answer), late
    assert sum(objects.tails) == 37


@pytest.mark.crash
def test_duplicates_get_the_first_parts_after_a_kill(data: Path) -> None:
    server = Server(data)
    try:
        topics = {mode: Topic(server, mode).create(3, JSON) for mode in MODES}
        first = {
            mode: [
                send(topics[mode], body, **more)
                for body, more in zip(BODIES, MODES[mode], strict=True)
            ]
            for mode in MODES
        }
        for topic in topics.values():
            assert topic.patch(partitions=4, keys_may_move=True).status == 200
        for stop in ("kill", "checkpoint"):
            if stop == "checkpoint":  # an orderly end writes one
                server.signal(15)
                assert server.wait() == 0
            server.kill()
            server = Server(data)
            for mode in MODES:
                topic = Topic(server, mode)
                for body, more, answer in zip(BODIES, MODES[mode], first[mode], strict=True):
                    again = send(topic, body, **more)
                    assert is_repeat_of(again, answer), (mode, stop, again)
                assert sum(topic.tails) == 36
                found = topic.show().json
                assert (found["partition_count"], found["keyed"]) == (4, True)
                assert len(found["growths"]) == 1
    finally:
        server.kill()


def test_the_receipts_of_old_appends_expire(topic: Topic) -> None:
    def post(n: int) -> Answer:
        return topic.post(
            b"m%d" % n, producer_id="p", producer_epoch=0, producer_seq=n, message_key=f"k{n}"
        )

    first = [post(n) for n in range(RECEIPTS_DEFAULT + 3)]
    assert is_repeat_of(post(0), first[0]), "the first of an epoch is always retained"
    old = post(1)
    assert old.status == 200
    assert (old.json["duplicate"], old.json["parts"]) == (True, None)
    assert old.headers["producer-receipt"] == "expired"
    assert is_repeat_of(post(4), first[4])
    assert sum(topic.tails) == RECEIPTS_DEFAULT + 3


def test_a_gap_a_stale_epoch_and_another_payload_are_as_on_a_stream(topic: Topic) -> None:
    def post(body: bytes, epoch: int, seq: int) -> Answer:
        return topic.post(body, producer_id="p", producer_epoch=epoch, producer_seq=seq)

    assert post(b"a", 1, 0).status == 200
    gap = post(b"c", 1, 2)
    assert (gap.status, gap.json["expected_seq"]) == (409, 1)
    assert gap.headers["producer-expected-seq"] == "1"
    stale = post(b"a", 0, 1)
    assert (stale.status, stale.headers["producer-epoch"]) == (403, "1")
    other = post(b"z", 1, 0)
    assert other.json["duplicate"] is True
    assert other.headers["producer-payload-mismatch"] == "true"
    raised = post(b"b", 2, 1)
    assert raised.status == 400
    assert post(b"b", 2, 0).status == 200
    assert sum(topic.tails) == 2


def test_an_idempotency_key_with_another_payload_is_422(topic: Topic) -> None:
    assert topic.post(b"a", idempotency_key="k").status == 200
    assert topic.post(b"b", idempotency_key="k").status == 422
    assert sum(topic.tails) == 1


def test_the_same_messages_with_other_keys_are_another_payload(topic: Topic) -> None:
    first = topic.post(b"a", idempotency_key="k", message_key="one")
    assert first.status == 200
    assert topic.post(b"a", idempotency_key="k", message_key="two").status == 422
    assert is_repeat_of(topic.post(b"a", idempotency_key="k", message_key="one"), first)


def test_the_sequence_on_a_topic_is_not_that_of_a_partition(topic: Topic) -> None:
    stream = topic.part(0)
    more: dict[str, Any] = {"producer_id": fresh("p"), "producer_epoch": 0}
    assert topic.post(b"a", producer_seq=0, stream_partition=0, **more).status == 200
    assert stream.post(b"b", producer_seq=0, **more).status == 200
    assert topic.post(b"c", producer_seq=1, stream_partition=0, **more).status == 200
    assert stream.post(b"d", producer_seq=1, **more).status == 200
    assert stream.text == "abcd"


def test_the_registered_epoch_holds_for_the_topic_and_its_partitions(topic: Topic) -> None:
    server, producer = topic.server, fresh("p")
    assert call(server, "POST", "/v1/producers", {"producer_id": producer}).status == 201
    more: dict[str, Any] = {"producer_id": producer, "producer_seq": 0}
    assert topic.post(b"a", producer_epoch=0, **more).status == 200
    assert topic.part(0).post(b"b", producer_epoch=0, **more).status == 200
    raised = call(server, "POST", "/v1/producers", {"producer_id": producer}).json
    epoch = raised["producer_epoch"]
    assert epoch > 0
    for answer in (
        topic.post(b"x", producer_epoch=0, producer_id=producer, producer_seq=1),
        topic.part(0).post(b"x", producer_epoch=0, producer_id=producer, producer_seq=1),
    ):
        assert answer.status == 403
        assert answer.headers["producer-epoch"] == str(epoch)
    assert topic.post(b"c", producer_epoch=epoch, **more).status == 200


def test_producers_of_a_topic_are_listed_explained_and_forgotten(topic: Topic) -> None:
    server, producer = topic.server, fresh("p")
    topic.post(b"a", producer_id=producer, producer_epoch=0, producer_seq=0)
    where = f"stream={topic.name}&id={producer}"
    (row,) = call(server, "GET", f"/v1/producers?{where}").json["producers"]
    assert (row["stream"], row["epoch"], row["last_seq"]) == (topic.name, 0, 0)
    explained = call(server, "GET", f"/v1/producers/explain?{where}&epoch=0&seq=0")
    assert explained.status == 200, explained
    assert "duplicate" in explained.body.decode().lower()
    claimed = call(
        server,
        "POST",
        "/v1/producers/claim",
        {"stream": topic.name, "producer_id": fresh("q"), "session": "s"},
    )
    assert claimed.status == 200, claimed
    assert call(server, "DELETE", f"/v1/producers?{where}").status in (200, 204)
    again = topic.post(b"a", producer_id=producer, producer_epoch=0, producer_seq=0)
    assert again.json["duplicate"] is False


def test_a_topic_without_recognition_stores_what_it_gets(topic: Topic) -> None:
    answer = topic.patch(dedup="off")
    assert (answer.status, answer.json["dedup"]) == (200, "off")
    for _ in range(2):
        again = topic.post(b"a", producer_id="p", producer_epoch=0, producer_seq=0)
        assert again.json["duplicate"] is False
        assert again.headers["producer-dedup"] == "off"
    assert topic.patch(dedup="on").json["dedup"] == "on"
    assert sum(topic.tails) == 2


# ---- transactions --------------------------------------------------------------------------------


def in_txn(topic: Topic, txn: Txn, seq: int, keys: list[str], **more: Any) -> Answer:
    """Append JSON messages that are equal to their keys, in an inline transaction."""
    body = msgspec.json.encode([{"k": key} for key in keys])
    more.setdefault("producer_id", txn.producer)
    return send(
        topic,
        body,
        producer_epoch=txn.producer_epoch,
        producer_seq=seq,
        transaction_id=txn.id,
        transaction_epoch=txn.epoch,
        **more,
    )


def begun_on(topic: Topic, **more: Any) -> Txn:
    txn = Txn(topic.server)
    answer = txn.begin(streams=[topic.name], **more)
    assert answer.status == 201, answer
    return txn


def seen(topic: Topic) -> list[list[Any]]:
    """Return what committed readers see in each partition."""
    return [msgspec.json.decode(committed(stream).body or b"[]") for stream in topic.parts]


@pytest.mark.parametrize("outcome", ["commit", "abort"])
def test_an_inline_transaction_ends_in_every_partition_that_it_touched(
    objects: Topic, outcome: str
) -> None:
    txn = begun_on(objects)
    here, there = key_for(0, 3), key_for(2, 3)
    answer = in_txn(objects, txn, 0, [here, there, here])
    assert parts_of(answer) == {0: (0, 2), 2: (0, 1)}
    assert is_repeat_of(in_txn(objects, txn, 0, [here, there, here]), answer)
    assert seen(objects) == [[], [], []]
    blocked = committed(objects.part(0))
    assert ordinal(blocked.headers["stream-stable-offset"]) == 0
    ended = txn.call(outcome)
    assert ended.status == 200, ended
    assert objects.tails == [3, 0, 2], "one control record in each touched partition"
    if outcome == "commit":
        assert seen(objects) == [[{"k": here}] * 2, [], [{"k": there}]]
        streams = ended.json["streams"]
        assert set(streams) == {objects.part(0).path, objects.part(2).path}
        assert streams[objects.part(0).path]["messages"] == 2
    else:
        assert seen(objects) == [[], [], []]
    again = in_txn(objects, txn, 0, [here, there, here])
    assert again.status in (200, 409), again
    if again.status == 200:
        assert is_repeat_of(again, answer)
    assert objects.tails == [3, 0, 2]


def test_a_transaction_can_begin_with_an_implicit_topic(objects: Topic) -> None:
    txn = Txn(objects.server)
    assert txn.begin(implicit=True).status == 201
    assert in_txn(objects, txn, 0, ["a", "b", "c"]).status == 200
    assert txn.commit().status == 200
    assert sum(map(len, seen(objects))) == 3


def test_a_topic_that_the_transaction_does_not_name_is_refused(objects: Topic) -> None:
    txn = Txn(objects.server)
    assert txn.begin(streams=[]).status == 201
    answer = in_txn(objects, txn, 0, ["a"])
    assert refusal(answer) == (409, "PARTITION_NOT_IN_TXN")
    assert objects.tails == [0, 0, 0]
    assert txn.call("streams", streams=[objects.name]).status == 200
    assert in_txn(objects, txn, 0, ["a"]).status == 200
    assert txn.abort().status == 200


def test_a_transaction_on_a_topic_and_a_stream_is_decided_at_once(
    objects: Topic, stream: Stream
) -> None:
    stream.create(b"", JSON)
    txn = begun_on(objects)
    assert txn.streams(stream).status == 200
    assert in_txn(objects, txn, 0, ["a", "b", "c"]).status == 200
    assert txn.post(stream, b"[1]", content_type=JSON).status == 200
    assert (sum(map(len, seen(objects))), committed(stream).body) == (0, b"[]")
    assert txn.commit().status == 200
    assert (sum(map(len, seen(objects))), committed(stream).body) == (3, b"[1]")


def test_a_partition_that_is_named_alone_does_not_name_the_topic(objects: Topic) -> None:
    txn = Txn(objects.server)
    assert txn.begin(streams=[objects.part(0).path]).status == 201
    refused = in_txn(objects, txn, 0, [key_for(1, 3)])
    assert refusal(refused) == (409, "PARTITION_NOT_IN_TXN")
    direct = txn.post(objects.part(0), b"[1]", content_type=JSON)
    assert direct.status == 200
    assert txn.commit().status == 200
    assert objects.tails == [2, 0, 0]


def test_a_topic_made_anew_is_not_in_the_transaction(objects: Topic) -> None:
    txn = begun_on(objects)
    assert in_txn(objects, txn, 0, [key_for(0, 3)]).status == 200
    assert objects.delete().status == 204
    objects.create(3, JSON)
    assert refusal(in_txn(objects, txn, 1, [key_for(0, 3)]))[0] == 409
    assert txn.commit().status == 200
    assert seen(objects) == [[], [], []]


def test_a_partition_can_be_named_beside_its_topic(objects: Topic) -> None:
    txn = begun_on(objects)
    part = objects.part(1)
    assert txn.streams(part).status == 200
    assert in_txn(objects, txn, 0, [key_for(1, 3)]).status == 200
    assert txn.post(part, b"[7]", content_type=JSON).status == 200
    assert txn.commit().status == 200
    assert seen(objects)[1] == [{"k": key_for(1, 3)}, 7]
    assert objects.tails[1] == 3, "one control record, not two"


def stage(topic: Topic, txn: Txn, seq: int, keys: list[str]) -> Answer:
    body = msgspec.json.encode([{"k": key} for key in keys])
    return send(
        topic,
        body,
        transaction_id=txn.id,
        transaction_epoch=txn.epoch,
        transaction_seq=seq,
    )


@pytest.mark.parametrize("outcome", ["commit", "abort"])
def test_a_staged_transaction_counts_requests_and_gets_offsets_at_its_end(
    objects: Topic, outcome: str
) -> None:
    txn = Txn(objects.server)
    assert txn.begin(kind="staged", implicit=True).status == 201
    keys = [key_for(0, 3), key_for(1, 3), key_for(2, 3)]
    first = stage(objects, txn, 0, keys)
    assert (first.status, first.json["parts"], first.json["next_seq"]) == (200, None, 1)
    again = stage(objects, txn, 0, keys)
    assert again.status == 200, again
    assert again.json["duplicate"] is True
    gap = stage(objects, txn, 2, keys)
    assert refusal(gap) == (409, "OUT_OF_ORDER_SEQUENCE")
    assert stage(objects, txn, 1, keys[:1]).json["next_seq"] == 2
    assert objects.tails == [0, 0, 0]
    objects.post(b'["between"]', content_type=JSON, stream_partition=1)
    ended = txn.call(outcome)
    assert ended.status == 200
    if outcome == "commit":
        assert seen(objects) == [
            [{"k": keys[0]}] * 2,
            ["between", {"k": keys[1]}],
            [{"k": keys[2]}],
        ]
    else:
        assert seen(objects) == [[], ["between"], []]


# T25
def test_a_growth_between_two_chunks_is_refused(objects: Topic) -> None:
    txn = Txn(objects.server)
    assert txn.begin(kind="staged", implicit=True).status == 201
    key = next(key for n in range(99) if crc32((key := key_for(0, 3, other=n)).encode()) % 4 == 3)
    assert stage(objects, txn, 0, [key]).status == 200
    refused = objects.patch(partitions=4, keys_may_move=True)
    assert (refused.status, refused.json["code"]) == (409, "stream_in_transaction")
    assert refused.json["transaction_id"] == txn.id
    assert stage(objects, txn, 1, [key]).status == 200
    assert txn.commit().status == 200
    assert objects.patch(partitions=4, keys_may_move=True).status == 200
    assert seen(objects) == [[{"k": key}] * 2, [], [], []]


@pytest.mark.crash
def test_prepared_transactions_on_a_topic_outlive_a_kill(data: Path) -> None:
    server = Server(data)
    try:
        topic = Topic(server, "t").create(3, JSON)
        keys = [key_for(n, 3) for n in range(3)]
        inline, staged = begun_on(topic), Txn(server)
        assert staged.begin(kind="staged", implicit=True).status == 201
        assert in_txn(topic, inline, 0, keys).status == 200
        assert stage(topic, staged, 0, keys).status == 200
        assert [txn.call("prepare").status for txn in (inline, staged)] == [200, 200]
        server.kill()
        server = Server(data)
        topic.server = inline.server = staged.server = server
        assert seen(topic) == [[], [], []]
        assert inline.commit().status == 200
        assert seen(topic) == [[{"k": key}] for key in keys]
        assert staged.commit().status == 200
        assert seen(topic) == [[{"k": key}] * 2 for key in keys]
    finally:
        server.kill()


def test_closing_a_topic_waits_for_its_transactions(objects: Topic) -> None:
    txn = begun_on(objects)
    assert in_txn(objects, txn, 0, ["a"]).status == 200
    refused = objects.patch(closed=True)
    assert refused.status == 409
    assert txn.commit().status == 200
    assert objects.patch(closed=True).status == 200


def test_a_topic_deleted_in_a_transaction_is_told_by_its_commit(objects: Topic) -> None:
    txn = begun_on(objects)
    assert in_txn(objects, txn, 0, [key_for(0, 3), key_for(1, 3)]).status == 200
    assert objects.delete().status == 204
    ended = txn.commit()
    assert ended.status == 200, ended
    assert set(ended.json["deleted"]) >= {f"{objects.name}/0", f"{objects.name}/1"}


# ---- one-shot commits ----------------------------------------------------------------------------


def test_a_one_shot_commit_appends_to_a_topic(objects: Topic, stream: Stream) -> None:
    stream.create(b"", JSON)
    producer = fresh("p")
    keys = [key_for(0, 3), key_for(2, 3), None, {"base64": "/wA="}]
    document = {
        "producer_id": producer,
        "producer_epoch": 0,
        "producer_seq": 0,
        "appends": [
            {"stream": objects.name, "messages": ["a", "b", "c", "d"], "keys": keys},
            {"stream": stream.path, "messages": [1]},
        ],
    }
    answer = commit(objects.server, **document)
    assert answer.status == 200, answer
    found = answer.json["streams"]
    assert sum(each["messages"] for each in found.values()) == 5
    assert found[f"{objects.name}/0"]["first_offset"] == offset_of(0)
    values = objects.values()
    assert "a" in values[0]
    assert "b" in values[2]
    assert "d" in values[crc32(b"\xff\x00") % 3]
    assert objects.patch(partitions=4, keys_may_move=True).status == 200
    again = commit(objects.server, **document)
    assert (again.status, again.json["duplicate"]) == (200, True)
    assert again.json["streams"] == found
    assert sum(objects.tails) == 4


def test_a_one_shot_commit_that_is_refused_stores_nothing_in_any_partition(
    objects: Topic, stream: Stream
) -> None:
    stream.create(b"x")
    more = {"producer_id": fresh("p"), "producer_epoch": 0, "producer_seq": 0}
    appends = [{"stream": objects.name, "messages": ["a", "b"], "keys": ["a", "b"]}]
    refused = commit(objects.server, **more, appends=appends, **{"if": {stream.path: 0}})
    assert refused.status in (409, 412), refused
    assert objects.tails == [0, 0, 0]
    assert commit(objects.server, **more, appends=appends).status == 200
    assert sum(objects.tails) == 2


@pytest.mark.parametrize(
    "append",
    [
        {"messages": ["a"], "keys": []},
        {"messages": ["a"], "keys": ["a", "b"]},
        {"messages": ["a"], "keys": [1]},
        {"messages": ["a"], "keys": [{"base64": "%"}]},
        {"messages": ["a"], "keys": [{"base64": "YQ==", "x": 1}]},
        {"messages": ["a"], "keys": ["k" * (MESSAGE_KEY_BYTES_MAX + 1)]},
        {"messages": [], "keys": []},
    ],
)
def test_keys_that_do_not_fit_the_messages_are_400(objects: Topic, append: Any) -> None:
    answer = commit(
        objects.server,
        producer_id=fresh("p"),
        producer_epoch=0,
        producer_seq=0,
        appends=[{"stream": objects.name, **append}],
    )
    assert answer.status == 400, answer
    assert objects.tails == [0, 0, 0]


# ---- names ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a/b/c", "caf\xe9/\u65e5\u672c", "with space", "per%cent", "a;b"])
def test_a_topic_has_a_name_like_a_stream(server: Server, name: str) -> None:
    topic = Topic(server, f"{fresh('n')}/{name}").create(2)
    assert topic.show().json["topic"] == topic.name
    answer = topic.post(b"x", stream_partition=1)
    assert answer.json["parts"][0]["stream"] == f"{topic.name}/1"
    path = quote(f"{topic.name}/1")
    assert server.ask("GET", f"/v1/stream/{path}?offset=-1").body == b"x"
    assert topic.delete().status == 204


@pytest.mark.parametrize(
    "target",
    [
        "/v1/topics/",
        "/v1/topics/a//b",
        "/v1/topics/a/../b",
        "/v1/topics/%2e%2e/b",
        "/v1/topics/a%00b",
        "/v1/topics/a%0ab",
        "/v1/topics/%ff",
        "/v1/topics/" + "x" * 501,
        "/v1/topics/" + "/".join("a" * 17),
    ],
)
def test_a_name_that_cannot_be_is_refused(server: Server, target: str) -> None:
    for method, document in (("PUT", {"partitions": 1}), ("GET", None), ("DELETE", None)):
        answer = call(server, method, target, document)
        assert answer.status in (400, 404, 405, 414), (method, answer)
    assert server.is_sound()


def test_a_policy_for_partitions_decides_about_direct_appends_only(server: Server) -> None:
    topic = Topic(server).create(2)
    assert call(server, "PUT", f"/v1/policies?prefix={topic.name}", {"dedup": "off"}).status in (
        200,
        201,
        204,
    )
    try:
        for _ in range(2):
            answer = topic.post(b"a", producer_id="p", producer_epoch=0, producer_seq=0)
            assert answer.status == 200
        assert answer.json["duplicate"] is False, "the topic inherits the policy"
        for _ in range(2):
            direct = topic.part(0).post(b"a", producer_id="p", producer_epoch=0, producer_seq=0)
            assert direct.headers["producer-dedup"] == "off"
    finally:
        call(server, "DELETE", f"/v1/policies?prefix={topic.name}")


def test_readers_of_one_partition_are_not_woken_by_another(topic: Topic) -> None:
    waiting = Later(topic.part(0), f"offset={offset_of(0)}&live=long-poll&{COMMITTED}")
    topic.post(b"x", stream_partition=1)
    answer = waiting.answer()
    assert answer.status == 204, "it waited until the end of its time"


def pages(server: Server) -> Iterator[dict[str, Any]]:
    after = ""
    while True:
        page = call(server, "GET", f"/v1/streams?limit=1000&after={quote(after)}").json
        yield from page["streams"]
        if page["next"] is None:
            return
        after = page["next"]


def test_the_list_of_streams_has_partitions_and_no_topics(topic: Topic) -> None:
    names = {each["stream"] if "stream" in each else each["path"] for each in pages(topic.server)}
    assert {stream.path for stream in topic.parts} <= names
    assert topic.name not in names


def test_appends_go_on_while_a_topic_is_created_over_and_over(server: Server) -> None:
    name = fresh("again")
    begun = time.monotonic()
    for _ in range(20):
        topic = Topic(server, name).create(20)
        assert topic.post(b"x").status == 200
        assert topic.delete().status == 204
    assert time.monotonic() > begun
    assert server.is_sound()


# ---- more about the order of checks --------------------------------------------------------------


def test_a_duplicate_is_answered_before_the_close_and_the_count(topic: Topic) -> None:
    more: dict[str, Any] = {"producer_id": "p", "producer_epoch": 0}
    first = topic.post(b"a", producer_seq=0, message_key="k", **more)
    assert topic.patch(closed=True).status == 200
    assert is_repeat_of(topic.post(b"a", producer_seq=0, message_key="k", **more), first)
    late = topic.post(b"a", producer_seq=0, message_key="k", topic_partitions=9, **more)
    assert is_repeat_of(late, first)
    new = topic.post(b"b", producer_seq=1, **more)
    assert refusal(new) == (409, "stream_closed")
    assert "stream-next-offset" not in new.headers, "a topic has no offsets of its own"
    assert "next_offset" not in new.json


def test_a_sequence_is_not_used_up_by_an_append_with_another_count(topic: Topic) -> None:
    more: dict[str, Any] = {"producer_id": "p", "producer_epoch": 0, "producer_seq": 0}
    assert refusal(topic.post(b"a", topic_partitions=4, **more)) == (409, "partitions_changed")
    stored = topic.post(b"a", topic_partitions=3, **more)
    assert (stored.status, stored.json["duplicate"]) == (200, False)


def test_a_staged_transaction_on_a_topic_is_listed_in_a_one_shot_commit(objects: Topic) -> None:
    txn = Txn(objects.server)
    assert txn.begin(kind="staged", implicit=True).status == 201
    keys = [key_for(0, 3), key_for(1, 3)]
    assert stage(objects, txn, 0, keys).status == 200
    document = {
        "producer_id": txn.producer,
        "producer_epoch": 0,
        "producer_seq": 0,
        "transactions": [{"id": txn.id, "epoch": txn.epoch}],
        "appends": [{"stream": objects.name, "messages": [9], "keys": [keys[0]]}],
    }
    answer = commit(objects.server, **document)
    assert answer.status == 200, answer
    assert seen(objects) == [[{"k": keys[0]}, 9], [{"k": keys[1]}], []] or seen(objects) == [
        [9, {"k": keys[0]}],
        [{"k": keys[1]}],
        [],
    ]
    again = commit(objects.server, **document)
    assert (again.status, again.json["duplicate"]) == (200, True)
    assert sum(map(len, seen(objects))) == 3


def test_a_raised_epoch_aborts_what_was_open_on_the_topic(objects: Topic) -> None:
    txn = begun_on(objects)
    keys = [key_for(0, 3), key_for(1, 3)]
    assert in_txn(objects, txn, 0, keys).status == 200
    raised = call(objects.server, "POST", "/v1/producers", {"producer_id": txn.producer})
    assert raised.json["producer_epoch"] == 1
    assert refusal(txn.commit()) == (409, "txn_aborted")
    assert seen(objects) == [[], [], []]
    assert objects.tails == [2, 2, 0]
    new = Txn(objects.server, txn.producer, epoch=1)
    assert new.begin(streams=[objects.name]).status == 201
    assert in_txn(objects, new, 0, keys).status == 200
    assert new.commit().status == 200
    assert seen(objects) == [[{"k": keys[0]}], [{"k": keys[1]}], []]


def test_a_transaction_that_times_out_ends_in_every_partition(shared: Machine) -> None:
    topic = Topic(shared.server).create(3, JSON)
    txn = begun_on(topic, timeout_ms=5_000)
    assert in_txn(topic, txn, 0, [key_for(n, 3) for n in range(3)]).status == 200
    shared.let_pass(6_000)
    assert eventually(lambda: txn.status().json["state"] == "aborted")
    assert topic.tails == [2, 2, 2]
    assert topic.post(b'["after"]', content_type=JSON, stream_partition=0).status == 200
    assert seen(topic) == [["after"], [], []], "readers do not wait any more"


@pytest.mark.crash
def test_a_frame_that_does_not_fit_is_413_also_with_small_segments(data: Path) -> None:
    server = Server(data, "--segment-bytes", "65536")
    try:
        topic = Topic(server, "t").create(1_000, JSON)
        stored = 0
        for count in (10, 300, 2_000):
            for size in (1, 40, 300):
                body = msgspec.json.encode([{"k": f"{n}{'x' * size}"} for n in range(count)])
                answer = topic.post(body, content_type=JSON, message_key_pointer="/k")
                assert answer.status in (200, 413), answer
                stored += count if answer.status == 200 else 0
        assert topic.patch(closed=True).status == 200
        assert 0 < sum(topic.tails) == stored
        assert server.is_sound()
        server.kill()
        server = Server(data)
        topic.server = server
        assert sum(topic.tails) == stored
        assert topic.delete().status == 204
    finally:
        server.kill()


# ---- fuzz ----------------------------------------------------------------------------------------


def find(value: Any, pointer: str) -> Any:
    """Return what a pointer points to (RFC 6901), or the fuzz test's MISSING."""
    for step in pointer.split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict) and name in value:
            value = value[name]
        elif isinstance(value, list) and re.fullmatch("0|[1-9][0-9]*", name):
            if int(name) >= len(value):
                return MISSING
            value = value[int(name)]
        else:
            return MISSING
    return value


MISSING: Final = object()
MEMBERS: Final = ("a", "", "a/b", "m~n", "0", "1", "\xe9", " ", '"', "\\", "~1")
LEAVES: Final = ("text", "", "\xe9\n\x00", 0, -1, 2**70, 1.0, 1e300, True, None, "\U0001f642")


def some_value(chance: Random, depth: int = 3) -> Any:
    kind = chance.randrange(4) if depth else 0
    if kind < 2:
        return chance.choice(LEAVES)
    if kind == 2:
        return [some_value(chance, depth - 1) for _ in range(chance.randrange(3))]
    return {
        chance.choice(MEMBERS): some_value(chance, depth - 1) for _ in range(chance.randrange(4))
    }


def some_pointer(chance: Random, value: Any) -> str:
    """Return a pointer that often points to something in the value."""
    pointer = ""
    while isinstance(value, dict | list) or not pointer:
        names = list(value) if isinstance(value, dict) else ["0", "1", "x"]
        name = chance.choice(names or [""]) if chance.random() < 0.9 else chance.choice(MEMBERS)
        pointer += "/" + name.replace("~", "~0").replace("/", "~1")
        value = find(value, pointer[pointer.rindex("/") :])
    return pointer


def test_pointers_into_any_json_agree_with_rfc_6901(objects: Topic) -> None:
    chance = Random(16)
    stored: list[list[bytes | None]] = [[], [], []]
    for _ in range(400):
        value = some_value(chance)
        pointer, values = some_pointer(chance, value), [value] * chance.randrange(1, 3)
        if pointer.endswith(" "):
            continue  # no header can end with a space
        if chance.random() < 0.2:
            values.append(some_value(chance))
        keys: list[bytes | None] = []
        for each in values:
            found = find(each, pointer)
            is_key = isinstance(found, str | int) and not isinstance(found, bool)
            keys.append(str(found).encode() if is_key else None)
        body = json.dumps(values, ensure_ascii=chance.random() < 0.5).encode()
        answer = objects.post(body, content_type=JSON, message_key_pointer=pointer)
        if not pointer.isascii():
            assert refusal(answer) == (400, "invalid_header")
            continue
        if None in keys:
            assert answer.status == 400, (pointer, values, answer)
            assert f"message {keys.index(None)} " in answer.json["message"]
            continue
        assert answer.status == 200, (pointer, values, answer)
        for key in keys:
            assert key is not None
            stored[crc32(key) % 3].append(key)
    assert min(map(len, stored)) > 0
    assert [keys_in(stream) for stream in objects.parts] == stored


def test_damaged_batches_are_stored_whole_or_not_at_all(topic: Topic) -> None:
    chance = Random(17)
    keys = [b"key-%d" % n for n in range(6)]
    bodies = [
        (TOPIC_BATCH, grouped(keys, 3)),
        (BATCH, encode_batch(TEXT, keys, keys=keys, headers=[[("n", b"v")]] * 6)),
    ]
    expected, seen_statuses = 0, Counter[int]()
    for _ in range(300):
        content_type, body = chance.choice(bodies)
        damaged = bytearray(body)
        for _ in range(chance.randrange(1, 3)):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        if chance.random() < 0.2:
            del damaged[chance.randrange(len(damaged)) :]
        if not damaged:
            continue
        answer = topic.post(bytes(damaged), content_type=content_type, topic_partitions=3)
        assert answer.status in (200, 400, 404, 409, 413), answer
        seen_statuses[answer.status] += 1
        if answer.status == 200:
            expected += sum(end - start for start, end in parts_of(answer).values())
    assert sum(topic.tails) == expected
    assert min(seen_statuses[200], seen_statuses[400]) > 0
    assert topic.server.is_sound()


def test_any_text_in_the_headers_is_a_key_or_is_refused(topic: Topic) -> None:
    chance = Random(18)
    alphabet = "abz09%'*;,=~ \t\"\\\x7f\xe9\xff-._+/"
    stored = 0
    for _ in range(300):
        value = "".join(chance.choice(alphabet) for _ in range(chance.randrange(1, 12)))
        name, prefix = chance.choice([("Message-Key", ""), ("Message-Key*", "UTF-8''")])
        answer = topic.post(b"x", **{name: prefix + value})
        assert answer.status in (200, 400), (name, value, answer)
        if answer.status == 400:
            continue
        stored += 1
        key = value.strip(" \t").encode() if not prefix else unquote_to_bytes(value)
        ((partition, (start, _)),) = parts_of(answer).items()
        assert partition == crc32(key) % 3, (name, value)
        page = topic.part(partition).get(f"offset={offset_of(start)}", accept=FRAMES)
        assert list(decode_frames(page.body).slices[0].keys()) == [key]
    assert 0 < sum(topic.tails) == stored
