"""Commits with many chunks: they are divided between turns of the loop, and stay atomic."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest

from semel.broker import worker
from semel.broker.durable_view import ReadDone
from semel.broker.engine import Engine
from semel.broker.settings import Settings
from semel.journal import index
from semel.journal.index import Index
from semel.machine import decide
from semel.model.commands import (
    TXN_STAGED,
    Append,
    Batch,
    Begin,
    CommitTxn,
    Create,
    ProducerOwner,
    TxnTag,
)
from semel.model.limits import MIB
from semel.model.outcomes import Appended, Outcome
from semel.model.outcomes_txn import Begun, CommitDone, Staged

TEXT = "text/plain"
CHUNKS = 50
STEP = 4


@pytest.fixture(autouse=True)
def _short_steps() -> Iterator[None]:
    with (
        patch.object(worker, "EXTENTS_PER_TURN_BYTES", 64),
        patch.object(index, "STEP_CHUNKS", STEP),
    ):
        yield


async def staged(engine: Engine) -> CommitTxn:
    """Stage chunks for two streams. Return the command that commits them."""
    for path in ("a", "b"):
        await engine.execute(Create(path, 1, path, TEXT))
    begun = await engine.execute(Begin(1, "t", ProducerOwner("p", 0), TXN_STAGED, None, ("a", "b")))
    assert isinstance(begun, Begun)
    for seq in range(CHUNKS):
        append = Append(
            "ab"[seq % 2], 1, TEXT, Batch(b"%d," % seq), transaction=TxnTag("t", begun.epoch, seq)
        )
        assert isinstance(await engine.execute(append), Staged)
    return CommitTxn(1, "t", begun.epoch, "p", 0)


async def text_of(engine: Engine, path: str) -> bytes:
    done = await engine.fetch(path)
    assert isinstance(done, ReadDone), done
    return b"".join(each.payload for each in done.slices)


def expected(path: str) -> bytes:
    return b"".join(b"%d," % seq for seq in range("ab".index(path), CHUNKS, 2))


class Turns:
    """Counts the turns of the event loop, and records in which of them a commit is worked on."""

    def __init__(self) -> None:
        self.turn = 0
        self.decided: list[int] = []
        self.indexed: dict[int, int] = {}
        self._add = Index.add

    def decide(self, *arguments: object) -> object:
        self.decided.append(self.turn)
        return decide(*arguments)  # type: ignore[arg-type]

    async def until(self, task: "asyncio.Task[object]") -> None:
        def add(*arguments: object) -> None:
            self.indexed[self.turn] = self.indexed.get(self.turn, 0) + 1
            self._add(*arguments)  # type: ignore[arg-type]

        with patch.object(worker, "decide", self.decide), patch.object(Index, "add", add):
            while not task.done():
                self.turn += 1
                await asyncio.sleep(0)


async def opened(path: Path) -> Engine:
    return await Engine.open(str(path), Settings(MIB, reserve_bytes=0))


def test_a_commit_is_decided_and_indexed_on_different_turns(tmp_path: Path) -> None:
    async def run() -> None:
        engine = await opened(tmp_path)
        command, turns = await staged(engine), Turns()
        commit = asyncio.create_task(engine.execute(command))
        await turns.until(commit)
        assert isinstance(commit.result(), CommitDone)
        (decided,) = turns.decided  # once
        assert decided < min(turns.indexed)
        assert max(turns.indexed.values()) <= STEP
        assert sum(turns.indexed.values()) == CHUNKS
        for path in ("a", "b"):
            assert await text_of(engine, path) == expected(path)
        await engine.close()

    asyncio.run(run())


def test_a_commit_is_answered_while_others_append(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The loop itself writes. With a thread, the number of appends would depend on the disk's speed.
    monkeypatch.setattr(Engine, "_is_worth_a_thread", lambda _engine, _group: False)

    async def run() -> None:
        engine = await opened(tmp_path)
        commit = asyncio.create_task(engine.execute(await staged(engine)))
        appends: list[asyncio.Task[Outcome]] = []
        while not commit.done():
            assert len(appends) < 20 * CHUNKS, "the index does not catch up"
            append = engine.execute(Append("a", 1, TEXT, Batch(b";")))
            appends.append(asyncio.create_task(append))
            await asyncio.sleep(0)
        assert isinstance(commit.result(), CommitDone)
        assert all(isinstance(each, Appended) for each in await asyncio.gather(*appends))
        await engine.close()

    asyncio.run(run())


def test_later_appends_and_a_checkpoint_wait_for_the_index(tmp_path: Path) -> None:
    async def run() -> None:
        engine = await opened(tmp_path)
        commit = asyncio.create_task(engine.execute(await staged(engine)))
        later = [
            asyncio.create_task(engine.execute(Append("a", 1, TEXT, Batch(b"%d;" % number))))
            for number in range(3)
        ]
        while not engine.broker._index.late:  # noqa: ASYNC110 - nothing signals this
            await asyncio.sleep(0)
        engine.checkpoint()
        assert engine._cut is None
        assert isinstance(await commit, CommitDone)
        for number, task in enumerate(later):
            done = await task
            assert isinstance(done, Appended)
            assert done.first_offset == CHUNKS // 2 + number
        await engine.settle()
        assert engine.checkpoint_count == 1
        assert await text_of(engine, "a") == expected("a") + b"0;1;2;"
        await engine.close()
        engine = await opened(tmp_path)
        assert await text_of(engine, "a") == expected("a") + b"0;1;2;"
        assert await text_of(engine, "b") == expected("b")
        await engine.close()

    asyncio.run(run())


def test_a_delayed_commit_is_decided_again_if_the_state_has_changed(tmp_path: Path) -> None:
    async def run() -> None:
        engine = await opened(tmp_path)
        command, turns = await staged(engine), Turns()
        broker = engine.broker
        commit = asyncio.create_task(engine.execute(command))
        while not broker._decisions.is_waiting:  # noqa: ASYNC110 - nothing signals this
            await asyncio.sleep(0)
        before = broker.end
        # Other commands wait for the commit, but the broker's own ones (expiry) do not.
        append = Append("a", 1, TEXT, Batch(b"first,"))
        assert broker._commit(decide(broker.state, append), 1, lambda _outcome: None)
        assert broker.end > before
        await turns.until(commit)
        assert isinstance(commit.result(), CommitDone)
        assert await text_of(engine, "a") == b"first," + expected("a")
        await engine.close()

    asyncio.run(run())
