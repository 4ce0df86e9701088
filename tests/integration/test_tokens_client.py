"""Tokens of the clients: on every request, renewed once, and never shown or sent elsewhere."""

import logging
import re
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

import semel
from semel import Client, errors
from semel.client.local import LocalServer
from semel.client.sync.stream import Stream
from semel.pipeline import Graph
from semel.pipeline.runner import Runner, run
from tests.integration.both import client_of
from tests.integration.recorder import Recorder, forwarding
from tests.spec.process import Server
from tests.spec.txn_calls import fresh

HIDDEN = "s3cret-Part_of-the-token-0123456789abcdefgh"
TOKEN = f"semel_abcDEF012345_{HIDDEN}"


def problem(status: int, code: str, **facts: str) -> bytes:
    document = {"code": code, "message": "the server says no", "applied": "no", **facts}
    body = msgspec.json.encode(document)
    head = f"HTTP/1.1 {status} No\r\nContent-Type: application/problem+json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


UNAUTHENTICATED = problem(401, "unauthenticated")
FORBIDDEN = problem(403, "forbidden", right="write", kind="stream", name="orders")


def response_to(request: bytes, response: bytes) -> bytes:
    """Return the response. A response to HEAD has no body."""
    head, empty_line, _ = response.partition(b"\r\n\r\n")
    return head + empty_line if request.startswith(b"HEAD ") else response


def plain(request: bytes) -> bytes:
    return response_to(request, b"HTTP/1.1 404 No\r\nContent-Length: 2\r\n\r\nno")


class Gate:
    """A server that passes a request on if its token is in `valid`, and refuses all others."""

    def __init__(self, port: int) -> None:
        self.valid = {TOKEN}
        self._forward = forwarding(port)

    def answer(self, request: bytes) -> bytes:
        is_valid = set(tokens([request])) <= self.valid
        return self._forward(request) if is_valid else response_to(request, UNAUTHENTICATED)


def tokens(requests: list[bytes]) -> list[str | None]:
    """Return the token of each request, or None for a request without one."""
    heads = [request.partition(b"\r\n\r\n")[0].decode("latin-1") for request in requests]
    found = [re.findall(r"\r\nAuthorization: Bearer (\S+)", head) for head in heads]
    assert all(len(each) <= 1 for each in found)
    return [each[0] if each else None for each in found]


@pytest.fixture
def gate(server: Server) -> Gate:
    return Gate(server.port)


@pytest.fixture
def door(gate: Gate) -> Iterator[Recorder]:
    """The address at which clients reach the gate. It keeps every request."""
    with Recorder(gate.answer) as it:
        yield it


@pytest.fixture
def orders(server: Server) -> Iterator[Stream]:
    """A stream with two messages, of a client that does not use the gate."""
    with Client(server.url, token="") as client:
        stream = client.stream(fresh("s")).create("application/json")
        stream.append_many([1, 2])
        yield stream


# ---- every path ----------------------------------------------------------------------------------


def use_everything(client: Any, path: str) -> None:
    """Make every kind of request that a client can make."""
    stream = client.stream(path)
    stream.append(3, idempotency_key="k")
    stream.append_many([4, 5])
    assert stream.head().content_type == "application/json"
    assert stream.exists()
    with stream.producer("p", auto_claim=True) as producer:
        producer.append(6)
    with stream.producer() as producer:  # it retires itself at its end
        producer.append(7)
    assert len(stream.producers("p")) == 1
    with client.transaction() as txn:
        txn.append(path, 8)
    known = client.register_producer()
    client.commit(
        producer_id=known.producer_id, epoch=known.producer_epoch, seq=0, offsets={path: {path: 1}}
    )
    client.group(path).set({path: 1})
    assert list(client.group(path).offsets()) == [path]
    client.sink(f"app-{path}").commit(0, [], appends={path: [9]})
    assert client.sinks()
    client.set_policy(path, dedup=True)
    client.delete_policy(path)
    client.health()
    assert client.process(f"g-{path}", [path], lambda batch: None, live=False) == 9
    assert [message.value for message in stream.read()][-1] == 9
    stream.close()
    for live in ("long-poll", "sse"):
        assert len(list(stream.tail(live=live))) == 9
    stream.delete()


