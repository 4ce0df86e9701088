"""A server that is killed while it has transactions, and what clients can read of them."""

import http.client
import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from semel.wire.bodies import decode_frames
from semel.wire.headers import FRAMES
from tests.spec.process import PATIENCE_SECONDS, SEMEL, Answer, Server, Stream
from tests.spec.txn_calls import COMMITTED, Txn, call, committed

LOST: Final = (OSError, http.client.HTTPException)  # errors of a client whose server is killed
# Timeouts start again with the process, so a restart moves deadlines.
_AGES: Final = ("age_ms", "idle_ms", "remaining_ms", "deadline")


class Node:
    """A server that can be killed and started again on the same directory and port."""

    def __init__(self, data: Path, *options: str) -> None:
        self.data = data
        self._options = options
        self.server = Server(data, *options)
        self.port = self.server.port

    def kill(self) -> None:
        self.server.kill()

    def start(self) -> Server:
        self.server = Server(self.data, *self._options, port=self.port)
        assert self.server.greeting, self.server.stderr
        return self.server

    def restart(self) -> Server:
        """Kill the server with SIGKILL, and start it again."""
        self.kill()
        return self.start()

    def stop(self) -> None:
        """Stop the server with SIGTERM, so that it writes a checkpoint."""
        self.server.signal(signal.SIGTERM)
        assert self.server.wait() == 0
        self.server.kill()

    def stream(self, path: str) -> Stream:
        return self.server.stream(path)

    def kill_in_recovery(self, pause_seconds: float) -> bool:
        """Start a server and kill it in its recovery; return whether it was not ready by then."""
        command = [str(SEMEL), "serve", "--data", str(self.data), "--port", str(self.port)]
        command += ["--reserve-bytes", "0", *self._options]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            wait_until(lambda: _has_journal_open(process.pid) or process.poll() is not None)
            time.sleep(pause_seconds)
            assert process.poll() is None, process.communicate()[1]
        finally:
            process.kill()
            stdout, stderr = process.communicate()
        assert not stderr, stderr
        return not stdout


def _has_journal_open(pid: int) -> bool:
    with suppress(OSError):
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                if os.readlink(entry).endswith(".seg"):
                    return True
    return False


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "the condition did not become true"
        time.sleep(0.001)


# ---- requests without a response -----------------------------------------------------------------


def send_only(server: Server, txn: Txn, action: str) -> Callable[[], None]:
    """Send a commit or abort without reading the response; return the connection's `close`."""
    connection = server.connect()
    body = (
        f'{{"producer_id":"{txn.producer}","producer_epoch":{txn.producer_epoch},'
        f'"transaction_epoch":{txn.epoch}}}'
    )
    target = f"/v1/transactions/{txn.id}/{action}"
    connection.request("POST", target, body, {"Content-Type": "application/json"})
    return connection.close


def maybe(ask: Callable[[], Answer]) -> Answer | None:
    """Return the response, or None if the server was killed."""
    try:
        return ask()
    except LOST:
        return None


# ---- what clients read ---------------------------------------------------------------------------


def by_catch_up(stream: Stream) -> bytes:
    return b"".join(answer.body for answer in _answers(stream))


def by_frames(stream: Stream) -> bytes:
    found = [decode_frames(answer.body).slices for answer in _answers(stream, accept=FRAMES)]
    return b"".join(piece.payload for pieces in found for piece in pieces)


def _answers(stream: Stream, **headers: str) -> list[Answer]:
    """Return the responses of reads at read_committed, up to the stable offset."""
    found, offset = [], "-1"
    while True:
        answer = stream.get(f"offset={offset}&{COMMITTED}", **headers)
        assert answer.status == 200, answer
        found.append(answer)
        if answer.next_offset == offset or "stream-up-to-date" in answer.headers:
            return found
        offset = answer.next_offset


def by_long_poll(stream: Stream) -> bytes:
    found, offset = b"", "-1"
    while True:
        answer = committed(stream, f"offset={offset}&live=long-poll")
        if answer.status == 204:
            return found
        assert answer.status == 200, answer
        found, offset = found + answer.body, answer.next_offset


def by_events(stream: Stream) -> bytes:
    found = ""
    with stream.listen(f"-1&{COMMITTED}") as events:
        while (event := events.next()) is not None:
            if event.kind == "data":
                found += event.data
            elif event.json.get("upToDate") or "blockedBy" in event.json:
                return found.encode()
    raise AssertionError("the event stream ended")


def shown(stream: Stream) -> bytes:
    """Return what is committed; check that every kind of read returns the same."""
    found = by_catch_up(stream)
    for way in (by_frames, by_long_poll, by_events):
        assert way(stream) == found, way.__name__
    return found


def state_of(txn: Txn) -> str:
    state: str = txn.status().json["state"]
    return state


def view(server: Server, streams: list[str], txns: list[Txn], groups: list[str]) -> Any:
    """Return everything a server reports, to compare it before and after a recovery."""
    listed = call(server, "GET", "/v1/transactions?limit=1000").json
    sinks = call(server, "GET", "/v1/sinks").json
    apps = [sink["app"] for sink in sinks["sinks"]]
    return {
        "undecided": [_ageless(each) for each in listed["transactions"]],
        "transactions": [_ageless(txn.status().json) for txn in txns],
        "streams": {path: _stream_view(server.stream(path)) for path in streams},
        "listed": call(server, "GET", "/v1/streams").json,
        "producers": [call(server, "GET", f"/v1/producers?stream={path}").json for path in streams],
        "groups": {
            group: [
                _group_view(server, group),
                call(server, "GET", f"/v1/groups/{group}/snapshot").json,
            ]
            for group in groups
        },
        "sinks": [sinks, *(call(server, "GET", f"/v1/sinks/{app}").json for app in apps)],
    }


def _group_view(server: Server, group: str) -> Any:
    found = call(server, "GET", f"/v1/groups/{group}/offsets").json
    pending = {path: _ageless(move) for path, move in found["pending"].items()}
    return {**found, "pending": pending}


def _ageless(document: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in document.items() if name not in _AGES}


def _stream_view(stream: Stream) -> Any:
    pages = [
        stream.get(f"offset=-1&isolation={isolation}", accept=accept)
        for isolation in ("read_committed", "read_uncommitted")
        for accept in ("*/*", FRAMES)
    ]
    return [(page.status, page.headers, page.body) for page in (*pages, stream.head())]
