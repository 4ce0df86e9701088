"""Fixtures: one server per worker, and the packages installed by npm."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.interop.node_server import reference_server
from tests.spec.process import Server, Stream, sound_server

HOME: Final = Path(__file__).resolve().parents[2] / "build" / "interop"


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with sound_server(tmp_path_factory.mktemp("interop") / "data") as it:
        yield it


@pytest.fixture
def stream(server: Server) -> Stream:
    """A stream with an unused path."""
    return server.stream()


@pytest.fixture(scope="session")
def packages() -> Path:
    """The folder where node finds the official client and the reference server."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("node or npm is missing")
    if not (HOME / ".installed").exists():
        pytest.fail("the packages are not installed: run `make build/interop/.installed`")
    return HOME


@pytest.fixture(scope="session")
def reference_url(packages: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a reference server."""
    with reference_server(tmp_path_factory.mktemp("node"), packages) as url:
        yield url
