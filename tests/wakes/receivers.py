"""A receiver of webhooks that records each delivery, and answers as the test wants."""

import base64
import re
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from time import monotonic, sleep, time
from typing import Any, Final, NamedTuple, Self

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

_PATIENCE_SECONDS: Final = 60.0
_LOOK_SECONDS: Final = 0.005
_SIGNATURE: Final = re.compile(r"t=(\d+),kid=(.+),ed25519=([A-Za-z0-9_-]+)")
_REPLAY_SECONDS_MAX: Final = 300


class Delivery(NamedTuple):
    """A delivery as it arrived: the header with the signature, and the bytes of the body."""

    signature: str
    raw: bytes

    @property
    def body(self) -> dict[str, Any]:
        found: dict[str, Any] = msgspec.json.decode(self.raw)
        return found

    @property
    def wake(self) -> tuple[int, str]:
        """The generation and the id of the wake."""
        return self.body["generation"], self.body["wake_id"]

    def stream(self, path: str) -> dict[str, Any]:
        """Return the entry of a stream, which must be there once."""
        (entry,) = [each for each in self.body["streams"] if each["path"] == path]
        found: dict[str, Any] = entry
        return found


def check_signature(delivery: Delivery, jwks: dict[str, Any]) -> None:
    """Raise InvalidSignature or AssertionError unless one of the keys has signed a delivery."""
    match = _SIGNATURE.fullmatch(delivery.signature)
    assert match is not None, delivery.signature
    seconds, kid, signature = match.groups()
    assert abs(time() - int(seconds)) <= _REPLAY_SECONDS_MAX
    (key,) = [each for each in jwks["keys"] if each["kid"] == kid]
    public = Ed25519PublicKey.from_public_bytes(base64.urlsafe_b64decode(key["x"] + "="))
    raw = f"{seconds}.".encode() + delivery.raw
    public.verify(base64.urlsafe_b64decode(signature + "=="), raw)


class Reply(NamedTuple):
    """The response to a delivery. Without a status, the connection is closed instead."""

    status: int | None = 200
    document: Any = {}  # noqa: RUF012 - never changed


DONE: Final = Reply(200, {"done": True})
TAKEN: Final = Reply()
FAILED: Final = Reply(500, {"error": "as the test wants"})

Answer = Callable[[Delivery], Reply]


class Receiver:
    """An HTTP server on loopback that receives deliveries, each on a thread of its own.

    `answer` is called with each delivery, and may block. It can be changed at any time.
    """

    def __init__(self, answer: Answer = lambda _: TAKEN, port: int = 0) -> None:
        self.answer = answer
        self.deliveries: list[Delivery] = []
        self.active = 0  # deliveries without a response
        self._lock = threading.Lock()
        self._server = _Server(("127.0.0.1", port), _Handler)
        self._server.receiver = self
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/webhook"

    def wait(self, count: int = 1) -> Delivery:
        """Wait until there are so many deliveries, and return the newest one."""
        until = monotonic() + _PATIENCE_SECONDS
        while len(self.deliveries) < count:
            assert monotonic() < until, f"{len(self.deliveries)} deliveries, and not {count}"
            sleep(_LOOK_SECONDS)
        return self.deliveries[-1]

    def note(self, signature: str, raw: bytes) -> Reply:
        """Record a delivery; return the response."""
        delivery = Delivery(signature, raw)
        with self._lock:
            self.deliveries.append(delivery)
            self.active += 1
        try:
            return self.answer(delivery)
        finally:
            with self._lock:
                self.active -= 1


class _Server(ThreadingHTTPServer):
    receiver: Receiver
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """Print nothing: the server under test is killed while it waits for a response."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        reply = self.server.receiver.note(self.headers.get("Webhook-Signature") or "", raw)
        self.close_connection = True
        if reply.status is None:
            return
        body = msgspec.json.encode(reply.document)
        self.send_response(reply.status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Print nothing."""
