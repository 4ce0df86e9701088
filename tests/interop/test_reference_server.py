"""Our side of the protocol against the reference server, not our own."""

import http.client
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.node_server import reference_server
from tests.spec.process import PATIENCE_SECONDS


@pytest.fixture(scope="module")
def url(packages: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with reference_server(tmp_path_factory.mktemp("node"), packages) as url:
        yield url


def test_the_reference_server_takes_a_stream(url: str) -> None:
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=PATIENCE_SECONDS)
    try:
        connection.request("PUT", "/v1/stream/a", headers={"Content-Type": "text/plain"})
        assert connection.getresponse().status == 201
    finally:
        connection.close()
