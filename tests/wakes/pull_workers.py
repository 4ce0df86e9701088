"""Workers of a pull-wake subscription, by plain HTTP."""

from collections.abc import Callable
from random import Random
from time import sleep
from typing import Final

from tests.sharing.crews import FAILURES, JOINS, Leave, Tally
from tests.transactions.raw import Lost as LineLost
from tests.wakes.calls import Calls, Lost, Wake, claimed, offset
from tests.wakes.task import Processor, Task

_RELEASE_SHARE: Final = 0.05
_FORGET_SHARE: Final = 0.02  # of the wakes are left alone, until their lease has expired
_LONG_POLL_SECONDS: Final = 10.0
_BACKOFF_SECONDS_MAX: Final = 0.1


def work_raw(task: Task, name: str, tally: Tally, leave: Leave) -> None:
    """Process wakes in every way, until `leave` is set."""
    random, processor = Random(name), Processor(task, name, tally)
    work_pull(
        task, name, tally, leave, lambda calls, wake: _process(calls, processor, wake, random)
    )
    processor.close()


def work_pull(
    task: Task, name: str, tally: Tally, leave: Leave, process: Callable[[Calls, Wake], None]
) -> None:
    """Claim wakes until `leave` is set, and call a function with each.

    The worker claims when it starts, and then only after a message in the wake stream. So if a
    message were missing, nothing would be processed.
    """
    calls, random = Calls(task.url, timeout=_LONG_POLL_SECONDS), Random(name)
    read, is_due = 0, True
    while not leave.is_set():
        try:
            if is_due:
                answer = calls.claim(task.subscription, name)
                is_due = False
                if answer.status == 200:
                    tally.add(JOINS)
                    process(calls, claimed(task.subscription, answer))
            found = _new_messages(calls, task.wake_stream, read)
            read += found
            is_due = found > 0
        except (Lost, LineLost):
            tally.add(FAILURES)
            is_due = True
            sleep(random.uniform(0, _BACKOFF_SECONDS_MAX))


def _process(calls: Calls, processor: Processor, wake: Wake, random: Random) -> None:
    drawn = random.random()
    if drawn < _RELEASE_SHARE:
        calls.release(wake)
    elif drawn < _RELEASE_SHARE + _FORGET_SHARE:
        return
    elif drawn < 0.4:
        processor.process_whole(wake)
    elif drawn < 0.6:
        processor.process_in_transaction(wake, random.choice(("inline", "staged")))
    elif drawn < 0.7:
        if processor.process_whole(wake, done=False):
            calls.ack(wake, {}, done=True)
    else:
        processor.process_in_parts(wake, random)


def _new_messages(calls: Calls, path: str, start: int) -> int:
    """Wait for messages of a stream, and return how many there are, which may be none."""
    answer = calls.ask("GET", f"/v1/stream/{path}?offset={offset(start)}&live=long-poll")
    return len(answer.document) if answer.status == 200 else 0
