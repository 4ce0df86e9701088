"""The engine on a real directory: threads, timers, and stops."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from unittest.mock import patch

import pytest
from msgspec.structs import replace

from semel.broker.broker import Broker, ReadDone
from semel.broker.endings import Endings
from semel.broker.engine import Engine
from semel.broker.settings import Settings
from semel.journal.writer import JournalWriter
from semel.model import commands as txns
from semel.model import outcomes as out
from semel.model.commands import Append, Batch, Create, Delete, ProducerTag, TxnOutcome, TxnTag
from semel.model.errors import DirectoryLocked, DiskFailed, EngineStopped, InvariantBroken
from semel.model.outcomes_txn import Begun

SETTINGS = Settings(segment_bytes=16 * 1024, reserve_bytes=16 * 1024)
Story = Callable[[Engine, list[BaseException]], Awaitable[None]]


def play(path: Path, story: Story) -> list[BaseException]:
    """Run a story with an open engine; return the fatal errors, which do not end the process."""
    fatal: list[BaseException] = []

    async def main() -> None:
        engine = await Engine.open(str(path / "data"), SETTINGS, on_fatal=fatal.append)
        try:
            await engine.execute(Create("s", engine.clock.now_ms(), "i", "text/plain"))
            await story(engine, fatal)
        finally:
            await engine.close()

    asyncio.run(asyncio.wait_for(main(), 20))
    return fatal


def append(engine: Engine, body: bytes = b"x") -> Append:
    return Append("s", engine.clock.now_ms(), "text/plain", Batch(body))


def test_many_appends_at_once_share_groups_and_keep_their_order(tmp_path: Path) -> None:
    async def story(engine: Engine, _fatal: list[BaseException]) -> None:
        answers = await asyncio.gather(*[engine.execute(append(engine)) for _ in range(500)])
        assert [a.first_offset for a in answers if isinstance(a, out.Appended)] == [*range(500)]
        found = await engine.fetch("s", 499)
        assert isinstance(found, ReadDone)
        assert found.next_offset == 500

    assert play(tmp_path, story) == []


def test_a_closed_engine_takes_nothing_and_its_directory_is_free(tmp_path: Path) -> None:
    kept: list[Engine] = []

    async def story(engine: Engine, _fatal: list[BaseException]) -> None:
        kept.append(engine)
        with pytest.raises(DirectoryLocked):
            await Engine.open(str(tmp_path / "data"), SETTINGS)

    play(tmp_path, story)
    with pytest.raises(EngineStopped):
        kept[0].submit(Delete("s", 0), lambda _: None)

    async def again() -> None:
        engine = await Engine.open(str(tmp_path / "data"), SETTINGS)
        assert engine.replayed_frames == 0
        await engine.close()

    asyncio.run(again())


# rows: P13, P25
@pytest.mark.parametrize("count", [1, 20], ids=["on the loop", "on the thread"])
def test_a_failed_write_stops_the_engine_and_answers_nobody(tmp_path: Path, count: int) -> None:
    async def story(engine: Engine, _fatal: list[BaseException]) -> None:
        with patch.object(JournalWriter, "_sync", side_effect=DiskFailed("no disk")):
            calls = [engine.execute(append(engine)) for _ in range(count)]
            answers = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(answer, EngineStopped) for answer in answers)

    (error,) = play(tmp_path, story)
    assert isinstance(error, DiskFailed)


@pytest.mark.parametrize(
    ("part", "method"),
    [
        (Broker, "submit"),
        (Endings, "sweep"),
        (Broker, "sweep_groups"),
        (Broker, "next_group"),
        (Broker, "written"),
    ],
)
def test_a_bug_anywhere_in_the_broker_stops_the_engine(
    tmp_path: Path, part: type, method: str
) -> None:
    async def story(engine: Engine, fatal: list[BaseException]) -> None:
        with patch.object(part, method, side_effect=InvariantBroken("planted")):
            engine._guard(engine._sweep)
            if not fatal:
                with pytest.raises(EngineStopped):
                    await engine.execute(append(engine))

    (error,) = play(tmp_path, story)
    assert isinstance(error, InvariantBroken)


# rows: P15
def test_checkpoints_follow_the_rolls_and_dead_segments_go(tmp_path: Path) -> None:
    async def story(engine: Engine, _fatal: list[BaseException]) -> None:
        for _ in range(200):
            await engine.execute(append(engine, bytes(1000)))
        await engine.execute(Delete("s", engine.clock.now_ms()))
        await engine.settle()  # wait for a checkpoint that began before the deletion
        engine.checkpoint()
        await engine.settle()
        assert engine.checkpoint_count > 1
        assert len(list((tmp_path / "data").glob("*.seg"))) < 4

    assert play(tmp_path, story) == []


def test_closing_takes_nothing_new_and_may_be_asked_twice(tmp_path: Path) -> None:
    async def story(engine: Engine, _fatal: list[BaseException]) -> None:
        async def write_on() -> None:
            while True:
                await engine.execute(append(engine))

        writer = asyncio.create_task(write_on())
        await asyncio.sleep(0.05)
        await asyncio.wait_for(engine.close(), 5)
        with pytest.raises(EngineStopped):
            await writer
        await engine.close()

    assert play(tmp_path, story) == []


def test_open_and_close_leave_no_file_open(tmp_path: Path) -> None:
    async def story(engine: Engine, _fatal: list[BaseException]) -> None:
        await engine.execute(append(engine))
        await engine.fetch("s")

    counts = []
    for _ in range(4):
        play(tmp_path, story)
        counts.append(len(os.listdir("/proc/self/fd")))
    assert counts[-1] == counts[1]


def test_a_reply_that_raises_stops_the_engine(tmp_path: Path) -> None:
    async def story(engine: Engine, _fatal: list[BaseException]) -> None:
        def reply(_outcome: out.Outcome) -> None:
            raise RuntimeError("planted")

        engine.submit(append(engine), reply)
        await engine.settle()

    (error,) = play(tmp_path, story)
    assert isinstance(error, RuntimeError)


def test_a_crowd_of_reads_takes_turns_with_everybody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("semel.broker.worker._READING_SECONDS_MAX", 0.0)

    async def story(engine: Engine, _fatal: list[BaseException]) -> None:
        await engine.execute(append(engine))
        happened: list[str] = []
        for name in ("read 0", "read 1", "read 2"):
            engine.read("s", None, partial(lambda name, _found: happened.append(name), name))
        assert happened == ["read 0"]
        for turn in range(3):
            asyncio.get_running_loop().call_soon(happened.append, f"turn {turn}")
            await asyncio.sleep(0)
        assert happened == ["read 0", "read 1", "turn 0", "read 2", "turn 1", "turn 2"]

    assert play(tmp_path, story) == []


def test_reads_that_wait_for_their_turn_are_answered_before_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("semel.broker.worker._READING_SECONDS_MAX", 0.0)

    async def story(engine: Engine, _fatal: list[BaseException]) -> None:
        waiting = [asyncio.ensure_future(engine.fetch("s")) for _ in range(5)]
        await asyncio.sleep(0)
        await engine.close()
        found = await asyncio.gather(*waiting)
        assert [type(answer) for answer in found] == [ReadDone] * 5

    assert play(tmp_path, story) == []


def test_transactions_live_on_in_a_real_directory(tmp_path: Path) -> None:
    """Chunks staged in the first run are committed in the second run, which also aborts."""

    async def first(engine: Engine, _fatal: list[BaseException]) -> None:
        now_ms = engine.clock.now_ms()
        owner = txns.ProducerOwner("p", 0)
        for txn_id, kind in (("staged", txns.TXN_STAGED), ("inline", txns.TXN_INLINE)):
            begun = await engine.execute(txns.Begin(now_ms, txn_id, owner, kind, 600_000, ("s",)))
            assert isinstance(begun, Begun)
        staged = TxnTag("staged", 1, 0)
        await engine.execute(replace(append(engine, b"chunk"), transaction=staged))
        tag = ProducerTag("p", 0, 0, 0)
        inline = replace(append(engine, b"no"), producer=tag, transaction=TxnTag("inline", 1))
        await engine.execute(inline)
        await engine.execute(append(engine, b"plain"))

    async def second(engine: Engine, _fatal: list[BaseException]) -> None:
        now_ms = engine.clock.now_ms()
        for command in (txns.CommitTxn(now_ms, "staged", 1), txns.AbortTxn(now_ms, "inline", 1)):
            assert not isinstance(await engine.execute(command), out.Refusal)

    async def third(engine: Engine, _fatal: list[BaseException]) -> None:
        found = await engine.fetch("s", isolation=txns.READ_COMMITTED)
        assert isinstance(found, ReadDone)
        assert [piece.payload for piece in found.slices] == [b"plain", b"chunk"]
        assert found.next_offset == found.tail.stable == 4
        ends: list[TxnOutcome | out.Outcome | None] = []
        engine.outcome("inline", None, ends.append)
        await engine.settle()
        (end,) = ends
        assert isinstance(end, TxnOutcome)
        assert (end.decision, end.epoch) == ("aborted", 1)

    for story in (first, second, third):
        assert play(tmp_path, story) == []
