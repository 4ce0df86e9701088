"""Refusals by the connection have the form of their address, also if no call was found yet."""

from collections.abc import Iterator

import pytest

from semel.server.http import Request, Responder, Response
from semel.server.limits_http import HttpLimits
from tests.http.harness import HOST, Answer, Server, echo, eventually, get, post, serving

QUICK = 0.3
LONG = "a" * 100_000
CHUNKED = "Transfer-Encoding: chunked"
CONTROL = (
    "/v1/stream/__ds",
    "/v1/stream/__ds?a=b",
    "/v1/stream/__ds/subscriptions/a/ack",
    "/v1/stream/__ds/x?a=b",
    "http://localhost/v1/stream/__ds/x",
)
OTHER = ("/", "/v1/stream/__dsx", "/v1/stream/a/__ds/", "/v1/stream/a?/v1/stream/__ds/")


@pytest.fixture
def server() -> Iterator[Server]:
    with serving(limits=HttpLimits(body_bytes_max=1_000)) as running:
        yield running


def chunked(path: str, body: bytes) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{CHUNKED}\r\n\r\n"
    return head.encode() + body


def refused_requests(path: str) -> list[tuple[int, bytes]]:
    """Return requests that the connection refuses, with their status."""
    return [
        (413, post(b"x" * 1_001, path=path)[:-1_001]),
        (413, chunked(path, b"fff\r\n")),
        (431, get(path, f"X-A: {LONG}")),
        (431, get(path, f"X-A: {'a' * 9_000}")),
        (431, get(path, *["X-A: a"] * 200)),
        (431, f"GET {path} HTTP/1.1\r\nX-A: {LONG}".encode()),
        (431, chunked(path, b"0\r\n" + b"X-A: a\r\n" * 2_000)),
        (400, f"GET {path} HTTP/1.1\r\n\r\n".encode()),
        (400, get(path, "X-A : a")),
        (400, get(path, "Host: b")),
        (400, get(path, "Content-Length: +1")),
        (400, chunked(path, b"x\r\n")),
        (400, f"GET {path} HTTP/1.1\nHost: a\n".encode()),
        (414, get(path + "/" + LONG if "?" not in path else path + LONG)),
        (417, post(b"x", "Expect: more", path=path)),
        (505, get(path, version="2.0")),
    ]


def has_the_form(answer: Answer, *, is_control: bool) -> bool:
    """Return whether the body is an error, in the form of subscriptions or in that of others."""
    kind = answer.headers["content-type"]
    if not is_control:
        return kind == "application/problem+json" and "code" in answer.json
    error = answer.json["error"]
    is_malformed = answer.status == 400
    assert is_malformed is (error["code"] == "INVALID_REQUEST") is ("cause" in error)
    return kind == "application/json" and bool(error["message"])


@pytest.mark.parametrize(
    ("path", "is_control"),
    [*((each, True) for each in CONTROL), *((each, False) for each in OTHER)],
)
def test_what_the_connection_refuses_has_the_form_of_its_address(
    server: Server, path: str, is_control: bool
) -> None:
    for status, raw in refused_requests(path):
        for before in (b"", b"\r\n", put_before()):
            with server.connect() as client:
                client.send(before + raw)
                if before.startswith(b"PUT"):
                    assert client.answer().status == 200
                answer = client.answer()
                assert answer.status == status, raw[:200]
                assert has_the_form(answer, is_control=is_control), raw[:200]
                assert client.is_closed()


def put_before() -> bytes:
    """Return a request to another address, which is answered first on the same connection."""
    return b"PUT /v1/stream/__ds/first HTTP/1.1\r\n" + HOST + b"\r\n"


@pytest.mark.parametrize(("path", "is_control"), [(CONTROL[2], True), (OTHER[1], False)])
def test_a_cached_head_has_the_same_form(server: Server, path: str, is_control: bool) -> None:
    with server.connect() as client:
        for _ in range(3):
            client.send(post(b"x", path=path))
            assert client.answer().status == 200
        client.send(post(b"x" * 1_001, path=path)[:-1_001])
        answer = client.answer()
        assert (answer.status, has_the_form(answer, is_control=is_control)) == (413, True)


@pytest.mark.parametrize(("path", "is_control"), [(CONTROL[2], True), (OTHER[1], False)])
def test_a_request_that_arrives_too_slowly_has_the_same_form(path: str, is_control: bool) -> None:
    limits = HttpLimits(header_seconds=QUICK, body_seconds=QUICK, body_bytes_per_second_min=1)
    with serving(limits=limits) as server:
        for raw in (get(path)[:-1], post(b"x" * 10, path=path)[:-1]):
            with server.connect() as client:
                client.send(raw)
                answer = client.answer()
                assert (answer.status, has_the_form(answer, is_control=is_control)) == (408, True)


@pytest.mark.parametrize(("path", "is_control"), [(CONTROL[2], True), (OTHER[1], False)])
def test_a_handler_that_fails_is_answered_in_the_same_form(path: str, is_control: bool) -> None:
    def fail_later() -> Iterator[None]:
        yield
        raise ValueError("secret")

    def handler(request: Request, responder: Responder) -> None:
        if request.body == b"steps":
            responder.run(fail_later())
        elif request.body == b"response":
            responder.send(Response(0, []))
        else:
            raise ValueError("secret")

    with serving(handler, may_log=True) as server:
        for body in (b"now", b"steps", b"response"):
            with server.connect() as client:
                client.send(post(body, path=path))
                answer = client.answer()
                assert (answer.status, has_the_form(answer, is_control=is_control)) == (500, True)
                found = answer.json["error"] if is_control else answer.json
                assert (found["code"], found["applied"]) == ("internal_error", "unknown")


@pytest.mark.parametrize(("path", "is_control"), [(CONTROL[2], True), (OTHER[1], False)])
def test_too_many_bodies_are_refused_in_the_same_form(path: str, is_control: bool) -> None:
    waiting: list[Responder] = []

    def handler(request: Request, responder: Responder) -> None:
        if request.body:
            waiting.append(responder)
        else:
            echo(request, responder)

    limits = HttpLimits(held_bytes_max=1_000)
    with serving(handler, limits) as server, server.connect() as first:
        first.send(post(b"x" * 600))
        assert eventually(lambda: len(waiting) == 1)
        for count in (0, 100):  # as a whole, and in parts
            with server.connect() as second:
                raw = post(b"x" * 600, path=path)
                second.send(raw[: len(raw) - count])
                answer = second.answer()
                assert (answer.status, has_the_form(answer, is_control=is_control)) == (503, True)
                assert answer.headers["retry-after"] == "1"
        server.call(lambda: waiting[0].send(Response(200, [])))
        assert first.answer().status == 200
