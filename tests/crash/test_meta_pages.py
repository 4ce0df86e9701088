"""A loss of power while LMDB writes a meta page loses nothing; damage to one serves nothing old."""

import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Final

import pytest

from semel.journal.lmdb_meta import newest_first, read_metas
from semel.journal.lmdb_store import LmdbStore
from semel.journal.lmdb_transactions import SnapshotReader
from semel.journal.store import TABLES, StoreReader
from semel.model.errors import CorruptData
from tests.crash import damage_mutants
from tests.crash.conftest import Report
from tests.crash.damage_mutants import Mutant
from tests.crash.damage_rig import doctor_code, in_fork
from tests.crash.directory import CHECKPOINT, copy, flip, quick_directory, snapshot
from tests.crash.meta_images import (
    PAGE_BYTES,
    Image,
    garbage,
    lives,
    make_images,
    newer_page,
    put_write,
    read_write,
    tears,
)
from tests.crash.test_checkpoint_damage import doctor
from tests.spec.process import Server

pytestmark = pytest.mark.crash

CORRUPT: Final = 65
IMAGES: Final = 8
COMMITS: Final = (1, 2, 3, 40, 41)
Rows = dict[str, list[tuple[bytes, bytes]]]


@pytest.fixture
def directory() -> Iterator[Path]:
    with quick_directory() as path:
        yield path


# ---- the file alone: every byte of the write -----------------------------------------------------


def rows_of(view: StoreReader) -> Rows:
    return {table: list(view.scan(table)) for table in TABLES}


@contextmanager
def new_store(path: Path) -> Iterator[LmdbStore]:
    store = LmdbStore(str(path))
    store.make_writable()
    yield store
    store.close()


def stored(store: LmdbStore) -> Rows:
    with store.read() as view:
        return rows_of(view)


def commit(store: LmdbStore, random: Random) -> None:
    writer = store.write()
    for _ in range(random.choice((1, 4, 40))):
        table, key = random.choice(TABLES[:4]), b"%d" % random.randrange(200)
        if random.random() < 0.3:
            writer.delete(table, key)
        writer.put(table, key, random.randbytes(random.choice((5, 300, 6_000))))
    writer.commit()


def make_file(path: Path, commits: int, random: Random) -> tuple[bytes, Rows, Rows]:
    """Make a file. Return what the last write replaced, and the rows before and after it."""
    store = LmdbStore(str(path))
    store.make_writable()
    for _ in range(commits):
        before = stored(store)
        old = path.read_bytes()
        commit(store, random)
    after = stored(store)
    store.close()
    page = newer_page(path)
    return old[page * PAGE_BYTES + 32 :][:120], before, after


@pytest.mark.parametrize("commits", COMMITS)
def test_every_torn_write_of_a_meta_page_leaves_the_old_or_the_new_rows(
    directory: Path, commits: int, figure: Report
) -> None:
    random = Random(commits)
    path, trial = directory / CHECKPOINT, directory / "trial" / CHECKPOINT
    trial.parent.mkdir()
    old, before, after = make_file(path, commits, random)
    page = newer_page(path)
    new = read_write(path, page)
    repaired = 0
    for name, data in (*tears(old, new), *garbage(old, new, random)):
        shutil.copy(path, trial)
        put_write(trial, page, data)
        torn = trial.read_bytes()
        store = LmdbStore(str(trial))
        found = stored(store)
        assert found in ((after,) if data == new else (before, after)), name
        assert trial.read_bytes() == torn, name
        repaired += store.damage is not None
        store.make_writable()
        assert stored(store) == found, name
        for _ in range(3):
            commit(store, random)
        expected = stored(store)
        store.close()
        store = LmdbStore(str(trial))
        assert stored(store) == expected, name
        assert store.damage is None, name
        store.close()
    assert repaired
    figure(f"torn meta pages after {commits} commits: {repaired} repaired, 0 wrong rows")


