"""`semel.webhooks` with a real server, which delivers to a real ASGI server."""

import asyncio
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from fastapi import FastAPI

from semel import AsyncClient, Client
from semel.client.subscription_values import WakeBatch
from semel.testing import FaultPlan, FaultProxy
from semel.webhooks import WebhookReceiver, receiver
from tests.integration.asgi import PATIENCE_SECONDS, served, wait_for
from tests.integration.test_subscriptions_client import JSON, Names, copies, values
from tests.spec.process import Server

SIGNATURE = "Webhook-Signature"


@pytest.fixture
def names() -> Names:
    return Names()


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.url) as it:
        yield it


class Application:
    """An ASGI application with a receiver, and the requests that it has got.

    The client of the receiver belongs to the event loop of the server that runs the application.
    """

    def __init__(self, url: str, function: Any, *, token: str = "", **options: Any) -> None:
        self.client = AsyncClient(url, token=token)
        self.receiver = WebhookReceiver(self.client, function, **options)
        self.bodies: list[tuple[dict[bytes, bytes], bytes]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        parts: list[bytes] = []

        async def recorded() -> Any:
            event = await receive()
            parts.append(event.get("body", b""))
            return event

        await self.receiver(scope, recorded if scope["type"] == "http" else receive, send)
        if scope["type"] == "lifespan":
            await self.client.close()
        else:
            self.bodies.append((dict(scope["headers"]), b"".join(parts)))


def subscribed(client: Client, names: Names, url: str, **options: Any) -> None:
    """Create the streams, and a subscription that delivers to `url`."""
    for path in (names.out, names.input()):
        client.stream(path).create(JSON, exist_ok=True)
    client.subscriptions.create(
        names.id, pattern=names.pattern, webhook_url=f"{url}/hook", **options
    )


@contextmanager
def receiving(url: str, names: Names, function: Any, **options: Any) -> Iterator[Any]:
    app = Application(url, function, **options)
    with served(app) as hook:
        yield app, hook


def stored(client: Client, names: Names, count: int) -> list[Any]:
    """Wait until there are so many outputs, and return all."""
    wait_for(lambda: len(values(client, names.out)) >= count, "outputs")
    return values(client, names.out)


def settled(client: Client, names: Names) -> None:
    """Wait until nothing is pending."""
    wait_for(lambda: client.subscriptions.show(names.id).pending_count == 0, "nothing pending")


def test_messages_in_are_outputs_out(server: Server, client: Client, names: Names) -> None:
    with receiving(server.url, names, copies(names), max_messages=4) as (app, hook):
        subscribed(client, names, hook)
        client.stream(names.input()).append_many(range(10))
        client.stream(names.input(1)).create(JSON, body=10)
        assert sorted(stored(client, names, 11)) == list(range(11))
        settled(client, names)
        info = client.subscriptions.show(names.id)
        assert (info.status, info.attempts) == ("active", 0)
        assert all(headers[b"content-type"] == b"application/json" for headers, _ in app.bodies)


def test_a_receiver_can_be_a_route_whose_address_needs_no_slash(
    server: Server, client: Client, names: Names
) -> None:
    app = Application(server.url, copies(names))

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with app.client:
            yield
            await app.receiver.close()

    web = FastAPI(lifespan=lifespan)
    web.add_route("/hook", app.receiver, methods=["POST"])  # type: ignore[arg-type]
    with served(web) as url:
        subscribed(client, names, url)
        client.stream(names.input()).append(1)
        assert stored(client, names, 1) == [1]
        settled(client, names)
        assert client.subscriptions.show(names.id).last_error is None


def test_coroutine_functions_can_use_their_own_calls(
    server: Server, client: Client, names: Names
) -> None:
    async def copied(batch: WakeBatch) -> dict[str, list[Any]]:
        await asyncio.sleep(0)
        return copies(names)(batch)

    with receiving(server.url, names, copied) as (_, hook):
        subscribed(client, names, hook)
        client.stream(names.input()).append(1)
        assert stored(client, names, 1) == [1]


def test_a_recorded_delivery_that_is_sent_again_changes_nothing(
    server: Server, client: Client, names: Names
) -> None:
    with receiving(server.url, names, copies(names)) as (app, hook):
        subscribed(client, names, hook)
        client.stream(names.input()).append(1)
        assert stored(client, names, 1) == [1]
        wait_for(lambda: app.bodies, "a recorded delivery")
        headers, body = app.bodies[0]
        sent = {SIGNATURE: headers[SIGNATURE.lower().encode()].decode()}
        for changed, status in ((body, 200), (body + b" ", 401)):
            connection = HTTPConnection(urlsplit(hook).netloc, timeout=PATIENCE_SECONDS)
            connection.request("POST", "/hook", changed, sent)
            assert connection.getresponse().status == status
            connection.close()
        client.stream(names.input()).append(2)
        assert stored(client, names, 2) == [1, 2]


def test_a_function_that_fails_gets_the_messages_again(
    server: Server, client: Client, names: Names
) -> None:
    calls = Counter[str]()

    def fails(batch: WakeBatch) -> dict[str, list[Any]]:
        calls["fails"] += 1
        if calls["fails"] == 1:
            raise LookupError("the first time")
        return copies(names)(batch)

    with receiving(server.url, names, fails) as (_, hook):
        subscribed(client, names, hook)
        client.stream(names.input()).append(1)
        assert stored(client, names, 1) == [1]
        assert calls["fails"] == 2


@pytest.mark.parametrize("options", [{"lease": 1}, {}], ids=["given", "of_the_subscription"])
def test_a_wake_that_takes_longer_than_its_lease_is_kept(
    server: Server,
    client: Client,
    names: Names,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any],
) -> None:
    """The delivery is answered before the end, and heartbeats renew the lease from then on."""
    monkeypatch.setattr(receiver, "ANSWER_SECONDS", 0.1)
    begun, may_end = threading.Event(), threading.Event()

    def slow(batch: WakeBatch) -> dict[str, list[Any]]:
        begun.set()
        may_end.wait(PATIENCE_SECONDS)
        return {names.out: [batch.generation]}

    with receiving(server.url, names, slow, **options) as (app, hook):
        subscribed(client, names, hook, lease=1)
        client.stream(names.input()).append(1)
        assert begun.wait(PATIENCE_SECONDS)
        wait_for(lambda: app.bodies, "an answer")
        assert not may_end.wait(2.5)  # longer than two leases
        assert client.subscriptions.show(names.id).generation == 1
        may_end.set()
        assert stored(client, names, 1) == [1]
        settled(client, names)


