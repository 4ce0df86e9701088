"""Acks of wakes in commits, and their tokens."""

import json
from typing import Any, Final

import pytest
from msgspec import structs

from semel.model.commands import Commit, CommitTxn
from semel.model.outcomes import DiskFull
from semel.model.outcomes_subscriptions import Fenced, UnknownSubscription
from semel.model.outcomes_txn import CommitDone
from semel.model.steps import finish
from semel.model.subscription_commands import WakeAck
from semel.wire.commits import commit_response, parse_commit
from semel.wire.problems import MalformedRequest, Problem
from semel.wire.transactions import call_response, parse_call
from semel.wire.wake_acks import ack_without_token, fence_other, read_no_token, refused_token
from tests.unit.wire.builders import refused

JSON: Final = {"content-type": "application/json"}
WAKE: Final = {
    "wake_id": "w",
    "generation": 3,
    "acks": [{"stream": "/a", "offset": 7}],
    "done": True,
}
ACK: Final = WakeAck("s", "w", 3, (("a", 7),), done=True)
TOKENS: Final = {("good", "s"): ("w", 3), ("old", "s"): ("w", 2), ("before", "s"): ("v", 3)}


def read_token(token: str, name: str) -> tuple[str, int] | None:
    return TOKENS.get((token, name))


def commit(subscriptions: Any, **more: Any) -> Commit:
    document = {
        "producer_id": "p",
        "producer_epoch": 0,
        "producer_seq": 0,
        "appends": [{"stream": "out", "messages": [1]}],
        "subscriptions": subscriptions,
        **more,
    }
    steps = parse_commit(
        JSON,
        json.dumps(document).encode(),
        now_ms=1,
        type_of=lambda _path: None,
        read_token=read_token,
    )
    return finish(steps)


def problem_of_commit(subscriptions: Any) -> Problem:
    with pytest.raises(MalformedRequest) as refusal:
        commit(subscriptions)
    return refusal.value.problem


def commit_txn(subscriptions: Any) -> CommitTxn | Problem:
    document = {
        "producer_id": "p",
        "producer_epoch": 0,
        "transaction_epoch": 1,
        "subscriptions": subscriptions,
    }
    found = parse_call(
        "t", "commit", JSON, json.dumps(document).encode(), now_ms=1, read_token=read_token
    )
    assert isinstance(found, CommitTxn | Problem)
    return found


def test_a_commit_acks_wakes() -> None:
    assert commit({"s": WAKE}).wakes == (ACK,)
    assert commit({}).wakes == ()
    found = commit_txn({"s": WAKE})
    assert isinstance(found, CommitTxn)
    assert found.wakes == (ACK,)


def test_acks_are_optional() -> None:
    bare = {"wake_id": "w", "generation": 3}
    assert commit({"s": bare, "r": bare}).wakes == (WakeAck("s", "w", 3), WakeAck("r", "w", 3))


def test_the_digest_does_not_depend_on_the_wakes() -> None:
    """A repeat must be recognised when the wake has ended."""
    assert commit({"s": WAKE}).digest == commit({}).digest
    assert commit({"s": WAKE}).digest != commit({"s": WAKE}, appends=[]).digest


def test_the_token_of_the_wake_permits_its_ack() -> None:
    (found,) = commit({"s": {**WAKE, "token": "good"}}).wakes
    assert found == WakeAck("s", "w", 3, (("a", 7),), done=True, is_permitted=True)
    (found,) = commit({"s": {**WAKE, "token": None}}).wakes
    assert not found.is_permitted


@pytest.mark.parametrize("token", ["old", "before"])
def test_the_token_of_another_wake_permits_an_ack_that_is_fenced(token: str) -> None:
    (found,) = commit({"s": {**WAKE, "token": token}}).wakes
    assert found.wake_id == "-"
    assert found.generation == 3


