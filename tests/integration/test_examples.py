"""The examples that run for ever, against a real server, as a user runs them."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from semel import Client
from tests.integration.asgi import PATIENCE_SECONDS, wait_for
from tests.integration.test_subscriptions_client import values
from tests.integration.test_webhook_receiver import accepts, free_port
from tests.spec.process import Server

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A server of its own, because the names in the examples are fixed."""
    server = Server(tmp_path / "data")
    yield server
    server.kill()


@contextmanager
def running(*command: str, **environment: str) -> Iterator["subprocess.Popen[bytes]"]:
    process = subprocess.Popen(
        [sys.executable, *command],
        cwd=ROOT,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def order(number: int) -> dict[str, int]:
    return {"id": number, "pieces": number, "price": 2}


def bills(numbers: range) -> list[dict[str, int]]:
    return [{"order": number, "total": 2 * number} for number in numbers]


def test_a_worker_that_is_killed_writes_each_bill_once(server: Server) -> None:
    with Client(server.url) as client:
        orders = client.stream("orders/eu").create("application/json")
        command = ("examples/worker.py", server.url)
        with running(*command) as first:
            assert first.stdout is not None
            assert first.stdout.readline() == b"waiting for orders\n"
            orders.append_many([order(number) for number in range(5)])
            wait_for(lambda: len(values(client, "bills")) == 5, "five bills")
            first.send_signal(signal.SIGKILL)
            first.wait(PATIENCE_SECONDS)
        orders.append_many([order(number) for number in range(5, 10)])
        with running(*command) as second:
            wait_for(lambda: len(values(client, "bills")) == 10, "ten bills")
            second.send_signal(signal.SIGTERM)
            said, _ = second.communicate(timeout=PATIENCE_SECONDS)
            assert (second.returncode, said) == (0, b"waiting for orders\n5 orders\n")
        assert values(client, "bills") == bills(range(10))


def sent(url: str, document: object = None) -> Any:
    body = None if document is None else json.dumps(document).encode()
    request = Request(url, body, {"Content-Type": "application/json"})
    with urlopen(request, timeout=PATIENCE_SECONDS) as response:
        return json.load(response)


def test_an_application_that_is_killed_writes_each_bill_once(server: Server) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = ("-m", "uvicorn", "examples.webhook:app", "--port", str(port))
    environment = {"SEMEL_URL": server.url, "PYTHONPATH": str(ROOT)}
    with running(*command, **environment) as first:
        wait_for(lambda: accepts(port), "the application")
        with Client(server.url) as client:
            client.subscriptions.create(
                "billing", pattern="orders/*", webhook_url=f"{url}/hooks/billing/"
            )
        for number in range(5):
            sent(f"{url}/orders/eu", order(number))
        wait_for(lambda: len(sent(f"{url}/bills")) == 5, "five bills")
        sent(f"{url}/orders/eu", order(5))
        first.send_signal(signal.SIGKILL)
        first.wait(PATIENCE_SECONDS)
    with running(*command, **environment) as second:
        wait_for(lambda: accepts(port), "the application")
        sent(f"{url}/orders/eu", order(6))
        wait_for(lambda: len(sent(f"{url}/bills")) == 7, "seven bills")
        assert sent(f"{url}/bills") == bills(range(7))
        second.send_signal(signal.SIGTERM)
        second.wait(PATIENCE_SECONDS)