@pytest.mark.parametrize("is_computed", [False, True])
def test_every_request_has_the_token(
    kind: str, door: Recorder, orders: Stream, is_computed: bool
) -> None:
    token: Any = (lambda: TOKEN) if is_computed else TOKEN
    with client_of(kind, door.url, token=token) as client:
        use_everything(client, orders.path)
    assert len(door.requests) > 30
    assert set(tokens(door.requests)) == {TOKEN}


def test_a_pipeline_sends_the_token(door: Recorder, orders: Stream) -> None:
    graph = Graph(fresh("g").replace("/", "-"))
    out = fresh("out")
    graph.stream("p", in_=orders.path, out=out)(lambda value: value + 10)
    gauges = run(graph, url=door.url, token=TOKEN)
    assert gauges["p"].read == 2
    assert set(tokens(door.requests)) == {TOKEN}


def test_a_pipeline_without_a_valid_token_stops(door: Recorder, orders: Stream) -> None:
    graph = Graph("refused")
    graph.stream("p", in_=orders.path, out=fresh("out"))(lambda value: value)
    with pytest.raises(errors.Unauthenticated) as refused, Runner(graph, url=door.url, token=""):
        pass
    assert refused.value.applied == "no"
    assert len(door.requests) == 1


# ---- the environment -----------------------------------------------------------------------------


