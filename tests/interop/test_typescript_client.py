"""The protocol's official TypeScript client against a real server."""

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from tests.spec.process import PATIENCE_SECONDS, Stream, offset_of

SCRIPT: Final = Path(__file__).with_name("client.mjs")
VERSION: Final = "0.2.7"

Run = Callable[[str], Any]


@pytest.fixture
def run(packages: Path, stream: Stream) -> Run:
    """Return a function that runs a scenario of client.mjs and returns its JSON result."""

    def run_one(scenario: str) -> Any:
        url = stream.server.url + stream.target
        with SCRIPT.open("rb") as script:
            found = subprocess.run(
                ["node", "--input-type=module", "-", scenario, url],
                stdin=script,
                cwd=packages,
                capture_output=True,
                timeout=PATIENCE_SECONDS,
                check=False,
            )
        assert found.returncode == 0, found.stderr.decode()
        return msgspec.json.decode(found.stdout)

    return run_one


def test_the_client_is_the_one_named_here(packages: Path) -> None:
    about = packages / "node_modules/@durable-streams/client/package.json"
    assert msgspec.json.decode(about.read_bytes())["version"] == VERSION


def test_it_creates_appends_and_reads(run: Run, stream: Stream) -> None:
    result = run("everyday")
    assert result == {
        "items": [{"id": 1}, {"id": 2}, {"id": 3}, {"id": 4}],
        "rest": [],
        "type": "application/json",
        "offset": offset_of(4),
        "end": offset_of(4),
    }
    assert stream.text == '[{"id":1},{"id":2},{"id":3},{"id":4}]'


def test_it_reads_the_bytes_it_wrote(run: Run, stream: Stream) -> None:
    assert run("bytes") == [0, 255, 10, 13]
    assert stream.pages() == [b"\x00\xff\n\r"]


def test_it_closes_and_deletes(run: Run, stream: Stream) -> None:
    assert run("ends") == {
        "finalOffset": offset_of(2),
        "refused": 409,
        "closed": "true",
        "exists": False,
    }
    assert stream.head().status == 404


@pytest.mark.parametrize("live", ["long-poll", "sse"])
def test_it_follows_a_stream_to_its_end(live: str, run: Run, stream: Stream) -> None:
    assert run(live) == {"seen": [1, 2, 3], "closed": True, "offset": offset_of(3)}
    assert stream.text == "[1,2,3]"


# rows: D20, U01
def test_its_producer_writes_everything_once_and_in_order(run: Run, stream: Stream) -> None:
    result = run("producer")
    assert (result["errors"], result["epoch"], result["pending"]) == ([], 0, 0)
    assert result["next"] > 5, "too few batches"
    assert msgspec.json.decode(stream.text) == list(range(500))


# rows: D09, D11, U09
def test_its_producer_claims_an_epoch_and_a_zombie_is_fenced(run: Run, stream: Stream) -> None:
    result = run("claim")
    assert (result["first"]["errors"], result["first"]["epoch"]) == ([], 4)
    assert (result["second"]["errors"], result["second"]["epoch"]) == ([], 5)
    assert "StaleEpochError" in result["zombie"]["errors"]
    assert stream.text == '["a","b","c"]'
