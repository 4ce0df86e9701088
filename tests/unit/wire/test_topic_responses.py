"""Responses about topics: appends in both forms, and documents."""

import json
from typing import Any

import pytest

from semel.model.commands import ProducerTag, TxnTag
from semel.model.offsets import print_offset
from semel.model.outcomes import Appended, Claimed, Duplicate, StreamClosed
from semel.model.outcomes_topics import PartResult, StreamExists, TopicGrown, TopicStored
from semel.model.outcomes_txn import Staged
from semel.model.policies import DedupSource
from semel.model.topic_commands import AppendTopic
from semel.wire.paths import topic_url
from semel.wire.producers import claim_response, explain_outcome
from semel.wire.rendering import Response, problem_of
from semel.wire.schema.topics import GrowthEntry, PartitionEntry, TopicDocument
from semel.wire.topics import (
    TopicPlan,
    plan_topic_post,
    topic_append_lines,
    topic_append_response,
    topic_response,
)
from tests.unit.wire.builders import NONE, headers_of

ONE = (PartResult(2, 5, 7),)
TWO = (PartResult(0, 5, 7), PartResult(2, 0, 1))
TAG = ProducerTag("p", 3, 3, 1)


def respond(
    outcome: Any, *, is_named: bool = True, partitions: int | None = 4, **more: Any
) -> Response:
    command = AppendTopic("t", 5, **more)
    return topic_append_response(outcome, command, is_named=is_named, partitions=partitions)


def body(response: Response) -> Any:
    return json.loads(response.body)


def test_an_append_to_one_partition_names_it() -> None:
    response = respond(TopicStored(ONE))
    headers = headers_of(response)
    assert response.status == 200
    assert headers["Topic-Partitions"] == "4"
    assert headers["Stream-Partition"] == "2"
    assert headers["Stream-Next-Offset"] == print_offset(7)
    assert body(response) == {
        "topic": "t",
        "duplicate": False,
        "parts": [
            {
                "partition": 2,
                "stream": "t/2",
                "offset": print_offset(5),
                "next_offset": print_offset(7),
            }
        ],
    }


def test_an_append_to_several_partitions_has_no_offset_of_its_own() -> None:
    response = respond(TopicStored(TWO), partitions=None)
    headers = headers_of(response)
    assert "Stream-Partition" not in headers
    assert "Stream-Next-Offset" not in headers
    assert "Topic-Partitions" not in headers
    assert [each["partition"] for each in body(response)["parts"]] == [0, 2]


@pytest.mark.parametrize("name", ["t", "a/b", "ä", 'q"'])
@pytest.mark.parametrize(("epoch", "seq"), [(None, None), (1, 3)])
def test_both_forms_of_a_common_response_are_equal(
    name: str, epoch: int | None, seq: int | None
) -> None:
    plan = plan_topic_post(name, {"content-type": "text/plain"}, NONE)
    assert isinstance(plan, TopicPlan)
    assert plan.is_common
    outcome = TopicStored(ONE, epoch, seq)
    lines, short = topic_append_lines(outcome, ONE[0], plan, 4)
    command = AppendTopic(name, 5, producer=None if epoch is None else TAG)
    long = topic_append_response(outcome, command, is_named=True, partitions=4)
    assert short == long.body
    expected = "".join(f"{field}: {value}\r\n" for field, value in long.headers)
    assert sorted(lines.decode().splitlines()) == sorted(expected.splitlines())


def test_a_duplicate_says_so() -> None:
    stored = TopicStored(ONE, 1, 3, is_duplicate=True, is_mismatch=True)
    response = respond(stored, producer=TAG)
    headers = headers_of(response)
    assert (headers["Producer-Epoch"], headers["Producer-Seq"]) == ("1", "3")
    assert headers["Producer-Payload-Mismatch"] == "true"
    assert "Producer-Receipt" not in headers
    assert body(response)["duplicate"] is True
    expired = respond(TopicStored(None, None, 3, is_duplicate=True), producer=TAG)
    assert headers_of(expired)["Producer-Receipt"] == "expired"
    assert "Producer-Epoch" not in headers_of(expired)
    assert body(expired)["parts"] is None


def test_a_topic_without_duplicate_detection_says_so() -> None:
    stored = TopicStored(ONE, 1, 3, is_unguarded=True)
    assert headers_of(respond(stored, producer=TAG))["Producer-Dedup"] == "off"
    keyed = headers_of(respond(TopicStored(ONE, is_unguarded=True), key="k"))
    assert keyed["Idempotency-Window"].startswith("0;")
    assert "Idempotent-Replayed" not in keyed


def test_an_idempotency_key_has_its_headers() -> None:
    replayed = headers_of(respond(TopicStored(ONE, is_duplicate=True), key="k"))
    assert replayed["Idempotent-Replayed"] == "true"


def test_an_id_of_the_server_is_told() -> None:
    assert (
        headers_of(respond(TopicStored(ONE, 1, 3), is_named=False, producer=TAG))["Producer-Id"]
        == "p"
    )
    assert "Producer-Id" not in headers_of(respond(TopicStored(ONE), is_named=False))


