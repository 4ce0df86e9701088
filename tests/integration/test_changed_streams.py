"""Streams that another client changes: what a client knew about them must not be trusted."""

from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest

from semel import Client, errors
from semel.client import append_lanes
from semel.client.sync.stream import Stream
from semel.testing import FaultPlan, FaultProxy
from tests.integration.both import client_of
from tests.integration.recorder import Recorder, forwarding
from tests.spec.process import Server

JSON: Final = "application/json"
TEXT: Final = "text/plain"
POST: Final = "POST /v1/stream"
BAD_GATEWAY: Final = b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n"

Switch = Callable[[Stream, bool], None]


@pytest.fixture
def here(kind: str, recorder: Recorder) -> Iterator[Any]:
    """The client that is tested. Its requests are recorded."""
    with client_of(kind, recorder.url) as it:
        yield it


@pytest.fixture
def there(server: Server) -> Iterator[Client]:
    """The other client."""
    with Client(server.url) as it:
        yield it


@pytest.fixture
def path(server: Server) -> str:
    return server.stream().path


def methods(recorder: Recorder) -> list[str]:
    return [request.split(b" ")[0].decode() for request in recorder.requests]


def is_numbered(request: bytes) -> bool:
    return b"\r\nProducer-Id: append-" in request.partition(b"\r\n\r\n")[0]


def values(stream: Any) -> list[Any]:
    return [message.value for message in stream.read()]


def create_again(client: Client, path: str, media_type: str) -> Stream:
    stream = client.stream(path)
    stream.delete()
    return stream.create(media_type)


def by_patch(stream: Stream, dedup: bool) -> None:
    stream.set_dedup(dedup)


def by_policy(stream: Stream, dedup: bool) -> None:
    stream.client.set_policy(stream.path, dedup=dedup)


def produce(stream: Any, value: Any, name: str | None = None) -> None:
    with stream.producer(name) as producer:
        producer.append(value)


# ---- the first append after a creation -----------------------------------------------------------


def test_a_creation_and_an_append_are_two_requests(
    here: Any, recorder: Recorder, path: str
) -> None:
    stream = here.stream(path).create(JSON)
    stream.append(1)
    assert methods(recorder) == ["PUT", "POST"]
    assert is_numbered(recorder.requests[1])
    stream.append(2, key="k", idempotency_key="i")
    assert methods(recorder) == ["PUT", "POST", "POST"]


def test_a_creation_of_an_existing_stream_shows_what_the_stream_is(
    here: Any, there: Client, recorder: Recorder, path: str
) -> None:
    there.stream(path).create(JSON, dedup=False).append(0)
    stream = here.stream(path).create(JSON, exist_ok=True)
    stream.append(1)
    assert methods(recorder) == ["PUT", "POST"]
    assert not is_numbered(recorder.requests[1])
    with pytest.raises(errors.ProtocolError, match="does not recognise duplicates"):
        produce(stream, 2)
    assert values(stream) == [0, 1]


# ---- the media type ------------------------------------------------------------------------------


def test_a_producer_stores_nothing_that_is_encoded_for_another_media_type(
    here: Any, there: Client, path: str
) -> None:
    stream = here.stream(path).create(TEXT)
    changed = create_again(there, path, JSON)
    with pytest.raises(errors.ContentTypeConflict, match=JSON):
        produce(stream, "1")
    assert values(changed) == []
    produce(stream, {"a": 1})
    assert values(changed) == [{"a": 1}]


def test_after_a_value_that_does_not_fit_the_next_producer_asks_for_the_media_type(
    here: Any, there: Client, path: str
) -> None:
    stream = here.stream(path).create(TEXT)
    changed = create_again(there, path, JSON)
    with pytest.raises(TypeError):
        produce(stream, {"a": 1})
    produce(stream, {"a": 2})
    assert values(changed) == [{"a": 2}]
    changed = create_again(there, path, TEXT)
    with pytest.raises(ValueError, match="JSON"):
        produce(stream, b"text")
    produce(stream, b"text")
    assert values(changed) == ["text"]


