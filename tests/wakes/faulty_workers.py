"""Workers with a bug, which the run must find out: they write and ack in two requests."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final
from uuid import uuid4

from tests.sharing.checker import DOUBLED, LOST
from tests.sharing.crews import Leave, Tally
from tests.wakes.calls import Calls, Wake, delivered
from tests.wakes.pull_workers import work_pull
from tests.wakes.receivers import DONE, FAILED, Delivery, Receiver, Reply
from tests.wakes.run import Kind
from tests.wakes.task import Processor, Task

_CRASHES_EVERY: Final = 5


class _Crash(Exception):
    """The worker ends in the middle. What it has sent stays."""


class _Crashes:
    """Decides when a worker crashes: with its first wake, and with every fifth after it."""

    def __init__(self) -> None:
        self._count = 0

    def is_due(self) -> bool:
        """Count a wake, and return whether its worker crashes."""
        self._count += 1
        return self._count % _CRASHES_EVERY == 1

    def perhaps_crash(self) -> None:
        """Count a wake, and raise _Crash if its worker crashes."""
        if self.is_due():
            raise _Crash


class _FaultyProcessor(Processor):
    """Writes the effects of a wake without an ack."""

    def write(self, wake: Wake) -> None:
        """Write the effects of a wake, once for each call."""
        effects: list[dict[str, Any]] = [
            effect
            for path, (start, end) in wake.streams.items()
            for effect in self.effects(path, start, end)
        ]
        document = {
            "producer_id": f"p-{uuid4().hex}",
            "producer_epoch": 0,
            "producer_seq": 0,
            "appends": [{"stream": self.task.output, "messages": effects}],
        }
        self.line.ask("POST", "/v1/commits", document)


def work_output_first(task: Task, name: str, tally: Tally, leave: Leave) -> None:
    """Write the effects, then ack. A crash in between doubles the effects."""

    def process(calls: Calls, wake: Wake) -> None:
        processor.write(wake)
        crashes.perhaps_crash()
        calls.ack(wake, wake.tails, done=True)

    processor, crashes = _FaultyProcessor(task, name, tally), _Crashes()
    _work(task, name, tally, leave, process)


def work_ack_first(task: Task, name: str, tally: Tally, leave: Leave) -> None:
    """Ack, then write the effects. A crash in between loses the effects."""

    def process(calls: Calls, wake: Wake) -> None:
        if calls.ack(wake, wake.tails, done=True).status == 200:
            crashes.perhaps_crash()
            processor.write(wake)

    processor, crashes = _FaultyProcessor(task, name, tally), _Crashes()
    _work(task, name, tally, leave, process)


def receive_output_first(task: Task, name: str, tally: Tally, leave: Leave) -> None:
    """Write the effects, and answer that the work is done. A crash in between doubles them."""
    crashes = _Crashes()

    def answer(delivery: Delivery) -> Reply:
        processor = _FaultyProcessor(task, name, tally)
        processor.write(delivered(delivery.body))
        processor.close()
        return FAILED if crashes.is_due() else DONE

    with Receiver(answer, task.port):
        leave.wait()


# Each faulty worker, and the kind of what must be found.
FAULTY: Final[tuple[tuple[Kind, str], ...]] = (
    (Kind("output-first", work_output_first), DOUBLED),
    (Kind("ack-first", work_ack_first), LOST),
    (Kind("done-first", receive_output_first, workers=1, is_webhook=True), DOUBLED),
)


def _work(
    task: Task, name: str, tally: Tally, leave: Leave, process: Callable[[Calls, Wake], None]
) -> None:
    def survive(calls: Calls, wake: Wake) -> None:
        with suppress(_Crash):
            process(calls, wake)

    work_pull(task, name, tally, leave, survive)
