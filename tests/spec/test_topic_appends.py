"""Appends to topics: keys, partitions, duplicates, idempotency keys and transactions."""

import struct
from typing import Any
from zlib import crc32

import msgspec
import pytest

from semel.wire.bodies import encode_batch, encode_parts
from tests.spec.process import Answer, Server, offset_of
from tests.spec.topic_calls import BATCH, TOPIC_BATCH, Topic, part, place_of
from tests.spec.txn_calls import COMMITTED, Txn, call, commit, fresh, refusal

KEYS = [f"k{number}" for number in range(40)]


@pytest.fixture
def topic(server: Server) -> Topic:
    return Topic(server).create(4)


def produced(topic: Topic, body: Any, seq: int, *, epoch: int = 0, **more: Any) -> Answer:
    return topic.post(body, producer_id="p", producer_epoch=epoch, producer_seq=seq, **more)


# ---- where a message goes ------------------------------------------------------------------------


def test_a_key_selects_the_partition(topic: Topic) -> None:
    for number, key in enumerate(KEYS):
        answer = topic.post_keyed(number, key)
        assert answer.status == 200
        place = place_of(key, 4)
        assert answer.headers["stream-partition"] == str(place)
        (only,) = answer.json["parts"]
        assert (only["partition"], only["stream"]) == (place, f"{topic.name}/{place}")
        assert answer.headers["stream-next-offset"] == only["next_offset"]
        assert answer.json["duplicate"] is False
    expected: list[list[int]] = [[], [], [], []]
    for number, key in enumerate(KEYS):
        expected[place_of(key, 4)].append(number)
    assert topic.texts() == expected


def test_many_requests_on_one_connection_keep_their_own_keys(topic: Topic) -> None:
    """From the third request on, the server finds the request head in its cache."""
    connection = topic.server.connect()
    places = []
    for key in KEYS:
        headers = {"Content-Type": "application/json", "Message-Key": key}
        connection.request("POST", topic.target, b"1", headers)
        response = connection.getresponse()
        places.append(int(response.headers["Stream-Partition"]))
        assert msgspec.json.decode(response.read())["parts"][0]["partition"] == places[-1]
    connection.close()
    assert places == [place_of(key, 4) for key in KEYS]


@pytest.mark.parametrize("key", ["ä", "日本", "a b", " ", "", "\x00"])
def test_any_text_is_a_key_in_the_extended_form(topic: Topic, key: str) -> None:
    encoded = "UTF-8''" + "".join(f"%{byte:02X}" for byte in key.encode())
    answer = topic.send([1], {"Message-Key*": encoded})
    assert answer.headers["stream-partition"] == str(crc32(key.encode()) % 4)


@pytest.mark.parametrize(
    "names",
    [
        {"Message-Key": "\xe4"},
        {"Message-Key*": "k"},
        {"Message-Key": "a", "Message-Key*": "UTF-8''a"},
        {"Message-Key": "a", "Message-Key-Pointer": "/a"},
        {"Message-Key-Pointer": "a"},
        {"Message-Key-Pointer": "/a~2"},
        {"Stream-Partition": "x"},
        {"Stream-Partition": "1", "Topic-Partition-Hint": "1"},
        {"Stream-Seq": "1"},
        {"Stream-Closed": "true"},
        {"If-Match": "*"},
        {"Leader-Epoch": "x"},
    ],
)
def test_a_bad_header_is_refused(topic: Topic, names: dict[str, str]) -> None:
    assert refusal(topic.send([1], names)) == (400, "invalid_header")
    assert topic.ends == [offset_of(0)] * 4


def test_the_key_is_stored_with_the_message(topic: Topic) -> None:
    answer = topic.post_keyed([1, 2], "k")
    stream = topic.partition(int(answer.headers["stream-partition"]))
    frames = stream.get("offset=-1", accept="application/vnd.semel.frames").body
    assert frames.count(b"k") >= 2


