"""Leases that are renewed by a thread or a task while something else runs."""

import asyncio
import threading
from typing import Any

import pytest

from semel.client.errors import Unavailable, WakeFenced
from semel.client.leases import AsyncLease, Lease, WorkerStop

SECONDS_MAX = 20.0


class Renewals:
    """A flow driver that counts the renewals. Each of the first ones has an error, if given."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.count = 0
        self.reached: Any = None
        self.wanted = 0

    def renew(self) -> Any:
        return None

    def _note(self) -> None:
        self.count += 1
        if self.count >= self.wanted and self.reached is not None:
            self.reached.set()
        if self.failures:
            raise self.failures.pop(0)


class Threads(Renewals):
    def run(self, flow: Any, timeout: float, stop: Any) -> None:
        self._note()


class Tasks(Renewals):
    async def run(self, flow: Any, seconds: float, stop: Any) -> None:
        self._note()


def renewed_by_a_thread(renewals: Threads, wanted: int) -> int:
    """Hold a lease until there were so many renewals. Return their number at the end."""
    renewals.wanted, renewals.reached = wanted, threading.Event()
    with Lease(renewals, renewals.renew, 0.001) as lease:  # type: ignore[arg-type]
        assert renewals.reached.wait(SECONDS_MAX)
        if wanted == 1 and not renewals.failures:
            lease._thread.join(0.02)  # a lost lease is not renewed again
    assert not lease._thread.is_alive()
    return renewals.count


async def renewed_by_a_task(renewals: Tasks, wanted: int) -> int:
    renewals.wanted, renewals.reached = wanted, asyncio.Event()
    async with AsyncLease(renewals, renewals.renew, 0.001):  # type: ignore[arg-type]
        await asyncio.wait_for(renewals.reached.wait(), SECONDS_MAX)
        await asyncio.sleep(0)
    return renewals.count


def renewed(kind: str, wanted: int, *failures: Exception) -> int:
    if kind == "thread":
        return renewed_by_a_thread(Threads(*failures), wanted)
    return asyncio.run(renewed_by_a_task(Tasks(*failures), wanted))


@pytest.mark.parametrize("kind", ["thread", "task"])
def test_a_lease_is_renewed_until_the_block_ends(kind: str) -> None:
    assert renewed(kind, 3) >= 3


@pytest.mark.parametrize("kind", ["thread", "task"])
def test_a_renewal_that_fails_is_followed_by_others(kind: str) -> None:
    assert renewed(kind, 3, Unavailable("gone"), RuntimeError("no")) >= 3


@pytest.mark.parametrize("kind", ["thread", "task"])
def test_a_lease_that_is_lost_is_not_renewed_again(kind: str) -> None:
    assert renewed(kind, 1, WakeFenced("over"), WakeFenced("over")) == 1


def test_a_signal_handler_can_stop_a_worker_that_it_has_interrupted() -> None:
    """The handler runs in the thread that holds the lock, so it must not wait for it."""
    stop = WorkerStop()
    with stop._lock:
        stop.set()
        assert stop.is_set
    stop.wait(SECONDS_MAX)
