"""Measuring two or more sides in turns, and what each round of each side cost."""

import resource
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from msgspec import Struct


class Round(Struct):
    """What one round cost: wall time, and CPU time of the thread that ran it.

    The kernel counts `cpu_s` exactly and divides it into user and system time by sampling.
    """

    appends: int = 0
    bytes: int = 0
    wall_s: float = 0.0
    cpu_s: float = 0.0
    user_s: float = 0.0
    write_cpu_s: float = 0.0

    def us(self, seconds: float) -> float:
        """Microseconds per append."""
        return seconds / self.appends * 1e6


Side = Callable[[], Round]


@contextmanager
def measured() -> Iterator[Round]:
    spent = Round()
    user, cpu, wall = _user_s(), time.thread_time(), time.perf_counter()
    yield spent
    spent.wall_s = time.perf_counter() - wall
    spent.cpu_s = time.thread_time() - cpu
    spent.user_s = _user_s() - user


def _user_s() -> float:
    return resource.getrusage(resource.RUSAGE_THREAD).ru_utime


def take_turns(sides: Mapping[str, Side], rounds: int) -> dict[str, list[Round]]:
    """Run every side once to warm up, then `rounds` times, each time another side first."""
    names = list(sides)
    for side in sides.values():
        side()
    found: dict[str, list[Round]] = {name: [] for name in names}
    for index in range(rounds):
        first = index % len(names)
        for name in names[first:] + names[:first]:
            found[name].append(sides[name]())
    return found
