"""The short forms of the checks and changes of a common append, compared with the long forms.

A common append takes a short path through the machine, because it must be fast. For every append
that takes the short path, the long path must have the same result.
"""

import gc
import importlib
from copy import deepcopy
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from semel.machine.append import decide_append
from semel.machine.checks import check_content, check_stream, is_simple
from semel.machine.events import ProducerStamp
from semel.machine.producer_counts import Producers
from semel.machine.producers import RECEIPT_BYTES, pack_receipt
from semel.machine.rows import ProducerRow, RegistryRow, StreamRow, TailRow
from semel.machine.state import State, Stream, put_producer
from semel.model.commands import DENSE, SPARSE, Append, Batch, Begin, ProducerOwner, ProducerTag
from semel.model.limits import MachineLimits
from semel.model.outcomes import Appended
from tests.unit.machine.builders import create, machine_of

append_module: Any = importlib.import_module("semel.machine.append")
apply_module: Any = importlib.import_module("semel.machine.apply")

NUMBERS = st.integers(0, 3)
SESSIONS = st.sampled_from([None, "a", "b"])
MODES = st.sampled_from([DENSE, DENSE, SPARSE])


def ring_of(last_seq: int, count: int) -> bytearray:
    numbers = range(last_seq - count + 1, last_seq)
    return bytearray().join(pack_receipt(n, n, n, n + 1, 7) for n in numbers)


@st.composite
def rows(draw: st.DrawFn) -> ProducerRow:
    last_seq = draw(st.integers(-1, 2))
    return ProducerRow(
        mode=draw(MODES),
        epoch=draw(NUMBERS),
        session=draw(SESSIONS),
        old_sessions=draw(st.sampled_from([(), ("z",)])),
        last_seq=last_seq,
        receipts=ring_of(9, draw(st.integers(1, 5))) if last_seq >= 0 else bytearray(),
        first_receipt=pack_receipt(0, 0, 0, 1, 7),
        cursor=draw(st.sampled_from([None, b"c"])),
        updated_ms=1,
        is_expired=draw(st.sampled_from([False, False, False, True])),
        latest_seq=draw(st.sampled_from([-1, -1, last_seq + 1])),
    )


def a_stream(row: ProducerRow | None, tag: ProducerTag) -> Stream:
    tail = TailRow(0, 5, False, False, None, 0, 0, 5)
    stream = Stream(StreamRow(1, "s", "i", "text/plain", 0), tail)
    if row is not None:
        put_producer(State(), stream, tag.id, row)
    return stream


FLOORS = st.sampled_from([None, None, None, 0, 1, 2, 3])
TWO = Batch(b"xy", 2, b"\1\0\0\0" * 2)
# What can be different from the next append of a producer, in its tag and beside it.
OTHER_TAGS: dict[str, list[Any]] = {
    "id": ["17", "\uff11", "1\u00b2"],
    "epoch": [None, None, None, 0, 1, 2, 3],
    "session": ["a", "b", "z"],
    "mode": [SPARSE],
    "cursor": [b"d"],
    "is_strict": [True],
    "expires_ms": [60_000, 90_000],
}
OTHER_APPENDS: dict[str, list[Any]] = {
    "content_type": ["TEXT/plain", "a/b", None],
    "batch": [TWO, Batch(b""), Batch(b"x", extras=b"?"), None],
    "body_error": ["wrong"],
    "close": [True],
    "stream_seq": ["1"],
    "if_match": [0, 1],
}


@st.composite
def appends(draw: st.DrawFn, row: ProducerRow) -> Append:
    """Draw the next append of a producer, or one that is different from it in one or two ways."""
    fields = [*OTHER_TAGS, *OTHER_TAGS, *OTHER_APPENDS, "seq"]
    changed = draw(st.lists(st.sampled_from(fields), max_size=2))
    seq = row.last_seq + 1
    if "seq" in changed:
        seq = draw(st.sampled_from([max(row.last_seq, row.latest_seq) + 1, 0, seq + 1]))
    tag = ProducerTag("p", seq, seq, row.epoch, draw(st.sampled_from([None, row.session])))
    command = Append("s", 0, "text/plain", Batch(b"x"))
    for field in changed:
        if field in OTHER_TAGS:
            tag = replace(tag, **{field: draw(st.sampled_from(OTHER_TAGS[field]))})
        elif field in OTHER_APPENDS:
            command = replace(command, **{field: draw(st.sampled_from(OTHER_APPENDS[field]))})
    return replace(command, producer=tag)


