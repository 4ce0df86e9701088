"""Running a step in a fresh process, which may also end like one that was killed."""

import asyncio
import multiprocessing
import os
from collections.abc import Callable, Coroutine
from multiprocessing.connection import Connection
from typing import Any

import uvloop

Step = Callable[..., Coroutine[Any, Any, Any]]


def in_child(step: Step, *args: object, is_killed: bool = False) -> Any:
    """Run a coroutine function on a loop of its own elsewhere; answer what it answered.

    With `is_killed` the process ends the moment it has answered: nothing is closed or flushed.
    """
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    child = context.Process(target=_run, args=(there, step, args, is_killed))
    child.start()
    there.close()
    try:
        return here.recv()
    except EOFError:
        raise RuntimeError(f"{step.__name__} failed in its process") from None
    finally:
        child.join()


def _run(pipe: Connection, step: Step, args: tuple[object, ...], is_killed: bool) -> None:
    async def main() -> None:
        pipe.send(await step(*args))
        if is_killed:
            os._exit(0)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
