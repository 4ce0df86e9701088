"""The engine's topics in the form of the reference model, and what was promised about appends."""

from collections import Counter
from collections.abc import Callable
from typing import Any

from semel.machine import Decision, State, producers
from semel.machine.rows import ProducerRow
from semel.machine.state import Stream
from semel.machine.topic_receipts import unpack_parts
from semel.model.outcomes_topics import Parts, TopicStored
from semel.model.topic_commands import AppendTopic
from tests.sim.demands import demand
from tests.sim.reference import Model

View = dict[str, Any]


def topic_view(
    state: State, stream: Stream, view: Callable[[State, ProducerRow], dict[str, object]]
) -> View:
    """Return what differs in the dump of a stream if it is a topic, or a partition of one."""
    row, topic = stream.row, stream.topic
    if topic is None:
        return {"topic": None, "topic_number": row.topic}
    oldest_hour = state.hours - state.limits.key_hours
    return {
        "topic": {
            "partitioner": topic.partitioner,
            "partitions": topic.partitions,
            "is_keyed": topic.is_keyed,
            "fences": topic.fences,
        },
        "topic_number": 0,
        "producers": {
            name: view(state, producer) | _receipts_with_parts(state, producer)
            for name, producer in sorted((stream.producers or {}).items())
        },
        "keys": [
            (key, use.digest, unpack_parts(use.parts), use.time_ms, use.hour)
            for key, use in (stream.keys or {}).items()
            if use.hour >= oldest_hour
        ],
    }


def _receipts_with_parts(state: State, row: ProducerRow) -> View:
    held = _unpacked(row.receipts)
    if row.first_receipt and row.last_seq >= 0 and not (held and held[0].first_seq == 0):
        held.insert(0, producers.unpack_receipt(row.first_receipt, 0))
    txn_held = _unpacked(row.txn_receipts) if row.txn in state.by_txn else []
    return {
        "receipts": tuple(_with_parts(row, receipt) for receipt in held),
        "txn_receipts": tuple(_with_parts(row, receipt) for receipt in txn_held),
    }


def _unpacked(ring: bytes | bytearray) -> list[producers.Receipt]:
    return [producers.unpack_receipt(ring, i) for i in range(producers.receipts_of(ring))]


def _with_parts(row: ProducerRow, r: producers.Receipt) -> tuple[int, int, Parts | None, int]:
    parts = None
    if not row.is_expired:
        assert row.parts is not None, "the parts of a receipt are lost"
        parts = unpack_parts(row.parts[r.next_offset])
    return r.first_seq, r.last_seq, parts, r.digest


class TopicPromises:
    """What is checked of each append to a topic without the rules of the model."""

    def __init__(self, counts: Counter[str]) -> None:
        self._counts = counts
        self._asked: set[tuple[bytes, ...]] = set()

    def asked(self, command: object) -> None:
        """Note the messages that a client sends."""
        if isinstance(command, AppendTopic):
            self._asked.add(_messages(command))

    def stored(self, command: AppendTopic, decision: Decision, model: Model) -> None:
        """Check an append that is stored now: all that was sent is in one frame."""
        outcome = decision.outcome
        assert isinstance(outcome, TopicStored)
        demand(_messages(command) in self._asked, f"nobody has sent {command}")
        if outcome.is_duplicate:
            self._count_duplicate(command, outcome, model)
            return
        assert outcome.parts is not None
        batches = [command.batch] if command.batch is not None else [b for _, b in command.parts]
        sent = sum(batch.count for batch in batches)
        stored = sum(part.next_offset - part.first_offset for part in outcome.parts)
        demand(sent == stored, f"of {sent} messages, {stored} are stored: {command}")
        numbers = [part.partition for part in outcome.parts]
        demand(numbers == sorted(set(numbers)), f"the parts are not in order: {outcome}")
        self._counts["TopicStored, several parts"] += len(numbers) > 1
        self._counts["TopicStored, in a transaction"] += command.transaction is not None

    def _count_duplicate(self, command: AppendTopic, outcome: TopicStored, model: Model) -> None:
        self._counts["TopicStored, duplicate"] += 1
        self._counts["TopicStored, without parts"] += outcome.parts is None
        topic = model.streams[command.path].topic
        if topic is not None and topic.fences and outcome.parts is not None:
            self._counts["duplicates after a growth"] += 1


def _messages(command: AppendTopic) -> tuple[bytes, ...]:
    batches = [command.batch] if command.batch is not None else [b for _, b in command.parts]
    return tuple(batch.payload for batch in batches)
