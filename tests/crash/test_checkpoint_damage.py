"""Damage to the checkpoint is never served: a short run for every test run, and single cases.

`python -m tests.crash.damage_rig` is the long run.
"""

import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import lmdb
import pytest

from semel.journal import lmdb_pages
from semel.journal.lmdb_meta import newest_first, read_metas
from semel.journal.lmdb_store import LmdbStore
from tests.crash import damage_mutants
from tests.crash.conftest import Report
from tests.crash.damage_mutants import Mutant
from tests.crash.damage_rig import HARMLESS, READ_REFUSED, REFUSED, Rig, run
from tests.crash.damages import LOOKED_UP, Damage
from tests.crash.directory import CHECKPOINT, flip, quick_directory
from tests.spec.process import PATIENCE_SECONDS, SEMEL, Server
from tests.spec.txn_calls import COMMITTED, Txn, call

pytestmark = pytest.mark.crash

SEED = time.time_ns() % 1_000_000_000
# A run ends after so many trials, or after so many seconds on a busy machine.
TRIALS = 160
SECONDS = 10.0
AT_LEAST = 30


@pytest.fixture
def directory() -> Iterator[Path]:
    with quick_directory() as path:
        yield path


def doctor(path: Path) -> subprocess.CompletedProcess[str]:
    command = [str(SEMEL), "doctor", "--verify", "--data", str(path)]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS
    )


# ---- random damage -------------------------------------------------------------------------------


def test_no_damage_to_the_checkpoint_is_served_and_doctor_agrees(figure: Report) -> None:
    result = run(SEED, range(TRIALS), seconds=SECONDS, at_least=AT_LEAST)
    assert not result.violations, "\n".join(result.violations[:10])
    assert result.counts[REFUSED], result.counts
    assert result.counts[HARMLESS], result.counts
    figure(f"damage to the checkpoint: {dict(result.counts)}, 0 wrong answers; seed {SEED}")


def test_no_damage_to_a_row_under_a_running_engine_is_served(figure: Report) -> None:
    result = run(SEED, range(2 * TRIALS), is_running=True, seconds=SECONDS, at_least=2 * AT_LEAST)
    assert not result.violations, "\n".join(result.violations[:10])
    figure(f"damage under a running engine: {dict(result.counts)}, 0 wrong answers; seed {SEED}")


def free_lists(path: Path) -> list[tuple[int, int]]:
    """Return the position and the value of the length of each list of free pages."""
    found = []
    data = path.read_bytes()
    with path.open("rb") as file:
        pages = lmdb_pages.PageFile(file.fileno())
        meta = newest_first(read_metas(data))[0]
        snapshot = lmdb_pages.Snapshot(pages, meta)
        root = meta.free.root * meta.page_bytes
        for at, _, _, key_size in snapshot.read_nodes(meta.free.root, is_leaf=True)[0]:
            position = root + at + 8 + key_size  # a node has a header of 8 bytes
            found.append((position, int.from_bytes(data[position : position + 8], "little")))
    return found


