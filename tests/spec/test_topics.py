"""Topics: creation, listing, growth, closing and deletion."""

import pytest

from tests.spec.process import Server, Stream, offset_of
from tests.spec.topic_calls import Topic, place_of
from tests.spec.txn_calls import call, fresh, refusal


@pytest.fixture
def topic(server: Server) -> Topic:
    return Topic(server)


def test_a_topic_is_made_with_all_its_partitions(topic: Topic) -> None:
    answer = topic.put(3)
    assert answer.status == 201
    assert answer.headers["location"] == f"{topic.server.url}/v1/topics/{topic.name}"
    assert answer.headers["topic-partitions"] == "3"
    assert answer.headers["topic-partitioner"] == "crc32"
    document = answer.json
    assert [each["stream"] for each in document["partitions"]] == [
        f"{topic.name}/{number}" for number in range(3)
    ]
    assert (document["partition_count"], document["keyed"]) == (3, False)
    assert answer.headers["topic-incarnation"] == document["incarnation"]
    for number in range(3):
        head = topic.partition(number).head()
        assert (head.status, head.headers["content-type"]) == (200, "application/json")
    assert topic.show().json == document


def test_the_same_topic_again_changes_nothing(topic: Topic) -> None:
    made = topic.create(3).show().json
    again = topic.put(3)
    assert (again.status, again.json) == (200, made)
    for members in (
        {"partitions": 2},
        {"partitioner": "murmur2"},
        {"content_type": "text/plain"},
        {"ttl_seconds": 9},
        {"dedup": "off"},
    ):
        assert refusal(topic.put(**members)) == (409, "topic_conflict")
        field = next(iter(members)).removesuffix("_seconds")
        assert topic.put(**members).json["field"] == field
    assert topic.show().json == made


def test_a_topic_needs_all_its_paths(server: Server, topic: Topic) -> None:
    server.stream(f"{topic.name}/1").create(b"x")
    answer = topic.put(3)
    assert refusal(answer) == (409, "stream_exists")
    assert answer.json["paths"] == [f"{topic.name}/1"]
    assert refusal(topic.show()) == (404, "topic_not_found")
    assert topic.partition(0).head().status == 404, "nothing was made"
    server.stream(f"{topic.name}/1").delete()
    topic.create(3)


def test_a_topic_below_semel_is_the_servers(server: Server) -> None:
    assert refusal(Topic(server, "__semel/mine").put(1)) == (403, "reserved_stream")


@pytest.mark.parametrize(
    ("members", "field"),
    [
        ({"partitions": 0}, "partitions"),
        ({"partitions": 1_001}, "partitions"),
        ({"partitioner": "md5"}, "partitioner"),
        ({"content_type": "nothing"}, "content_type"),
        ({"content_type": "application/vnd.semel.batch"}, "content_type"),
        ({"ttl_seconds": -1}, "ttl_seconds"),
        ({"expires_at": "tomorrow"}, "expires_at"),
        ({"dedup": "inherit"}, "dedup"),
    ],
)
def test_a_bad_configuration_is_refused(
    topic: Topic, members: dict[str, object], field: str
) -> None:
    answer = topic.put(**members)  # type: ignore[arg-type]
    assert refusal(answer) == (400, "invalid_request")
    assert answer.json["field"] == field
    assert refusal(topic.show()) == (404, "topic_not_found")


def test_a_thousand_partitions_are_one_request(topic: Topic) -> None:
    topic.create(1_000)
    assert len(topic.show().json["partitions"]) == 1_000
    assert topic.delete().status == 204
    assert topic.partition(999).head().status == 404


def test_head_has_the_headers_only(topic: Topic) -> None:
    topic.create(2)
    answer = topic.server.ask("HEAD", topic.target)
    assert (answer.status, answer.body, answer.headers["topic-partitions"]) == (200, b"", "2")


def test_topics_are_listed_in_pages(server: Server) -> None:
    prefix = fresh("list")
    for name in ("b", "a", "c"):
        Topic(server, f"{prefix}/{name}").create(1)
    page = server.ask("GET", f"/v1/topics?prefix={prefix}&limit=2").json
    assert [each["topic"] for each in page["topics"]] == [f"{prefix}/a", f"{prefix}/b"]
    rest = server.ask("GET", f"/v1/topics?prefix={prefix}&after={page['next']}").json
    assert [each["topic"] for each in rest["topics"]] == [f"{prefix}/c"]
    assert rest["next"] is None
    assert rest["topics"][0]["partition_count"] == 1
    streams = server.ask("GET", f"/v1/streams?prefix={prefix}").json["streams"]
    assert [each["path"] for each in streams] == [f"{prefix}/{name}/0" for name in "abc"]
    assert refusal(server.ask("GET", "/v1/topics?limit=0")) == (400, "invalid_query")


# ---- a topic is no stream, and its partitions belong to it ---------------------------------------


def test_a_topic_is_not_a_stream(server: Server, topic: Topic) -> None:
    topic.create(2)
    stream = server.stream(topic.name)
    assert refusal(stream.get()) == (409, "is_topic")
    assert refusal(stream.post(b"x")) == (409, "is_topic")
    assert refusal(stream.delete()) == (409, "is_topic")
    assert stream.put(b"", content_type="application/json").status == 409
    other = server.stream()
    other.create()
    assert refusal(Topic(server, other.path).show()) == (404, "topic_not_found")


