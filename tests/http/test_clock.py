"""The whole server with a wrong clock: in 1970, in 2099, and set back."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from semel.broker.engine import Engine
from semel.broker.settings import Settings
from semel.model.limits import HOUR_MS
from semel.server.app import App
from semel.server.http import Handler, Request, Responder
from semel.server.limits_http import HttpLimits
from tests.http.harness import Answer, Server, echo, eventually, no_webhooks, serving

AT_1970: Final = 0
AT_2026: Final = 1_790_000_000_000
AT_2099: Final = 4_070_908_800_000
SETTINGS: Final = Settings(segment_bytes=64 * 1024, reserve_bytes=0)


class WrongClock:
    """A clock that returns the times that the test has set."""

    def __init__(self, now_ms: int) -> None:
        self.time_ms = now_ms
        self.elapsed_ms = 0

    def let_pass(self, ms: int) -> None:
        """Let time pass. To make the clock wrong instead, set `time_ms` alone."""
        self.time_ms += ms
        self.elapsed_ms += ms

    def now_ms(self) -> int:
        return self.time_ms

    def monotonic_ms(self) -> int:
        return self.elapsed_ms

    def random_bytes(self, count: int) -> bytes:
        return os.urandom(count)


class Bed:
    """A server in this process, with an engine on a real directory."""

    def __init__(self, server: Server, clock: WrongClock, engine: Engine) -> None:
        self.clock = clock
        self._server = server
        self._engine = engine

    def run_for(self, hours: int) -> None:
        """Let the server run for so long. Each hour it sweeps once."""
        for _ in range(hours):
            self.clock.let_pass(HOUR_MS)
            self._server.call(self._engine._sweep)

    def ask(self, method: str, path: str, body: bytes = b"", **fields: object) -> Answer:
        """Send a request for a stream."""
        return self.call(method, f"stream/{path}", body, **fields)

    def call(self, method: str, target: str, body: bytes = b"", **fields: object) -> Answer:
        lines = [f"{method} /v1/{target} HTTP/1.1", "Host: localhost"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in fields.items()]
        lines += [f"Content-Length: {len(body)}", "", ""]
        with self._server.connect() as client:
            return client.ask("\r\n".join(lines).encode() + body, is_head=method == "HEAD")

    def append(self, target: str, body: bytes, **fields: object) -> Answer:
        return self.ask("POST", target, body, content_type="text/plain", **fields)


@contextmanager
def a_bed(data: Path, now_ms: int) -> Iterator[Bed]:
    clock = WrongClock(now_ms)
    apps: list[App] = []

    def handler(request: Request, responder: Responder) -> None:
        apps[0].handle(request, responder)

    with serving(handler, clock=clock) as server:

        async def begin() -> Engine:
            engine = await Engine.open(str(data), SETTINGS, clock=clock)
            apps.append(
                App(engine, webhooks=no_webhooks(), long_poll_seconds=0.05, sse_seconds=0.05)
            )
            return engine

        engine: Engine = server.run(begin())
        try:
            yield Bed(server, clock, engine)
        finally:
            server.run(engine.close())


@pytest.mark.parametrize("now_ms", [AT_1970, AT_2099])
def test_a_server_works_with_a_clock_far_off(tmp_path: Path, now_ms: int) -> None:
    with a_bed(tmp_path, now_ms) as bed:
        assert bed.ask("PUT", "s", content_type="text/plain").status == 201
        producer = {"producer_id": "p", "producer_epoch": 0, "producer_seq": 0}
        assert bed.append("s", b"x", **producer).status == 200
        assert bed.append("s", b"x", **producer).status == 204
        assert bed.ask("GET", "s").body == b"x"
        waited = bed.ask("GET", "s?offset=now&live=long-poll")
        assert (waited.status, waited.headers["stream-cursor"].isdigit()) == (204, True)
        events = bed.ask("GET", "s?offset=-1&live=sse")
        assert events.body.startswith(b"event: data\ndata:x\n\nevent: control\n")
        assert b'"streamCursor":"-' not in events.body


def dates(data: bytes) -> set[bytes]:
    return set(re.findall(rb"\r\nDate: ([^\r]*)\r\n", data))


def everything(server: Server, request: bytes) -> bytes:
    with server.connect() as client:
        client.send(request)
        return client.file.read()


def in_pieces(request: Request, responder: Responder) -> None:
    stream = responder.start(200, [])
    stream.write(request.path.encode())
    stream.end()


LAST: Final = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


@pytest.mark.parametrize("handler", [echo, in_pieces])
@pytest.mark.parametrize("request_bytes", [LAST, b"nonsense\r\n\r\n"])
def test_every_answer_tells_the_date(handler: Handler, request_bytes: bytes) -> None:
    """RFC 9110, 6.6.1: also streamed responses and refusals by the connection have a date."""
    with serving(handler, clock=WrongClock(AT_1970)) as server:
        assert dates(everything(server, request_bytes)) == {b"Thu, 01 Jan 1970 00:00:00 GMT"}


def test_a_crowded_server_tells_the_date_too() -> None:
    limits = HttpLimits(connections_max=1)
    with serving(limits=limits, clock=WrongClock(AT_1970)) as server, server.connect():
        assert eventually(lambda: server.call(lambda: server.listener.connection_count) == 1)
        assert dates(everything(server, LAST)) == {b"Thu, 01 Jan 1970 00:00:00 GMT"}


def test_the_date_goes_on() -> None:
    clock = WrongClock(AT_1970)
    with serving(limits=HttpLimits(linger_seconds=0.1), clock=clock) as server:
        everything(server, LAST)
        clock.time_ms = AT_2099
        late = {b"Thu, 01 Jan 2099 00:00:00 GMT"}
        assert eventually(lambda: dates(everything(server, LAST)) == late)


def test_a_date_is_compared_with_the_clock_as_it_is_now(tmp_path: Path) -> None:
    with a_bed(tmp_path, AT_2026) as bed:
        date = "2050-01-01T00:00:00Z"
        fields = {"content_type": "text/plain", "stream_expires_at": date}
        assert bed.ask("PUT", "dated", b"x", **fields).status == 201
        bed.clock.time_ms = AT_1970
        assert bed.ask("HEAD", "dated").headers["stream-expires-at"] == "2050-01-01T00:00:00.000Z"
        assert bed.append("dated", b"y").status == 204
        bed.clock.time_ms = AT_2099
        assert bed.ask("GET", "dated").status == 404
        bed.clock.time_ms = AT_2026
        assert bed.ask("GET", "dated").status == 404  # an expired stream stays expired
        assert bed.ask("PUT", "dated", b"", **fields).status == 201


def test_a_clock_that_falls_back_ends_no_stream_and_doubles_nothing(tmp_path: Path) -> None:
    producer = {"producer_id": "p", "producer_epoch": 0, "producer_seq": 0}
    with a_bed(tmp_path, AT_2099) as bed:
        bed.ask("PUT", "s", content_type="text/plain", stream_ttl=60)
        first = bed.append("s", b"x", **producer)
        bed.clock.time_ms = AT_1970
        assert bed.ask("GET", "s").body == b"x"
        assert bed.append("s", b"x", **producer).status == 204
        assert bed.append("s", b"y").status == 204
    with a_bed(tmp_path, AT_1970) as bed:
        again = bed.append("s", b"x", **producer)
        assert (again.status, again.headers["stream-next-offset"]) == (
            204,
            first.headers["stream-next-offset"],
        )
        assert bed.ask("GET", "s").body == b"xy"
        bed.clock.time_ms = AT_2099 + 61_000
        assert bed.ask("HEAD", "s").status == 200  # a wrong clock ends no time to live
        bed.clock.let_pass(60_000)
        assert bed.ask("GET", "s").status == 404
        assert bed.ask("PUT", "s", content_type="text/plain").status == 201


def test_idle_event_streams_end_with_any_clock(tmp_path: Path) -> None:
    with a_bed(tmp_path, AT_2099) as bed:
        bed.ask("PUT", "s", content_type="text/plain")
        bed.clock.time_ms = AT_1970
        assert b'"upToDate":true' in bed.ask("GET", "s?offset=now&live=sse&cursor=1").body