@pytest.mark.parametrize("token", ["", "x", "semel_a_b"])
def test_a_token_that_is_not_of_this_subscription_is_401(token: str) -> None:
    in_txn = commit_txn({"s": {**WAKE, "token": token}})
    assert isinstance(in_txn, CommitTxn)
    other = commit({"s": {**WAKE, "token": "good"}, "r": {**WAKE, "token": "good"}}).wakes
    for wakes, name in (
        (commit({"s": {**WAKE, "token": token}}).wakes, "s"),
        (in_txn.wakes, "s"),
        (other, "r"),
    ):
        for outcome in (Fenced(name, 3), UnknownSubscription(name)):
            problem = refused_token(outcome, wakes)
            assert problem is not None
            assert refused(problem) == (401, "TOKEN_INVALID")
            assert problem.facts == {"subscription": name}
            assert [header for header, _ in problem.headers] == ["WWW-Authenticate"]
            assert problem.applied == "no"
    assert refused_token(Fenced("s", 3), other) is None


def test_an_ack_whose_token_is_not_valid_is_of_no_wake() -> None:
    """So it cannot be accepted, whatever its body says."""
    for wake_id in ("w", "!", "-"):
        (found,) = commit({"s": {**WAKE, "wake_id": wake_id, "token": "x"}}).wakes
        assert not found.wake_id.startswith("w")


def test_other_refusals_and_results_are_not_about_the_token() -> None:
    wakes = commit({"s": {**WAKE, "token": "x"}}).wakes
    for outcome in (DONE, structs.replace(DONE, is_duplicate=True), DiskFull()):
        assert refused_token(outcome, wakes) is None
    for token in (None, "good", "old"):
        valid = commit({"s": {**WAKE, "wake_id": "!", "token": token}}).wakes
        assert refused_token(Fenced("s", 3), valid) is None


def test_a_server_without_tokens_knows_none() -> None:
    assert read_no_token("good", "s") is None


@pytest.mark.parametrize(
    ("subscriptions", "code"),
    [
        ([], "bad_body"),
        ({"s": {"generation": 3}}, "bad_body"),
        ({"s": {"wake_id": "w"}}, "bad_body"),
        ({"s": {**WAKE, "ack": []}}, "bad_body"),
        ({"s": {**WAKE, "acks": [{"path": "a", "offset": 1}]}}, "bad_body"),
        ({"s": {**WAKE, "acks": [{"stream": "a"}]}}, "bad_body"),
        ({"s": {**WAKE, "acks": [{"stream": "a", "offset": "x"}]}}, "invalid_offset"),
        ({"s": {**WAKE, "token": 1}}, "bad_body"),
    ],
    ids=repr,
)
def test_a_malformed_wake_is_refused(subscriptions: Any, code: str) -> None:
    assert refused(problem_of_commit(subscriptions)) == (400, code)
    assert refused(commit_txn(subscriptions)) == (400, code)


def test_a_long_list_of_wakes_is_refused_before_it_is_parsed() -> None:
    acks = [{"stream": f"{n}", "offset": n} for n in range(1_000)]
    wakes = {f"s{n}": {**WAKE, "acks": acks} for n in range(30)}
    problem = problem_of_commit(wakes)
    assert refused(problem) == (400, "invalid_request")
    assert "too many entries" in problem.message


def test_an_ack_with_the_token_of_another_wake_matches_none() -> None:
    assert fence_other(ACK, ("w", 3)) is ACK
    for wake in (("w", 2), ("v", 3)):
        fenced = fence_other(ACK, wake)
        assert (fenced.id, fenced.wake_id, fenced.generation) == ("s", "-", 3)
    assert ack_without_token("s") == WakeAck("s", "-", 0)


# ---- responses -----------------------------------------------------------------------------------

DONE: Final = CommitDone(None, None, None)


def test_a_commit_is_answered_with_what_became_of_the_wakes() -> None:
    command = commit({"s": WAKE})
    shown = json.loads(commit_response(DONE, command, (("s", True), ("r", False))).body)
    assert shown["subscriptions"] == {"s": {"next_wake": True}, "r": {"next_wake": False}}
    assert "subscriptions" not in json.loads(commit_response(DONE, command).body)


def test_the_commit_of_a_transaction_is_answered_in_the_same_way() -> None:
    command = commit_txn({"s": WAKE})
    assert isinstance(command, CommitTxn)
    shown = json.loads(call_response(DONE, command, (("s", True),)).body)
    assert shown["subscriptions"] == {"s": {"next_wake": True}}
    assert "subscriptions" not in json.loads(call_response(DONE, command).body)
