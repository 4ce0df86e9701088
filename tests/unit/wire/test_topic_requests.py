"""Requests to topics: the headers and bodies of appends, creation and changes."""

import json
import struct
from typing import Any

import pytest

from semel.model.commands import SPARSE, Batch, ProducerTag, SwitchDedup, TxnTag
from semel.model.limits import BATCH_MESSAGES_MAX, BODY_BYTES_MAX, NUMBER_MAX
from semel.model.messages import keys_of
from semel.model.steps import STEP_BYTES, finish
from semel.model.topic_commands import AppendTopic, CloseTopic, CreateTopic, GrowTopic
from semel.wire.bodies import (
    BadFormat,
    decode_batch,
    decode_parts_steps,
    encode_batch,
    encode_parts,
)
from semel.wire.problems import Problem, parser
from semel.wire.topics import (
    TopicPlan,
    parse_topic_patch,
    parse_topic_put,
    plan_topic_post,
    stale_leader,
    topic_append_of,
    topic_append_steps,
)
from tests.unit.wire.builders import JSON, NONE, named, refused

ONE = encode_batch("application/json", [b"1"])
TWO = encode_batch("application/json", [b"2", b"3"], keys=[b"a", None])
PARTS = encode_parts({0: ONE, 3: TWO})
SIZE = struct.pack("<I", len(TWO))
GROUPED = {"content_type": "application/vnd.semel.topic-batch", "topic_partitions": "4"}


def plan(**values: str) -> TopicPlan | Problem:
    headers = {"content-type": "application/json", **named(**values)}
    given = {name: value for name, value in headers.items() if value}
    return plan_topic_post("t", given, NONE)


@parser
def append_of(found: TopicPlan, body: bytes, **options: Any) -> AppendTopic:
    return topic_append_of(found, body, now_ms=5, **options)


def post(body: bytes = b"[1]", /, **values: str) -> AppendTopic | Problem:
    found = plan(**values)
    return found if isinstance(found, Problem) else append_of(found, body)


def posted(body: bytes = b"[1]", /, **values: str) -> AppendTopic:
    command = post(body, **values)
    assert isinstance(command, AppendTopic), command
    return command


def keys(command: AppendTopic) -> list[bytes | None]:
    assert command.batch is not None
    return list(keys_of(command.batch.extras, command.batch.count))


# ---- appends -------------------------------------------------------------------------------------


def test_a_json_array_is_a_batch() -> None:
    lengths = struct.pack("<2I", 1, 1)
    expected = AppendTopic("t", 5, "application/json", Batch(b"1,2", 2, lengths))
    assert posted(b"[1, 2]") == expected
    assert posted(b"7").batch == Batch(b"7")
    assert posted(b"[]").body_error
    assert posted(b"{").body_error


def test_another_media_type_is_one_message() -> None:
    command = posted(b"[1]", content_type="text/plain")
    assert command == AppendTopic("t", 5, "text/plain", Batch(b"[1]"))
    assert keys(posted(b"x", content_type="text/plain", message_key="k")) == [b"k"]


def test_the_key_is_that_of_all_messages() -> None:
    assert keys(posted(b"[1, 2]", message_key="k")) == [b"k", b"k"]
    assert keys(posted(b"[1]", **{"message_key*": "UTF-8''%C3%A4"})) == ["ä".encode()]


def test_a_pointer_finds_the_key_of_each_message() -> None:
    command = posted(b'[{"a": 1}, {"a": "x"}]', message_key_pointer="/a")
    assert keys(command) == [b"1", b"x"]
    failed = posted(b'[{"a": 1}, {}]', message_key_pointer="/a")
    assert (failed.batch, failed.parts) == (None, ())
    assert "message 1" in (failed.body_error or "")
    assert posted(b"[]", message_key_pointer="/a").body_error


def test_the_sequence_and_the_key_of_a_cached_head_replace_those_of_the_plan() -> None:
    found = plan(
        content_type="text/plain",
        producer_id="p",
        producer_epoch="1",
        producer_seq="5",
        message_key="first",
    )
    assert isinstance(found, TopicPlan)
    command = topic_append_of(found, b"x", now_ms=5, seq=b"9", message_key=b"second")
    assert command.producer is not None
    assert (command.producer.first_seq, command.producer.last_seq) == (9, 9)
    assert keys(command) == [b"second"]
    assert topic_append_of(found, b"x", now_ms=5).producer == ProducerTag("p", 5, 5, 1)


