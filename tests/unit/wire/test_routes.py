"""The table of routes: what it contains, and which route a request selects."""

import re
from typing import Final
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.wire import routes
from semel.wire.paths import escape_path, names_in, stream_path, topic_name
from semel.wire.problems import Problem
from semel.wire.routes import (
    ROUTES,
    Route,
    RouteMatch,
    find_route,
    is_control,
    join_handlers,
)
from semel.wire.transactions import ACTIONS
from tests.unit.wire.builders import refused

CALLS: Final = [(route, method) for route in ROUTES for method in route.methods]
CONTROL: Final = [route for route in ROUTES if route.address.startswith("/v1/stream/__ds/")]
NAMED: Final = [route for route in ROUTES if "{" in route.address]
OWN: Final = [route for route in NAMED if route not in CONTROL]
SUBSCRIPTION: Final = "/v1/stream/__ds/subscriptions/"
NOTHING: Final = "nothing is served at this address"
BELOW: Final = "streams are below /v1/stream/"


def address_of(route: Route, name: str, detail: str = "") -> str:
    if route in CONTROL:
        address = route.address.replace("{id}", quote(name, safe=""))
        return address.replace("{path}", quote(detail, safe=""))
    if "{path}" in route.address:
        return route.address.removesuffix("{path}") + escape_path(name)
    address = route.address.replace("{member}", quote(detail, safe=""))
    return re.sub(r"\{\w+\}", lambda _: quote(name, safe=""), address)


def path_of(path: str) -> str | Problem:
    """Return the stream's path or the topic's name in an address."""
    return stream_path(path) if path.startswith("/v1/stream/") else topic_name(path)


# ---- the table -----------------------------------------------------------------------------------


def test_every_route_has_its_own_name_which_is_a_constant() -> None:
    names = [route.name for route in ROUTES]
    assert len(set(names)) == len(names)
    for name in names:
        assert getattr(routes, name.upper()) == name


def test_a_method_and_an_address_select_one_route() -> None:
    selected = [(method, re.sub(r"\{\w+\}", "{}", route.address)) for route, method in CALLS]
    assert len(set(selected)) == len(selected)


def test_a_name_is_the_third_segment_of_its_address() -> None:
    """`find_route` depends on it."""
    form = r"/v1/(stream/__ds/)?[a-z]+/\{[a-z]+\}(/[a-z]+(/\{[a-z]+\})?)?"
    for route in NAMED:
        assert re.fullmatch(form, route.address)


def test_an_address_with_a_name_begins_with_that_of_a_list() -> None:
    """`find_route` depends on it: an address that ends before the name is another route."""
    bases = {"/".join(route.address.split("/")[:3]) for route in NAMED} - {"/v1/stream"}
    assert bases <= {route.address for route in ROUTES}


def test_every_action_on_a_transaction_is_a_route() -> None:
    prefix = "/v1/transactions/{id}/"
    found = [route for route in ROUTES if route.address.startswith(prefix)]
    assert [route.address.removeprefix(prefix) for route in found] == list(ACTIONS)
    assert {route.methods for route in found} == {("POST",)}


# ---- handlers ------------------------------------------------------------------------------------

ALL: Final = {route.name: route.address for route in ROUTES}


def test_handlers_of_several_tables_become_one_table() -> None:
    others = {name: address for name, address in ALL.items() if name != routes.HEALTH}
    assert join_handlers([others, {routes.HEALTH: "/health"}]) == ALL


def test_a_route_without_a_handler_is_an_error() -> None:
    others = {name: address for name, address in ALL.items() if name != routes.HEALTH}
    with pytest.raises(
        ValueError, match=r"without a handler: \['health'\]; handlers of no.*: \[\]"
    ):
        join_handlers([others])


def test_a_handler_without_a_route_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"a handler: \[\]; handlers of no route: \['other'\]"):
        join_handlers([ALL, {"other": ""}])


def test_two_handlers_for_one_route_are_an_error() -> None:
    with pytest.raises(ValueError, match=r"routes with two handlers: \['health'\]"):
        join_handlers([ALL, {routes.HEALTH: "/health"}])


# ---- finding -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("route", "method"), CALLS, ids=lambda it: getattr(it, "name", it))
def test_every_route_is_found_by_its_methods(route: Route, method: str) -> None:
    name = "a" if route in NAMED else ""
    detail = "b" if route.address.count("{") == 2 else ""
    found = find_route(method, address_of(route, "a", "b"))
    assert found == RouteMatch(route.name, name, detail)


