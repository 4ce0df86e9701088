"""Every route, in every spelling of its address, without a right: no spelling reaches a handler.

`tests/spec/test_route_walk.py` shows that the server handles a spelling as the route that
`find_route` returns, or refuses it. Here each spelling is sent without a token, with a wrong one,
and with a valid one whose rights do not fit.
"""

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import msgspec
import pytest

from semel.model.outcomes_access import Forbidden
from semel.model.rights import ALL_RIGHTS, CLUSTER, make_caller, parse_scope
from semel.server.http import HttpRefused
from semel.server.limits_http import HttpLimits
from semel.server.request_head import parse_head
from semel.wire import routes
from semel.wire.gate import GATE, is_open, refuse_route
from semel.wire.problems import Problem
from semel.wire.routes import ROUTES, RouteMatch, find_route
from tests.access.cases import CASES, Call
from tests.access.rig import AccessServer, Line, make_token_text, status_of
from tests.access.world import SECRET, World, whole_state
from tests.spec.spellings import spellings

NAME: Final = "walk"
# The routes with a response for everybody who has a token: it shows what its caller may see.
FOR_ALL: Final = {
    routes.STREAM_LIST,
    routes.POLICY_SHOW,
    routes.TOPIC_LIST,
    routes.TXN_LIST,
    routes.GROUP_LIST,
    routes.SINK_LIST,
    routes.TOKEN_LIST,
    routes.WHOAMI,
    routes.PRODUCER_SHOW,
    routes.SUBSCRIPTION_LIST,
}
# What needs the token of a wake instead.
BY_WAKE: Final = {
    routes.SUBSCRIPTION_CALLBACK,
    routes.SUBSCRIPTION_ACK,
    routes.SUBSCRIPTION_RELEASE,
}
CALLS: Final = [(route.name, method) for route in ROUTES for method in route.methods]


class Walk(NamedTuple):
    """A server, a connection, and the values of Authorization that are tried."""

    world: World
    line: Line
    wrong: str
    unfit: str


@pytest.fixture(scope="module")
def walk(server: AccessServer) -> Iterator[Walk]:
    world = World(server, NAME, "walker")
    unfit = server.make(
        "stream:elsewhere/*:read,create,delete", "group:elsewhere:read,delete", principal="unfit"
    )
    wrong = f"{world.token[:19]}{make_token_text()[19:]}"  # the public id of a token that exists
    before = whole_state(server, [NAME])
    with server.line() as line:
        yield Walk(world, line, wrong, unfit)
    assert whole_state(server, [NAME])[f"stream {NAME}"] == before[f"stream {NAME}"]
    kinds = ("transaction", "registration", "positions", "snapshot", "sink", "producers")
    for kind in (*kinds, "subscription"):
        assert whole_state(server, [NAME])[f"{kind} {NAME}"] == before[f"{kind} {NAME}"], kind


def calls_of(world: World, route: str, method: str) -> list[Call]:
    """Return good requests of a route: what refuses them can only be a missing right."""
    calls = [case.call(world) for case in CASES if case.route == route]
    return [call._replace(method=method) for call in calls]


def spelled(call: Call) -> Iterator[Call]:
    """Yield a request in all spellings of its address."""
    address, mark, query = call.target.partition("?")
    for target in spellings(address):
        has_end = "?" in target or "#" in target
        yield call._replace(target=target if has_end else f"{target}{mark}{query}")


def expected(call: Call) -> RouteMatch | int:
    """Return the route that a request selects, or the status of its refusal without a route."""
    head = call.data().partition(b"\r\n\r\n")[0]
    try:
        parsed = parse_head(head, HttpLimits())
    except HttpRefused as refused:
        assert refused.status in (400, 414)
        return refused.status
    match = find_route(parsed.method, parsed.path)
    if isinstance(match, Problem):
        assert match.status in (400, 404, 405)
        return match.status
    return match


