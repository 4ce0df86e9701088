"""Deeply nested JSON in a body: every route refuses it, and none fails because of it.

The routes come from the table of all routes, so that a new route is tested as well.
"""

import http.client
import re
from collections.abc import Iterator
from typing import Any, Final

import pytest

from semel.wire.routes import ROUTES as ALL_ROUTES
from semel.wire.schema import StrictRequest, commits, producers, subscriptions, transactions
from tests.spec.process import Answer, Server, Stream

JSON: Final = "application/json"
DEPTHS: Final = (100, 1_000, 100_000)
HALF: Final = rb'"\ud800"'
WITH_BODY: Final = ("POST", "PUT", "PATCH", "DELETE")


def routes() -> list[tuple[str, str]]:
    """Return the method and the address of every route that may be sent a body."""
    return [
        (method, re.sub(r"\{\w+\}", name, route.address))
        for route in ALL_ROUTES
        for method in route.methods
        if method in WITH_BODY
        for name in (("nested-json", "nested-text") if "{path}" in route.address else ("x",))
    ]


ROUTES: Final = routes()


def member_names() -> list[str]:
    """Return the names of all members of all JSON requests, and one that no request has."""
    names = {
        name
        for module in (commits, producers, subscriptions, transactions)
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, StrictRequest)
        for name in value.__struct_encode_fields__
    }
    return ["unknown", *sorted(names)]


def nested_values(depth: int) -> Iterator[bytes]:
    """Return nested values: complete, truncated, and with halves of surrogate pairs."""
    yield b"[" * depth + b"]" * depth
    yield b"[" * depth
    yield b'{"a":' * depth + b"1" + b"}" * depth
    yield b"[" + HALF + b"," + b"[" * depth + b"]" * depth + b"]"
    yield b"[" * depth + HALF + b"]" * depth
    yield b'{"\\udc00":' * depth + HALF + b"}" * depth


def bodies(depth: int) -> Iterator[bytes]:
    for value in nested_values(depth):
        yield value
        for name in member_names():
            member = b'"' + name.encode() + b'":'
            yield b"{" + member + value + b"}"
            yield b'{"x":' + HALF + b"," + member + b"[" + value + b"]}"
        for stream in (b"nested-json", b"nested-text"):
            for messages in (value, b"[" + value + b"]", b'[{"base64":' + value + b"}]"):
                yield b'{"appends":[{"stream":"%s","messages":%s}]}' % (stream, messages)
        yield b'{"offsets":{"g":{"nested-json":' + value + b"}}}"
        yield b'{"offsets":{"nested-json":{"to":' + value + b"}}}"


@pytest.fixture
def streams(server: Server) -> Iterator[None]:
    """Two streams, which a PUT or DELETE of the test may have changed."""
    for name, content_type in (("nested-json", JSON), ("nested-text", "text/plain")):
        Stream(server, name).delete()
        Stream(server, name).create(content_type=content_type)
    before = server.stderr
    yield
    assert server.ask("GET", "/health").json["status"] == "ok"
    assert server.stderr.removeprefix(before) == ""


def send_all(
    server: Server, method: str, address: str, requests: Iterator[bytes], **headers: str
) -> list[tuple[bytes, Answer]]:
    """Send all requests on one connection; return each body's first bytes with its response."""
    connection = server.connect()
    answers = []
    try:
        for body in requests:
            connection.request(method, address, body, {"Content-Type": JSON, **headers})
            response: http.client.HTTPResponse = connection.getresponse()
            fields = {name.lower(): value for name, value in response.getheaders()}
            answers.append((body[:80], Answer(response.status, fields, response.read())))
    finally:
        connection.close()
    return answers


def test_the_table_has_the_routes_that_take_json() -> None:
    for route in (
        ("POST", "/v1/producers"),
        ("POST", "/v1/producers/claim"),
        ("POST", "/v1/commits"),
        ("POST", "/v1/transactions"),
        ("POST", "/v1/transactions/x/commit"),
        ("POST", "/v1/groups/x/offsets"),
        ("POST", "/v1/groups/x/snapshot"),
        ("POST", "/v1/sinks/x/rebind"),
        ("POST", "/v1/stream/nested-json"),
        ("PUT", "/v1/stream/nested-json"),
    ):
        assert route in ROUTES


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize(("method", "address"), ROUTES, ids=[" ".join(each) for each in ROUTES])
@pytest.mark.usefixtures("streams")
def test_nested_json_never_fails_a_request(
    server: Server, method: str, address: str, depth: int
) -> None:
    for sent, answer in send_all(server, method, address, bodies(depth)):
        assert answer.status < 500, (sent, answer)
        if answer.status >= 400:
            # Below __ds/, a refusal has the form of the protocol, and says what else it has.
            problem = answer.json.get("error") or answer.json
            assert problem.get("applied", "no") == "no", (sent, answer)
            assert problem["code"], (sent, answer)


CALLS: Final[list[tuple[str, dict[str, Any]]]] = [
    ("/v1/producers", {}),
    ("/v1/producers/claim", {}),
    ("/v1/commits", {}),
    ("/v1/transactions", {}),
    ("/v1/transactions/x/commit", {}),
    ("/v1/groups/x/offsets", {}),
    ("/v1/groups/x/snapshot", {}),
    ("/v1/sinks/x/rebind", {}),
    ("/v1/stream/nested-json", {}),
    ("/v1/stream/nested-json", {"Producer-Id": "p", "Producer-Seq": "0", "Producer-Epoch": "0"}),
]


@pytest.mark.parametrize(("address", "headers"), CALLS)
@pytest.mark.usefixtures("streams")
def test_json_too_deep_to_parse_is_a_bad_request(
    server: Server, address: str, headers: dict[str, str]
) -> None:
    requests = [b'{"unknown":' + value + b"}" for value in nested_values(100_000)]
    for sent, answer in send_all(server, "POST", address, iter(requests), **headers):
        assert answer.status == 400, (sent, answer)
        assert answer.code in ("bad_body", "invalid_request", "bad_json"), (sent, answer)
