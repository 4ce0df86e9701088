"""Appends without a producer, and the order of the checks."""

import pytest
from msgspec.structs import replace

from semel.machine import MachineLimits, decide
from semel.model import outcomes as out
from semel.model.commands import Append, Batch, StoredAppend
from semel.model.limits import SEQUENCE_SPAN_MAX
from semel.model.messages import encode_extras, keys_of
from tests.unit.machine.builders import (
    JSON,
    TEXT,
    append,
    bury,
    create,
    dense,
    fork,
    json_batch,
    machine_of,
    sparse,
    unchanged,
)


# rows: D33, U13
def test_an_append_takes_the_next_offsets() -> None:
    """An append without a producer is never checked for duplicates."""
    machine = machine_of(create(kind=JSON), append(b"1", kind=JSON))
    answer = machine.execute(append(json_batch(b"2", b"3"), kind="application/json;v=1"))
    assert answer == out.Appended(1, 3, False)
    assert machine.execute(append(b"1", kind=JSON)) == out.Appended(3, 4, False)


# rows: D19, X23
def test_a_batch_is_one_section_of_one_frame() -> None:
    """A batch is stored completely or not at all."""
    machine = machine_of(create(kind=JSON), append(json_batch(b"1", b"22"), kind=JSON))
    (section,) = machine.journal[-1].sections
    assert (section.count, section.payload, section.is_joined) == (2, b"1,22", True)


def keyed(key: bytes, body: bytes = b"x") -> Batch:
    return Batch(body, extras=encode_extras(1, keys=[key]))


def test_what_messages_carry_stands_in_their_section() -> None:
    machine = machine_of(create(), append(keyed(b"k")))
    (section,) = machine.journal[-1].sections
    assert keys_of(section.extras, section.count) == [b"k"]


def test_the_same_payload_under_another_key_is_another_append() -> None:
    machine = machine_of(create(), append(keyed(b"k"), by=dense(0, epoch=1)))
    again = append(keyed(b"k"), by=dense(0, epoch=1, strict=True))
    assert unchanged(machine, again) == out.Duplicate(0, 1, False, 1, 0)
    for other in (keyed(b"j"), Batch(b"x")):
        late = append(other, by=dense(0, epoch=1, strict=True))
        assert unchanged(machine, late) == out.PayloadMismatch()


@pytest.mark.parametrize("batch", [Batch(b"x", extras=b"\1"), json_batch(b"1", b"2")])
def test_extras_out_of_bounds_are_a_bad_body_for_append_and_create(batch: Batch) -> None:
    bad = replace(batch, extras=batch.extras or encode_extras(1, keys=[b"k"]))
    machine = machine_of(create(kind=JSON))
    assert isinstance(unchanged(machine, append(bad, kind=JSON)), out.BadBody)
    assert isinstance(unchanged(machine, create("other", kind=JSON, batch=bad)), out.BadBody)
    late = append(bad, kind=JSON, if_match=9)
    assert unchanged(machine, late) == out.PreconditionFailed(0)


def test_a_fork_that_divides_a_message_leaves_its_key_behind() -> None:
    machine = machine_of(create(), append(keyed(b"k", b"abc")))
    machine.execute(fork(offset=0, sub=2, stored=StoredAppend(1, 0, 3, b"abc")))
    (section,) = machine.journal[-1].sections
    assert (section.payload, section.extras) == (b"ab", b"")


def test_closing_again_is_answered_and_writes_nothing() -> None:
    machine = machine_of(create(), append(), append(None, close=True))
    again = append(None, close=True, now=9, stream_seq="a", if_match=7)
    assert unchanged(machine, again) == out.Appended(1, 1, True)


# rows: D41
@pytest.mark.parametrize(
    "late",
    [
        append(kind=JSON),
        append(None, error="bad", close=True),
        append(None, close=True, key="k"),
        append(None, close=True, by=dense(9)),
        append(by=dense(0, session="new")),
    ],
)
def test_a_closed_stream_refuses_everything_else(late: Append) -> None:
    """Closed is reported before media type and sequence."""
    machine = machine_of(create(), append(b"a", by=dense(0)), append(None, close=True))
    assert unchanged(machine, late) == out.StreamClosed(1)


