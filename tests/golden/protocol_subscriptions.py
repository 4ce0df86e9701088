"""The calls on subscriptions and their wakes, by plain HTTP.

No stream of a webhook has anything to process, so that nothing is delivered.
"""

import json
from typing import Any, Final

from tests.golden.exchanges import Response
from tests.golden.plain import Scripts, append, begin, call, commit, create, offset
from tests.golden.recorder import Sender

script: Final = Scripts()
CONTROL: Final = "/v1/stream/__ds"
JSON: Final = "application/json"
HOOK: Final = {
    "type": "webhook",
    "pattern": "never/*",
    "streams": ["unwritten"],
    "webhook": {"url": "https://example.com/hook"},
}
PULL: Final = {
    "type": "pull-wake",
    "pattern": "orders/**",
    "streams": ["in", "later"],
    "wake_stream": "wakes",
    "lease_ttl_ms": 600_000,
    "description": "bills what was ordered",
}


def control(
    ask: Sender, method: str, target: str, document: Any = None, token: str | None = None
) -> Response:
    """Send a request below the control prefix."""
    headers = {} if document is None else {"Content-Type": JSON}
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    return ask(method, f"{CONTROL}/{target}", document, headers)


def subscribe(ask: Sender, name: str, document: Any = PULL, **changes: Any) -> Response:
    return control(ask, "PUT", f"subscriptions/{name}", {**document, **changes})


def wake_of(response: Response) -> tuple[dict[str, Any], str]:
    """Return the wake that was claimed, as requests name it, and its token."""
    claimed = json.loads(response.body)
    wake = {"wake_id": claimed["wake_id"], "generation": claimed["generation"]}
    return wake, claimed["token"]


def claim(ask: Sender, name: str = "billing", worker: str = "w-1") -> Response:
    return control(ask, "POST", f"subscriptions/{name}/claim", {"worker": worker})


# ---- subscriptions -------------------------------------------------------------------------------


@script
def subscriptions_are_created_and_shown(ask: Sender) -> None:
    create(ask, "in", JSON, b"[1]")
    create(ask, "orders/eu", JSON, b"[1]")
    create(ask, "wakes", JSON)
    for _ in range(2):
        subscribe(ask, "hook", HOOK)
        subscribe(ask, "billing")
    subscribe(ask, "an%20id%2F%C3%BC", HOOK, lease_ttl_ms=1_000, more="ignored")
    for method in ("GET", "HEAD"):
        control(ask, method, "subscriptions/hook")
        control(ask, method, "subscriptions/billing")
    control(ask, "GET", "subscriptions/billing?streams_limit=1")
    control(ask, "GET", "subscriptions/billing?streams_limit=1&streams_after=1")
    control(ask, "GET", "subscriptions?prefix=b")
    control(ask, "GET", "subscriptions?limit=1&after=an")
    control(ask, "GET", "jwks.json")
    control(ask, "OPTIONS", "subscriptions/hook")


@script
def streams_are_linked(ask: Sender) -> None:
    control(ask, "POST", "subscriptions/billing/streams", {"streams": ["/more/a/", "more/b"]})
    control(ask, "DELETE", "subscriptions/billing/streams/more%2Fb")
    control(ask, "DELETE", "subscriptions/billing/streams/more/b")
    control(ask, "DELETE", "subscriptions/billing/streams/in")
    create(ask, "more/a", JSON)
    control(ask, "GET", "subscriptions/billing")


# ---- wakes ---------------------------------------------------------------------------------------


@script
def wakes_are_claimed_acked_and_released(ask: Sender) -> None:
    claim(ask)
    append(ask, "orders/eu", b"[2,3]", JSON)
    create(ask, "orders/us/1", JSON, b"[1]")
    ask("GET", "/v1/stream/wakes?offset=-1")
    wake, token = wake_of(claim(ask))
    claim(ask, worker="w-2")
    ack = "subscriptions/billing/ack"
    control(ask, "POST", ack, wake, token)
    part = {"stream": "orders/eu", "offset": 2}
    control(ask, "POST", ack, {**wake, "acks": [part], "done": False}, token)
    wrong = [{"stream": "orders/eu", "offset": number} for number in (1, -1, 9)]
    for each in (*wrong, {"path": "nowhere", "offset": offset(1)}):
        control(ask, "POST", ack, {**wake, "acks": [each]}, token)
    control(ask, "GET", "subscriptions/billing")
    newer = [{"stream": "orders/us/1", "offset": 1}]  # than the wake
    control(ask, "POST", ack, {**wake, "acks": newer}, token)
    rest = [{"path": "/orders/eu/", "offset": offset(3)}]
    for _ in range(2):
        control(ask, "POST", ack, {**wake, "acks": rest, "done": True}, token)
    append(ask, "orders/eu", b"[4]", JSON)
    wake, token = wake_of(claim(ask))
    control(ask, "POST", ack, {**wake, "acks": newer}, token)
    control(ask, "POST", "subscriptions/billing/release", wake, token)
    control(ask, "POST", "subscriptions/billing/release", wake, token)
    control(ask, "POST", "subscriptions/billing/resume")


