"""When the server is told which message is delivered alone, and who waits meanwhile."""

import logging
from typing import Any

import pytest

from semel.client import suspects
from semel.client.response_parser import Response
from semel.client.values import Message
from semel.model.offsets import print_offset
from tests.unit.client.hand import Played, answer, body_of, document, play, problem
from tests.unit.client.test_consuming import PATH, Hand, assigned, moved, page, state

LOGGER = "semel.client"
HEARD = document(state(version="v0"))


@pytest.fixture(autouse=True)
def _solo(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no member of another test want to be alone."""
    monkeypatch.setattr(suspects, "SOLO", suspects.Solo())


def hand_of(*streams: Any, **options: Any) -> Hand:
    """Return a consumption that has got streams, and has read a page of 8 messages of each."""
    hand = Hand(*streams, **options)
    hand.share.take_news()
    for _ in streams:
        play(hand.share.fetch(), page(0, *(b"%d" % number for number in range(8))))
    return hand


def told(hand: Hand, *replies: Response) -> list[Any]:
    """Let the member do its chores. Return the suspects that it has told the server."""
    played = Played(hand.share.chores(), replies)
    assert played.error is None
    return [body_of(send).get("suspects", []) for send in played.sends]


def taken(hand: Hand, caller: object = None, count: int = 1) -> list[Message]:
    return hand.share.take(count, caller)


def commit(message: Message, version: int = 1) -> None:
    assert message.on_commit is not None
    assert message.next_offset is not None
    to = moved(int(message.next_offset[-9:]), version, message.stream or "")
    play(message.on_commit(message, None), to)


def has_chores(hand: Hand) -> bool:
    return hand.share.has_chores


# ---- the guilty message --------------------------------------------------------------------------


def test_a_message_that_cannot_be_rejected_yet_is_not_passed_over() -> None:
    """A prepared transaction of the same member holds the position."""
    hand = hand_of(assigned(starts=3), max_attempts=3)
    registered = document({"producer_id": "7", "producer_epoch": 0}, 201)
    created = answer(201, b"", stream_next_offset=print_offset(0))
    tail = {"stream_next_offset": print_offset(0), "stream_incarnation": "l"}
    known = answer(200, b"", content_type="application/json", **tail)
    held = problem(409, "unstable_offsets", group="g", stream=PATH)
    played = Played(hand.share.chores(), [created, registered, known, held, True])
    assert played.error is None
    assert taken(hand) == []
    assert has_chores(hand)
    done = document({"duplicate": False, "streams": {}, "offsets": {}, "deleted": []})
    again = Played(hand.share.chores(), [done])
    assert again.error is None
    commit_of = [body_of(send) for send in (played.sends[-1], again.sends[0])]
    assert [each["offsets"]["g"][PATH]["to"] for each in commit_of] == [print_offset(1)] * 2
    assert [message.value for message in taken(hand)] == [1]


def test_a_member_that_lost_the_stream_for_which_it_waits_to_be_alone_stops_nobody() -> None:
    busy = Hand(assigned("y"))
    busy.share.take_news()
    play(busy.share.fetch(), page(0, b"1", b"2", b"3"))
    hand = hand_of(assigned("x", starts=2), assigned("w"))
    assert len(taken(busy)) == 1
    assert told(hand) == [], "it is not yet alone"
    assert taken(busy) == [], "nothing more is delivered until it has been alone"
    hand.hear(state(assigned("w")))
    assert len(taken(hand)) == 1
    assert len(taken(busy)) == 1


def test_a_claim_to_be_alone_that_has_expired_is_made_again() -> None:
    now = [0.0]
    solo = suspects.Solo(lambda: now[0])
    one, other = Thing(), Thing()
    assert solo.begin(other, 100.0)
    assert not solo.claim(one, 3.0)
    now[0] = 4.0
    assert solo.begin(other, 100.0), "the claim has expired"
    assert not solo.claim(one, 3.0)
    assert not solo.begin(other, 100.0)
    solo.end(other)
    assert solo.claim(one, 3.0)


class Thing:
    """A member, for which only its identity matters."""


# ---- one caller ----------------------------------------------------------------------------------


def test_without_crashes_nothing_is_told() -> None:
    hand = hand_of(assigned())
    assert not has_chores(hand)
    assert [len(taken(hand, count=3)) for _ in range(3)] == [3, 3, 2]
    assert not has_chores(hand)


def test_a_suspect_that_is_committed_needs_no_other_word() -> None:
    hand = hand_of(assigned(starts=1))
    assert taken(hand) == []
    assert told(hand, HEARD) == [[PATH]]
    (message,) = taken(hand)
    commit(message)
    assert len(taken(hand)) == 1
    assert told(hand) == []


def test_after_a_suspect_that_is_not_committed_the_server_is_told_before_the_next_message(
    caplog: pytest.LogCaptureFixture,
) -> None:
    hand = hand_of(assigned(starts=2))
    with caplog.at_level(logging.WARNING, LOGGER):
        assert told(hand, HEARD) == [[PATH]]
        assert [message.value for message in taken(hand)] == [0]
        assert taken(hand) == []
        assert has_chores(hand)
        assert told(hand, HEARD) == [[]]
        assert [message.value for message in taken(hand)] == [1]
        assert [message.value for message in taken(hand)] == [2]
    assert told(hand) == []
    (record,) = caplog.records
    assert "commit each message before the next one" in record.getMessage()


def test_a_suspect_of_another_stream_is_not_named_while_messages_are_not_committed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    hand = hand_of(assigned("a", starts=1), assigned("b", starts=1))
    with caplog.at_level(logging.WARNING, LOGGER):
        assert told(hand, HEARD) == [["a"]]
        assert [message.stream for message in taken(hand)] == ["a"]
        assert taken(hand) == []
        assert told(hand, HEARD) == [[]]
        found = {message.stream for _ in range(16) for message in taken(hand)}
    assert found == {"a", "b"}
    assert len(caplog.records) == 1


def test_nobody_is_warned_if_there_are_no_dead_letters(caplog: pytest.LogCaptureFixture) -> None:
    hand = hand_of(assigned(starts=1), max_attempts=None)
    with caplog.at_level(logging.WARNING, LOGGER):
        told(hand, HEARD)
        assert len(taken(hand)) == 1
        assert taken(hand) == []
        assert told(hand, HEARD) == [[]]
    assert not caplog.records


def test_the_server_is_told_if_a_suspect_is_not_delivered_after_all() -> None:
    hand = hand_of(assigned("a", starts=1), assigned("b"))
    assert told(hand, HEARD) == [["a"]]
    hand.hear(state(assigned("a", starts=1), assigned("b"), release=("a",)))
    assert taken(hand) == []
    assert told(hand, HEARD) == [[]]
    assert [message.stream for message in taken(hand)] == ["b"]


def test_a_new_member_has_nothing_to_take_back() -> None:
    hand = hand_of(assigned(starts=1))
    assert told(hand, HEARD) == [[PATH]]
    assert len(taken(hand)) == 1
    hand.share.member = None
    joined = {
        "version": "v",
        "member": "m2",
        "heartbeat_ms": 1000,
        "session_timeout_ms": 3000,
    }
    play(hand.share.join(), document(joined, 201))
    hand.share.take_news()
    assert not has_chores(hand)


# ---- several callers -----------------------------------------------------------------------------


def test_other_callers_get_nothing_until_the_suspect_is_committed() -> None:
    hand = hand_of(assigned("a", starts=1), assigned("b"))
    assert told(hand, HEARD) == [["a"]]
    (message,) = taken(hand, "one")
    assert taken(hand, "two") == []
    assert told(hand) == [], "the suspect is still processed"
    commit(message)
    assert len(taken(hand, "two")) == 1


def test_other_callers_continue_when_the_caller_of_the_suspect_comes_back() -> None:
    hand = hand_of(assigned("a", starts=1), assigned("b"))
    told(hand, HEARD)
    assert len(taken(hand, "one")) == 1
    assert taken(hand, "two") == []
    hand.share.note_return("one")
    assert taken(hand, "two") == []
    assert told(hand, HEARD) == [[]]
    assert len(taken(hand, "two")) == 1


def test_other_callers_wait_no_longer_than_the_session_timeout() -> None:
    hand = hand_of(assigned("a", starts=1), assigned("b"))
    told(hand, HEARD)
    assert len(taken(hand, "one")) == 1
    hand.now += 2.9
    assert taken(hand, "two") == []
    assert not has_chores(hand) or told(hand) == []
    hand.now += 0.2
    assert taken(hand, "two") == []
    assert told(hand, HEARD) == [[]]
    assert len(taken(hand, "two")) == 1


def test_a_suspect_waits_until_other_callers_have_committed() -> None:
    hand = hand_of(assigned("b"))
    (message,) = taken(hand, "one")
    hand.hear(state(assigned("a", starts=2), assigned("b")))
    play(hand.share.fetch(), page(0, b"0"))
    assert taken(hand, "two") == []
    assert told(hand) == []
    commit(message)
    assert told(hand, HEARD) == [["a"]]
    assert [message.stream for message in taken(hand, "two")] == ["a"]


# ---- messages one by one -------------------------------------------------------------------------


def test_after_a_crash_as_many_messages_are_taken_alone_as_a_batch_can_have() -> None:
    hand = hand_of(assigned(starts=1))
    told(hand, HEARD)
    counts = []
    for version in range(1, 6):
        messages = taken(hand, count=4)
        counts.append(len(messages))
        commit(messages[-1], version)
    assert counts == [1, 1, 1, 1, 4]
    assert told(hand) == []


def test_what_is_taken_alone_is_committed_before_another_caller_gets_the_next_of_its_stream() -> (
    None
):
    hand = hand_of(assigned(starts=1))
    told(hand, HEARD)
    commit(taken(hand, "one", 4)[0])
    (second,) = taken(hand, "one", 4)
    assert taken(hand, "two", 4) == []
    commit(second, 2)
    assert [message.value for message in taken(hand, "two", 4)] == [2]
    assert [message.value for message in taken(hand, "two", 4)] == [3], "it came back without one"
