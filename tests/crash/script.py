"""Builds a small data directory with every kind of record."""

import signal
from dataclasses import dataclass
from pathlib import Path

from semel.model.commands import (
    SPARSE,
    Append,
    Command,
    Create,
    Delete,
    ForkRequest,
    ProducerTag,
    Register,
    Trim,
)
from semel.model.outcomes import Refusal
from tests.crash.load import batch_of, message
from tests.crash.process import Process, Zygote
from tests.crash.protocol import Job, JournalPosition

SEGMENT_BYTES = 8 * 1024
_NOW_MS = 1_700_000_000_000


def small(path: Path) -> Job:
    return Job("serve", str(path), segment_bytes=SEGMENT_BYTES)


def do(process: Process, command: Command) -> object:
    outcome = process.link.ask("submit", command)
    assert not isinstance(outcome, Refusal), f"{command}: {outcome}"
    return outcome


def append(process: Process, path: str, number: int, **more: object) -> None:
    """Append one message, or three to a JSON stream."""
    is_json = path == "json"
    count = 3 if is_json else 1
    messages = tuple(message(path, 10 * number + i, 90) for i in range(count))
    media = "application/json" if is_json else "text/plain"
    do(process, Append(path, _NOW_MS + number, media, batch_of(messages), **more))  # type: ignore[arg-type]


def _grow(process: Process, numbers: range) -> None:
    for n in numbers:
        append(process, "json", n, producer=ProducerTag("dense", n, n, epoch=1))
        append(process, "text", n, producer=ProducerTag("named", n, n, session="s"))
        append(process, "text", n + 5_000, key=f"key-{n}")
        sparse = ProducerTag("sparse", 9 * n, 9 * n, mode=SPARSE, cursor=b"%d" % n)
        append(process, "other", n, producer=sparse)


def _create(process: Process, path: str, source: str | None = None, sub_offset: int = 0) -> None:
    media = None if source else "application/json" if path == "json" else "text/plain"
    fork = ForkRequest(source, 3, sub_offset) if source else None
    do(process, Create(path, _NOW_MS, f"i-{path}", media, fork=fork))


def fill(process: Process) -> None:
    """Append before, between and after two checkpoints; fork, trim, delete and close streams."""
    for path in ("json", "text", "other", "doomed", "sunken"):
        _create(process, path)
    do(process, Register(_NOW_MS, None))
    do(process, Register(_NOW_MS, "service"))
    for path in ("doomed", "sunken"):
        for n in range(12):
            append(process, path, n)
    _grow(process, range(12))
    _create(process, "fork-text", "text")
    _create(process, "fork-json", "json", 2)
    _create(process, "fork-sunken", "sunken")
    process.link.ask("checkpoint")
    do(process, Delete("doomed", _NOW_MS))
    do(process, Delete("sunken", _NOW_MS))
    do(process, Trim("other", _NOW_MS, 8))
    _grow(process, range(12, 24))
    append(process, "fork-text", 7)
    process.link.ask("checkpoint")
    _grow(process, range(24, 40))
    do(process, Append("other", _NOW_MS, close=True))


@dataclass(frozen=True, slots=True)
class Built:
    """A directory that no process uses; `first` and `end` delimit the last acked group."""

    path: Path
    first: int
    end: int


def build(zygote: Zygote, path: Path, *, is_closed: bool) -> Built:
    """Fill a directory, then close the engine or kill the process."""
    process = zygote.serve(small(path))
    try:
        fill(process)
        before: JournalPosition = process.link.ask("settle")
        append(process, "text", 9_000)
        after: JournalPosition = process.link.ask("settle")
        if is_closed:
            process.link.ask("close")
            assert process.wait() == 0
        else:
            assert process.kill() == -signal.SIGKILL
    finally:
        process.close()
    return Built(path, before.end, after.durable)