@script
def wakes_are_acked_in_commits(ask: Sender) -> None:
    create(ask, "out", JSON)
    wake, token = wake_of(claim(ask))
    whole = {**wake, "acks": [{"stream": "orders/eu", "offset": 4}], "done": True}
    appends = [{"stream": "out", "messages": ["bill"]}]
    for acks in ({**wake, "acks": [{"stream": "orders/eu", "offset": 9}]}, {**wake, "token": "x"}):
        commit(ask, "biller", 0, appends=appends, subscriptions={"billing": acks})
    for seq in (0, 0, 1):
        acks = {"billing": {**whole, "token": token}}
        commit(ask, "biller", seq, appends=appends, subscriptions=acks)
    commit(ask, "biller", 1, appends=appends, subscriptions={"nobody": whole})
    append(ask, "orders/eu", b"[5]", JSON)
    wake, token = wake_of(claim(ask))
    begin(ask, "bill", "biller", streams=["out"])
    owner: dict[str, Any] = {"producer_id": "biller", "producer_epoch": 0}
    for _ in range(2):
        call(ask, "bill", "commit", **owner, subscriptions={"billing": {**wake, "done": True}})
    control(ask, "GET", "subscriptions/billing")


# ---- refusals ------------------------------------------------------------------------------------


@script
def subscriptions_are_refused(ask: Sender) -> None:
    subscribe(ask, "billing", lease_ttl_ms=1_000)
    subscribe(ask, "x", wake_stream="nowhere")
    subscribe(ask, "x", streams=["__semel/audit"])
    for url in ("http://10.0.0.1/hook", "https://user@example.com/", "file:///etc/passwd", "x"):
        subscribe(ask, "x", HOOK, webhook={"url": url})
    changes: list[dict[str, Any]] = [
        {"type": "push"},
        {"pattern": "a*"},
        {"pattern": None, "streams": []},
        {"streams": ["a//b"]},
        {"streams": [1]},
        {"wake_stream": None},
        {"webhook": {"url": "https://example.com"}},
        {"lease_ttl_ms": 999},
        {"description": "d" * 1_025},
    ]
    for change in changes:
        subscribe(ask, "x", **change)
    control(ask, "PUT", "subscriptions/x", b"{")
    ask("PUT", f"{CONTROL}/subscriptions/x", PULL)
    control(ask, "GET", "subscriptions?limit=0")
    control(ask, "GET", "subscriptions/billing?streams_limit=0")


@script
def unknown_subscriptions_are_refused(ask: Sender) -> None:
    control(ask, "GET", "subscriptions/x")
    control(ask, "HEAD", "subscriptions/x")
    claim(ask, "x")
    control(ask, "POST", "subscriptions/x/resume")
    control(ask, "POST", "subscriptions/x/streams", {"streams": ["a"]})
    control(ask, "DELETE", "subscriptions/x/streams/a")
    control(ask, "POST", "subscriptions/x/ack", {"wake_id": "w", "generation": 1}, "x")
    control(ask, "DELETE", "subscriptions/x")


@script
def calls_on_wakes_are_refused(ask: Sender) -> None:
    append(ask, "orders/eu", b"[6]", JSON)
    wake, token = wake_of(claim(ask))
    for action in ("ack", "release", "callback"):
        target = f"subscriptions/billing/{action}"
        control(ask, "POST", target, wake)
        control(ask, "POST", target, wake, "x")
    control(ask, "POST", "subscriptions/hook/ack", wake, token)
    claim(ask, "hook")
    control(ask, "POST", "subscriptions/billing/claim", {})
    ack = "subscriptions/billing/ack"
    control(ask, "POST", ack, {}, token)
    control(ask, "POST", ack, {**wake, "acks": [{"stream": "a", "offset": "x"}]}, token)
    control(ask, "POST", ack, {**wake, "generation": 9}, token)
    control(ask, "POST", ack, {**wake, "done": True}, token)


@script
def control_addresses_are_refused(ask: Sender) -> None:
    for target in ("", "nothing", "subscriptions/", "subscriptions/a/b", "subscriptions/%FF"):
        control(ask, "GET", target)
    control(ask, "POST", "subscriptions")
    control(ask, "POST", "jwks.json")
    control(ask, "PATCH", "subscriptions/billing")
    control(ask, "DELETE", "subscriptions/billing/streams/a%2F%2Fb")


@script
def subscriptions_are_deleted(ask: Sender) -> None:
    for _ in range(2):
        control(ask, "DELETE", "subscriptions/billing")
    control(ask, "GET", "subscriptions")
