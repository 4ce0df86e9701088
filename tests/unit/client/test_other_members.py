"""What a member waits for when it has read all its streams."""

import os
from typing import Any, Final

import pytest

from semel.client import errors, member_calls
from semel.client.member_calls import LivingMembers
from semel.client.response_parser import Response
from semel.model.rights import retries_of
from tests.unit.client.hand import document, play
from tests.unit.client.test_consuming import PATH, Hand, assigned, page, state

OWNED: Final = {"phase": "owned", "owner": "other", "lag_bound": 5, "lag": 5}


@pytest.fixture
def living(monkeypatch: pytest.MonkeyPatch) -> LivingMembers:
    found = LivingMembers()
    monkeypatch.setattr(member_calls, "LIVING", found)
    return found


def description(stream: dict[str, Any], heard_ms: int | None = None) -> Response:
    """Return a group with a stream and a member `other`, which was heard so long ago."""
    members = [{"member": "other", "heard_ms_ago": heard_ms}]
    return document({"group": "g", "streams": [{"stream": PATH, **stream}], "members": members})


def hand_of(*streams: Any) -> Hand:
    hand = Hand(*streams, is_live=False)
    hand.share.take_news()
    return hand


def is_over(hand: Hand, stream: dict[str, Any], heard_ms: int | None = None) -> bool:
    return play(hand.share.is_over(), description(stream, heard_ms))


@pytest.mark.parametrize(
    ("stream", "expected"),
    [
        ({"phase": "revoking", "owner": "other", "lag_bound": 5, "lag": 5}, False),
        ({"phase": "free", "lag_bound": 5, "lag": None}, False),
        ({"phase": "free", "lag_bound": 0, "lag": 0}, True),
        ({"phase": "owned", "owner": "m", "lag_bound": 1, "lag": 1}, False),
        (OWNED, False),
        ({**OWNED, "stream": retries_of("g")}, False),
        ({**OWNED, "lag": 0}, True),
        ({**OWNED, "stream": "x"}, True),
        ({"phase": "free", "lag_bound": 5, "lag": 5, "stream": "x"}, True),
    ],
)
def test_streams_that_the_member_can_still_get_are_waited_for(
    stream: dict[str, Any], expected: bool
) -> None:
    assert is_over(hand_of(), stream) is expected


def test_an_owner_that_is_heard_after_the_wait_began_is_alive() -> None:
    hand = hand_of()
    assert not is_over(hand, OWNED, 0), "perhaps it was heard just before"
    hand.now += 2.0
    assert not is_over(hand, OWNED, None)
    assert not is_over(hand, OWNED, 2_000)
    assert is_over(hand, OWNED, 1_999)


def test_the_wait_begins_when_the_member_has_read_its_own_streams() -> None:
    hand = hand_of(assigned("a"))
    hand.now += 9.0
    play(hand.share.fetch(), page(0))
    assert not is_over(hand, OWNED, 5_000)
    hand.now += 1.0
    assert is_over(hand, OWNED, 500)


def test_a_member_of_the_same_process_is_alive_until_it_leaves(living: LivingMembers) -> None:
    hand, other = hand_of(), hand_of()
    other.member.id = "other"
    assert not is_over(hand, OWNED)
    living.add(other.member)
    assert is_over(hand, OWNED)
    living.remove(other.member)
    assert not is_over(hand, OWNED)


def test_members_are_alive_while_they_have_joined_and_not_expired() -> None:
    hand = hand_of()
    hand.member.id = "mine"
    member_calls.LIVING.add(hand.member)
    assert "mine" in member_calls.LIVING
    hand.hear(errors.UnknownMember("gone"))
    assert "mine" not in member_calls.LIVING
    hand = hand_of(assigned())
    assert "m" in member_calls.LIVING
    hand.share.forget()
    assert "m" not in member_calls.LIVING


def test_a_forked_process_does_not_know_whether_members_of_its_parent_are_alive() -> None:
    living, hand = LivingMembers(), hand_of()
    living.add(hand.member)
    child = os.fork()
    if child == 0:
        os._exit(1 if "m" in living else 0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert "m" in living


def test_a_stream_that_comes_to_the_member_after_all_is_read() -> None:
    hand = hand_of()
    assert not is_over(hand, OWNED)
    hand.hear(state(assigned(epoch=2)))
    assert play(hand.share.is_over()) is False
    play(hand.share.fetch(), page(0, b"1"))
    assert [message.value for message in hand.share.take()] == [1]
