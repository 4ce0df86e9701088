"""One server for each worker, which must have nothing to complain about in the end."""

from collections.abc import Iterator

import pytest

from tests.spec.process import Server, Stream


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    it = Server(tmp_path_factory.mktemp("spec") / "data")
    try:
        yield it
        assert it.is_sound(), it.stderr
    finally:
        it.kill()


@pytest.fixture
def stream(server: Server) -> Stream:
    """A path nobody has used."""
    return server.stream()
