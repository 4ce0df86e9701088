"""Records requests and responses: a proxy, and a sender of plain HTTP."""

import json
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, Self

from tests.golden.exchanges import Broken, Connection, Entries, Entry, Request, Response

# The name, in the golden files, of a request that is sent as raw bytes.
RAW: Final = "raw"


class Recording:
    """The exchanges of one section, in order, and the results of the client's calls."""

    def __init__(self) -> None:
        self.entries = Entries()
        self.requests: list[Entry] = []
        self.responses: list[Entry] = []
        self.results: list[Entry] = []
        self.step = ""
        self._pause_ms = 0
        self._last_ms = 0

    def begin(self, step: str) -> None:
        """Set the name of the step for the next exchanges."""
        self.step = step

    def pause(self, seconds: float) -> None:
        """Wait before the next request, and record the wait with this request."""
        self.note_pause(seconds)
        time.sleep(seconds)

    def note_pause(self, seconds: float) -> None:
        """Record a wait without waiting."""
        self._pause_ms += round(seconds * 1000)

    def wait_for_next_ms(self) -> None:
        """Wait until the time in milliseconds is later than that of the last exchange.

        So the times of two exchanges are never equal by chance.
        """
        while _now_ms() <= self._last_ms:
            time.sleep(0.0002)

    def note_time(self) -> None:
        """Remember the current time as that of the last exchange."""
        self._last_ms = _now_ms()

    def add_request(self, request: Request) -> None:
        self._add(self.entries.of_request(self.step, request))

    def add_raw(self, data: bytes) -> None:
        self._add({"step": self.step, RAW: data.decode("latin-1")})

    def _add(self, entry: Entry) -> None:
        if self._pause_ms:
            entry["after_ms"] = self._pause_ms
            self._pause_ms = 0
        self.requests.append(entry)

    def add_response(self, response: Response) -> None:
        """Record the response to the last request."""
        self.note_time()
        asked = self.requests[-1].get("request", RAW)
        self.responses.append(self.entries.of_response(self.step, asked, response))

    def add_result(self, result: Entry) -> None:
        """Record what a step of the scenario has returned or raised."""
        shown = self.entries.names.normalise_value(result)
        self.results.append({"step": self.step, **shown})


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class Listener:
    """Accepts connections on a loopback port and serves each in a separate thread."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._connections: list[Connection] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for line in (self._socket, *[connection.socket for connection in self._connections]):
            with suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        while True:
            try:
                accepted, _ = self._socket.accept()
            except OSError:
                return
            connection = Connection(accepted)
            self._connections.append(connection)
            self._threads.append(threading.Thread(target=self._serve, args=(connection,)))
            self._threads[-1].start()

    def _serve(self, connection: Connection) -> None:
        with connection.socket, suppress(Broken, OSError):
            self.serve(connection)

    def serve(self, connection: Connection) -> None:
        """Respond to the requests of one connection."""
        raise NotImplementedError


class Proxy(Listener):
    """Forwards requests to a server and records requests and responses, one exchange at a time.

    A message is forwarded when it is complete, so an event stream must end by itself.
    """

    def __init__(self, port: int, recording: Recording) -> None:
        self._server_port = port
        self._recording = recording
        self._turn = threading.Lock()
        super().__init__()

    def serve(self, connection: Connection) -> None:
        server = Connection.to(self._server_port)
        with server.socket:
            while (request := connection.request()) is not None:
                with self._turn:
                    self._recording.wait_for_next_ms()
                    self._recording.add_request(request)
                    server.send(request.encoded())
                    response = server.response(request.method)
                    self._recording.add_response(response)
                connection.send(response.raw)


class Sender:
    """Sends plain HTTP over one connection, and records requests and responses."""

    def __init__(self, port: int, recording: Recording) -> None:
        self.port = port
        self.recording = recording
        self._connection: Connection | None = None

    def __call__(
        self,
        method: str,
        target: str,
        body: Any = None,
        headers: Mapping[str, object] | Sequence[str] = (),
    ) -> Response:
        """Send a request and return the response; a body that is not bytes is sent as JSON."""
        request = plain_request(method, target, body, headers)
        self.recording.wait_for_next_ms()
        self.recording.add_request(request)
        return self._exchange(request.encoded(), method)

    def unrecorded(
        self,
        method: str,
        target: str,
        body: Any = None,
        headers: Mapping[str, object] | Sequence[str] = (),
    ) -> Response:
        """Send one of many similar requests, without recording it, and return the response."""
        request = plain_request(method, target, body, headers)
        self.recording.wait_for_next_ms()
        response = self._ask(request.encoded(), method)
        self.recording.note_time()
        return response

    def send_raw(self, data: bytes) -> Response:
        """Send bytes over a new connection, and return the first response."""
        self.close()
        self.recording.wait_for_next_ms()
        self.recording.add_raw(data)
        return self._exchange(data, RAW)

    def follow(self, target: str, control_count: int) -> None:
        """Read an event stream up to a number of control events, then close the connection."""
        request = plain_request("GET", target)
        self.recording.wait_for_next_ms()
        self.recording.add_request(request)
        connection = Connection.to(self.port)
        with connection.socket:
            connection.send(request.encoded())
            self.recording.add_response(connection.event_stream(control_count))

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _exchange(self, data: bytes, method: str) -> Response:
        response = self._ask(data, method)
        self.recording.add_response(response)
        return response

    def _ask(self, data: bytes, method: str) -> Response:
        if self._connection is None:
            self._connection = Connection.to(self.port)
        with suppress(BrokenPipeError, ConnectionResetError):  # refused before all was sent
            self._connection.send(data)
        response = self._connection.response(method)
        if response.closes or method == RAW:
            self.close()
        return response


def plain_request(
    method: str,
    target: str,
    body: Any = None,
    headers: Mapping[str, object] | Sequence[str] = (),
) -> Request:
    """Build a request; `headers` is a mapping, or a list of lines if a name is repeated."""
    lines = ["Host: semel"]
    if isinstance(headers, Mapping):
        lines += [f"{name}: {value}" for name, value in headers.items()]
    else:
        lines += headers
    if body is not None and not isinstance(body, bytes):
        body = json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode()
    return Request(method, target, tuple(lines), body)