@pytest.mark.parametrize("route", OWN, ids=lambda route: route.name)
@given(name=st.text(max_size=20))
def test_any_name_that_is_percent_encoded_is_found_again(route: Route, name: str) -> None:
    address = address_of(route, name, f"{name}/m")
    wanted = path_of(address) if "{path}" in route.address else name
    detail = f"{name}/m" if "{member}" in route.address else ""
    found = find_route(route.methods[0], address)
    match = RouteMatch(route.name, name, detail)
    assert found == (wanted if isinstance(wanted, Problem) else match)


@pytest.mark.parametrize(
    ("path", "match"),
    [
        ("/v1/stream/a/b", RouteMatch(routes.STREAM_READ, "a/b")),
        ("/v1/stream/%61", RouteMatch(routes.STREAM_READ, "a")),
        ("/v1/stream/{path}", RouteMatch(routes.STREAM_READ, "{path}")),
        ("/v1/transactions/{id}", RouteMatch(routes.TXN_SHOW, "{id}")),
        ("/v1/transactions/a%2Fcommit", RouteMatch(routes.TXN_SHOW, "a/commit")),
        ("/v1/transactions/..", RouteMatch(routes.TXN_SHOW, "..")),
        ("/v1/transactions/", RouteMatch(routes.TXN_SHOW, "")),
        ("/v1/groups/", RouteMatch(routes.GROUP_DESCRIBE, "")),
        ("/v1/groups/g", RouteMatch(routes.GROUP_DESCRIBE, "g")),
        ("/v1/groups/g%2Fmembers", RouteMatch(routes.GROUP_DESCRIBE, "g/members")),
        ("/v1/topics/a/b", RouteMatch(routes.TOPIC_SHOW, "a/b")),
        ("/v1/topics/%61/0", RouteMatch(routes.TOPIC_SHOW, "a/0")),
        ("/v1/groups//offsets", RouteMatch(routes.GROUP_SHOW, "")),
        ("/v1/groups/g/%6fffsets", RouteMatch(routes.GROUP_SHOW, "g")),
    ],
)
def test_the_name_and_what_follows_it_are_percent_decoded(path: str, match: RouteMatch) -> None:
    assert find_route("GET", path) == match


@pytest.mark.parametrize(
    ("path", "match"),
    [
        ("/v1/groups/g/members/m", RouteMatch(routes.MEMBER_BEAT, "g", "m")),
        ("/v1/groups/g/%6dembers/%6d", RouteMatch(routes.MEMBER_BEAT, "g", "m")),
        ("/v1/groups/a%2Fb/members/c%2Fd", RouteMatch(routes.MEMBER_BEAT, "a/b", "c/d")),
        ("/v1/groups//members/", RouteMatch(routes.MEMBER_BEAT)),
        ("/v1/groups/g/members", RouteMatch(routes.MEMBER_JOIN, "g")),
    ],
)
def test_an_address_can_have_a_second_name(path: str, match: RouteMatch) -> None:
    assert find_route("POST", path) == match


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("", BELOW),
        ("/", BELOW),
        ("*", BELOW),
        ("/Health", BELOW),
        ("/health/", BELOW),
        ("/heal%74h", BELOW),
        ("//health", BELOW),
        ("/v1", BELOW),
        ("/v1/stream", BELOW),
        ("/v1/%73tream/a", BELOW),
        ("/v1/streams/", BELOW),
        ("/v1/policies/a", BELOW),
        ("/v1/producers/", BELOW),
        ("/v1/producers/cl%61im", BELOW),
        ("/v1/transactions%2fa", BELOW),
        ("/v1/./transactions/a", BELOW),
        ("/v1/commits/", NOTHING),
        ("/v1/commits/a", NOTHING),
        ("/v1/topics%2f", BELOW),
        ("/v1/topic", BELOW),
        ("/v1/groups/g/members/m/", NOTHING),
        ("/v1/groups/g/members/m/n", NOTHING),
        ("/v1/groups/g/others/m", NOTHING),
        ("/v1/groups/g/offsets/", NOTHING),
        ("/v1/groups/g/offsets%2f", NOTHING),
        ("/v1/transactions//", NOTHING),
        ("/v1/transactions/a/undo", NOTHING),
        ("/v1/transactions/a/commit/b", NOTHING),
        ("/v1/sinks/a/{app}", NOTHING),
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST", "TRACE"])
def test_an_unknown_address_is_404_for_every_method(method: str, path: str, message: str) -> None:
    assert find_route(method, path) == Problem(404, "no_such_address", message)


