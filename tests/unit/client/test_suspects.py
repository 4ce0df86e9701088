"""Suspects: messages at which members have crashed, and who may deliver them when."""

import os
from dataclasses import dataclass
from typing import Any

from semel.client.suspects import Solo, find_guilty, suspects_in_turn


@dataclass
class Owned:
    """What the order of the suspects depends on."""

    path: str
    starts: int
    is_active: bool = True
    is_suspect: bool = True


class Member:
    """A member of a group."""


class Clock:
    """A clock that is moved by hand."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def paths(streams: list[Any]) -> list[str]:
    return [stream.path for stream in suspects_in_turn(streams)]


def test_suspects_with_few_crashes_come_first() -> None:
    streams = [Owned("a", 3), Owned("b", 1), Owned("c", 2), Owned("d", 1)]
    assert paths(streams) == ["b", "d", "c", "a"]
    streams += [Owned("e", 1, is_active=False), Owned("f", 1, is_suspect=False)]
    assert paths(streams) == ["b", "d", "c", "a"]


def test_a_message_is_guilty_after_all_attempts_but_not_before_the_third_crash() -> None:
    streams: list[Any] = [Owned("a", 2), Owned("b", 3), Owned("c", 5)]
    found = [find_guilty(streams, attempts) for attempts in (1, 3, 4, 5, 6, None)]
    assert [each and each.path for each in found] == ["b", "b", "c", "c", None, None]
    assert find_guilty(streams[:1], 1) is None


def test_a_member_is_alone_when_all_others_have_come_back() -> None:
    solo, one, two = Solo(), Member(), Member()
    assert solo.begin(one, 60)
    assert solo.begin(two, 60)
    assert not solo.claim(one, 60), "the other one delivers messages"
    solo.end(two)
    assert not solo.begin(two, 60), "it must wait now"
    assert not solo.claim(two, 60)
    assert solo.claim(one, 60)
    assert solo.begin(one, 60)
    solo.give_up(one)
    assert solo.begin(two, 60)


def test_a_member_that_does_not_come_back_stops_the_others_only_for_some_time() -> None:
    clock = Clock()
    solo, one, two = Solo(clock), Member(), Member()
    assert solo.begin(one, 10)
    assert not solo.claim(two, 20)
    clock.now = 10.0
    assert solo.claim(two, 20)
    assert not solo.begin(one, 10)
    clock.now = 20.0
    assert solo.begin(one, 10)


def test_a_member_that_is_no_longer_used_stops_nobody() -> None:
    solo, one, two = Solo(), Member(), Member()
    assert solo.begin(one, 60)
    assert not solo.claim(two, 60)
    del one
    assert solo.claim(two, 60)
    del two
    assert solo.begin(Member(), 60)


def test_a_forked_process_does_not_wait_for_members_of_its_parent() -> None:
    solo, one, two = Solo(), Member(), Member()
    assert solo.claim(one, 60)
    child = os.fork()
    if child == 0:
        os._exit(0 if solo.begin(two, 60) and not solo.claim(one, 60) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert not solo.begin(two, 60)
