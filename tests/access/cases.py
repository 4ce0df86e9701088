"""One request for each address of the server, and the rights that it needs.

The rights are written from the tables in `docs/reference/access.md`, and not from the code.
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgspec

from tests.access.rig import id_of, request_bytes
from tests.access.world import SECRET, SUBSCRIPTIONS, World


class Need(NamedTuple):
    """A right that a request needs. `hides` if the absence of the thing is answered with 404."""

    kind: str
    right: str
    hides: bool = False
    name: str = ""  # that of the world, if it is empty
    of_workers: bool = False  # who may write as a group has it, too


class Own(NamedTuple):
    """A thing that must be the caller's. `in_stream`: it is a producer in the stream."""

    kind: str
    hides: bool = False
    in_stream: bool = False


class Call(NamedTuple):
    """A request, without a token."""

    method: str
    target: str
    document: Any = None
    headers: tuple[tuple[str, str], ...] = ()

    def data(self, token: str | None = None) -> bytes:
        """Return the bytes of the request."""
        headers = [*self.headers]
        if token is not None:
            headers.append(("Authorization", f"Bearer {token}"))
        if self.document is not None:
            headers.append(("Content-Type", "application/json"))
        body = b"" if self.document is None else msgspec.json.encode(self.document)
        return request_bytes(self.method, self.target, headers, body)


class Case(NamedTuple):
    """A request of one route, and what it needs.

    `shows` is a text that the response contains only if the needs are met: such a request is never
    refused. `is_any` if one of the needs is enough. `changes` if the world must be built again
    after the request.
    """

    label: str
    route: str
    needs: tuple[Need | Own, ...]
    call: Callable[[World], Call]
    shows: str = ""
    is_any: bool = False
    changes: bool = False


def need(text: str, hides: str = "") -> Need:
    """Return the need `kind:right`. With `hides`, the thing is hidden from others."""
    kind, _, right = text.partition(":")
    return Need(kind, right, bool(hides))


HIDES: Final = "hides"
READ: Final = need("stream:read", HIDES)
WRITE: Final = need("stream:write", HIDES)
DESCRIBE: Final = need("stream:describe", HIDES)
GROUP_WRITE: Final = need("group:write")
IDEMPOTENT: Final = Need("cluster", "IdempotentWrite")
WORKER: Final = Need("cluster", "IdempotentWrite", of_workers=True)
TRANSACTIONAL: Final = Need("cluster", "TransactionalWrite")
PRODUCER: Final = Own("producer", in_stream=True)
REGISTRATION: Final = Own("producer")
TXN: Final = Own("transaction", hides=True)
SINK: Final = Own("sink")


def _stream(method: str, query: str = "", *headers: tuple[str, str]) -> Callable[[World], Call]:
    return lambda w: Call(method, f"/v1/stream/{w.name}{query}", None, headers)


def _append(*headers: str) -> Callable[[World], Call]:
    def call(w: World) -> Call:
        sent = dict(w.producer_headers) if "producer" in headers else {}
        if "transaction" in headers:
            sent["Producer-Seq"] = "1"
            sent |= {"Transaction-Id": w.name, "Transaction-Epoch": str(w.txn_epoch)}
        return Call("POST", f"/v1/stream/{w.name}", {"secret": SECRET}, tuple(sent.items()))

    return call


def _post(target: str, document: Callable[[World], Any]) -> Callable[[World], Call]:
    return lambda w: Call("POST", target.replace("{name}", w.name), document(w))


def _txn(action: str, **more: Any) -> Callable[[World], Call]:
    return _post(f"/v1/transactions/{{name}}/{action}", lambda w: {**w.txn_tag, **more})


def _operator(action: str) -> Callable[[World], Call]:
    return _post(
        f"/v1/transactions/{{name}}/{action}",
        lambda w: {"transaction_epoch": w.txn_epoch, "operator": True},
    )


def _get(target: str) -> Callable[[World], Call]:
    return lambda w: Call("GET", target.replace("{name}", w.name))


def _commit(document: Callable[[World], dict[str, Any]]) -> Callable[[World], Call]:
    return _post("/v1/commits", lambda w: {**w.tag, "producer_seq": 0, **document(w)})


