"""Verification of transactions in a checkpoint: planted damage is found and reported."""

from collections.abc import Callable, Iterator

import msgspec
import pytest
from msgspec.structs import replace

from semel.journal.store import TableWriter
from semel.journal.txn_history import outcome_key
from semel.journal.verify import verify
from semel.machine.claims import new_producer
from semel.machine.rows import (
    NUMBER_KEY,
    PAIR_KEY,
    ChunkBlockRow,
    NamedPosition,
    PolicyRow,
    ProducerRow,
    TxnRow,
    TxnStreamRow,
)
from semel.machine.txn.draft import CHUNK_BYTES, push_chunk
from semel.model.commands import TXN_STAGED, ProducerOwner, Trim
from semel.model.outcomes import Unreadable
from tests.unit.broker.test_transactions import TxnBed

Plant = Callable[[TableWriter], None]
encode = msgspec.msgpack.encode
TXN = TxnRow(9, "x", 1, TXN_STAGED, ProducerOwner("p", 0), False, 0, None, None, 0)


BURIED_KEY = NUMBER_KEY.encode(1) + b"buried"
BURIED = replace(new_producer("dense", 1, 0), is_expired=True, tombstone=1, hour=0)


def with_idle_time(row: ProducerRow) -> ProducerRow:
    return replace(row, expires_ms=60_000)


def naming(stream: int, guard: int) -> TxnRow:
    return replace(TXN, positions=(NamedPosition("g", stream, 0, guard),))


def parts_at(start: int) -> bytes:
    pages: list[bytes] = []
    push_chunk(pages, start, 1, 1)
    return encode(ChunkBlockRow(pages[0]))


def rich_bed() -> TxnBed:
    """Return a bed with a checkpoint of one staged, one committed and two aborted transactions."""
    bed = TxnBed()
    for txn in ("a", "b"):
        bed.begin(txn)
        bed.publish(0, txn=txn)
        bed.execute(bed.append())
        bed.abort(txn)
    bed.begin("c")
    bed.commit("c")
    bed.begin(kind=TXN_STAGED)
    bed.chunk(0, b"x")
    bed.checkpoint()
    return bed


def planted(bed: TxnBed, plant: Plant) -> list[str]:
    writer = bed.store.write()
    tables = TableWriter(writer)
    plant(tables)
    tables.finish()
    writer.commit()
    return [finding.message for finding in verify(bed.disk, bed.store).findings]


def damaged_rows(make: Callable[[], TxnBed], table: str) -> Iterator[list[str]]:
    """Yield what `verify` finds if the first row of a table is damaged, and if it is missing."""
    for change in (lambda row: row[:-1] + bytes([row[-1] ^ 1]), None):
        bed = make()
        with bed.store.read() as view:
            key, row = next(iter(view.scan(table)))
        writer = bed.store.write()
        if change is None:
            writer.delete(table, key)
        else:
            writer.put(table, key, change(row))
        writer.commit()
        yield [finding.message for finding in verify(bed.disk, bed.store).findings]


def open_txn(bed: TxnBed) -> int:
    return bed.broker.state.transactions["t"].row.number


