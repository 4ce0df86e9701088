"""The table of all routes, and `find_route`, which finds the route of a request.

A route is selected by the method and the address of a request. The server calls the handler of the
route, and decides from the same `RouteMatch` which rights the request needs. So there is no
spelling of an address for which the two disagree.

Only the name in an address, and what follows it, is percent-decoded. What precedes the name must be
spelled as in the table: `/v1/%73treams` and `/v1//streams` are unknown addresses. The addresses of
subscriptions are found before those of streams. In them, only names are percent-decoded.
"""

from collections.abc import Iterable, Mapping
from typing import Final, TypeVar

from msgspec import Struct

from semel.wire import paths
from semel.wire.paths import (
    CONTROL_PREFIX,
    STREAM_PREFIX,
    TOPIC_PREFIX,
    linked_path_in,
    names_in,
    stream_path,
    subscription_id,
    topic_name,
)
from semel.wire.problems import Problem

T = TypeVar("T")

# The names of the routes.
STREAM_READ: Final = "stream_read"
STREAM_APPEND: Final = "stream_append"
STREAM_CREATE: Final = "stream_create"
STREAM_CHANGE: Final = "stream_change"
STREAM_DELETE: Final = "stream_delete"
STREAM_HEAD: Final = "stream_head"
STREAM_LIST: Final = "stream_list"
TOPIC_SHOW: Final = "topic_show"
TOPIC_APPEND: Final = "topic_append"
TOPIC_CREATE: Final = "topic_create"
TOPIC_CHANGE: Final = "topic_change"
TOPIC_DELETE: Final = "topic_delete"
TOPIC_LIST: Final = "topic_list"
HEALTH: Final = "health"
METRICS: Final = "metrics"
POLICY_SHOW: Final = "policy_show"
POLICY_SET: Final = "policy_set"
POLICY_DELETE: Final = "policy_delete"
COMMIT: Final = "commit"
PRODUCER_REGISTER: Final = "producer_register"
PRODUCER_SHOW: Final = "producer_show"
PRODUCER_FORGET: Final = "producer_forget"
PRODUCER_CLAIM: Final = "producer_claim"
PRODUCER_RETIRE: Final = "producer_retire"
PRODUCER_EXPLAIN: Final = "producer_explain"
TXN_LIST: Final = "txn_list"
TXN_BEGIN: Final = "txn_begin"
TXN_SHOW: Final = "txn_show"
TXN_ADD_STREAMS: Final = "txn_add_streams"
TXN_ADD_OFFSETS: Final = "txn_add_offsets"
TXN_PREPARE: Final = "txn_prepare"
TXN_COMMIT: Final = "txn_commit"
TXN_ABORT: Final = "txn_abort"
TXN_FENCE: Final = "txn_fence"
GROUP_LIST: Final = "group_list"
GROUP_DESCRIBE: Final = "group_describe"
GROUP_DELETE: Final = "group_delete"
MEMBER_JOIN: Final = "member_join"
MEMBER_BEAT: Final = "member_beat"
MEMBER_LEAVE: Final = "member_leave"
GROUP_SHOW: Final = "group_show"
GROUP_MOVE: Final = "group_move"
SNAPSHOT_SHOW: Final = "snapshot_show"
SNAPSHOT_PIN: Final = "snapshot_pin"
SINK_LIST: Final = "sink_list"
SINK_SHOW: Final = "sink_show"
SINK_FORGET: Final = "sink_forget"
SINK_REBIND: Final = "sink_rebind"
TOKEN_LIST: Final = "token_list"
TOKEN_CREATE: Final = "token_create"
TOKEN_SHOW: Final = "token_show"
TOKEN_REVOKE: Final = "token_revoke"
OWNER_CHANGE: Final = "owner_change"
WHOAMI: Final = "whoami"
SUBSCRIPTION_LIST: Final = "subscription_list"
SUBSCRIPTION_SHOW: Final = "subscription_show"
SUBSCRIPTION_CREATE: Final = "subscription_create"
SUBSCRIPTION_DELETE: Final = "subscription_delete"
SUBSCRIPTION_LINK: Final = "subscription_link"
SUBSCRIPTION_UNLINK: Final = "subscription_unlink"
SUBSCRIPTION_CALLBACK: Final = "subscription_callback"
SUBSCRIPTION_CLAIM: Final = "subscription_claim"
SUBSCRIPTION_ACK: Final = "subscription_ack"
SUBSCRIPTION_RELEASE: Final = "subscription_release"
SUBSCRIPTION_RESUME: Final = "subscription_resume"
WEBHOOK_KEYS: Final = "webhook_keys"


