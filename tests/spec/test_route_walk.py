"""Every route, in every spelling of its address: the server and `find_route` select the same route.

The rights of a request are decided from what `find_route` returns. So whatever the server does with
a spelling, it must be what the route of `find_route` does, or a refusal.
"""

import http.client
import re
import socket
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import quote, unquote_to_bytes

import msgspec
import pytest

from semel.server.http import HttpRefused
from semel.server.limits_http import HttpLimits
from semel.server.request_head import parse_head
from semel.server.webhook_keys import WebhookKeys
from semel.wire import routes
from semel.wire.paths import HEALTH, escape_path
from semel.wire.problems import Problem
from semel.wire.routes import ROUTES, Route, RouteMatch, find_route
from tests.spec.process import Answer, Server, Stream, fields_of
from tests.spec.spellings import spellings
from tests.spec.subscription_calls import Subscription, error_of
from tests.spec.txn_calls import Txn

NAME: Final = "walk"
# A stream that does not exist, because to delete a stream twice has different responses.
NAMES: Final = {
    routes.STREAM_DELETE: "absent",
    routes.TOPIC_DELETE: "absent",
    routes.SUBSCRIPTION_DELETE: "absent",
    routes.SUBSCRIPTION_UNLINK: "absent",
}
# By these bodies the responses of any two routes differ. None of them changes a stream.
BODIES: Final = {
    "POST": (
        b"{}",
        b'{"transaction_epoch": 1}',
        b'{"wake_id": "w", "generation": 1, "acks": 1}',
        b'{"wake_id": "w", "generation": 1}',
    ),
    "PUT": (b"{}",),
}
CONTROL: Final = "/v1/stream/__ds/"
# The header makes every PUT of a stream invalid.
HEADERS: Final = "Content-Type: application/json\r\nStream-TTL: x\r\n"
CALLS: Final = [(route, method) for route in ROUTES for method in route.methods]
HOSTS: Final = ("localhost", "localhost:1")
# One more segment makes the address of a list that of a thing with this name, which can be empty.
# An encoded slash makes the address of something of a group that of a group with a longer name.
BELOW: Final = {
    (routes.TXN_LIST, routes.TXN_SHOW),
    (routes.SINK_LIST, routes.SINK_SHOW),
    (routes.TOKEN_LIST, routes.TOKEN_SHOW),
    (routes.TOPIC_LIST, routes.TOPIC_SHOW),
    (routes.GROUP_LIST, routes.GROUP_DESCRIBE),
    (routes.GROUP_SHOW, routes.GROUP_DESCRIBE),
    (routes.SNAPSHOT_SHOW, routes.GROUP_DESCRIBE),
    (routes.MEMBER_JOIN, routes.MEMBER_BEAT),
    (routes.SUBSCRIPTION_LIST, routes.SUBSCRIPTION_SHOW),
    (routes.SUBSCRIPTION_UNLINK, routes.SUBSCRIPTION_DELETE),
}


def address_of(route: Route, name: str | None = None, detail: str = NAME) -> str:
    """Return the address of a route in its usual spelling. `detail` is its second name."""
    name = NAMES.get(route.name, NAME) if name is None else name
    if "{path}" in route.address and "{id}" not in route.address:
        return route.address.replace("{path}", escape_path(name))
    names = iter((name, detail))
    return re.sub(r"\{\w+\}", lambda _: quote(next(names), safe=""), route.address)