# rows: D41, U14
def test_a_repeat_is_recognised_on_a_closed_stream() -> None:
    """A closing append stays idempotent after the close."""
    last = append(b"a", close=True, by=dense(0, epoch=1))
    assert unchanged(machine_of(create(), last), last) == out.Duplicate(0, 1, True, 1, 0)


@pytest.mark.parametrize("kind", [JSON, None])
def test_a_body_of_another_or_no_media_type_is_refused(kind: str | None) -> None:
    late = append(kind=kind, by=dense(5))
    assert unchanged(machine_of(create()), late) == out.ContentTypeConflict(TEXT)


def test_a_body_error_counts_as_a_body() -> None:
    late = append(None, kind=JSON, error="bad")
    assert unchanged(machine_of(create()), late) == out.ContentTypeConflict(TEXT)


def test_close_only_needs_no_media_type_and_takes_a_sequence_but_no_offset() -> None:
    machine = machine_of(create(), append(by=dense(0, epoch=3)))
    last = append(None, kind=None, close=True, by=dense(1, epoch=3), stream_seq="z")
    assert not decide(machine.state, last).grows
    assert machine.execute(last) == out.Appended(1, 1, True, 3, 1)
    assert machine.stream().tail.stream_seq == "z"
    assert unchanged(machine, last) == out.Duplicate(1, 1, True, 3, 1)


def test_a_sequence_is_refused_before_stream_seq() -> None:
    machine = machine_of(create(), append(stream_seq="b"))
    assert unchanged(machine, append(by=dense(1), stream_seq="a")) == out.SequenceGap(0, 1)


# rows: D29
@pytest.mark.parametrize("seq", ["a", "b", "B", "aé"])
def test_stream_seq_must_grow_byte_by_byte(seq: str) -> None:
    machine = machine_of(create(), append(stream_seq="b"))
    assert unchanged(machine, append(stream_seq=seq, if_match=9)) == out.StreamSeqConflict("b")


def test_stream_seq_orders_beyond_the_basic_plane_as_its_bytes_do() -> None:
    machine = machine_of(create(), append(stream_seq="\uffff"), append(stream_seq="\U00010000"))
    assert unchanged(machine, append(stream_seq="\uffff")) == out.StreamSeqConflict("\U00010000")


def test_stream_seq_is_kept_by_an_append_without_one() -> None:
    machine = machine_of(create(), append(stream_seq="b"), append(), append(stream_seq="é"))
    assert machine.stream().tail.stream_seq == "é"


# rows: D30
def test_if_match_must_name_the_tail() -> None:
    """A mismatch reports the tail."""
    machine = machine_of(create(), append())
    assert unchanged(machine, append(if_match=0, error="bad")) == out.PreconditionFailed(1)
    assert machine.execute(append(if_match=1)) == out.Appended(1, 2, False)


# rows: D31
def test_only_if_match_minds_that_somebody_else_was_faster() -> None:
    """A has read up to 5, then B has appended offset 5."""
    machine = machine_of(create(), *[append()] * 5, append(b"B"))
    assert unchanged(machine, append(b"A", if_match=5)) == out.PreconditionFailed(6)
    assert machine.execute(append(b"A", by=dense(0))) == out.Appended(6, 7, False, 1, 0)


def test_a_bad_body_speaks_after_every_precondition() -> None:
    late = append(None, error="bad", if_match=0)
    assert unchanged(machine_of(create()), late) == out.BadBody("bad")


