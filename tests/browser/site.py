"""The hostile site, the server that it attacks, and what a plain client sees of that server."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import msgspec

from tests.spec.process import Server

ATTACK: Final = Path(__file__).with_name("attack.html").read_bytes()
# No answer that a hostile page can read may contain it.
SECRET: Final = "s3cret"
_SANDBOXED: Final = b'<iframe sandbox="allow-scripts allow-forms allow-popups" src="/"></iframe>'

# What a page of the server's own origin could do. It tells the result to the page that opened it.
_SPY: Final = f"""<script>
const tell = (text) => (window.opener ?? window.parent).postMessage(text, "*");
tell("{SECRET} ran");
fetch("/v1/streams").then((answer) => answer.text()).then(tell);
</script>""".encode()
_SCRIPT: Final = f'window.postMessage("{SECRET} of a script", "*")'.encode()
_PICTURE: Final = b'<svg xmlns="http://www.w3.org/2000/svg" width="77" height="7"></svg>'

# These members change by themselves.
_CLOCK: Final = frozenset({"age_ms", "idle_ms", "remaining_ms"})


class _Pages(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = _SANDBOXED if self.path == "/sandboxed" else ATTACK
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def hostile_site(port: int = 0) -> Iterator[int]:
    """Serve the hostile page on 127.0.0.1; yield the port."""
    site = ThreadingHTTPServer(("127.0.0.1", port), _Pages)
    thread = threading.Thread(target=site.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield site.server_port
    finally:
        site.shutdown()
        thread.join()
        site.server_close()


def fill(server: Server) -> None:
    """Store what a page could want to read or to change."""
    for path, kind, content in (
        ("orders", "application/json", b'{"order": "%b"}' % SECRET.encode()),
        ("notes", "text/plain", SECRET.encode()),
        (f"hidden-{SECRET}", "application/json", b"[1]"),
        ("page", "text/html", _SPY),
        ("script", "text/javascript", _SCRIPT),
        ("picture", "image/svg+xml", _PICTURE),
        ("victim", "application/json", b""),
    ):
        assert server.ask("PUT", f"/v1/stream/{path}", content, content_type=kind).status == 201
    bank = {"producer_id": "bank", "producer_epoch": 0}
    assert call(server, "/v1/producers", {"producer_id": "bank"}).status == 201
    append = server.ask(
        "POST",
        "/v1/stream/orders",
        b'{"order": 2}',
        content_type="application/json",
        producer_seq=0,
        **bank,
    )
    assert append.status == 200
    victim = {"transaction_id": "victim", **bank, "timeout_ms": 900_000, "streams": ["victim"]}
    assert call(server, "/v1/transactions", victim).status == 201
    assert call(server, "/v1/groups/workers/offsets", {"offsets": {"orders": 1}}).status == 200


def call(server: Server, target: str, body: dict[str, Any]) -> Any:
    """Send a JSON document to one of semel's own addresses."""
    return server.ask("POST", target, msgspec.json.encode(body), content_type="application/json")


def state_of(server: Server, *ignored: str) -> dict[str, Any]:
    """Return all that a plain client sees: streams and their content, producers, transactions.

    Members of JSON documents with a name in `ignored` are left out.
    """
    streams = [entry["path"] for entry in server.ask("GET", "/v1/streams").json["streams"]]
    targets = [
        "/v1/streams",
        "/v1/transactions",
        "/v1/transactions/victim",
        "/v1/producers?id=bank",
    ]
    targets += ["/v1/producers?id=page", "/v1/groups/workers/offsets", "/v1/sinks"]
    targets += [f"/v1/producers?stream={path}" for path in streams]
    seen: dict[str, Any] = {}
    for target in targets:
        answer = server.ask("GET", target)
        seen[target] = (answer.status, _without(_CLOCK.union(ignored), answer.json))
    for path in streams:
        for isolation in ("read_uncommitted", "read_committed"):
            answer = server.ask("GET", f"/v1/stream/{path}?offset=-1&isolation={isolation}")
            seen[f"{path}, {isolation}"] = (answer.status, answer.headers, answer.body)
    return seen


def _without(names: frozenset[str], value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without(names, each) for name, each in value.items() if name not in names}
    return [_without(names, each) for each in value] if isinstance(value, list) else value
