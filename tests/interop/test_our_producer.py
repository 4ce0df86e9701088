"""Our producer against the reference server, which does not support sessions."""

from collections.abc import Iterator
from typing import Any

import pytest

from semel import Client, errors
from semel.client.sync.stream import Stream


@pytest.fixture(scope="module")
def client(reference_url: str) -> Iterator[Client]:
    with Client(reference_url) as it:
        yield it


@pytest.fixture
def orders(request: pytest.FixtureRequest, client: Client) -> Stream:
    return client.stream(request.node.name).create("application/json")


def values(stream: Stream) -> list[object]:
    return [message.value for message in stream.read()]


# rows: D20, D23
@pytest.mark.parametrize("identity", [{"epoch": 0}, {"auto_claim": True}], ids=str)
def test_it_writes_everything_once_and_in_order(orders: Stream, identity: dict[str, Any]) -> None:
    acks: list[Any] = []
    # Small batches, so that many are in flight.
    with orders.producer("p", max_batch_bytes=64, on_batch_ack=acks.append, **identity) as producer:
        for n in range(500):
            producer.append(n)
        producer.flush()
        assert (producer.pending_count, producer.in_flight_count) == (0, 0)
    assert sum(ack.count for ack in acks) == 500
    assert len(acks) > 5, "too few batches"
    assert values(orders) == list(range(500))


# rows: D25, D40, X13
def test_it_claims_an_epoch_and_the_one_before_is_fenced(orders: Stream) -> None:
    with orders.producer("p", epoch=4) as old:
        old.append("a")
        old.flush()
        with orders.producer("p", auto_claim=True) as new:
            new.append("b")
            new.flush()
            assert new.epoch == 5
        with pytest.raises(errors.ProducerFenced) as fenced:
            old.append("x")
            old.flush()
        assert fenced.value.current_epoch == 5
        with pytest.raises(errors.ProducerFenced):
            old.append("y")  # permanently: the old producer does not claim the id again
    assert values(orders) == ["a", "b"]


def test_a_declared_epoch_stores_in_order(orders: Stream) -> None:
    with orders.producer("p", epoch=3, max_batch_messages=10) as producer:
        for number in range(1000):
            producer.append(number)
    assert values(orders) == list(range(1000))
    with pytest.raises(errors.ProducerFenced), orders.producer("p", epoch=2) as late:
        late.append("late")


def test_claims_follow_one_another_and_lose_nothing(orders: Stream) -> None:
    for number in range(3):
        with orders.producer("p", auto_claim=True) as producer:
            producer.append(["first", number])
            producer.append(["second", number])
    assert values(orders) == [[name, n] for n in range(3) for name in ("first", "second")]


def test_a_session_is_refused_with_what_to_do_instead(orders: Stream) -> None:
    with pytest.raises(errors.ProtocolError, match="auto_claim"), orders.producer("p") as producer:
        producer.append(1)
    assert values(orders) == []


def test_what_only_semel_can_store_is_refused_and_nothing_is_sent(orders: Stream) -> None:
    acks: list[Any] = []
    with orders.producer("p", epoch=0, on_batch_ack=acks.append) as producer:
        for extras in ({"key": "k"}, {"headers": {"a": "b"}}):
            with pytest.raises(errors.NotSupported):
                producer.append("lost", **extras)
        producer.append("kept")
    assert values(orders) == ["kept"]
    assert acks[0].offset is None, "offsets of the reference server do not count messages"


def test_bytes_are_joined(client: Client) -> None:
    stream = client.stream("bytes").create()
    with stream.producer("p", epoch=0) as producer:
        for letter in (b"a", b"b", b"c"):
            producer.append(letter)
    assert stream.read_bytes() == b"abc"
