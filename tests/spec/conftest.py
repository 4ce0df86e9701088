"""One server for each worker, which must have nothing to complain about in the end."""

from collections.abc import Iterator

import pytest

from tests.spec.process import Server, Stream, sound_server


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with sound_server(tmp_path_factory.mktemp("spec") / "data") as it:
        yield it


@pytest.fixture
def stream(server: Server) -> Stream:
    """A path nobody has used."""
    return server.stream()