def test_a_pointer_selects_the_key_of_each_message(topic: Topic) -> None:
    values = [{"customer": {"id": each}} for each in ("a", 7, "b", -0, "a", 10**18)]
    texts = ["a", "7", "b", "0", "a", str(10**18)]
    answer = topic.send(values, {"Message-Key-Pointer": "/customer/id"})
    assert answer.status == 200
    expected: list[list[Any]] = [[], [], [], []]
    for value, key in zip(values, texts, strict=True):
        expected[place_of(key, 4)].append(value)
    assert topic.texts() == expected
    places = [each["partition"] for each in answer.json["parts"]]
    assert places == sorted({place_of(key, 4) for key in texts})
    assert "stream-partition" not in answer.headers


@pytest.mark.parametrize(
    "value", [{}, {"a": None}, {"a": {}}, {"a": [1]}, {"a": 1.5}, {"a": True}, [], 7, "a"]
)
def test_a_message_without_a_key_is_refused_by_its_index(topic: Topic, value: Any) -> None:
    answer = topic.send([{"a": 1}, value], {"Message-Key-Pointer": "/a"})
    assert refusal(answer) == (400, "bad_body")
    assert "message 1 " in answer.json["message"]
    assert topic.ends == [offset_of(0)] * 4


def test_a_batch_has_a_key_for_each_message(topic: Topic) -> None:
    messages = [str(number).encode() for number in range(len(KEYS))]
    keys = [key.encode() for key in KEYS]
    body = encode_batch("application/json", messages, keys=keys)
    assert topic.post(body, content_type=BATCH).status == 200
    expected: list[list[int]] = [[], [], [], []]
    for number, key in enumerate(KEYS):
        expected[place_of(key, 4)].append(number)
    assert topic.texts() == expected
    assert refusal(topic.post(body, content_type=BATCH, message_key="k"))[0] == 400


def test_messages_without_keys_go_where_the_hint_says(topic: Topic) -> None:
    answer = topic.post([1, 2], topic_partition_hint=7)
    assert answer.json["parts"] == [part(topic, 3, 0, 2)]
    first = topic.post([{"a": 1}])
    assert topic.post([{"a": 1}]).headers["stream-partition"] == first.headers["stream-partition"]


def test_a_partition_can_be_chosen(topic: Topic) -> None:
    answer = topic.post_keyed([1, 2], "k", stream_partition=2)
    assert answer.json["parts"] == [part(topic, 2, 0, 2)]
    wrong = topic.post([1], stream_partition=4)
    assert refusal(wrong) == (404, "partition_not_found")
    assert (wrong.json["partition"], wrong.json["partitions"]) == (4, 4)