def is_refusal_of_right(match: RouteMatch, response: bytes) -> bool:
    """Return whether a valid token without the right got nothing."""
    status = status_of(response)
    if match.route in FOR_ALL and status == 200:
        return SECRET.encode() not in response and f'"{NAME}"'.encode() not in response
    return status in (400, 403, 404)


@pytest.mark.parametrize(("route", "method"), CALLS)
def test_no_spelling_reaches_a_handler_without_its_right(
    walk: Walk, route: str, method: str
) -> None:
    for usual in calls_of(walk.world, route, method):
        found = list(spelled(usual))
        wanted = [expected(call) for call in found]
        assert isinstance(wanted[0], RouteMatch), "the usual spelling selects the route"
        assert wanted[0].route == route
        for token in (None, walk.wrong, walk.unfit):
            requests = [(call.method, call.data(token)) for call in found]
            for call, match, response in zip(
                found, wanted, walk.line.ask_all(requests), strict=True
            ):
                assert response is not None, call
                status = status_of(response)
                if isinstance(match, int):
                    assert status == match, (call, response)
                elif match.route in BY_WAKE:
                    expected_statuses = (401,) if token is None else (400, 401, 404)
                    assert status in expected_statuses, (call, response)
                elif is_open(match):
                    assert status == 200, (call, response)
                elif token is walk.unfit:
                    assert is_refusal_of_right(match, response), (call, response)
                else:
                    assert status == 401, (call, response)
                    assert b"\nWWW-Authenticate: Bearer " in response, (call, response)


def test_the_body_of_401_is_the_same_for_every_reason(walk: Walk, server: AccessServer) -> None:
    revoked = server.make("cluster:admin", principal="walker")
    assert server.revoke(revoked).status == 200
    values = [None, walk.wrong, revoked, make_token_text(), "x", walk.world.token[:-1]]
    answers = {server.call(each, "GET", f"/v1/stream/{NAME}").body for each in values}
    answers.add(server.ask("GET", f"/v1/stream/{NAME}", authorization="Basic YWRtaW46YQ==").body)
    (body,) = answers
    assert msgspec.json.decode(body)["code"] == "unauthenticated"


@pytest.mark.parametrize("address", sorted({route.address for route in ROUTES}))
def test_options_need_no_token(server: AccessServer, address: str) -> None:
    answer = server.call(None, "OPTIONS", address.replace("{", "").replace("}", ""))
    assert answer.status in (200, 204)
    assert not answer.body


def test_only_health_the_keys_and_what_needs_the_token_of_a_wake_are_open() -> None:
    opened = {route.name for route in ROUTES if is_open(RouteMatch(route.name))}
    assert opened == {routes.HEALTH, routes.WEBHOOK_KEYS, *BY_WAKE}


# ---- the table -----------------------------------------------------------------------------------


def test_every_route_has_a_row_of_the_gate_and_every_row_a_route() -> None:
    assert set(GATE) == {route.name for route in ROUTES}


def test_a_route_without_a_row_is_refused() -> None:
    scopes = tuple(parse_scope(f"{kind}:*:admin") for kind in ("stream", "group", "sink"))
    match = RouteMatch("a_new_route", "x")
    assert refuse_route(match, "", make_caller("p", scopes)) == Forbidden("admin", CLUSTER, "")
    assert refuse_route(match, "", make_caller("p", ALL_RIGHTS)) is None
    assert not is_open(match)


def test_the_walk_is_long(walk: Walk) -> None:
    counts: list[Any] = [
        len(list(spelled(call)))
        for route, method in CALLS
        for call in calls_of(walk.world, route, method)
    ]
    print(
        f"{len(ROUTES)} routes, {len(CALLS)} with each method, {len(counts)} requests,"
        f" {sum(counts)} spellings, {3 * sum(counts)} with each token"
    )
    assert min(counts) >= 150
    assert sum(counts) >= 15_000
