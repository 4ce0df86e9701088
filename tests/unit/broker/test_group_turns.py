"""Changes of groups on the event loop: the time per turn is limited, and the order is kept."""

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from semel.broker import worker
from semel.broker.worker import GroupTurns, Timers
from semel.model.commands import EngineCommand
from semel.model.group_commands import JoinGroup, LeaveGroup
from semel.model.steps import Steps
from semel.model.subscription_commands import WEBHOOK, CreateSubscription

JOIN = JoinGroup(0, "g", "m", patterns=("*",))
LEAVE = LeaveGroup(0, "g", "m")
SUBSCRIBE = CreateSubscription(0, "h", WEBHOOK, "*", url="https://example.com")


class Stage:
    """Changes of 1 second each: `log` has the number of the turn and the name of each change."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, search_steps: int = 0) -> None:
        self.clock = 0.0
        self.turn = 0
        self.log: list[tuple[int, str]] = []
        monkeypatch.setattr(worker, "monotonic", lambda: self.clock)
        loop = asyncio.get_running_loop()
        self.search_steps = search_steps
        self.turns = GroupTurns(loop, self.act, self.submit, self.search)

    def act(self, action: Callable[[], None]) -> None:
        action()

    def submit(self, command: Any, _reply: object, _caller: object) -> None:
        self.change(type(command).__name__)

    def search(self, command: EngineCommand, _caller: object) -> Steps[None] | None:
        if not isinstance(command, JoinGroup) or not self.search_steps:
            return None
        return self.search_in_steps(command.member)

    def search_in_steps(self, name: str) -> Steps[None]:
        for number in range(self.search_steps):
            self.change(f"{name}{number}")
            yield

    def change(self, name: str, seconds: float = 1.0) -> None:
        self.clock += seconds
        self.log.append((self.turn, name))

    def steps(self, name: str, count: int) -> Iterator[int]:
        for number in range(count):
            self.change(f"{name}{number}")
            yield 1

    async def pass_turns(self, count: int) -> None:
        for _ in range(count):
            self.turn += 1
            await asyncio.sleep(0)


def test_each_turn_runs_one_long_change(monkeypatch: pytest.MonkeyPatch) -> None:
    async def begin() -> list[tuple[int, str]]:
        stage = Stage(monkeypatch)
        for name in "abc":
            stage.turns.begin(partial(stage.change, name))
        await stage.pass_turns(5)
        stage.turns.begin(partial(stage.change, "d"))
        return stage.log

    assert asyncio.run(begin()) == [(0, "a"), (1, "b"), (2, "c"), (5, "d")]


def test_short_changes_run_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def begin() -> list[tuple[int, str]]:
        stage = Stage(monkeypatch)
        for name in "abcd":
            stage.turns.begin(partial(stage.change, name, 0.001))
        stage.turns.begin(partial(stage.change, "e", 0.001))
        stage.turns.begin(partial(stage.change, "f", 0.001))
        await stage.pass_turns(1)
        return stage.log

    log = asyncio.run(begin())
    assert [name for _, name in log] == list("abcdef")
    assert {turn for turn, _ in log} == {0, 1}, "some had to wait for the next turn"


def test_a_sweep_takes_turns_with_the_changes_of_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    async def begin() -> list[str]:
        stage = Stage(monkeypatch)
        stage.turns.sweep(stage.steps("s", 3))
        stage.turns.sweep(stage.steps("dropped", 3))
        for name in "ab":
            stage.turns.begin(partial(stage.change, name))
        assert stage.log == []
        await stage.pass_turns(8)
        stage.turns.sweep(stage.steps("t", 1))
        await stage.pass_turns(4)
        return [name for _, name in stage.log]

    assert asyncio.run(begin()) == ["s0", "a", "b", "s1", "s2", "t0"]


def test_what_waits_is_run_or_dropped_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    async def begin() -> list[str]:
        stage = Stage(monkeypatch)
        stage.turns.begin(partial(stage.change, "a"))
        stage.turns.sweep(stage.steps("s", 2))
        stage.turns.begin(partial(stage.change, "b"))
        stage.turns.finish()
        stage.turns.sweep(stage.steps("t", 2))
        stage.turns.drop()
        await stage.pass_turns(3)
        stage.turns.sweep(stage.steps("u", 1))
        await stage.pass_turns(3)
        return [name for _, name in stage.log]

    assert asyncio.run(begin()) == ["a", "s0", "b", "s1", "u0"]


def test_changes_of_groups_wait_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    async def begin() -> list[tuple[int, str]]:
        stage = Stage(monkeypatch)
        for command in (JOIN, LEAVE, SUBSCRIBE):
            assert type(command) in GroupTurns.commands
            stage.turns.submit(command, lambda _outcome: None, None)
        await stage.pass_turns(3)
        return stage.log

    assert asyncio.run(begin()) == [(0, "JoinGroup"), (1, "LeaveGroup"), (2, "CreateSubscription")]


def submit_all(stage: Stage) -> None:
    for command in (JOIN, JoinGroup(0, "g", "n", patterns=("*",)), LEAVE):
        stage.turns.submit(command, lambda _outcome: None, None)


def test_a_join_searches_before_and_other_changes_do_not_wait_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def begin() -> list[tuple[int, str]]:
        stage = Stage(monkeypatch, search_steps=2)
        submit_all(stage)
        await stage.pass_turns(9)
        return stage.log

    assert asyncio.run(begin()) == [
        (0, "m0"),
        (1, "m1"),
        (2, "LeaveGroup"),
        (3, "JoinGroup"),
        (4, "n0"),
        (5, "n1"),
        (6, "JoinGroup"),
    ]


def test_searches_are_ended_or_dropped_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    async def begin() -> list[str]:
        stage = Stage(monkeypatch, search_steps=2)
        submit_all(stage)
        stage.turns.drop()
        await stage.pass_turns(3)
        submit_all(stage)
        stage.turns.finish()
        return [name for _, name in stage.log]

    log = asyncio.run(begin())
    assert log[0] == "m0"
    assert sorted(log[1:]) == sorted(
        ["m0", "m1", "n0", "n1", "JoinGroup", "JoinGroup", "LeaveGroup"]
    )


def test_timers_call_again_and_again_until_they_are_stopped() -> None:
    async def begin() -> None:
        calls: list[str] = []
        done = asyncio.Event()

        def act(action: Callable[[], None]) -> None:
            action()
            if calls.count("a") >= 3 and "b" in calls:
                timers.stop()
                done.set()

        timers = Timers(asyncio.get_running_loop(), act)
        timers.every(0.001, partial(calls.append, "a"))
        timers.every(0.002, partial(calls.append, "b"))
        await asyncio.wait_for(done.wait(), 30)
        stopped = list(calls)
        await asyncio.sleep(0.02)
        assert calls == stopped

    asyncio.run(begin())
