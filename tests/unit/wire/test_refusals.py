"""Every outcome has a status, and every refusal has a message."""

import json

import pytest

from semel.model import outcomes as out
from semel.model import outcomes_access as access
from semel.model import outcomes_groups as group
from semel.model import outcomes_subscriptions as subscription
from semel.model import outcomes_topics as topic
from semel.model import outcomes_txn as txn
from semel.model.commands import ProducerTag, TxnTag
from semel.model.offsets import print_offset
from semel.wire.problems import Problem
from semel.wire.rendering import DONE, REFUSED, STATUS, has_strict_order, problem_of

# StreamRefused is rendered as the refusal of its stream.
OUTCOMES = [
    thing
    for module in (out, txn, access, topic, group, subscription)
    for thing in vars(module).values()
    if isinstance(thing, type)
    and issubclass(thing, out.Outcome)
    and thing not in (out.Outcome, out.Refusal, txn.StreamRefused)
]
EXPECTED = {
    400: {
        out.InvalidRequest, out.OffsetBeyondTail, out.SubOffsetInvalid, out.BadBody,
        out.ModeConflict, out.EpochMustStartAtZero, subscription.WrongType,
    },
    401: {access.Unauthenticated, subscription.TokenInvalid},
    403: {
        out.StaleEpoch, out.StaleSession, out.SessionConflict, txn.StaleTransaction, txn.NotOwner,
        access.Forbidden, access.ReservedPath,
    },
    404: {
        out.NotFound, out.UnknownProducer, out.UnknownPolicy, txn.UnknownTransaction,
        txn.UnknownSink, access.UnknownToken, access.UnknownThing, topic.TopicNotFound,
        topic.NoSuchPartition, group.UnknownGroup, group.UnknownMember,
        subscription.UnknownSubscription,
    },
    409: {
        out.StillAlive, out.StreamClosed, out.ConfigConflict, out.ContentTypeConflict,
        out.StreamSeqConflict, out.ForkSourceGone, out.SessionUnknown, out.ProducerStateExpired,
        out.DedupOff,
        out.EpochExhausted, out.SequenceGap, out.SequenceHole, out.ReceiptExpired,
        out.BatchOverlap,
        out.RestartAmbiguous, txn.InvalidTxnState, txn.TxnTimedOut, txn.AlreadyAborted,
        txn.AlreadyCommitted, txn.ConcurrentTransactions, txn.PartitionNotInTxn,
        txn.StreamInTransaction, txn.OffsetUnstable, txn.BranchIncomplete, txn.BranchMissing,
        txn.PositionConflict, txn.AppBound, txn.CheckpointDiverged, txn.VersionForgotten,
        txn.SnapshotConflict, txn.IncarnationConflict, txn.UnstableOffsets, topic.StreamExists,
        topic.IsTopic, topic.StreamInTopic, topic.TopicConflict, topic.PartitionsChanged,
        topic.KeysWouldMove, topic.TooFewPartitions, group.IllegalGeneration,
        group.GroupIsShared, group.GroupInUse, subscription.SubscriptionExists,
        subscription.WakeStreamRefused, subscription.Fenced, subscription.AlreadyClaimed,
        subscription.NoPendingWork, subscription.InvalidOffset,
    },
    410: {out.Gone, out.OffsetTrimmed},
    412: {out.PreconditionFailed},
    413: {out.BatchTooLarge},
    422: {out.PayloadMismatch, out.KeyReused},
    429: {out.LimitReached, txn.TooManyTransactions},
    500: {out.Unreadable},
    503: {out.DiskReadFailed, out.Overloaded},
    507: {out.DiskFull},
}  # fmt: skip


def test_every_outcome_has_a_status() -> None:
    assert set(STATUS) == set(OUTCOMES)
    for outcome in OUTCOMES:
        assert (outcome in REFUSED) == issubclass(outcome, out.Refusal)
        assert (outcome in DONE) != (outcome in REFUSED)


