"""The rounds of a soak. Each makes one kind of failure many times and checks what is left.

A round gets a seed and a directory of its own. It returns what it did, and raises an exception if a
promise is broken. It is skipped, with a reason, where the machine cannot do it.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

from tests.crash import damage_rig, test_flips
from tests.crash.directory import copy, flip, quick_directory
from tests.crash.power import cut_power_repeatedly
from tests.crash.process import Zygote
from tests.crash.protocol import Job
from tests.crash.script import build, small
from tests.crash.test_kill import Loop
from tests.faults import run as faults
from tests.sim.exhaustive import check_all
from tests.sim.run import run_seed
from tests.transactions import run as transactions

KILLS: Final = "kills"
IMAGES: Final = "images"
FLIPS: Final = "flips"
CUTS: Final = "cuts"
REQUESTS: Final = "requests"
ACKED: Final = "acked messages"
TRANSACTIONS: Final = "committed transactions"
FIGURES: Final = (KILLS, IMAGES, FLIPS, CUTS, REQUESTS, ACKED, TRANSACTIONS)


class Violated(Exception):
    """Raised if a round finds a broken promise."""


class Size(NamedTuple):
    """How much one round does."""

    kills: int
    requests: int
    committed: int
    image_steps: int
    simulated_seeds: int
    flips: int
    cuts: int


FULL: Final = Size(
    kills=120,
    requests=6_000,
    committed=800,
    image_steps=260,
    simulated_seeds=10,
    flips=200,
    cuts=30,
)
SHORT: Final = Size(
    kills=3, requests=150, committed=12, image_steps=6, simulated_seeds=1, flips=4, cuts=2
)

Round = Callable[[int, Size, Path], Counter[str]]


@contextmanager
def _zygote() -> Iterator[Zygote]:
    zygote = Zygote()
    try:
        yield zygote
    finally:
        zygote.close()


def kill_the_engine(seed: int, size: Size, folder: Path) -> Counter[str]:
    """Kill an engine under load, also in recovery, and compare all that was acknowledged."""
    job = Job("serve", str(folder / "data"), segment_bytes=64 * 1024, checkpoint_interval_ms=25)
    with _zygote() as zygote:
        loop = Loop(zygote, job, Random(seed))
        loop.first()
        for _ in range(size.kills):
            loop.run_and_kill()
        loop.last()
    return Counter({KILLS: size.kills, ACKED: loop.load.acked})


def kill_the_server_of_clients(seed: int, size: Size, folder: Path) -> Counter[str]:
    """Kill a server while clients of every kind write and read on a bad network."""
    kills = max(1, size.requests // 1_500)
    total = faults.run_in_processes(faults.Size(size.requests, kills, 1, seed), folder / "data")
    return Counter({KILLS: total["kills"], REQUESTS: total["requests"], ACKED: total["messages"]})


def kill_in_transactions(seed: int, size: Size, folder: Path) -> Counter[str]:
    """Kill a server and clients while transactions are committed, and check the whole history."""
    committed = size.committed
    run = transactions.Size(
        committed=committed,
        taken=committed // 20,
        sets=max(1, committed // 100),
        deletes=max(1, committed // 200),
        kills=max(1, committed // 200),
        client_kills=max(1, committed // 400),
        crews=2,
        fault_rate=0.004,
        seed=seed,
    )
    report = transactions.run_in_processes(run, folder)
    # A run ends only after all its planned kills.
    return Counter({KILLS: run.kills + run.client_kills, TRANSACTIONS: report.committed})


def recover_images(seed: int, size: Size, _folder: Path) -> Counter[str]:
    """Recover every crash image of a recorded run, and whole simulated runs with random crashes."""
    images = check_all(seed, steps=size.image_steps)
    for number in range(size.simulated_seeds):
        images += run_seed(seed + number).counts["crashes"]
    return Counter({IMAGES: images})


def damage_the_checkpoint(seed: int, size: Size, _folder: Path) -> Counter[str]:
    """Damage the checkpoint of a stopped and of a running engine, and compare every answer."""
    counts: Counter[str] = Counter()
    for is_running in (False, True):
        result = damage_rig.run(seed, range(size.flips), is_running=is_running)
        if result.violations:
            option = " --running" if is_running else ""
            command = f"python -m tests.crash.damage_rig{option}"
            raise Violated(f"{command} " + "\n".join(result.violations))
        counts[FLIPS] += result.counts.total()
    return counts


def flip_bits(seed: int, size: Size, folder: Path) -> Counter[str]:
    """Flip single bits anywhere in a directory: each is found, or changes nothing."""
    random = Random(seed)
    with _zygote() as zygote, quick_directory() as quick:
        built = build(zygote, quick / "data", is_closed=bool(seed % 2))
        trial = quick / "trial"
        expected, code, stderr = zygote.inspect(small(copy(built.path, trial)))
        if code:
            raise Violated(f"the undamaged directory cannot be opened: {code}: {stderr}")
        for name, bit in test_flips.flips(built, size.flips, random):
            copy(built.path, trial)
            flip(trial / name, bit)
            verdict = test_flips.judge(expected, *zygote.inspect(small(trial)))
            if verdict.startswith(("silent", "unexplained")):
                raise Violated(f"{name} bit {bit}: {verdict}")
    return Counter({FLIPS: size.flips})


def cut_power_on(kind: str) -> Round:
    """Return a round that cuts the power of a file system under load."""

    def cut(seed: int, size: Size, folder: Path) -> Counter[str]:
        with _zygote() as zygote:
            report = cut_power_repeatedly(zygote, folder, kind, size.cuts, seed)
        return Counter({CUTS: size.cuts, ACKED: report.load.acked})

    return cut


ROUNDS: Final[dict[str, Round]] = {
    "kills": kill_the_engine,
    "network": kill_the_server_of_clients,
    "transactions": kill_in_transactions,
    "images": recover_images,
    "checkpoint": damage_the_checkpoint,
    "flips": flip_bits,
    "power-ext4": cut_power_on("ext4"),
    "power-xfs": cut_power_on("xfs"),
}
