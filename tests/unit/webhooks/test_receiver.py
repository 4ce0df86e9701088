"""The receiver of webhooks, without a network: what it refuses, and what it believes."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from semel import AsyncClient, Client
from semel.client.errors import Unavailable
from semel.client.subscription_work import Committed
from semel.webhooks import WebhookReceiver, receiver
from semel.webhooks.keys import KEYS_SECONDS, REFETCH_SECONDS, SignatureCheck
from semel.wire.webhook_signatures import (
    TOLERANCE_SECONDS,
    WebhookSignature,
    kid_of,
    print_jwks,
    print_signature,
    signed_bytes,
)

KEY = Ed25519PrivateKey.from_private_bytes(bytes(32))
OTHER_KEY = Ed25519PrivateKey.from_private_bytes(bytes([1]) * 32)
BODY = msgspec.json.encode(
    {
        "subscription_id": "billing",
        "wake_id": "w_1",
        "generation": 1,
        "streams": [],
        "callback_url": "http://elsewhere/",
        "callback_token": "secret",
    }
)


def public(key: Ed25519PrivateKey) -> bytes:
    return key.public_key().public_bytes_raw()


JWKS = print_jwks([public(KEY)])


def signed(body: bytes, *, key: Ed25519PrivateKey = KEY, age: float = 0) -> str:
    at = int(time.time() - age)
    signature = key.sign(signed_bytes(body, at))
    return print_signature(WebhookSignature(at, kid_of(public(key)), signature))


class Answer(msgspec.Struct):
    status: int
    headers: dict[bytes, bytes]
    body: bytes


async def post(app: WebhookReceiver, body: bytes, *signatures: str, **changed: Any) -> Answer:
    """Send a request to an ASGI application. Return the response."""
    headers = [(b"webhook-signature", each.encode()) for each in signatures]
    scope = {"type": "http", "method": "POST", "headers": headers, **changed}
    parts = [body[:10], body[10:]]
    sent: list[Any] = []

    async def receive() -> Any:
        part = parts.pop(0)
        return {"type": "http.request", "body": part, "more_body": bool(parts)}

    async def send(event: Any) -> None:
        sent.append(event)

    await app(scope, receive, send)
    start, content = sent
    return Answer(start["status"], dict(start["headers"]), content["body"])


class Processed:
    """Takes the place of what processes a wake."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.wakes: list[Any] = []
        self.error: Exception | None = None
        self.result = Committed(1)
        self.renewals: list[float] = []
        self.may_end = asyncio.Event()
        self.may_end.set()
        monkeypatch.setattr(receiver, "AsyncWakeProcessor", lambda *given: self)

    async def process(self, wake: Any, seconds: float) -> Committed:
        self.wakes.append(wake)
        self.renewals.append(seconds)
        await self.may_end.wait()
        if self.error is not None:
            raise self.error
        return self.result

    async def retire(self) -> None:
        pass


@pytest.fixture
def processed(monkeypatch: pytest.MonkeyPatch) -> Processed:
    return Processed(monkeypatch)


def nothing(batch: Any) -> None:
    pass


def received(
    body: bytes = BODY, *signatures: str, options: dict[str, Any] | None = None, **changed: Any
) -> Answer:
    async def run() -> Answer:
        async with AsyncClient("http://127.0.0.1:1") as client:
            given = {"jwks": JWKS, "lease": 30, **(options or {})}
            app = WebhookReceiver(client, nothing, **given)
            return await post(app, body, *(signatures or (signed(body),)), **changed)

    return asyncio.run(run())


def test_a_delivery_is_processed_with_its_token(processed: Processed) -> None:
    found = received()
    assert (found.status, found.body) == (200, b"{}")
    (wake,) = processed.wakes
    assert (wake.subscription, wake.wake_id, wake.generation) == ("billing", "w_1", 1)
    assert (wake.token, wake.type) == ("secret", "webhook")


@pytest.mark.parametrize(
    ("sign", "what"),
    [
        (lambda: "", "no signature"),
        (lambda: "t=1,kid=x,ed25519=y", "malformed"),
        (lambda: signed(BODY + b" "), "another body"),
        (lambda: signed(BODY, key=OTHER_KEY), "another key"),
        (lambda: signed(BODY, age=TOLERANCE_SECONDS + 5), "too old"),
        (lambda: signed(BODY, age=-TOLERANCE_SECONDS - 60), "from the future"),
    ],
)
def test_what_the_server_has_not_signed_just_now_is_refused(
    processed: Processed, sign: Callable[[], str], what: str
) -> None:
    assert received(BODY, sign()).status == 401, what
    assert processed.wakes == []


def test_two_signatures_are_none(processed: Processed) -> None:
    assert received(BODY, signed(BODY), signed(BODY)).status == 401


def test_only_post_is_possible(processed: Processed) -> None:
    found = received(method="GET")
    assert (found.status, found.headers[b"allow"]) == (405, b"POST")