def _owner(kind: str, *, in_stream: bool = False) -> Callable[[World], Call]:
    def document(w: World) -> Any:
        stream = {"stream": w.name} if in_stream else {}
        return {"kind": kind, "name": w.name, "owner": w.owner, **stream}

    return _post("/v1/owners", document)


def _begin(**more: Any) -> Callable[[World], Call]:
    def document(w: World) -> Any:
        return {"transaction_id": w.name, **w.tag, "streams": [w.name], **more}

    return _post("/v1/transactions", document)


def _begin_staged(w: World) -> Call:
    sink = {"app": w.name, "version": w.version + 1, "partition": 0}
    document = {"transaction_id": w.name, "kind": "staged", "sink": sink}
    return Call("POST", "/v1/transactions", document)


def _retire(*, in_stream: bool) -> Callable[[World], Call]:
    def document(w: World) -> Any:
        return {"producers": [{**w.tag, "stream": w.name if in_stream else None}]}

    return _post("/v1/producers/retire", document)


def _token(method: str) -> Callable[[World], Call]:
    return lambda w: Call(method, f"/v1/tokens/{id_of(w.victim)}")


def _pin(w: World) -> Call:
    document = {"number": w.step, "ranges": {}, "hash": f"h-{SECRET}"}
    return Call("POST", f"/v1/groups/{w.name}/snapshot", document)


_EXPLAIN: Final = "/v1/producers/explain?stream={name}&id={name}&seq=1&epoch=0"
_POLICY: Final = "/v1/policies?prefix={name}"
_CLAIM: Final = "/v1/producers/claim"
_REBIND: Final = "/v1/sinks/{name}/rebind"
_FORGET: Final = "/v1/producers?stream={name}&id={name}"
_MOVES: Final = (GROUP_WRITE, READ)
_TOPIC: Final = "{name}-topic"
_SHARED: Final = "{name}-members"
_MEMBERSHIP: Final = Need("group", "write", name=_SHARED)


def _topic_need(right: str, *, hides: bool = True) -> Need:
    return Need("topic", right, hides, _TOPIC)


def _topic(method: str, document: Any = None, *headers: str) -> Callable[[World], Call]:
    def call(w: World) -> Call:
        sent = tuple(w.producer_headers.items()) if "producer" in headers else ()
        return Call(method, f"/v1/topics/{w.name}-topic", document, sent)

    return call


def _member(method: str, document: Any = None) -> Callable[[World], Call]:
    return lambda w: Call(method, f"/v1/groups/{w.name}-members/members/{w.member}", document)


_SUBSCRIPTION_WRITE: Final = need("subscription:write", HIDES)
_SUBSCRIPTION: Final = Own("subscription")
_WAKE: Final = {"wake_id": "w", "generation": 0}


def _subscription(method: str, rest: str = "", document: Any = None) -> Callable[[World], Call]:
    return lambda w: Call(method, f"{SUBSCRIPTIONS}/{w.name}{rest}", document)


def _offsets(w: World) -> dict[str, Any]:
    return {w.name: {w.name: 0}}


