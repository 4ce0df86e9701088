"""Topics in the client: which partition a message goes to, and what is sent after a growth."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from semel.client import errors
from semel.client.append_lanes import EncodeAgain
from semel.client.extras import Extras
from semel.client.flows import Lost
from semel.client.grouping import Grouper
from semel.client.pending_append import PLAIN, PendingAppend
from semel.client.requests import AppendHeaders
from semel.client.response_parser import Response
from semel.client.stream_calls import NO_EXTRAS
from semel.client.topic_calls import TopicCalls, TopicConfig, stream_info
from semel.client.topic_values import TopicReceipt, split_topic_receipt
from semel.client.txn_calls import TransactionCalls
from semel.client.values import Registration
from semel.model.messages import keys_of
from semel.model.offsets import print_offset
from semel.model.partitioners import HASHES
from semel.model.steps import finish
from semel.wire.bodies import decode_parts_steps
from semel.wire.headers import TOPIC_BATCH
from semel.wire.schema.topics import TopicPart
from tests.unit.client.hand import SITE, Played, document, play, problem
from tests.unit.client.test_append_lanes import Hand

JSON = "application/json"
LOST = Lost("reset")
GONE = problem(404, "topic_not_found")


def state(
    partitions: int = 3,
    next_offset: str = print_offset(0),
    stable_offset: str = print_offset(0),
    **members: Any,
) -> Response:
    """Return the state of a topic. All partitions have the same offsets."""
    entries = [
        {
            "partition": number,
            "stream": f"orders/{number}",
            "incarnation": f"i-{number}",
            "first_offset": print_offset(0),
            "next_offset": next_offset,
            "stable_offset": stable_offset,
            "closed": False,
        }
        for number in range(partitions)
    ]
    document_of_topic = {
        "topic": "orders",
        "partitions": entries,
        "dedup_from": 0,
        "partition_count": partitions,
        "partitioner": "crc32",
        "content_type": JSON,
        "incarnation": "i",
        **members,
    }
    return document(document_of_topic)


def stored(*parts: tuple[int, int, int], duplicate: bool = False) -> Response:
    """Return the response to an append. Each part has a partition and a range of offsets."""
    entries = [
        {
            "partition": partition,
            "stream": f"orders/{partition}",
            "offset": print_offset(first),
            "next_offset": print_offset(end),
        }
        for partition, first, end in parts
    ]
    return document({"topic": "orders", "duplicate": duplicate, "parts": entries})


def changed(partitions: int, partitioner: str = "crc32") -> Response:
    return problem(409, "partitions_changed", partitions=partitions, partitioner=partitioner)


def topic(wanted: TopicConfig | None = None) -> TopicCalls:
    return TopicCalls(SITE, "orders", wanted)


def known_topic(partitions: int = 3) -> TopicCalls:
    calls = topic()
    play(calls.show(), state(partitions))
    return calls


def keyed(*keys: bytes | None) -> Extras:
    return Extras(list(keys), None, None)


def parts_of(body: bytes) -> dict[int, tuple[int, list[bytes | None]]]:
    """Return the number of messages and the keys for each partition of a body."""
    decoded = finish(decode_parts_steps(body))
    assert decoded.error is None
    return {
        partition: (batch.count, keys_of(batch.extras, batch.count) if batch.extras else [])
        for partition, batch in decoded.parts
    }


def fields_of(request: Any) -> dict[str, str]:
    return dict(request.headers)


# ---- grouping ------------------------------------------------------------------------------------


@given(
    keys=st.lists(st.none() | st.binary(max_size=9), min_size=1, max_size=40),
    partitions=st.integers(1, 20),
    partitioner=st.sampled_from(sorted(HASHES)),
)
def test_every_message_is_in_the_partition_of_its_key(
    keys: list[bytes | None], partitions: int, partitioner: str
) -> None:
    grouper = Grouper(partitioner, partitions)
    messages = [b"%d" % index for index in range(len(keys))]
    grouped = grouper.group(JSON, messages, keyed(*keys))
    assert grouped.fields == (("Topic-Partitions", f"{partitions};partitioner={partitioner}"),)
    for key, place in zip(keys, grouped.places, strict=True):
        if key is not None:
            assert place == HASHES[partitioner](key) % partitions
    keyless = {place for key, place in zip(keys, grouped.places, strict=True) if key is None}
    assert len(keyless) <= 1
    counts = {place: count for place, (count, _) in parts_of(grouped.body).items()}
    assert counts == Counter(grouped.places)
    decoded = finish(decode_parts_steps(grouped.body))
    for place, batch in decoded.parts:
        wanted = [raw for raw, own in zip(messages, grouped.places, strict=True) if own == place]
        assert batch.payload == b",".join(wanted)


def test_requests_without_keys_go_to_the_partitions_in_turn() -> None:
    grouper = Grouper("crc32", 3, turn=0)
    places = [grouper.group(JSON, [b"1", b"2"], NO_EXTRAS).places for _ in range(4)]
    assert places == [[1, 1], [2, 2], [0, 0], [1, 1]]


def test_chosen_partitions_win_over_keys() -> None:
    grouped = Grouper("crc32", 4).group(JSON, [b"1", b"2"], keyed(b"a", b"b"), [3, None])
    assert grouped.places == [3, HASHES["crc32"](b"b") % 4]


def test_columns_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="2 items for 2"):
        Grouper("crc32", 4).group(JSON, [b"1", b"2"], keyed(b"a"))


def test_an_unknown_partitioner_is_not_supported() -> None:
    with pytest.raises(errors.NotSupported, match="md5"):
        Grouper("md5", 4)


@given(counts=st.lists(st.integers(1, 4), min_size=1, max_size=6), data=st.data())
def test_each_append_of_a_request_gets_its_own_offsets(counts: list[int], data: Any) -> None:
    total = sum(counts)
    places = data.draw(st.lists(st.integers(0, 3), min_size=total, max_size=total))
    starts = {place: data.draw(st.integers(0, 50)) for place in set(places)}
    parts = tuple(
        TopicPart(place, f"t/{place}", print_offset(start), print_offset(start + count))
        for place, count in sorted(Counter(places).items())
        for start in (starts[place],)
    )
    receipts = list(split_topic_receipt(TopicReceipt(None, parts=parts), counts, places))
    next_of = dict(starts)
    index = 0
    for count, receipt in zip(counts, receipts, strict=True):
        own = Counter(places[index : index + count])
        index += count
        assert {part.partition for part in receipt.parts} == set(own)
        for part in receipt.parts:
            assert part.offset == print_offset(next_of[part.partition])
            next_of[part.partition] += own[part.partition]
            assert part.next_offset == print_offset(next_of[part.partition])


# ---- the topic as a whole ------------------------------------------------------------------------


def test_a_topic_that_is_wanted_is_created_by_its_first_use() -> None:
    calls = topic(TopicConfig(3, JSON))
    with pytest.raises(errors.NotSupported):  # a 404 without a code is not an answer of semel
        play(calls.show(), document({}, 404))
    played = Played(calls.show(), [GONE, replace(state(), status=201)])
    assert [send.request.method for send in played.sends] == ["GET", "PUT"]
    assert played.result.partition_count == 3
    assert calls.wanted is None


def test_a_topic_that_another_client_has_created_meanwhile_is_used() -> None:
    calls = topic(TopicConfig(3, JSON))
    conflict = problem(409, "topic_conflict", field="partitions")
    assert play(calls.show(), GONE, conflict, state(4)).partition_count == 4


@pytest.mark.parametrize(
    ("config", "field"),
    [
        (TopicConfig(4), "partitions"),
        (TopicConfig(3, "text/plain"), "content_type"),
        (TopicConfig(3, partitioner="murmur2"), "partitioner"),
    ],
)
def test_a_topic_with_another_configuration_is_a_conflict(config: TopicConfig, field: str) -> None:
    calls = topic(config)
    for _ in range(2):  # the second time as well
        with pytest.raises(errors.TopicConflict) as caught:
            play(calls.show(), state())
        assert caught.value.field == field


def test_a_creation_accepts_more_partitions_only_if_that_is_all() -> None:
    conflict = problem(409, "topic_conflict", field="partitions")
    other = problem(409, "topic_conflict", field="content_type")
    flow = topic().create_topic(TopicConfig(3, JSON), exist_ok=True)
    assert play(flow, conflict, state(5), state(5)).partition_count == 5
    with pytest.raises(errors.TopicConflict):
        play(topic().create_topic(TopicConfig(3), exist_ok=True), conflict, state(5), other)
    with pytest.raises(errors.TopicConflict):
        play(topic().create_topic(TopicConfig(3), exist_ok=True), conflict, state(2))
    with pytest.raises(errors.TopicConflict):
        play(topic().create_topic(TopicConfig(3)), conflict)


def test_a_growth_is_repeated_until_no_transaction_prevents_it() -> None:
    busy = problem(409, "stream_in_transaction", transaction_id="x")
    played = Played(topic().grow(5), [busy, True, busy, True, state(5)])
    assert played.result.partition_count == 5
    assert [send.request.method for send in played.sends] == ["PATCH"] * 3
    with pytest.raises(errors.StreamInTransaction):  # the call's timeout has ended the pause
        play(topic().grow(5), busy, False)


def test_a_repeated_creation_is_a_success_but_an_existing_topic_is_not() -> None:
    assert play(topic().create_topic(TopicConfig(3)), LOST, state()).partition_count == 3
    with pytest.raises(errors.StreamExists):
        play(topic().create_topic(TopicConfig(3)), state())
    assert play(topic().create_topic(TopicConfig(3), exist_ok=True), state()).topic == "orders"


def test_a_repeated_deletion_is_a_success() -> None:
    play(topic().delete(), LOST, GONE)
    with pytest.raises(errors.TopicNotFound):
        play(topic().delete(), GONE)


# ---- the recognition of duplicates --------------------------------------------------------------


SWITCHED = {"appended": 8, "dedup_from": 8}
PENDING_ON = {"appended": 5, "dedup": "off", "dedup_from": None, "dedup_pending": "on"}


@pytest.mark.parametrize(
    ("now", "doubt"),
    [
        ({"appended": 5, "dedup_from": 2}, None),
        ({"appended": 9, "dedup_from": 2}, None),
        ({"appended": 5, "dedup_from": 5}, None),  # it was switched, but nothing was stored before
        (SWITCHED, "switched on after 8 messages"),
        (SWITCHED | {"incarnation": "j"}, "switched on after 8 messages"),
        ({"appended": 0, "dedup_from": 0, "incarnation": "j"}, None),  # nothing is stored there
        ({"appended": 9, "dedup": "off", "dedup_from": None}, "topic does not recognise"),
        ({"appended": 9, "dedup_from": 2, "dedup_pending": "off"}, "topic does not recognise"),
        (PENDING_ON, None),
        (PENDING_ON | {"appended": 6}, "topic does not recognise"),
        (PENDING_ON | {"incarnation": "j"}, "topic does not recognise"),
    ],
)
def test_a_repeat_is_in_doubt_if_the_topic_did_not_always_recognise_duplicates(
    now: dict[str, Any], doubt: str | None
) -> None:
    calls = topic()
    play(calls.show(), state(appended=5, dedup_from=2))
    known = calls.known()
    play(calls.show(), state(**now))
    assert calls.is_unguarded is (now.get("dedup_pending", now.get("dedup")) == "off")
    found = known.doubt(stream_info(play(topic().show(), state(**now))))
    assert found is None if doubt is None else doubt in (found or "")
    assert "stream" not in (found or "").replace("Stream-Dedup", "")


def test_a_switch_waits_for_a_transaction_in_a_partition() -> None:
    calls = topic()
    play(calls.show(), state(appended=5, dedup="off", dedup_pending="on"))
    now = state(1, next_offset=print_offset(3), stable_offset=print_offset(2), **PENDING_ON)
    assert calls.known().doubt(stream_info(play(topic().show(), now))) is not None


def test_the_offset_in_a_partition_says_nothing_about_the_topic() -> None:
    calls = known_topic(3)
    play(calls.append([1], PLAIN, keyed(b"a")), stored((0, 10, 11)))
    switched_on = state(appended=8, dedup_from=8)
    assert calls.known().doubt(stream_info(play(topic().show(), switched_on))) is not None


@pytest.mark.parametrize("key", [None, "once"])
def test_a_lost_append_is_not_repeated_after_a_switch(key: str | None) -> None:
    hand = TopicHand(known_topic(3))
    conditions = AppendHeaders(idempotency_key=key)
    wanted = PendingAppend([1], conditions, NO_EXTRAS, 1e9)
    hand.lane.prepare(wanted)
    hand.lane.queue.add(wanted)
    batch, _ = hand.lane.take(hand.now)
    assert batch is not None
    with pytest.raises(errors.Indeterminate):
        play(hand.lane.deliver(batch), LOST, state(appended=1, dedup_from=1))


# ---- appends in a flow ---------------------------------------------------------------------------


def test_an_append_is_grouped_by_the_client() -> None:
    played = Played(
        topic().append([1, 2, 3], PLAIN, keyed(b"a", b"b", b"a")),
        [state(), stored((0, 0, 1), (2, 5, 7))],
    )
    _, send = played.sends
    assert fields_of(send.request)["Content-Type"] == TOPIC_BATCH
    assert fields_of(send.request)["Topic-Partitions"] == "3;partitioner=crc32"
    a, b = (HASHES["crc32"](key) % 3 for key in (b"a", b"b"))
    assert parts_of(send.request.body or b"") == {a: (2, [b"a", b"a"]), b: (1, [b"b"])}
    assert [part.partition for part in played.result.parts] == [0, 2]
    assert played.result.next_offset is None
    assert played.result.partition is None


def test_after_a_growth_the_messages_are_grouped_again() -> None:
    calls = known_topic(3)
    keys = [b"k%d" % number for number in range(10)]
    played = Played(
        calls.append(list(range(10)), PLAIN, keyed(*keys)), [changed(7), stored((0, 0, 10))]
    )
    first, second = played.sends
    assert fields_of(first.request)["Topic-Partitions"] == "3;partitioner=crc32"
    assert fields_of(second.request)["Topic-Partitions"] == "7;partitioner=crc32"
    wanted = Counter(HASHES["crc32"](key) % 7 for key in keys)
    got = {place: count for place, (count, _) in parts_of(second.request.body or b"").items()}
    assert got == wanted


def test_a_refusal_with_the_same_number_is_not_sent_for_ever() -> None:
    with pytest.raises(errors.PartitionsChanged):
        play(known_topic(3).append([1], PLAIN, NO_EXTRAS), changed(3))
    replies = [changed(4 + number) for number in range(20)]
    with pytest.raises(errors.PartitionsChanged):
        play(known_topic(3).append([1], PLAIN, NO_EXTRAS), *replies)


def test_a_topic_with_another_partitioner_is_learned_from_a_refusal() -> None:
    keys = (b"a", b"b", b"c", b"d")
    calls = known_topic(3)
    played = Played(
        calls.append(list(range(4)), PLAIN, keyed(*keys)),
        [changed(3, "murmur2"), stored((0, 0, 4))],
    )
    _, second = played.sends
    assert fields_of(second.request)["Topic-Partitions"] == "3;partitioner=murmur2"
    wanted = Counter(HASHES["murmur2"](key) % 3 for key in keys)
    got = {place: count for place, (count, _) in parts_of(second.request.body or b"").items()}
    assert got == wanted
    with pytest.raises(errors.PartitionsChanged):
        play(calls.append([1], PLAIN, NO_EXTRAS), changed(3, "murmur2"))
    with pytest.raises(errors.NotSupported, match="md5"):
        play(calls.append([1], PLAIN, NO_EXTRAS), changed(3, "md5"))
    no_facts = problem(409, "partitions_changed", partitions=9)
    with pytest.raises(errors.PartitionsChanged):
        play(calls.append([1], PLAIN, NO_EXTRAS), no_facts)


def test_with_an_idempotency_key_the_server_groups() -> None:
    conditions = AppendHeaders(idempotency_key="once")
    played = Played(
        known_topic(3).append([1, 2], conditions, keyed(b"a", b"b")), [stored((0, 0, 2))]
    )
    (send,) = played.sends
    assert "Topic-Partitions" not in fields_of(send.request)
    assert fields_of(send.request)["Content-Type"] != TOPIC_BATCH


def test_a_transaction_uses_the_same_sequence_for_the_regrouped_messages() -> None:
    txn = TransactionCalls(SITE, "t", "inline", 60)
    begun = document({"transaction_id": "t", "transaction_epoch": 1}, 201)
    play(txn.begin(Registration("p", 4), ()), begun)
    calls = known_topic(2)
    played = Played(txn.append(calls, [1], keyed(b"a")), [changed(5), stored((1, 0, 1))])
    assert [fields_of(send.request)["Producer-Seq"] for send in played.sends] == ["0", "0"]
    grouped = [fields_of(send.request)["Topic-Partitions"] for send in played.sends]
    assert grouped == ["2;partitioner=crc32", "5;partitioner=crc32"]
    again = Played(txn.append(calls, [2], keyed(b"a")), [stored((1, 1, 2))])
    assert fields_of(again.sends[0].request)["Producer-Seq"] == "1"


# ---- plain appends that are sent together --------------------------------------------------------


class TopicHand(Hand):
    """A lane of a topic."""

    def append(self, *values: Any, keys: list[bytes | None]) -> PendingAppend:
        wanted = PendingAppend(values, PLAIN, keyed(*keys), 1e9)
        self.lane.prepare(wanted)
        self.lane.queue.add(wanted)
        return wanted


def test_appends_that_share_a_request_get_their_own_receipts() -> None:
    hand = TopicHand(known_topic(3))
    appends = [hand.append(number, keys=[key]) for number, key in enumerate((b"a", b"b", b"a"))]
    batch, _ = hand.lane.take(hand.now)
    assert batch is not None
    a, b = (HASHES["crc32"](key) % 3 for key in (b"a", b"b"))
    played = hand.play(batch, stored((a, 10, 12), (b, 4, 5)))
    hand.lane.queue.finish(batch, played.result)
    receipts = [each.result() for each in appends]
    got = [(each.partition, each.offset) for each in receipts if isinstance(each, TopicReceipt)]
    assert got == [(a, print_offset(10)), (b, print_offset(4)), (a, print_offset(11))]


def test_a_repeat_after_a_lost_response_has_the_same_groups() -> None:
    hand = TopicHand(known_topic(3))
    hand.append(1, 2, keys=[b"a", b"a"])
    batch, _ = hand.lane.take(hand.now)
    assert batch is not None
    played = hand.play(batch, LOST, state(5), stored((2, 0, 2), duplicate=True))
    posts = [send.request for send in played.sends if send.request.method == "POST"]
    assert posts[0] == posts[1]
    assert not played.result.duplicate  # it is the first attempt of this call


def test_after_a_refusal_the_batch_is_encoded_again() -> None:
    hand = TopicHand(known_topic(3))
    hand.append(1, 2, keys=[b"a", b"a"])
    batch, _ = hand.lane.take(hand.now)
    assert batch is not None
    with pytest.raises(EncodeAgain):
        play(hand.lane.deliver(batch), changed(8))
    hand.lane.fail(batch, EncodeAgain())
    again, _ = hand.lane.take(hand.now)
    assert again is not None
    played = hand.play(again, stored((HASHES["crc32"](b"a") % 8, 0, 2)))
    (send,) = played.sends
    assert fields_of(send.request)["Topic-Partitions"] == "8;partitioner=crc32"


def test_a_batch_whose_producer_is_refused_is_grouped_again_for_the_topic_as_it_is() -> None:
    hand = TopicHand(known_topic(3))
    hand.append(1, 2, keys=[b"a", b"a"])
    batch, _ = hand.lane.take(hand.now)
    assert batch is not None
    refusal = problem(403, "PRODUCER_FENCED", current_epoch=4)
    place = HASHES["murmur2"](b"a") % 9
    other = state(9, partitioner="murmur2", incarnation="j")
    played = hand.play(batch, refusal, other, stored((place, 0, 2)))
    first, _, second = played.sends
    assert fields_of(first.request)["Topic-Partitions"] == "3;partitioner=crc32"
    assert fields_of(second.request)["Topic-Partitions"] == "9;partitioner=murmur2"
    assert list(parts_of(second.request.body or b"")) == [place]


@pytest.mark.parametrize(
    ("key", "is_header"),
    [
        (b"customer 7", True),
        (b"k" * 1_000, True),
        (b"k" * 1_001, False),
        (b" k", False),
        (b"", False),
        ("ä".encode(), False),
        (b"a\x00", False),
        (b"\xff", False),
    ],
)
def test_the_server_selects_the_partition_of_a_single_message_with_a_key(
    key: bytes, is_header: bool
) -> None:
    hand = TopicHand(known_topic(3))
    hand.append(1, keys=[key])
    batch, _ = hand.lane.take(hand.now)
    assert batch is not None
    played = hand.play(batch, LOST, state(3), stored((2, 5, 6)))
    first, second = (send.request for send in played.sends if send.request.method == "POST")
    for fields in (fields_of(first), fields_of(second)):
        assert fields.get("Message-Key") == (key.decode() if is_header else None)
        assert ("Topic-Partitions" in fields) is not is_header
    assert first == second
    if is_header:
        assert first.body == b"[1]"


@pytest.mark.parametrize("raw", [b"1,2", b"", b" "])
def test_bytes_that_are_not_one_value_are_not_put_into_an_array(raw: bytes) -> None:
    hand = TopicHand(known_topic(3))
    hand.append(raw, keys=[b"k"])
    batch, _ = hand.lane.take(hand.now)
    assert batch is not None
    (send,) = hand.play(batch, stored((0, 0, 1))).sends
    assert "Message-Key" not in fields_of(send.request)


def test_a_batch_keeps_its_groups_if_the_topic_is_the_same() -> None:
    hand = TopicHand(known_topic(3))
    hand.append(1, keys=[None])
    batch, _ = hand.lane.take(hand.now)
    assert batch is not None
    refusal = problem(403, "PRODUCER_FENCED", current_epoch=4)
    played = hand.play(batch, refusal, state(3), stored((0, 0, 1)))
    first, _, second = played.sends
    assert first.request.body == second.request.body
