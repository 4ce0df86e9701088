"""A directory from before there were subscriptions can be opened and used.

`tests/data/directory_before_subscriptions.tgz` was written by the previous version, in two runs.
The first run was stopped cleanly, so that its rows are in the checkpoint (`stored`); the second was
killed, so that its frames are replayed (`replayed`). In each run, the JSON stream `RUN/s` got three
messages, the topic `RUN/orders` with two partitions three messages, and the group `group-RUN` a
member that moved its position in `RUN/s` to 1. `RUN/wakes` is an empty JSON stream. The JSON stream
`RUN/t` has one message, of the open transaction `open-RUN` of the producer `w-RUN`.
"""

import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.spec.process import SEMEL, Answer, Server, offset_of
from tests.spec.topic_calls import Topic
from tests.spec.txn_calls import call

BEFORE = Path(__file__).resolve().parents[1] / "data" / "directory_before_subscriptions.tgz"
RUNS = pytest.mark.parametrize("run", ["stored", "replayed"])
SEGMENTS = ("--segment-bytes", "65536")
JSON = "application/json"
pytestmark = pytest.mark.crash


@pytest.fixture
def data(tmp_path: Path) -> Path:
    with tarfile.open(BEFORE) as archive:
        archive.extractall(tmp_path / "data", filter="data")
    return tmp_path / "data"


@pytest.fixture
def servers() -> Iterator[list[Server]]:
    started: list[Server] = []
    yield started
    for server in started:
        server.kill()


def start(data: Path, servers: list[Server]) -> Server:
    servers.append(Server(data, *SEGMENTS))
    return servers[-1]


def verify(data: Path) -> None:
    done = subprocess.run(
        [str(SEMEL), "doctor", "--data", str(data), "--verify"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def format_of(data: Path) -> int:
    """Return the format version in the identity file."""
    return (data / "identity").read_bytes()[11]


def subscription(server: Server, method: str, suffix: str = "", document: Any = None) -> Answer:
    return call(server, method, f"/v1/stream/__ds/subscriptions/worker{suffix}", document)


def subscribe(server: Server, run: str) -> Answer:
    document = {
        "type": "pull-wake",
        "pattern": f"{run}/**",
        "streams": [f"{run}/s", f"{run}/later"],
        "wake_stream": f"{run}/wakes",
    }
    return subscription(server, "PUT", document=document)


def acked(server: Server) -> dict[str, str]:
    shown = subscription(server, "GET").json
    return {each["path"]: each["acked_offset"] for each in shown["streams"]}


@RUNS
def test_everything_of_before_is_there_and_no_format_is_raised(
    data: Path, servers: list[Server], run: str
) -> None:
    verify(data)
    server = start(data, servers)
    assert server.stream(f"{run}/s").pages() == [b'["a","b","c"]']
    assert sum(map(len, Topic(server, f"{run}/orders").texts())) == 3
    offsets = server.ask("GET", f"/v1/groups/group-{run}/offsets").json["offsets"]
    assert offsets == {f"{run}/s": offset_of(1)}
    refused = subscription(server, "PUT", document={"type": "pull-wake", "streams": ["a"]})
    assert refused.status == 400
    server.signal(15)
    server.wait()
    assert format_of(data) == 3, "an older version can still open it"
    verify(data)


@RUNS
def test_streams_of_before_are_linked_where_they_end(
    data: Path, servers: list[Server], run: str
) -> None:
    server = start(data, servers)
    assert subscribe(server, run).status == 201
    assert format_of(data) == 4, "an older version refuses it"
    offsets = acked(server)
    assert offsets.pop(f"{run}/s") == offset_of(3)
    assert offsets.pop(f"{run}/t") == offset_of(0), "its message is not stable"
    assert offsets.pop(f"{run}/later") == "-1", "it does not exist"
    assert offsets.keys() == {f"{run}/orders/0", f"{run}/orders/1"}
    assert subscription(server, "POST", "/claim", {"worker": "w"}).status == 409
    document = {"transaction_epoch": 1, "operator": True}
    committed = call(server, "POST", f"/v1/transactions/open-{run}/commit", document)
    assert committed.status == 200
    server.stream(f"{run}/later").put(b'["new"]', content_type=JSON)
    server.kill()
    verify(data)
    server = start(data, servers)
    assert len(server.stream(f"{run}/wakes").pages()) == 1
    claimed = subscription(server, "POST", "/claim", {"worker": "w"}).json
    assert [each["path"] for each in claimed["streams"]] == [f"{run}/t"]
    server.signal(15)
    server.wait()
    verify(data)
    server = start(data, servers)
    assert {f"{run}/t", f"{run}/later"} <= acked(server).keys()
    assert subscription(server, "DELETE").status == 204
    server.signal(15)
    server.wait()
    assert format_of(data) == 4
    verify(data)
