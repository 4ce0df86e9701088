"""A server for the tests of a file, and a client: a test with the client runs once per kind."""

from collections.abc import Iterator
from itertools import count
from typing import Any, Final

import pytest

import semel
from semel import Client
from semel.client.local import LocalServer
from semel.client.sync.stream import Stream
from tests.integration.both import KINDS, client_of
from tests.integration.place import Place
from tests.integration.recorder import Recorder, forwarding
from tests.spec.process import Server, sound_server

PLACE_NUMBERS: Final = count()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with sound_server(tmp_path_factory.mktemp("server") / "data") as it:
        yield it


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def client(kind: str, server: Server) -> Iterator[Any]:
    with client_of(kind, server.url) as it:
        yield it


@pytest.fixture
def recorder(server: Server) -> Iterator[Recorder]:
    """A server that forwards every request, and keeps it."""
    with Recorder(forwarding(server.port)) as it:
        yield it


@pytest.fixture
def orders(server: Server) -> Iterator[Stream]:
    """A new JSON stream, of a client of its own."""
    with Client(server.url) as it:
        yield it.stream(server.stream().path).create("application/json")


@pytest.fixture(scope="module")
def local_server() -> Iterator[LocalServer]:
    with semel.local() as it:
        yield it


@pytest.fixture
def place(local_server: LocalServer) -> Place:
    return Place(local_server, next(PLACE_NUMBERS))