@settings(max_examples=1000)
@given(data=st.data(), row=rows(), registered=FLOORS, is_owner=st.booleans())
def test_the_decision_on_an_append_is_the_same_without_the_short_path(
    *, data: st.DataObject, row: ProducerRow, registered: int | None, is_owner: bool
) -> None:
    if data.draw(st.sampled_from([True, True, True, False])):
        row = replace(row, mode=DENSE, is_expired=False, latest_seq=-1)
    row.expires_ms = data.draw(st.sampled_from([0, 60_000]))
    command = data.draw(appends(row))
    assert command.producer is not None
    name = command.producer.id
    machine = machine_of(create(closed=data.draw(st.sampled_from([False] * 9 + [True]))))
    state, stream = machine.state, machine.stream()
    put_producer(state, stream, name, row)
    if registered is not None:
        state.registry[name] = RegistryRow(registered)
        if is_owner:
            machine.execute(Begin(0, "t", ProducerOwner(name, registered)))
    short = decide_append(state, command)
    with patch.object(append_module, "is_simple", lambda *_: False):
        assert decide_append(state, command) == short
    event(type(short.outcome).__name__)


@pytest.mark.parametrize(
    ("tag", "registered"),
    [
        (ProducerTag("p", 3, 3, 1), {}),
        (ProducerTag("p", 3, 3, None, "a"), {}),
        (ProducerTag("p", 3, 3, 1, "a"), {}),
        (ProducerTag("p", 3, 3), {}),
        (ProducerTag("p", 3, 3, 1), {"p": 1, "q": 2}),
        (ProducerTag("17", 3, 3, 1), {"17": 1}),
    ],
)
def test_a_dense_producer_with_epoch_or_session_takes_the_short_path(
    tag: ProducerTag, registered: dict[str, int]
) -> None:
    machine = machine_of(create())
    row = ProducerRow(DENSE, 1, "a", (), 2, bytearray(), b"", None, 0)
    put_producer(machine.state, machine.stream(), tag.id, row)
    for name, epoch in registered.items():
        machine.state.registry[name] = RegistryRow(epoch)
    command = Append("s", 0, "text/plain", Batch(b"x"), producer=tag)
    with patch.object(append_module, "check_sequence", side_effect=AssertionError):
        assert isinstance(decide_append(machine.state, command).outcome, Appended)


@given(
    batch=st.sampled_from([None, Batch(b"x"), Batch(b"xy", 2, b"\1\0\0\0" * 2), Batch(b"", 1)]),
    extras=st.sampled_from([b"", b"?"]),
    kind=st.sampled_from(["text/plain", "TEXT/plain", "a/b", None]),
    error=st.sampled_from([None, "wrong"]),
    close=st.booleans(),
    is_closed=st.booleans(),
    stream_seq=st.sampled_from([None, "1"]),
    if_match=st.sampled_from([None, 5, 6]),
)
def test_a_simple_append_passes_the_checks_of_the_stream_and_of_the_content(
    *, batch: Batch | None, extras: bytes, kind: str | None, is_closed: bool, **more: Any
) -> None:
    if batch is not None:
        batch = replace(batch, extras=extras)
    stream = a_stream(None, ProducerTag("p", 0, 0))
    stream.tail = replace(stream.tail, is_closed=is_closed, stream_seq="2")
    command = Append("s", 0, kind, batch, more.pop("error"), **more)
    if is_simple(stream, command):
        assert check_stream(State(), stream, command) is None
        assert check_content(stream, command) is None