@pytest.mark.parametrize("status", sorted(EXPECTED))
def test_refusals_have_the_statuses_of_the_design(status: int) -> None:
    """Design 4, order of checks; semantics 5.2, 5.3."""
    assert {refusal for refusal, rule in REFUSED.items() if rule.status == status} == EXPECTED[
        status
    ]


def sample(refusal: type[out.Outcome]) -> out.Outcome:
    values = dict.fromkeys(refusal.__struct_fields__, "x")
    numbers = {
        name: 7
        for name in values
        if name.endswith(("_epoch", "_seq", "_offset", "_max"))
        or name in ("head", "maximum", "stable", "offset")
    }
    reason = {"reason": txn.BY_MOVE} if refusal is txn.PositionConflict else {}
    return refusal(**{**values, **numbers, **reason})


@pytest.mark.parametrize("refusal", REFUSED)
def test_every_refusal_can_be_told(refusal: type[out.Outcome]) -> None:
    for is_x in (False, True):
        problem = problem_of(sample(refusal), is_x=is_x)
        assert (problem.status, problem.code) == (STATUS[refusal], refusal.code)
        assert problem.message
        assert problem.applied == ("unknown" if refusal is out.ReceiptExpired else "no")
        is_state = refusal is txn.InvalidTxnState  # it also names the required state
        is_named_twice = refusal is out.SequenceGap  # it also has the other code
        assert len(problem.facts) == len(refusal.__struct_fields__) + is_state + is_named_twice
        json.dumps(problem.facts)


def headers_of(outcome: out.Outcome, *, is_x: bool = False) -> dict[str, str]:
    return dict(problem_of(outcome, is_x=is_x).headers)


# rows: D08
def test_a_gap_tells_both_sequences() -> None:
    """Protocol 1.4.1, design 7.2: the body has `expected_seq`."""
    gap = out.SequenceGap(3, 9)
    assert headers_of(gap) == {"Producer-Expected-Seq": "3", "Producer-Received-Seq": "9"}
    assert headers_of(gap, is_x=True) == {"X-Expected-Seq": "3", "X-Received-Seq": "9"}
    problem = problem_of(gap)
    assert (problem.code, problem.facts) == (
        "producer_seq_conflict",
        {"expected_seq": 3, "received_seq": 9, "alias": "OUT_OF_ORDER_SEQUENCE"},
    )


# rows: D09
def test_a_stale_epoch_tells_the_current_one() -> None:
    """Protocol 1.4.1."""
    assert headers_of(out.StaleEpoch(4)) == {"Producer-Epoch": "4"}
    expected = {"X-Error": "stale-epoch", "X-Current-Epoch": "4"}
    assert headers_of(out.StaleEpoch(4), is_x=True) == expected


def test_a_wrong_epoch_is_told_with_the_one_that_was_received() -> None:
    newer = "a newer instance owns this producer id, with epoch 4"
    assert problem_of(out.StaleEpoch(4)).message == newer
    assert problem_of(out.StaleEpoch(4, 3)).message == f"{newer}; the received epoch is 3"
    ahead = "this transaction belongs to the producer's epoch 4; the received epoch is 5"
    assert problem_of(out.StaleEpoch(4, 5)).message == ahead


def test_an_ambiguous_restart_tells_epoch_and_sequence() -> None:
    ambiguous = out.RestartAmbiguous(2, 8)
    assert headers_of(ambiguous) == {"Producer-Epoch": "2", "Producer-Seq": "8"}
    assert headers_of(ambiguous, is_x=True) == {"X-Current-Epoch": "2"}
    assert problem_of(ambiguous).facts == {"current_epoch": 2, "last_seq": 8}


def test_a_closed_stream_tells_its_end() -> None:
    """Protocol 1.4 row 9."""
    end = print_offset(6)
    assert headers_of(out.StreamClosed(6)) == {"Stream-Next-Offset": end, "Stream-Closed": "true"}


# rows: D30
def test_offsets_are_printed_where_they_help() -> None:
    """Design 6."""
    for outcome in (out.PreconditionFailed(6), out.OffsetBeyondTail(6)):
        assert headers_of(outcome) == {"Stream-Next-Offset": print_offset(6)}
        assert problem_of(outcome).facts == {"next_offset": print_offset(6)}
    assert problem_of(out.OffsetTrimmed(3)).facts == {"head": print_offset(3)}


