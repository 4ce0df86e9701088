"""Our client against the reference server: it must not need semel on the other side."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from semel import AsyncClient, Client, SemelError, errors
from tests.interop.node_server import reference_server


@pytest.fixture(scope="module")
def url(packages: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with reference_server(tmp_path_factory.mktemp("node"), packages) as url:
        yield url


@pytest.fixture
def client(url: str) -> Iterator[Client]:
    with Client(url) as client:
        yield client


def fresh() -> str:
    return f"s-{uuid4().hex}"


def test_it_creates_appends_and_reads(client: Client) -> None:
    orders = client.stream(fresh()).create("application/json")
    second = [orders.append({"id": n}) for n in range(3)][1]
    orders.append_many([{"id": 3}, {"id": 4}])
    assert [message.value["id"] for message in orders.read()] == [0, 1, 2, 3, 4]
    assert second.next_offset is not None
    rest = orders.read(second.next_offset)
    assert [message.value["id"] for message in rest] == [2, 3, 4]
    head = orders.head()
    assert head.content_type == "application/json"
    assert not head.closed


def test_it_reads_the_bytes_and_the_text_it_wrote(client: Client) -> None:
    raw = client.stream(fresh()).create("application/octet-stream")
    raw.append(b"\x00\xff")
    raw.append(b"\n\r")
    assert raw.read_bytes() == b"\x00\xff\n\r"
    text = client.stream(fresh()).create("text/plain")
    text.append("grüße\n")
    assert text.read_text() == "grüße\n"


def test_it_understands_refusals(client: Client) -> None:
    stream = client.stream(fresh())
    with pytest.raises(errors.StreamNotFound):
        stream.head()
    stream.create("application/json")
    with pytest.raises(errors.StreamExists):
        stream.create("application/json")
    with pytest.raises(errors.ConfigConflict):
        stream.create("text/plain", exist_ok=True)
    stream.append(1, seq="2")
    with pytest.raises(errors.StreamSeqConflict):
        stream.append(1, seq="1")
    stream.close()
    with pytest.raises(errors.StreamClosed):
        stream.append(2)
    stream.delete()
    assert not stream.exists()


@pytest.mark.parametrize("live", ["long-poll", "sse"])
@pytest.mark.parametrize("content_type", ["application/json", "text/plain"])
def test_it_follows_a_stream_to_its_end(client: Client, live: str, content_type: str) -> None:
    stream = client.stream(fresh()).create(content_type)
    stream.append("a")
    seen: list[Any] = []
    with stream.tail(live=live) as tail:
        for message in tail:
            seen.append(message.value)
            later = {"a": "b", "b": "c"}.get(message.value)
            if later is None:
                stream.close()
            else:
                stream.append(later)  # so all but the first arrive live
    assert seen == ["a", "b", "c"]


def test_its_asynchronous_half_does_the_same(url: str) -> None:
    async def story() -> list[Any]:
        seen: list[Any] = []
        async with AsyncClient(url) as client:
            stream = await client.stream(fresh()).create("application/json")
            await stream.append(1)
            async with stream.tail(live="sse") as tail:
                async for message in tail:
                    seen.append(message.value)
                    if message.value == 3:
                        await stream.close()
                    else:
                        await stream.append(message.value + 1)
        return seen

    assert asyncio.run(story()) == [1, 2, 3]


# rows: D20, D23
@pytest.mark.parametrize("identity", [{"epoch": 0}, {"auto_claim": True}], ids=str)
def test_its_producer_writes_everything_once_and_in_order(
    client: Client, identity: dict[str, Any]
) -> None:
    stream = client.stream(fresh()).create("application/json")
    acks: list[Any] = []
    # Small batches: many are in flight.
    with stream.producer("p", max_batch_bytes=64, on_batch_ack=acks.append, **identity) as producer:
        for n in range(500):
            producer.append(n)
        producer.flush()
        assert (producer.pending_count, producer.in_flight_count) == (0, 0)
    assert sum(ack.count for ack in acks) == 500
    assert len(acks) > 5, "it was all one batch"
    assert [message.value for message in stream.read()] == list(range(500))


# rows: D25, D40, X13
def test_its_producer_claims_an_epoch_and_the_one_before_is_fenced(client: Client) -> None:
    stream = client.stream(fresh()).create("application/json")
    with stream.producer("p", epoch=4) as old:
        old.append("a")
        old.flush()
        with stream.producer("p", auto_claim=True) as new:
            new.append("b")
            new.flush()
            assert new.epoch == 5
        with pytest.raises(errors.ProducerFenced) as fenced:
            old.append("x")
            old.flush()
        assert fenced.value.current_epoch == 5
        with pytest.raises(errors.ProducerFenced):
            old.append("y")  # for good: it does not steal the id back
    assert [message.value for message in stream.read()] == ["a", "b"]


def test_its_producer_says_what_to_do_where_sessions_are_unknown(client: Client) -> None:
    """The reference server has no server-managed epochs."""
    stream = client.stream(fresh()).create("application/json")
    producer = stream.producer("p")
    with pytest.raises(SemelError, match=r"epoch=|auto_claim"):
        producer.append(1)
        producer.flush()
    producer.close()
    assert list(stream.read()) == []
