"""Rights on the cluster with `--strict-rights`, and without it."""

from typing import Any, Final
from uuid import uuid4

import pytest

from tests.access.rig import AccessServer
from tests.spec.process import Answer

CLUSTER: Final = "cluster:IdempotentWrite"
BOTH: Final = "cluster:IdempotentWrite,TransactionalWrite"
OWN_ID: Final = "producer:teller-*:write"  # for the first transaction of a producer: R4


class Teller:
    """A producer with a transaction of its own, and a token with some scopes."""

    def __init__(self, server: AccessServer, *scopes: str, owner: str = "") -> None:
        self.server = server
        self.principal = owner or f"teller-{uuid4().hex}"
        self.name = self.principal
        self.token = server.make(*scopes, principal=self.principal)
        self.tag: dict[str, Any] = {"producer_id": self.name, "producer_epoch": 0}

    def begin(self, *streams: str) -> Answer:
        document = {"transaction_id": self.name, **self.tag, "streams": list(streams)}
        return self.server.call(self.token, "POST", "/v1/transactions", document)

    def call(self, action: str, **more: Any) -> Answer:
        document = {**self.tag, "transaction_epoch": 1, **more}
        target = f"/v1/transactions/{self.name}/{action}"
        return self.server.call(self.token, "POST", target, document)

    def publish(self, stream: str, seq: int = 0) -> Answer:
        """Append a message in the transaction."""
        return self.append(stream, seq, transaction_id=self.name, transaction_epoch=1)

    def append(self, stream: str, seq: int | None = None, **headers: Any) -> Answer:
        if seq is not None:
            headers |= {"producer_id": self.name, "producer_epoch": 0, "producer_seq": seq}
        target = f"/v1/stream/{stream}"
        return self.server.call(
            self.token, "POST", target, b"m", content_type="text/plain", **headers
        )


def missing(answer: Answer) -> tuple[int, str, str, str]:
    """Return the right that a response names as missing."""
    assert answer.code == "forbidden", answer
    found = answer.json
    return answer.status, found["kind"], found["name"], found["right"]


@pytest.fixture
def topic(strict: AccessServer) -> str:
    path = f"topic-{uuid4().hex}"
    strict.create(path)
    return path


def calls(teller: Teller, topic: str) -> list[Answer]:
    """Return the responses to every call of a transaction, and to a commit in one request."""
    position = {"group": "g", "offsets": {topic: 0}}
    return [
        teller.begin(topic),
        teller.call("streams", streams=[topic]),
        teller.call("offsets", **position),
        teller.call("prepare"),
        teller.call("commit"),
        teller.call("abort"),
        teller.server.call(
            teller.token,
            "POST",
            "/v1/commits",
            {**teller.tag, "producer_seq": 0, "offsets": {"g": {topic: 0}}},
        ),
        teller.server.call(teller.token, "POST", "/v1/producers", {"producer_id": teller.name}),
    ]


# rows: R37
def test_transaction_calls_need_idempotent_write_and_publish_also_write(
    strict: AccessServer, topic: str
) -> None:
    """ACL: transaction calls need `IdempotentWrite` on `Cluster`; publish also needs `Write`."""
    writer = Teller(strict, f"stream:{topic}:write,read", "group:*:write", "producer:*:admin")
    for answer in calls(writer, topic):
        assert missing(answer) == (403, "cluster", "", "IdempotentWrite")
    assert missing(writer.publish(topic)) == (403, "cluster", "", "IdempotentWrite")

    # With the right on the cluster alone, transactions work, but nothing is published.
    caller = Teller(strict, CLUSTER, OWN_ID, f"stream:{topic}:read", "group:*:write")
    assert caller.begin().status == 201
    assert missing(caller.call("streams", streams=[topic])) == (403, "stream", topic, "write")
    assert missing(caller.publish(topic)) == (403, "stream", topic, "write")
    assert caller.call("offsets", group="g", offsets={topic: 0}).status == 200
    assert caller.call("commit").status == 200
    assert strict.read(topic) == b""

    # With both, a message is published.
    teller = Teller(strict, CLUSTER, OWN_ID, f"stream:{topic}:write")
    assert teller.begin(topic).status == 201
    assert teller.publish(topic).status == 200
    assert teller.call("commit").status == 200
    assert strict.read(topic) == b"m"


def test_a_producer_needs_idempotent_write_and_a_plain_append_does_not(
    strict: AccessServer, topic: str
) -> None:
    writer = Teller(strict, f"stream:{topic}:admin")
    assert writer.append(topic).status in (200, 204)
    assert missing(writer.append(topic, 0)) == (403, "cluster", "", "IdempotentWrite")
    claim = {"stream": topic, "producer_id": writer.name, "session": "s"}
    refused = strict.call(writer.token, "POST", "/v1/producers/claim", claim)
    assert missing(refused) == (403, "cluster", "", "IdempotentWrite")
    producer = Teller(strict, f"stream:{topic}:write", CLUSTER)
    assert producer.append(topic, 0).status == 200
    assert (
        strict.call(
            producer.token, "POST", "/v1/producers/claim", {**claim, "producer_id": producer.name}
        ).status
        == 200
    )


def test_prepare_needs_transactional_write(strict: AccessServer, topic: str) -> None:
    one = Teller(strict, f"stream:{topic}:write", OWN_ID, CLUSTER)
    assert one.begin(topic).status == 201
    assert missing(one.call("prepare")) == (403, "cluster", "", "TransactionalWrite")
    both = Teller(strict, f"stream:{topic}:write", BOTH, owner=one.principal)
    assert both.call("prepare").status == 200
    assert both.call("commit").status == 200


def test_a_named_registration_needs_write_on_the_producer(strict: AccessServer) -> None:
    name = f"registered-{uuid4().hex}"
    one = Teller(strict, CLUSTER)
    refused = strict.call(one.token, "POST", "/v1/producers", {"producer_id": name})
    assert missing(refused) == (403, "producer", name, "write")
    assert strict.call(one.token, "POST", "/v1/producers", {}).status == 201
    assert missing(one.begin()) == (403, "producer", one.name, "write")
    two = Teller(strict, CLUSTER, "producer:registered-*:write")
    named = strict.call(two.token, "POST", "/v1/producers", {"producer_id": name})
    assert named.status == 201


def test_an_administrator_has_both_rights(strict: AccessServer, topic: str) -> None:
    admin = Teller(strict, "cluster:admin")
    assert admin.begin(topic).status == 201
    assert admin.publish(topic).status == 200
    assert admin.call("prepare").status == 200
    assert admin.call("commit").status == 200
    assert strict.call(admin.token, "GET", "/v1/whoami").json["strict_rights"] is True


def test_without_the_option_whoever_may_write_has_both_rights(server: AccessServer) -> None:
    path = f"loose-{uuid4().hex}"
    server.create(path)
    teller = Teller(server, f"stream:{path}:write")
    assert teller.begin(path).status == 201
    assert teller.publish(path).status == 200
    assert teller.call("prepare").status == 200
    assert teller.call("commit").status == 200
    reader = Teller(server, f"stream:{path}:read,create,delete,describe", "group:*:admin")
    *others, commit, register = calls(reader, path)
    assert commit.status == 200, "the positions of a group are committed with `write` on it"
    for answer in (*others, register):
        assert missing(answer) == (403, "cluster", "", "IdempotentWrite")
    assert server.call(reader.token, "GET", "/v1/whoami").json["strict_rights"] is False