@pytest.mark.parametrize("fault", ["drop_answer", "duplicate_before", "duplicate_after", "reset"])
def test_lost_and_repeated_deliveries_do_not_repeat_outputs(
    server: Server, client: Client, names: Names, fault: str
) -> None:
    plan = FaultPlan({fault: 0.5}, script=[fault], seed=3)
    with (
        receiving(server.url, names, copies(names), max_messages=5) as (_, hook),
        FaultProxy(hook, plan) as proxy,
    ):
        subscribed(client, names, proxy.url)
        client.stream(names.input()).append_many(range(20))
        assert stored(client, names, 20) == list(range(20))
        settled(client, names)
        assert proxy.counts[fault] > 0
    assert values(client, names.out) == list(range(20))


@pytest.mark.parametrize("fault", ["drop_answer", "duplicate_before"])
def test_lost_and_repeated_commits_do_not_repeat_outputs(
    server: Server, client: Client, names: Names, fault: str
) -> None:
    plan = FaultPlan({fault: 0.5}, script=[fault], only="POST /v1/commits", seed=3)
    with (
        FaultProxy(server.url, plan) as proxy,
        receiving(proxy.url, names, copies(names), max_messages=5) as (_, hook),
    ):
        subscribed(client, names, hook)
        client.stream(names.input()).append_many(range(20))
        assert stored(client, names, 20) == list(range(20))
        settled(client, names)
        assert proxy.counts[fault] > 0
    assert values(client, names.out) == list(range(20))


# ---- kills ---------------------------------------------------------------------------------------

PROGRAM = """
import sys

import uvicorn

import semel
from semel.webhooks import WebhookReceiver

url, port, out = sys.argv[1:]


def copy(batch):
    return {out: [message.value for message in batch]}


app = WebhookReceiver(semel.AsyncClient(url), copy, max_messages=3)
uvicorn.run(app, host="127.0.0.1", port=int(port), log_level="warning")
"""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def accepts(port: int) -> bool:
    with socket.socket() as line:
        return line.connect_ex(("127.0.0.1", port)) == 0


def test_kills_of_receiver_and_server_store_every_output_once(tmp_path: Path, names: Names) -> None:
    count, port = 40, free_port()

    def started() -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-c", PROGRAM, server.url, str(port), names.out]
        process = subprocess.Popen(command)
        wait_for(lambda: accepts(port), "the receiver")
        return process

    server = Server(tmp_path / "data")
    process = started()
    try:
        with Client(server.url) as client:
            subscribed(client, names, f"http://127.0.0.1:{port}")
            for kill in range(4):
                client.stream(names.input()).append_many(range(kill * count, (kill + 1) * count))
                stored(client, names, kill * count + count // 3)
                if kill % 2:
                    server.kill()
                    server = Server(tmp_path / "data", port=server.port)
                else:
                    process.send_signal(signal.SIGKILL)
                    process.wait(PATIENCE_SECONDS)
                    process = started()
            stored(client, names, 4 * count)
            settled(client, names)
            assert values(client, names.out) == list(range(4 * count))
    finally:
        process.kill()
        process.wait(PATIENCE_SECONDS)
        server.kill()
