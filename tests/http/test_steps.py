"""Requests that are handled in steps: the loop serves other requests between two steps."""

import json
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeVar

import pytest

from semel.broker.engine import Engine
from semel.broker.figures import figure_steps
from semel.broker.settings import Settings
from semel.model.limits import MIB
from semel.model.steps import STEP_BYTES, sort_steps
from semel.model.steps import Steps as StepsOf
from semel.server import app
from semel.server.app import App
from semel.server.http import Request, Responder, Response
from semel.wire import groups, json_mode
from tests.http.harness import (
    Server,
    each_loop,
    eventually,
    get,
    no_webhooks,
    post,
    put,
    serving,
)

T = TypeVar("T")
R = TypeVar("R")


class Steps:
    """A handler. `/slow` takes steps until `/release` comes. `/late` is answered even later."""

    def __init__(self) -> None:
        self.handled: list[str] = []
        self.steps = 0
        self.is_released = False
        self.late: Responder | None = None

    def __call__(self, request: Request, responder: Responder) -> None:
        path = request.path
        if path == "/release":
            self.is_released = True
        if path in ("/slow", "/late", "/broken"):
            responder.run(self._run(path, responder))
        else:
            self._finish(path, responder)

    def _run(self, path: str, responder: Responder) -> Iterator[None]:
        while not self.is_released:
            self.steps += 1
            yield
        if path == "/broken":
            raise RuntimeError("a step failed")
        if path == "/late":
            self.handled.append(path)
            self.late = responder
        else:
            self._finish(path, responder)

    def _finish(self, path: str, responder: Responder) -> None:
        self.handled.append(path)
        responder.send(Response(200, [("X-Path", path)]))


@each_loop
def test_other_connections_are_served_between_two_steps(loop: str) -> None:
    """Only they can end the steps: if the loop were held, the test would not end."""
    steps = Steps()
    with serving(steps, loop=loop) as server, server.connect() as slow, server.connect() as other:
        slow.send(get("/slow"))
        assert eventually(lambda: steps.steps > 3)
        for path in ("/a", "/b", "/release"):
            other.send(get(path))
            assert other.answer().headers["x-path"] == path
        assert slow.answer().headers["x-path"] == "/slow"


@each_loop
def test_later_requests_of_the_connection_wait_for_the_last_step(loop: str) -> None:
    steps = Steps()
    with serving(steps, loop=loop) as server, server.connect() as slow, server.connect() as other:
        slow.send(put("/before") + put("/slow") + put("/next") + get("/read"))
        assert eventually(lambda: steps.steps > 3)
        slow.send(put("/last"))
        other.send(get("/release"))
        assert other.answer().status == 200
        answers = [slow.answer().headers["x-path"] for _ in range(5)]
        assert answers == ["/before", "/slow", "/next", "/read", "/last"]
    assert steps.handled == ["/before", "/release", "/slow", "/next", "/read", "/last"]


@each_loop
def test_after_the_last_step_later_requests_do_not_wait_for_the_response(loop: str) -> None:
    steps = Steps()
    with serving(steps, loop=loop) as server, server.connect() as slow, server.connect() as other:
        slow.send(put("/late") + put("/next"))
        assert eventually(lambda: steps.steps > 3)
        other.send(get("/release"))
        assert other.answer().status == 200
        assert eventually(lambda: steps.handled[-1] == "/next")
        late = steps.late
        assert late is not None
        server.call(lambda: late.send(Response(200, [("X-Path", "/late")])))
        assert [slow.answer().headers["x-path"] for _ in range(2)] == ["/late", "/next"]


@each_loop
def test_a_step_that_fails_is_500_and_ends_the_connection(loop: str) -> None:
    steps = Steps()
    with (
        serving(steps, loop=loop, may_log=True) as server,
        server.connect() as slow,
        server.connect() as other,
    ):
        slow.send(put("/broken") + put("/next"))
        assert eventually(lambda: steps.steps > 3)
        other.send(get("/release"))
        assert other.answer().status == 200
        answer = slow.answer()
        assert (answer.status, answer.json["applied"]) == (500, "unknown")
        assert slow.is_closed()
        assert server.still_serves()
    assert [record.getMessage() for record in server.logged] == ["a request failed"]
    assert "/next" not in steps.handled


@each_loop
def test_the_steps_of_a_client_that_left_go_on(loop: str) -> None:
    """A request that was received is applied, whether or not somebody waits for the response."""
    steps = Steps()
    with serving(steps, loop=loop) as server, server.connect() as other:
        with server.connect() as slow:
            slow.send(put("/slow"))
            assert eventually(lambda: steps.steps > 3)
        assert eventually(lambda: server.listener.connection_count == 1)
        other.send(get("/release"))
        assert other.answer().status == 200
        assert eventually(lambda: "/slow" in steps.handled)


# ---- the requests of the application -------------------------------------------------------------

