"""How much of each segment is needed, and what needs it: in `/metrics` and in `semel doctor`."""

import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from tests.crash.directory import segments
from tests.spec.process import PATIENCE_SECONDS, SEMEL, Server
from tests.spec.txn_calls import Txn, call

SEGMENT_BYTES: Final = 64 * 1024
OPTIONS: Final = ("--segment-bytes", str(SEGMENT_BYTES))
FILLED: Final = 12  # segments
METRIC: Final = re.compile(r'^(\w+)(?:\{\w+="([^"]*)"\})? (\S+)$', re.MULTILINE)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def server(data: Path) -> Iterator[Server]:
    """Run a server on a directory in which two streams have messages in every segment."""
    first = Server(data, *OPTIONS)
    for path in ("big", "heartbeat", "filler"):
        first.stream(path).create()
    for _ in range(FILLED):
        for _ in range(2):
            assert first.stream("big").post(b"x" * 30_000).status == 204
        assert first.stream("heartbeat").post(b"alive").status == 204
    second = restart(first)
    yield second
    second.kill()


def restart(server: Server) -> Server:
    """Stop a server, which makes a checkpoint, and start it again."""
    stop(server)
    return Server(server.data, *OPTIONS)


def stop(server: Server) -> None:
    server.signal(signal.SIGTERM)
    assert server.wait() == 0, server.stderr
    server.kill()


def metrics(server: Server) -> dict[tuple[str, str], float]:
    """Return the metrics, when the segments were surveyed.

    This needs a checkpoint, which is made when a segment is full.
    """
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        text = server.ask("GET", "/metrics").body.decode()
        found = {(name, label): float(value) for name, label, value in METRIC.findall(text)}
        if ("semel_segments", "") in found:
            return found
        assert not any("segment" in name for name, _ in found)
        if not found["semel_checkpoints_total", ""]:
            assert server.stream("filler").post(b"x" * 30_000).status == 204
        time.sleep(0.02)
    raise AssertionError("no survey was made")


def live_bytes(found: dict[tuple[str, str], float]) -> dict[str, float]:
    name = "semel_segment_live_bytes"
    return {label: value for (metric, label), value in found.items() if metric == name}


def doctor(data: Path, *options: str) -> str:
    done = subprocess.run(
        [str(SEMEL), "doctor", "--data", str(data), *options],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_SECONDS,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def segments_of(data: Path) -> list[dict[str, Any]]:
    document = msgspec.json.decode(doctor(data, "--segments", "--json"))
    found: list[dict[str, Any]] = document["directory"]["segments"]
    return found


def test_metrics_show_what_a_deleted_stream_does_not_need_any_more(server: Server) -> None:
    before = metrics(server)
    count = before["semel_segments", ""]
    assert FILLED // 2 < count <= len(segments(server.data))
    assert before["semel_segments_disk_bytes", ""] == count * SEGMENT_BYTES
    assert 0 <= before["semel_segments_age_seconds", ""] < PATIENCE_SECONDS
    assert before["semel_segments_live_bytes", ""] > 0.8 * before["semel_segments_disk_bytes", ""]
    assert before["semel_segments_below_share", "0.1"] == 0
    assert server.stream("big").delete().status == 204
    again = restart(server)
    after = metrics(again)
    again.kill()
    # Nothing was freed, because every segment still has a message of the small stream.
    assert after["semel_segments", ""] >= count
    nearly_empty = after["semel_segments_below_share", "0.1"]
    assert nearly_empty >= FILLED // 2
    assert after["semel_segments_live_bytes", ""] < before["semel_segments_live_bytes", ""]
    names = [path.name for path in segments(server.data)]
    assert sorted(live_bytes(after)) == names[: int(after["semel_segments", ""])]
    assert sum(size < 1_000 for size in live_bytes(after).values()) == nearly_empty


def test_doctor_names_the_stream_that_keeps_nearly_empty_segments(server: Server) -> None:
    assert server.stream("big").delete().status == 204
    stop(server)
    shown = doctor(server.data, "--segments")
    assert "less than 10% needed and are kept by: stream heartbeat." in shown
    *closed, last = segments_of(server.data)
    assert last["is_open"]
    assert {name for segment in closed for name in segment["kept_by"]} == {"stream heartbeat"}
    assert all(0 < segment["live_bytes"] < 1_000 for segment in closed)
    listed = doctor(server.data, "--segments")
    for segment in closed:
        assert re.search(rf"{segment['segment']} .* stream heartbeat", listed)
    assert "it is being written" in listed


def test_the_segments_are_freed_when_nothing_in_them_is_needed(server: Server) -> None:
    count = len(segments(server.data))
    assert server.stream("big").delete().status == 204
    assert server.stream("heartbeat").delete(
        f"before={server.stream('heartbeat').tail}"
    ).status in (
        200,
        204,
    )
    again = restart(server)
    assert metrics(again)["semel_segments", ""] < count / 2
    again.kill()


def test_doctor_names_a_pending_transaction_that_keeps_a_segment(data: Path) -> None:
    server = Server(data, *OPTIONS)
    for path in ("staged", "filler"):
        server.stream(path).create()
    call(server, "POST", "/v1/producers", {"id": "p"})
    txn = Txn(server, "p", name="waiting")
    assert txn.begin(kind="staged", streams=["staged"], timeout_ms=900_000).status == 201
    assert txn.stage(server.stream("staged"), b"chunk", 0).status == 200
    for _ in range(6):
        assert server.stream("filler").post(b"x" * 30_000).status == 204
    assert server.stream("filler").delete().status == 204
    stop(server)
    first = segments_of(data)[0]
    assert first["kept_by"] == ["transaction waiting"]
    assert first["live_bytes"] < 1_000


def test_doctor_names_the_forks_of_a_deleted_stream(server: Server) -> None:
    for path, source in (("fork", "big"), ("gone", "big"), ("deep", "gone")):
        server.stream(path).create(stream_forked_from=server.stream(source).target)
    for path in ("gone", "big"):
        assert server.stream(path).delete().status == 204
    assert server.stream("big").delete().status == 410
    stop(server)
    kept_by = {name for segment in segments_of(server.data) for name in segment["kept_by"]}
    assert kept_by == {
        "streams fork, deep (forks of the deleted stream big)",
        "stream heartbeat",
    }


def test_doctor_names_the_only_fork_of_a_deleted_stream(server: Server) -> None:
    server.stream("fork").create(stream_forked_from=server.stream("big").target)
    assert server.stream("big").delete().status == 204
    stop(server)
    kept_by = {name for segment in segments_of(server.data) for name in segment["kept_by"]}
    assert kept_by == {"stream fork (a fork of the deleted stream big)", "stream heartbeat"}


def test_doctor_does_not_read_the_index_unless_the_segments_are_requested(server: Server) -> None:
    stop(server)
    document = msgspec.json.decode(doctor(server.data, "--json"))
    assert document["directory"]["segments"] is None
    assert "space" not in {check["name"] for check in document["checks"]}


def test_segments_can_be_listed_only_of_a_directory(tmp_path: Path) -> None:
    done = subprocess.run(
        [str(SEMEL), "doctor", "--segments"],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_SECONDS,
        cwd=tmp_path,
    )
    assert done.returncode == 64
    assert "semel doctor --segments --data DIR" in done.stderr