def test_one_message_without_conditions_is_a_simple_append() -> None:
    stream = a_stream(None, ProducerTag("p", 0, 0))
    assert is_simple(stream, Append("s", 0, "text/plain", Batch(b"x")))


@given(
    old=rows(),
    seq=NUMBERS,
    epoch=NUMBERS,
    session=SESSIONS,
    cursor=st.sampled_from([None, b"d"]),
    receipts_max=st.integers(1, 4),
)
def test_the_row_of_a_producer_that_continues_is_the_same_on_both_paths(
    *, old: ProducerRow, receipts_max: int, seq: int, epoch: int, **more: Any
) -> None:
    stamp = ProducerStamp("p", DENSE, epoch, more["session"], seq, seq, 9, more["cursor"])
    # A producer cannot change its mode, and a stored sequence is not stored again.
    if old.mode == DENSE and seq > old.last_seq:
        state = State(MachineLimits(receipts=receipts_max))
        before = deepcopy(old)
        stream = a_stream(old, ProducerTag("p", seq, seq))
        apply_module._record_producer(state, stream, stamp, 3, 8)
        first = apply_module._row_after(state, before, stamp, pack_receipt(seq, seq, 3, 5, 9), 8)
        assert_stored(state, stream, first)
        assert old == before
        assert state.producer_counts.live == old.is_expired
        stored = state.dirty.producers[1, "p"]
        for later in (seq + 1, seq + 2):
            later_stamp = replace(stamp, first_seq=later, last_seq=later, cursor=None)
            apply_module._record_producer(state, stream, later_stamp, 4, 9)
            receipt = pack_receipt(later, later, 4, 5, 9)
            first = apply_module._row_after(state, first, later_stamp, receipt, 9)
            assert_stored(state, stream, first)
            assert state.dirty.producers[1, "p"] is stored
            assert len(first.receipts) <= receipts_max * RECEIPT_BYTES


def assert_stored(state: State, stream: Stream, row: ProducerRow) -> None:
    assert stream.producers == {"p": row}
    assert state.dirty.producers == {(1, "p"): row}


def appended(state: State, stream: Stream, seq: int) -> ProducerRow:
    """Record an append, and return the producer's row."""
    stamp = ProducerStamp("p", DENSE, 1, None, seq, seq, 9, None)
    apply_module._record_producer(state, stream, stamp, 3, 8)
    assert stream.producers is not None
    return stream.producers["p"]


def test_an_append_does_not_change_a_row_that_a_cut_has() -> None:
    state, stream = State(), a_stream(None, ProducerTag("p", 0, 0))
    row = appended(state, stream, 0)
    assert appended(state, stream, 1) is row
    cut, copy = state.take_dirty(), deepcopy(row)
    assert appended(state, stream, 2).last_seq == 2
    assert cut.producers == {(1, "p"): copy}
    assert state.dirty.producers[1, "p"] is appended(state, stream, 3)


def test_the_producers_of_an_idle_stream_do_not_keep_an_old_cut_in_memory() -> None:
    state, stream = State(), a_stream(None, ProducerTag("p", 0, 0))
    appended(state, stream, 0)
    cut = state.take_dirty()
    assert not any(isinstance(holder, Producers) for holder in gc.get_referrers(cut))


def test_an_append_does_not_change_a_row_that_another_event_has_replaced() -> None:
    state, stream = State(), a_stream(None, ProducerTag("p", 0, 0))
    row = appended(state, stream, 0)
    changed = replace(row, expires_ms=60_000)
    put_producer(state, stream, "p", changed)
    state.dirty.producers[1, "p"] = changed
    newest = appended(state, stream, 1)
    assert (newest.last_seq, changed.last_seq, row.last_seq) == (1, 0, 0)
    assert state.dirty.producers[1, "p"] is newest


def test_an_append_that_changes_the_row_in_place_notes_the_hour() -> None:
    state, stream = State(), a_stream(None, ProducerTag("p", 0, 0))
    row = appended(state, stream, 0)
    assert appended(state, stream, 1) is row
    state.hours += 1
    assert appended(state, stream, 2) is row
    assert row.hour == state.hours == 1