JSON: Final = "application/json"
LONG: Final = b"[" + b",".join([b"[]"] * STEP_BYTES) + b"]"
MANY_STEPS: Final = 1_000_000  # more than the loop can run before a client gets a response


class Gate:
    """Replaces a check of long JSON by one that goes on until the gate is opened."""

    def __init__(self) -> None:
        self.steps = 0
        self.is_open = False
        self.was_open: bool | None = None  # when the last step was taken

    def check(self, _payload: bytes, _sizes: Sequence[int]) -> StepsOf[bool]:
        while not self.is_open and self.steps < MANY_STEPS:
            self.steps += 1
            yield
        self.was_open = self.is_open
        return False

    def before(self, real: Callable[[T], StepsOf[R]]) -> Callable[[T], StepsOf[R]]:
        """Return the same computation, which begins when the gate is open."""

        def gated(argument: T) -> StepsOf[R]:
            yield from self.check(b"", ())
            return (yield from real(argument))

        return gated


@contextmanager
def serving_app(data: Path) -> Iterator[Server]:
    """Run a server with the whole application."""
    apps: list[App] = []

    def handler(request: Request, responder: Responder) -> None:
        apps[0].handle(request, responder)

    async def begin() -> Engine:
        engine = await Engine.open(str(data), Settings(16 * MIB, reserve_bytes=0))
        apps.append(App(engine, webhooks=no_webhooks(), long_poll_seconds=5, sse_seconds=60))
        return engine

    with serving(handler) as server:
        engine: Engine = server.run(begin())
        try:
            yield server
        finally:
            server.run(server.listener.drain(0.0))
            server.run(engine.close())


def write(method: str, target: str, body: bytes, content_type: str = JSON) -> bytes:
    return post(body, f"Content-Type: {content_type}", path=target).replace(
        b"POST", method.encode(), 1
    )


def batch_of(message: bytes) -> bytes:
    head = struct.pack("<4sHHI", b"SMB1", 0, len(JSON), 1)
    return head + JSON.encode() + struct.pack("<I", len(message)) + message


def commit_of(messages: bytes) -> bytes:
    document = {"producer_id": "p", "producer_epoch": 0, "producer_seq": 0}
    appends = b'[{"stream":"s","messages":[%b]}]' % messages
    return json.dumps(document).encode()[:-1] + b',"appends":' + appends + b"}"


@pytest.mark.parametrize(
    ("long", "status"),
    [
        (write("POST", "/v1/stream/s", b"[" + LONG + b"]"), 204),
        (write("POST", "/v1/stream/s", batch_of(LONG), "application/vnd.semel.batch"), 204),
        (write("PUT", "/v1/stream/new", b"[" + LONG + b"]"), 201),
        (write("POST", "/v1/commits", commit_of(LONG)), 200),
    ],
    ids=["append", "batch", "create", "commit"],
)
def test_another_client_is_served_between_the_steps_of_a_long_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, long: bytes, status: int
) -> None:
    """The check of the long write ends after the response to the other client, or too late."""
    gate = Gate()
    with serving_app(tmp_path) as server, server.connect() as slow, server.connect() as other:
        assert other.ask(write("PUT", "/v1/stream/s", b"")).status == 201
        assert other.ask(write("POST", "/v1/producers", b'{"producer_id":"p"}')).status == 201
        monkeypatch.setattr(json_mode, "any_deep_steps", gate.check)
        slow.send(long)
        assert eventually(lambda: gate.steps > 3)
        assert other.ask(get("/v1/stream/s?offset=-1")).status == 200
        gate.is_open = True
        assert slow.answer().status == status
    assert gate.was_open


@pytest.mark.parametrize("target", ["/v1/groups/g/offsets", "/metrics"])
def test_another_client_is_served_between_the_steps_of_a_long_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    gate = Gate()
    with serving_app(tmp_path) as server, server.connect() as slow, server.connect() as other:
        for path in ("s", "r"):
            assert other.ask(write("PUT", f"/v1/stream/{path}", b"")).status == 201
        moves = write("POST", "/v1/groups/g/offsets", b'{"offsets":{"s":0,"r":0}}')
        assert other.ask(moves).status == 200
        before = other.ask(get(target)).body
        monkeypatch.setattr(groups, "STEP_ROWS", 1)
        monkeypatch.setattr(groups, "sort_steps", gate.before(sort_steps))
        monkeypatch.setattr(app, "figure_steps", gate.before(figure_steps))
        slow.send(get(target) + get("/health"))
        assert eventually(lambda: gate.steps > 3)
        assert other.ask(get("/v1/stream/s?offset=-1")).status == 200
        gate.is_open = True
        # The last line is the same: the positions, or a metric of a new directory.
        assert slow.answer().body.splitlines()[-1] == before.splitlines()[-1]
        assert slow.answer().json["status"] == "ok"
    assert gate.was_open
