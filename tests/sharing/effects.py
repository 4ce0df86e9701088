"""What workers do: the task, and the effect that a worker writes for each message."""

from random import Random
from typing import Any, Final, NamedTuple

from semel import Client
from semel.client.values import Message, Origin
from tests.sharing.checker import WITHOUT_KEY, Effect, Findings, Input

# What a poisoned message does to its worker, unless the worker is fixed.
RAISE: Final = "raise"
DIE: Final = "die"


class Poisoned(Exception):
    """The message cannot be processed."""


class Task(NamedTuple):
    """The task of all workers. They know only the names.

    A worker writes one effect for each message of `topic` to two outputs: to `stream`, and with the
    key of the message to the topic `copies`. A share of the workers has the same instance name
    after a restart. If `is_fixed`, a worker can process poisoned messages.
    """

    url: str
    group: str
    topic: str
    stream: str
    copies: str
    session_seconds: float
    instance_share: float = 0.5
    max_attempts: int = 5
    is_fixed: bool = False

    def instance_of(self, worker: str) -> str | None:
        """Return the instance name of a worker, or None if it has another one after a restart."""
        slot = worker.partition("-")[0]
        return slot if Random(slot).random() < self.instance_share else None


def effect_document(value: Any, origin: Origin, worker: str) -> dict[str, Any]:
    """Return what a worker writes for a message that was first read at `origin`."""
    return {
        "key": value["key"],
        "number": value["number"],
        "stream": origin.stream,
        "offset": origin.offset,
        "worker": worker,
    }


def read_inputs(client: Client, topic: str) -> list[Input]:
    """Return all messages of a topic."""
    inputs = []
    for message in client.topic(topic).read():
        assert message.stream is not None
        assert message.offset is not None
        value = message.value
        inputs.append(
            Input(
                value["key"],
                value["number"],
                message.stream,
                message.offset,
                poison=value.get("poison", ""),
            )
        )
    return inputs


def read_effects(client: Client, task: Task, found: Findings) -> dict[str, list[Effect]]:
    """Return the effects on each output, in the order of each of its streams.

    If a copy has not the key of its input, this is added to `found`.
    """
    copies = list(client.topic(task.copies).read())
    for message in copies:
        if message.key != message.value["key"].encode():
            found.add(WITHOUT_KEY, f"{message.offset} in {message.stream} has {message.key!r}")
    return {
        task.stream: [_effect_of(each) for each in client.stream(task.stream).read()],
        task.copies: [_effect_of(each) for each in copies],
    }


def _effect_of(message: Message) -> Effect:
    return Effect(**message.value, output=message.stream or "")
