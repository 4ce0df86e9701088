"""Every answer that an engine gives about a directory, for comparison before and after damage.

The answers cover the facts that are loaded at the start and the facts that are looked up in the
checkpoint on demand: messages at both isolation levels, streams, producers, groups, snapshots,
sinks, pending transactions, outcomes of ended transactions, and the answers to repeated requests.
"""

import hashlib
from collections import Counter
from collections.abc import Iterator
from typing import Final

from semel.broker.broker import ReadDone
from semel.broker.engine import Engine
from semel.broker.settings import Settings, SystemClock
from semel.machine.txn.views import group_view, sink, sinks, snapshot, transaction, transactions
from semel.model.access_commands import ChangeOwner, CreateToken, NoteTokenUses, RevokeToken
from semel.model.commands import (
    READ_COMMITTED,
    READ_UNCOMMITTED,
    SPARSE,
    TXN_INLINE,
    TXN_STAGED,
    AbortTxn,
    Append,
    Batch,
    Begin,
    ClaimProducer,
    Commit,
    CommitAppend,
    CommitTxn,
    Create,
    Delete,
    EngineCommand,
    ForkRequest,
    PinSnapshot,
    PositionMove,
    Prepare,
    ProducerOwner,
    ProducerTag,
    Register,
    SetPositions,
    SinkTag,
    SnapshotRange,
    Trim,
    TxnTag,
)
from semel.model.outcomes import Outcome, Refusal, Unreadable
from semel.model.policies import SetPolicy
from semel.model.rights import ALL_RIGHTS, PRODUCER, READ, SINK, STREAM, TRANSACTION, WRITE, Scope
from semel.server.producers import producers_page
from semel.wire.producers import ProducerQuery

CORRUPT: Final = "corrupt_data"
SETTINGS: Final = Settings(
    segment_bytes=64 * 1024, reserve_bytes=0, checkpoint_interval_ms=3_600_000
)

_NOW_MS: Final = 1_700_000_000_000
_STREAMS: Final = ("a", "b", "c")
_TXN_COUNT: Final = 60
# So many aborted ranges fill more than one page of the checkpoint.
_ABORTED: Final = 120
_SMALL_STREAMS: Final = 24
# The index block of so many frames has pages of its own in the checkpoint.
_LONG_BLOCK: Final = 320
_TEXT: Final = "text/plain"


class FrozenClock(SystemClock):
    """Always returns the same time and bytes, so that every filled directory is the same."""

    def now_ms(self) -> int:
        return _NOW_MS

    def random_bytes(self, count: int) -> bytes:
        return b"x" * count


# ---- the directory -------------------------------------------------------------------------------


