"""The whole run: a server that is killed, and shards of clients that continue."""

import multiprocessing
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from random import Random
from time import monotonic, sleep
from typing import Any, Final, NamedTuple

from semel.testing import LocalServer, local
from tests.faults.shard import Failed, run_shard

_LOOK_SECONDS: Final = 0.02
_DOWN_SECONDS_MAX: Final = 0.1
_GIVE_UP_SECONDS: Final = 900.0


class Size(NamedTuple):
    """The size and the seed of a run."""

    requests: int
    kills: int
    shards: int
    seed: int


def run_in_processes(size: Size, data: Path) -> Counter[str]:
    """Run each shard in its own process; return the counts."""
    context = multiprocessing.get_context("spawn")  # a fork would inherit the server's pipes
    with context.Manager() as manager, _serving(data) as server:
        over, progress = manager.Event(), manager.list([0] * size.shards)
        with ProcessPoolExecutor(size.shards, mp_context=context) as pool:
            return _run(size, server, pool.submit, over, progress)


def run_in_threads(size: Size, data: Path) -> Counter[str]:
    """Run each shard in a thread of this process; return the counts."""
    over, progress = threading.Event(), [0] * size.shards
    with _serving(data) as server, ThreadPoolExecutor(size.shards) as pool:
        return _run(size, server, pool.submit, over, progress)


def _serving(data: Path) -> LocalServer:
    return local(data, long_poll_timeout=2)


def _run(
    size: Size,
    server: LocalServer,
    submit: Callable[..., Future[Counter[str]]],
    over: Any,
    progress: Any,
) -> Counter[str]:
    shards = [
        submit(run_shard, server.url, number, size.seed, over, progress)
        for number in range(size.shards)
    ]
    try:
        kills = _kill_now_and_then(size, server, shards, progress)
    finally:
        over.set()
    total = Counter(kills=kills)
    for shard in shards:
        total.update(shard.result())
    if server.stderr:
        raise Failed(f"the server wrote to stderr: {server.stderr}")
    return total


def _kill_now_and_then(
    size: Size,
    server: LocalServer,
    shards: Sequence[Future[Counter[str]]],
    progress: Sequence[int],
) -> int:
    """Kill the server at moments spread over the run; return the number of kills."""
    random = Random(size.seed)
    step = size.requests / max(1, size.kills)
    moments = [step * (number + random.random()) for number in range(size.kills)]
    until = monotonic() + _GIVE_UP_SECONDS
    kills = 0
    while not any(shard.done() for shard in shards):
        requests = sum(progress)
        if requests >= size.requests and kills == size.kills:
            break
        if monotonic() > until:
            raise Failed(f"only {requests} requests in {_GIVE_UP_SECONDS:g} seconds")
        if kills < size.kills and requests >= moments[kills]:
            server.kill()
            sleep(random.uniform(0, _DOWN_SECONDS_MAX))
            server.restart()
            kills += 1
        sleep(_LOOK_SECONDS)
    return kills
