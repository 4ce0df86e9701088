"""A server's content with one thing of each kind, all with the same name, and its whole state."""

from typing import Any, Final
from urllib.parse import quote

from tests.access.rig import AccessServer
from tests.spec.process import Answer

SECRET: Final = "SENTINEL-9c1f"  # in every stored text that a stranger must not see
SUBSCRIPTIONS: Final = "/v1/stream/__ds/subscriptions"
TIMEOUT_MS: Final = 600_000  # of transactions: longer than a test


class World:
    """A stream, a producer, a transaction, a sink, a group and so on with the same name.

    All belong to the principal `owner`. Its token may do everything. There is also a topic
    `{name}-topic`, a group `{name}-members` with a member, and `{name}-wakes`, the wake stream of
    the subscription.
    """

    def __init__(self, server: AccessServer, name: str, owner: str) -> None:
        self.server = server
        self.name = name
        self.owner = owner
        self.token = server.make("cluster:admin", principal=owner)
        self.epoch = 0  # of the producer
        self.txn_epoch = 0
        self.version = -1  # of the sink
        self.step = 0  # that the group has pinned
        self.victim = ""  # a token
        self.member = ""  # its id
        self.build()

    def call(self, method: str, target: str, document: Any = None, **headers: Any) -> Answer:
        return self.server.call(self.token, method, target, document, **headers)

    def good(self, method: str, target: str, document: Any = None, **headers: Any) -> Any:
        """Send a request that must be accepted; return the JSON of the response, or None."""
        answer = self.call(method, target, document, **headers)
        assert answer.status < 300, (method, target, answer)
        is_json = answer.headers.get("content-type") == "application/json"
        return answer.json if is_json and answer.body else None

    @property
    def tag(self) -> dict[str, Any]:
        """The producer, as it is in the bodies of requests."""
        return {"producer_id": self.name, "producer_epoch": self.epoch}

    @property
    def txn_tag(self) -> dict[str, Any]:
        """The transaction, as it is in the bodies of requests."""
        return {**self.tag, "transaction_epoch": self.txn_epoch}

    @property
    def producer_headers(self) -> dict[str, str]:
        """The headers of an append by the producer that repeats its first append."""
        return {
            "Producer-Id": self.name,
            "Producer-Epoch": str(self.epoch),
            "Producer-Seq": "0",
        }

    def sink_tag(self, version: int) -> dict[str, Any]:
        return {"app": self.name, "query_id": f"Q-{SECRET}", "version": version}

    @property
    def subscription(self) -> dict[str, Any]:
        """The subscription, as it is in the body of the request that creates it."""
        return {
            "type": "pull-wake",
            "streams": [self.name],
            "wake_stream": f"{self.name}-wakes",
            "description": SECRET,
        }

    # ---- building ------------------------------------------------------------------------------

    def build(self) -> None:
        """Make everything that is missing, and renew what cannot be used any more."""
        name = self.name
        stream = f"/v1/stream/{name}"
        self.call("DELETE", f"{stream}-fork")
        self.good("PUT", stream, content_type="application/json")
        self.epoch = self.good("POST", "/v1/producers", {"producer_id": name})["producer_epoch"]
        headers = {key.replace("-", "_"): value for key, value in self.producer_headers.items()}
        self.good("POST", stream, {"secret": SECRET}, **headers)
        self.begin()
        self.version += 1
        self.good("POST", "/v1/commits", {"sink": self.sink_tag(self.version)})
        self.good("POST", f"/v1/groups/{name}/offsets", {"offsets": {name: 0}})
        self.step += 1
        pinned = {"number": self.step, "ranges": {}, "hash": f"h-{SECRET}"}
        self.good("POST", f"/v1/groups/{name}/snapshot", pinned)
        self.good("PUT", f"/v1/policies?prefix={name}", {"dedup": "on"})
        self.call("DELETE", f"/v1/topics/{name}-topic")
        self.good("PUT", f"/v1/topics/{name}-topic", {"partitions": 1})
        joined = {"streams": [name], "instance": "i"}  # it replaces the member before
        target = f"/v1/groups/{name}-members/members"
        self.member = self.good("POST", target, joined)["member"]
        self.good("PUT", f"/v1/stream/{name}-wakes", content_type="application/json")
        self.good("PUT", f"{SUBSCRIPTIONS}/{name}", self.subscription)
        self.victim = self.server.make(
            f"stream:{name}:read", principal=self.owner, description=SECRET
        )

    def begin(self) -> None:
        document = {
            "transaction_id": self.name,
            **self.tag,
            "streams": [self.name],
            "timeout_ms": TIMEOUT_MS,
        }
        self.txn_epoch = self.good("POST", "/v1/transactions", document)["transaction_epoch"]


# ---- the whole state -----------------------------------------------------------------------------


def whole_state(server: AccessServer, names: list[str]) -> dict[str, Any]:
    """Return everything that an administrator can see, except the audit and times of last use.

    `names` are those of producers, transactions and groups, of which there are no lists.
    """

    def show(target: str) -> Any:
        answer = server.call(server.admin, "GET", target)
        return answer.status, answer.json

    streams = [each["path"] for each in pages(server, "/v1/streams", "streams")]
    tokens = pages(server, "/v1/tokens", "tokens")
    for token in tokens:
        if token["principal"] == "admin":
            del token["used_at"]
    state: dict[str, Any] = {"tokens": tokens, "policies": show("/v1/policies")}
    for path in streams:
        if path.startswith("__semel/"):
            continue
        quoted = quote(path)
        head = server.call(server.admin, "HEAD", f"/v1/stream/{quoted}")
        state[f"stream {path}"] = head, server.read(quoted)
        state[f"producers {path}"] = show(f"/v1/producers?stream={quote(path, safe='')}&limit=1000")
    sinks = show("/v1/sinks")[1]["sinks"]
    for sink in sinks:
        state[f"sink {sink['app']}"] = show(f"/v1/sinks/{quote(sink['app'], safe='')}")
    for each in pages(server, SUBSCRIPTIONS, "subscriptions"):
        state[f"subscription {each['id']}"] = show(f"{SUBSCRIPTIONS}/{quote(each['id'], safe='')}")
    pending = show("/v1/transactions?limit=1000")[1]["transactions"]
    state["transactions"] = [without_ages(each) for each in pending]
    for name in names:
        state[f"registration {name}"] = show(f"/v1/producers?id={name}")
        state[f"transaction {name}"] = without_ages(show(f"/v1/transactions/{name}")[1])
        state[f"positions {name}"] = without_ages(show(f"/v1/groups/{name}/offsets")[1])
        state[f"snapshot {name}"] = show(f"/v1/groups/{name}/snapshot")
    return state


def pages(server: AccessServer, target: str, member: str) -> list[Any]:
    """Return the entries of all pages of a list."""
    found: list[Any] = []
    after = ""
    while True:
        query = f"?limit=1000{after}"
        answer = server.call(server.admin, "GET", target + query)
        assert answer.status == 200, answer
        found += answer.json[member]
        if answer.json["next"] is None:
            return found
        after = f"&after={quote(str(answer.json['next']), safe='')}"


def without_ages(document: Any) -> Any:
    """Return a document without the members that change with time."""
    if isinstance(document, dict):
        return {
            key: without_ages(value)
            for key, value in document.items()
            if key not in ("age_ms", "idle_ms", "remaining_ms")
        }
    return document
