"""Naive implementations fail the hazard tests.

Each rule of docs/reference/seeds.md is replaced by a naive version, one at a time, and the test of
that hazard must fail.
"""

from collections.abc import Callable
from typing import Any

import pytest

from semel.machine import append as appending
from semel.machine import producers
from semel.machine.producers import SequenceCheck
from semel.machine.rows import ProducerRow
from semel.machine.state import State, Stream, find_producer
from semel.model import outcomes as out
from semel.model.commands import ProducerTag
from tests.unit.machine import test_append as appends
from tests.unit.machine import test_hazards as hazards
from tests.unit.machine import test_sparse as sparse

Naive = Callable[[pytest.MonkeyPatch], None]

# The real rules.
judge = producers.check_sequence
dense_repeat = producers._dense_repeat
sparse_of = producers._sparse
find_dense = producers.find_dense


def repeat_of(stream: Stream, row: ProducerRow, offset: int | None = None) -> SequenceCheck:
    end = None if offset is None else offset + 1
    is_closed = stream.tail.is_closed
    return SequenceCheck(at_once=out.Duplicate(offset, end, is_closed, row.epoch, row.last_seq))


def every_bare_zero_is_a_restart(patch: pytest.MonkeyPatch) -> None:
    def naive(stream: Stream, tag: ProducerTag, row: ProducerRow, **more: Any) -> SequenceCheck:
        is_bare = tag.epoch is None and tag.session is None
        if is_bare and tag.first_seq == 0:
            return SequenceCheck(more["restart"])
        return dense_repeat(stream, tag, row, **more)

    patch.setattr(producers, "_dense_repeat", naive)


def every_known_sequence_is_acknowledged(patch: pytest.MonkeyPatch) -> None:
    def naive(stream: Stream, tag: ProducerTag, row: ProducerRow, **_: Any) -> SequenceCheck:
        return repeat_of(stream, row, tag.first_seq)

    patch.setattr(producers, "_dense_repeat", naive)


def a_restart_forgets_its_sequence(patch: pytest.MonkeyPatch) -> None:
    def naive(*given: Any, **more: Any) -> SequenceCheck:
        _stream, _tag, row = given
        is_restart = more["epoch"] > row.epoch
        return SequenceCheck(more["epoch"]) if is_restart else sparse_of(*given, **more)

    patch.setattr(producers, "_sparse", naive)


def going_back_is_a_conflict(patch: pytest.MonkeyPatch) -> None:
    def naive(_stream: Stream, tag: ProducerTag, row: ProducerRow, **_: Any) -> SequenceCheck:
        return SequenceCheck(later=out.SequenceGap(row.last_seq + 1, tag.first_seq))

    patch.setattr(producers, "_dense_repeat", naive)


def the_last_offset_stands_in(patch: pytest.MonkeyPatch) -> None:
    def naive(ring: bytes, zero: bytes, *, seq: int, last_seq: int) -> producers.Receipt | None:
        found = find_dense(ring, zero, seq=seq, last_seq=last_seq)
        return found or producers.unpack_receipt(ring, producers.receipts_of(ring) - 1)

    patch.setattr(producers, "find_dense", naive)


def the_expired_are_unknown(patch: pytest.MonkeyPatch) -> None:
    def naive(state: State, stream: Stream, tag: ProducerTag, digest: int) -> SequenceCheck:
        row = find_producer(stream, tag.id)
        if row is not None and row.is_expired:
            return SequenceCheck(tag.epoch or 1)
        return judge(state, stream, tag, digest)

    patch.setattr(appending, "check_sequence", naive)


def all_streams_share_what_is_known(patch: pytest.MonkeyPatch) -> None:
    def naive(state: State, stream: Stream, tag: ProducerTag, digest: int) -> SequenceCheck:
        streams = [*state.by_number.values(), stream]
        found = next((one for one in streams if tag.id in (one.producers or {})), stream)
        return judge(state, found, tag, digest)

    patch.setattr(appending, "check_sequence", naive)


def the_first_message_speaks_for_its_batch(patch: pytest.MonkeyPatch) -> None:
    def naive(stream: Stream, tag: ProducerTag, row: ProducerRow, **more: Any) -> SequenceCheck:
        is_new = tag.first_seq > row.last_seq
        return SequenceCheck(more["epoch"]) if is_new else repeat_of(stream, row)

    patch.setattr(producers, "_sparse", naive)


def a_repeat_is_judged_last(patch: pytest.MonkeyPatch) -> None:
    def naive(state: State, stream: Stream, tag: ProducerTag, digest: int) -> SequenceCheck:
        verdict = judge(state, stream, tag, digest)
        return SequenceCheck(verdict.epoch, later=verdict.at_once or verdict.later)

    patch.setattr(appending, "check_sequence", naive)


def a_newcomer_begins_anywhere(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(producers, "_newcomer", lambda tag, floor: SequenceCheck(tag.epoch or 1))


# fmt: off
CASES: list[tuple[Naive, Callable[[], None]]] = [
    (every_bare_zero_is_a_restart,
     lambda: hazards.test_a_lost_answer_to_the_first_append_neither_doubles_nor_fences(None, None)),
    (every_known_sequence_is_acknowledged,
     hazards.test_a_bare_restart_whose_first_message_equals_the_old_one_swallows_nothing),
    (a_restart_forgets_its_sequence,
     lambda: sparse.test_a_raise_or_restart_fences_but_keeps_what_is_known(None, "b")),
    (going_back_is_a_conflict,
     hazards.test_a_delayed_retry_of_an_older_sequence_is_a_duplicate_not_a_conflict),
    (the_last_offset_stands_in, lambda: hazards.test_a_repeat_gets_its_own_offsets_or_none(5)),
    (the_expired_are_unknown,
     hazards.test_a_zombie_cannot_return_through_the_expiry_of_its_producer),
    (all_streams_share_what_is_known, hazards.test_one_producer_on_two_streams_is_two_producers),
    (the_first_message_speaks_for_its_batch,
     hazards.test_a_batch_half_of_which_is_stored_is_refused_with_the_last_sequence),
    (a_repeat_is_judged_last, appends.test_a_repeat_is_recognised_on_a_closed_stream),
    (the_first_message_speaks_for_its_batch,
     hazards.test_a_sequence_overtaken_by_a_later_one_is_not_taken_for_stored),
    (a_newcomer_begins_anywhere, hazards.test_a_producer_whose_state_was_lost_is_told_so),
]
# fmt: on


# rows: X01, X02, X08, X10, X12, X16, X23, X26, X28, X29
@pytest.mark.parametrize(("naive", "story"), CASES)
def test_without_its_rule_a_hazard_comes_true(
    naive: Naive, story: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    story()
    naive(monkeypatch)
    with pytest.raises(AssertionError):
        story()