def test_a_partition_is_a_stream_except_for_what_is_the_topics(topic: Topic) -> None:
    topic.create(2)
    stream = topic.partition(0)
    assert stream.post(b'{"n": 1}', content_type="application/json").status in (200, 204)
    assert topic.texts() == [[{"n": 1}], []]
    fork = topic.server.stream()
    assert fork.put(stream_forked_from=stream.target, content_type="application/json").status == 201
    assert refusal(stream.delete()) == (409, "stream_in_topic")
    assert refusal(stream.post(content_type=None, stream_closed="true")) == (409, "stream_in_topic")
    switched = topic.server.ask("PATCH", stream.target, stream_dedup="off")
    assert refusal(switched) == (409, "stream_in_topic")
    assert switched.json["topic"] == topic.name
    assert stream.delete("before=1").status == 204, "a partition can be trimmed"


def test_a_deleted_topic_waits_for_the_forks_of_its_partitions(topic: Topic) -> None:
    topic.create(2)
    topic.partition(0).post(b"1", content_type="application/json")
    fork = topic.server.stream()
    fork.put(stream_forked_from=topic.partition(0).target, content_type="application/json")
    assert topic.delete().status == 204
    assert refusal(topic.show()) in ((404, "topic_not_found"), (410, "stream_gone"))
    assert refusal(topic.put(2)) == (409, "stream_exists")
    assert fork.text == "[1]"
    assert fork.delete().status == 204
    topic.create(2)
    assert topic.texts() == [[], []]


def test_a_closed_topic_takes_no_messages(topic: Topic) -> None:
    topic.create(2)
    assert topic.patch(closed=True).json["closed"] is True
    assert refusal(topic.post([1])) == (409, "stream_closed")
    assert topic.partition(1).head().headers["stream-closed"] == "true"
    assert topic.patch(closed=True).status == 200
    assert refusal(topic.patch(closed=False)) == (400, "invalid_request")


def test_a_topic_expires_as_a_whole(topic: Topic) -> None:
    topic.create(2, ttl_seconds=1)
    while topic.show().status == 200:  # this does not count as a use
        pass
    assert refusal(topic.show()) == (404, "topic_not_found")
    assert topic.partition(1).head().status == 404


# ---- growth --------------------------------------------------------------------------------------


def test_a_topic_without_keys_grows(topic: Topic) -> None:
    topic.create(2)
    topic.post([1], stream_partition=1)
    grown = topic.patch(partitions=3)
    assert (grown.status, grown.headers["topic-partitions"]) == (200, "3")
    assert grown.json["moved_at"] == [offset_of(0), offset_of(1)]
    assert grown.headers["topic-growth-offsets"] == f"{offset_of(0)},{offset_of(1)}"
    assert grown.json["growths"] == [
        {"partitions_before": 2, "offsets": [offset_of(0), offset_of(1)]}
    ]
    assert topic.patch(partitions=3).json["moved_at"] == grown.json["moved_at"]
    assert "moved_at" not in topic.show().json
    answer = topic.patch(partitions=2)
    assert refusal(answer) == (409, "too_few_partitions")
    assert answer.json["partitions"] == 3


def test_keys_move_only_if_the_caller_says_so(topic: Topic) -> None:
    topic.create(2)
    topic.post_keyed(1, "k")
    assert topic.show().json["keyed"] is True
    assert refusal(topic.patch(partitions=5)) == (409, "keys_would_move")
    assert topic.show().json["partition_count"] == 2
    assert topic.patch(partitions=5, keys_may_move=True).status == 200
    answer = topic.post_keyed(2, "k")
    assert answer.headers["stream-partition"] == str(place_of("k", 5))


def test_a_growth_needs_the_paths_of_the_new_partitions(server: Server, topic: Topic) -> None:
    topic.create(2)
    Stream(server, f"{topic.name}/3").create()
    answer = topic.patch(partitions=4)
    assert refusal(answer) == (409, "stream_exists")
    assert topic.show().json["partition_count"] == 2


@pytest.mark.parametrize(
    "members",
    [
        {},
        {"partitions": 2, "closed": True},
        {"keys_may_move": True},
        {"dedup": "on", "keys_may_move": True},
        {"partitions": 0},
        {"dedup": "maybe"},
    ],
)
def test_a_bad_change_is_refused(topic: Topic, members: dict[str, object]) -> None:
    topic.create(2)
    assert refusal(topic.patch(**members)) == (400, "invalid_request")


def test_duplicate_detection_is_the_topics(topic: Topic) -> None:
    topic.create(2)
    assert topic.patch(dedup="off").json["dedup"] == "off"
    tag = {"producer_id": "p", "producer_epoch": 0, "producer_seq": 0}
    assert topic.post([1], **tag).headers["producer-dedup"] == "off"
    assert topic.post([1], **tag).headers["producer-dedup"] == "off"
    assert sum(map(len, topic.texts())) == 2
    assert topic.patch(dedup="on").json["dedup"] == "on"


def test_unknown_topics_are_refused(topic: Topic) -> None:
    assert refusal(topic.post([1])) == (404, "topic_not_found")
    assert refusal(topic.patch(closed=True)) == (404, "topic_not_found")
    assert refusal(topic.delete()) == (404, "topic_not_found")
    assert call(topic.server, "PUT", f"/v1/topics/{'a/' * 15}b", {"partitions": 1}).status == 400