def test_a_commit_asks_for_the_media_type_after_one_that_was_not_accepted(
    here: Any, there: Client, path: str
) -> None:
    there.stream(path).create(TEXT)

    def commit(seq: int, value: Any) -> None:
        here.commit(producer_id=path, seq=seq, appends={path: [value]})

    commit(0, "a")
    changed = create_again(there, path, JSON)
    with pytest.raises(TypeError):
        commit(1, {"a": 1})
    commit(1, {"a": 1})
    assert values(changed) == [{"a": 1}]
    changed = create_again(there, path, TEXT)
    with pytest.raises(errors.BadRequest):
        commit(2, {"a": 2})
    commit(2, b"b")
    assert values(changed) == ["b"]


def test_a_plain_append_is_encoded_for_the_media_type_that_the_stream_has(
    here: Any, there: Client, path: str
) -> None:
    stream = here.stream(path).create(TEXT)
    stream.append("a")
    changed = create_again(there, path, JSON)
    stream.append("b")
    assert values(changed) == ["b"]
    changed = create_again(there, path, TEXT)
    stream.append("c")
    assert values(changed) == ["c"]
    changed = create_again(there, path, JSON)
    with pytest.raises(TypeError):
        stream.append({"d": 1})
    stream.append({"d": 2})
    assert values(changed) == [{"d": 2}]


def test_a_producer_asks_again_after_its_stream_was_missing(
    here: Any, there: Client, path: str
) -> None:
    stream = here.stream(path).create(TEXT)
    there.stream(path).delete()
    with pytest.raises(errors.StreamNotFound, match=path):
        produce(stream, "a")
    changed = there.stream(path).create(JSON)
    produce(stream, {"a": 1})
    assert values(changed) == [{"a": 1}]


def test_events_are_decoded_by_the_media_type_of_the_stream_that_is_read(
    client: Any, there: Client, path: str
) -> None:
    stream = client.stream(path).create(TEXT)
    create_again(there, path, JSON).append_many([{"a": 1}, {"a": 2}])
    with stream.tail(live="sse") as tail:
        assert next(tail).value == {"a": 1}
        assert next(tail).value == {"a": 2}


# ---- the recognition of duplicates ---------------------------------------------------------------


@pytest.mark.parametrize("switch", [by_patch, by_policy])
def test_a_producer_learns_that_duplicates_are_not_recognised_any_more(
    here: Any, there: Client, path: str, switch: Switch
) -> None:
    stream = here.stream(path).create(JSON)
    changed = there.stream(path)
    switch(changed, False)
    with pytest.raises(errors.ProtocolError, match="does not recognise duplicates"):
        produce(stream, 1)
    with pytest.raises(errors.ProtocolError, match="does not recognise duplicates"):
        produce(stream, 2)
    assert values(changed) == [1], "the second producer has sent nothing"


@pytest.mark.parametrize("switch", [by_patch, by_policy])
def test_a_producer_begins_when_duplicates_are_recognised_again(
    here: Any, there: Client, path: str, switch: Switch
) -> None:
    stream = here.stream(path).create(JSON)
    changed = there.stream(path)
    switch(changed, False)
    stream.append(1)
    with pytest.raises(errors.ProtocolError, match="does not recognise duplicates"):
        produce(stream, 2)
    switch(changed, True)
    produce(stream, 3)
    assert values(changed) == [1, 3]


@pytest.mark.parametrize("before", [0, 1], ids=["first", "later"])
def test_a_batch_that_was_stored_without_recognition_is_not_sent_again(
    kind: str, server: Server, there: Client, path: str, before: int
) -> None:
    changed = there.stream(path).create(JSON)
    forward = forwarding(server.port)
    posts: list[bytes] = []

    def lose_one_response(request: bytes) -> bytes:
        if not request.startswith(b"POST /v1/stream"):
            return forward(request)
        posts.append(request)
        if len(posts) != before + 1:
            return forward(request)
        changed.set_dedup(False)
        forward(request)
        changed.set_dedup(True)
        return BAD_GATEWAY

    with Recorder(lose_one_response) as proxy, client_of(kind, proxy.url) as client:
        producer = client.stream(path).producer("p")
        for number in range(before + 1):
            producer.append(number)
            if number < before:
                producer.flush()
        with pytest.raises(errors.Indeterminate, match="switched"):
            producer.flush()
    assert values(changed) == list(range(before + 1))
    assert len(posts) == before + 1


