"""Run `python -m tests.faults [--requests N] [--kills N] [--shards N] [--seed N]`.

Clients of every kind write and read through a proxy that injects all network faults, while the
server is killed repeatedly. At the end, what each client got is compared with the streams.
The run prints its counts and their minimums (floors): a case that never occurred was not tested.
"""

import argparse
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Final

from tests.faults.appenders import DIALECTS
from tests.faults.lives import MODES
from tests.faults.run import Size, run_in_processes
from tests.faults.shard import KINDS, Failed

REQUESTS_DEFAULT: Final = 50_000
KILLS_DEFAULT: Final = 12

# Minimum counts for 50,000 requests; they are scaled for other numbers.
FLOORS: Final = {
    "requests": REQUESTS_DEFAULT,
    "dropped_after_commit": 500,
    "duplicates refused": 500,
    "retries": 1_000,
    "messages": 30_000,
    "appends indeterminate": 50,
    "appends indeterminate, and stored": 10,
    "producer instances": 100,
    "producers fenced": 5,
    **dict.fromkeys(KINDS, 50),
    **{f"acknowledged: producer, {mode}": 500 for mode in MODES},
    **{f"acknowledged: async producer, {mode}": 500 for mode in MODES},
    **{f"acknowledged: by hand, {dialect}": 500 for dialect in DIALECTS},
    **{f"acknowledged: {kind}": 100 for kind in ("client, key", "async client, key")},
    **{f"acknowledged: {kind}": 100 for kind in ("client", "async client", "client, unnumbered")},
    **{f"messages read: {way}": 10_000 for way in ("read", "long-poll", "sse")},
}


def missed_floors(total: Counter[str], size: Size) -> list[str]:
    """Return the names of the counts that are below their floor."""
    share = size.requests / REQUESTS_DEFAULT
    floors = {name: floor * share for name, floor in FLOORS.items()} | {"kills": size.kills}
    return [name for name, floor in floors.items() if total[name] < floor]


def _report(total: Counter[str], missed: list[str], requests: int) -> None:
    for name, count in sorted(total.items()):
        floor = FLOORS.get(name, 0) * requests // REQUESTS_DEFAULT
        mark = "   BELOW THE FLOOR" if name in missed else ""
        _say(f"  {name:44} {count:>9,}" + (f"   floor {floor:,}{mark}" if floor else ""))
    for name in missed:
        if name not in total:
            _say(f"  {name:44} {0:>9,}   NEVER HAPPENED")


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main(arguments: list[str] | None = None) -> int:
    """Run the test and print its counts; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--requests", type=int, default=REQUESTS_DEFAULT)
    parser.add_argument("--kills", type=int, default=KILLS_DEFAULT)
    parser.add_argument("--shards", type=int, default=2)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000_000)
    size = Size(**vars(parser.parse_args(arguments)))
    started = time.monotonic()
    try:
        with tempfile.TemporaryDirectory(prefix="semel-faults-") as folder:
            total = run_in_processes(size, Path(folder) / "data")
    except Failed as failure:
        _say(f"VIOLATION with --seed {size.seed}: {failure}")
        return 1
    except BaseException as error:
        error.add_note(f"with --seed {size.seed}")
        raise
    missed = missed_floors(total, size)
    _report(total, missed, size.requests)
    _say(
        f"faults: {total['requests']:,} requests, {sum(total[kind] for kind in KINDS):,} of them"
        f" met a fault, {total['dropped_after_commit']:,} answers dropped after the commit,"
        f" {total['kills']} kills; {total['messages']:,} messages, each once and in order;"
        f" {total['retries']:,} retries, {total['duplicates refused']:,} duplicates refused;"
        f" {len(missed)} floors missed; {time.monotonic() - started:.0f} s, seed {size.seed}"
    )
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
