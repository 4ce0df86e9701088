"""Run `python -m tests.crash.damage_rig [--count N] [--seed N] [--jobs N] [--only N] [--running]`.

Damages the checkpoint of a directory in many random ways, each in its own copy. Then it compares
every answer of an engine, and the verdict of `semel doctor --verify`, with the undamaged directory.

- `refused`: the engine does not start, with exit code 65, and so does doctor.
- `read refused`: damage in a row of the index. The reads that need the row get `corrupt_data`, all
  other answers are the same, and doctor exits with 65.
- `harmless`: the damaged byte is not used. All answers are the same, also after more appends, a
  checkpoint and a restart, and doctor exits with 0.

Everything else is a violation.

With `--running`, a row of the file is damaged under a running engine. Then the reads that need the
row get `corrupt_data`, and all other answers are the same.
"""

import argparse
import asyncio
import faulthandler
import os
import pickle
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from math import inf
from multiprocessing import get_context
from pathlib import Path
from random import Random
from typing import Any, Final

from semel.broker.engine import Engine
from semel.cli.doctor import doctor_command
from semel.model.commands import Append, Batch, EngineCommand
from semel.model.errors import EngineError
from tests.crash.answers import CORRUPT, SETTINGS, Filler, FrozenClock, collect
from tests.crash.damages import Damage, Damages
from tests.crash.directory import CHECKPOINT, copy, quick_directory

REFUSED: Final = "refused"
READ_REFUSED: Final = "read refused"
HARMLESS: Final = "harmless"
VIOLATION: Final = "VIOLATION"
_CORRUPT_CODE: Final = 65

Answers = dict[str, str]


@dataclass(slots=True)
class Result:
    """How many trials ended in each way, and the violations."""

    counts: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)

    def add(self, other: "Result") -> None:
        self.counts.update(other.counts)
        self.violations += other.violations


class Rig:
    """An undamaged directory, its answers, and a copy that is damaged in every trial."""

    def __init__(self, directory: Path) -> None:
        self._base = directory / "base"
        self._trial = directory / "trial"
        self._repeats: list[EngineCommand] = asyncio.run(self._fill())
        expected = in_fork(lambda: asyncio.run(self._live(copy(self._base, self._trial), 2)))
        assert isinstance(expected, list), expected
        assert CORRUPT not in expected[0].values()
        self._expected: list[Answers] = expected
        self.damages = Damages(self._base / CHECKPOINT)

    async def _fill(self) -> list[EngineCommand]:
        engine = await Engine.open(str(self._base), SETTINGS, clock=FrozenClock())
        filler = Filler(engine)
        await filler.fill()
        await engine.close()
        return filler.repeats

    async def _live(self, path: Path, lives: int, damage: Damage | None = None) -> list[Answers]:
        """Open the directory `lives` times. Return the answers of each life.

        Each life ends with appends and a checkpoint. `damage` is done while the engine runs.
        """
        found = []
        for _ in range(lives):
            engine = await Engine.open(str(path), SETTINGS, clock=FrozenClock())
            if damage is not None:
                damage.apply(path / CHECKPOINT)
            found.append(collect(engine, self._repeats))
            if damage is not None:
                return found
            for stream in ("a", "b", "closed"):
                append = Append(stream, FrozenClock().now_ms(), "text/plain", Batch(b"more"))
                await engine.execute(append)
            await engine.close()
        return found

    def try_damage(self, damage: Damage) -> str:
        """Damage a copy of the directory, ask doctor and an engine, and return the verdict."""
        trial = copy(self._base, self._trial)
        damage.apply(trial / CHECKPOINT)
        doctor = in_fork(lambda: doctor_code(trial))
        found = in_fork(lambda: asyncio.run(self._live(trial, 2)))
        if found == _CORRUPT_CODE:
            verdict, expected = REFUSED, _CORRUPT_CODE
        elif not isinstance(found, list):
            return f"{VIOLATION}: the engine ended with {found}"
        elif found == self._expected:
            verdict, expected = HARMLESS, 0
        elif wrong := self._wrong(found):
            return f"{VIOLATION}: wrong answers to {wrong[:5]}"
        else:
            verdict, expected = READ_REFUSED, _CORRUPT_CODE
        if doctor != expected:
            return f"{VIOLATION}: doctor exits with {doctor}, but the engine: {verdict}"
        return verdict

    def try_running(self, damage: Damage) -> str:
        """Damage a copy under a running engine, and return the verdict."""
        trial = copy(self._base, self._trial)
        found = in_fork(lambda: asyncio.run(self._live(trial, 1, damage)))
        if not isinstance(found, list):
            return f"{VIOLATION}: the engine ended with {found}"
        if wrong := self._wrong(found):
            return f"{VIOLATION}: wrong answers to {wrong[:5]}"
        return HARMLESS if found[0] == self._expected[0] else READ_REFUSED

    def _wrong(self, found: list[Answers]) -> list[str]:
        """Return the questions that were answered, but not with the expected answer."""
        return [
            question
            for life, answers in enumerate(found)
            for question in self._expected[life] | answers
            if answers.get(question) not in (self._expected[life].get(question), CORRUPT)
        ]