def test_a_range_wider_than_a_receipt_can_tell_is_refused() -> None:
    machine = machine_of(create())
    wide = append(by=sparse(1, SEQUENCE_SPAN_MAX + 2))
    assert unchanged(machine, wide) == out.LimitReached("sequence_span", SEQUENCE_SPAN_MAX)
    assert machine.execute(append(by=sparse(1, SEQUENCE_SPAN_MAX + 1))) == out.Appended(
        0, 1, False, 1, SEQUENCE_SPAN_MAX + 1
    )
    again = machine.execute(append(by=sparse(1, SEQUENCE_SPAN_MAX + 1)))
    assert again == out.Duplicate(0, 1, False, 1, SEQUENCE_SPAN_MAX + 1)


def test_an_empty_media_type_is_none_at_all() -> None:
    machine = machine_of(create(kind=None))
    expected = out.ContentTypeConflict("application/octet-stream")
    assert unchanged(machine, append(kind="")) == expected
    assert unchanged(machine, append(kind=None)) == expected


def test_a_stream_has_a_limit_of_producers_and_tombstones_do_not_count() -> None:
    machine = machine_of(
        create(), append(by=dense(0)), bury(), limits=MachineLimits(producers_per_stream=1)
    )
    bad = append(error="bad", by=dense(0, name="q"))
    assert unchanged(machine, bad) == out.BadBody("bad")
    assert machine.execute(append(by=dense(0, name="q"))) == out.Appended(1, 2, False, 1, 0)
    full = out.LimitReached("producers_per_stream", 1)
    assert unchanged(machine, append(b"y", by=dense(0))) == full, "it needs room again"
    assert unchanged(machine, append(by=dense(0, name="r"))) == full


# rows: D34, D38
@pytest.mark.parametrize(
    "refused",
    [
        append(None, error="bad", by=dense(1, epoch=1)),
        append(by=dense(1, epoch=1), if_match=9),
        append(by=dense(1, epoch=1), stream_seq="a"),
        append(by=dense(1, epoch=1), kind=JSON),
        append(by=dense(9, epoch=1)),
    ],
)
def test_a_refused_append_does_not_advance_its_producer(refused: Append) -> None:
    """Sequence 1 is still accepted after the refusal."""
    machine = machine_of(create(), append(b"a", by=dense(0, epoch=1), stream_seq="b"))
    assert isinstance(unchanged(machine, refused), out.Refusal)
    assert machine.execute(append(by=dense(1, epoch=1))) == out.Appended(1, 2, False, 1, 1)


# rows: X26, D32
def test_each_check_hides_the_ones_behind_it() -> None:
    """The order: fence, repeat, closed, media type, sequence, Stream-Seq, If-Match, body, limit."""
    small = MachineLimits(producers_per_stream=1)
    first = append(b"a", by=dense(0, epoch=5), stream_seq="m")
    open_, closed = machine_of(create(), first, limits=small), machine_of(create(), first)
    closed.execute(append(None, close=True))
    bad = {"kind": JSON, "error": "bad", "stream_seq": "a", "if_match": 0}

    def late(tag: int, epoch: int, **wrong: object) -> Append:
        return append(None, by=dense(tag, epoch=epoch), **wrong)  # type: ignore[arg-type]

    assert unchanged(closed, late(0, 4, **bad)) == out.StaleEpoch(5, 4)
    assert isinstance(unchanged(closed, late(0, 5, **bad)), out.Duplicate)
    assert unchanged(closed, late(9, 5, **bad)) == out.StreamClosed(1)
    assert unchanged(open_, late(9, 5, **bad)) == out.ContentTypeConflict(TEXT)
    bad["kind"] = TEXT
    assert unchanged(open_, late(9, 5, **bad)) == out.SequenceGap(1, 9)
    assert unchanged(open_, late(1, 5, **bad)) == out.StreamSeqConflict("m")
    bad["stream_seq"] = "z"
    assert unchanged(open_, late(1, 5, **bad)) == out.PreconditionFailed(1)
    bad["if_match"] = 1
    assert unchanged(open_, late(1, 5, **bad)) == out.BadBody("bad")
    stranger = append(by=dense(0, name="q"), stream_seq="z", if_match=1)
    assert unchanged(open_, stranger) == out.LimitReached("producers_per_stream", 1)
