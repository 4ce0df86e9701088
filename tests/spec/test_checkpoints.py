"""The settings of checkpoints: after how many seconds, and after how many bytes of the journal."""

import time
from pathlib import Path

import pytest

from tests.spec.process import PATIENCE_SECONDS, Server


def metric(server: Server, name: str) -> int:
    lines = server.ask("GET", "/metrics").body.decode().splitlines()
    (value,) = (line.split()[1] for line in lines if line.startswith(f"semel_{name} "))
    return int(float(value))


def grown(server: Server, kib: int) -> None:
    """Append this many KiB to a stream, one KiB at a time."""
    stream = server.stream("s")
    stream.put(content_type="text/plain")
    for _ in range(kib):
        stream.post(b"x" * 1024)


def checkpoints_after(server: Server, wanted: int) -> int:
    """Wait until a server has made some checkpoints; return how many it has made."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while metric(server, "checkpoints_total") < wanted and time.monotonic() < deadline:
        time.sleep(0.05)
    return metric(server, "checkpoints_total")


# rows: P24
@pytest.mark.spec("format: checkpoint")
def test_a_checkpoint_is_made_after_the_set_seconds(tmp_path: Path) -> None:
    server = Server(tmp_path / "often", "--checkpoint-seconds", "0.2")
    try:
        # By default there would be none in this time.
        deadline = time.monotonic() + PATIENCE_SECONDS
        while metric(server, "checkpoints_total") < 3 and time.monotonic() < deadline:
            grown(server, 1)
        assert metric(server, "checkpoints_total") >= 3
    finally:
        server.kill()


# rows: P24
@pytest.mark.spec("format: checkpoint")
def test_a_checkpoint_is_made_after_the_set_bytes(tmp_path: Path) -> None:
    server = Server(tmp_path / "often", "--checkpoint-bytes", "16384")
    try:
        grown(server, 64)
        assert checkpoints_after(server, 2) >= 2
        server.kill()
        server = Server(tmp_path / "often", "--checkpoint-bytes", "16384")
        assert metric(server, "replayed_bytes") < 48 * 1024
        assert len(server.stream("s").text) == 64 * 1024
    finally:
        server.kill()


# rows: P24
@pytest.mark.spec("format: checkpoint")
def test_without_the_settings_little_data_makes_no_checkpoint(tmp_path: Path) -> None:
    server = Server(tmp_path / "seldom")
    try:
        grown(server, 64)
        assert metric(server, "checkpoints_total") == 0
        server.kill()
        server = Server(tmp_path / "seldom")
        assert metric(server, "replayed_bytes") > 64 * 1024
    finally:
        server.kill()


@pytest.mark.spec("format: checkpoint")
@pytest.mark.parametrize("option", [("--checkpoint-seconds", "0"), ("--checkpoint-bytes", "100")])
def test_a_setting_out_of_range_is_refused(tmp_path: Path, option: tuple[str, str]) -> None:
    server = Server(tmp_path / "data", *option)
    assert server.wait() == 64
    assert option[0] in server.stderr
    server.kill()