class Route(Struct, frozen=True):
    """A row of the table: the methods and the address that select a route.

    An address can have a name, such as `{id}`, as its third segment, and another one as its fifth.
    In addresses of subscriptions, these are the fifth and the seventh. The path of a stream and the
    name of a topic can contain slashes. No other name can contain a slash that is not
    percent-encoded.
    """

    name: str
    methods: tuple[str, ...]
    address: str


class RouteMatch(Struct, frozen=True, gc=False):
    """The route of a request. `name` is the first name in its address, `detail` the second one.

    They are empty if the address of the route has no such name. They can be empty otherwise, too.
    """

    route: str
    name: str = ""
    detail: str = ""


_READS: Final = ("GET", "HEAD")
_STREAM: Final = STREAM_PREFIX + "{path}"
_TOPIC: Final = TOPIC_PREFIX + "{path}"
_TXN: Final = paths.TRANSACTIONS + "/{id}"
_GROUP: Final = paths.GROUPS + "/{group}"
_MEMBERS: Final = _GROUP + "/members"
_MEMBER: Final = _MEMBERS + "/{member}"
_OFFSETS: Final = _GROUP + "/offsets"
_SNAPSHOT: Final = _GROUP + "/snapshot"
_SINK: Final = paths.SINKS + "/{app}"
_TOKEN: Final = paths.TOKENS + "/{id}"
_SUBSCRIPTION: Final = paths.SUBSCRIPTIONS + "/{id}"
_LINKS: Final = _SUBSCRIPTION + "/streams"
_LINK: Final = _LINKS + "/{path}"

# The header Allow lists the methods of an address in the order of this table.
ROUTES: Final = (
    Route(STREAM_READ, ("GET",), _STREAM),
    # This includes `POST /v1/stream/{path}/producer`, which can be a request for a producer id. It
    # depends on the streams that exist whether it is, so the handler of appends decides it.
    Route(STREAM_APPEND, ("POST",), _STREAM),
    Route(STREAM_CREATE, ("PUT",), _STREAM),
    Route(STREAM_CHANGE, ("PATCH",), _STREAM),
    Route(STREAM_DELETE, ("DELETE",), _STREAM),
    Route(STREAM_HEAD, ("HEAD",), _STREAM),
    Route(STREAM_LIST, _READS, paths.STREAMS),
    Route(TOPIC_SHOW, _READS, _TOPIC),
    Route(TOPIC_APPEND, ("POST",), _TOPIC),
    Route(TOPIC_CREATE, ("PUT",), _TOPIC),
    Route(TOPIC_CHANGE, ("PATCH",), _TOPIC),
    Route(TOPIC_DELETE, ("DELETE",), _TOPIC),
    Route(TOPIC_LIST, _READS, paths.TOPICS),
    Route(HEALTH, _READS, paths.HEALTH),
    Route(METRICS, _READS, paths.METRICS),
    Route(POLICY_SHOW, _READS, paths.POLICIES),
    Route(POLICY_SET, ("PUT",), paths.POLICIES),
    Route(POLICY_DELETE, ("DELETE",), paths.POLICIES),
    Route(COMMIT, ("POST",), paths.COMMITS),
    Route(PRODUCER_REGISTER, ("POST",), paths.PRODUCERS),
    Route(PRODUCER_SHOW, _READS, paths.PRODUCERS),
    Route(PRODUCER_FORGET, ("DELETE",), paths.PRODUCERS),
    Route(PRODUCER_CLAIM, ("POST",), paths.CLAIM),
    Route(PRODUCER_RETIRE, ("POST",), paths.RETIRE),
    Route(PRODUCER_EXPLAIN, _READS, paths.EXPLAIN),
    Route(TXN_LIST, _READS, paths.TRANSACTIONS),
    Route(TXN_BEGIN, ("POST",), paths.TRANSACTIONS),
    Route(TXN_SHOW, _READS, _TXN),
    Route(TXN_ADD_STREAMS, ("POST",), _TXN + "/streams"),
    Route(TXN_ADD_OFFSETS, ("POST",), _TXN + "/offsets"),
    Route(TXN_PREPARE, ("POST",), _TXN + "/prepare"),
    Route(TXN_COMMIT, ("POST",), _TXN + "/commit"),
    Route(TXN_ABORT, ("POST",), _TXN + "/abort"),
    Route(TXN_FENCE, ("POST",), _TXN + "/fence"),
    Route(GROUP_LIST, _READS, paths.GROUPS),
    Route(GROUP_DESCRIBE, _READS, _GROUP),
    Route(GROUP_DELETE, ("DELETE",), _GROUP),
    Route(MEMBER_JOIN, ("POST",), _MEMBERS),
    Route(MEMBER_BEAT, ("POST",), _MEMBER),
    Route(MEMBER_LEAVE, ("DELETE",), _MEMBER),
    Route(GROUP_SHOW, _READS, _OFFSETS),
    Route(GROUP_MOVE, ("POST",), _OFFSETS),
    Route(SNAPSHOT_SHOW, _READS, _SNAPSHOT),
    Route(SNAPSHOT_PIN, ("POST",), _SNAPSHOT),
    Route(SINK_LIST, _READS, paths.SINKS),
    Route(SINK_FORGET, ("DELETE",), _SINK),
    Route(SINK_SHOW, _READS, _SINK),
    Route(SINK_REBIND, ("POST",), _SINK + "/rebind"),
    Route(TOKEN_LIST, _READS, paths.TOKENS),
    Route(TOKEN_CREATE, ("POST",), paths.TOKENS),
    Route(TOKEN_SHOW, _READS, _TOKEN),
    Route(TOKEN_REVOKE, ("DELETE",), _TOKEN),
    Route(OWNER_CHANGE, ("POST",), paths.OWNERS),
    Route(WHOAMI, _READS, paths.WHOAMI),
    Route(SUBSCRIPTION_LIST, _READS, paths.SUBSCRIPTIONS),
    Route(SUBSCRIPTION_SHOW, _READS, _SUBSCRIPTION),
    Route(SUBSCRIPTION_CREATE, ("PUT",), _SUBSCRIPTION),
    Route(SUBSCRIPTION_DELETE, ("DELETE",), _SUBSCRIPTION),
    Route(SUBSCRIPTION_LINK, ("POST",), _LINKS),
    Route(SUBSCRIPTION_UNLINK, ("DELETE",), _LINK),
    Route(SUBSCRIPTION_CALLBACK, ("POST",), _SUBSCRIPTION + "/callback"),
    Route(SUBSCRIPTION_CLAIM, ("POST",), _SUBSCRIPTION + "/claim"),
    Route(SUBSCRIPTION_ACK, ("POST",), _SUBSCRIPTION + "/ack"),
    Route(SUBSCRIPTION_RELEASE, ("POST",), _SUBSCRIPTION + "/release"),
    Route(SUBSCRIPTION_RESUME, ("POST",), _SUBSCRIPTION + "/resume"),
    Route(WEBHOOK_KEYS, _READS, paths.WEBHOOK_KEYS),
)


