"""Workers with a bug, which the run must find out. Each commits in a wrong way on purpose."""

import threading
from collections.abc import Callable
from random import Random
from typing import Any, Final

from semel import Client
from semel.client.errors import PositionRefused
from semel.client.topic_values import Keyed
from semel.client.values import Message
from tests.sharing.checker import DOUBLED, LOST, OUT_OF_ORDER
from tests.sharing.crews import Leave, Tally, Work
from tests.sharing.effects import Task, effect_document

_CRASH_SHARE: Final = 0.1
_BATCH_MAX: Final = 20

Write = Callable[[list[Message]], object]
Process = Callable[[Write, list[Message], Random], None]


class _Crash(Exception):
    """The worker ends in the middle. What it has committed stays."""


def work_output_first(task: Task, name: str, tally: Tally, leave: Leave) -> None:
    """Write the effect, then commit the position. A crash in between doubles the effect."""

    def process(write: Write, messages: list[Message], random: Random) -> None:
        for message in messages:
            write([message])
            _perhaps_crash(random)
            message.commit()

    _work(task, name, leave, process)


def work_position_first(task: Task, name: str, tally: Tally, leave: Leave) -> None:
    """Commit the position, then write the effect. A crash in between loses the effect."""

    def process(write: Write, messages: list[Message], random: Random) -> None:
        for message in messages:
            message.commit()
            _perhaps_crash(random)
            write([message])

    _work(task, name, leave, process)


def work_disordered(task: Task, name: str, tally: Tally, leave: Leave) -> None:
    """Write the effects of a batch in the wrong order."""

    def process(write: Write, messages: list[Message], random: Random) -> None:
        write(messages[::-1])
        messages[-1].commit()

    _work(task, name, leave, process)


# Each faulty worker, and the kind of what must be found.
FAULTY: Final[tuple[tuple[Work, str], ...]] = (
    (work_output_first, DOUBLED),
    (work_position_first, LOST),
    (work_disordered, OUT_OF_ORDER),
)


def _perhaps_crash(random: Random) -> None:
    if random.random() < _CRASH_SHARE:
        raise _Crash


def _work(task: Task, name: str, leave: Leave, process: Process) -> None:
    random, number = Random(name), 0
    with Client(task.url) as client:
        producer_id = client.register_producer().producer_id

        def write(messages: list[Message]) -> None:
            nonlocal number
            effects = [effect_document(each.value, each.origin, name) for each in messages]
            keyed: list[Any] = [Keyed(effect, effect["key"]) for effect in effects]
            appends = {task.stream: effects, task.copies: keyed}
            client.commit(producer_id=producer_id, seq=number, appends=appends)
            number += 1

        while not leave.is_set():
            try:
                _consume(client, task, leave, lambda messages: process(write, messages, random))
            except (_Crash, PositionRefused):  # it has lost the stream, or the topic has grown
                continue


def _consume(
    client: Client, task: Task, leave: Leave, process: Callable[[list[Message]], None]
) -> None:
    """Process batches as a new member, until the worker crashes or `leave` is set."""
    with client.consume(
        [task.topic], group=task.group, session_timeout=task.session_seconds
    ) as consumer:
        threading.Thread(target=_close, args=(leave, consumer.close), daemon=True).start()
        while (batch := consumer.next_batch(_BATCH_MAX)) is not None:
            process(batch.messages)


def _close(leave: Leave, close: Callable[[], None]) -> None:
    leave.wait()
    close()
