"""One server with access on for each test worker. At the end it must be healthy and silent."""

from collections.abc import Iterator

import pytest

from tests.access.rig import AccessServer, access_server


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AccessServer]:
    with access_server(tmp_path_factory.mktemp("access") / "data") as it:
        yield it


@pytest.fixture(scope="session")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AccessServer]:
    """A server with `--strict-rights`."""
    with access_server(tmp_path_factory.mktemp("strict") / "data", "--strict-rights") as it:
        yield it