class Line:
    """A connection to the server, which is opened again whenever the server has closed it."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._socket: socket.socket | None = None
        self.token = ""  # of a wake

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def ask(self, method: str, target: str, body: bytes = b"") -> Answer:
        if self._socket is None:
            self._socket = self._server.dial()
        head = head_of(method, target, len(body), self.token)
        self._socket.sendall(head + b"\r\n\r\n" + body)
        response = http.client.HTTPResponse(self._socket, method=method)
        response.begin()
        answer = Answer(response.status, fields_of(response), response.read())
        if response.will_close:
            self.close()
        return answer


def head_of(method: str, target: str, length: int = 0, token: str = "x") -> bytes:
    head = f"{method} {target} HTTP/1.1\r\nHost: localhost\r\n{HEADERS}Content-Length: {length}"
    return f"{head}\r\nAuthorization: Bearer {token}".encode("latin-1")


@pytest.fixture(scope="module")
def line(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Line]:
    """A connection to a server with a stream, a committed transaction and a subscription.

    It sends the token of a wake, without which some routes have the same response.

    The server is not that of the other tests, because it logs requests to another host.
    """
    server = Server(tmp_path_factory.mktemp("walk") / "data")
    it = Line(server)
    try:
        Stream(server, NAME).create(b"walked")
        txn = Txn(server, name=NAME)
        txn.begin()
        assert txn.call("commit").status == 200
        Stream(server, "wakes").create(content_type="application/json")
        document = {"type": "pull-wake", "streams": [NAME], "wake_stream": "wakes"}
        subscription = Subscription(server, NAME).create(document)
        keys = WebhookKeys.load(str(server.data / "webhook.key"))
        it.token = keys.token(NAME, "w", 1)
        before = subscription.state
        yield it
        assert subscription.state == before
        assert Stream(server, NAME).text == "walked"
        assert server.ask("GET", "/v1/streams").json["streams"][2:] == []
    finally:
        it.close()
        server.kill()


# ---- what the server does ------------------------------------------------------------------------


def meaning(answer: Answer) -> tuple[Any, ...]:
    """Return the part of a response that is the same whenever the same route is called."""
    kind = answer.headers.get("content-type", "").partition(";")[0]
    if kind == "application/json" and answer.body.startswith(b'{"error":'):
        error = error_of(answer)
        return answer.status, error["code"], error["message"], answer.headers.get("allow")
    if kind == "application/problem+json" and answer.body:
        problem = answer.json
        return answer.status, problem["code"], problem["message"], answer.headers.get("allow")
    if kind == "application/json" and answer.body:
        return answer.status, *msgspec.json.decode(answer.body)
    return answer.status, kind, answer.body[:20]


def meanings(line: Line, method: str, target: str) -> list[tuple[Any, ...]]:
    """Return what the responses to all bodies mean."""
    return [meaning(line.ask(method, target, body)) for body in BODIES.get(method, (b"",))]


def refused_by_server(line: Line, method: str, target: str) -> tuple[int, str]:
    answer = line.ask(method, target, b"{}" if method in BODIES else b"")
    if method == "HEAD":
        return answer.status, ""
    if answer.body.startswith(b'{"error":'):
        error = error_of(answer)
        return answer.status, error.get("cause", error["code"])
    return answer.status, answer.code


# ---- what it must do -----------------------------------------------------------------------------


def selected(method: str, path: str) -> list[RouteMatch]:
    """Return the routes that the text of the table selects, and the names in `path`."""
    if f"{path}/".startswith(CONTROL):
        return selected_control(method, path)
    found = []
    segments = path.split("/")
    for route in ROUTES:
        wanted = route.address.split("/")
        if method not in route.methods or route.address.startswith(CONTROL):
            continue
        if path == route.address and "{" not in path:
            found.append(RouteMatch(route.name))
        elif wanted[-1] == "{path}":
            prefix = route.address.removesuffix("{path}")
            name = decoded(path.removeprefix(prefix))
            if path.startswith(prefix) and name.partition("/")[0] != "__ds":
                found.append(RouteMatch(route.name, name))
        elif "{" in route.address and len(wanted) == len(segments) and wanted[:3] == segments[:3]:
            name, *rest = map(decoded, segments[3:])
            detail = ""
            if len(wanted) == 6:  # the last segment is a name, too
                detail = rest.pop()
                wanted.pop()
            if rest == wanted[4:]:
                found.append(RouteMatch(route.name, name, detail))
    return found


def selected_control(method: str, path: str) -> list[RouteMatch]:
    """Do the same for an address of subscriptions."""
    found = []
    for route in ROUTES:
        if method not in route.methods or not route.address.startswith(CONTROL):
            continue
        form = re.escape(route.address).replace(r"\{id\}", "([^/]*)").replace(r"\{path\}", "(.*)")
        match = re.fullmatch(form, path)
        if match is not None:
            name, detail = (*map(decoded, match.groups()), "", "")[:2]
            found.append(RouteMatch(route.name, name, detail.strip("/")))
    return found


def decoded(segment: str) -> str:
    return unquote_to_bytes(segment.encode("latin-1")).decode("utf-8", "replace")


def check(line: Line, method: str, target: str) -> RouteMatch | None:
    """Check one spelling. Return the route that it selects, or None if it is refused."""
    try:
        head = parse_head(head_of(method, target), HttpLimits())
    except HttpRefused as refused:
        assert refused.status in (400, 414)
        code = "" if method == "HEAD" else refused.code
        assert refused_by_server(line, method, target) == (refused.status, code)
        return None
    if head.headers["host"].lower() not in HOSTS and head.path != HEALTH:
        assert refused_by_server(line, method, target)[0] == 421
        return None
    match, wanted = find_route(head.method, head.path), selected(head.method, head.path)
    if isinstance(match, Problem):
        assert match.status == 400 or (match.status in (404, 405) and wanted == [])
        code = "" if method == "HEAD" else match.code
        assert refused_by_server(line, method, target) == (match.status, code)
        return None
    assert [match] == wanted
    (route,) = [each for each in ROUTES if each.name == match.route]
    usual = address_of(route, match.name, match.detail) + ("?" + head.query if head.query else "")
    assert meanings(line, method, target) == meanings(line, method, usual)
    return match


# ---- tests ---------------------------------------------------------------------------------------


def test_the_responses_of_two_routes_differ(line: Line) -> None:
    """Otherwise the walk could not notice that the server has called another route.

    HEAD is left out, because a page has the same route for GET and HEAD.
    """
    calls = [(method, route) for route, method in CALLS if method != "HEAD"]
    found = {
        (method, route.name): (method, meanings(line, method, address_of(route)))
        for method, route in calls
    }
    for call, means in found.items():
        assert [other for other in found if found[other] == means] == [call]
        assert "no_such_address" not in str(means)


@pytest.mark.parametrize(("route", "method"), CALLS, ids=lambda it: getattr(it, "name", it))
def test_every_spelling_selects_its_route_or_is_refused(
    line: Line, route: Route, method: str
) -> None:
    address = address_of(route)
    assert check(line, method, address) is not None
    for target in spellings(address):
        match = check(line, method, target)
        if match is not None and match.route != route.name:
            is_shorter = "?" in target  # it is the address that ends there
            # The first segment of the stream is not `__ds`: see `selected`.
            is_stream = address.startswith(CONTROL) and match.route.startswith("stream_")
            assert is_shorter or is_stream or (route.name, match.route) in BELOW, target


def test_the_walk_is_long() -> None:
    counts = [len(list(spellings(address_of(route)))) for route, _ in CALLS]
    print(f"{len(ROUTES)} routes, {len(CALLS)} with each method, {sum(counts)} requests")
    assert len(CALLS) >= len(ROUTES) >= 36
    assert min(counts) >= 150
    assert sum(counts) >= 12_000