def test_a_batch_brings_its_own_keys() -> None:
    command = posted(TWO, content_type="application/vnd.semel.batch")
    assert (command.content_type, keys(command)) == ("application/json", [b"a", None])
    bad = encode_batch("application/json", [b"{"])
    assert posted(bad, content_type="application/vnd.semel.batch").body_error
    assert refused(post(b"x", content_type="application/vnd.semel.batch")) == (400, "bad_body")


def test_a_client_can_group_the_messages() -> None:
    command = posted(PARTS, **GROUPED)
    one, two = decode_batch(ONE).batch, decode_batch(TWO).batch
    assert one is not None
    assert two is not None
    parts = ((0, one), (3, two))
    expected = AppendTopic("t", 5, "application/json", None, parts, partitions=4)
    assert command == expected
    bad = encode_parts({0: ONE, 2: encode_batch("application/json", [b"{"])})
    failed = posted(bad, **GROUPED)
    assert failed.parts == ()
    assert (failed.body_error or "").startswith("the part for partition 2: ")
    assert refused(post(PARTS[:-1], **GROUPED)) == (400, "bad_body")


def test_the_partition_is_chosen_by_hand_or_by_a_hint() -> None:
    assert posted(stream_partition="7").partition == 7
    assert posted(topic_partition_hint="123456").hint == 123_456
    assert posted(topic_partitions="9").partitions == 9


def test_a_client_says_for_what_topic_it_has_grouped() -> None:
    bare = posted(topic_partitions="9")
    assert (bare.partitions, bare.partitioner) == (9, None)
    for value in ("9;partitioner=murmur2", "9; partitioner=murmur2"):
        command = posted(topic_partitions=value)
        assert (command.partitions, command.partitioner) == (9, "murmur2")
    parts = posted(PARTS, **{**GROUPED, "topic_partitions": "4;partitioner=crc32"})
    assert (parts.partitions, parts.partitioner) == (4, "crc32")


@pytest.mark.parametrize(
    "value",
    [
        *("0", "01", "1001", "9 ", "9,9", "9.0", "-1", "9;", ";partitioner=crc32"),
        *("9;partitioner", "9;partitioner=", "9;partitioner=md5", "9;partitioner=?1"),
        *("9;other=crc32", "9;partitioner=crc32;x", "9;partitioner =crc32"),
        *("9;Partitioner=crc32", '9;partitioner="crc32"', "9;partitioner=crc32,9"),
    ],
)
def test_another_value_for_that_is_refused(value: str) -> None:
    assert refused(post(topic_partitions=value)) == (400, "invalid_header")


def test_producers_keys_and_transactions_are_those_of_a_stream() -> None:
    tag = posted(producer_id="p", producer_mode="sparse", producer_seq="3-5").producer
    assert tag == ProducerTag("p", 3, 5, None, None, SPARSE)
    assert posted(idempotency_key="k").key == "k"
    staged = posted(transaction_id="x", transaction_epoch="1", transaction_seq="0")
    assert staged.transaction == TxnTag("x", 1, 0)
    found = plan_topic_post(
        "t",
        {**JSON, "producer-mode": "sparse", "producer-seq": "1"},
        NONE,
        fresh_id=lambda: "fresh",
    )
    assert isinstance(found, TopicPlan)
    assert (found.is_named, found.is_common) == (False, False)
    assert found.producer is not None
    assert found.producer.id == "fresh"


