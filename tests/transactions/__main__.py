"""Usage: `python -m tests.transactions [--committed N] [--kills N] [--client-kills N] [--seed N]`.

Clients commit transactions of every kind over several streams, half of them through a fault proxy.
The server and some clients are killed. Some clients share groups, which an operator sets back, and
whose inputs the operator deletes. At the end the checker checks the recorded history.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from tests.transactions.judge import Failed
from tests.transactions.run import Size, run_in_processes

COMMITTED_DEFAULT: Final = 10_000
TAKEN_DEFAULT: Final = 500
SETS_DEFAULT: Final = 100
DELETES_DEFAULT: Final = 20
KILLS_DEFAULT: Final = 10
CLIENT_KILLS_DEFAULT: Final = 4


def main(arguments: list[str] | None = None) -> int:
    """Run, check and print the result."""
    parser = argparse.ArgumentParser(prog="python -m tests.transactions", description=__doc__)
    parser.add_argument("--committed", type=int, default=COMMITTED_DEFAULT)
    parser.add_argument("--taken", type=int, default=TAKEN_DEFAULT)
    parser.add_argument("--sets", type=int, default=SETS_DEFAULT)
    parser.add_argument("--deletes", type=int, default=DELETES_DEFAULT)
    parser.add_argument("--kills", type=int, default=KILLS_DEFAULT)
    parser.add_argument("--client-kills", type=int, default=CLIENT_KILLS_DEFAULT)
    parser.add_argument("--crews", type=int, default=3)
    parser.add_argument("--fault-rate", type=float, default=0.004)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000_000)
    size = Size(**vars(parser.parse_args(arguments)))
    started = time.monotonic()
    try:
        with tempfile.TemporaryDirectory(prefix="semel-transactions-") as folder:
            report = run_in_processes(size, Path(folder))
    except Failed as failure:
        sys.stdout.write(f"ANOMALIES with --seed {size.seed}: {failure}\n")
        return 1
    except BaseException as error:
        error.add_note(f"with --seed {size.seed}")
        raise
    seconds = time.monotonic() - started
    sys.stdout.write(
        f"transactions: {report}; {size.kills} kills of the server and {size.client_kills} of"
        f" clients; {seconds:.0f} s, seed {size.seed}\n"
    )
    unknown = report.resolved_committed + report.resolved_aborted
    is_enough = (
        report.committed >= size.committed
        and report.ranges >= size.taken
        and report.sets >= size.sets
        and report.deletes >= size.deletes
    )
    return 0 if is_enough and report.aborted and report.refused and unknown else 1


if __name__ == "__main__":
    sys.exit(main())
