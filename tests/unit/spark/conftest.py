"""Fixtures: a server, a client, and a replacement for Spark's task context."""

from collections.abc import Iterator
from uuid import uuid4

import pytest

from semel import Client
from semel.testing.in_process import InProcessServer
from tests.unit.spark.sink_world import Current, install


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with InProcessServer() as server:
        yield server.url


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[Client]:
    with Client(url) as it:
        yield it


@pytest.fixture
def current(monkeypatch: pytest.MonkeyPatch) -> Current:
    return install(monkeypatch)


@pytest.fixture
def path() -> str:
    """Return the path of an unused stream."""
    return f"out-{uuid4().hex}"
