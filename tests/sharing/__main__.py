"""Usage: `python -m tests.sharing [--kills N] [--messages N] [--only PART] [--seed N]`.

Three parts, each with a real server and real worker processes:

- sharing: workers of one group process keyed messages. Workers and the server are killed, workers
  join, leave and are stopped, and the topic grows. Each message must have its effect once on each
  output, and those of a key in order.
- poison: some messages kill their worker, or cannot be processed. Each must become a dead letter
  once, and a replay must process each once.
- idle: members without work send heartbeats, and the journal must not grow.
"""

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests.sharing import idle, poison, run
from tests.sharing.checker import Failed
from tests.sharing.client_workers import work_consume, work_process
from tests.sharing.raw_workers import work_raw

KILLS_DEFAULT: Final = 30
MESSAGES_DEFAULT: Final = 4_000
MEMBERS_DEFAULT: Final = 1_000
SECONDS_DEFAULT: Final = 60.0

# A share of the workers each.
WORKS: Final = (work_process, work_consume, work_raw)

Part = Callable[[argparse.Namespace, Path], Counter[str]]


def _share(options: argparse.Namespace, folder: Path) -> Counter[str]:
    size = run.Size(
        messages=options.messages,
        keys=300,
        partitions=12,
        grown_to=18,
        workers=6,
        kills=options.kills,
        joins=6,
        leaves=6,
        stops=4,
        session_seconds=2.0,
        seed=options.seed,
    )
    return run.run_all(folder / "data", size, WORKS)


def _poison(options: argparse.Namespace, folder: Path) -> Counter[str]:
    size = poison.Size(
        messages=400,
        keys=40,
        partitions=6,
        workers=3,
        raising=6,
        deadly=4,
        kills=2,
        max_attempts=3,
        session_seconds=1.0,
        seed=options.seed,
    )
    return poison.run_all(folder / "data", size, [work_process, work_consume])


def _idle(options: argparse.Namespace, folder: Path) -> Counter[str]:
    size = idle.Size(options.members, options.seconds, session_seconds=15.0)
    return idle.run_all(folder / "data", size)


PARTS: Final[dict[str, Part]] = {"sharing": _share, "poison": _poison, "idle": _idle}


def main(arguments: list[str] | None = None) -> int:
    """Run the parts and print their counts; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.sharing", description=__doc__)
    parser.add_argument("--kills", type=int, default=KILLS_DEFAULT)
    parser.add_argument("--messages", type=int, default=MESSAGES_DEFAULT)
    parser.add_argument("--members", type=int, default=MEMBERS_DEFAULT)
    parser.add_argument("--seconds", type=float, default=SECONDS_DEFAULT)
    parser.add_argument("--only", choices=sorted(PARTS))
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000_000)
    options = parser.parse_args(arguments)
    failures = 0
    for name in [options.only] if options.only else PARTS:
        try:
            with tempfile.TemporaryDirectory(prefix=f"semel-{name}-") as folder:
                counts = PARTS[name](options, Path(folder))
        except Failed as failure:
            _say(f"{name}: VIOLATION with --seed {options.seed}: {failure}")
            failures += 1
        except BaseException as error:
            error.add_note(f"{name} with --seed {options.seed}")
            raise
        else:
            _report(name, counts, options.seed)
    return 1 if failures else 0


def _report(name: str, counts: Counter[str], seed: int) -> None:
    _say(f"{name}, seed {seed}:")
    for what, count in counts.items():
        _say(f"  {what:44} {count:>9,}")


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
