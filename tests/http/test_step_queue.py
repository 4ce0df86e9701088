"""How much of a turn of the event loop the steps of requests and the chunks of a body take."""

import asyncio

import pytest

from semel.server import listener
from semel.server.http import Head, Request
from semel.server.limits_http import HttpLimits
from semel.server.request_body import PartialBody
from semel.server.request_head import CHUNKED
from tests.http.harness import each_loop, echo, get, serving


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