def test_the_token_of_the_environment_is_the_default(
    kind: str, door: Recorder, orders: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEMEL_TOKEN", TOKEN)
    for options, expected in (
        ({}, TOKEN),
        ({"token": None}, TOKEN),
        ({"token": "other"}, "other"),
        ({"token": lambda: "third"}, "third"),
        ({"token": ""}, None),
        ({"headers": {"authorization": "Bearer mine"}}, None),
    ):
        del door.requests[:]
        with client_of(kind, door.url, **options) as client:
            try:
                client.stream(orders.path).head()
            except errors.Unauthenticated:
                assert expected != TOKEN
        assert set(tokens(door.requests)) == {expected}
    assert b"authorization: Bearer mine" in door.requests[0]


def test_the_token_is_sent_to_no_other_server(
    kind: str, door: Recorder, orders: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEMEL_TOKEN", TOKEN)
    with Recorder(plain) as other, client_of(kind, door.url) as client:
        client.stream(orders.path).head()
        client.stream(f"{door.url}/elsewhere/v1/stream/{orders.path}").exists()
        client.stream(f"{other.url}/v1/stream/x").exists()
        assert set(tokens(door.requests)) == {TOKEN}
        assert tokens(other.requests) == [None]
        assert HIDDEN.encode() not in b"".join(other.requests)
        del door.requests[:]
    with client_of(kind, door.url, token="") as client:
        with pytest.raises(errors.Unauthenticated):
            client.stream(f"{door.url}/elsewhere/v1/stream/{orders.path}").exists()
        assert set(tokens(door.requests)) == {None}


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirection_is_not_followed(kind: str, status: int) -> None:
    with Recorder() as other:
        location = f"Location: {other.url}/v1/stream/x"
        answer = f"HTTP/1.1 {status} There\r\n{location}\r\nContent-Length: 0\r\n\r\n".encode()
        with (
            Recorder(lambda request: answer) as first,
            client_of(kind, first.url, token=TOKEN, retries=0) as client,
        ):
            for call in (client.stream("x").head, lambda: client.stream("x").append(b"1")):
                with pytest.raises(errors.ClientError):
                    call()
            with pytest.raises(errors.ClientError):
                list(client.stream("x").tail(live="sse"))
            assert len(first.requests) >= 3
        assert other.requests == []


def test_a_local_server_gets_no_token_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, local_server: LocalServer
) -> None:
    monkeypatch.setenv("SEMEL_TOKEN", TOKEN)
    with Recorder(plain) as other:

        class There:
            url = other.url

            def stop(self) -> None: ...

        for token in (None, "own"):
            with LocalServer(There(), 5.0, token) as client:  # type: ignore[arg-type]
                client.stream("x").exists()
                with client.client() as second:
                    second.stream("x").exists()
        assert tokens(other.requests) == [None, None, "own", "own"]
        local_server.stream(f"{other.url}/v1/stream/x").exists()
        assert tokens(other.requests)[4:] == [None]


# ---- refusals ------------------------------------------------------------------------------------


def refused_calls(client: Any, path: str) -> list[tuple[str, Callable[[], object]]]:
    stream = client.stream(path)

    def produce() -> None:
        with stream.producer("p", content_type="application/json") as producer:
            producer.append(1)

    return [
        ("read", lambda: list(stream.read())),
        ("tail", lambda: list(stream.tail())),
        ("sse", lambda: list(stream.tail(live="sse"))),
        ("append", lambda: stream.append(3, idempotency_key="k")),
        ("produce", produce),
        ("begin", lambda: client.transaction().__enter__()),
        ("commit", lambda: client.commit(producer_id="c", seq=0, appends={path: [1]})),
        ("list", client.policies),
    ]


@pytest.mark.parametrize("token", ["semel_abcDEF012345_wrong", "", lambda: "the-same-each-time"])
def test_a_refused_token_is_not_sent_again(
    kind: str, door: Recorder, orders: Stream, token: Any
) -> None:
    with client_of(kind, door.url, token=token) as client:
        for name, call in refused_calls(client, orders.path):
            del door.requests[:]
            with pytest.raises(errors.Unauthenticated) as refused:
                call()
            assert refused.value.code == "unauthenticated"
            assert refused.value.status == 401
            assert refused.value.applied == "no"
            assert "SEMEL_TOKEN" in str(refused.value)
            # A producer does not compare the tokens: with a function, each batch is sent twice.
            count = 2 if name == "produce" and callable(token) else 1
            assert len(door.requests) == count, name
    assert [message.value for message in orders.read()] == [1, 2]


def test_a_missing_right_is_named_and_the_request_is_not_sent_again(kind: str) -> None:
    with (
        Recorder(lambda request: response_to(request, FORBIDDEN)) as other,
        client_of(kind, other.url, token=lambda: TOKEN) as client,
    ):
        for name, call in refused_calls(client, "orders"):
            del other.requests[:]
            with pytest.raises(errors.Forbidden) as refused:
                call()
            error = refused.value
            if not other.requests[0].startswith(b"HEAD "):
                assert (error.right, error.kind, error.name) == ("write", "stream", "orders"), name
            assert (error.status, error.code, error.applied) == (403, "forbidden", "no")
            assert len(other.requests) == 1, name


class Rotating:
    """A token function with a cache: it returns an old token until it is called again."""

    def __init__(self) -> None:
        self.calls = 0
        self.is_stale = False

    def __call__(self) -> str:
        self.calls += 1
        if self.is_stale:
            self.is_stale = False
            return "old"
        return TOKEN


@pytest.mark.parametrize("call", ["read", "head", "append", "alone", "commit", "txn", "produce"])
def test_a_token_that_has_ended_is_computed_again_once(
    kind: str, door: Recorder, orders: Stream, call: str
) -> None:
    token = Rotating()
    with client_of(kind, door.url, token=token, retry_appends=call != "alone") as client:
        stream = client.stream(orders.path)
        producer = stream.producer("p", content_type="application/json")
        with producer:
            if call == "produce":
                producer.append(7)
                producer.flush()
            registered = client.register_producer()
            del door.requests[:]
            token.is_stale = True
            if call == "read":
                assert [message.value for message in stream.read()] == [1, 2]
            elif call == "head":
                stream.head()
            elif call in ("append", "alone"):
                stream.append(3)
            elif call == "commit":
                client.commit(
                    producer_id=registered.producer_id,
                    epoch=registered.producer_epoch,
                    seq=0,
                    appends={orders.path: [3]},
                )
            elif call == "txn":
                with client.transaction() as txn:
                    txn.append(orders.path, 3)
            else:
                producer.append(3)
                producer.flush()
            assert tokens(door.requests)[:2] == ["old", TOKEN]
            assert tokens(door.requests).count("old") == 1
    expected = {"read": [], "head": [], "produce": [7, 3]}.get(call, [3])
    assert [message.value for message in orders.read()][2:] == expected


@pytest.mark.parametrize("live", ["long-poll", "sse"])
def test_a_tail_continues_with_a_new_token(
    kind: str, door: Recorder, orders: Stream, live: str
) -> None:
    token = Rotating()
    orders.close()
    with client_of(kind, door.url, token=token) as client:
        token.is_stale = True
        values = [message.value for message in client.stream(orders.path).tail(live=live)]
    assert values == [1, 2]
    assert tokens(door.requests)[:2] == ["old", TOKEN]


def test_a_tail_whose_token_is_revoked_ends_with_an_error(
    kind: str, gate: Gate, door: Recorder, orders: Stream
) -> None:
    with client_of(kind, door.url, token=TOKEN) as client:
        tail = client.stream(orders.path).tail()
        assert [next(tail).value, next(tail).value] == [1, 2]
        gate.valid = set()
        with pytest.raises(errors.Unauthenticated):
            next(tail)


# ---- secrecy -------------------------------------------------------------------------------------


def everything_about(error: BaseException) -> str:
    """Return all texts of an error: with those of its causes, and its attributes."""
    shown = "".join(traceback.format_exception(error))
    return f"{shown} {error!r} {error.args!r} {vars(error)!r}"


def test_no_error_and_no_log_has_the_token(
    kind: str, door: Recorder, orders: Stream, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    wrong = f"{TOKEN}-wrong"
    shown: list[str] = []
    for token in (wrong, lambda: wrong):
        with client_of(kind, door.url, token=token) as client:
            shown += [repr(client), str(client), repr(client.transport), repr(client.stream("x"))]
            for _, call in refused_calls(client, orders.path):
                with pytest.raises(errors.Unauthenticated) as refused:
                    call()
                shown.append(everything_about(refused.value))
    with client_of(kind, "http://127.0.0.1:1", token=TOKEN, retries=0) as client:
        with pytest.raises(errors.Unavailable) as lost:
            client.health()
        shown.append(everything_about(lost.value))
    assert len(shown) > 20
    assert any("unauthenticated" in text for text in shown)
    assert not any(HIDDEN in text for text in [*shown, caplog.text])
    assert HIDDEN in str(tokens(door.requests))  # it was sent


@pytest.mark.parametrize("end", ["\r\nX: y", "\n", " ", "\0", "ł"])
def test_a_token_that_cannot_be_sent_is_not_in_the_message(
    kind: str, server: Server, end: str
) -> None:
    with pytest.raises(ValueError, match="header Authorization") as refused:
        client_of(kind, server.url, token=TOKEN + end)
    shown = [everything_about(refused.value)]
    with client_of(kind, server.url, token=lambda: TOKEN + end) as client:
        with pytest.raises(ValueError, match="header Authorization") as refused:
            client.health()
        shown.append(everything_about(refused.value))
        with (
            pytest.raises(errors.CallbackFailed) as failed,
            client.stream("x").producer("p", content_type="text/plain") as producer,
        ):
            producer.append("a")
        shown.append(everything_about(failed.value))
    assert not any(HIDDEN in text.replace(TOKEN_LINE, "") for text in shown)


# The traceback shows the line of the test that makes the token, not its value.
TOKEN_LINE = "TOKEN + end"


def test_the_public_errors_have_both() -> None:
    assert issubclass(semel.errors.Unauthenticated, semel.errors.Refused)
    assert issubclass(semel.errors.Forbidden, semel.errors.Refused)
