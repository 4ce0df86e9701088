"""A hostile web page in a real browser: it reads nothing, writes nothing, and blocks no reader."""

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests.browser.conftest import HOSTILE_NAME
from tests.browser.site import SECRET, fill, hostile_site, state_of
from tests.media_types import TYPES_WITH_COMMAS
from tests.spec.earlier_streams import create_streams
from tests.spec.process import Later, Server

if TYPE_CHECKING:
    from playwright.sync_api import Frame, Page

ATTEMPTS_MIN = 45


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    it = Server(tmp_path / "data")
    try:
        fill(it)
        yield it
    finally:
        it.kill()


def attack(page: "Page | Frame", base: str) -> dict[str, str]:
    """Let the page attack the server; return what the page got from each attempt."""
    got: dict[str, str] = page.evaluate("(base) => attack(base)", base)
    assert len(got) >= ATTEMPTS_MIN
    return got


def readable(got: dict[str, str]) -> dict[str, str]:
    return {attempt: text for attempt, text in got.items() if not text.startswith("- ")}


def check_no_reader_waits(server: Server) -> None:
    """A reader at read_committed must be at the tail, and get the next message at once."""
    orders = server.stream("orders")
    tail = orders.tail
    read = orders.get("offset=-1&isolation=read_committed")
    assert read.headers.get("stream-up-to-date") == "true"
    assert "stream-blocked-by" not in read.headers
    waiting = Later(orders, f"offset={tail}&live=long-poll&isolation=read_committed")
    assert orders.post(b'{"order": 3}', content_type="application/json").status == 204
    assert waiting.answer().json == [{"order": 3}]


@pytest.mark.parametrize("host", ["127.0.0.1", HOSTILE_NAME, "localhost"])
def test_a_page_of_another_origin_can_neither_read_nor_write(
    page: "Page", server: Server, host: str
) -> None:
    """On 127.0.0.1 the page is on the same site, on another port; otherwise on another site."""
    before = state_of(server)
    with hostile_site() as port:
        page.goto(f"http://{host}:{port}/")
        got = attack(page, server.url)
    assert readable(got) == {}
    assert state_of(server) == before
    check_no_reader_waits(server)


def test_a_sandboxed_page_whose_origin_is_null_can_neither_read_nor_write(
    page: "Page", server: Server
) -> None:
    before = state_of(server)
    with hostile_site() as port:
        page.goto(f"http://127.0.0.1:{port}/sandboxed")
        frame = page.frames[1]
        frame.wait_for_load_state()
        assert frame.evaluate("self.origin") == "null"
        got = attack(frame, server.url)
    assert readable(got) == {}
    assert state_of(server) == before
    check_no_reader_waits(server)


def test_a_page_whose_name_is_rebound_to_the_server_can_neither_read_nor_write(
    page: "Page", server: Server
) -> None:
    """For the browser, the page and the server have the same origin: only Host differs.

    The page is loaded from the port of the server while the server is down. Then the name of the
    page leads to the server, as after a change in the attacker's DNS.
    """
    before = state_of(server, "deadline")  # timeouts start again with the server
    server.signal(signal.SIGTERM)
    server.wait()
    url = f"http://{HOSTILE_NAME}:{server.port}"
    with hostile_site(server.port):
        page.goto(f"{url}/")
    rebound = Server(server.data, port=server.port)
    try:
        got = attack(page, url)
        answers = readable(got)
        assert len(answers) > ATTEMPTS_MIN / 2  # the page can read the refusals
        for attempt, text in answers.items():
            assert text.startswith("421 ") or "host_not_allowed" in text, (attempt, text)
        assert state_of(rebound, "deadline") == before
        check_no_reader_waits(rebound)
    finally:
        rebound.kill()


def test_a_listed_origin_can_read_and_append_and_no_other_can(page: "Page", tmp_path: Path) -> None:
    with hostile_site() as port:
        listed = f"http://127.0.0.1:{port}"
        server = Server(tmp_path / "data", "--cors-origin", listed)
        try:
            fill(server)
            before = state_of(server)
            page.goto(f"http://localhost:{port}/")  # the same page, but another origin
            assert readable(attack(page, server.url)) == {}
            assert state_of(server) == before
            page.goto(f"{listed}/")
            got = attack(page, server.url)
        finally:
            server.kill()
    for attempt in ("list streams", "read", "read, preflighted", "long-poll", "events"):
        assert SECRET in got[attempt], got
    assert got["append, cors"] == "204 "
    assert got["append, JSON"] == "204 "
    assert got["create"] == "201 "
    assert got["delete"] == "204 "
    # Even a page of a listed origin needs JSON for semel's own calls, and cannot load streams as
    # scripts, frames or windows.
    assert got["begin, cors"].startswith("415 ")
    assert got["raise an epoch, cors"].startswith("415 ")
    assert got["told by frames, windows and scripts"] == "- nothing"


DOCUMENT_TYPES: Final = (
    *("text/html", "application/xhtml+xml", "image/svg+xml", "text/xml", "application/xml"),
    *TYPES_WITH_COMMAS,
)


def root_of(media_type: str) -> str:
    return "svg" if "svg" in media_type else "html"


def document_of(media_type: str) -> bytes:
    """Return a document whose script sets the id of its root element."""
    name = root_of(media_type)
    space = "http://www.w3.org/2000/svg" if name == "svg" else "http://www.w3.org/1999/xhtml"
    script = f'<script xmlns="{space}">document.documentElement.id = "ran"</script>'
    return f'<{name} xmlns="{space}">{script}</{name}>'.encode()


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with a stream for each of the types. Its path is the position of the type."""
    data = tmp_path_factory.mktemp("documents") / "data"
    streams = {str(at): (each, document_of(each)) for at, each in enumerate(DOCUMENT_TYPES)}
    create_streams(data, streams)
    it = Server(data)
    try:
        yield it
    finally:
        it.kill()


@pytest.mark.parametrize("media_type", DOCUMENT_TYPES)
def test_a_stream_that_a_person_opens_in_a_browser_runs_no_script(
    page: "Page", documents: Server, media_type: str
) -> None:
    """Its scripts would have the origin of the server, and could do everything."""
    target = f"/v1/stream/{DOCUMENT_TYPES.index(media_type)}"
    assert documents.ask("HEAD", target).headers["content-type"] == media_type
    answer = page.goto(f"{documents.url}{target}")
    assert answer is not None
    assert answer.status == 200
    assert page.evaluate("document.documentElement.localName") == root_of(media_type)
    assert page.evaluate("document.documentElement.id") == ""
