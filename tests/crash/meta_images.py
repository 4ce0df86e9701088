"""Directories as a loss of power during the write of a meta page leaves them, and their answers."""

import asyncio
import shutil
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest

from semel.broker.engine import Engine
from semel.broker.settings import Settings
from semel.journal import checkpoint as checkpoint_module
from semel.journal.checkpoint import Cut, commit_cut
from semel.journal.store import Store
from semel.model.commands import Append, Batch, Create, EngineCommand, Trim
from semel.model.outcomes import Refusal
from tests.crash.answers import FrozenClock, collect
from tests.crash.damage_rig import in_fork
from tests.crash.directory import CHECKPOINT, checkpoints, segments

PAGE_BYTES: Final = 4096
# LMDB writes the meta page from the map size on. What is before it never changes.
WRITE_AT: Final = 32
WRITE_BYTES: Final = 120

_SETTINGS: Final = Settings(
    segment_bytes=8 * 1024, reserve_bytes=0, checkpoint_interval_ms=3_600_000
)
_NOW_MS: Final = FrozenClock().now_ms()
_TEXT: Final = "text/plain"


# ---- damage to a meta page -----------------------------------------------------------------------


def newer_page(path: Path) -> int:
    """Return the meta page, 0 or 1, that the last commit has written."""
    return checkpoints(path.parent) % 2


def read_write(path: Path, page: int) -> bytes:
    """Return the bytes of a meta page that a commit writes."""
    return path.read_bytes()[page * PAGE_BYTES + WRITE_AT :][:WRITE_BYTES]


def put_write(path: Path, page: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(page * PAGE_BYTES + WRITE_AT)
        file.write(data)


def tears(old: bytes, new: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield what can remain of a write: each prefix and each suffix of it."""
    for cut in range(WRITE_BYTES + 1):
        yield f"{cut} new bytes, then old ones", new[:cut] + old[cut:]
        yield f"{cut} old bytes, then new ones", old[:cut] + new[cut:]


def garbage(old: bytes, new: bytes, random: Random) -> Iterator[tuple[str, bytes]]:
    """Yield contents that are neither old nor new."""
    yield "zeros", bytes(WRITE_BYTES)
    yield "ones", b"\xff" * WRITE_BYTES
    for number in range(4):
        yield f"random bytes {number}", random.randbytes(WRITE_BYTES)
    for number in range(4):
        mixed = bytes(random.choice(pair) for pair in zip(old, new, strict=True))
        yield f"old and new bytes {number}", mixed
    # The last 8 bytes are the transaction. These look newer than the other meta page.
    yield "random bytes with the new transaction", random.randbytes(WRITE_BYTES - 8) + new[-8:]
    for field in range(8, WRITE_BYTES - 8, 8):
        changed = new[:field] + random.randbytes(8) + new[field + 8 :]
        yield f"the new page with a random field at {field}", changed


# ---- directories ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Image:
    """Copies of a directory around one commit of a checkpoint.

    In `after`, the commit is durable, and no segment is removed yet. In `tidied`, the segments that
    are no longer needed are removed.
    """

    before: Path
    after: Path
    tidied: Path

    @property
    def page(self) -> int:
        return newer_page(self.after / CHECKPOINT)

    @property
    def old(self) -> bytes:
        return read_write(self.before / CHECKPOINT, self.page)

    @property
    def new(self) -> bytes:
        return read_write(self.after / CHECKPOINT, self.page)

    @property
    def has_removed(self) -> bool:
        return len(segments(self.tidied)) < len(segments(self.after))


def make_images(directory: Path, count: int, monkeypatch: pytest.MonkeyPatch) -> list[Image]:
    """Run an engine in a new directory. Return an image of each of its first checkpoints."""
    data = directory / "data"
    images: list[Image] = []

    def commit_and_copy(store: Store, cut: Cut) -> list[int]:
        names = [directory / f"{len(images)}-{name}" for name in ("before", "after", "tidied")]
        _copy(data, names[0])
        dead = commit_cut(store, cut)
        _copy(data, names[1])
        images.append(Image(*names))
        return dead

    async def fill() -> None:
        engine = await Engine.open(str(data), _SETTINGS, clock=FrozenClock())
        for path in ("kept", "trimmed"):
            await _execute(engine, Create(path, _NOW_MS, f"i-{path}", _TEXT))
        for number in range(count):
            path = "kept" if number < count // 2 else "trimmed"
            if path == "trimmed" and number % 2:  # then the checkpoint removes segments
                tail = engine.broker.state.by_path[path].tail.tail
                await _execute(engine, Trim(path, _NOW_MS, tail))
            else:
                for _ in range(1 if path == "kept" else 8):
                    batch = Batch(b"%d" % number * 2_000)
                    await _execute(engine, Append(path, _NOW_MS, _TEXT, batch))
            await engine.settle()
            engine.checkpoint()
            await engine.settle()
            _copy(data, images[-1].tidied)
        await engine.close()

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint_module, "commit_cut", commit_and_copy)
        asyncio.run(fill())
    return [image for image in images if image.tidied.exists()]


def _copy(source: Path, target: Path) -> None:
    """Copy a directory that an engine uses. It creates and renames the temporary files."""
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("*.tmp"))


async def _execute(engine: Engine, command: EngineCommand) -> None:
    outcome = await engine.execute(command)
    assert not isinstance(outcome, Refusal), (command, outcome)


def lives(path: Path) -> list[Any]:
    """Return the answers of three engines on a directory, or the exit code of each refused start.

    The first engine makes checkpoints and is killed, the second one is closed.
    """

    async def live(number: int) -> dict[str, str]:
        engine = await Engine.open(str(path), _SETTINGS, clock=FrozenClock())
        found = collect(engine, [])
        for message in range(3):
            batch = Batch(b"life %d.%d" % (number, message))
            await _execute(engine, Append("kept", _NOW_MS, _TEXT, batch))
            engine.checkpoint()
            await engine.settle()
        if number:
            await engine.close()
        return found  # the process ends without closing the engine

    return [in_fork(partial(_run, live, number)) for number in range(3)]


def _run(live: Callable[[int], Coroutine[Any, Any, Any]], number: int) -> Any:
    return asyncio.run(live(number))
