"""The token of a wake permits to ack and to release this wake, and nothing else."""

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from semel.server.webhook_keys import WebhookKeys
from tests.access.rig import AccessServer, make_token_text
from tests.access.world import SUBSCRIPTIONS
from tests.spec.process import Answer
from tests.spec.subscription_calls import error_of, refusal
from tests.spec.txn_calls import fresh

JSON: Final = "application/json"
REFUSED: Final = (401, "TOKEN_INVALID")


class Work:
    """A pull-wake subscription with something to do. All calls have the token that is given."""

    def __init__(self, server: AccessServer, name: str = "") -> None:
        self.server = server
        self.name = name or fresh("work")
        self.target = f"{SUBSCRIPTIONS}/{self.name}"
        self.path = f"{self.name}-in"
        self.create()

    def admin(self, method: str, target: str, document: Any = None) -> Answer:
        return self.server.call(self.server.admin, method, target, document)

    def create(self) -> None:
        for path in (self.path, f"{self.name}-wakes"):
            if self.admin("HEAD", f"/v1/stream/{path}").status == 404:
                self.server.create(path, content_type=JSON)
        document = {
            "type": "pull-wake",
            "streams": [self.path],
            "wake_stream": f"{self.name}-wakes",
        }
        assert self.admin("PUT", self.target, document).status == 201
        self.append()

    def append(self) -> None:
        assert self.admin("POST", f"/v1/stream/{self.path}", [1]).status == 204

    def claim(self) -> dict[str, Any]:
        answer = self.admin("POST", f"{self.target}/claim", {"worker": "w"})
        assert answer.status == 200, answer
        return dict(answer.json)

    def call(self, action: str, wake: dict[str, Any], token: str | None, **more: Any) -> Answer:
        document = {"wake_id": wake["wake_id"], "generation": wake["generation"], **more}
        return self.server.call(token, "POST", f"{self.target}/{action}", document)

    @property
    def state(self) -> Any:
        return self.admin("GET", self.target).json


@pytest.fixture
def work(server: AccessServer) -> Work:
    return Work(server)


def test_the_token_of_a_wake_needs_no_other_right(work: Work) -> None:
    wake = work.claim()
    acks = [{"stream": each["path"], "offset": each["tail_offset"]} for each in wake["streams"]]
    assert work.call("ack", wake, wake["token"]).status == 200
    done = work.call("ack", wake, wake["token"], acks=acks, done=True)
    assert done.body == b'{"ok":true,"next_wake":false}'
    work.append()
    wake = work.claim()
    assert work.call("release", wake, wake["token"]).status == 204


def forgeries(token: str) -> Iterator[str]:
    """Yield tokens that differ from a valid one in some way."""
    prefix, generation, wake, code = token.split(".")
    flipped = "B" if code[0] == "A" else "A"
    yield from (token[:-1], token[1:], token + "A", token.upper(), token.lower(), f"{token}=")
    yield f"{prefix}.{generation}.{wake}.{flipped}{code[1:]}"
    yield f"{prefix}.{int(generation) + 1}.{wake}.{code}"
    yield f"{prefix}.0{generation}.{wake}.{code}"
    yield f"{prefix}.{generation}.{wake}A.{code}"
    yield f"{prefix}.{generation}..{code}"
    yield f"wake2.{generation}.{wake}.{code}"
    yield f"{prefix}.{generation}.{wake}."
    yield f"{prefix}.{generation}.{wake}"
    yield "x"


def test_no_other_token_permits_it(server: AccessServer, work: Work) -> None:
    other = Work(server)
    wake, others = work.claim(), other.claim()
    before = work.state
    tokens = [*forgeries(wake["token"]), others["token"], server.admin, make_token_text()]
    for action in ("ack", "release"):
        for token in tokens:
            answer = work.call(action, wake, token, acks=[], done=True)
            assert refusal(answer) == REFUSED, token
            assert answer.headers["www-authenticate"].startswith("Bearer ")
        assert refusal(work.call(action, wake, None)) == REFUSED
        for value in (
            wake["token"],
            f"Basic {wake['token']}",
            f"Bearer {wake['token']} x",
            "Bearer",
        ):
            answer = server.ask(
                "POST", f"{work.target}/{action}", b"{}", content_type=JSON, authorization=value
            )
            assert refusal(answer) == REFUSED, value
    assert work.state == before
    assert work.call("ack", wake, wake["token"], done=True).status == 200


def test_every_refusal_of_a_token_has_the_same_body(server: AccessServer, work: Work) -> None:
    wake = work.claim()
    tokens = [None, *forgeries(wake["token"]), server.admin]
    assert len({work.call("ack", wake, token).body for token in tokens}) == 1


def test_a_stranger_does_not_learn_which_subscriptions_exist(
    server: AccessServer, work: Work
) -> None:
    wake, bodies = work.claim(), set()
    for name in (work.name, fresh("absent")):
        for action in ("ack", "release", "callback"):
            for token in (None, "x", wake["token"][:-1], server.admin):
                target = f"{SUBSCRIPTIONS}/{name}/{action}"
                answer = server.call(token, "POST", target, {})
                assert refusal(answer) == REFUSED, (target, token)
                bodies.add(answer.body)
    assert len(bodies) == 1
    assert work.call("callback", wake, wake["token"]).status == 400, "of the other type"


