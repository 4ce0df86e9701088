"""A worker reads, computes and writes, and is killed anywhere: each input has one effect."""

import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from semel import local
from tests.integration.test_client_transactions import WORKER
from tests.spec.process import PATIENCE_SECONDS

KILLS: Final = 52
INPUTS_PER_RUN: Final = 20
SERVER_KILLED_EVERY: Final = 5
SEED: Final = 11


# rows: R40
@pytest.mark.crash
def test_every_input_has_its_effect_once_whenever_worker_and_server_are_killed(
    tmp_path: Path, figure: Callable[[str], None]
) -> None:
    chance = random.Random(SEED)
    worker = tmp_path / "worker.py"
    worker.write_text(WORKER)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with local() as server:
        inputs = server.stream("in").create("application/json")
        outputs = server.stream("out").create("application/json")
        command = [sys.executable, str(worker), server.url, "doubler", "in", "out"]
        in_the_middle = done = 0
        for number in range(KILLS):
            first = number * INPUTS_PER_RUN
            inputs.append_many(range(first, first + INPUTS_PER_RUN), idempotency_key=str(number))
            kind = chance.choice(("sync", "async"))
            process = subprocess.Popen([*command, kind], env=environment, stderr=subprocess.DEVNULL)
            # Kill the worker when some inputs, but not all, are done.
            some = done + chance.randrange(1, INPUTS_PER_RUN)
            with outputs.tail(timeout=PATIENCE_SECONDS) as tail:
                for _ in range(some):
                    next(tail)
            if number % SERVER_KILLED_EVERY == 0:
                server.kill()
                server.restart()
            process.kill()
            process.wait(PATIENCE_SECONDS)
            done = sum(1 for _ in outputs.read())
            in_the_middle += done < first + INPUTS_PER_RUN
        inputs.close()
        subprocess.run(
            [*command, "sync"], env=environment, check=True, timeout=2 * PATIENCE_SECONDS
        )
        found = [message.value for message in outputs.read()]
        assert found == [2 * each for each in range(KILLS * INPUTS_PER_RUN)]
        assert server.group("doubler").offsets() == {"in": inputs.head().next_offset}
    assert in_the_middle > KILLS // 5, "too few workers were killed with work left"
    figure(
        f"consume, transform, produce: {KILLS} workers and {-(-KILLS // SERVER_KILLED_EVERY)}"
        f" servers killed, {in_the_middle} with work left; {len(found):,} inputs, each with its"
        " effect once and in order, positions with them"
    )
