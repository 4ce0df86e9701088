"""Run `python -m tests.soak [--hours H] [--rounds N] [--seed N] [--only NAME] [--short]`.

Makes one round of each kind after another until the time is over: kills, crash images, damage and
power cuts, each with a check of all that was acknowledged. A violation is printed with the command
that repeats its round alone. Kills and power cuts also depend on timing, so a repeat may find
nothing. Therefore the files of the round are kept, and their directory is printed. At the end it
prints what was done, and exits with 1 if a round found a violation.
"""

import argparse
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from itertools import count
from math import inf
from pathlib import Path
from typing import Final

import pytest

from tests.soak.rounds import FIGURES, FULL, ROUNDS, SHORT, Size

_LINE_SECONDS: Final = 60.0


@dataclass
class Soak:
    """The figures of a run."""

    size: Size
    figures: Counter[str] = field(default_factory=Counter)
    rounds: Counter[str] = field(default_factory=Counter)
    skipped: dict[str, str] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)

    def run_round(self, name: str, seed: int) -> None:
        """Make one round, and add what it did. Keep its directory if it finds a violation."""
        folder = Path(tempfile.mkdtemp(prefix=f"semel-soak-{name}-"))
        is_kept = False
        try:
            self.figures.update(ROUNDS[name](seed, self.size, folder))
        except pytest.skip.Exception as skip:
            if name not in self.skipped:
                say(f"skipped: {name}: {skip}")
            self.skipped[name] = str(skip)
        except Exception:  # noqa: BLE001 - a round that does not end as it should is a violation
            repeat = f"python -m tests.soak --only {name} --seed {seed} --rounds 1"
            if self.size is SHORT:
                repeat += " --short"
            self.violations.append(repeat)
            is_kept = any(folder.iterdir())
            files = f"; its files are in {folder}" if is_kept else ""
            say(f"VIOLATION, to repeat it: {repeat}{files}\n{traceback.format_exc()}")
        else:
            self.rounds[name] += 1
        finally:
            if not is_kept:
                shutil.rmtree(folder)

    def line(self) -> str:
        """Return the figures in one line."""
        done = ", ".join(f"{self.figures[name]:,} {name}" for name in FIGURES)
        return f"{self.rounds.total()} rounds, {done}, {len(self.violations)} violations"

    def table(self) -> str:
        """Return the figures, one in each row."""
        rows = [(f"rounds: {name}", f"{self.rounds[name]:,}") for name in ROUNDS]
        rows += [(f"skipped: {name}", reason) for name, reason in self.skipped.items()]
        rows += [(name, f"{self.figures[name]:,}") for name in FIGURES]
        rows.append(("violations", f"{len(self.violations):,}"))
        return "\n".join(f"  {name:28} {value}" for name, value in rows)


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main(arguments: list[str] | None = None) -> int:
    """Make rounds until the time is over; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--rounds", type=float, default=inf, help="the maximum number of rounds")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000_000)
    parser.add_argument("--only", choices=ROUNDS, help="make only rounds of this kind")
    parser.add_argument("--short", action="store_true", help="make the rounds as small as possible")
    options = parser.parse_args(arguments)
    names = list(ROUNDS) if options.only is None else [options.only]
    soak = Soak(SHORT if options.short else FULL)
    started = shown = time.monotonic()
    say(f"soak: {options.hours:g} hours, seed {options.seed}, {', '.join(names)}")
    for number in count():
        now = time.monotonic()
        if number >= options.rounds or now - started > 3600 * options.hours:
            break
        if now - shown > _LINE_SECONDS:
            shown = now
            say(f"{(now - started) / 60:.0f} min: {soak.line()}")
        soak.run_round(names[number % len(names)], options.seed + number)
    say(f"soak of {(time.monotonic() - started) / 60:.1f} minutes, seed {options.seed}:")
    say(soak.table())
    return 1 if soak.violations else 0


if __name__ == "__main__":
    sys.exit(main())