def test_many_losses_of_power_in_a_row_lose_no_commit_but_the_last(directory: Path) -> None:
    random = Random(7)
    path = directory / "0" / CHECKPOINT
    path.parent.mkdir()
    store = LmdbStore(str(path))
    store.make_writable()
    for number in range(120):
        before = stored(store)
        page = 1 - newer_page(path)
        old = read_write(path, page)
        commit(store, random)
        after = stored(store)
        if random.random() < 0.5:
            continue
        # The copy is what a kill leaves. Then the power failed as well.
        killed = directory / f"{number + 1}" / CHECKPOINT
        killed.parent.mkdir()
        shutil.copy(path, killed)
        store.close()
        assert newer_page(killed) == page
        choices = [*garbage(old, read_write(killed, page), random)]
        name, data = random.choice(choices)
        put_write(killed, page, data)
        path, store = killed, LmdbStore(str(killed))
        found = stored(store)
        assert found in (before, after), name
        is_damaged = store.damage is not None
        store.make_writable()
        if is_damaged and random.random() < 0.5:
            # After the repair, the page that was sound is damaged.
            store.close()
            put_write(path, newer_page(path), random.randbytes(120))
            store = LmdbStore(str(path))
            assert stored(store) == found, name
            store.make_writable()
    store.close()


def test_the_older_snapshot_is_always_complete(directory: Path) -> None:
    """LMDB reuses no page of the two snapshots that the meta pages describe."""
    random = Random(3)
    path = directory / CHECKPOINT
    with new_store(path) as store:
        for _ in range(150):
            before = stored(store)
            commit(store, random)
            older = newest_first(read_metas(path.read_bytes()))[1]
            reader = SnapshotReader(str(path), older)
            assert rows_of(reader) == before
            reader.close()


def test_a_snapshot_is_read_without_lmdb_as_lmdb_reads_it(directory: Path) -> None:
    random = Random(5)
    path = directory / CHECKPOINT
    with new_store(path) as store:
        for _ in range(30):
            writer = store.write()
            for _ in range(200):
                writer.put(
                    "keys", random.randbytes(random.choice((1, 3, 300))), random.randbytes(40)
                )
            for key, _ in random.sample(list(writer.scan("keys")), 60):
                writer.delete("keys", key)
            writer.commit()
        reader = SnapshotReader(str(path), newest_first(read_metas(path.read_bytes()))[0])
        with store.read() as view:
            keys = [key for key, _ in view.scan("keys")]
            for key in (
                *keys[::7],
                *(random.randbytes(2) for _ in range(300)),
                b"\0",
                b"\xff" * 20,
            ):
                assert reader.get("keys", key) == view.get("keys", key)
                assert reader.last_before("keys", key) == view.last_before("keys", key)
            for key in keys[::100]:
                assert list(reader.scan("keys", key)) == list(view.scan("keys", key))
            assert reader.last_before("streams", b"a") is None
            assert rows_of(reader) == rows_of(view)
        reader.close()


def test_a_long_value_that_one_commit_wrote_twice_is_no_damage(directory: Path) -> None:
    """LMDB leaves the shorter value on all pages of the longer one."""
    path = directory / CHECKPOINT
    store = LmdbStore(str(path))
    store.make_writable()
    writer = store.write()
    writer.put("index", b"key", b"l" * 20_000)
    writer.put("index", b"key", b"s" * 5_000)
    writer.commit()
    expected = stored(store)
    store.close()
    store = LmdbStore(str(path))
    assert stored(store) == expected
    store.close()


def test_two_damaged_meta_pages_are_corruption(directory: Path) -> None:
    path = directory / CHECKPOINT
    make_file(path, 3, Random(1))
    for page in (0, 1):
        put_write(path, page, bytes(120))
    with pytest.raises(CorruptData):
        LmdbStore(str(path))


# ---- whole directories: the answers of engines ---------------------------------------------------


