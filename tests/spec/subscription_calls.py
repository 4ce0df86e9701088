"""Helpers for requests about subscriptions, and a receiver of webhooks."""

import json
import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import quote

import msgspec

from tests.spec.process import PATIENCE_SECONDS, Answer, Server, Stream
from tests.spec.txn_calls import fresh

CONTROL: Final = "/v1/stream/__ds"
JSON: Final = "application/json"


def error_of(answer: Answer) -> dict[str, Any]:
    """Return the error in a response, after a check of its form."""
    assert answer.headers.get("content-type") == JSON, answer
    assert answer.headers["cache-control"] == "no-store"
    (name, error), *others = answer.json.items()
    assert (name, others) == ("error", [])
    assert isinstance(error["message"], str)
    assert error["message"]
    return dict(error)


def refusal(answer: Answer) -> tuple[int, str]:
    """Return the status and the code of a refused request."""
    return answer.status, error_of(answer)["code"]


def ask(
    server: Server, method: str, target: str, document: Any = None, token: str | None = None
) -> Answer:
    """Send a request below the control prefix. `document` is sent as JSON, unless it is bytes."""
    body = document if isinstance(document, bytes) else b""
    if document is not None and not isinstance(document, bytes):
        body = msgspec.json.encode(document)
    headers = {} if document is None else {"content_type": JSON}
    if token is not None:
        headers["authorization"] = f"Bearer {token}"
    return server.ask(method, f"{CONTROL}/{target}", body, **headers)


def until(question: Callable[[], Any]) -> Any:
    """Ask until the result is true, and return it."""
    ends_at = time.monotonic() + PATIENCE_SECONDS
    while not (result := question()):
        assert time.monotonic() < ends_at, "it never came true"
        time.sleep(0.01)
    return result


class Subscription:
    """A subscription of a server. Its id is new unless it is given."""

    def __init__(self, server: Server, name: str = "") -> None:
        self.server = server
        self.id = name or fresh("sub")
        self.target = f"subscriptions/{quote(self.id, safe='')}"

    def put(self, document: Any) -> Answer:
        return ask(self.server, "PUT", self.target, document)

    def create(self, document: Any) -> "Subscription":
        answer = self.put(document)
        assert answer.status == 201, answer
        return self

    def show(self, query: str = "") -> Answer:
        return ask(self.server, "GET", f"{self.target}{query}")

    @property
    def state(self) -> dict[str, Any]:
        answer = self.show()
        assert answer.status == 200, answer
        return dict(answer.json)

    def link(self, path: str) -> dict[str, Any]:
        """Return a stream of the subscription."""
        (found,) = (each for each in self.state["streams"] if each["path"] == path)
        return dict(found)

    def call(self, action: str, document: Any = None, token: str | None = None) -> Answer:
        return ask(self.server, "POST", f"{self.target}/{action}", document, token)

    def claim(self, worker: str = "w-1") -> "Wake":
        answer = self.call("claim", {"worker": worker})
        assert answer.status == 200, answer
        return Wake(self, answer.json, "ack", answer.json["token"])


class Wake:
    """A wake: what was claimed or delivered, and its token."""

    def __init__(
        self, subscription: Subscription, document: dict[str, Any], action: str, token: str
    ) -> None:
        self.subscription = subscription
        self.id: str = document["wake_id"]
        self.generation: int = document["generation"]
        self.streams: list[dict[str, Any]] = document["streams"]
        self.document = document
        self.token = token
        self._action = action

    @property
    def acks(self) -> list[dict[str, Any]]:
        """The acks of everything in the wake."""
        return [{"stream": each["path"], "offset": each["tail_offset"]} for each in self.streams]

    def body(self, **more: Any) -> dict[str, Any]:
        return {"wake_id": self.id, "generation": self.generation, **more}

    def ack(self, *, token: str | None = None, **more: Any) -> Answer:
        return self.subscription.call(self._action, self.body(**more), token or self.token)

    def finish(self) -> Answer:
        return self.ack(acks=self.acks, done=True)

    def release(self) -> Answer:
        return self.subscription.call("release", self.body(), self.token)


def pull(server: Server, *streams: Stream, **more: Any) -> Subscription:
    """Return a new pull-wake subscription that names the streams, with a wake stream of its own."""
    wakes = server.stream(fresh("wakes"))
    wakes.create(content_type=JSON)
    document = {
        "type": "pull-wake",
        "streams": [each.path for each in streams],
        "wake_stream": wakes.path,
        **more,
    }
    return Subscription(server).create(document)


class Receiver:
    """A receiver of webhooks. It answers with `response`, or with no body."""

    def __init__(self, response: Any = None) -> None:
        self.response = response
        self._received: queue.Queue[tuple[bytes, str]] = queue.Queue()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver._received.put((body, self.headers["Webhook-Signature"]))
                data = b"" if receiver.response is None else json.dumps(receiver.response).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}/hook"

    def next(self) -> tuple[bytes, str]:
        """Return the body and the signature of the next delivery."""
        return self._received.get(timeout=PATIENCE_SECONDS)


@contextmanager
def receiving(response: Any = None) -> Iterator[Receiver]:
    receiver = Receiver(response)
    try:
        yield receiver
    finally:
        receiver.server.shutdown()
        receiver.server.server_close()