@pytest.mark.parametrize("outcome", [out.Overloaded(), out.DiskFull(), out.DiskReadFailed("io")])
def test_what_may_pass_later_says_so(outcome: out.Outcome) -> None:
    assert headers_of(outcome) == {"Retry-After": "1"}


def test_a_problem_says_no_more_than_it_must() -> None:
    problem = Problem(400, "a", "b")
    assert (problem.facts, problem.headers, problem.applied) == ({}, [], "no")


def test_a_producer_that_only_claimed_has_no_last_sequence_to_tell() -> None:
    problem = problem_of(out.SessionUnknown(2, -1))
    assert problem.facts == {"current_epoch": 2, "last_seq": None}
    assert [name for name, _ in problem.headers] == ["Producer-Epoch"]


@pytest.mark.parametrize(
    ("field", "words"),
    [("path", "too long"), ("kind", "staged"), ("commit", "1,000"), ("close", "cannot close")],
)
def test_a_field_that_is_wrong_is_told_how(field: str, words: str) -> None:
    message = problem_of(out.InvalidRequest(field)).message
    assert words in message
    assert ("too long" in message) == (field == "path")


# ---- transactions --------------------------------------------------------------------------------


# rows: R36
def test_a_right_that_is_missing_on_the_cluster_is_named_with_its_scope() -> None:
    message = problem_of(access.Forbidden("IdempotentWrite", "cluster", "")).message
    assert "a token that also has the scope cluster:IdempotentWrite has it" in message
    assert "scope" not in problem_of(access.Forbidden("read", "stream", "s")).message


def test_the_limit_of_a_group_s_name_is_in_bytes() -> None:
    message = problem_of(out.InvalidRequest("group")).message
    assert "1 to 256 bytes as UTF-8" in message
    assert "1 to 241 bytes after percent-encoding" in message


def test_a_wrong_state_tells_the_right_one() -> None:
    problem = problem_of(txn.InvalidTxnState("prepared"))
    assert problem.facts == {"state": "prepared", "expected_state": "open"}
    assert "prepared" in problem.message
    assert "reason" not in problem.facts
    aborted = problem_of(txn.InvalidTxnState("aborted", "fenced"))
    assert aborted.facts["reason"] == "fenced"
    assert "aborted (fenced)" in aborted.message
    assert "/v1/commits" in problem_of(txn.InvalidTxnState("sink")).message
    assert "staged" in problem_of(txn.InvalidTxnState("inline")).message


def test_a_newer_transaction_is_not_taken_for_a_newer_producer() -> None:
    stale = txn.StaleTransaction(4)
    assert headers_of(stale) == {"Transaction-Epoch": "4"}
    assert problem_of(stale).facts == {"transaction_epoch": 4}


def test_one_of_several_streams_speaks_for_itself() -> None:
    problem = problem_of(txn.StreamRefused("a/b", out.PreconditionFailed(3)))
    assert (problem.status, problem.code) == (412, "precondition_failed")
    assert problem.facts == {"stream": "a/b", "next_offset": print_offset(3)}
    assert problem.message.startswith("a/b: ")
    assert problem.headers == [("Stream-Next-Offset", print_offset(3))]


def test_offsets_of_transactions_are_printed_as_others() -> None:
    assert problem_of(txn.OffsetUnstable(3)).facts == {"stable_offset": print_offset(3)}
    moved = txn.PositionConflict("g", "s", 5)
    assert problem_of(moved).facts == {
        "group": "g",
        "stream": "s",
        "offset": print_offset(5),
        "version": 0,
        "reason": "offset",
    }
    assert (
        "the group g is at 5 in s, but `from` in the request is a different"
        in problem_of(moved).message
    )
    anew = problem_of(txn.PositionConflict("g", "s", 0, "i2", reason=txn.BY_INCARNATION))
    assert anew.facts["incarnation"] == "i2"
    assert "created again" in anew.message