@pytest.mark.parametrize(
    ("values", "code"),
    [
        ({"stream_seq": "1"}, "invalid_header"),
        ({"if_match": "*"}, "invalid_header"),
        ({"stream_closed": "true"}, "invalid_header"),
        ({"content_encoding": "gzip"}, "unsupported_encoding"),
        ({"x_producer_id": "p", "x_producer_seq": "0"}, "producer_headers_conflict"),
        (
            {
                "idempotency_key": "k",
                "producer_id": "p",
                "producer_epoch": "0",
                "producer_seq": "0",
            },
            "idempotency_key_conflict",
        ),
        ({"content_type": ""}, "missing_content_type"),
        ({"message_key": "k", "message_key_pointer": "/a"}, "invalid_header"),
        ({"stream_partition": "1", "topic_partition_hint": "1"}, "invalid_header"),
        ({"message_key": "k", "content_type": "application/vnd.semel.batch"}, "invalid_header"),
        ({"message_key": "k", **GROUPED}, "invalid_header"),
        ({"message_key_pointer": "/a", "content_type": "text/plain"}, "invalid_header"),
        ({**GROUPED, "topic_partitions": ""}, "invalid_header"),
        ({**GROUPED, "stream_partition": "1"}, "invalid_header"),
        ({**GROUPED, "topic_partition_hint": "1"}, "invalid_header"),
        ({"stream_partition": "1000"}, "invalid_header"),
        ({"stream_partition": "01"}, "invalid_header"),
        ({"topic_partitions": "1001"}, "invalid_header"),
    ],
)
def test_headers_that_contradict_each_other_are_refused(values: dict[str, str], code: str) -> None:
    found = plan(**values)
    assert isinstance(found, Problem)
    assert (found.code, found.status) in ((code, 400), (code, 415))


def test_a_repeated_header_is_refused() -> None:
    repeated = frozenset({"message-key"})
    found = plan_topic_post("t", {**JSON, "message-key": "a, b"}, repeated)
    assert refused(found) == (400, "invalid_header")


def test_a_body_is_needed_and_not_too_large() -> None:
    assert refused(post(b"")) == (400, "empty_body")
    assert refused(post(b"", content_type="text/plain")) == (400, "empty_body")
    too_large = b"x" * (BODY_BYTES_MAX + 1)
    assert refused(post(too_large, content_type="text/plain"))[0] == 413


def test_a_long_body_is_read_in_steps() -> None:
    found = plan(message_key_pointer="/k")
    assert isinstance(found, TopicPlan)
    body = json.dumps([{"k": 1, "v": "x" * STEP_BYTES}] * 3).encode()
    steps = topic_append_steps(found, body, now_ms=5, seq=b"", message_key=b"")
    next(steps)
    assert keys(finish(steps)) == [b"1"] * 3


def test_the_generation_is_in_the_refusal_of_an_old_leader() -> None:
    problem = stale_leader(7)
    assert (problem.status, problem.code, problem.facts) == (409, "stale_leader", {"generation": 7})


# ---- the topic-batch format ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"SMT1", "truncated"),
        (b"SMT2\1\0\0\0", "unknown version"),
        (b"SMT1\0\0\0\0", "1 to 1000 parts"),
        (b"SMT1\xff\xff\0\0", "1 to 1000 parts"),
        (PARTS[:-1], "truncated"),
        (PARTS + b"x", "continues after"),
        (PARTS.replace(b"\3\0\0\0" + SIZE, b"\0\0\0\0" + SIZE), "sorted"),
        (encode_parts({0: ONE, 1: encode_batch("text/plain", [b"1"])}), "same media type"),
    ],
)
def test_a_malformed_body_of_parts_is_refused(body: bytes, words: str) -> None:
    with pytest.raises(BadFormat, match=words):
        finish(decode_parts_steps(body))


