"""One server for each test worker. At the end it must be healthy, with an empty stderr."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.spec.clock_rig import Machine, running_machine
from tests.spec.process import Server, Stream, sound_server


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with sound_server(tmp_path_factory.mktemp("spec") / "data") as it:
        yield it


@pytest.fixture
def stream(server: Server) -> Stream:
    """A stream with an unused path."""
    return server.stream()


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    """A machine whose clock the test moves."""
    with running_machine(tmp_path, monkeypatch) as it:
        yield it
