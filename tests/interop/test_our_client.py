"""Both our clients against the reference server: they must work with servers other than semel."""

from collections.abc import Iterator
from typing import Any

import pytest

from semel import Client, errors
from tests.integration.both import KINDS, client_of


@pytest.fixture(params=KINDS)
def client(request: pytest.FixtureRequest, reference_url: str) -> Iterator[Any]:
    with client_of(request.param, reference_url) as it:
        yield it


@pytest.fixture
def path(request: pytest.FixtureRequest) -> str:
    return f"Straße/{request.node.name}"


def values(messages: Any) -> list[Any]:
    return [message.value for message in messages]


def test_json_comes_back_as_it_went(client: Any, path: str) -> None:
    stream = client.stream(path).create("application/json")
    stream.append({"id": 1})
    stream.append([1, [2]])
    stream.append_many([3, "vier"])
    assert values(stream.read()) == [{"id": 1}, [1, [2]], 3, "vier"]
    first, *_, last = stream.read()
    assert (first.offset, first.next_offset) == ("-1", None)
    assert last.next_offset == stream.head().next_offset
    stream.append(5)
    assert values(stream.read(last.next_offset)) == [5]
    with pytest.raises(errors.StreamExists):
        stream.create("application/json")
    with pytest.raises(errors.ConfigConflict):
        stream.create("text/plain", exist_ok=True)


def test_text_and_bytes_come_back_as_they_went(client: Any, path: str) -> None:
    text = client.stream(f"{path}/text").create("text/plain", body="grün")
    text.append("er")
    assert text.read_text() == "grüner"
    blob = client.stream(f"{path}/blob").create(body=b"\x00\xff")
    blob.append(b"\x01" * 5000)
    assert blob.read_bytes() == b"\x00\xff" + b"\x01" * 5000


@pytest.mark.parametrize("live", ["long-poll", "sse"])
def test_a_tail_follows_to_the_end(client: Any, reference_url: str, path: str, live: str) -> None:
    stream = client.stream(path).create("application/json")
    stream.append_many([1, 2])
    with stream.tail(live=live) as tail, Client(reference_url) as other:
        assert [next(tail).value, next(tail).value] == [1, 2]
        other.stream(path).append(3)
        assert next(tail).value == 3
        other.stream(path).close(4)
        assert values(tail) == [4]


def test_refusals_are_understood_without_codes(client: Any, path: str) -> None:
    stream = client.stream(path)
    for call in (stream.head, stream.delete, lambda: list(stream.read())):
        with pytest.raises(errors.StreamNotFound):
            call()
    stream.create("text/plain")
    stream.append("x", seq="b")
    with pytest.raises(errors.StreamSeqConflict):
        stream.append("y", seq="a")
    with pytest.raises(errors.BadRequest):
        list(stream.read("yesterday"))
    stream.close()
    with pytest.raises(errors.StreamClosed):
        stream.append("z")
    stream.delete()
    assert not stream.exists()


def test_what_only_semel_has_is_refused_before_it_could_be_misread(client: Any, path: str) -> None:
    stream = client.stream(path).create("text/plain", body="kept")
    end = stream.head().next_offset
    for call in (
        lambda: stream.trim(end),
        lambda: stream.append("x", idempotency_key="k"),
        lambda: stream.append("x", if_match=end),
        lambda: stream.append("x", key="k"),
        lambda: stream.append_many(["x", "y"]),
        lambda: list(client.streams()),
        stream.producers,
        client.health,
    ):
        with pytest.raises(errors.NotSupported):
            call()
    assert stream.read_text() == "kept"


def test_a_fork_begins_as_a_copy(client: Any, path: str) -> None:
    stream = client.stream(path).create("application/json")
    stream.append_many([1, 2])
    fork = stream.fork(f"{path}/fork")
    fork.append(3)
    assert values(fork.read()) == [1, 2, 3]
    assert values(stream.read()) == [1, 2]
