"""Reads on the event loop: the time per turn is limited, and short reads run first."""

import asyncio
from functools import partial

import pytest

from semel.broker import worker
from semel.broker.worker import ReadTurns


def test_short_reads_run_before_others_and_each_turn_runs_one_of_both(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [0.0]
    monkeypatch.setattr(worker, "monotonic", lambda: clock[0])
    order: list[str] = []

    def read(name: str) -> None:
        clock[0] += 1.0  # uses up the time of a turn
        order.append(name)

    async def begin() -> None:
        turns = ReadTurns(asyncio.get_running_loop())
        for name in ("long 1", "long 2", "long 3"):
            turns.begin(partial(read, name))
        assert order == ["long 1"]
        for name in ("short 1", "short 2"):
            turns.begin(partial(read, name), is_short=True)
        for _ in range(20):
            await asyncio.sleep(0)

    asyncio.run(begin())
    assert order == ["long 1", "short 1", "long 2", "short 2", "long 3"]


def test_a_short_read_does_not_wait_for_others_if_there_is_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [0.0]
    monkeypatch.setattr(worker, "monotonic", lambda: clock[0])
    order: list[str] = []

    async def begin() -> None:
        turns = ReadTurns(asyncio.get_running_loop())
        turns._other.append(partial(order.append, "long"))
        turns.begin(partial(order.append, "long 2"))
        turns.begin(partial(order.append, "short"), is_short=True)
        assert order == ["short"]
        turns.finish()
        turns.drop()

    asyncio.run(begin())
    assert order == ["short", "long", "long 2"]
