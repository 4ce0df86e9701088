"""A server process that kills itself at a named step of a wake.

`DyingServer` runs `semel serve` in a process of its own, forked from a process that has already
imported it. In that process some functions of the broker are wrapped. When the wrapper meets the
step for which it waits, it writes the name of the step to a file, and kills its process.

A step is a moment of a kind of event or command:

- received: the command has arrived, and is not decided
- decided: the event is applied, and its frame is not written
- durable: its frame is durable, and nobody has heard of it: no response, no delivery
"""

import multiprocessing
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.process import BaseProcess
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Final, NamedTuple, NoReturn

from semel.broker import broker as broker_module
from semel.broker.broker import Broker
from semel.cli.main import cli
from semel.cli.serve import serve_command
from semel.journal.appender import WriteGroup
from semel.machine.events import DecidedWithAcks, StreamAppended
from semel.machine.subscription_events import (
    Acked,
    Claimed,
    DeliveryNoted,
    WakeEnded,
    WakeIssued,
)
from semel.model.commands import Commit
from semel.model.limits import MIB
from semel.model.subscription_commands import (
    PULL_WAKE,
    WEBHOOK,
    AckWake,
    ClaimWake,
    NoteDelivery,
    ReleaseWake,
)
from semel.wire.json_mode import prepare_limits
from tests.forks import fork_context
from tests.spec.process import ACCESS_LINE
from tests.wakes.calls import Lost
from tests.wakes.mutants import Mutant

RECEIVED: Final = "received"
DECIDED: Final = "decided"
DURABLE: Final = "durable"

_START_SECONDS_MAX: Final = 60.0
_LOOK_SECONDS: Final = 0.002
_LIGHT: Final = ("--segment-bytes", str(16 * MIB), "--long-poll-timeout", "0.5")


# What takes most of the time of a start is done once, in the process that is forked.
prepare_limits()
assert serve_command.name == "serve"  # and it is imported


class Step(NamedTuple):
    """A moment, and whether an event (or a command, if RECEIVED) is meant.

    `is_it` gets the event that was applied before as well.
    """

    moment: str
    is_it: Callable[[Any, Any], bool]


def _is_next_wake(event: Any, previous: Any) -> bool:
    return isinstance(event, WakeIssued) and isinstance(previous, Acked | WakeEnded)


_EVENTS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "append": lambda event, _: isinstance(event, StreamAppended),
    "wake": lambda event, _: isinstance(event, WakeIssued),
    "next wake": _is_next_wake,
    "claim": lambda event, _: isinstance(event, Claimed),
    "ack": lambda event, _: isinstance(event, Acked) and not event.is_done,
    "done": lambda event, _: isinstance(event, Acked) and event.is_done,
    "release": lambda event, _: isinstance(event, WakeEnded) and not event.is_expired,
    "expiry": lambda event, _: isinstance(event, WakeEnded) and event.is_expired,
    "failure": lambda event, _: isinstance(event, DeliveryNoted) and event.attempts > 0,
    "commit": lambda event, _: isinstance(event, DecidedWithAcks),
}

_COMMANDS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "claim": lambda command, _: isinstance(command, ClaimWake),
    "ack": lambda command, _: isinstance(command, AckWake) and command.type == PULL_WAKE,
    "release": lambda command, _: isinstance(command, ReleaseWake),
    "commit": lambda command, _: isinstance(command, Commit) and bool(command.wakes),
    "callback": lambda command, _: (
        isinstance(command, AckWake) and command.type == WEBHOOK and not command.by_snapshot
    ),
    "response with done": lambda command, _: isinstance(command, AckWake) and command.by_snapshot,
    "response": lambda command, _: isinstance(command, NoteDelivery) and command.error is None,
    "failure": lambda command, _: isinstance(command, NoteDelivery) and command.error is not None,
}

# The steps at which a server can kill itself, by name.
STEPS: Final[dict[str, Step]] = {
    **{f"{name} {DECIDED}": Step(DECIDED, is_it) for name, is_it in _EVENTS.items()},
    **{f"{name} {DURABLE}": Step(DURABLE, is_it) for name, is_it in _EVENTS.items()},
    **{f"{name} {RECEIVED}": Step(RECEIVED, is_it) for name, is_it in _COMMANDS.items()},
}


# ---- in the process of the server ----------------------------------------------------------------