@pytest.mark.parametrize("method", ["GET", "TRACE"])
@pytest.mark.parametrize(
    "path",
    [
        "/v1/stream/",
        "/v1/stream/a//b",
        "/v1/stream/a%2fb",
        "/v1/topics/",
        "/v1/topics/a//b",
        "/v1/topics/a%2fb",
        "/v1/sinks/%ff",
        "/v1/groups/%",
        "/v1/groups/g/members/%",
    ],
)
def test_an_invalid_name_is_400_for_every_method(method: str, path: str) -> None:
    assert refused(find_route(method, path)) == (400, "invalid_path")


def test_a_reserved_stream_is_404() -> None:
    assert refused(find_route("GET", "/v1/stream/%5F_ds/a")) == (404, "reserved_path")
    assert refused(find_route("GET", "/v1/topics/__ds")) == (404, "reserved_path")


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("/v1/stream/a", "GET, POST, PUT, PATCH, DELETE, HEAD, OPTIONS"),
        ("/v1/topics/a", "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"),
        ("/v1/topics", "GET, HEAD, OPTIONS"),
        ("/v1/groups/g", "GET, HEAD, DELETE, OPTIONS"),
        ("/v1/groups/g/members/m", "POST, DELETE, OPTIONS"),
        ("/health", "GET, HEAD, OPTIONS"),
        ("/v1/policies", "GET, HEAD, PUT, DELETE, OPTIONS"),
        ("/v1/producers", "POST, GET, HEAD, DELETE, OPTIONS"),
        ("/v1/commits", "POST, OPTIONS"),
        ("/v1/transactions", "GET, HEAD, POST, OPTIONS"),
        ("/v1/transactions/a/commit", "POST, OPTIONS"),
        ("/v1/sinks/a", "DELETE, GET, HEAD, OPTIONS"),
        ("/v1/stream/__ds/subscriptions", "GET, HEAD, OPTIONS"),
        ("/v1/stream/__ds/subscriptions/a", "GET, HEAD, PUT, DELETE, OPTIONS"),
        ("/v1/stream/__ds/subscriptions/a/streams", "POST, OPTIONS"),
        ("/v1/stream/__ds/subscriptions/a/streams/b/c", "DELETE, OPTIONS"),
        ("/v1/stream/__ds/subscriptions/a/callback", "POST, OPTIONS"),
        ("/v1/stream/__ds/jwks.json", "GET, HEAD, OPTIONS"),
    ],
)
@pytest.mark.parametrize("method", ["TRACE", "get", "", "OPTIONS"])
def test_another_method_is_405_with_those_that_are_allowed(
    method: str, path: str, allowed: str
) -> None:
    found = find_route(method, path)
    assert found == Problem(405, "method_not_allowed", f"use {allowed}", {}, [("Allow", allowed)])


@given(
    st.sampled_from(["GET", "POST", "DELETE"]),
    st.lists(
        st.sampled_from(
            [
                "v1",
                "stream",
                "__ds",
                "subscriptions",
                "streams",
                "topics",
                "transactions",
                "groups",
                "sinks",
                "a",
                "b",
            ]
        )
        | st.sampled_from(["offsets", "members", ""])
        | st.text(st.characters(max_codepoint=255), max_size=4),
        max_size=6,
    ),
)
def test_a_route_is_found_only_at_its_address(method: str, segments: list[str]) -> None:
    path = "/" + "/".join(segments)
    found = find_route(method, path)
    if isinstance(found, Problem):
        assert found.status in (400, 404, 405)
        return
    (route,) = [each for each in ROUTES if each.name == found.route]
    assert method in route.methods
    usual = address_of(route, found.name, found.detail)
    if route not in NAMED:
        assert path == usual
    elif route in CONTROL:
        assert find_route(method, usual) == found
    elif "{path}" in route.address:
        assert path_of(path) == found.name
    else:
        assert names_in(path) == names_in(usual)


# ---- subscriptions -------------------------------------------------------------------------------


@given(st.text(max_size=100))
def test_a_subscription_is_found_by_its_percent_encoded_id_unless_it_is_no_id(name: str) -> None:
    found = find_route("GET", SUBSCRIPTION + quote(name, safe=""))
    is_id = (
        name not in ("", ".", "..")
        and len(name.encode()) <= 256
        and not re.search(r"[\x00-\x1f\x7f-\x9f\\]", name)
    )
    if is_id:
        assert found == RouteMatch(routes.SUBSCRIPTION_SHOW, name)
    else:
        assert refused(found) == (400, "invalid_path")


