"""Usage: `python -m tests.wakes [--messages N] [--kills N] [--seed N]`.

Workers of several subscriptions process the same messages: with pull-wake and with webhooks, by
plain HTTP and with the client. Workers, receivers and the server are killed, and requests and
deliveries are lost and repeated. Each message must have its effect on each output once, and those
of a stream in order.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from tests.sharing.checker import Failed
from tests.wakes.client_workers import receive_client, work_client
from tests.wakes.pull_workers import work_raw
from tests.wakes.run import Kind, Size, run_all
from tests.wakes.webhook_workers import receive_raw

MESSAGES_DEFAULT: Final = 2_000
KILLS_DEFAULT: Final = 20
STREAMS: Final = 8

KINDS: Final = (
    Kind("pull-raw", work_raw),
    Kind("pull-client", work_client, is_named=True),
    Kind("webhook-raw", receive_raw, workers=1, is_webhook=True),
    Kind("webhook-client", receive_client, workers=1, is_webhook=True, is_named=True),
)


def main(arguments: list[str] | None = None) -> int:
    """Run, and print the counts; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.wakes", description=__doc__)
    parser.add_argument("--messages", type=int, default=MESSAGES_DEFAULT)
    parser.add_argument("--kills", type=int, default=KILLS_DEFAULT)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000_000)
    options = parser.parse_args(arguments)
    size = Size(options.messages, STREAMS, options.kills, options.seed)
    try:
        with tempfile.TemporaryDirectory(prefix="semel-wakes-") as folder:
            counts = run_all(Path(folder) / "data", size, KINDS)
    except Failed as failure:
        sys.stdout.write(f"VIOLATION with --seed {size.seed}: {failure}\n")
        return 1
    except BaseException as error:
        error.add_note(f"with --seed {size.seed}")
        raise
    sys.stdout.write(f"seed {size.seed}:\n")
    for what, count in counts.items():
        sys.stdout.write(f"  {what:44} {count:>9,}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