def test_it_permits_nothing_else(server: AccessServer, work: Work) -> None:
    wake = work.claim()
    for method, target, document in (
        ("GET", work.target, None),
        ("DELETE", work.target, None),
        ("GET", SUBSCRIPTIONS, None),
        ("POST", f"{work.target}/claim", {"worker": "w"}),
        ("POST", f"{work.target}/resume", None),
        ("POST", f"{work.target}/streams", {"streams": ["a"]}),
        ("GET", f"/v1/stream/{work.path}", None),
        ("POST", f"/v1/stream/{work.path}", [2]),
        ("GET", "/v1/whoami", None),
        ("POST", "/v1/commits", {}),
    ):
        answer = server.call(wake["token"], method, target, document)
        is_control = "/__ds/" in target
        code = error_of(answer)["code"] if is_control else answer.code
        assert (answer.status, code) == (401, "unauthenticated"), target


def test_the_token_ends_with_its_wake_and_with_its_subscription(work: Work) -> None:
    first = work.claim()
    assert work.call("release", first, first["token"]).status == 204
    second = work.claim()
    for wake in (first, second):
        assert refusal(work.call("ack", wake, first["token"])) == (409, "FENCED")
    assert refusal(work.call("ack", first, second["token"])) == (409, "FENCED")
    assert work.admin("DELETE", work.target).status == 204
    for token in (first["token"], second["token"]):
        assert refusal(work.call("ack", second, token))[0] == 404
    work.create()
    third = work.claim()
    assert third["generation"] == first["generation"]
    for token in (first["token"], second["token"]):
        for wake in (first, second, third):
            assert refusal(work.call("ack", wake, token)) == (409, "FENCED")
    assert work.call("ack", third, third["token"]).status == 200


def test_an_ack_in_a_commit_needs_the_token_or_the_right(server: AccessServer, work: Work) -> None:
    wake = work.claim()
    server.create(f"{work.name}-out", content_type=JSON)
    worker = server.make(f"stream:{work.name}-out:write", principal=fresh("worker"))
    stranger = server.make(
        f"stream:{work.name}-out:write", f"subscription:{work.name}:describe", principal=fresh("s")
    )

    def commit(caller: str, **more: Any) -> tuple[int, str]:
        document = {
            "producer_id": fresh("p"),
            "producer_epoch": 0,
            "producer_seq": 0,
            "appends": [{"stream": f"{work.name}-out", "messages": [1]}],
            "subscriptions": {
                work.name: {"wake_id": wake["wake_id"], "generation": wake["generation"], **more}
            },
        }
        answer = server.call(caller, "POST", "/v1/commits", document)
        return answer.status, "" if answer.status == 200 else answer.code

    other = Work(server).claim()
    assert commit(worker) == (404, "SUBSCRIPTION_NOT_FOUND"), "hidden, as for a stranger"
    assert commit(stranger) == (403, "forbidden")
    assert commit(worker, token=other["token"]) == REFUSED
    assert commit(worker, token=server.admin) == REFUSED
    assert commit(worker, token=wake["token"], generation=9) == (409, "FENCED")
    assert commit(worker, token=wake["token"]) == (200, "")
    assert commit(server.admin) == (200, "")
    assert server.read(f"{work.name}-out") == b"[1,1]"


def test_refused_tokens_are_counted_in_the_audit(tmp_path: Path) -> None:
    server = AccessServer(tmp_path / "data", admin=make_token_text())
    try:
        work = Work(server)
        wake = work.claim()
        for token in (None, "x", wake["token"][:-1]):
            assert work.call("ack", wake, token).status == 401
        server.signal(signal.SIGTERM)
        assert server.wait() == 0
        again = AccessServer(tmp_path / "data")
        again.admin = server.admin
        try:
            records = [each for each in again.audit() if each["action"] == "refused"]
            assert {each["outcome"] for each in records} == {"unauthenticated"}
            assert {each["route"] for each in records} == {"subscription_ack"}
            assert sum(each.get("count", 1) for each in records) == 3
            assert wake["token"] not in str(again.audit())
        finally:
            again.kill()
    finally:
        server.kill()


def committed(work: Work, producer: str, wake: dict[str, Any]) -> Answer:
    """Send the commit of this producer that ends a wake. The same call repeats it."""
    part = {"wake_id": wake["wake_id"], "generation": wake["generation"], "done": True}
    acks = [{"stream": each["path"], "offset": each["tail_offset"]} for each in wake["streams"]]
    document = {
        "producer_id": producer,
        "producer_epoch": 0,
        "producer_seq": 0,
        "subscriptions": {work.name: {**part, "acks": acks, "token": wake["token"]}},
    }
    return work.server.call(work.server.admin, "POST", "/v1/commits", document)


def test_a_new_file_of_keys_ends_all_tokens_and_a_new_key_none(tmp_path: Path) -> None:
    """The command that replaces the signing key keeps the key of the tokens."""
    data = tmp_path / "data"
    file = data / "webhook.key"
    admin = make_token_text()

    def started() -> AccessServer:
        server = AccessServer(data, admin=admin)
        assert server.access_line.startswith("access is on"), server.stderr
        return server

    server = started()
    try:
        work = Work(server)
        first, commit = work.claim(), fresh("p")
        assert committed(work, commit, first).json["duplicate"] is False
        work.append()
        wake = work.claim()
        server.kill()
        WebhookKeys.rotate(str(file), 1)
        work.server = server = started()
        assert work.call("ack", wake, wake["token"]).status == 200
        server.kill()
        file.unlink()
        work.server = server = started()
        assert refusal(work.call("ack", wake, wake["token"])) == REFUSED
        assert committed(work, commit, first).json["duplicate"] is True
        other = committed(work, fresh("p"), wake)
        assert (other.status, other.code, other.json["subscription"]) == (*REFUSED, work.name)
        assert other.json["applied"] == "no"
        assert file.exists(), "new keys are created when they are needed"
    finally:
        server.kill()
