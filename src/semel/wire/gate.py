"""The gate: which rights the address of a request needs.

`GATE` has one row for each route, the same route that selects the handler. A route without a row is
refused. Some rights depend on the body of a request, so they are computed from the command
(`semel.machine.access`); those of an address are checked before the body is parsed. The table is
also in `docs/reference/access.md`.
"""

from collections.abc import Callable, Mapping
from typing import Final

from msgspec import Struct

from semel.model.outcomes import NotFound, Refusal
from semel.model.outcomes_access import Forbidden
from semel.model.outcomes_groups import UnknownGroup
from semel.model.outcomes_subscriptions import UnknownSubscription
from semel.model.outcomes_topics import TopicNotFound
from semel.model.outcomes_txn import UnknownSink, UnknownTransaction
from semel.model.rights import (
    ADMIN,
    CLUSTER,
    CREATE,
    DELETE,
    DESCRIBE,
    GROUP,
    READ,
    SINK,
    STREAM,
    SUBSCRIPTION,
    TOPIC,
    TRANSACTION,
    WRITE,
    Caller,
    Need,
)
from semel.wire import routes
from semel.wire.paths import parse_query
from semel.wire.routes import RouteMatch

OPEN: Final = "open"  # no token is needed; or that of a wake, which the handler checks
VALID: Final = "valid"  # any valid token; the response shows only what the caller may describe
COMMAND: Final = "command"  # the rights depend on the command
ADDRESS: Final = "address"  # a right on what the address names
QUERY: Final = "query"  # a right on the stream that the query names
OWNED: Final = "owned"  # like ADDRESS, and the owner always has the right

ASSIGN_SUFFIX: Final = "/producer"


class Rule(Struct, frozen=True):
    """A row of the gate. `kind` and `right` are set for ADDRESS, QUERY and OWNED.

    `hidden` is the refusal if the caller has no right at all on the thing. It is the same as if the
    thing did not exist. It is None if the absence of the thing is no error.
    """

    source: str
    kind: str = ""
    right: str = ""
    hidden: Refusal | None = None


def _stream(right: str) -> Rule:
    return Rule(ADDRESS, STREAM, right, NotFound())


def _topic(right: str) -> Rule:
    return Rule(ADDRESS, TOPIC, right, TopicNotFound())


def _subscription(right: str) -> Rule:
    return Rule(ADDRESS, SUBSCRIPTION, right, UnknownSubscription())


_BY_COMMAND: Final = Rule(COMMAND)
_ANY: Final = Rule(VALID)