def join_handlers(tables: Iterable[Mapping[str, T]]) -> dict[str, T]:
    """Return one table of handlers, keyed by the name of the route, from several tables.

    Raises ValueError unless every route in ROUTES has exactly one handler, and nothing else has
    one.
    """
    joined: dict[str, T] = {}
    for table in tables:
        twice = joined.keys() & table.keys()
        if twice:
            raise ValueError(f"routes with two handlers: {sorted(twice)}")
        joined |= table
    names = {route.name for route in ROUTES}
    if names != joined.keys():
        missing, unknown = sorted(names - joined.keys()), sorted(joined.keys() - names)
        raise ValueError(f"routes without a handler: {missing}; handlers of no route: {unknown}")
    return joined


# ---- finding -------------------------------------------------------------------------------------

# The routes of one address, keyed by method, and the response to all other methods.
_Methods = tuple[dict[str, str], Problem]


def _methods_at(address: str) -> _Methods:
    routes = {
        method: route.name
        for route in ROUTES
        if route.address == address
        for method in route.methods
    }
    allowed = ", ".join([*routes, "OPTIONS"])
    problem = Problem(405, "method_not_allowed", f"use {allowed}", {}, [("Allow", allowed)])
    return routes, problem


def _base_of(address: str) -> str:
    """Return the first two segments of an address. Addresses with a name have it after them."""
    return "/".join(address.split("/", 3)[:3])


