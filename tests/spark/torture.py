"""Torture test of Spark: `python -m tests.spark.torture [--kills N] [--seed N] [--naive]`.

A query copies one stream to several streams while rows are appended, tasks fail, responses to
commits are lost, and drivers and the server are killed. Every driver uses another number of
partitions. At the end each row must be once in each of its two streams. The rows of `ordered/*`,
which are not shuffled, must also be in the order of the source: the sink writes batches in order,
the partitions of a batch in order, and the rows of a partition in order.

Prints one line of figures. Fails if a row is lost or duplicated, or if an expected fault did not
happen. With --naive a plain append replaces the sink, and the check must fail.
"""

import argparse
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Final

from msgspec import Struct

from tests.spark.torture_driver import TARGETS, Job
from tests.spark.torture_world import Driver, Failed, World, row

KILLS_DEFAULT: Final = 6
ROWS_PER_BATCH: Final = 48
FAIL_SHARE: Final = 0.1
MOMENTS: Final = ("after commit", "in write", "any")


class Figures(Struct):
    """The faults that happened, and the errors that were found."""

    driver_kills: int = 0
    server_kills: int = 0
    task_failures: int = 0
    answers_lost: int = 0
    batches: int = 0
    replays: int = 0
    rows_in: int = 0
    rows_out: int = 0
    lost: int = 0
    duplicates: int = 0
    disordered: int = 0
    wrong: int = 0
    seconds: float = 0.0

    def is_exact(self) -> bool:
        """Whether each row is once in its streams, with the right value and order."""
        return not (self.lost or self.duplicates or self.disordered or self.wrong)

    def missing(self, kills: int) -> list[str]:
        """Return the names of the events that happened too rarely."""
        floors = {
            "driver_kills": kills,
            "server_kills": kills // 2,
            "task_failures": 1,
            "answers_lost": 1,
            "replays": 1,
            "rows_in": 1,
        }
        return [name for name, floor in floors.items() if getattr(self, name) < floor]

    def line(self) -> str:
        """Return all figures as one line."""
        return (
            f"spark torture: {self.driver_kills} driver kills, {self.server_kills} server kills,"
            f" {self.task_failures} task failures, {self.answers_lost} commit answers lost,"
            f" {self.batches} batches, {self.replays} replays recognised;"
            f" {self.rows_in:,} rows in, {self.rows_out:,} rows out, each by two ways:"
            f" {self.lost} lost, {self.duplicates} duplicated, {self.disordered} out of order,"
            f" {self.wrong} wrong; {self.seconds:.0f} s"
        )


class Torture:
    """One run of the torture test."""

    def __init__(self, world: World, random: Random, *, is_naive: bool) -> None:
        self._world = world
        self._random = random
        self._is_naive = is_naive
        self._figures = Figures()

    def run(self, kills: int) -> Figures:
        """Kill `kills` drivers, let the last driver finish, and check the streams."""
        for number in range(kills):
            driver = self._world.start(self._job())
            # The first batch may be a batch that the previous driver did not finish.
            self._world.wait_for_batches(self._random.randint(2, 3), driver)
            if number % 2 and not self._is_naive:
                self._kill_server(driver)
            self._kill_driver(driver, MOMENTS[number % len(MOMENTS)])
        self._world.stop_feeding()
        self._world.start(self._job(is_last=True)).finish()
        return self._judge()

    def _job(self, *, is_last: bool = False) -> Job:
        return Job(
            url=self._world.proxy.url,
            home=str(self._world.home),
            rows_per_batch=self._world.rows_per_batch,
            slices=self._random.randint(1, 4),
            shuffled=self._random.randint(1, 4),
            fail=FAIL_SHARE,
            is_last=is_last,
            is_naive=self._is_naive,
        )

    def _kill_driver(self, driver: Driver, moment: str) -> None:
        if moment == "any":
            time.sleep(self._random.random())
        elif moment == "in write" or self._is_naive:
            self._world.hold_append(driver)
        else:
            self._world.hold_commit(driver)
        driver.kill()
        self._figures.driver_kills += 1

    def _kill_server(self, driver: Driver) -> None:
        if self._random.random() < 0.5:
            self._world.hold_commit(driver, seconds=0.2)
        else:
            time.sleep(self._random.random())
        self._world.kill_server()
        self._figures.server_kills += 1
        self._world.wait_for_batches(1, driver)

    def _judge(self) -> Figures:
        world, it = self._world, self._figures
        it.task_failures, it.replays = world.noted("failures"), world.noted("replays")
        it.answers_lost = world.proxy.counts["drop_answer"] + world.commits_held
        it.batches, it.rows_in = world.batches(), world.rows
        if self._read("in") != [row(number) for number in range(world.rows)]:
            raise Failed("the source differs from the rows that were written")
        for way in ("ordered", "mixed"):
            for target in range(TARGETS):
                self._judge_stream(way, target, range(target, world.rows, TARGETS))
        return it

    def _judge_stream(self, way: str, target: int, wanted: range) -> None:
        it, found = self._figures, self._read(f"{way}/{target}")
        numbers = [int(str(value["n"])) for value in found]
        seen = set(numbers)
        it.rows_out += len(numbers)
        it.lost += sum(number not in seen for number in wanted)
        it.duplicates += len(numbers) - len(seen)
        it.wrong += sum(value != row(number) for value, number in zip(found, numbers, strict=True))
        it.wrong += sum(number not in wanted for number in seen)
        if way == "ordered":
            it.disordered += sum(a > b for a, b in pairwise(numbers))

    def _read(self, path: str) -> list[dict[str, object]]:
        return [message.value for message in self._world.client.stream(path).read()]


def run(home: Path, kills: int, seed: int, *, is_naive: bool = False) -> Figures:
    """Run in a directory; raise Failed if a driver or the server failed by itself."""
    started = time.monotonic()
    with World(home, ROWS_PER_BATCH, seed) as world:
        figures = Torture(world, Random(seed), is_naive=is_naive).run(kills)
    figures.seconds = time.monotonic() - started
    return figures


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> int:
    """Run, check and print the result."""
    parser = argparse.ArgumentParser(prog="python -m tests.spark.torture", description=__doc__)
    parser.add_argument("--kills", type=int, default=KILLS_DEFAULT)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000_000)
    parser.add_argument("--naive", action="store_true")
    given = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory(prefix="semel-torture-") as folder:
            figures = run(Path(folder), given.kills, given.seed, is_naive=given.naive)
    except Failed as failure:
        _say(f"VIOLATION with --seed {given.seed}: {failure}")
        return 1
    except BaseException as error:
        error.add_note(f"with --seed {given.seed}")
        raise
    _say(f"{figures.line()}, seed {given.seed}")
    missing = [] if given.naive else figures.missing(given.kills)
    for name in missing:
        _say(f"too few {name}")
    return 0 if figures.is_exact() and not missing else 1


if __name__ == "__main__":
    sys.exit(main())
