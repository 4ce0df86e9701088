"""A short run for every test run; `make wakes` is the full one."""

import time
from pathlib import Path
from typing import Final

import pytest

from tests.sharing.checker import DOUBLED, LOST, OUT_OF_ORDER, Failed
from tests.wakes import __main__ as wakes
from tests.wakes import run
from tests.wakes.faulty_workers import FAULTY

SEED: Final = time.time_ns() % 1_000_000_000


@pytest.mark.crash
def test_each_message_has_its_effect_once_and_in_order_however_often_workers_are_killed(
    tmp_path: Path,
) -> None:
    size = run.Size(messages=150, streams=5, kills=6, seed=SEED)
    counts = run.run_all(tmp_path / "data", size, wakes.KINDS)
    assert counts["kills"] == 6
    assert min(counts[each] for each in (run.KILL_WORKER, run.KILL_RECEIVER, run.KILL_SERVER)) == 2
    assert all(counts[f"deliveries with {action}"] for action in run.DELIVERY_FAULTS)
    assert counts["commits"] > 0
    assert [counts[kind] for kind in (LOST, DOUBLED, OUT_OF_ORDER)] == [0, 0, 0]


@pytest.mark.crash
@pytest.mark.parametrize(("kind", "finding"), FAULTY, ids=[kind.id for kind, _ in FAULTY])
def test_a_worker_that_writes_and_acks_in_two_requests_is_found_out(
    kind: run.Kind, finding: str, tmp_path: Path
) -> None:
    size = run.Size(messages=80, streams=5, kills=0, seed=SEED)
    with pytest.raises(Failed, match=rf"\d+ {finding}"):
        run.run_all(tmp_path / "data", size, [kind])


# ---- the command ---------------------------------------------------------------------------------


def test_the_command_prints_the_figures(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(wakes, "run_all", lambda *_: {"messages": 2_000})
    assert wakes.main(["--seed", "7"]) == 0
    assert capsys.readouterr().out == f"seed 7:\n  {'messages':44} {'2,000':>9}\n"


def test_the_command_fails_if_something_is_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: object) -> None:
        raise Failed("1 lost")

    monkeypatch.setattr(wakes, "run_all", fails)
    assert wakes.main(["--seed", "7"]) == 1
    assert capsys.readouterr().out == "VIOLATION with --seed 7: 1 lost\n"