class _Trap:
    """Waits for a step, and kills the process there."""

    def __init__(self, name: str, note: str) -> None:
        self._name = name
        self._note = note
        self._step = STEPS[name]
        self._previous: object = None
        self._lsn: int | None = None  # of the frame that must become durable

    def set(self) -> None:
        """Wrap the functions of the broker that the steps are in."""
        original_apply = vars(broker_module)["apply"]
        original_submit, original_written = Broker.submit, Broker.written

        def apply(state: Any, event: Any, sections: Any, time_ms: int, lsn: int) -> Any:
            effects = original_apply(state, event, sections, time_ms, lsn)
            self._applied(event, lsn)
            return effects

        def submit(broker: Broker, command: Any, *rest: Any, **more: Any) -> None:
            if self._step.moment == RECEIVED and self._step.is_it(command, None):
                self._die()
            original_submit(broker, command, *rest, **more)

        def written(broker: Broker, group: WriteGroup) -> None:
            if self._lsn is not None and group.is_synced and group.end > self._lsn:
                self._die()
            original_written(broker, group)

        vars(broker_module)["apply"] = apply
        Broker.submit = submit  # type: ignore[assignment, method-assign]
        Broker.written = written  # type: ignore[assignment, method-assign]

    def _applied(self, event: object, lsn: int) -> None:
        is_it = self._step.moment != RECEIVED and self._step.is_it(event, self._previous)
        self._previous = event
        if is_it and self._step.moment == DECIDED:
            self._die()
        elif is_it and self._lsn is None:
            self._lsn = lsn

    def _die(self) -> NoReturn:
        note_step(self._note, self._name)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("the process goes on")


def note_step(note: str, step: str) -> None:
    """Add a line to the file that counts the steps."""
    file = os.open(note, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, f"{step}\n".encode())
    os.close(file)


def _serve(
    arguments: list[str], files: list[str], step: str | None, note: str, mutant: Mutant | None
) -> None:
    """Run `semel serve`, with its standard output and standard error in two files."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent kills its servers
    threading.Thread(target=_end_with_parent, daemon=True).start()
    for number, name in enumerate(files, 1):
        file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, number)
    if mutant is not None:
        mutant()
    if step is not None:
        _Trap(step, note).set()
    cli.main(["serve", *arguments], prog_name="semel")


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


# ---- in the process of the test ------------------------------------------------------------------


class DyingServer:
    """A server process on a directory, which `start` starts again and again on the same port.

    `reached` counts the steps at which it has killed itself, by name. `mutant` puts a bug into the
    server.
    """

    def __init__(self, data: Path, mutant: Mutant | None = None) -> None:
        self._context = fork_context()
        self._data = data
        self._mutant = mutant
        self._note = data.with_name("steps")
        self._process: BaseProcess | None = None
        self._lock = threading.Lock()
        self._starts = 0
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def reached(self) -> Counter[str]:
        return Counter(self._note.read_text().splitlines() if self._note.exists() else [])

    def start(self, step: str | None = None) -> None:
        """Start the server, which kills itself when it reaches the step. Wait until it listens.

        Raises Lost if it has killed itself before.
        """
        self._starts += 1
        out, error = (str(self._data.with_name(f"{n}-{self._starts}")) for n in ("out", "error"))
        arguments = ["--data", str(self._data), "--port", str(self.port), "--reserve-bytes", "0"]
        process = self._context.Process(
            target=_serve,
            args=([*arguments, *_LIGHT], [out, error], step, str(self._note), self._mutant),
            daemon=True,
        )
        process.start()
        self._process = process
        until = monotonic() + _START_SECONDS_MAX
        while not (greeting := _read(out)).endswith("\n"):
            if not process.is_alive():
                assert process.exitcode == -signal.SIGKILL, _read(error)
                raise Lost("it has reached the step while it started")
            assert monotonic() < until
            sleep(_LOOK_SECONDS)
        self.port = int(greeting.rpartition(":")[2])

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.is_alive()

    def kill(self, step: str | None = None) -> None:
        """Kill the process, unless it has ended. If that is at a step, record it."""
        with self._lock:
            if self._process is None:
                return
            if step is not None:
                note_step(str(self._note), step)
            self._process.kill()
        self.wait()

    def wait(self) -> None:
        """Wait until the process has killed itself. It must have written nothing to its stderr."""
        with self._lock:
            if self._process is None:
                return
            self._process.join(_START_SECONDS_MAX)
            assert self._process.exitcode == -signal.SIGKILL, (self._process.exitcode, self.stderr)
            self._process = None
        assert self.stderr == ""

    @property
    def stderr(self) -> str:
        """What this process has written, without the line that every start writes."""
        return ACCESS_LINE.sub("", _read(self._data.with_name(f"error-{self._starts}")), count=1)


def _read(path: str | Path) -> str:
    with suppress(FileNotFoundError):
        return Path(path).read_text()
    return ""