CASES: Final = (
    Case("read", "stream_read", (READ,), _stream("GET", "?offset=-1")),
    Case("long-poll", "stream_read", (READ,), _stream("GET", "?offset=-1&live=long-poll")),
    Case("append", "stream_append", (WRITE,), _append()),
    Case("append of a producer", "stream_append", (WRITE, IDEMPOTENT, PRODUCER, REGISTRATION),
         _append("producer")),
    Case("append in a transaction", "stream_append",
         (WRITE, IDEMPOTENT, TXN, PRODUCER, REGISTRATION), _append("producer", "transaction"),
         changes=True),
    Case("create", "stream_create", (need("stream:create"),),
         _stream("PUT", "", ("Content-Type", "application/json"))),
    Case("create with messages", "stream_create", (need("stream:create"), need("stream:write")),
         lambda w: Call("PUT", f"/v1/stream/{w.name}", [{"secret": SECRET}])),
    Case("create a fork", "stream_create", (Need("stream", "create", name="{name}-fork"), READ),
         lambda w: Call("PUT", f"/v1/stream/{w.name}-fork", None,
                        (("Stream-Forked-From", f"/v1/stream/{w.name}"),)), changes=True),
    Case("change", "stream_change", (need("stream:admin", HIDES),),
         _stream("PATCH", "", ("Stream-Dedup", "on"))),
    Case("trim", "stream_delete", (need("stream:delete", HIDES),), _stream("DELETE", "?before=0")),
    Case("delete", "stream_delete", (need("stream:delete", HIDES),), _stream("DELETE"),
         changes=True),
    Case("head", "stream_head", (DESCRIBE,), _stream("HEAD")),
    Case("list streams", "stream_list", (DESCRIBE,), _get("/v1/streams?prefix={name}"),
         shows='"path":"{name}"'),
    Case("append to a topic", "topic_append", (_topic_need("write"),),
         _topic("POST", {"secret": SECRET})),
    Case("append of a producer to a topic", "topic_append",
         (_topic_need("write"), IDEMPOTENT, REGISTRATION, Own("producer")),
         _topic("POST", {"secret": SECRET}, "producer"), changes=True),
    Case("create a topic", "topic_create", (_topic_need("create", hides=False),),
         _topic("PUT", {"partitions": 1})),
    Case("show a topic", "topic_show", (_topic_need("describe"),), _topic("GET")),
    Case("grow a topic", "topic_change", (_topic_need("admin"),),
         _topic("PATCH", {"partitions": 2}), changes=True),
    Case("close a topic", "topic_change", (_topic_need("delete"),),
         _topic("PATCH", {"closed": True}), changes=True),
    Case("delete a topic", "topic_delete", (_topic_need("delete"),), _topic("DELETE"),
         changes=True),
    Case("list topics", "topic_list", (_topic_need("describe"),),
         _get("/v1/topics?prefix={name}"), shows='"topic":"{name}-topic"'),
    Case("show producers of a topic", "producer_show", (_topic_need("describe"),),
         _get("/v1/producers?stream={name}-topic")),
    Case("metrics", "metrics", (need("cluster:describe"),), _get("/metrics")),
    Case("list policies", "policy_show", (need("policy:describe"),), _get("/v1/policies"),
         shows='"prefix":"{name}"'),
    Case("show a policy", "policy_show", (need("policy:describe", HIDES),), _get(_POLICY)),
    Case("set a policy", "policy_set", (need("policy:write"),),
         lambda w: Call("PUT", f"/v1/policies?prefix={w.name}", {"dedup": "on"})),
    Case("delete a policy", "policy_delete", (need("policy:delete", HIDES),),
         lambda w: Call("DELETE", f"/v1/policies?prefix={w.name}"), changes=True),
    Case("commit appends", "commit", (WORKER, WRITE, REGISTRATION),
         _commit(lambda w: {"appends": [{"stream": w.name, "messages": [1]}]})),
    Case("commit positions", "commit", (WORKER, READ, GROUP_WRITE, REGISTRATION),
         _commit(lambda w: {"offsets": _offsets(w)}), changes=True),
    Case("commit with conditions", "commit", (WORKER, WRITE, DESCRIBE, REGISTRATION),
         _commit(lambda w: {"appends": [{"stream": w.name, "messages": [1]}],
                            "if": {w.name: 1_000}})),
    Case("commit with an ack of a wake", "commit",
         (WORKER, WRITE, REGISTRATION, _SUBSCRIPTION_WRITE, _SUBSCRIPTION),
         _commit(lambda w: {"appends": [{"stream": w.name, "messages": [1]}],
                            "subscriptions": {w.name: _WAKE}})),
    Case("commit of a sink", "commit", (IDEMPOTENT, SINK),
         _post("/v1/commits", lambda w: {"sink": w.sink_tag(w.version)})),
    Case("commit with a transaction", "commit", (IDEMPOTENT, SINK, TXN),
         _post("/v1/commits", lambda w: {"sink": w.sink_tag(w.version + 1),
                                         "transactions": [{"id": w.name, "epoch": w.txn_epoch}]})),
    Case("register", "producer_register", (IDEMPOTENT, REGISTRATION),
         _post("/v1/producers", lambda w: {"producer_id": w.name}), changes=True),
    Case("register without a name", "producer_register", (WORKER,),
         _post("/v1/producers", lambda _: {})),
    Case("show producers", "producer_show", (DESCRIBE,), _get("/v1/producers?stream={name}")),
    Case("show a registration", "producer_show", (Own("producer"), need("producer:describe")),
         _get("/v1/producers?id={name}"), shows='"producer_id":"{name}"', is_any=True),
    Case("forget a producer", "producer_forget", (DESCRIBE, PRODUCER),
         lambda w: Call("DELETE", _FORGET.replace("{name}", w.name)), changes=True),
    Case("claim", "producer_claim", (WRITE, IDEMPOTENT, PRODUCER, REGISTRATION),
         _post(_CLAIM, lambda w: {"stream": w.name, "producer_id": w.name,
                                  "session": f"s{w.step}"}),
         changes=True),
    Case("retire a producer", "producer_retire", (DESCRIBE, PRODUCER), _retire(in_stream=True),
         changes=True),
    Case("retire a registration", "producer_retire", (REGISTRATION,), _retire(in_stream=False),
         changes=True),
    Case("explain", "producer_explain", (DESCRIBE,), _get(_EXPLAIN)),
    Case("list transactions", "txn_list", (Own("transaction"), need("transaction:describe")),
         _get("/v1/transactions"), shows='"transaction_id":"{name}"', is_any=True),
    Case("begin", "txn_begin", (IDEMPOTENT, WRITE, Own("transaction"), REGISTRATION), _begin(),
         changes=True),
    Case("begin for a sink", "txn_begin", (IDEMPOTENT, Own("transaction"), SINK), _begin_staged),
    Case("show a transaction", "txn_show", (need("transaction:describe", HIDES), TXN),
         _get("/v1/transactions/{name}"), is_any=True),
    Case("add streams", "txn_add_streams", (IDEMPOTENT, WRITE, TXN),
         lambda w: _txn("streams", streams=[w.name])(w)),
    Case("add positions", "txn_add_offsets", (IDEMPOTENT, *_MOVES, TXN),
         lambda w: _txn("offsets", group=w.name, offsets={w.name: 0})(w)),
    Case("prepare", "txn_prepare", (IDEMPOTENT, TRANSACTIONAL, TXN), _txn("prepare")),
    Case("commit", "txn_commit", (IDEMPOTENT, TXN), _txn("commit"), changes=True),
    Case("abort", "txn_abort", (IDEMPOTENT, TXN), _txn("abort"), changes=True),
    Case("commit as operator", "txn_commit", (need("transaction:admin", HIDES),),
         _operator("commit"), changes=True),
    Case("abort as operator", "txn_abort", (need("transaction:admin", HIDES),),
         _operator("abort"), changes=True),
    Case("fence as operator", "txn_fence", (need("transaction:admin", HIDES),),
         _operator("fence"), changes=True),
    Case("list groups", "group_list", (need("group:describe"),),
         _get("/v1/groups?prefix={name}"), shows='"group":"{name}"'),
    Case("describe a group", "group_describe", (need("group:read", HIDES),),
         _get("/v1/groups/{name}")),
    Case("delete a group", "group_delete", (need("group:delete", HIDES),),
         lambda w: Call("DELETE", f"/v1/groups/{w.name}"), changes=True),
    Case("join a group", "member_join", (_MEMBERSHIP, READ),
         _post("/v1/groups/{name}-members/members",
               lambda w: {"streams": [w.name], "instance": "i"}), changes=True),
    Case("send a heartbeat", "member_beat", (_MEMBERSHIP,), _member("POST", {})),
    Case("release a stream", "member_beat", (_MEMBERSHIP,), _member("POST", {"released": ["x"]})),
    Case("leave a group", "member_leave", (_MEMBERSHIP,), _member("DELETE"), changes=True),
    Case("move positions as operator", "group_move", (GROUP_WRITE, READ, need("group:admin")),
         _post("/v1/groups/{name}/offsets", lambda w: {"offsets": {w.name: 0}, "operator": True})),
    Case("show positions", "group_show", (need("group:read"),), _get("/v1/groups/{name}/offsets")),
    Case("move positions", "group_move", _MOVES,
         _post("/v1/groups/{name}/offsets", lambda w: {"offsets": {w.name: 0}})),
    Case("show a snapshot", "snapshot_show", (need("group:read"),),
         _get("/v1/groups/{name}/snapshot")),
    Case("pin a snapshot", "snapshot_pin", (GROUP_WRITE,), _pin),
    Case("list sinks", "sink_list", (SINK, need("sink:describe")), _get("/v1/sinks"),
         shows='"app":"{name}"', is_any=True),
    Case("show a sink", "sink_show", (need("sink:describe", HIDES), Own("sink", hides=True)),
         _get("/v1/sinks/{name}"), is_any=True),
    Case("forget a sink", "sink_forget", (Own("sink", hides=True),),
         lambda w: Call("DELETE", f"/v1/sinks/{w.name}"), changes=True),
    Case("rebind a sink", "sink_rebind", (Own("sink", hides=True),),
         _post(_REBIND, lambda w: {"query_id": f"Q-{SECRET}", "last_version": w.version})),
    Case("make a token", "token_create", (need("stream:describe"),),
         _post("/v1/tokens", lambda w: {"scopes": [f"stream:{w.name}:describe"]})),
    Case("change the owner of a sink", "owner_change", (Own("sink", hides=True),), _owner("sink")),
    Case("change the owner of a transaction", "owner_change", (TXN,), _owner("transaction")),
    Case("change the owner of a registration", "owner_change", (Own("producer", hides=True),),
         _owner("producer")),
    Case("change the owner of a producer", "owner_change", (DESCRIBE, PRODUCER),
         _owner("producer", in_stream=True)),
    Case("change the owner of a subscription", "owner_change", (Own("subscription", hides=True),),
         _owner("subscription")),
    Case("list subscriptions", "subscription_list",
         (_SUBSCRIPTION, need("subscription:describe")),
         lambda w: Call("GET", f"{SUBSCRIPTIONS}?prefix={w.name}"),
         shows='"id":"{name}"', is_any=True),
    Case("show a subscription", "subscription_show",
         (need("subscription:describe", HIDES), Own("subscription", hides=True)),
         _subscription("GET"), is_any=True),
    Case("create a subscription", "subscription_create",
         (need("subscription:create"), _SUBSCRIPTION, need("stream:read"),
          Need("stream", "write", hides=True, name="{name}-wakes")),
         lambda w: _subscription("PUT", "", w.subscription)(w)),
    Case("delete a subscription", "subscription_delete",
         (need("subscription:delete"), _SUBSCRIPTION), _subscription("DELETE"), changes=True),
    Case("link streams", "subscription_link",
         (_SUBSCRIPTION_WRITE, _SUBSCRIPTION, need("stream:read")),
         lambda w: _subscription("POST", "/streams", {"streams": [w.name]})(w)),
    Case("unlink a stream", "subscription_unlink", (_SUBSCRIPTION_WRITE, _SUBSCRIPTION),
         _subscription("DELETE", "/streams/elsewhere")),
    Case("claim a wake", "subscription_claim", (_SUBSCRIPTION_WRITE, _SUBSCRIPTION),
         _subscription("POST", "/claim", {"worker": "w"})),
    Case("resume a subscription", "subscription_resume", (_SUBSCRIPTION_WRITE, _SUBSCRIPTION),
         _subscription("POST", "/resume")),
    # A token of semel permits none of these.
    Case("call back", "subscription_callback", (), _subscription("POST", "/callback", _WAKE)),
    Case("ack a wake", "subscription_ack", (), _subscription("POST", "/ack", _WAKE)),
    Case("release a wake", "subscription_release", (), _subscription("POST", "/release", _WAKE)),
    Case("keys of webhooks", "webhook_keys", (),
         lambda _: Call("GET", "/v1/stream/__ds/jwks.json")),
    Case("list tokens", "token_list", (), _get("/v1/tokens")),
    Case("show a token", "token_show", (), _token("GET")),
    Case("revoke a token", "token_revoke", (), _token("DELETE"), changes=True),
    Case("who am I", "whoami", (), _get("/v1/whoami")),
    Case("health", "health", (), _get("/health")),
)  # fmt: skip