def test_murmur2_is_the_hash_of_java(server: Server) -> None:
    """The expected values are those of Kafka's own test of its partitioner."""
    topic = Topic(server).create(1_000, partitioner="murmur2")
    for key, murmur2 in (
        ("21", -973932308),
        ("foobar", -790332482),
        ("a-little-bit-long-string", -985981536),
        ("a-little-bit-longer-string", -1486304829),
        ("lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
    ):
        answer = topic.post_keyed([1], key)
        assert answer.headers["stream-partition"] == str((murmur2 & 0x7FFFFFFF) % 1_000)


def test_a_topic_of_text_takes_one_message_for_each_request(server: Server) -> None:
    topic = Topic(server).create(2, content_type="text/plain")
    answer = topic.post(b"[1, 2]", content_type="text/plain", stream_partition=1)
    assert answer.json["parts"] == [part(topic, 1, 0, 1)]
    assert topic.partition(1).text == "[1, 2]"
    assert refusal(topic.post([1])) == (409, "content_type_conflict")
    pointed = topic.send(b"x", {"Message-Key-Pointer": "/a"}, content_type="text/plain")
    assert refusal(pointed) == (400, "invalid_header")


# ---- grouped by the client -----------------------------------------------------------------------


def test_the_client_groups_the_messages(topic: Topic) -> None:
    answer = topic.post_parts({0: [b"1"], 3: [b"2", b"3"]}, partitions=4)
    assert answer.json["parts"] == [part(topic, 0, 0, 1), part(topic, 3, 0, 2)]
    assert topic.texts() == [[1], [], [], [2, 3]]


def test_another_number_of_partitions_is_refused(topic: Topic) -> None:
    answer = topic.post_parts({0: [b"1"]}, partitions=3)
    assert refusal(answer) == (409, "partitions_changed")
    assert answer.json["partitions"] == 4
    assert refusal(topic.post([1], topic_partitions=5)) == (409, "partitions_changed")
    assert topic.ends == [offset_of(0)] * 4


@pytest.mark.parametrize(
    "headers", [{}, {"topic_partitions": 4, "stream_partition": 1}, {"topic_partitions": 0}]
)
def test_a_grouped_body_needs_the_number_and_no_other_choice(
    topic: Topic, headers: dict[str, int]
) -> None:
    body = encode_parts({0: encode_batch("application/json", [b"1"])})
    answer = topic.post(body, content_type=TOPIC_BATCH, **headers)
    assert answer.status in (400, 409)
    assert topic.ends == [offset_of(0)] * 4


def test_a_malformed_grouped_body_is_refused(topic: Topic) -> None:
    one = encode_batch("application/json", [b"1"])
    text = encode_batch("text/plain", [b"1"])
    good = encode_parts({0: one, 2: one})
    unsorted = b"SMT1" + struct.pack("<III", 2, 2, len(one)) + one
    unsorted += struct.pack("<II", 0, len(one)) + one
    for body in (
        b"",
        b"SMT2" + good[4:],
        good[:-1],
        good + b"x",
        unsorted,
        b"SMT1\0\0\0\0",
        encode_parts({0: one, 2: text}),
        encode_parts({9: one}),
        encode_parts({0: encode_batch("application/json", [b"{"])}),
    ):
        answer = topic.post(body, content_type=TOPIC_BATCH, topic_partitions=4)
        assert answer.status in (400, 404), (body, answer)
    assert topic.ends == [offset_of(0)] * 4


# ---- producers, keys, sessions -------------------------------------------------------------------


def test_a_duplicate_answers_the_first_parts(topic: Topic) -> None:
    values = [{"n": number} for number in range(20)]
    names = {"Message-Key-Pointer": "/n"}
    tag = {"producer_id": "p", "producer_epoch": 0, "producer_seq": 0}
    first = topic.send(values, names, **tag)
    assert first.headers["producer-seq"] == "0"
    again = topic.send(values, names, **tag)
    assert (again.status, again.json["duplicate"]) == (200, True)
    assert again.json["parts"] == first.json["parts"]
    assert sum(map(len, topic.texts())) == 20


def test_a_duplicate_is_found_after_a_growth(topic: Topic) -> None:
    """The number of partitions that the client has hashed with is no longer that of the topic."""
    tag: dict[str, Any] = {"producer_id": "p", "producer_epoch": 0, "producer_seq": 0}
    first = topic.post_parts({1: [b"1"], 2: [b"2"]}, partitions=4, **tag)
    assert topic.patch(partitions=9, keys_may_move=True).status == 200
    again = topic.post_parts({1: [b"1"], 2: [b"2"]}, partitions=4, **tag)
    assert (again.json["duplicate"], again.json["parts"]) == (True, first.json["parts"])
    tag["producer_seq"] = 1
    fresh_one = topic.post_parts({1: [b"1"]}, partitions=4, **tag)
    assert refusal(fresh_one) == (409, "partitions_changed")
    assert topic.post_parts({1: [b"1"]}, partitions=9, **tag).json["duplicate"] is False


def test_the_sequence_is_that_of_the_topic(topic: Topic) -> None:
    for seq in range(3):
        assert produced(topic, [seq], seq, stream_partition=seq).status == 200
    gap = produced(topic, [9], 5)
    assert refusal(gap) == (409, "producer_seq_conflict")
    assert gap.headers["producer-expected-seq"] == "3"
    own = topic.partition(0).post(
        b"1",
        content_type="application/json",
        producer_id="p",
        producer_epoch=0,
        producer_seq=0,
    )
    assert own.status == 200, "a partition has sequences of its own"
    assert produced(topic, [9], 0, epoch=1).status == 200
    stale = produced(topic, [9], 3)
    assert refusal(stale) == (403, "PRODUCER_FENCED")


def test_another_payload_under_the_same_sequence_is_seen(topic: Topic) -> None:
    produced(topic, [1], 0, stream_partition=1)
    answer = produced(topic, [2], 0, stream_partition=1)
    assert answer.headers["producer-payload-mismatch"] == "true"
    assert topic.texts()[1] == [1]


def test_sessions_and_sparse_producers_work_on_the_topic(topic: Topic) -> None:
    tag = {"producer_id": "s", "producer_session": "one"}
    assert topic.post([1], producer_seq=0, **tag).headers["producer-epoch"] == "1"
    assert topic.post([2], producer_seq=1, **tag).status == 200
    tag["producer_session"] = "two"
    assert topic.post([3], producer_seq=0, **tag).headers["producer-epoch"] == "2"
    sparse = {"producer_id": "sparse", "producer_mode": "sparse"}
    assert topic.post([1], producer_seq=10, **sparse).status == 200
    assert topic.post([1], producer_seq=10, **sparse).json["duplicate"] is True
    assert topic.post([1], producer_seq="20-25", **sparse).status == 200
    anonymous = topic.post([1], producer_mode="sparse", producer_seq=3)
    assert anonymous.headers["producer-id"]


def test_an_idempotency_key_covers_all_partitions(topic: Topic) -> None:
    values = [{"n": number} for number in range(10)]
    names = {"Message-Key-Pointer": "/n", "Idempotency-Key": "once"}
    first = topic.send(values, names)
    assert "idempotency-window" in first.headers
    topic.patch(partitions=7, keys_may_move=True)
    again = topic.send(values, names)
    assert again.headers["idempotent-replayed"] == "true"
    assert again.json["parts"] == first.json["parts"]
    assert sum(map(len, topic.texts())) == 10
    other = topic.send([{"n": 1}], names)
    assert refusal(other) == (422, "idempotency_key_reused")


def test_an_old_leader_epoch_is_refused(topic: Topic) -> None:
    generation = topic.server.ask("GET", "/health").json["generation"]
    assert topic.post([1], leader_epoch=generation).status == 200
    answer = topic.post([1], leader_epoch=generation + 1)
    assert refusal(answer) == (409, "stale_leader")
    assert answer.json["generation"] == generation


def test_the_producers_of_a_topic_are_shown(topic: Topic) -> None:
    server = topic.server
    first = topic.post_parts(
        {0: [b"1"], 2: [b"2"]},
        partitions=4,
        producer_id="p",
        producer_epoch=0,
        producer_seq=0,
    )
    page = server.ask("GET", f"/v1/producers?stream={topic.name}").json["producers"]
    assert [(each["producer_id"], each["last_seq"]) for each in page] == [("p", 0)]
    assert page[0]["last_offset"] is None, "a topic has no offsets of its own"
    shown = server.ask("GET", f"/v1/producers?stream={topic.name}&id=p").json["producers"][0]
    (receipt,) = shown["receipts"]
    assert receipt["parts"] == first.json["parts"]
    assert receipt["next_offset"] is None
    query = f"stream={topic.name}&id=p&epoch=0&seq="
    explained = server.ask("GET", f"/v1/producers/explain?{query}1").json
    assert (explained["outcome"], explained["status"]) == ("ok", 200)
    repeated = server.ask("GET", f"/v1/producers/explain?{query}0").json
    assert repeated["outcome"] == "duplicate"
    assert "next_offset" not in repeated["facts"]
    assert server.ask("GET", f"/v1/producers/explain?{query}9").json["status"] == 409


def test_a_producer_of_a_topic_is_claimed_retired_and_forgotten(topic: Topic) -> None:
    server, producer = topic.server, f"claimed-in-{topic.name}"  # other tests register "c"
    claim = {"stream": topic.name, "producer_id": producer, "session": "one"}
    claimed = call(server, "POST", "/v1/producers/claim", claim).json
    assert (claimed["producer_epoch"], claimed["last_seq"]) == (1, None)
    tag = {"producer_id": producer, "producer_session": "one"}
    assert topic.post([1], producer_seq=0, **tag).status == 200
    claim["session"] = "two"
    again = call(server, "POST", "/v1/producers/claim", claim).json
    assert (again["last_seq"], again["last_offset"]) == (0, None)
    assert refusal(topic.post([2], producer_seq=1, **tag))[0] == 403
    retire = {"producers": [{"producer_id": producer, "stream": topic.name, "session": "two"}]}
    retired = call(server, "POST", "/v1/producers/retire", retire).json["producers"]
    assert [each["retired"] for each in retired] == [True]
    gone = server.ask("DELETE", f"/v1/producers?stream={topic.name}&id={producer}")
    assert gone.status == 204
    assert server.ask("GET", f"/v1/producers?stream={topic.name}").json["producers"] == []


# ---- transactions --------------------------------------------------------------------------------


def post_in(txn: Txn, topic: Topic, body: Any, seq: int, **more: Any) -> Answer:
    return topic.post(
        body,
        producer_id=txn.producer,
        producer_epoch=txn.producer_epoch,
        producer_seq=seq,
        transaction_id=txn.id,
        transaction_epoch=txn.epoch,
        **more,
    )


@pytest.mark.parametrize("decision", ["commit", "abort"])
def test_an_inline_transaction_holds_all_partitions(topic: Topic, decision: str) -> None:
    txn = Txn(topic.server)
    assert txn.begin(streams=[topic.name]).status == 201
    first = post_in(txn, topic, [1], 0, stream_partition=0)
    assert first.json["parts"] == [part(topic, 0, 0, 1)]
    assert post_in(txn, topic, [2], 1, stream_partition=3).status == 200
    again = post_in(txn, topic, [2], 1, stream_partition=3)
    assert again.json["duplicate"] is True
    stables = [each["stable_offset"] for each in topic.show().json["partitions"]]
    assert stables == [offset_of(0)] * 4
    result = txn.call(decision)
    assert result.status == 200
    seen = [topic.partition(each).get(f"offset=-1&{COMMITTED}").json for each in (0, 3)]
    assert seen == ([[1], [2]] if decision == "commit" else [[], []])


def test_a_staged_transaction_counts_requests(topic: Topic) -> None:
    txn = Txn(topic.server)
    assert txn.begin(streams=[topic.name], kind="staged").status == 201

    def stage(values: list[int], seq: int) -> Answer:
        return topic.post_parts(
            {0: [b"%d" % values[0]], 1: [b"%d" % values[1]]},
            partitions=4,
            transaction_id=txn.id,
            transaction_epoch=txn.epoch,
            transaction_seq=seq,
        )

    first = stage([1, 2], 0)
    assert (first.status, first.json["parts"]) == (200, None)
    assert first.headers["transaction-next-seq"] == "1"
    assert stage([1, 2], 0).status == 200
    assert stage([3, 4], 1).json["next_seq"] == 2
    assert topic.ends == [offset_of(0)] * 4
    done = txn.commit()
    assert done.status == 200
    assert done.json["streams"] == {
        f"{topic.name}/{place}": {
            "first_offset": offset_of(0),
            "next_offset": offset_of(2),
            "messages": 2,
        }
        for place in (0, 1)
    }
    assert topic.texts() == [[1, 3], [2, 4], [], []]


def test_a_commit_appends_to_a_topic_with_keys(topic: Topic) -> None:
    document = {
        "producer_id": fresh("p"),
        "producer_epoch": 0,
        "producer_seq": 0,
        "appends": [
            {"stream": topic.name, "messages": [1, 2, 3], "keys": ["a", {"base64": "Yg=="}, None]}
        ],
    }
    done = commit(topic.server, **document)
    assert done.status == 200, done
    assert sum(each["messages"] for each in done.json["streams"].values()) == 3
    texts = topic.texts()
    assert 1 in texts[place_of("a", 4)]
    assert 2 in texts[place_of("b", 4)]
    assert commit(topic.server, **document).json["duplicate"] is True
    document["appends"][0]["keys"] = ["z", None, None]  # type: ignore[index]
    other = commit(topic.server, **document)
    assert other.headers["producer-payload-mismatch"] == "true"
    document |= {"producer_seq": 1}
    document["appends"][0]["keys"] = ["a"]  # type: ignore[index]
    assert refusal(commit(topic.server, **document)) == (400, "bad_body")


def test_a_body_that_is_read_in_steps_is_one_append(topic: Topic) -> None:
    values = [{"n": number, "pad": "x" * 200} for number in range(2_000)]
    answer = topic.send(values, {"Message-Key-Pointer": "/n"})
    assert answer.status == 200
    total = sum(
        int(each["next_offset"].rpartition("_")[2]) for each in topic.show().json["partitions"]
    )
    assert total == 2_000
