"""Plays recorded exchanges again: the requests to a server, or the responses to a client."""

import json
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import semel
from tests.golden.exchanges import Connection, Entries, Entry, Response
from tests.golden.recorder import Listener, Recording
from tests.golden.scenario import STEPS
from tests.golden.scenario_run import SYNC, UNKNOWN_FIELD, BlockingClient, ScenarioRun, outcome_of

Change = Callable[[Response], Response]
_NOT_RECORDED: Final = Response(418, body=b"this request was not recorded")

# Objects by the names of streams and groups: another key in them would be one more stream.
_MAPS: Final = frozenset({"offsets", "versions", "pending", "streams", "ranges"})
# Those whose values are such objects, or no objects at all.
_MAPS_OF_PLAIN: Final = frozenset({"offsets", "versions"})


# ---- old client, new server ----------------------------------------------------------------------


def resend(requests: Sequence[Entry], port: int) -> Recording:
    """Send recorded requests to a server and record what it answers.

    Placeholders are filled with what the server has told; names the client chose are new ones.
    """
    recording = Recording()
    recording.entries.names.port = port
    connection = Connection.to(port)
    for entry in requests:
        recording.begin(str(entry["step"]))
        recording.pause(entry.get("after_ms", 0) / 1000)
        recording.wait_for_next_ms()
        request = recording.entries.to_request(entry)
        recording.add_request(request)
        connection.send(request.encoded())
        response = connection.response(request.method)
        recording.add_response(response)
        if response.closes:
            connection.close()
            connection = Connection.to(port)
    connection.close()
    return recording


# ---- new client, old server ----------------------------------------------------------------------


class ReplayServer(Listener):
    """Answers a client with recorded responses: each step of the scenario gets its own, in order.

    What the client sends is recorded, to be compared. `change` may alter a response on its way.
    """

    def __init__(
        self, requests: Sequence[Entry], responses: Sequence[Entry], change: Change | None = None
    ) -> None:
        self.recording = Recording()
        self._change = change
        self._pending: dict[str, deque[Entry]] = defaultdict(deque)
        for request, response in zip(requests, responses, strict=True):
            self._pending[request["step"]].append(response)
        self._turn = threading.Lock()
        super().__init__()

    def begin(self, step: str) -> None:
        self.recording.begin(step)

    def pause(self, seconds: float) -> None:
        """Let no time pass: what would happen meanwhile is recorded."""
        self.recording.note_pause(seconds)

    def add_result(self, result: Entry) -> None:
        self.recording.add_result(result)

    def serve(self, connection: Connection) -> None:
        while (request := connection.request()) is not None:
            with self._turn:
                self.recording.add_request(request)
                response = self._next()
            connection.send(response.encoded(request.method))

    def _next(self) -> Response:
        pending = self._pending[self.recording.step]
        if not pending:
            return _NOT_RECORDED
        response = self.recording.entries.to_response(pending.popleft())
        return response if self._change is None else self._change(response)


def replay(
    kind: str,
    requests: Sequence[Entry],
    responses: Sequence[Entry],
    change: Change | None = None,
    steps: Sequence[Callable[[ScenarioRun], Any]] = STEPS,
) -> Recording:
    """Carry out the scenario with a client of a kind and a server that replays."""
    with ReplayServer(requests, responses, change) as server:
        with ScenarioRun(kind, server.url, server) as run:
            run.run_steps(steps)
        return server.recording


# ---- refusals, as the client understands them ----------------------------------------------------


class FixedResponseServer(Listener):
    """Answers every request with the response it is told."""

    response = _NOT_RECORDED

    def serve(self, connection: Connection) -> None:
        while (request := connection.request()) is not None:
            connection.send(self.response.encoded(request.method))


def errors_of(
    responses: Sequence[Entry], kind: str = SYNC, change: Change | None = None
) -> list[Entry]:
    """Answer a call of the client with each recorded refusal; describe what it raises."""
    found: list[Entry] = []
    made: Any = semel.Client if kind == SYNC else BlockingClient
    with FixedResponseServer() as server, made(server.url, retries=0) as client:
        for entry in responses:
            entries = Entries()
            response = entries.to_response(entry)
            server.response = response if change is None else change(response)
            shown = outcome_of(lambda: client.stream("refused").delete())
            found.append({"step": entry["step"], **entries.names.normalise_value(shown)})
    return found


def refusals_in(responses: Sequence[Entry]) -> list[Entry]:
    """Choose the refusals that differ in status, code, facts or headers."""
    found: dict[tuple[object, ...], Entry] = {}
    for entry in responses:
        if entry["status"] < 400 or "body" not in entry:
            continue
        problem = _parsed(entry["body"])
        headers = tuple(line.partition(":")[0] for line in entry["headers"])
        found.setdefault((entry["status"], problem["code"], *problem, *headers), entry)
    return list(found.values())


def _parsed(body: str) -> dict[str, Any]:
    """Read a body in which placeholders may stand for numbers."""
    filled = Entries().names.fill(body)
    problem: dict[str, Any] = json.loads(filled)
    return problem


# ---- a later server ------------------------------------------------------------------------------


def with_unknown_fields(response: Response) -> Response:
    """Add a field to every object of a JSON response, and to the control events of a stream."""
    body = response.body
    kind = response.headers.get("content-type", "")
    if kind == "text/event-stream":
        lines = [_event_with_unknown_field(line) for line in body.split(b"\n")]
        body = b"\n".join(lines)
    elif kind in ("application/json", "application/problem+json") and body.startswith(b"{"):
        body = json.dumps(with_unknown_field(json.loads(body))).encode()
    return response._replace(body=body)


def _event_with_unknown_field(line: bytes) -> bytes:
    start = b"data:{"
    if not line.startswith(start) or b"streamNextOffset" not in line:
        return line
    return b"data:" + json.dumps(with_unknown_field(json.loads(line[5:]))).encode()


def with_unknown_field(value: Any, key: str = "") -> Any:
    """Add the field to every object but those by names of streams and groups."""
    if isinstance(value, list):
        return [with_unknown_field(inner) for inner in value]
    if not isinstance(value, Mapping) or key in _MAPS_OF_PLAIN:
        return value
    if key in _MAPS:
        return {name: with_unknown_field(inner) for name, inner in value.items()}
    found = {name: with_unknown_field(inner, name) for name, inner in value.items()}
    return {**found, UNKNOWN_FIELD: {"of": ["a later server", 1]}}


def without_first_field(response: Response) -> Response:
    """Leave the first field out of every JSON response, as no later server may."""
    if response.headers.get("content-type") != "application/json":
        return response
    if not response.body.startswith(b"{"):
        return response
    document: dict[str, Any] = json.loads(response.body)
    document.pop(next(iter(document), ""), None)
    return response._replace(body=json.dumps(document).encode())
