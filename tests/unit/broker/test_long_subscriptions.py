"""Subscriptions with very many links: they are created on more than one turn of the loop."""

import asyncio
from pathlib import Path
from unittest.mock import patch

import pytest

from semel.broker import worker
from semel.broker.engine import Engine
from semel.broker.settings import Settings
from semel.machine import decide, matching
from semel.model.commands import Create
from semel.model.limits import MIB
from semel.model.outcomes import Created
from semel.model.outcomes_subscriptions import SubscriptionCreated
from semel.model.subscription_commands import WEBHOOK, CreateSubscription
from tests.unit.machine.subscription_builders import check_derived

STREAMS = 50
COMMAND = CreateSubscription(1, "h", WEBHOOK, "**", url="https://example.com")


def steps_before(tmp_path: Path, *, links_per_turn: int) -> list[str]:
    """Return what happened on the turns on which a subscription to STREAMS streams was created."""
    log: list[str] = []

    async def run() -> None:
        engine = await Engine.open(str(tmp_path), Settings(MIB, reserve_bytes=0))
        for number in range(STREAMS):
            created = await engine.execute(Create(f"s{number}", 1, "i", "text/plain"))
            assert isinstance(created, Created)
        state = engine.broker.state

        def noted(*arguments: object) -> object:
            log.append("decide")
            return decide(*arguments)  # type: ignore[arg-type]

        with patch.object(worker, "decide", noted):
            task = asyncio.create_task(engine.execute(COMMAND))
            while not task.done():
                is_there = "h" in state.subscriptions.by_id
                log.append("applied" if is_there else "turn")
                await asyncio.sleep(0)
        assert task.result() == SubscriptionCreated("h", is_new=True)
        assert len(state.subscriptions.by_id["h"].links) == STREAMS
        check_derived(state)
        await engine.close()

    with patch.object(worker, "LINKS_PER_TURN", links_per_turn):
        asyncio.run(run())
    return log


def test_the_streams_are_searched_in_steps_before_the_decision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matching, "_STEP_COMPARISONS", 10)
    monkeypatch.setattr(worker, "_CHANGING_SECONDS_MAX", -1)
    log = steps_before(tmp_path, links_per_turn=STREAMS)
    assert log.index("decide") >= STREAMS // 10
    assert log.count("decide") == 1


def test_a_subscription_with_very_many_links_is_decided_on_one_turn_and_applied_on_another(
    tmp_path: Path,
) -> None:
    log = steps_before(tmp_path, links_per_turn=STREAMS - 1)
    assert log.count("decide") == 1
    assert log[log.index("decide") + 1] == "turn"
    short = steps_before(tmp_path / "short", links_per_turn=STREAMS)
    assert short[short.index("decide") + 1] == "applied"