CASES: list[tuple[str, Plant]] = [
    (
        "wrong for transaction",
        lambda tables: tables.put("transactions", NUMBER_KEY.encode(8), encode(TXN)),
    ),
    ("cannot be decoded", lambda tables: tables.put("sinks", b"app", encode(1))),
    (
        "a transaction that does not exist",
        lambda tables: tables.put("txn_streams", PAIR_KEY.encode((77, 1)), encode(TxnStreamRow())),
    ),
    (
        "a stream that does not exist",
        lambda tables: tables.put("positions", NUMBER_KEY.encode(77) + b"g", encode((1, 2))),
    ),
    (
        "a stream that does not exist",
        lambda tables: tables.put("transactions", NUMBER_KEY.encode(9), encode(naming(77, 0))),
    ),
    (
        "the metadata of a position is invalid or too long",
        lambda tables: tables.put(
            "positions", NUMBER_KEY.encode(1) + b"g", encode((1, 2, 1, None, [("n", "x" * 4096)]))
        ),
    ),
    (
        "the transaction has metadata of a position it lacks",
        lambda tables: tables.put(
            "transactions",
            NUMBER_KEY.encode(9),
            encode(replace(naming(1, 0), metadata=(("h", 1, (("n", 1),)),))),
        ),
    ),
    (
        "requires version 1 of a group's position, but the stored version is 0",
        lambda tables: tables.put("transactions", NUMBER_KEY.encode(9), encode(naming(1, 1))),
    ),
    (
        "a transaction that does not exist",
        lambda tables: tables.put("parts", PAIR_KEY.encode((77, 0)), parts_at(0)),
    ),
    ("is missing", lambda tables: tables.delete_all("outcome_order", b"")),
    ("is missing", lambda tables: tables.delete_all("outcome_owners", b"")),
    ("rows, but there are", lambda tables: tables.delete("outcomes", outcome_key("a", 1))),
    (
        "a stream that does not exist",
        lambda tables: tables.put("aborted", PAIR_KEY.encode((77, 0)), NUMBER_KEY.encode(1)),
    ),
    (
        "the aborted offsets 99 to 99 are invalid",
        lambda tables: tables.put("aborted", PAIR_KEY.encode((1, 99)), NUMBER_KEY.encode(100)),
    ),
    ("cannot be decoded", lambda tables: tables.put("aborted", b"short", NUMBER_KEY.encode(100))),
    ("sets nothing", lambda tables: tables.put("policies", b"/a", encode(PolicyRow()))),
    *[
        (
            "not a prefix of whole segments",
            lambda tables, key=key: tables.put("policies", key, encode(PolicyRow(True, 1))),
        )
        for key in (b"a", b"/a/", b"//a", b"/\xff")
    ],
    (
        "the tombstone has the unused number 1",
        lambda tables: tables.put("producers", BURIED_KEY, encode(BURIED)),
    ),
    (
        "a tombstone has receipts or an idle time",
        lambda tables: tables.put("producers", BURIED_KEY, encode(with_idle_time(BURIED))),
    ),
    (
        "a producer that has not ended has a tombstone number",
        lambda tables: tables.put(
            "producers", BURIED_KEY, encode(replace(BURIED, is_expired=False))
        ),
    ),
]


def test_policies_are_sound_with_and_without_a_prefix() -> None:
    def plant(tables: TableWriter) -> None:
        for key in (b"/", b"/a/b"):
            tables.put("policies", key, encode(PolicyRow(True, 1)))

    assert planted(rich_bed(), plant) == []


@pytest.mark.parametrize(("message", "plant"), CASES)
def test_planted_damage_is_found(message: str, plant: Plant) -> None:
    found = planted(rich_bed(), plant)
    assert any(message in line for line in found), found


def test_pages_that_do_not_join_and_chunks_that_are_nowhere_are_found() -> None:
    bed = rich_bed()
    key = PAIR_KEY.encode((open_txn(bed), 7))
    found = planted(bed, lambda tables: tables.put("parts", key, parts_at(1 << 40)))
    assert any("a block is missing" in line for line in found)
    assert any("no segment contains" in line for line in found)
    assert CHUNK_BYTES == 24


def test_an_outcome_under_another_key_is_found() -> None:
    bed = rich_bed()
    with bed.store.read() as view:
        sealed = view.get("outcomes", outcome_key("a", 1))
    assert sealed is not None
    key = outcome_key("z", 1)
    found = planted(bed, lambda tables: tables.put("outcomes", key, sealed[:-4]))
    assert any("belongs to a different transaction" in line for line in found)


def test_a_trim_lets_the_aborted_ranges_below_it_go() -> None:
    bed = rich_bed()
    with bed.store.read() as view:
        assert len(list(view.scan("aborted"))) == 2
    bed.execute(Trim("s", bed.now_ms, 1))
    bed.checkpoint()
    with bed.store.read() as view:
        assert len(list(view.scan("aborted"))) == 1
    bed.restart()
    assert bed.messages() == [(1, b"x"), (4, b"x")]
    assert bed.is_sound()


@pytest.mark.parametrize("table", ["outcomes", "aborted"])
def test_a_damaged_row_is_told_and_not_believed(table: str) -> None:
    bed = rich_bed()
    bed.restart()
    writer = bed.store.write()
    for key, sealed in list(writer.scan(table)):
        writer.put(table, key, sealed[:-1] + bytes([sealed[-1] ^ 1]))
    writer.commit()
    if table == "outcomes":
        assert isinstance(bed.commit("a"), Unreadable)
        assert isinstance(bed.outcome("a"), Unreadable)
        return
    got: list[object] = []
    bed.broker.read("s", 0, now_ms=0, reply=got.append, isolation="read_committed")
    assert isinstance(got[0], Unreadable)


def test_an_aborted_transaction_after_a_pending_one_is_sound() -> None:
    bed = TxnBed()
    for name in ("a", "b"):
        bed.begin(name, producer=name)
        bed.publish(0, txn=name, producer=name)
    bed.abort("b")
    bed.checkpoint()
    assert bed.is_sound()
    with bed.store.read() as view:
        assert len(list(view.scan("aborted"))) == 1
