"""Requests that are handled in steps: the loop serves other requests between two steps."""

import asyncio
from collections.abc import Iterator

import pytest

from semel.server import listener
from semel.server.http import Head, Request, Responder, Response
from semel.server.limits_http import HttpLimits
from semel.server.request_body import PartialBody
from semel.server.request_head import CHUNKED
from tests.http.harness import each_loop, echo, eventually, get, put, serving


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


def test_the_steps_of_all_requests_together_take_a_limited_part_of_a_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each step takes 6 ms by the clock of the test, so two of them run on one turn."""
    now = 0.0
    turns: list[int] = []

    def step() -> None:
        nonlocal now
        now += 0.006
        turns[-1] += 1

    async def run() -> None:
        monkeypatch.setattr(listener, "monotonic", lambda: now)
        queue = listener.StepQueue()
        for _ in range(7):
            queue.add(step)
        while sum(turns) < 7:
            turns.append(0)
            await asyncio.sleep(0)

    asyncio.run(run())
    assert [count for count in turns if count] == [2, 2, 2, 1]


def test_other_connections_are_served_between_the_parts_of_a_body_with_many_chunks() -> None:
    """One-byte chunks take long to parse, so the parser stops after some thousands of them."""
    limits = HttpLimits()
    request = Request(Head("POST", "/", "", {}))
    body = PartialBody(request, CHUNKED, limits)
    data = b"1\r\nA\r\n" * 60_000 + b"0\r\n\r\n"
    position, calls = 0, 0
    while not body.is_complete:
        assert calls == 0 or body.needs_turn
        position, _ = body.take(data, position)
        calls += 1
    assert (position, request.body) == (len(data), b"A" * 60_000)
    assert calls > 10
    assert not body.needs_turn


@each_loop
def test_a_body_with_many_chunks_arrives_complete(loop: str) -> None:
    data = b"1\r\nA\r\n" * 60_000 + b"0\r\n\r\n"
    head = b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    with serving(echo, loop=loop) as server, server.connect() as client:
        for _ in range(2):
            client.send(head + data + get("/next"))
            assert client.answer().json["body"] == "A" * 60_000
            assert client.answer().json["path"] == "/next"