@pytest.mark.parametrize(
    ("path", "name", "linked"),
    [
        ("s/streams/manual%2Fb", "s", "manual/b"),
        ("s/streams/manual%2fb", "s", "manual/b"),
        ("s/streams/manual/b", "s", "manual/b"),
        ("s/streams/%2Fmanual/b%2F/", "s", "manual/b"),
        ("s/streams/streams", "s", "streams"),
        ("a%2Fb/streams/%C3%A9", "a/b", "é"),
        ("s/streams/a%20b", "s", "a b"),
    ],
)
def test_the_address_of_a_link_can_have_encoded_slashes(path: str, name: str, linked: str) -> None:
    found = find_route("DELETE", SUBSCRIPTION + path)
    assert found == RouteMatch(routes.SUBSCRIPTION_UNLINK, name, linked)


@pytest.mark.parametrize(
    "path",
    [
        "s/streams/",
        "s/streams/%2F",
        "s/streams//",
        "s/streams/a//b",
        "s/streams/..",
        "s/streams/a%2F..",
        "s/streams/%2e%2e%2fa",
        "s/streams/a%5cb",
        "s/streams/%00",
        "s/streams/%0d%0a",
        "s/streams/a%",
        "s/streams/%ff",
        "s/streams/%ed%a0%80",
        "s/streams/__ds",
        "s/streams/__ds%2Fa",
        "s/streams/" + "a" * 513,
        "s/streams/" + "/".join("a" * 17),
        "s/streams/a b",
        "",
        ".",
        "..",
        "%2e%2e",
        "%00",
        "a%0d",
        "a%5c",
        "a\\",
        "%",
        "%ff",
        "a" * 257,
        "%C3%A9" * 129,
        "../streams/a",
        "/streams/a",
    ],
)
@pytest.mark.parametrize("method", ["DELETE", "GET", "TRACE"])
def test_an_id_or_a_path_that_nothing_can_have_is_400(method: str, path: str) -> None:
    assert refused(find_route(method, SUBSCRIPTION + path)) == (400, "invalid_path")


def test_the_longest_id_and_the_longest_path_are_found() -> None:
    name, path = "%C3%A9" * 128, "a" * 512
    assert find_route("GET", SUBSCRIPTION + name) == RouteMatch(routes.SUBSCRIPTION_SHOW, "é" * 128)
    found = find_route("DELETE", f"{SUBSCRIPTION}s/streams/{path}")
    assert found == RouteMatch(routes.SUBSCRIPTION_UNLINK, "s", path)


@pytest.mark.parametrize(
    "path",
    [
        "/v1/stream/__ds",
        "/v1/stream/__ds/",
        "/v1/stream/__ds/a",
        "/v1/stream/__ds//subscriptions",
        "/v1/stream/__ds/Subscriptions",
        "/v1/stream/__ds/subscription%73",
        "/v1/stream/__ds/jwks%2Ejson",
        "/v1/stream/__ds/jwks.json/",
        "/v1/stream/__ds/subscriptions/s/",
        "/v1/stream/__ds/subscriptions/s/Claim",
        "/v1/stream/__ds/subscriptions/s/cla%69m",
        "/v1/stream/__ds/subscriptions/s/claim/",
        "/v1/stream/__ds/subscriptions/s/claim/a",
        "/v1/stream/__ds/subscriptions/s/stream%73/a",
        "/v1/stream/__ds/subscriptions/s/./claim",
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST", "TRACE"])
def test_an_unknown_control_address_is_404(method: str, path: str) -> None:
    assert is_control(path)
    assert find_route(method, path) == Problem(404, "no_such_address", NOTHING)


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/v1/stream/%5f%5fds/subscriptions/s", 404, "reserved_path"),
        ("/v1/stream/__d%73/subscriptions/s", 404, "reserved_path"),
        ("/v1/stream/__ds%2Fsubscriptions/s", 400, "invalid_path"),
        ("/v1/stream//__ds/subscriptions/s", 400, "invalid_path"),
        ("/v1/stream/./__ds/subscriptions/s", 400, "invalid_path"),
        ("/v1/stream/a/../__ds/subscriptions", 400, "invalid_path"),
        ("/v1/topics/__ds/subscriptions", 404, "reserved_path"),
        ("/v1/%73tream/__ds/subscriptions", 404, "no_such_address"),
    ],
)
def test_every_other_spelling_of_the_control_prefix_is_refused_as_a_stream(
    path: str, status: int, code: str
) -> None:
    assert not is_control(path)
    assert refused(find_route("GET", path)) == (status, code)


def test_a_stream_whose_name_only_begins_like_the_control_prefix_is_a_stream() -> None:
    assert find_route("GET", "/v1/stream/__dsx") == RouteMatch(routes.STREAM_READ, "__dsx")
    assert find_route("GET", "/v1/stream/a/__ds/b") == RouteMatch(routes.STREAM_READ, "a/__ds/b")