def test_a_body_that_is_no_delivery_is_refused(processed: Processed) -> None:
    for body in (b"", b"{}", b"[1]", b"\xff", b'{"subscription_id":1}'):
        assert received(body).status == 400, body
    assert processed.wakes == []


def test_a_body_that_is_too_long_is_not_read(
    processed: Processed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receiver, "DELIVERY_BYTES_MAX", len(BODY))
    assert received().status == 200
    monkeypatch.setattr(receiver, "DELIVERY_BYTES_MAX", len(BODY) - 1)
    assert received().status == 413
    for length in (b"1" * 30, b"-1", b"x"):
        headers = [(b"webhook-signature", signed(BODY).encode()), (b"content-length", length)]
        assert received(headers=headers).status == 413


def test_a_body_that_does_not_come_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiver, "BODY_SECONDS", 0.01)
    headers = [(b"webhook-signature", signed(BODY).encode())]
    sent: list[Any] = []

    async def send(event: Any) -> None:
        sent.append(event)

    async def run(receive: Callable[[], Any]) -> int:
        sent.clear()
        async with AsyncClient("http://127.0.0.1:1") as client:
            app = WebhookReceiver(client, nothing, jwks=JWKS)
            await app({"type": "http", "method": "POST", "headers": headers}, receive, send)
        status: int = sent[0]["status"]
        return status

    async def disconnect() -> Any:
        return {"type": "http.disconnect"}

    assert asyncio.run(run(asyncio.Event().wait)) == 408
    assert asyncio.run(run(disconnect)) == 400


def test_wakes_of_other_subscriptions_are_not_processed(processed: Processed) -> None:
    assert received(options={"subscriptions": ["orders"]}).status == 403
    assert received(options={"subscriptions": ["orders", "billing"]}).status == 200
    assert len(processed.wakes) == 1


@pytest.mark.parametrize(
    ("sign", "options", "reason"),
    [
        (lambda: "x", {}, "its header Webhook-Signature is missing or malformed"),
        (
            lambda: signed(BODY, age=900),
            {},
            " s old, and at most 300 s are accepted. If it was not recorded, the clock",
        ),
        (lambda: signed(BODY, key=OTHER_KEY), {}, "which the document in jwks does not have"),
        (lambda: signed(BODY + b" "), {}, "a proxy has changed the body"),
        (
            lambda: signed(BODY),
            {"subscriptions": ["b", "a"]},
            "for the subscription billing, and this receiver processes only: a, b",
        ),
    ],
)
def test_the_log_says_why_a_delivery_was_refused_and_not_for_each_request(
    processed: Processed,
    caplog: pytest.LogCaptureFixture,
    sign: Callable[[], str],
    options: dict[str, Any],
    reason: str,
) -> None:
    async def run() -> None:
        async with AsyncClient("http://127.0.0.1:1") as client:
            app = WebhookReceiver(client, nothing, jwks=JWKS, **options)
            for _ in range(3):
                found = await post(app, BODY, sign())
                assert reason.encode() not in found.body

    asyncio.run(run())
    (record,) = caplog.records
    assert record.name == "semel.webhooks"
    assert reason in record.message


@pytest.mark.parametrize(("seconds", "level"), [(60.0, "INFO"), (0.0, "WARNING")])
def test_the_log_says_that_outputs_were_dropped(
    processed: Processed,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    seconds: float,
    level: str,
) -> None:
    """A delivery that was repeated is usual. A lease that has expired is not."""
    monkeypatch.setattr(receiver, "ANSWER_SECONDS", seconds)
    caplog.set_level("INFO", logger="semel.webhooks")
    processed.result = Committed(is_fenced=True)

    async def run() -> None:
        async with AsyncClient("http://127.0.0.1:1") as client:
            app = WebhookReceiver(client, nothing, jwks=JWKS, lease=30)
            assert (await post(app, BODY, signed(BODY))).status in (200, 202)
            await app.close()

    asyncio.run(run())
    (record,) = caplog.records
    assert record.levelname == level
    assert "its outputs were dropped" in record.message


@pytest.mark.parametrize(
    ("error", "status"), [(ValueError("card 4711"), 500), (Unavailable("host 4711"), 503)]
)
def test_a_failure_lets_the_wake_be_delivered_again_and_tells_nothing(
    processed: Processed, error: Exception, status: int
) -> None:
    processed.error = error
    found = received()
    assert found.status == status
    assert b"4711" not in found.body


