"""Explanations of the outcome of a dry run."""

from typing import Any

import msgspec
import pytest

from semel.model.commands import SPARSE, ProducerTag
from semel.model.offsets import print_offset
from semel.model.outcomes import Appended, Duplicate, Outcome, SequenceGap
from semel.wire.producers import explain_outcome

TAG = ProducerTag("p", 4, 4)


def told(outcome: Outcome, epoch: int | None = 2, last_seq: int | None = 3) -> dict[str, Any]:
    explanation = explain_outcome(outcome, TAG, epoch=epoch, last_seq=last_seq)
    return msgspec.structs.asdict(explanation)


@pytest.mark.parametrize(
    ("outcome", "known", "words"),
    [
        (Appended(5, 6, False, 1, 4), None, "does not know the producer"),
        (Appended(5, 6, False, 3, 4), 2, "fence epoch 2"),
        (Appended(5, 6, False, 2, 4), 2, "sequence 4 follows the last sequence 3"),
        (Appended(5, 6, False, None, 4, is_unguarded=True), None, "does not recognise duplicates"),
    ],
)
def test_what_would_be_stored_says_why(outcome: Appended, known: int | None, words: str) -> None:
    found = told(outcome, known)
    assert (found["outcome"], found["status"]) == ("ok", 200)
    assert found["facts"] == {"first_offset": print_offset(5), "epoch": outcome.epoch}
    assert words in found["reason"]


@pytest.mark.parametrize(
    ("outcome", "words"),
    [
        (Duplicate(1, 2, False, 2, 3), "it is already stored"),
        (Duplicate(1, 2, False, 2, 3, True), "a different payload; the stored payload stays"),
        (Duplicate(None, None, False, 2, 3), "the offsets are not retained"),
    ],
)
def test_a_repeat_says_where_it_is_if_that_is_known(outcome: Duplicate, words: str) -> None:
    found = told(outcome)
    assert (found["outcome"], found["status"]) == ("duplicate", 204)
    assert words in found["reason"]
    place = {"first_offset": print_offset(1), "next_offset": print_offset(2)}
    wanted = {"epoch": 2, "last_seq": 3} | (place if outcome.next_offset else {})
    assert found["facts"] == wanted


def test_a_repeat_without_offsets_may_have_been_in_a_transaction() -> None:
    """It is not retained which of both it was. Only dense producers are in transactions."""
    outcome = Duplicate(None, None, False, 2, 5)
    used = "already stored or was used in a transaction, also an aborted one; the offsets are not"
    assert used in told(outcome)["reason"]
    tag = msgspec.structs.replace(TAG, mode=SPARSE)
    reason = explain_outcome(outcome, tag, epoch=2, last_seq=5).reason
    assert reason.endswith("its sequence is already stored; the offsets are not retained")


def test_a_refusal_speaks_as_it_would_be_answered() -> None:
    assert told(SequenceGap(4, 9)) == {
        "outcome": "producer_seq_conflict",
        "status": 409,
        "reason": "sequence 4 was expected, but sequence 9 was sent",
        "facts": {"expected_seq": 4, "received_seq": 9, "alias": "OUT_OF_ORDER_SEQUENCE"},
    }


def test_the_first_append_behind_a_claim_comes_after_nothing() -> None:
    found = told(Appended(5, 6, False, 2, 0), last_seq=-1)
    assert found["reason"].endswith("the first append since the producer was claimed")
