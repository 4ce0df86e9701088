"""Workers that use the public client: `process` with threads, and `consume` with transactions."""

import os
import signal
import threading
from typing import Any, Final

from semel import Client
from semel.client.consumer_options import ConsumerOptions
from semel.client.errors import ClientClosed, ClientError, PositionRefused
from semel.client.processing import InputBatch
from semel.client.sync.consumer import Consumer
from semel.client.topic_values import Keyed
from semel.client.values import Message
from tests.sharing.crews import (
    ASSIGNED,
    COMMITS,
    FAILURES,
    JOINS,
    LOST_STREAMS,
    REFUSED,
    REVOKED,
    Leave,
    Tally,
)
from tests.sharing.effects import DIE, RAISE, Poisoned, Task, effect_document

_THREADS: Final = 2
_BATCH_MAX: Final = 7
_DEADLINE_SECONDS: Final = 5.0  # of transactions: those of killed workers hide later messages
_BACKOFF_SECONDS: Final = 0.01


def work_process(task: Task, name: str, tally: Tally, leave: Leave) -> None:
    """Process batches with the client's `process` in two threads, until `leave` is set.

    It must survive everything. So no error is caught but that of a client which was closed.
    """
    with Client(task.url) as client:
        threading.Thread(target=_close, args=(leave, client), daemon=True).start()

        def function(batch: InputBatch) -> dict[str, list[Any]]:
            tally.add(COMMITS)
            effects = [_process(message, task, name) for message in batch]
            return {
                task.stream: effects,
                task.copies: [Keyed(effect, effect["key"]) for effect in effects],
            }

        tally.add(JOINS, _THREADS)
        try:
            client.process(
                task.group,
                [task.topic],
                function,
                max_messages=_BATCH_MAX,
                workers=_THREADS,
                **_options(task, name, tally),
            )
        except ClientClosed:  # before it has begun
            assert leave.is_set()


def work_consume(task: Task, name: str, tally: Tally, leave: Leave) -> None:
    """Process single messages, each in a transaction, until `leave` is set.

    After an error of a transaction, the message is not processed, or nobody knows. The consumer is
    closed then, and the next one begins at the position of the group.
    """
    with Client(task.url) as client:
        while not leave.is_set():
            options = _options(task, name, tally)
            consumer = client.consume([task.topic], group=task.group, **options)
            threading.Thread(target=_close, args=(leave, consumer), daemon=True).start()
            tally.add(JOINS)
            try:
                with consumer:
                    _consume(client, task, name, consumer, tally)
            except ClientError:
                tally.add(FAILURES)


def _close(leave: Leave, target: Client | Consumer) -> None:
    leave.wait()
    target.close()


def _options(task: Task, name: str, tally: Tally) -> ConsumerOptions:
    options = ConsumerOptions(
        session_timeout=task.session_seconds,
        max_attempts=task.max_attempts,
        backoff=_BACKOFF_SECONDS,
        on_assigned=lambda streams: tally.add(ASSIGNED, len(streams)),
        on_revoked=lambda streams: tally.add(REVOKED, len(streams)),
        on_lost=lambda streams: tally.add(LOST_STREAMS, len(streams)),
    )
    instance = task.instance_of(name)
    if instance is not None:
        options["instance"] = instance
    return options


def _consume(client: Client, task: Task, name: str, consumer: Consumer, tally: Tally) -> None:
    for message in consumer:
        try:
            effect = _process(message, task, name)
        except Poisoned as error:
            message.reject(str(error))
            continue
        try:
            with client.transaction(timeout=_DEADLINE_SECONDS) as txn:
                txn.append(task.stream, effect)
                txn.append(client.topic(task.copies), effect, key=effect["key"])
                txn.commit_message(message)
        except PositionRefused:
            tally.add(REFUSED)  # another member has the stream, and processes the message
        else:
            tally.add(COMMITS)


def _process(message: Message, task: Task, name: str) -> dict[str, Any]:
    """Return the effect of a message. A poisoned one raises or kills, unless it is fixed."""
    poison = None if task.is_fixed else message.value.get("poison")
    if poison == RAISE:
        raise Poisoned(f"number {message.value['number']} of {message.value['key']}")
    if poison == DIE:
        os.kill(os.getpid(), signal.SIGKILL)
    return effect_document(message.value, message.origin, name)