@pytest.mark.parametrize(
    ("reason", "advice"),
    [
        (txn.BY_PENDING, "set `from` to that offset"),
        (txn.BY_VERSION, "has version 3, but the request has a different version"),
        (txn.BY_MOVER, "g in s was last moved by w1, not by you; set `from` to the offset"),
        (txn.BY_MOVE, "also moves, was meanwhile moved to 5; abort the transaction"),
        (txn.BY_DELETION, "abort the transaction"),
    ],
)
def test_a_position_conflict_says_what_to_do(reason: str, advice: str) -> None:
    problem = problem_of(txn.PositionConflict("g", "s", 5, None, 3, "w1", reason))
    assert advice in problem.message
    assert problem.facts["reason"] == reason
    assert problem.facts["mover"] == "w1"


def test_a_held_position_names_who_holds_it() -> None:
    problem = problem_of(txn.UnstableOffsets("g", "s", "t", 4))
    assert (problem.status, problem.code) == (409, "unstable_offsets")
    assert problem.facts == {
        "group": "g",
        "stream": "s",
        "transaction_id": "t",
        "transaction_epoch": 4,
    }
    assert ("Retry-After", "1") in problem.headers


@pytest.mark.parametrize(
    ("received", "words"),
    [
        (1, "at epoch 1; the stream is at epoch 2"),
        (2, "in the group g: at epoch 2, another member or nobody owns it"),
        (None, "in the group g; the stream is at epoch 2"),
    ],
)
def test_who_does_not_own_a_stream_gets_its_epoch(received: int | None, words: str) -> None:
    message = problem_of(group.IllegalGeneration("g", "s", 2, received)).message
    assert message.startswith("the member does not own the stream s")
    assert message.endswith(words)


def test_a_gap_has_another_code_in_a_transaction_and_of_an_assigned_id() -> None:
    problem = problem_of(out.SequenceGap(3, 9), is_strict_order=True)
    assert (problem.code, problem.facts["alias"]) == (
        "OUT_OF_ORDER_SEQUENCE",
        "producer_seq_conflict",
    )
    assert has_strict_order(None, TxnTag("t", 1))
    assert has_strict_order(ProducerTag("12", 0, 0))
    assert not has_strict_order(ProducerTag("p12", 0, 0))
    assert not has_strict_order(None)


def test_a_conflict_names_what_differs_and_how_it_is_changed() -> None:
    other, dedup = (problem_of(out.ConfigConflict(field)).message for field in ("ttl", "dedup"))
    assert other == "the stream already exists with a different ttl"
    assert "Stream-Dedup" in dedup
    assert "PATCH" in dedup


@pytest.mark.parametrize(
    ("limit", "cures"),
    [
        (
            "producers_per_stream",
            {"semel producers retire", "forget", "--producer-idle-seconds", "Producer-Expires"},
        ),
        (
            "expiring_producers_per_stream",
            {"semel producers retire", "a shorter Producer-Expires"},
        ),
    ],
)
def test_the_refusal_at_a_limit_on_producers_says_what_to_do(limit: str, cures: set[str]) -> None:
    message = problem_of(out.LimitReached(limit, 10_000)).message
    for cure in cures:
        assert cure in message
    assert "retire" not in problem_of(out.LimitReached("streams", 9)).message


# ---- subscriptions -------------------------------------------------------------------------------


def test_a_subscription_is_named_only_if_the_address_does_not_name_it() -> None:
    """The same 404 as for a subscription that the caller may not see."""
    alone = problem_of(subscription.UnknownSubscription())
    assert (alone.facts, alone.message) == ({}, "there is no such subscription")
    named = problem_of(subscription.UnknownSubscription("s"))
    assert named.facts == {"subscription": "s"}
    assert "'s'" in named.message


def test_a_request_without_the_token_of_a_wake_is_asked_for_a_bearer_token() -> None:
    for refusal in (access.Unauthenticated(), subscription.TokenInvalid()):
        assert headers_of(refusal) == {"WWW-Authenticate": 'Bearer realm="semel"'}
