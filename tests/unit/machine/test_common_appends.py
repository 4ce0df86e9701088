"""The short forms of the checks and changes of a common append, compared with the long forms.

A common append takes a short path through the machine, because it must be fast. For every append
that takes the short path, the long path must have the same result.
"""

import importlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from semel.machine.checks import check_content, check_room, check_stream, is_simple
from semel.machine.events import ProducerStamp
from semel.machine.producers import (
    RECEIPT_BYTES,
    SequenceCheck,
    check_sequence,
    next_epoch,
    pack_receipt,
)
from semel.machine.rows import ProducerRow, RegistryRow, StreamRow, TailRow
from semel.machine.state import State, Stream, put_producer
from semel.model.commands import DENSE, SPARSE, Append, Batch, ProducerTag
from semel.model.limits import MachineLimits

apply_module: Any = importlib.import_module("semel.machine.apply")

NUMBERS = st.integers(0, 3)
NAMES = st.sampled_from(["p", "17"])
SESSIONS = st.sampled_from([None, "a", "b"])
MODES = st.sampled_from([DENSE, DENSE, SPARSE])


def ring_of(last_seq: int, count: int) -> bytes:
    return b"".join(pack_receipt(n, n, n, n + 1, 7) for n in range(last_seq - count + 1, last_seq))


@st.composite
def rows(draw: st.DrawFn) -> ProducerRow:
    last_seq = draw(st.integers(-1, 2))
    return ProducerRow(
        mode=draw(MODES),
        epoch=draw(NUMBERS),
        session=draw(SESSIONS),
        old_sessions=draw(st.sampled_from([(), ("z",)])),
        last_seq=last_seq,
        receipts=ring_of(9, draw(st.integers(1, 5))) if last_seq >= 0 else b"",
        first_receipt=pack_receipt(0, 0, 0, 1, 7),
        cursor=draw(st.sampled_from([None, b"c"])),
        updated_ms=1,
        is_expired=draw(st.sampled_from([False, False, False, True])),
        latest_seq=draw(st.sampled_from([-1, -1, last_seq + 1])),
    )


@st.composite
def tags(draw: st.DrawFn) -> ProducerTag:
    seq, epoch = draw(NUMBERS), draw(st.none() | NUMBERS)
    return ProducerTag(draw(NAMES), seq, seq, epoch, draw(SESSIONS), draw(MODES))


def a_stream(row: ProducerRow | None, tag: ProducerTag) -> Stream:
    tail = TailRow(0, 5, False, False, None, 0, 0, 5)
    stream = Stream(StreamRow(1, "s", "i", "text/plain", 0), tail)
    if row is not None:
        put_producer(State(), stream, tag.id, row)
    return stream


@given(row=rows(), tag=tags(), registered=st.none() | NUMBERS)
def test_an_append_that_simply_continues_a_row_passes_all_checks_of_sequences(
    row: ProducerRow, tag: ProducerTag, registered: int | None
) -> None:
    state, stream = State(), a_stream(row, tag)
    if registered is not None:
        state.registry[tag.id] = RegistryRow(registered)
    elif tag.id == "17":
        state.registry["other"] = RegistryRow(0)
    epoch = next_epoch(state, row, tag)
    if epoch is not None:
        assert check_sequence(state, stream, tag, 0) == SequenceCheck(epoch)
        assert check_room(state, stream, tag, row) is None


@pytest.mark.parametrize(
    "tag",
    [
        ProducerTag("p", 3, 3, 1),
        ProducerTag("p", 3, 3, None, "a"),
        ProducerTag("p", 3, 3, 1, "a"),
        ProducerTag("p", 3, 3),
    ],
)
def test_a_dense_producer_with_epoch_or_session_takes_the_short_path(tag: ProducerTag) -> None:
    row = ProducerRow(DENSE, 1, "a", (), 2, b"", b"", None, 0)
    assert next_epoch(State(), row, tag) == 1


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
        stream = a_stream(old, ProducerTag("p", seq, seq))
        apply_module._record_producer(state, stream, stamp, 3, 8)
        receipt = pack_receipt(seq, seq, 3, 5, 9)
        row = apply_module._row_after(state, old, stamp, receipt, 8)
        assert stream.producers == {"p": row}
        assert state.dirty.producers == {(1, "p"): row}
        assert state.producer_counts.live == old.is_expired
        assert len(row.receipts) <= receipts_max * RECEIPT_BYTES