class Trials:
    """Images of checkpoints, and a copy that is damaged in each trial."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._trial = directory / "trial"
        self.images = make_images(directory, IMAGES, monkeypatch)
        self._expected = [lives(copy(image.after, self._trial)) for image in self.images]
        assert all(isinstance(found, dict) for found in self._expected[-1])

    def run(self, image: Image, source: Path, data: bytes, page: int) -> str:
        """Replace a meta page in a copy of `source`. Return "right", "refused" or the violation."""
        trial = copy(source, self._trial)
        put_write(trial / CHECKPOINT, page, data)
        before = snapshot(trial)
        verdict = in_fork(lambda: doctor_code(trial))
        if snapshot(trial) != before:
            return "doctor has changed a file"
        found = lives(trial)
        if found == [CORRUPT] * 3:
            is_unchanged = snapshot(trial) == before
            return "refused" if verdict == CORRUPT and is_unchanged else f"doctor: {verdict}"
        if found != self._expected[self.images.index(image)]:
            codes = [code for code in found if not isinstance(code, dict)]
            return f"wrong answers, or refused with {codes}"
        return "right" if verdict == 0 else f"doctor: {verdict}"


def power_losses(image: Image, random: Random) -> list[tuple[str, bytes]]:
    torn = list(tears(image.old, image.new))
    return [*random.sample(torn, 3), *random.sample(list(garbage(image.old, image.new, random)), 4)]


def test_a_power_loss_during_a_checkpoint_loses_nothing_and_doctor_agrees(
    directory: Path, monkeypatch: pytest.MonkeyPatch, figure: Report
) -> None:
    trials = Trials(directory, monkeypatch)
    random = Random(11)
    count = 0
    for image in trials.images:
        for name, data in power_losses(image, random):
            assert trials.run(image, image.after, data, image.page) == "right", name
            count += 1
    figure(f"power losses during the write of a meta page: {count}, 0 refused starts")


def verdicts_of_damage(trials: Trials) -> list[tuple[bool, str]]:
    """Damage the newer meta page after the segments were removed that it made unnecessary.

    Return for each trial whether segments were removed, and the verdict.
    """
    random = Random(12)
    found = []
    for image in trials.images:
        for _, data in random.sample(list(garbage(image.old, image.new, random)), 3):
            verdict = trials.run(image, image.tidied, data, image.page)
            found.append((image.has_removed, verdict))
    return found


def test_damage_to_the_newer_meta_page_never_serves_an_older_state(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = verdicts_of_damage(Trials(directory, monkeypatch))
    assert {verdict for has_removed, verdict in found if not has_removed} == {"right"}
    assert "refused" in {verdict for has_removed, verdict in found if has_removed}
    assert {verdict for _, verdict in found} == {"right", "refused"}


def test_damage_to_the_older_meta_page_is_repaired(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trials = Trials(directory, monkeypatch)
    for image in trials.images:
        for data in (bytes(120), b"\xff" * 120, Random(1).randbytes(120)):
            assert trials.run(image, image.tidied, data, 1 - image.page) == "right"


@pytest.mark.parametrize("mutant", damage_mutants.META_PAGES)
def test_a_wrong_treatment_of_a_damaged_meta_page_is_found_out(
    directory: Path, mutant: Mutant, monkeypatch: pytest.MonkeyPatch
) -> None:
    trials = Trials(directory, monkeypatch)
    mutant(monkeypatch)
    random = Random(11)
    found = [
        trials.run(image, image.after, data, image.page)
        for image in trials.images[-3:]
        for _, data in power_losses(image, random)
    ]
    found += [verdict for _, verdict in verdicts_of_damage(trials)]
    assert set(found) - {"right", "refused"}


# ---- a real server -------------------------------------------------------------------------------


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("is_flip", [True, False])
def test_a_server_starts_with_a_damaged_meta_page_and_has_every_message(
    directory: Path, end: signal.Signals, is_flip: bool
) -> None:
    path = directory / "data"
    expected = b""
    for life in range(4):
        server = Server(path)
        assert server.greeting, server.stderr
        stream = server.stream("s")
        if not life:
            stream.create()
        assert stream.get("offset=-1").body == expected
        text = b"life %d;" % life
        assert stream.post(text).status in (200, 204)
        expected += text
        server.signal(end)
        server.wait()
        server.kill()
        page = newer_page(path / CHECKPOINT)
        if is_flip:
            flip(path / CHECKPOINT, 8 * page * PAGE_BYTES + 5)
        else:
            put_write(path / CHECKPOINT, page, bytes(120))
        verdict = doctor(path)
        assert verdict.returncode == 0, verdict.stdout
        assert "repairs the page" in verdict.stdout
