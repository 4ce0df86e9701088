"""The gate: which right the address of a request needs."""

import pytest

from semel.model.outcomes import NotFound
from semel.model.outcomes_access import Forbidden
from semel.model.outcomes_txn import UnknownSink, UnknownTransaction
from semel.model.rights import (
    ADMIN,
    CLUSTER,
    DESCRIBE,
    GROUP,
    READ,
    STREAM,
    WRITE,
    Caller,
    Need,
    make_caller,
    parse_scope,
)
from semel.wire import gate, routes
from semel.wire.gate import GATE, is_open, need_of, refuse_route
from semel.wire.problems import MalformedRequest
from semel.wire.routes import ROUTES, RouteMatch


def caller(*scopes: str) -> Caller:
    return make_caller("p", tuple(map(parse_scope, scopes)))


def test_every_route_has_exactly_one_row() -> None:
    assert sorted(GATE) == sorted(route.name for route in ROUTES)


def test_only_health_the_keys_and_what_needs_the_token_of_a_wake_are_open() -> None:
    assert [route.name for route in ROUTES if is_open(RouteMatch(route.name))] == [
        routes.HEALTH,
        routes.SUBSCRIPTION_CALLBACK,
        routes.SUBSCRIPTION_ACK,
        routes.SUBSCRIPTION_RELEASE,
        routes.WEBHOOK_KEYS,
    ]
    assert not is_open(RouteMatch("a route without a row"))


def test_a_route_without_a_row_needs_admin() -> None:
    match = RouteMatch("a route without a row", "x")
    assert need_of(match, "") == Need(CLUSTER, "", ADMIN)
    refusal = refuse_route(match, "", caller("stream:*:admin"))
    assert refusal == Forbidden(ADMIN, CLUSTER, "")
    assert refuse_route(match, "", caller("cluster:admin")) is None


@pytest.mark.parametrize(
    ("route", "name", "query", "need"),
    [
        (routes.STREAM_READ, "a/b", "", Need(STREAM, "a/b", READ)),
        (routes.STREAM_APPEND, "a", "", Need(STREAM, "a", WRITE)),
        (routes.STREAM_APPEND, "a/producer", "", None),
        (routes.STREAM_READ, "a/producer", "", Need(STREAM, "a/producer", READ)),
        (routes.METRICS, "", "", Need(CLUSTER, "", DESCRIBE)),
        (routes.GROUP_SHOW, "", "", Need(GROUP, "", READ)),
        (routes.PRODUCER_SHOW, "", "stream=a%2Fb&id=p", Need(STREAM, "a/b", DESCRIBE)),
        (routes.PRODUCER_SHOW, "", "id=p", None),
        (routes.STREAM_LIST, "", "", None),
        (routes.COMMIT, "", "", None),
        (routes.HEALTH, "", "", None),
    ],
)
def test_the_need_of_an_address(route: str, name: str, query: str, need: Need | None) -> None:
    assert need_of(RouteMatch(route, name), query) == need


def test_a_query_that_names_two_streams_is_refused() -> None:
    match = RouteMatch(routes.PRODUCER_EXPLAIN)
    with pytest.raises(MalformedRequest):
        refuse_route(match, "stream=a&stream=b", caller("stream:a:describe"))


def test_without_any_right_the_answer_is_that_for_a_missing_thing() -> None:
    nobody = caller("stream:other:read")
    assert refuse_route(RouteMatch(routes.STREAM_READ, "a"), "", nobody) == NotFound()
    assert refuse_route(RouteMatch(routes.TXN_SHOW, "t"), "", nobody) == UnknownTransaction()
    assert refuse_route(RouteMatch(routes.SINK_SHOW, "s"), "", nobody) == UnknownSink()


def test_with_another_right_the_missing_one_is_named() -> None:
    writer = caller("stream:a:write")
    assert refuse_route(RouteMatch(routes.STREAM_READ, "a"), "", writer) == Forbidden(
        READ, STREAM, "a"
    )
    assert refuse_route(RouteMatch(routes.STREAM_HEAD, "a"), "", writer) is None


def test_where_absence_is_no_error_the_right_is_always_named() -> None:
    nobody = caller("stream:other:read")
    assert refuse_route(RouteMatch(routes.STREAM_CREATE, "a"), "", nobody) == Forbidden(
        "create", STREAM, "a"
    )
    assert refuse_route(RouteMatch(routes.GROUP_SHOW, "g"), "", nobody) == Forbidden(
        READ, GROUP, "g"
    )


def test_an_owner_may_show_what_it_owns() -> None:
    nobody = caller("stream:other:read")
    match, owned = RouteMatch(routes.TXN_SHOW, "t"), ("transaction", "t")
    assert refuse_route(match, "", nobody, lambda _by, kind, name: (kind, name) == owned) is None
    stream = RouteMatch(routes.STREAM_READ, "a")
    assert refuse_route(stream, "", nobody, lambda *_: True) == NotFound()


@pytest.mark.parametrize("path", ["__semel/audit", "__semel/x/y"])
def test_reserved_streams_are_for_administrators(path: str) -> None:
    match = RouteMatch(routes.STREAM_READ, path)
    assert refuse_route(match, "", caller("stream:*:admin")) == NotFound()
    assert refuse_route(match, "", caller("cluster:admin")) is None


def test_the_suffix_of_requests_for_an_id_is_that_of_the_handler() -> None:
    assert gate.ASSIGN_SUFFIX == "/producer"