_ALL: Final = frozenset(route.address for route in ROUTES)
_OF_SUBSCRIPTIONS: Final = frozenset(each for each in _ALL if each.startswith(CONTROL_PREFIX))
_ADDRESSES: Final = _ALL - _OF_SUBSCRIPTIONS
_OF_STREAM: Final = _methods_at(_STREAM)
_OF_TOPIC: Final = _methods_at(_TOPIC)
# Keyed by address.
_WITHOUT_NAME: Final = {each: _methods_at(each) for each in _ADDRESSES if "{" not in each}
# Keyed by the first two segments of the address, and by the segments after the name. A second name
# is left out, so that `_WITH_DETAIL` has the same keys as `_WITH_NAME`.
_WITH_NAME: Final = {
    (_base_of(each), *each.split("/")[4:]): _methods_at(each)
    for each in _ADDRESSES - {_STREAM, _TOPIC}
    if each.count("{") == 1
}
_WITH_DETAIL: Final = {
    (_base_of(each), *each.split("/")[4:-1]): _methods_at(each)
    for each in _ADDRESSES
    if each.count("{") > 1
}
# Keyed by what follows CONTROL_PREFIX, and by what follows the id of a subscription.
_CONTROL: Final = {
    each.removeprefix(CONTROL_PREFIX): _methods_at(each)
    for each in _OF_SUBSCRIPTIONS
    if "{" not in each
}
_AT_SUBSCRIPTION: Final = {
    each.removeprefix(_SUBSCRIPTION): _methods_at(each)
    for each in _OF_SUBSCRIPTIONS
    if each.startswith(_SUBSCRIPTION) and each != _LINK
}
_AT_LINK: Final = _methods_at(_LINK)
_STREAMS: Final = "/streams/"  # in the address of a link
_BASES: Final = frozenset(base for base, *_ in _WITH_NAME)
_NOTHING_HERE: Final = Problem(404, "no_such_address", "nothing is served at this address")
_NOT_A_STREAM: Final = Problem(404, "no_such_address", f"streams are below {STREAM_PREFIX}")


def find_route(method: str, path: str) -> RouteMatch | Problem:
    """Return the route that the method and the path of a request select.

    `path` is still percent-encoded, and its bytes were decoded as Latin-1. Returns a problem if the
    name in `path` is invalid (400), if nothing is served at `path` (404), or if the address does
    not support the method (405).
    """
    name: str | Problem = ""
    detail = ""
    if is_control(path):
        return _find_control(method, path)
    if path.startswith(STREAM_PREFIX):
        methods, name = _OF_STREAM, stream_path(path)
    elif path.startswith(TOPIC_PREFIX):
        methods, name = _OF_TOPIC, topic_name(path)
    elif path in _WITHOUT_NAME:
        methods = _WITHOUT_NAME[path]
    else:
        found = _find_named(path)
        if isinstance(found, Problem):
            return found
        methods, name, detail = found
    if isinstance(name, Problem):
        return name
    routes, refusal = methods
    route = routes.get(method)
    return refusal if route is None else RouteMatch(route, name, detail)


def is_control(path: str) -> bool:
    """Return True if a path, still percent-encoded, is one of the addresses of subscriptions."""
    return path.startswith(CONTROL_PREFIX) or path == paths.CONTROL_ROOT


def _find_control(method: str, path: str) -> RouteMatch | Problem:
    """Return the route of an address for which `is_control` is True."""
    rest = path.removeprefix(CONTROL_PREFIX)
    methods = _CONTROL.get(rest)
    name: str | Problem = ""
    detail: str | Problem = ""
    if methods is None:
        base, _, named = rest.partition("/")
        if base != "subscriptions":
            return _NOTHING_HERE
        encoded, slash, action = named.partition("/")
        if (slash + action).startswith(_STREAMS):
            methods, detail = _AT_LINK, linked_path_in(action.removeprefix(_STREAMS[1:]))
        else:
            methods = _AT_SUBSCRIPTION.get(slash + action)
        name = subscription_id(encoded)
    if methods is None:
        return _NOTHING_HERE
    for each in (name, detail):
        if isinstance(each, Problem):
            return each
    routes, refusal = methods
    route = routes.get(method)
    return refusal if route is None else RouteMatch(route, str(name), str(detail))


def _find_named(path: str) -> tuple[_Methods, str, str] | Problem:
    """Return the routes of an address with names, and its names."""
    base = _base_of(path)
    if base not in _BASES:
        return _NOTHING_HERE if base == paths.COMMITS else _NOT_A_STREAM
    names = names_in(path[len(base) + 1 :])
    if isinstance(names, Problem):
        return names
    name, *rest = names
    methods = _WITH_NAME.get((base, *rest))
    if methods is not None:
        return methods, name, ""
    methods = _WITH_DETAIL.get((base, *rest[:-1]))
    return _NOTHING_HERE if methods is None else (methods, name, rest[-1])
