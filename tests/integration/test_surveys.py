"""Surveys of disk space in a running engine: they delay neither checkpoints nor its end."""

import asyncio
import time
from pathlib import Path

import pytest

from semel.broker import surveys
from semel.broker.engine import Engine
from semel.broker.settings import Settings
from semel.broker.surveys import SpaceSurvey
from semel.journal import space
from semel.journal.frame import peek_length
from semel.journal.space import SegmentSpace, Survey
from semel.model.commands import Append, Batch, Create, Delete

SETTINGS = Settings(segment_bytes=16 * 1024, reserve_bytes=0, checkpoint_interval_ms=3_600_000)
STREAMS = 5
ROUNDS = 60
FRAMES = STREAMS * ROUNDS


async def append(engine: Engine, path: str) -> None:
    await engine.execute(Append(path, engine.clock.now_ms(), "text/plain", Batch(b"x" * 1_000)))


async def open_filled(path: Path) -> Engine:
    """Open an engine whose checkpoint has a row for each stream in each of many segments."""
    engine = await Engine.open(str(path), SETTINGS)
    now_ms = engine.clock.now_ms()
    for number in range(STREAMS):
        await engine.execute(Create(f"s{number}", now_ms, f"{number:016x}", "text/plain"))
    for _ in range(ROUNDS):
        await asyncio.gather(*(append(engine, f"s{number}") for number in range(STREAMS)))
    await engine.close()
    return await Engine.open(str(path), SETTINGS)


async def checkpoint(engine: Engine) -> None:
    """Change something and make a checkpoint."""
    await append(engine, "s0")
    count = engine.checkpoint_count
    engine.checkpoint()
    await engine.settle()
    assert engine.checkpoint_count == count + 1


async def surveyed(engine: Engine) -> list[SegmentSpace]:
    async with asyncio.timeout(60):
        while engine.space.segments is None:  # noqa: ASYNC110 - the engine has no event for it
            await asyncio.sleep(0.01)
    return engine.space.segments


def figures(segments: list[SegmentSpace]) -> list[tuple[int, int, int]]:
    return [(each.first, each.disk_bytes, each.live_bytes) for each in segments]


def test_a_slow_survey_delays_neither_a_checkpoint_nor_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = []

    def slow(data: bytes, position: int) -> int | None:
        measured.append(position)
        time.sleep(0.02)
        return peek_length(data, position)

    async def run() -> None:
        engine = await open_filled(tmp_path / "data")
        monkeypatch.setattr(space, "peek_length", slow)
        for _ in range(3):
            await checkpoint(engine)
        while not measured:  # noqa: ASYNC110 - a thread adds to it
            await asyncio.sleep(0.01)
        await checkpoint(engine)
        await engine.close()
        # The whole survey measures nearly all frames. The server did not wait for it.
        assert len(measured) < FRAMES / 4
        assert engine.space.segments is None

    asyncio.run(run())


def test_a_survey_is_not_made_before_the_first_checkpoint(tmp_path: Path) -> None:
    async def run() -> None:
        engine = await open_filled(tmp_path / "data")
        await append(engine, "s0")
        await asyncio.sleep(0.2)
        assert not engine.space.is_under_way
        assert engine.space.segments is None
        await checkpoint(engine)
        assert await surveyed(engine)
        await engine.close()

    asyncio.run(run())


def test_a_survey_is_made_although_nothing_changes_after_the_start(tmp_path: Path) -> None:
    async def run() -> None:
        engine = await open_filled(tmp_path / "data")
        await engine.settle()
        engine.checkpoint()  # the first one stores what the start has written
        await engine.settle()
        engine.checkpoint()
        assert await surveyed(engine)
        await engine.close()

    asyncio.run(run())


def test_many_short_steps_give_the_same_figures_as_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        engine = await open_filled(tmp_path / "data")
        engine.checkpoint()
        await engine.settle()
        directory = engine._directory
        whole = Survey(directory.store, directory.disk)
        for _ in whole.steps():
            pass
        assert whole.rows_done == whole.rows_total > len(whole.segments)
        monkeypatch.setattr(space, "_ROWS_AT_ONCE", 1)
        monkeypatch.setattr(surveys, "_STEP_SECONDS", 0)
        in_steps = SpaceSurvey(directory.disk, directory.store)
        pauses = [in_steps.step()]
        while in_steps.is_under_way:
            pauses.append(in_steps.step())
        assert len(pauses) > whole.rows_done
        assert min(pauses) > 0
        assert in_steps.segments is not None
        assert figures(in_steps.segments) == figures(whole.segments)
        assert whole.segments[1].live_bytes > 0.8 * whole.segments[1].disk_bytes
        await engine.close()

    asyncio.run(run())


def test_segments_that_are_removed_during_a_survey_are_left_out(tmp_path: Path) -> None:
    async def run() -> None:
        engine = await open_filled(tmp_path / "data")
        survey = Survey(engine._directory.store, engine._directory.disk)
        steps = survey.steps()
        while survey.rows_done == 0 and not survey.segments:
            next(steps)
        for number in range(STREAMS):
            await engine.execute(Delete(f"s{number}", engine.clock.now_ms()))
        engine.checkpoint()
        await engine.settle()
        for _ in steps:
            pass
        left = {int(path.stem) for path in (tmp_path / "data").glob("*.seg")}
        assert {each.first for each in survey.segments} <= left
        await engine.close()

    asyncio.run(run())
