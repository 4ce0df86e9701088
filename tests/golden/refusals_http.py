"""Provokes the refusals of requests that are invalid in any state of the streams.

These scripts run after those of refusals.py, which create the streams.
"""

from typing import Any, Final

from tests.golden.plain import NUMBER_MAX, Scripts, append, create, dense, offset, post
from tests.golden.recorder import Sender

script: Final = Scripts()
_LONG: Final = "x" * 300


# ---- the request ---------------------------------------------------------------------------------


@script
def invalid_path(ask: Sender) -> None:
    for path in ("", "a//b", "a/../b", "a%2Fb", "a%", "%FF", "%00", "a" * 513, "a/" * 16 + "a"):
        ask("GET", f"/v1/stream/{path}")
    ask("GET", "/v1/transactions/%")
    ask("GET", "/v1/groups/%FF/offsets")
    ask("GET", "/v1/sinks/%FF")


@script
def reserved_path(ask: Sender) -> None:
    ask("GET", "/v1/stream/%5F_ds/anything")
    ask("GET", "/v1/topics/__ds")


@script
def no_such_address(ask: Sender) -> None:
    for target in ("/", "/v2/streams", "/v1/transactions/t/undo", "/v1/groups/g", "/v1/sinks/a/b"):
        ask("GET", target)
    for target in ("/v1/groups/g/offsets/x", "/v1/commits/x"):
        post(ask, target)


@script
def method_not_allowed(ask: Sender) -> None:
    for method, target in (
        ("TRACE", "/v1/stream/texts"),
        ("POST", "/health"),
        ("PUT", "/v1/streams"),
        ("PUT", "/v1/producers"),
        ("GET", "/v1/producers/claim"),
        ("POST", "/v1/producers/explain"),
        ("DELETE", "/v1/transactions"),
        ("PUT", "/v1/transactions/t"),
        ("GET", "/v1/transactions/t/commit"),
        ("GET", "/v1/commits"),
        ("DELETE", "/v1/groups/g/offsets"),
        ("DELETE", "/v1/groups/g/snapshot"),
        ("POST", "/v1/sinks"),
        ("PUT", "/v1/sinks/app"),
        ("GET", "/v1/sinks/app/rebind"),
    ):
        ask(method, target)


@script
def invalid_query(ask: Sender) -> None:
    for target in (
        "/v1/stream/texts?offset=-1&isolation=some",
        "/v1/stream/texts?offset=-1&offset=-1",
        "/v1/streams?limit=0",
        "/v1/streams?limit=1001",
        "/v1/producers",
        "/v1/producers?stream=texts&limit=x",
        "/v1/producers/explain?stream=texts&id=p",
        "/v1/producers/explain?stream=texts&id=p&seq=0&mode=odd",
        "/v1/transactions?state=odd",
        "/v1/transactions?after=x",
        "/v1/transactions/t?epoch=x",
        "/v1/groups/g/offsets?stable=maybe",
        "/v1/groups/g/offsets?stream=a&stream=b",
    ):
        ask("GET", target)
    ask("DELETE", "/v1/producers?stream=texts")


@script
def invalid_offset(ask: Sender) -> None:
    for text in ("x", "5", "", "-2", "%FF", "0_0"):
        ask("GET", f"/v1/stream/texts?offset={text}")
    ask("DELETE", "/v1/stream/texts?before=x")


@script
def offset_required(ask: Sender) -> None:
    ask("GET", "/v1/stream/texts?live=long-poll")
    ask("GET", "/v1/stream/texts?live=sse")


_WRONG_TO_CREATE: Final[tuple[dict[str, Any], ...]] = (
    {"content_type": "nonsense"},
    {"content_type": "application/vnd.semel.batch"},
    {"stream_ttl": "01"},
    {"stream_ttl": "-1"},
    {"stream_expires_at": "tomorrow"},
    {"stream_expires_at": "2023-02-30T00:00:00Z"},
    {"stream_dedup": "maybe"},
    {"stream_fork_offset": offset(0)},
    {"stream_fork_sub_offset": "1"},
    {"stream_forked_from": "elsewhere"},
    {"stream_forked_from": "/v1/stream/texts", "stream_fork_offset": "x"},
    {"stream_forked_from": "/v1/stream/texts", "stream_fork_sub_offset": "x"},
)
_WRONG_TO_APPEND: Final[tuple[dict[str, Any], ...]] = (
    {**dense("p", 0, 0), "producer_epoch": "x"},
    {**dense("p", 0, 0), "producer_seq": NUMBER_MAX + 1},
    {**dense("p", 0, 0), "producer_id": ""},
    {**dense("p", 0, 0), "producer_id": _LONG},
    {**dense("p", 0, 0), "producer_id": "\xe4"},
    {**dense("p", 0, 0), "producer_mode": "odd"},
    {**dense("p", 0, 0), "producer_session": _LONG},
    {**dense("p", 0, 0), "producer_cursor": "x" * 1025},
    {"producer_id": "p", "producer_mode": "sparse", "producer_seq": "5-3"},
    {"stream_seq": _LONG},
    {"if_match": "x"},
    {"idempotency_key": _LONG},
    {"transaction_id": _LONG, "transaction_epoch": 1},
    {"transaction_id": "t", "transaction_epoch": "x"},
    {"content_type": "nonsense"},
)
_INCOMPLETE: Final[tuple[dict[str, Any], ...]] = (
    {"producer_id": "p"},
    {"producer_id": "p", "producer_seq": 0},
    {"producer_epoch": 0, "producer_seq": 0},
    {"producer_cursor": "c"},
    {"x_producer_id": "p"},
    {"x_producer_seq": 0, "x_producer_id": "p", "producer_id": "p"},
    {**dense("p", 0, 0), "idempotency_key": "k"},
    {"transaction_id": "t"},
    {"transaction_seq": 0},
)


