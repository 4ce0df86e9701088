"""A real server whose clock is moved from outside.

`sitecustomize` replaces the two functions that the server's clock calls by ones that add an offset
from a file.
"""

import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import pytest

from tests.spec.process import PATIENCE_SECONDS, Server, Stream

MINUTE_MS: Final = 60_000
TEN_YEARS_MS: Final = 3_653 * 24 * 60 * MINUTE_MS
BUSY_MS: Final = 30_000  # how far two dates may differ on a busy machine

SHIM: Final = """
import os, time

_file = os.environ["SEMEL_TEST_CLOCK"]
_wall, _elapsed = time.time_ns, time.monotonic_ns


def _offsets():
    with open(_file) as file:
        return [int(word) * 1_000_000 for word in file.read().split()]


time.time_ns = lambda: _wall() + _offsets()[0]
time.time = lambda: time.time_ns() / 1e9
time.monotonic_ns = lambda: _elapsed() + _offsets()[1]
"""


class Machine:
    """A machine with one server process and a clock that the test moves."""

    def __init__(self, folder: Path) -> None:
        self._data = folder / "data"
        self._file = folder / "clock"
        self._wall_ms = self._elapsed_ms = 0
        self.set_clock(0)
        self.server = Server(self._data)

    def set_clock(self, offset_ms: int) -> None:
        """Make the wall clock wrong by this much. The time that elapses is not affected."""
        self._wall_ms = offset_ms
        self._write()

    def let_pass(self, ms: int) -> None:
        """Let time pass: both clocks advance."""
        self._wall_ms += ms
        self._elapsed_ms += ms
        self._write()

    def _write(self) -> None:
        new = self._file.with_suffix(".new")
        new.write_text(f"{self._wall_ms} {self._elapsed_ms}")
        os.replace(new, self._file)

    @property
    def now_ms(self) -> int:
        """The wall clock of the machine."""
        return time.time_ns() // 1_000_000 + self._wall_ms

    def restart(self) -> None:
        self.server.kill()
        self.server = Server(self._data)

    def be_wrong_once(self, stream: Stream) -> None:
        """Append once while the clock is ten years ahead, and set it right again."""
        self.set_clock(TEN_YEARS_MS)
        assert stream.post(b"from the future,").status == 204
        self.set_clock(0)

    def stream(self, path: str = "s") -> Stream:
        return self.server.stream(path)

    def metric(self, name: str) -> float:
        page = self.server.ask("GET", "/metrics").body.decode()
        found = re.search(rf"^semel_{name} (\S+)$", page, re.MULTILINE)
        assert found is not None, page
        return float(found[1])

    def is_near(self, date: str, ms: int) -> bool:
        """Return whether a date in a response is near a time of the machine's wall clock."""
        found = datetime.fromisoformat(date).astimezone(UTC).timestamp() * 1000
        return abs(found - ms) < BUSY_MS


def eventually(is_so: Callable[[], bool]) -> bool:
    end = time.monotonic() + PATIENCE_SECONDS
    while not is_so():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


@contextmanager
def running_machine(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    """Run a machine, whose server has a stream `s`."""
    shim = folder / "shim"
    shim.mkdir()
    (shim / "sitecustomize.py").write_text(SHIM)
    paths = [str(shim), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    monkeypatch.setenv("SEMEL_TEST_CLOCK", str(folder / "clock"))
    it = Machine(folder)
    try:
        it.stream().create(b"first,")
        yield it
    finally:
        it.server.kill()
