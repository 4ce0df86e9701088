"""Requests that are handled in steps: the loop serves other requests between two steps."""

from collections.abc import Iterator

from semel.server.http import Request, Responder, Response
from tests.http.harness import each_loop, eventually, get, put, serving


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
