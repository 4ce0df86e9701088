"""The adapter for the public client suite still does what the suite asks of it."""

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.spec.txn_calls import fresh


class Adapter:
    """A running adapter."""

    def __init__(self, option: str) -> None:
        command = [sys.executable, "-m", "tests.interop.client_adapter", option]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __call__(self, type: str, **fields: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"type": type, **fields}) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def end(self) -> int:
        self("shutdown")
        self._process.communicate(timeout=20)
        return self._process.returncode


@pytest.fixture(params=["--sync", "--async"])
def adapter(request: pytest.FixtureRequest, reference_url: str) -> Iterator[Adapter]:
    running = Adapter(request.param)
    assert running("init", serverUrl=reference_url)["features"]["dynamicHeaders"] is True
    yield running
    assert running.end() == 0


def test_it_creates_appends_reads_and_deletes(adapter: Adapter) -> None:
    path = f"/{fresh('stream')}"
    assert adapter("create", path=path, contentType="text/plain")["status"] == 201
    assert adapter("create", path=path, contentType="text/plain")["status"] == 200
    adapter("set-dynamic-header", name="X-Count", valueType="counter")
    assert adapter("append", path=path, data="a")["headersSent"] == {"X-Count": "1"}
    offset = adapter("append", path=path, data="b")["offset"]
    read = adapter("read", path=path)
    assert [chunk["data"] for chunk in read["chunks"]] == ["ab"]
    assert (read["offset"], read["upToDate"], read["streamClosed"]) == (offset, True, False)
    assert adapter("delete", path=path)["success"] is True
    missing = adapter("head", path=path)
    assert (missing["errorCode"], missing["status"]) == ("NOT_FOUND", 404)
    assert path in missing["message"]


@pytest.mark.parametrize("live", ["long-poll", "sse", True])
def test_it_follows_a_stream_as_long_as_it_is_asked_to(adapter: Adapter, live: Any) -> None:
    path = f"/{fresh('stream')}"
    adapter("create", path=path, contentType="text/plain", data="a")
    at_tail = adapter("read", path=path, live=live, waitForUpToDate=True, timeoutMs=20_000)
    assert [chunk["data"] for chunk in at_tail["chunks"]] == ["a"]
    assert at_tail["upToDate"] is True
    silent = adapter("read", path=path, live=live, offset=at_tail["offset"], timeoutMs=100)
    assert silent["chunks"] == []
    assert silent["upToDate"] is True
