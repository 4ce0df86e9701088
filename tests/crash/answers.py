"""Every answer that an engine gives about a directory, for comparison before and after damage.

The answers cover the facts that are looked up in the checkpoint on demand: messages at both
isolation levels, and the outcomes of ended transactions.
"""

import hashlib
from collections import Counter
from pathlib import Path
from typing import Final

from semel.broker.broker import ReadDone
from semel.broker.engine import Engine
from semel.model.commands import (
    READ_COMMITTED,
    READ_UNCOMMITTED,
    TXN_INLINE,
    TXN_STAGED,
    AbortTxn,
    Append,
    Batch,
    Begin,
    Commit,
    CommitAppend,
    CommitTxn,
    Create,
    EngineCommand,
    PositionMove,
    ProducerOwner,
    ProducerTag,
    Register,
    SetPositions,
    SinkTag,
    TxnTag,
)
from semel.model.outcomes import Outcome, Refusal, Unreadable
from tests.crash.protocol import Job

NOW_MS: Final = 1_700_000_000_000
STREAMS: Final = ("a", "b", "c")
TXN_COUNT: Final = 48
SEGMENT_BYTES: Final = 16 * 1024
CORRUPT: Final = "corrupt_data"


def settings_of(path: Path) -> Job:
    return Job("answers", str(path), segment_bytes=SEGMENT_BYTES)


class Filler:
    """Writes streams, groups, and transactions of every kind and outcome."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._next_seq: Counter[tuple[str, str]] = Counter()

    async def fill(self) -> None:
        for path in STREAMS:
            await self._execute(Create(path, NOW_MS, f"i-{path}", "text/plain"))
        for producer in range(4):
            await self._execute(Register(NOW_MS, f"producer-{producer}"))
        for number in range(TXN_COUNT):
            path = STREAMS[number % 3]
            await self._execute(Append(path, NOW_MS, "text/plain", Batch(b"plain %d" % number)))
            await self._write_transaction(number, path)
            if number % 16 == 15:
                self._engine.checkpoint()
                await self._engine.settle()
        for version in range(6):
            sink = SinkTag("app", "query", version)
            appends = (CommitAppend("c", "text/plain", Batch(b"sink %d" % version)),)
            await self._execute(Commit(NOW_MS, sink=sink, appends=appends))
        await self._execute(SetPositions(NOW_MS, (PositionMove("group", "a", 5),)))

    async def _write_transaction(self, number: int, path: str) -> None:
        """Write one transaction: inline or staged, committed or aborted."""
        owner = ProducerOwner(f"producer-{number % 4}", 0)
        txn_id, epoch = f"txn-{number // 2}", number % 2 + 1
        is_staged = number % 3 == 0
        kind = TXN_STAGED if is_staged else TXN_INLINE
        await self._execute(Begin(NOW_MS, txn_id, owner, kind, streams=(path,)))
        for chunk in range(2):
            tag = TxnTag(txn_id, epoch, chunk if is_staged else None)
            batch = Batch(b"txn %d.%d" % (number, chunk))
            producer = None if is_staged else self._tag(owner.id, path)
            await self._execute(
                Append(path, NOW_MS, "text/plain", batch, producer=producer, transaction=tag)
            )
        call = AbortTxn if number % 2 else CommitTxn
        await self._execute(call(NOW_MS, txn_id, epoch, owner.id, owner.epoch))

    def _tag(self, producer: str, path: str) -> ProducerTag:
        seq = self._next_seq[producer, path]
        self._next_seq[producer, path] += 1
        return ProducerTag(producer, seq, seq, epoch=0)

    async def _execute(self, command: EngineCommand) -> None:
        outcome = await self._engine.execute(command)
        assert not isinstance(outcome, Refusal), (command, outcome)


def collect(engine: Engine) -> dict[str, str]:
    """Return a digest of each answer. The answer to a read of damaged data is `corrupt_data`."""
    answers: dict[str, str] = {}
    for path in sorted(engine.broker.state.by_path):
        for isolation in (READ_COMMITTED, READ_UNCOMMITTED):
            answers[f"{path} {isolation}"] = _read(engine, path, isolation)
    for number in range(TXN_COUNT // 2):
        for epoch in (None, 1, 2, 3):
            found: list[object] = []
            engine.broker.outcome(f"txn-{number}", epoch, now_ms=NOW_MS, reply=found.append)
            answers[f"txn-{number} {epoch}"] = _digest(found)
    state = engine.broker.state
    answers["registry"] = _digest(state.registry)
    answers["transactions"] = _digest(sorted(state.transactions))
    return answers


def _read(engine: Engine, path: str, isolation: str) -> str:
    messages: list[bytes] = []
    offset: int | None = None
    while True:
        found: list[ReadDone | Outcome] = []
        engine.broker.read(path, offset, now_ms=0, reply=found.append, isolation=isolation)
        done = found[0]
        if isinstance(done, Unreadable):
            return CORRUPT
        assert isinstance(done, ReadDone), done
        messages += [bytes(m) for piece in done.slices for m in piece.messages()]
        if offset == done.next_offset:
            return _digest(messages)
        offset = done.next_offset


def _digest(value: object) -> str:
    if isinstance(value, list) and any(isinstance(item, Unreadable) for item in value):
        return CORRUPT
    return hashlib.sha256(repr(value).encode()).hexdigest()[:16]
