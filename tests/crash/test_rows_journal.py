"""The journal of a real server: what it holds before a response, and what a crash leaves of it."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from tests.crash.directory import segments
from tests.spec.process import Server

pytestmark = pytest.mark.crash

SYNC_SECONDS: Final = 0.2
COUNT: Final = 4
SHIM: Final = f"""
import os, time

_sync = os.fdatasync


def _slowly(file):
    time.sleep({SYNC_SECONDS})
    _sync(file)


os.fdatasync = _slowly
"""
CORRUPT: Final = 65


@contextmanager
def serving(data: Path) -> Iterator[Server]:
    server = Server(data)
    try:
        assert server.port, server.stderr
        yield server
    finally:
        server.kill()


@pytest.fixture
def slow_syncs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return a function after whose call every sync of a new server takes a while."""

    def slow() -> None:
        shim = tmp_path / "shim"
        shim.mkdir()
        (shim / "sitecustomize.py").write_text(SHIM)
        paths = [str(shim), *filter(None, [os.environ.get("PYTHONPATH")])]
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))

    return slow


# rows: R24
def test_an_entry_is_synced_before_the_response_and_has_a_checksum(
    tmp_path: Path, slow_syncs: Callable[[], None]
) -> None:
    data = tmp_path / "data"
    with serving(data) as server:
        server.stream("s").create()
    slow_syncs()
    with serving(data) as server:
        for number in range(COUNT):
            began = time.monotonic()
            assert server.stream("s").post(b"message-%d" % number).status == 204
            assert time.monotonic() - began >= SYNC_SECONDS
    (segment,) = segments(data)
    held = bytearray(segment.read_bytes())
    held[held.index(b"message-1")] ^= 1
    segment.write_bytes(held)
    refused = Server(data)
    try:
        assert not refused.port, "the server started"
        assert (refused.wait(), "checksum" in refused.stderr) == (CORRUPT, True), refused.stderr
    finally:
        refused.kill()


# rows: R26
def test_recovery_replays_in_order_and_cuts_a_torn_tail_from_the_file(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with serving(data) as server:
        server.stream("s").create()
        for number in range(COUNT):
            assert server.stream("s").post(b"%d," % number).status == 204
        assert server.stream("s").post(b"torn " * 1000).status == 204
    # What a crash may leave of the last append: its first half.
    (segment,) = segments(data)
    held = bytearray(segment.read_bytes())
    middle = held.index(b"torn ") + 2_500
    held[middle:] = bytes(len(held) - middle)
    segment.write_bytes(held)
    whole = "".join(f"{number}," for number in range(COUNT))
    with serving(data) as server:
        assert server.stream("s").text == whole
        assert b"torn " not in segment.read_bytes()
        assert server.stream("s").post(b"after,").status == 204
    with serving(data) as server:
        assert server.stream("s").text == f"{whole}after,"