def test_a_wake_that_takes_long_is_answered_before_its_end_and_processed_once(
    processed: Processed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receiver, "ANSWER_SECONDS", 0.01)

    async def run() -> None:
        processed.may_end.clear()
        async with AsyncClient("http://127.0.0.1:1") as client:
            app = WebhookReceiver(client, nothing, jwks=JWKS, max_wakes=1, lease=30)
            assert (await post(app, BODY, signed(BODY))).status == 202
            assert (await post(app, BODY, signed(BODY))).status == 202
            other = BODY.replace(b"w_1", b"w_2")
            busy = await post(app, other, signed(other))
            assert (busy.status, busy.headers[b"retry-after"]) == (503, b"1")
            assert len(processed.wakes) == 1
            processed.may_end.set()
            await app.close()
            assert (await post(app, other, signed(other))).status == 503

    asyncio.run(run())


def test_the_end_of_the_server_waits_for_the_wakes(processed: Processed) -> None:
    events = ["lifespan.startup", "lifespan.shutdown"]
    sent: list[str] = []

    async def receive() -> Any:
        return {"type": events.pop(0)}

    async def send(event: Any) -> None:
        sent.append(event["type"])

    async def run() -> None:
        async with AsyncClient("http://127.0.0.1:1") as client:
            app = WebhookReceiver(client, nothing, jwks=JWKS)
            await app({"type": "lifespan"}, receive, send)
            assert (await post(app, BODY, signed(BODY))).status == 503
            await app({"type": "websocket"}, receive, send)

    asyncio.run(run())
    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete", "websocket.close"]


def test_options_that_make_no_sense_are_refused() -> None:
    client = AsyncClient("http://127.0.0.1:1")
    with pytest.raises(TypeError, match="AsyncClient, not a Client"):
        WebhookReceiver(Client("http://127.0.0.1:1"), nothing)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="list"):
        WebhookReceiver(client, nothing, subscriptions="billing")
    documents: list[Any] = [b"", b"{}", b'{"keys":[]}', {"keys": []}, "https://example.com/jwks"]
    for jwks in documents:
        with pytest.raises(ValueError, match="JWKS"):
            WebhookReceiver(client, nothing, jwks=jwks)
    for options in ({"max_messages": 0}, {"max_wakes": 0}, {"lease": 0.5}):
        with pytest.raises(ValueError, match="1"):
            WebhookReceiver(client, nothing, **options)


def test_without_cryptography_the_receiver_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(
        RuntimeError, match=r"in a checkout of semel, run: pip install '\.\[webhooks\]'"
    ):
        WebhookReceiver(AsyncClient("http://127.0.0.1:1"), nothing)


# ---- keys ----------------------------------------------------------------------------------------


class Keys:
    """Takes the place of a client: it returns a JWKS document, and counts how often."""

    site = None

    def __init__(self) -> None:
        self.jwks = JWKS
        self.count = 0
        self.is_down = False

    async def run(self, flow: Any, seconds: float) -> bytes:
        self.count += 1
        if self.is_down:
            raise Unavailable("gone")
        return self.jwks


def test_keys_are_fetched_once_and_again_for_a_new_key_but_not_for_every_unknown_one() -> None:
    keys, at = Keys(), [1000.0]
    check = SignatureCheck(keys, None, clock=lambda: at[0])  # type: ignore[arg-type]

    async def run() -> None:
        for _ in range(3):
            assert await check.is_valid(BODY, signed(BODY))
        assert keys.count == 1
        new = signed(BODY, key=OTHER_KEY)
        for _ in range(3):
            assert not await check.is_valid(BODY, new)
        assert keys.count == 1  # they were fetched a moment ago
        at[0] += REFETCH_SECONDS
        keys.jwks = print_jwks([public(KEY), public(OTHER_KEY)])
        assert await check.is_valid(BODY, new)
        assert keys.count == 2
        at[0] += KEYS_SECONDS
        assert await check.is_valid(BODY, new)
        assert keys.count == 3

    asyncio.run(run())


def test_keys_that_cannot_be_fetched_are_no_reason_to_believe() -> None:
    keys, at = Keys(), [1000.0]
    keys.is_down = True
    check = SignatureCheck(keys, None, clock=lambda: at[0])  # type: ignore[arg-type]

    async def run() -> None:
        for _ in range(3):
            with pytest.raises(Unavailable):
                await check.is_valid(BODY, signed(BODY))
        assert keys.count == 1  # so a sender of nonsense does not become one of requests
        keys.is_down = False
        at[0] += 1
        assert await check.is_valid(BODY, signed(BODY))
        assert not await check.is_valid(BODY, "nonsense")

    asyncio.run(run())


@pytest.mark.parametrize("jwks", [b"", b"[]", b'{"keys":[1]}', b'{"keys":[{"kid":[]}]}'])
def test_keys_that_are_malformed_verify_nothing(jwks: bytes) -> None:
    keys = Keys()
    keys.jwks = jwks
    check = SignatureCheck(keys, None)  # type: ignore[arg-type]

    async def run() -> None:
        for _ in range(2):
            assert not await check.is_valid(BODY, signed(BODY))

    asyncio.run(run())


def test_a_receiver_reports_keys_that_cannot_be_fetched_as_temporary() -> None:
    assert received(options={"jwks": None}).status == 503