def test_a_staged_append_tells_the_next_sequence() -> None:
    response = respond(Staged(4), transaction=TxnTag("x", 1, 3))
    assert headers_of(response)["Transaction-Next-Seq"] == "4"
    assert body(response) == {"topic": "t", "duplicate": False, "parts": None, "next_seq": 4}
    again = TopicStored(None, is_duplicate=True)
    repeated = respond(again, transaction=TxnTag("x", 1, 3))
    assert "Producer-Receipt" not in headers_of(repeated)
    assert headers_of(repeated)["Transaction-Next-Seq"] == "4"
    assert body(repeated) == {"topic": "t", "duplicate": True, "parts": None, "next_seq": 4}


def test_a_refusal_is_a_problem() -> None:
    response = respond(StreamClosed(3))
    assert (response.status, body(response)["code"]) == (409, "stream_closed")


# ---- documents -----------------------------------------------------------------------------------


def document(*growths: GrowthEntry, dedup_from: int | None = 0) -> TopicDocument:
    offset = print_offset(0)
    entry = PartitionEntry(0, "t/0", "i-0", offset, offset, offset, False)
    return TopicDocument(
        topic="t",
        partitions=[entry],
        partition_count=1,
        partitioner="crc32",
        content_type="text/plain",
        incarnation="i",
        keyed=False,
        closed=False,
        created_at_ms=5,
        appended=9,
        dedup="off" if dedup_from is None else "on",
        dedup_from=dedup_from,
        dedup_source="built-in",
        dedup_policy=None,
        dedup_pending=None,
        growths=list(growths),
    )


def test_a_topic_has_headers() -> None:
    response = topic_response(document())
    assert headers_of(response)["Topic-Partitioner"] == "crc32"
    assert headers_of(response)["Topic-Incarnation"] == "i"
    assert "Topic-Growth-Offsets" not in headers_of(response)
    assert "moved_at" not in body(response)
    made = topic_response(document(), status=201, location="/here")
    assert (made.status, headers_of(made)["Location"]) == (201, "/here")


def test_a_topic_says_since_when_it_recognises_duplicates() -> None:
    assert not any(
        name.startswith("Stream-Dedup") for name in headers_of(topic_response(document()))
    )
    later = headers_of(topic_response(document(dedup_from=4), source=DedupSource(is_own=True)))
    assert later["Stream-Dedup-From"] == print_offset(4)
    assert later["Stream-Dedup-Source"] == "own"
    due = DedupSource(prefix="a b", pending=True)
    off = headers_of(topic_response(document(dedup_from=None), source=due))
    assert (off["Stream-Dedup"], off["Stream-Dedup-Pending"]) == ("off", "on")
    assert off["Stream-Dedup-Policy"] == '"a%20b"'


def test_a_growth_is_in_the_headers_unless_it_is_long() -> None:
    short = GrowthEntry(2, [print_offset(1), print_offset(2)])
    grown = topic_response(document(short), grown=TopicGrown(3, (1, 2), is_new=True))
    expected = f"{print_offset(1)},{print_offset(2)}"
    assert headers_of(grown)["Topic-Growth-Offsets"] == expected
    assert body(grown)["moved_at"] == [print_offset(1), print_offset(2)]
    long = GrowthEntry(101, [print_offset(1)] * 101)
    assert "Topic-Growth-Offsets" not in headers_of(topic_response(document(short, long)))


def test_a_topic_has_a_url() -> None:
    assert topic_url("http://h", "a/b c") == "http://h/v1/topics/a/b%20c"


@pytest.mark.parametrize(("count", "more"), [(1, ""), (5, ""), (7, " and 2 more")])
def test_paths_in_use_are_listed(count: int, more: str) -> None:
    message = problem_of(StreamExists(tuple(f"t/{number}" for number in range(count)))).message
    assert f"t/{min(count, 5) - 1}{more}." in message


# ---- producers of topics -------------------------------------------------------------------------


def test_a_claim_on_a_topic_has_no_offset() -> None:
    claimed = Claimed("p", 2, 3, 9, None)
    shown = body(claim_response(claimed, path="t", is_topic=True))
    assert (shown["last_seq"], shown["last_offset"]) == (3, None)
    assert body(claim_response(claimed, path="s"))["last_offset"] == print_offset(9)


def test_an_append_to_a_topic_is_explained_without_offsets() -> None:
    stored = explain_outcome(TopicStored(ONE, 1, 3), TAG, epoch=1, last_seq=2, is_topic=True)
    assert (stored.outcome, stored.facts) == (Appended.code, {"epoch": 1})
    repeated = TopicStored(ONE, 1, 3, is_duplicate=True)
    known = explain_outcome(repeated, TAG, epoch=1, last_seq=3, is_topic=True)
    assert (known.outcome, known.status) == (Duplicate.code, 200)
    assert known.facts == {"epoch": 1, "last_seq": 3}
    assert "already stored" in known.reason
    expired = TopicStored(None, 1, 3, is_duplicate=True)
    forgotten = explain_outcome(expired, TAG, epoch=1, last_seq=3, is_topic=True)
    assert "not retained" in forgotten.reason
    mismatch = TopicStored(ONE, 1, 3, is_duplicate=True, is_mismatch=True)
    other = explain_outcome(mismatch, TAG, epoch=1, last_seq=3, is_topic=True)
    assert "different payload" in other.reason
    unguarded = TopicStored(ONE, 1, 3, is_unguarded=True)
    off = explain_outcome(unguarded, TAG, epoch=1, last_seq=3, is_topic=True)
    assert "does not recognise duplicates" in off.reason
