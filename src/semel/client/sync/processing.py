# generated from semel/client/aio/processing.py by `make facades`; do not edit
"""Processing: reading inputs, calling a function, and storing its outputs, exactly once."""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct

from semel.client.group_processing import check_outputs, commit_outputs, give_up, retry_seconds
from semel.client.processing import InputBatch, ProcessLoop, SyncTransform, sync_transform
from semel.client.sync.consumer import Consumer
from semel.client.transport import Timeout, seconds_of
from semel.client.workers import sync_workers

if TYPE_CHECKING:
    from semel.client.sync.client import Client


class Task(Struct, frozen=True):
    """What a call of `process` does. The fields are its arguments."""

    group: str
    function: SyncTransform
    is_live: bool
    max_messages: int
    timeout: Timeout


# ---- alone ---------------------------------------------------------------------------------------


def process_alone(
    client: "Client", task: Task, inputs: Iterable[str], producer_id: str | None
) -> int:
    """Process streams as the only worker of the group. Return the number of messages."""
    seconds = seconds_of(task.timeout, client.timeout)
    loop = ProcessLoop(
        client.site,
        task.group,
        inputs,
        producer_id=producer_id,
        is_live=task.is_live,
        max_messages=task.max_messages,
        silence_seconds=seconds,
    )
    client.run(loop.begin(), seconds)
    count = 0
    while (batch := client.run(loop.next_batch(), None)) is not None:
        outputs = sync_transform(task.function, batch)
        if client.run(loop.commit(batch, outputs), None):
            count += len(batch)
    return count


# ---- as members of a group -----------------------------------------------------------------------


def process_together(client: "Client", task: Task, consumers: Sequence[Consumer]) -> int:
    """Process what the consumers own, each with a worker. Return the number of messages."""

    def stop() -> None:
        for consumer in consumers:
            consumer.stop()

    return sync_workers([partial(_work, client, task, each) for each in consumers], stop)


def _work(client: "Client", task: Task, consumer: Consumer) -> int:
    count = 0
    with consumer:
        while (batch := consumer.next_batch(task.max_messages)) is not None:
            count += _process(client, task, consumer, batch)
    return count


def _process(client: "Client", task: Task, consumer: Consumer, batch: InputBatch) -> int:
    """Call the function, and commit its outputs. Return the number of messages that are done."""
    sequence, settings = consumer.sequence, consumer.settings
    failures = 0
    while True:
        error: Exception
        try:
            outputs = check_outputs(sync_transform(task.function, batch), batch)
        except Exception as raised:  # noqa: BLE001 - counted, and raised if there are no retries
            error = raised
        else:
            flow = commit_outputs(sequence, task.group, batch, outputs)
            done = client.run(flow, None)
            if isinstance(done, int):
                return done
            error = done
        failures += 1
        seconds = retry_seconds(settings, batch, failures)
        if seconds is None:
            return client.run(give_up(sequence, settings, batch, error, failures), None)
        consumer.pause(seconds)
        if consumer.closed:
            return 0