@script
def invalid_header(ask: Sender) -> None:
    for headers in _WRONG_TO_CREATE:
        create(ask, "wrong", **headers)
    for headers in _WRONG_TO_APPEND:
        append(ask, "texts", **headers)
    lines = ["Content-Type: text/plain", "Stream-Seq: 1", "Stream-Seq: 2"]
    ask("POST", "/v1/stream/texts", b"x", lines)
    ask("PATCH", "/v1/stream/texts")
    ask("GET", "/v1/producers/explain?stream=texts&id=p&seq=x")
    post(ask, "/v1/producers", producer_id="")
    post(ask, "/v1/producers/claim", stream="texts", producer_id="p", session="\xe4")


@script
def headers_that_do_not_go_together(ask: Sender) -> None:
    create(ask, "wrong", stream_ttl=1, stream_expires_at="2100-01-01T00:00:00Z")
    for headers in _INCOMPLETE:
        append(ask, "texts", **headers)


@script
def bodies_that_are_missing(ask: Sender) -> None:
    ask("POST", "/v1/stream/texts", b"", {"Content-Type": "text/plain"})
    ask("POST", "/v1/stream/texts", b"x")


@script
def unsupported_encoding(ask: Sender) -> None:
    gzip = {"Content-Encoding": "gzip", "Content-Type": "text/plain"}
    ask("POST", "/v1/stream/texts", b"x", gzip)
    ask("PUT", "/v1/stream/packed", b"x", gzip)
    for target in ("producers", "producers/claim", "transactions", "commits", "groups/g/offsets"):
        ask("POST", f"/v1/{target}", b"{}", gzip)


@script
def unsupported_media_type(ask: Sender) -> None:
    for target in ("producers", "producers/claim", "transactions", "commits", "groups/g/offsets"):
        ask("POST", f"/v1/{target}", b"{}", {"Content-Type": "text/plain"})
    ask("POST", "/v1/producers", b"{}")


# ---- web browsers --------------------------------------------------------------------------------


@script
def origin_not_allowed(ask: Sender) -> None:
    for origin in ("https://site.example", "null"):
        append(ask, "texts", origin=origin)
        ask("DELETE", "/v1/stream/texts", headers={"Origin": origin})
    ask("GET", "/v1/stream/texts", headers={"Sec-Fetch-Site": "cross-site"})
    ask("HEAD", "/v1/stream/texts", headers={"Sec-Fetch-Site": "same-site"})
    ask("OPTIONS", "/v1/stream/texts", headers={"Origin": "https://site.example"})
    ask("GET", "/v1/streams?limit=1&prefix=none", headers={"Origin": "https://site.example"})


@script
def host_not_allowed(ask: Sender) -> None:
    for target in ("/v1/streams", "/health"):
        ask.send_raw(f"GET {target} HTTP/1.1\r\nHost: site.example\r\n\r\n".encode())


# ---- HTTP itself ---------------------------------------------------------------------------------


@script
def malformed_request(ask: Sender) -> None:
    for head in (
        b"GET /\r\n\r\n",
        b"GET  / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a b\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nno colon\r\n\r\n",
        b"GET / HTTP/1.1\nHost: a\n\n",
        b"GET a HTTP/1.1\r\nHost: a\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n",
    ):
        ask.send_raw(head)


@script
def requests_that_are_too_large(ask: Sender) -> None:
    ask.send_raw(b"GET /%b HTTP/1.1\r\nHost: a\r\n\r\n" % (b"x" * 8192))
    ask.send_raw(b"GET / HTTP/1.1\r\nHost: a\r\nX: %b\r\n\r\n" % (b"x" * 8192))
    ask.send_raw(b"GET / HTTP/1.1\r\nHost: a\r\n%b\r\n" % (b"X: y\r\n" * 100))
    head = b"POST /v1/stream/texts HTTP/1.1\r\nHost: a\r\nContent-Type: text/plain\r\n"
    ask.send_raw(head + b"Content-Length: 4194305\r\n\r\n")
    ask.send_raw(head + b"Transfer-Encoding: chunked\r\n\r\n400001\r\n")


@script
def expectation_failed(ask: Sender) -> None:
    ask("POST", "/v1/stream/texts", b"x", {"Expect": "200-ok", "Content-Type": "text/plain"})


@script
def version_not_supported(ask: Sender) -> None:
    ask.send_raw(b"GET / HTTP/2.0\r\nHost: a\r\n\r\n")
    ask.send_raw(b"GET /v1/stream/nowhere HTTP/1.0\r\n\r\n")
    ask("GET", "/v1/stream/nowhere", headers={"Connection": "close"})


@script
def access_that_is_off(ask: Sender) -> None:
    document = {"Content-Type": "application/json"}
    ask("GET", "/v1/whoami")
    ask("GET", "/v1/tokens")
    ask("GET", "/v1/tokens/AbCdEfGhIjKl")
    ask("POST", "/v1/tokens", b'{"scopes": ["cluster:admin"], "principal": "p"}', document)
    ask("DELETE", "/v1/tokens/AbCdEfGhIjKl")
    ask("POST", "/v1/owners", b'{"kind": "sink", "name": "nothing", "owner": "p"}', document)
    ask("PUT", "/v1/stream/__semel/mine", headers={"Content-Type": "text/plain"})
