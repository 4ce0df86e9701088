"""The six tests of the public suite about subscriptions, with a SIGKILL after every step.

Each test here does what the test with the same name in the suite does, and asserts the same. After
each request the server is killed and started again, on the same directory and the same port.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.wakes.calls import Answer, Calls
from tests.wakes.dying import DyingServer
from tests.wakes.lives import until
from tests.wakes.receivers import DONE, Receiver, check_signature

pytestmark = pytest.mark.crash

BASE: Final = "/v1/stream/"
# The lease of the suite is 1 s. Here the start of a server comes between the steps.
LEASE_MS: Final = 10_000
EVENT: Final = {"event": "created"}


class KilledServer:
    """A server that is killed after each step, and started again."""

    def __init__(self, data: Path) -> None:
        self.kills = 0
        self._server = DyingServer(data)
        self._server.start()

    @property
    def url(self) -> str:
        return self._server.url

    def step(
        self, method: str, path: str, document: Any = None, *, token: str | None = None
    ) -> Answer:
        """Send a request, kill the server, and start it again. Return the response."""
        answer = self.ask(method, path, document, token=token)
        self.kill()
        return answer

    def ask(
        self, method: str, path: str, document: Any = None, *, token: str | None = None
    ) -> Answer:
        """Send a request to an address below /v1/stream/, and return the response."""
        return Calls(self.url).ask(method, BASE + path, document, token)

    def kill(self) -> None:
        """Kill the server, and start it again on the same port."""
        self._server.kill()
        self._server.start()
        self.kills += 1

    def close(self) -> None:
        """Kill the server for good. It must have written nothing to its stderr."""
        self._server.kill()

    def until(self, is_so: Callable[[], bool]) -> None:
        """Wait until something is so, then kill the server, as after a step."""
        until(is_so, "the step does not end")
        self.kill()

    def shown(self, name: str) -> dict[str, Any]:
        """Return what a GET of a subscription returns, without a kill."""
        return Calls(self.url).show(name)


@pytest.fixture
def killed(tmp_path: Path) -> Iterator[KilledServer]:
    it = KilledServer(tmp_path / "data")
    try:
        yield it
    finally:
        it.close()


def sub(name: str) -> str:
    return f"__ds/subscriptions/{name}"


def webhook(url: str, **more: Any) -> dict[str, Any]:
    """Return the body that creates a webhook subscription."""
    return {"type": "webhook", "webhook": {"url": url}, **more}


def test_creates_and_idempotently_reconfirms_a_webhook_subscription(killed: KilledServer) -> None:
    with Receiver() as receiver:
        config = webhook(
            receiver.url, pattern="events/*", lease_ttl_ms=1000, description="test subscription"
        )
        create = killed.step("PUT", sub("s"), config)
        assert create.status == 201
        assert "webhook_secret" not in create.document
        hook = create.document["webhook"]
        assert hook["url"] == receiver.url
        assert hook["signing"]["alg"] == "ed25519"
        assert hook["signing"]["kid"].startswith("ds_")
        assert hook["signing"]["jwks_url"] == f"{killed.url}{BASE}__ds/jwks.json"
        jwks = killed.step("GET", "__ds/jwks.json")
        assert jwks.status == 200
        assert "application/jwk-set+json" in jwks.content_type
        (key,) = [k for k in jwks.document["keys"] if k["kid"] == hook["signing"]["kid"]]
        assert (key["kty"], key["crv"], key["alg"]) == ("OKP", "Ed25519", "EdDSA")
        confirm = killed.step("PUT", sub("s"), config)
        assert confirm.status == 200
        assert "webhook_secret" not in confirm.document
        assert confirm.document["webhook"] == hook
        get = killed.step("GET", sub("s"))
        assert get.status == 200
        assert (get.document["id"], get.document["type"]) == ("s", "webhook")
        assert "webhook_secret" not in get.document
        assert get.document["webhook"]["url"] == receiver.url
        assert killed.step("DELETE", sub("s")).status == 204
        assert killed.ask("GET", sub("s")).status == 404
    assert killed.kills == 5


def test_rejects_unsafe_webhook_urls(killed: KilledServer) -> None:
    config = webhook("http://10.0.0.1/hook", pattern="events/*")
    for _ in range(2):
        refused = killed.step("PUT", sub("s"), config)
        assert refused.status == 400
        assert refused.document["error"]["code"] == "WEBHOOK_URL_REJECTED"
        assert killed.step("GET", sub("s")).status == 404


def test_webhook_synchronous_done_acks_the_wake_snapshot(killed: KilledServer) -> None:
    with Receiver(lambda _: DONE) as receiver:
        config = webhook(receiver.url, pattern="events/*", lease_ttl_ms=LEASE_MS)
        create = killed.step("PUT", sub("s"), config)
        assert create.status == 201
        jwks = killed.step("GET", "__ds/jwks.json").document
        assert killed.step("PUT", "events/sync", EVENT).status == 201
        delivery = receiver.wait()
        killed.kill()
        check_signature(delivery, jwks)
        assert delivery.body["subscription_id"] == "s"
        callback = f"{killed.url}{BASE}{sub('s')}/callback"
        assert delivery.body["callback_url"] == callback
        stream = delivery.stream("events/sync")
        assert stream["has_pending"] is True

        def is_acked() -> bool:
            (found,) = killed.shown("s")["streams"]
            assert found["path"] == "events/sync"
            return bool(found["acked_offset"] == stream["tail_offset"])

        killed.until(is_acked)
        assert is_acked()
        assert {each.wake for each in receiver.deliveries} == {delivery.wake}


def test_webhook_callback_acks_and_fences_stale_wake_generations(killed: KilledServer) -> None:
    with Receiver() as receiver:
        config = webhook(receiver.url, pattern="events/*", lease_ttl_ms=LEASE_MS)
        assert killed.step("PUT", sub("s"), config).status == 201
        assert killed.step("PUT", "events/callback", EVENT).status == 201
        delivery = receiver.wait()
        killed.kill()
        body = delivery.body
        tail = delivery.stream("events/callback")["tail_offset"]
        ack = {
            "wake_id": body["wake_id"],
            "generation": body["generation"],
            "acks": [{"stream": "events/callback", "offset": tail}],
            "done": True,
        }
        assert body["callback_url"] == f"{killed.url}{BASE}{sub('s')}/callback"
        token = body["callback_token"]
        callback = killed.step("POST", f"{sub('s')}/callback", ack, token=token)
        assert callback.status == 200
        assert callback.document == {"ok": True, "next_wake": False}
        for _ in range(2):
            stale = killed.step("POST", f"{sub('s')}/callback", ack, token=token)
            assert stale.status == 409
            assert stale.document["error"]["code"] == "FENCED"
        assert {each.wake for each in receiver.deliveries} == {delivery.wake}


def test_adds_and_removes_explicit_subscription_streams(killed: KilledServer) -> None:
    with Receiver() as receiver:
        config = webhook(receiver.url, streams=["manual/a"])
        assert killed.step("PUT", sub("s"), config).status == 201
        added = killed.step("POST", f"{sub('s')}/streams", {"streams": ["manual/b"]})
        assert added.status == 204
        assert {each["path"] for each in killed.shown("s")["streams"]} == {"manual/a", "manual/b"}
        removed = killed.step("DELETE", f"{sub('s')}/streams/manual%2Fb")
        assert removed.status == 204
        shown = killed.step("GET", sub("s")).document
        found = [(each["path"], each["link_type"]) for each in shown["streams"]]
        assert found == [("manual/a", "explicit")]


def test_pull_wake_claim_ack_and_release_use_leases_of_the_subscription(
    killed: KilledServer,
) -> None:
    assert killed.step("PUT", "wake/pool", []).status == 201
    config = {
        "type": "pull-wake",
        "pattern": "events/*",
        "wake_stream": "wake/pool",
        "lease_ttl_ms": LEASE_MS,
    }
    assert killed.step("PUT", sub("p"), config).status == 201
    assert killed.step("PUT", "events/pull", EVENT).status == 201
    killed.until(
        lambda: "p" in [e["subscription_id"] for e in killed.ask("GET", "wake/pool").document]
    )

    def claim(worker: str) -> Answer:
        return killed.step("POST", f"{sub('p')}/claim", {"worker": worker})

    first = claim("worker-1")
    assert first.status == 200
    held = first.document
    (tail,) = [each["tail_offset"] for each in held["streams"] if each["path"] == "events/pull"]
    busy = claim("worker-2")
    assert busy.status == 409
    assert busy.document["error"]["code"] == "ALREADY_CLAIMED"
    assert busy.document["error"]["current_holder"] == "worker-1"
    ack = {
        "wake_id": held["wake_id"],
        "generation": held["generation"],
        "acks": [{"stream": "events/pull", "offset": tail}],
        "done": True,
    }
    acked = killed.step("POST", f"{sub('p')}/ack", ack, token=held["token"])
    assert acked.status == 200
    assert acked.document == {"ok": True, "next_wake": False}
    assert killed.step("POST", "events/pull", {"event": "second"}).status == 204
    second = claim("worker-1")
    assert second.status == 200
    assert second.document["generation"] > held["generation"]
    released = killed.step(
        "POST",
        f"{sub('p')}/release",
        {"wake_id": second.document["wake_id"], "generation": second.document["generation"]},
        token=second.document["token"],
    )
    assert released.status == 204
    assert killed.ask("POST", f"{sub('p')}/ack", ack, token=held["token"]).status == 409