def in_fork(action: Callable[[], Any]) -> Any:
    """Call `action` in a child process.

    Return its result, the exit code of an EngineError, minus the number of a signal, or the text of
    an unexpected exception.
    """
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(reader)
        faulthandler.disable()
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        result: Any
        try:
            result = action()
        except EngineError as error:
            result = error.exit_code
        except BaseException as error:  # noqa: BLE001 - the parent reports it
            result = repr(error)
        with os.fdopen(writer, "wb") as pipe:
            pipe.write(pickle.dumps(result))
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        data = pipe.read()
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return pickle.loads(data) if data else code


def doctor_code(path: Path) -> int:
    """Return the exit code of `semel doctor --verify`."""
    arguments = ["--data", str(path), "--verify", "--json"]
    code: int = doctor_command.main(arguments, standalone_mode=False)
    return code


# ---- runs ----------------------------------------------------------------------------------------


def run(
    seed: int,
    numbers: range,
    *,
    is_running: bool = False,
    seconds: float = inf,
    at_least: int = 0,
    violations_max: float = inf,
    say: Callable[[str], None] | None = None,
) -> Result:
    """Try the damage with these numbers. Equal seeds and numbers are equal damage.

    `say` is called with each violation. The run ends early after `violations_max` violations, or
    after `seconds`, but not before `at_least` trials.
    """
    deadline = time.monotonic() + seconds
    result = Result()
    with quick_directory() as directory:
        rig = Rig(directory)
        attempt = rig.try_running if is_running else rig.try_damage
        for number in numbers:
            is_late = time.monotonic() > deadline and result.counts.total() >= at_least
            if is_late or len(result.violations) >= violations_max:
                break
            random = Random(f"{seed}/{number}")
            damage = rig.damages.choose_in_row(random) if is_running else rig.damages.choose(random)
            verdict = attempt(damage)
            result.counts[verdict.partition(":")[0]] += 1
            if verdict.startswith(VIOLATION):
                result.violations.append(f"--seed {seed} --only {number}: {damage}: {verdict}")
                if say is not None:
                    say(result.violations[-1])
    return result


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main(arguments: list[str] | None = None) -> int:
    """Run the trials in several processes and print the result; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash.damage_rig", description=__doc__)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000_000)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", type=int, help="try only the damage with this number")
    parser.add_argument(
        "--running", action="store_true", help="damage the file of a running engine"
    )
    options = parser.parse_args(arguments)
    started = time.monotonic()
    shards = [range(job, options.count, options.jobs) for job in range(options.jobs)]
    if options.only is not None:
        shards = [range(options.only, options.only + 1)]
    total = Result()
    with ProcessPoolExecutor(len(shards), mp_context=get_context("spawn")) as pool:
        calls = [
            pool.submit(run, options.seed, shard, is_running=options.running, say=_say)
            for shard in shards
        ]
        for call in calls:
            total.add(call.result())
    seconds = time.monotonic() - started
    _say(
        f"damage: {total.counts.total():,} trials, {dict(total.counts)},"
        f" {len(total.violations)} violations; {seconds:.0f} s, seed {options.seed}"
    )
    return 1 if total.violations else 0


if __name__ == "__main__":
    sys.exit(main())
