"""Responses of servers with options: small segments, short timeouts, damaged data, CORS."""

import resource
import time
from typing import Final

from tests.golden.exchanges import Connection, Request, Response
from tests.golden.plain import append, begin, commit, create, dense, offset
from tests.golden.recorder import Sender
from tests.golden.servers import Server

# ---- small segments, and damage ---------------------------------------------------------------

SMALL_SEGMENTS: Final = ("--segment-bytes", "4096")


def provoke_small_segments(ask: Sender, server: Server) -> None:
    """Reach the limits of a server with small segments, then damage its stored data."""
    ask.recording.begin("limit_reached")
    paths = [f"s{number}" for number in range(6)]
    for path in paths:
        create(ask, path)
    begin(ask, "wide", streams=paths)
    ask.recording.begin("batch_too_large")
    append(ask, "s0", b"x" * 2048)
    messages = ["x" * 1024]
    commit(ask, "p", 0, appends=[{"stream": path, "messages": messages} for path in paths])
    ask.recording.begin("corrupt_data")
    append(ask, "s1", b"to be damaged")
    append(ask, "s1", b"not damaged")
    _damage(server, b"to be damaged")
    ask("GET", "/v1/stream/s1?offset=-1")
    ask("GET", f"/v1/stream/s1?offset={offset(0)}&live=long-poll")
    ask("GET", f"/v1/stream/s1?offset={offset(1)}")
    _refuse_files(ask, server)
    ask.close()


def _refuse_files(ask: Sender, server: Server) -> None:
    """Store a message in a segment that is not open, then prevent the server from opening files."""
    _fill_segments(ask)
    ask.recording.begin("read_failed")
    append(ask, "s2", b"not to be read")
    _fill_segments(ask)
    used = resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (0, used[1]))
    ask("GET", "/v1/stream/s2?offset=-1")
    ask.recording.begin("disk_full")
    while _append_half_a_segment(ask).status != 507:
        pass
    append(ask, "s3")
    create(ask, "more")
    begin(ask, "more")
    ask("GET", "/health")


def _fill_segments(ask: Sender) -> None:
    for _ in range(6):
        assert _append_half_a_segment(ask).status == 204


def _append_half_a_segment(ask: Sender) -> Response:
    return ask.unrecorded("POST", "/v1/stream/s3", b"x" * 1500, {"Content-Type": "text/plain"})


def _damage(server: Server, payload: bytes) -> None:
    """Change the first byte of a stored payload."""
    for segment in sorted(server.data.glob("*.seg")):
        at = segment.read_bytes().find(payload)
        if at >= 0:
            with segment.open("r+b") as file:
                file.seek(at)
                file.write(bytes([payload[0] ^ 1]))
            return
    raise AssertionError("the payload is not in the journal")


# ---- short timeouts -----------------------------------------------------------------------------

SHORT_TIMES: Final = ("--producer-idle-seconds", "0.05")


def provoke_timeouts(ask: Sender, server: Server) -> None:
    """Let the state of an idle producer expire, and send only the head of a request."""
    ask.recording.begin("request_timeout")
    head = b"POST /v1/stream/slow HTTP/1.1\r\nHost: semel\r\nContent-Length: 9\r\n\r\n"
    with Connection.to(server.port).socket as line:
        line.sendall(head)
        _producer_state_expired(ask)
        ask.recording.begin("request_timeout")
        ask.recording.add_raw(head)
        ask.recording.add_response(Connection(line).response("POST"))
    ask.close()


def _producer_state_expired(ask: Sender) -> None:
    ask.recording.begin("producer_state_expired")
    known = "/v1/producers?stream=made&id=idle"
    create(ask, "made")
    append(ask, "made", **dense("idle", 3, 0))
    while not ask.unrecorded("GET", known).json["producers"][0]["expired"]:
        time.sleep(0.05)
    append(ask, "made", **dense("idle", 3, 1))
    ask("GET", known)
    ask("GET", "/v1/producers/explain?stream=made&id=idle&seq=1&epoch=3")


# ---- pages of a listed origin -------------------------------------------------------------------

_ORIGIN: Final = "https://site.example"
WITH_CORS: Final = ("--cors-origin", _ORIGIN)


def serve_pages(ask: Sender, _server: Server) -> None:
    """Send requests of a page whose origin is listed, and of others."""
    ask.recording.begin("a listed origin")
    ask("OPTIONS", "/v1/stream/page", headers={"Origin": _ORIGIN})
    create(ask, "page", "text/html", b"<p>", origin=_ORIGIN)
    append(ask, "page", b"<p>", "text/html", origin=_ORIGIN)
    for origin in (_ORIGIN, "https://other.example"):
        ask("GET", "/v1/stream/page?offset=-1", headers={"Origin": origin})
    ask("GET", "/v1/stream/page?offset=-1")
    append(ask, "page", b"<p>", "text/html", origin="https://other.example")
    ask.close()


# ---- access --------------------------------------------------------------------------------------

WITH_ACCESS: Final = ("--access", "on")


def ask_without_token(ask: Sender, _server: Server) -> None:
    """Send requests without a valid token."""
    ask.recording.begin("no valid token")
    ask("GET", "/health")
    ask("OPTIONS", "/v1/stream/orders")
    ask("GET", "/v1/streams")
    ask("GET", "/v1/stream/orders?offset=-1")
    ask("GET", "/v1/stream/orders?offset=-1&live=sse")
    create(ask, "orders")
    append(ask, "orders", b"x", authorization=f"Bearer semel_{12 * 'a'}_{43 * 'b'}")
    ask("GET", "/v1/whoami", headers={"Authorization": "Basic eDp5"})
    ask.close()


# ---- too many connections ------------------------------------------------------------------------

FILES_MAX: Final = 72
_CONNECTIONS_MAX: Final = FILES_MAX - 64  # the server reserves 64 files for itself


def provoke_connection_limit(ask: Sender, server: Server) -> None:
    """Connect to a server that has reached its connection limit."""
    ask.recording.begin("too_many_connections")
    connections = [Connection.to(server.port) for _ in range(_CONNECTIONS_MAX)]
    for connection in connections:
        connection.send(Request("GET", "/health", ("Host: semel",)).encoded())
        connection.response("GET")
    ask.send_raw(b"")
    for connection in connections:
        connection.close()
