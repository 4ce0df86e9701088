"""Runs the workers of `process`: by threads of a Client, or by tasks of an AsyncClient.

If one of them fails, the others are stopped, and the error is raised.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

_LOOK_SECONDS: Final = 0.5  # how often the waiting thread can be interrupted

Stop = Callable[[], object]


def sync_workers(works: Sequence[Callable[[], int]], stop: Stop) -> int:
    """Run all workers, each but a single one in a thread of its own. Return the sum of results."""
    if len(works) == 1:
        return works[0]()
    counts: list[int] = []
    failures: list[BaseException] = []

    def run(work: Callable[[], int]) -> None:
        try:
            counts.append(work())
        except BaseException as error:  # noqa: BLE001 - the calling thread raises it
            failures.append(error)
            stop()

    threads = [
        threading.Thread(target=run, args=(work,), name=f"semel-worker-{index}", daemon=True)
        for index, work in enumerate(works)
    ]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            while thread.is_alive():
                thread.join(_LOOK_SECONDS)
    except BaseException:
        stop()
        for thread in threads:
            thread.join()
        raise
    if failures:
        raise failures[0]
    return sum(counts)


async def async_workers(works: Sequence[Callable[[], Awaitable[int]]], stop: Stop) -> int:
    """Run all workers, each in a task of its own. Return the sum of their results."""
    tasks = [asyncio.ensure_future(work()) for work in works]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        stop()
        await asyncio.wait(tasks)
    except BaseException:
        stop()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
    failures = [error for error in (task.exception() for task in tasks) if error is not None]
    if failures:
        raise failures[0]
    return sum(task.result() for task in tasks)