def test_a_list_of_free_pages_with_a_wrong_length_is_noticed(directory: Path) -> None:
    """Otherwise LMDB fails when it writes the next checkpoint."""
    rig = Rig(directory)
    lists = free_lists(directory / "base" / CHECKPOINT)
    assert lists
    for position, count in lists:
        for wrong in {0, count - 1, count + 1, count // 2} - {count}:
            damage = Damage("length", position, wrong.to_bytes(8, "little"))
            assert rig.try_damage(damage) in (REFUSED, HARMLESS), str(damage)


@pytest.mark.parametrize("table", LOOKED_UP)
def test_no_bit_of_a_key_that_is_looked_up_can_flip_unnoticed(directory: Path, table: str) -> None:
    rig = Rig(directory)
    bits = [(at, bit) for at in rig.damages.keys[table] for bit in range(8)]
    for at, bit in bits[:: max(1, len(bits) // 20)]:
        damage = rig.damages.flip_bit("key", at, bit)
        # The same bytes can be a key of the index. Then only the reads that need it are refused.
        assert rig.try_damage(damage) in (REFUSED, HARMLESS, READ_REFUSED), str(damage)


def test_a_large_index_is_checked_after_the_start_and_before_a_checkpoint(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first key of the index becomes the greatest one. LMDB does not notice it."""
    monkeypatch.setattr(lmdb_pages, "_LEAVES_AT_START", 0)
    rig = Rig(directory)
    env = lmdb.open(str(directory / "base" / CHECKPOINT), subdir=False, max_dbs=64, readonly=True)
    with env.begin() as transaction:
        rows = transaction.cursor(env.open_db(b"index", transaction, create=False))
        key, value = next(iter(rows))
    env.close()
    data = (directory / "base" / CHECKPOINT).read_bytes()
    verdicts = [
        rig.try_damage(rig.damages.flip_bit("key", match.start(), 7))
        for match in re.finditer(re.escape(key + value), data)
    ]
    assert REFUSED in verdicts
    assert set(verdicts) <= {REFUSED, HARMLESS}


def test_a_start_does_not_read_a_large_index(tmp_path: Path) -> None:
    path = tmp_path / CHECKPOINT
    store = LmdbStore(str(path))
    store.make_writable()
    writer = store.write()
    for number in range(10_000):
        writer.put("index", number.to_bytes(16, "big"), bytes(1_500))
    writer.commit()
    before = bytes_read()
    assert not lmdb_pages.check_pages(str(path), is_quick=True).is_complete
    quick = bytes_read()
    assert lmdb_pages.check_pages(str(path)).is_complete
    complete = bytes_read()
    store.close()
    assert quick - before < path.stat().st_size / 20
    assert complete - quick > path.stat().st_size


def bytes_read() -> int:
    """Return how many bytes this process has read with system calls, from a disk or a cache."""
    found = re.search(r"rchar: (\d+)", Path("/proc/self/io").read_text())
    assert found is not None
    return int(found[1])


def test_a_damaged_count_does_not_make_an_index_look_large(directory: Path) -> None:
    """The check of a large index is postponed, but not that of an index that only claims it."""
    Rig(directory)
    path = directory / "base" / CHECKPOINT
    found = []
    # The record of the next table follows, unless the page is used for something else now.
    records = rb"index(?=.{48}.?0\x00\x00\x00\x02\x00\x04\x00meta)"
    for match in re.finditer(records, path.read_bytes(), re.DOTALL):
        damage(path, match.end() + 34, 1 << 6)  # the number of rows, in the record of the table
        checked = lmdb_pages.check_pages(str(path), is_quick=True)
        assert checked.is_complete
        found += [checked.damage] if checked.damage else []
        damage(path, match.end() + 34, 1 << 6)
    assert len(found) == 1
    assert "is the root of a tree" in found[0]


def damage(path: Path, at: int, mask: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= mask
    path.write_bytes(data)


@pytest.mark.parametrize("mutant", damage_mutants.AT_START)
def test_a_start_that_does_not_check_everything_is_found_out(
    mutant: Mutant, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert finds(mutant, monkeypatch, is_running=False)


@pytest.mark.parametrize("mutant", damage_mutants.WHILE_RUNNING)
def test_a_read_that_does_not_check_everything_is_found_out(
    mutant: Mutant, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert finds(mutant, monkeypatch, is_running=True)


def finds(mutant: Mutant, monkeypatch: pytest.MonkeyPatch, *, is_running: bool) -> bool:
    """Return whether one of the first trials finds a violation. The trials are always the same."""
    mutant(monkeypatch)
    return bool(run(1, range(600), is_running=is_running, violations_max=1).violations)


# ---- the smallest case, with a real server -------------------------------------------------------


@pytest.fixture
def payments(directory: Path) -> Path:
    """Return the directory of a stopped server: three transactions, the second one aborted."""
    path = directory / "payments"
    server = Server(path)
    stream = server.stream("pay")
    stream.create()
    call(server, "POST", "/v1/producers", {"id": "p"})
    for number, end in enumerate(("commit", "abort", "commit")):
        txn = Txn(server, "p", name=f"t{number}")
        assert txn.begin(streams=["pay"]).status == 201
        appended = txn.post(stream, b"pay %d;" % number, producer_seq=number)
        assert appended.status == 200, appended
        assert txn.call(end).status == 200
    assert stream.get(f"offset=-1&{COMMITTED}").body == b"pay 0;pay 2;"
    server.signal(signal.SIGTERM)
    assert server.wait() == 0, server.stderr
    server.kill()
    return path


def key_positions(checkpoint: Path, table: str) -> list[int]:
    """Return the positions of the first key of a table in the file."""
    env = lmdb.open(str(checkpoint), subdir=False, max_dbs=64, readonly=True, lock=False)
    with env.begin() as transaction:
        rows = transaction.cursor(env.open_db(table.encode(), transaction, create=False))
        key, value = next(iter(rows))
    env.close()
    data = checkpoint.read_bytes()
    return [m.start() for m in re.finditer(re.escape(key + value), data)]


def test_a_flipped_bit_in_the_key_of_the_digest_of_an_empty_table_is_refused(
    directory: Path,
) -> None:
    """Without its digest, a table looks as if it had always been empty."""
    path = directory / "data"
    server = Server(path)
    server.stream("s").create()
    server.signal(signal.SIGTERM)
    assert server.wait() == 0, server.stderr
    server.kill()
    key = b"digest/aborted"  # nothing was aborted
    data = (path / CHECKPOINT).read_bytes()
    positions = [match.start() for match in re.finditer(re.escape(key), data)]
    assert positions
    for position in positions:
        flip(path / CHECKPOINT, 8 * (position + len(key) - 1))
    verdict = doctor(path)
    server = Server(path)
    is_started = bool(server.greeting)
    if is_started:
        server.kill()
    assert not is_started
    assert server.wait() == 65, server.stderr
    assert CHECKPOINT in server.stderr
    assert verdict.returncode == 65, verdict.stdout
    server.kill()


# rows: X11
@pytest.mark.parametrize(
    ("table", "byte", "bit"),
    [("aborted", 7, 1), ("aborted", 15, 2), ("outcomes", 3, 0), ("outcomes", 11, 1)],
)
def test_a_flipped_bit_in_a_key_shows_no_aborted_message_and_forgets_no_commit(
    payments: Path, table: str, byte: int, bit: int
) -> None:
    positions = key_positions(payments / CHECKPOINT, table)
    assert positions
    for position in positions:
        flip(payments / CHECKPOINT, 8 * (position + byte) + bit)
    verdict = doctor(payments)
    server = Server(payments)
    if server.greeting:  # the pages show the damage, and the older checkpoint does not have it
        read = server.stream("pay").get(f"offset=-1&{COMMITTED}")
        repeated = Txn(server, "p", name="t0").call("commit")
        server.kill()
        assert (read.body, repeated.status) == (b"pay 0;pay 2;", 200)
        assert verdict.returncode == 0, verdict.stdout
        assert "other meta page" in verdict.stdout
        return
    code = server.wait()
    server.kill()
    assert code == 65
    assert CHECKPOINT in server.stderr
    assert verdict.returncode == 65, verdict.stdout
