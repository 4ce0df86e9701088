"""The short form of the decision on an append to a topic, compared with the long form.

Most appends to topics have one message, with or without a key. For every append that takes the
short path, the long path must have the same result.
"""

import importlib
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from semel.machine.events import Decision
from semel.machine.topic_append import decide_append_topic
from semel.model.commands import Batch, SwitchDedup, TxnTag
from semel.model.limits import MESSAGE_KEY_BYTES_MAX
from semel.model.messages import encode_extras
from semel.model.outcomes import Gone
from semel.model.outcomes_topics import TopicStored
from semel.model.partitioners import CRC32, MURMUR2, partition_of
from semel.model.policies import SetPolicy
from semel.model.topic_commands import AppendTopic, CloseTopic
from semel.model.validation import find_invalid_field
from tests.unit.machine.builders import TEXT, create, dense
from tests.unit.machine.topic_builders import TopicMachine, create_topic, grow

module: Any = importlib.import_module("semel.machine.topic_append")

KEYS = [b"", b"a", b"customer-1", "ä".encode(), b"k" * MESSAGE_KEY_BYTES_MAX]
ONE_KEY = [encode_extras(1, keys=[key]) for key in KEYS]
# Extras that are not those of one key, or that are damaged.
OTHER_EXTRAS = [
    encode_extras(1, keys=[b"k"], timestamps=[5]),
    encode_extras(1, timestamps=[5]),
    encode_extras(1, headers=[[("a", b"b")]]),
    ONE_KEY[1][:6],
    ONE_KEY[1] + b"?",
    ONE_KEY[2][:-1],
    b"\1\0\0\0\xff\xff\xff\xff",  # the column of keys, but the message has none
    encode_extras(1, keys=[b"k" * (MESSAGE_KEY_BYTES_MAX + 1)]),
]
# What can be different from a common append. A value is drawn for one or two of these fields.
OTHERS: dict[str, list[Any]] = {
    "path": ["s", "none", "t/0"],
    "content_type": ["TEXT/plain", "a/b", None],
    "batch": [None, Batch(b"xy", 2, b"\1\0\0\0" * 2), Batch(b"xy", 2), Batch(b"")],
    "parts": [((1, Batch(b"x")),)],
    "body_error": ["wrong"],
    "partition": [0, 3, 9],
    "hint": [0, 7],
    "partitions": [3, 4, 6],
    "producer": [dense(0), dense(4)],
    "key": ["key"],
    "transaction": [TxnTag("t1", 1, 0), TxnTag("t1", 1)],
}
STORIES: dict[str, list[Any]] = {
    "new": [],
    "not empty": [AppendTopic("t", 0, TEXT, Batch(bytes([n]))) for n in range(9)],
    "closed": [CloseTopic("t", 0)],
    "grown": [grow()],
    "without detection": [SwitchDedup("t", 0, False)],
    "policy": [SetPolicy(0, "", False)],
    "policy that agrees": [SetPolicy(0, "", True)],
    "own setting and policy": [SwitchDedup("t", 0, True), SetPolicy(0, "", False)],
}


def machine_after(story: str, partitioner: str = CRC32) -> TopicMachine:
    machine = TopicMachine()
    topic = create_topic(kind=TEXT, partitioner=partitioner)
    for command in (topic, create(path="s", kind=TEXT), *STORIES[story]):
        machine.execute(command)
    return machine


@st.composite
def commands(draw: st.DrawFn) -> AppendTopic:
    extras = draw(st.sampled_from([b"", *ONE_KEY, *ONE_KEY, *OTHER_EXTRAS]))
    batch = Batch(draw(st.binary(min_size=1, max_size=3)), 1, b"", extras)
    command = AppendTopic("t", 0, TEXT, batch)
    for field in draw(st.lists(st.sampled_from([*OTHERS]), max_size=2)):
        command = replace(command, **{field: draw(st.sampled_from(OTHERS[field]))})
    return command


@settings(max_examples=1000)
@given(
    command=commands().filter(lambda command: find_invalid_field(command) is None),
    story=st.sampled_from([*STORIES]),
    partitioner=st.sampled_from([CRC32, MURMUR2]),
)
def test_the_decision_is_the_same_without_the_short_path(
    command: AppendTopic, story: str, partitioner: str
) -> None:
    state = machine_after(story, partitioner).state
    short = decide_append_topic(state, command)
    with patch.object(module, "_decide_simple", lambda *_: None):
        assert decide_append_topic(state, command) == short
    event(type(short.outcome).__name__)


@pytest.mark.parametrize("story", ["new", "not empty", "grown", "policy that agrees"])
@pytest.mark.parametrize("extras", [b"", *ONE_KEY])
def test_one_message_with_or_without_a_key_takes_the_short_path(story: str, extras: bytes) -> None:
    machine = machine_after(story)
    command = AppendTopic("t", 0, TEXT, Batch(b"x", 1, b"", extras))
    with patch.object(module, "_decide_checked", side_effect=AssertionError):
        assert isinstance(machine.execute(command), TopicStored)


@pytest.mark.parametrize("extras", OTHER_EXTRAS)
def test_other_columns_and_damage_take_the_long_path(extras: bytes) -> None:
    state = machine_after("new").state
    command = AppendTopic("t", 0, TEXT, Batch(b"x", 1, b"", extras))
    with (
        patch.object(module, "_decide_checked", side_effect=LookupError),
        pytest.raises(LookupError),
    ):
        decide_append_topic(state, command)


@pytest.mark.parametrize("partitioner", [CRC32, MURMUR2])
def test_the_key_selects_the_partition_on_the_short_path(partitioner: str) -> None:
    machine = machine_after("new", partitioner)
    for key, extras in zip(KEYS, ONE_KEY, strict=True):
        outcome = machine.execute(AppendTopic("t", 0, TEXT, Batch(b"x", 1, b"", extras)))
        assert isinstance(outcome, TopicStored)
        assert outcome.parts is not None
        assert [part.partition for part in outcome.parts] == [partition_of(partitioner, key, 4)]


def test_a_deleted_topic_takes_the_long_path() -> None:
    machine = machine_after("new")
    topic = machine.stream("t")
    topic.tail = replace(topic.tail, is_deleted=True)
    command = AppendTopic("t", 0, TEXT, Batch(b"x"))
    assert decide_append_topic(machine.state, command) == Decision(Gone())