def test_a_batch_is_sent_again_in_a_stream_that_was_switched_on_before(
    kind: str, server: Server, there: Client, path: str
) -> None:
    changed = there.stream(path).create(JSON, dedup=False)
    changed.append(0)
    changed.set_dedup(True)
    plan = FaultPlan(script=["drop_answer", "pass", "drop_answer"], only=POST)
    with (
        FaultProxy(server.url, plan) as proxy,
        client_of(kind, proxy.url) as client,
        client.stream(path).producer("p") as producer,
    ):
        producer.append(1)
        producer.flush()
        producer.append(2)
    assert values(changed) == [0, 1, 2]


def test_a_later_batch_is_sent_again_after_a_switch_that_it_has_seen(
    kind: str, server: Server, there: Client, path: str
) -> None:
    changed = there.stream(path).create(JSON, dedup=False)
    changed.append(0)
    changed.set_dedup(True)
    plan = FaultPlan(script=["pass", "drop_answer"], only=POST)
    with (
        FaultProxy(server.url, plan) as proxy,
        client_of(kind, proxy.url) as client,
        client.stream(path).producer("p", content_type=JSON) as producer,
    ):
        producer.append(1)
        producer.flush()
        producer.append(2)
    assert values(changed) == [0, 1, 2]


@pytest.mark.parametrize("switch", [by_patch, by_policy])
def test_plain_appends_become_safe_again_by_themselves(
    kind: str,
    server: Server,
    there: Client,
    path: str,
    switch: Switch,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    changed = there.stream(path).create(JSON)
    with FaultProxy(server.url) as proxy, client_of(kind, proxy.url) as client:
        stream = client.stream(path)
        stream.append(0)
        switch(changed, False)
        stream.append(1)
        stream.append(2)
        switch(changed, True)
        requests = proxy.counts["requests"]
        stream.append(3)
        assert proxy.counts["requests"] == requests + 1, "it is not asked before each append"
        monkeypatch.setattr(append_lanes, "DEDUP_PAUSE_SECONDS", 0.0)
        stream.append(4)
        proxy.plan = FaultPlan(script=["drop_answer"], only=POST)
        stream.append(5)
        assert proxy.counts["drop_answer"] == 1
    assert values(changed) == [0, 1, 2, 3, 4, 5]


def plainly(stream: Any, value: Any) -> None:
    stream.append(value)


def with_key(stream: Any, value: Any) -> None:
    stream.append(value, idempotency_key="k")


Store = Callable[[Any, Any], None]
STORES: Final[tuple[Store, ...]] = (plainly, with_key, produce)


def switched_on_by_policy(client: Client, path: str) -> Stream:
    """Return a stream with one message, in which a policy will switch dedup on."""
    client.set_policy(path, dedup=False)
    stream = client.stream(path).create(JSON)
    stream.append(0)
    client.set_policy(path, dedup=True)
    return stream


@pytest.mark.parametrize("before", [0, 1], ids=["first", "later"])
@pytest.mark.parametrize("fault", ["drop_answer", "drop_request"])
@pytest.mark.parametrize("store", STORES)
def test_an_append_is_sent_again_although_it_has_switched_dedup_on(
    kind: str, server: Server, there: Client, path: str, store: Store, fault: str, before: int
) -> None:
    changed = switched_on_by_policy(there, path)
    plan = FaultPlan(script=["pass"] * before + [fault], only=POST)
    with FaultProxy(server.url, plan) as proxy, client_of(kind, proxy.url) as client:
        stream = client.stream(path)
        for number in range(before):
            stream.append(number + 1)
        store(stream, before + 1)
        assert proxy.counts[fault] == 1
    assert values(changed) == list(range(before + 2))


@pytest.mark.parametrize("store", STORES)
def test_an_append_is_not_sent_again_while_a_transaction_delays_the_switch(
    kind: str, server: Server, there: Client, path: str, store: Store
) -> None:
    there.set_policy(path, dedup=False)
    changed = there.stream(path).create(JSON)
    with there.transaction() as transaction:
        transaction.append(path, 0)
        there.set_policy(path, dedup=True)
        plan = FaultPlan(script=["drop_answer"], only=POST)
        with FaultProxy(server.url, plan) as proxy, client_of(kind, proxy.url) as client:
            with pytest.raises(errors.Indeterminate):
                store(client.stream(path), 1)
            assert proxy.counts["drop_answer"] == 1
    assert values(changed) == [0, 1]
