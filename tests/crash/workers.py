"""Workers of one group that may be killed at any moment: over plain HTTP, and over the client.

A worker copies every message of its inputs to all outputs, in transactions that move the group. A
new worker knows only the names of the group and of the streams.
"""

import multiprocessing
import os
import threading
from collections.abc import Callable, MutableSequence
from contextlib import suppress
from random import Random
from time import sleep
from typing import Any, Final, NamedTuple, Protocol
from uuid import uuid4

from semel import Client
from semel.client.errors import ClientError, PositionConflict, UnstableOffsets
from semel.client.values import Message
from tests.transactions.raw import (
    Line,
    Lost,
    Position,
    RawTransaction,
    RefusedCall,
    positions_of,
    read_page,
)

# Indexes into the counts of a worker.
COMMITS: Final = 0
CONFLICTS: Final = 1
FAILURES: Final = 2
PREPARES: Final = 3
COUNTS: Final = 4

_PREPARE_SHARE: Final = 0.25
_LEAVE_SHARE: Final = 0.1  # how often a worker closes its tail and opens a new one
_TAKEN_MAX: Final = 3
_IDLE_SECONDS_MAX: Final = 0.02
_HOLD_SECONDS_MAX: Final = 0.05
_DEADLINE_SECONDS: Final = 10.0
_NEVER_MOVED: Final = Position(0, 0)

Work = Callable[..., None]  # task, tally, over, and what to call between the steps


class Task(NamedTuple):
    """The task of all workers: copy each message of all inputs to all outputs."""

    url: str
    group: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


class Over(Protocol):
    """An event that is set when the work is over."""

    def is_set(self) -> bool: ...


class SharedFlag:
    """An event shared by processes, without a lock that a killed process could keep."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def set(self) -> None:
        self._value.value = 1

    def is_set(self) -> bool:
        return bool(self._value.value)


def run_worker(work: Work, task: Task, counts: Any, slot: int, over: SharedFlag) -> None:
    """Run a worker in its own process, which exits when its parent exits."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    work(task, Tally(counts, slot), over)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


class Tally:
    """The counts of one worker, in a shared sequence; its threads may add at once."""

    def __init__(self, counts: MutableSequence[int], slot: int) -> None:
        self._counts = counts
        self._start = slot * COUNTS
        self._lock = threading.Lock()

    def add(self, what: int) -> None:
        with self._lock:
            self._counts[self._start + what] += 1


def copy_of(stream: str, value: object) -> str:
    """Return the message that a worker writes for a message of an input."""
    return f"{stream}:{value}"


def nothing() -> None:
    """Do nothing between the steps of a transaction."""


def _hold(random: Random) -> None:
    """Wait while a transaction is prepared, so that some workers are killed in this state."""
    sleep(random.uniform(0, _HOLD_SECONDS_MAX))


# ---- over plain HTTP -----------------------------------------------------------------------------


def work_raw(task: Task, tally: Tally, over: Over, pause: Callable[[], None] = nothing) -> None:
    """Copy messages of all inputs in turn until `over` is set."""
    line, random = Line(task.url), Random()
    while not over.is_set():
        for stream in task.inputs:
            try:
                is_copied = _copy_raw(line, task, stream, tally, random, pause)
            except Lost:
                tally.add(FAILURES)
                is_copied = False
            except RefusedCall as error:
                tally.add(CONFLICTS if error.is_conflict else FAILURES)
                is_copied = False
            if not is_copied:
                sleep(random.uniform(0, _IDLE_SECONDS_MAX))
    line.close()


def _copy_raw(
    line: Line,
    task: Task,
    stream: str,
    tally: Tally,
    random: Random,
    pause: Callable[[], None],
) -> bool:
    """Copy the next messages of an input; return False if there are none."""
    found = positions_of(line, task.group, is_stable=random.random() < 0.5)
    position = found.get(stream, _NEVER_MOVED)
    page = read_page(line, stream, position.offset)
    values = page.values[: random.randint(1, _TAKEN_MAX)]
    if not values:
        return False
    pause()
    kind = random.choice(("inline", "staged"))
    name = uuid4().hex
    transaction = RawTransaction(line, f"t-{name}", f"p-{name}", kind, _DEADLINE_SECONDS)
    transaction.begin()
    try:
        for output in task.outputs:
            transaction.append(output, [copy_of(stream, value) for value in values])
        to = position.offset + len(values)
        transaction.move(task.group, stream, position, to, page.incarnation)
        pause()
        if random.random() < _PREPARE_SHARE:
            transaction.prepare()
            tally.add(PREPARES)
            _hold(random)
        transaction.commit()
    except RefusedCall:
        with suppress(RefusedCall, Lost):
            transaction.abort()
        raise
    tally.add(COMMITS)
    return True


# ---- over the client at its defaults -------------------------------------------------------------


def work_client(task: Task, tally: Tally, over: Over, pause: Callable[[], None] = nothing) -> None:
    """Copy messages in one thread per input, until each input ends or `over` is set."""
    with Client(task.url) as client:
        threads = [
            threading.Thread(target=_follow, args=(client, task, stream, tally, over, pause))
            for stream in task.inputs
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def _follow(
    client: Client,
    task: Task,
    stream: str,
    tally: Tally,
    over: Over,
    pause: Callable[[], None],
) -> None:
    random = Random()
    while not over.is_set():
        try:
            if _is_copied(client, task, stream, tally, random, pause):
                return
        except (PositionConflict, UnstableOffsets):
            tally.add(CONFLICTS)
        except ClientError:
            tally.add(FAILURES)


def _is_copied(
    client: Client,
    task: Task,
    stream: str,
    tally: Tally,
    random: Random,
    pause: Callable[[], None],
) -> bool:
    """Copy messages from the group's position; return True at the end of a closed input."""
    with client.stream(stream).tail(group=task.group) as tail:
        for message in tail:
            pause()
            _copy(client, task, stream, message, tally, random, pause)
            tally.add(COMMITS)
            if random.random() < _LEAVE_SHARE:
                return False
    return True


def _copy(
    client: Client,
    task: Task,
    stream: str,
    message: Message,
    tally: Tally,
    random: Random,
    pause: Callable[[], None],
) -> None:
    with client.transaction() as txn:
        for output in task.outputs:
            txn.append(output, copy_of(stream, message.value))
        if random.random() < 0.5:
            txn.commit_message(message)
        else:
            assert message.next_offset is not None
            txn.commit_offsets(task.group, {stream: message.next_offset})
        pause()
        if random.random() < _PREPARE_SHARE:
            token = txn.prepare()
            tally.add(PREPARES)
            _hold(random)
            client.commit_prepared(token)