GATE: Final[Mapping[str, Rule]] = {
    routes.STREAM_READ: _stream(READ),
    routes.STREAM_APPEND: _stream(WRITE),
    routes.STREAM_CREATE: Rule(ADDRESS, STREAM, CREATE),
    routes.STREAM_CHANGE: _stream(DESCRIBE),
    routes.STREAM_DELETE: _stream(DELETE),
    routes.STREAM_HEAD: _stream(DESCRIBE),
    routes.STREAM_LIST: _ANY,
    routes.TOPIC_SHOW: _topic(DESCRIBE),
    routes.TOPIC_APPEND: _topic(WRITE),
    routes.TOPIC_CREATE: Rule(ADDRESS, TOPIC, CREATE),
    routes.TOPIC_CHANGE: _topic(DESCRIBE),  # the command decides what else is needed
    routes.TOPIC_DELETE: _topic(DELETE),
    routes.TOPIC_LIST: _ANY,
    routes.HEALTH: Rule(OPEN),
    routes.METRICS: Rule(ADDRESS, CLUSTER, DESCRIBE),
    routes.POLICY_SHOW: _ANY,
    routes.POLICY_SET: _BY_COMMAND,
    routes.POLICY_DELETE: _BY_COMMAND,
    routes.COMMIT: _BY_COMMAND,
    routes.PRODUCER_REGISTER: _BY_COMMAND,
    routes.PRODUCER_SHOW: Rule(QUERY, STREAM, DESCRIBE, NotFound()),
    routes.PRODUCER_FORGET: _BY_COMMAND,
    routes.PRODUCER_CLAIM: _BY_COMMAND,
    routes.PRODUCER_RETIRE: _BY_COMMAND,
    routes.PRODUCER_EXPLAIN: Rule(QUERY, STREAM, DESCRIBE, NotFound()),
    routes.TXN_LIST: _ANY,
    routes.TXN_BEGIN: _BY_COMMAND,
    routes.TXN_SHOW: Rule(OWNED, TRANSACTION, DESCRIBE, UnknownTransaction()),
    routes.TXN_ADD_STREAMS: _BY_COMMAND,
    routes.TXN_ADD_OFFSETS: _BY_COMMAND,
    routes.TXN_PREPARE: _BY_COMMAND,
    routes.TXN_COMMIT: _BY_COMMAND,
    routes.TXN_ABORT: _BY_COMMAND,
    routes.TXN_FENCE: _BY_COMMAND,
    routes.GROUP_LIST: _ANY,
    routes.GROUP_DESCRIBE: Rule(ADDRESS, GROUP, READ, UnknownGroup()),
    routes.GROUP_DELETE: Rule(ADDRESS, GROUP, DELETE, UnknownGroup()),
    routes.MEMBER_JOIN: Rule(ADDRESS, GROUP, WRITE),
    routes.MEMBER_BEAT: Rule(ADDRESS, GROUP, WRITE),
    routes.MEMBER_LEAVE: Rule(ADDRESS, GROUP, WRITE),
    routes.GROUP_SHOW: Rule(ADDRESS, GROUP, READ),
    routes.GROUP_MOVE: Rule(ADDRESS, GROUP, WRITE),
    routes.SNAPSHOT_SHOW: Rule(ADDRESS, GROUP, READ),
    routes.SNAPSHOT_PIN: Rule(ADDRESS, GROUP, WRITE),
    routes.SINK_LIST: _ANY,
    routes.SINK_SHOW: Rule(OWNED, SINK, DESCRIBE, UnknownSink()),
    routes.SINK_FORGET: _BY_COMMAND,
    routes.SINK_REBIND: _BY_COMMAND,
    routes.TOKEN_LIST: _ANY,
    routes.TOKEN_CREATE: _BY_COMMAND,
    routes.TOKEN_SHOW: _ANY,
    routes.TOKEN_REVOKE: _BY_COMMAND,
    routes.OWNER_CHANGE: _BY_COMMAND,
    routes.WHOAMI: _ANY,
    routes.SUBSCRIPTION_LIST: _ANY,
    routes.SUBSCRIPTION_SHOW: Rule(OWNED, SUBSCRIPTION, DESCRIBE, UnknownSubscription()),
    routes.SUBSCRIPTION_CREATE: Rule(ADDRESS, SUBSCRIPTION, CREATE),
    routes.SUBSCRIPTION_DELETE: Rule(ADDRESS, SUBSCRIPTION, DELETE),
    routes.SUBSCRIPTION_LINK: _subscription(WRITE),
    routes.SUBSCRIPTION_UNLINK: _subscription(WRITE),
    routes.SUBSCRIPTION_CALLBACK: Rule(OPEN),
    routes.SUBSCRIPTION_CLAIM: _subscription(WRITE),
    routes.SUBSCRIPTION_ACK: Rule(OPEN),
    routes.SUBSCRIPTION_RELEASE: Rule(OPEN),
    routes.SUBSCRIPTION_RESUME: _subscription(WRITE),
    routes.WEBHOOK_KEYS: Rule(OPEN),
}


def is_open(match: RouteMatch) -> bool:
    """Return True if a route needs no token."""
    rule = GATE.get(match.route)
    return rule is not None and rule.source == OPEN


def need_of(
    match: RouteMatch, query: str, is_topic: Callable[[str], bool] = lambda _path: False
) -> Need | None:
    """Return the right that the address of a request needs, or None if a valid token is enough.

    None does not mean that the request is allowed: the command can need rights. A route without a
    row needs `admin` on the cluster. `is_topic` returns True for the names of topics, because a
    query can name a topic instead of a stream. Raises MalformedRequest if the query is invalid.
    """
    rule = GATE.get(match.route)
    if rule is None:
        return Need(CLUSTER, "", ADMIN)
    if rule.source in (OPEN, VALID, COMMAND):
        return None
    name = "" if rule.kind == CLUSTER else match.name
    if rule.source == QUERY:
        stream = parse_query(query, ("stream",)).get("stream")
        if stream is None:
            return None  # the response shows only what the caller may describe, or is a 400
        return Need(TOPIC if is_topic(stream) else rule.kind, stream, rule.right)
    if match.route == routes.STREAM_APPEND and name.endswith(ASSIGN_SUFFIX):
        return None  # it can be a request for a producer id; the command is checked
    return Need(rule.kind, name, rule.right)


def refuse_route(
    match: RouteMatch,
    query: str,
    caller: Caller,
    owns: Callable[[Caller, str, str], bool] = lambda _caller, _kind, _name: False,
    is_topic: Callable[[str], bool] = lambda _path: False,
) -> Refusal | None:
    """Return the refusal of a request because of its address, or None. Raises MalformedRequest.

    `owns` returns True if the caller owns the thing of a kind and a name. `is_topic` is as in
    `need_of`.
    """
    need = need_of(match, query, is_topic)
    if need is None or caller.may(need.kind, need.name, need.right):
        return None
    rule = GATE.get(match.route)
    if rule is not None:
        if rule.source == OWNED and owns(caller, need.kind, need.name):
            return None
        if rule.hidden is not None and not caller.may(need.kind, need.name, DESCRIBE):
            return rule.hidden
    return Forbidden(need.right, need.kind, need.name)
