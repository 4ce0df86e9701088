"""The producer against the reference server of the protocol, which is not ours.

It is installed beside the conformance suite; without node these tests are skipped.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from semel import Client, errors
from semel.cli.benchmarks.peers import Missing, node_server
from semel.client.client import Stream

NODE_MODULES: Final = Path(__file__).resolve().parents[2] / "build/conformance/node_modules"


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with ExitStack() as stack:
        place = str(tmp_path_factory.mktemp("node"))
        try:
            process = stack.enter_context(node_server(place, str(NODE_MODULES)))
        except Missing as missing:
            pytest.skip(str(missing))
        yield stack.enter_context(Client(f"http://127.0.0.1:{process.port}"))


@pytest.fixture
def orders(request: pytest.FixtureRequest, client: Client) -> Stream:
    return client.stream(request.node.name).create("application/json")


def values(stream: Stream) -> list[object]:
    return [message.value for message in stream.read()]


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


def test_bytes_are_joined(client: Client) -> None:
    stream = client.stream("bytes").create()
    with stream.producer("p", epoch=0) as producer:
        for letter in (b"a", b"b", b"c"):
            producer.append(letter)
    assert stream.read_bytes() == b"abc"