def test_all_parts_together_have_a_limit() -> None:
    half = encode_batch("text/plain", [b"x"] * (BATCH_MESSAGES_MAX // 2 + 1))
    with pytest.raises(BadFormat):
        finish(decode_parts_steps(encode_parts({0: half, 1: half})))


def test_long_parts_are_decoded_in_steps() -> None:
    long = encode_batch("text/plain", [b"x" * (STEP_BYTES + 1)])
    steps = decode_parts_steps(encode_parts({0: long, 1: long}))
    next(steps)
    assert [place for place, _ in finish(steps).parts] == [0, 1]


def test_the_first_error_of_the_parts_is_told() -> None:
    bad = encode_batch("application/json", [b"{"])
    found = finish(decode_parts_steps(encode_parts({1: bad, 2: bad})))
    assert (found.error or "").startswith("the part for partition 1: ")


# ---- creation and changes ------------------------------------------------------------------------


def put(**document: Any) -> Any:
    body = json.dumps({"partitions": 3, **document}).encode()
    return parse_topic_put("t", JSON, body, now_ms=5, incarnation="i")


def test_a_topic_is_created() -> None:
    assert put() == CreateTopic("t", 5, "i", 3)
    assert put(
        content_type="text/plain", partitioner="murmur2", ttl_seconds=7, dedup="off"
    ) == CreateTopic("t", 5, "i", 3, "text/plain", "murmur2", 7_000, None, False)
    assert put(expires_at="1970-01-01T00:00:01Z", dedup="on") == CreateTopic(
        "t", 5, "i", 3, expires_at_ms=1_000, dedup=True
    )


@pytest.mark.parametrize(
    ("document", "field"),
    [
        ({"partitions": 0}, "partitions"),
        ({"partitions": 1_001}, "partitions"),
        ({"partitioner": "fnv"}, "partitioner"),
        ({"content_type": "text"}, "content_type"),
        ({"content_type": ""}, "content_type"),
        ({"content_type": "application/vnd.semel.topic-batch"}, "content_type"),
        ({"ttl_seconds": -1}, "ttl_seconds"),
        ({"ttl_seconds": NUMBER_MAX}, "ttl_seconds"),
        ({"expires_at": "soon"}, "expires_at"),
        ({"dedup": "inherit"}, "dedup"),
    ],
)
def test_a_bad_creation_names_the_field(document: dict[str, Any], field: str) -> None:
    problem = put(**document)
    assert refused(problem) == (400, "invalid_request")
    assert problem.facts == {"field": field}


def test_a_topic_expires_in_one_way() -> None:
    both = {"ttl_seconds": 1, "expires_at": "1970-01-01T00:00:01Z"}
    assert refused(put(**both)) == (400, "expiry_conflict")
    assert refused(put(partition=1)) == (400, "bad_body")


def patch(**document: Any) -> Any:
    return parse_topic_patch("t", JSON, json.dumps(document).encode(), now_ms=5, incarnation="i")


def test_a_topic_is_changed() -> None:
    assert patch(partitions=4) == GrowTopic("t", 5, "i", 4, False)
    assert patch(partitions=4, keys_may_move=True) == GrowTopic("t", 5, "i", 4, True)
    assert patch(dedup="on") == SwitchDedup("t", 5, True)
    assert patch(dedup="off") == SwitchDedup("t", 5, False)
    assert patch(dedup="inherit") == SwitchDedup("t", 5, None)
    assert patch(closed=True) == CloseTopic("t", 5)


@pytest.mark.parametrize(
    ("document", "field"),
    [
        ({}, "partitions"),
        ({"partitions": 1, "dedup": "on"}, "partitions"),
        ({"closed": True, "keys_may_move": True}, "partitions"),
        ({"keys_may_move": True}, "partitions"),
        ({"partitions": 0}, "partitions"),
        ({"dedup": "maybe"}, "dedup"),
        ({"closed": False}, "closed"),
    ],
)
def test_a_bad_change_names_the_field(document: dict[str, Any], field: str) -> None:
    problem = patch(**document)
    assert refused(problem) == (400, "invalid_request")
    assert problem.facts == {"field": field}


@pytest.mark.parametrize("body", [b"x", b"\xff" * 300])
@pytest.mark.parametrize("message_key", [b"", b"k", b"k" * 300])
@pytest.mark.parametrize(
    "values",
    [
        {},
        {"message_key": "first"},
        {"stream_partition": "2", "topic_partitions": "4"},
        {"topic_partition_hint": "7", "idempotency_key": "once"},
        {"producer_id": "p", "producer_epoch": "1", "producer_seq": "5"},
        {"transaction_id": "t", "transaction_epoch": "1", "transaction_seq": "0"},
    ],
)
def test_one_opaque_message_is_read_as_in_steps(
    values: dict[str, str], message_key: bytes, body: bytes
) -> None:
    found = plan(content_type="text/plain", **values)
    assert isinstance(found, TopicPlan)
    assert found.is_opaque
    for seq in (b"", b"9"):
        steps = topic_append_steps(found, body, now_ms=5, seq=seq, message_key=message_key)
        short = topic_append_of(found, body, now_ms=5, seq=seq, message_key=message_key)
        assert finish(steps) == short
        if message_key or found.message_key:
            assert keys(short) == [message_key or found.message_key]


def test_an_empty_opaque_body_is_refused_as_in_steps() -> None:
    found = plan(content_type="text/plain")
    assert isinstance(found, TopicPlan)
    assert refused(append_of(found, b"")) == (400, "empty_body")