class Filler:
    """Writes rows into every table of the checkpoint, and keeps the requests to repeat."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._next_seq: Counter[tuple[str, str]] = Counter()
        self.repeats: list[EngineCommand] = []

    async def fill(self) -> None:
        """Fill the directory. Several checkpoints are made, so that LMDB has free pages, too."""
        for path in (*_STREAMS, "trimmed", "deleted", "closed"):
            await self._execute(Create(path, _NOW_MS, f"i-{path}", _TEXT))
        for number in range(4):
            await self._execute(Register(_NOW_MS, f"producer-{number}"))
        for number in range(_TXN_COUNT):
            path = _STREAMS[number % 3]
            await self._execute(self._append(path, b"plain %d" % number))
            await self._write_transaction(number, path)
            if number % 20 == 19:
                await self._checkpoint()
        await self._abort_many()
        await self._write_streams()
        await self._checkpoint()
        await self._write_commits()
        await self._begin_transactions()
        await self._write_tokens()
        await self._checkpoint()

    async def _checkpoint(self) -> None:
        self._engine.checkpoint()
        await self._engine.settle()

    def _append(self, path: str, payload: bytes, **more: object) -> Append:
        return Append(path, _NOW_MS, _TEXT, Batch(payload), **more)  # type: ignore[arg-type]

    async def _write_transaction(self, number: int, path: str) -> None:
        """Write one transaction: inline or staged, committed or aborted."""
        owner = ProducerOwner(f"producer-{number % 4}", 0)
        txn_id, epoch = f"txn-{number // 2}", number % 2 + 1
        is_staged = number % 3 == 0
        kind = TXN_STAGED if is_staged else TXN_INLINE
        await self._execute(Begin(_NOW_MS, txn_id, owner, kind, streams=(path,)))
        for chunk in range(2):
            tag = TxnTag(txn_id, epoch, chunk if is_staged else None)
            producer = None if is_staged else self._tag(owner.id, path)
            payload = b"txn %d.%d" % (number, chunk)
            await self._execute(self._append(path, payload, producer=producer, transaction=tag))
        call = AbortTxn if number % 2 else CommitTxn
        await self._repeatable(call(_NOW_MS, txn_id, epoch, owner.id, owner.epoch))

    async def _abort_many(self) -> None:
        owner = ProducerOwner("producer-1", 0)
        for number in range(_ABORTED):
            begin = Begin(_NOW_MS, "again", owner, TXN_INLINE, streams=("a",))
            epoch = number + 1
            await self._execute(begin)
            tag = TxnTag("again", epoch)
            producer = self._tag(owner.id, "a")
            await self._execute(self._append("a", b"no", producer=producer, transaction=tag))
            await self._execute(AbortTxn(_NOW_MS, "again", epoch, owner.id, owner.epoch))
            await self._execute(self._append("a", b"yes"))

    def _tag(self, producer: str, path: str) -> ProducerTag:
        seq = self._next_seq[producer, path]
        self._next_seq[producer, path] += 1
        return ProducerTag(producer, seq, seq, epoch=0)

    async def _write_streams(self) -> None:
        for number in range(_LONG_BLOCK):
            await self._execute(self._append("c", b"%d" % number))
        for number in range(_SMALL_STREAMS):
            path = f"many/of/them/{number:04}"
            await self._execute(Create(path, _NOW_MS, f"i-{number}", _TEXT))
            sparse = ProducerTag("p", 3 * number, 3 * number, mode=SPARSE, cursor=b"%d" % number)
            await self._repeatable(self._append(path, b"%d" % number, producer=sparse))
            await self._repeatable(self._append(path, b"by key", key=f"key-{number}"))
        for number in range(8):
            await self._execute(self._append("trimmed", b"%d" % number))
            await self._execute(self._append("deleted", b"%d" % number))
        await self._execute(Create("fork", _NOW_MS, "i-fork", fork=ForkRequest("a", 9)))
        await self._execute(self._append("fork", b"only in the fork"))
        await self._execute(Trim("trimmed", _NOW_MS, 5))
        await self._execute(Delete("deleted", _NOW_MS))
        await self._execute(Append("closed", _NOW_MS, close=True))
        await self._execute(ClaimProducer("b", _NOW_MS, "claimed", "session"))
        for prefix in ("", "none", "none/below"):
            await self._execute(SetPolicy(_NOW_MS, prefix, dedup=prefix != "none"))

    async def _write_commits(self) -> None:
        for version in range(6):
            sink = SinkTag("app", "query", version)
            appends = (CommitAppend("c", _TEXT, Batch(b"sink %d" % version)),)
            await self._repeatable(Commit(_NOW_MS, sink=sink, appends=appends))
        for group in ("group", "other"):
            await self._execute(SetPositions(_NOW_MS, (PositionMove(group, "a", 5),)))
            ranges = (SnapshotRange("a", "i-a", 5, 9),)
            await self._execute(PinSnapshot(_NOW_MS, group, 1, ranges, "hash"))

    async def _begin_transactions(self) -> None:
        """Leave two pending transactions: one prepared with a chunk, one open with messages."""
        owner = ProducerOwner("producer-0", 0)
        await self._execute(Begin(_NOW_MS, "prepared", owner, TXN_STAGED, streams=("b",)))
        tag = TxnTag("prepared", 1, 0)
        await self._execute(self._append("b", b"staged", transaction=tag))
        await self._execute(Prepare(_NOW_MS, "prepared", 1, owner.id, owner.epoch))
        await self._execute(Begin(_NOW_MS, "open", owner, TXN_INLINE, streams=("b",)))
        producer = self._tag(owner.id, "b")
        tag = TxnTag("open", 1)
        await self._execute(self._append("b", b"pending", producer=producer, transaction=tag))

    async def _write_tokens(self) -> None:
        for number in range(12):
            token_id, issuer = f"token-{number:06}", f"token-{number // 2:06}"
            scopes = (Scope(STREAM, f"many/{number}/", is_prefix=True, rights=(READ, WRITE)),)
            await self._execute(
                CreateToken(
                    _NOW_MS,
                    token_id,
                    hashlib.sha256(token_id.encode()).digest(),
                    f"principal-{number}",
                    scopes if number else ALL_RIGHTS,
                    expires_ms=_NOW_MS + number if number % 3 else None,
                    description=("a token " * number).strip(),
                    issuer=issuer if number else "",
                )
            )
        await self._execute(RevokeToken(_NOW_MS, "token-000005", children=True))
        await self._execute(NoteTokenUses(_NOW_MS, (("token-000001", _NOW_MS),)))
        for number in range(4):
            name = f"producer-{number}"
            await self._execute(ChangeOwner(_NOW_MS, PRODUCER, name, owner="principal-1"))
        for kind, name, path in (
            (PRODUCER, "p", "many/of/them/0003"),
            (PRODUCER, "claimed", "b"),
            (TRANSACTION, "prepared", None),
            (SINK, "app", None),
        ):
            await self._execute(ChangeOwner(_NOW_MS, kind, name, path, "principal-2"))

    async def _repeatable(self, command: EngineCommand) -> None:
        await self._execute(command)
        self.repeats.append(command)

    async def _execute(self, command: EngineCommand) -> None:
        outcome = await self._engine.execute(command)
        assert not isinstance(outcome, Refusal), (command, outcome)


# ---- the answers ---------------------------------------------------------------------------------


def collect(engine: Engine, repeats: list[EngineCommand]) -> dict[str, str]:
    """Return a digest of each answer. The answer to a read of damaged data is `corrupt_data`."""
    return {question: _digest(answer) for question, answer in _answers(engine, repeats)}


def _answers(engine: Engine, repeats: list[EngineCommand]) -> Iterator[tuple[str, object]]:
    state = engine.broker.state
    for path in sorted({*state.by_path, *_STREAMS, "deleted"}):
        for isolation in (READ_COMMITTED, READ_UNCOMMITTED):
            yield f"{path} at {isolation}", _read(engine, path, isolation)
        found: list[object] = []
        engine.broker.head(path, now_ms=_NOW_MS, reply=found.append)
        yield f"{path}: head", found
        yield f"{path}: producers", producers_page(state, ProducerQuery(path, None, "", 100), 0)
    for number in range(_TXN_COUNT // 2 + 1):
        for epoch in (None, 1, 2, 3):
            found = []
            engine.broker.outcome(f"txn-{number}", epoch, reply=found.append)
            yield f"txn-{number} {epoch}", found
    for epoch in range(1, _ABORTED, 9):
        found = []
        engine.broker.outcome("again", epoch, reply=found.append)
        yield f"again {epoch}", found
    for name in ("prepared", "open"):
        yield f"transaction {name}", transaction(state, name)
    for number in range(5):
        query = ProducerQuery(None, f"producer-{number}", "", 100)
        yield f"producer-{number}", producers_page(state, query, 0)
    for group in ("group", "other", "none"):
        yield f"group {group}", (group_view(state, group), snapshot(state, group))
    yield "transactions", list(transactions(state))
    yield "sinks", [(view, sink(state, view.app)) for view in sinks(state)]
    yield "policies", sorted(state.policies.items())
    yield "tokens", sorted(state.tokens.items(), key=lambda item: item[0])
    yield "owners", sorted(state.owners.items())
    yield "counters", state.meta_row()
    for index, command in enumerate(repeats):
        found = []
        engine.broker.submit(command, found.append)
        yield f"repeat {index}", found


def _read(engine: Engine, path: str, isolation: str) -> object:
    messages: list[bytes] = []
    offset: int | None = None
    while True:
        found: list[ReadDone | Outcome] = []
        engine.broker.read(path, offset, now_ms=_NOW_MS, reply=found.append, isolation=isolation)
        done = found[0]
        if not isinstance(done, ReadDone):
            return [done]
        messages += [bytes(m) for piece in done.slices for m in piece.messages()]
        if offset == done.next_offset:
            return messages, offset
        offset = done.next_offset


def _digest(answer: object) -> str:
    if isinstance(answer, list) and any(isinstance(item, Unreadable) for item in answer):
        return CORRUPT
    return hashlib.sha256(repr(answer).encode()).hexdigest()[:16]
