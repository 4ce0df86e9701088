"""Replays recorded exchanges: the requests to a server, or the responses to a client."""

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

# Objects whose keys are names of streams or groups: a new key would be another stream.
_MAPS: Final = frozenset({"offsets", "versions", "pending", "streams", "ranges"})
# Those whose values are again such objects, or are not objects.
_MAPS_OF_PLAIN: Final = frozenset({"offsets", "versions"})


# ---- old client, new server ----------------------------------------------------------------------


def resend(requests: Sequence[Entry], port: int) -> Recording:
    """Send recorded requests to a server and record its responses.

    Placeholders are replaced by values from the responses; names chosen by the client are new.
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
    """Sends recorded responses to a client: those of the current step, in order.

    The requests of the client are recorded. `change` may change a response before it is sent.
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
        """Do not wait: the recorded responses already contain the effect of the wait."""
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
    """Run the scenario with a client of this kind and a server that replays."""
    with ReplayServer(requests, responses, change) as server:
        with ScenarioRun(kind, server.url, server) as run:
            run.run_steps(steps)
        return server.recording


# ---- refusals, as the client understands them ----------------------------------------------------


class FixedResponseServer(Listener):
    """Sends the same response to every request."""

    response = _NOT_RECORDED

    def serve(self, connection: Connection) -> None:
        while (request := connection.request()) is not None:
            connection.send(self.response.encoded(request.method))


def errors_of(
    responses: Sequence[Entry], kind: str = SYNC, change: Change | None = None
) -> list[Entry]:
    """Send each recorded refusal to the client; return what the client raises."""
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
    """Return one refusal for each set of status, code, field names and header names."""
    found: dict[tuple[object, ...], Entry] = {}
    for entry in responses:
        if entry["status"] < 400 or "body" not in entry:
            continue
        problem = _parsed(entry["body"])
        problem = problem.get("error", problem)
        codes = problem["code"], problem.get("cause")
        headers = tuple(line.partition(":")[0] for line in entry["headers"])
        found.setdefault((entry["status"], *codes, *problem, *headers), entry)
    return list(found.values())


def _parsed(body: str) -> dict[str, Any]:
    """Parse a JSON body that may have placeholders instead of numbers."""
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
    """Add the field to every object, except to those whose keys are streams or groups."""
    if isinstance(value, list):
        return [with_unknown_field(inner) for inner in value]
    if not isinstance(value, Mapping) or key in _MAPS_OF_PLAIN:
        return value
    if key in _MAPS:
        return {name: with_unknown_field(inner) for name, inner in value.items()}
    found = {name: with_unknown_field(inner, name) for name, inner in value.items()}
    return {**found, UNKNOWN_FIELD: {"of": ["a later server", 1]}}


def without_first_field(response: Response) -> Response:
    """Remove the first field of a JSON response, which a later server must not do."""
    if response.headers.get("content-type") != "application/json":
        return response
    if not response.body.startswith(b"{"):
        return response
    document: dict[str, Any] = json.loads(response.body)
    document.pop(next(iter(document), ""), None)
    return response._replace(body=json.dumps(document).encode())
