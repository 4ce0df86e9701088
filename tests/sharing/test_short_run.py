"""A short run of each part for every test run; `make sharing` is the full one."""

import time
from pathlib import Path
from typing import Final

import pytest

from tests.sharing import __main__ as sharing
from tests.sharing import idle, poison, run
from tests.sharing.checker import DOUBLED, LOST, OUT_OF_ORDER, Failed
from tests.sharing.client_workers import work_consume, work_process
from tests.sharing.crews import Work
from tests.sharing.faulty_workers import FAULTY

pytestmark = pytest.mark.crash

SEED: Final = time.time_ns() % 1_000_000_000


def size_of(*, kills: int, messages: int = 250) -> run.Size:
    return run.Size(
        messages=messages,
        keys=60,
        partitions=12,
        grown_to=18,
        workers=6,
        kills=kills,
        joins=1 if kills else 0,
        leaves=1 if kills else 0,
        stops=1 if kills else 0,
        session_seconds=1.0,
        seed=SEED,
    )


def test_each_message_has_its_effect_once_and_in_order_however_often_members_are_killed(
    tmp_path: Path,
) -> None:
    counts = run.run_all(tmp_path / "data", size_of(kills=5), sharing.WORKS)
    assert counts["kills"] == 5
    assert min(counts[run.KILL_WORKER], counts[run.KILL_SERVER]) >= 1
    assert counts["keys moved"] > 0
    assert counts["commits"] > 0
    assert [counts[kind] for kind in (LOST, DOUBLED, OUT_OF_ORDER)] == [0, 0, 0]


@pytest.mark.parametrize(("work", "kind"), FAULTY)
def test_a_worker_with_a_bug_is_found_out(work: Work, kind: str, tmp_path: Path) -> None:
    with pytest.raises(Failed, match=rf"\d+ {kind}"):
        run.run_all(tmp_path / "data", size_of(kills=0, messages=200), [work])


def test_poisoned_messages_are_dead_letters_once_and_are_replayed_once(tmp_path: Path) -> None:
    size = poison.Size(
        messages=100,
        keys=20,
        partitions=4,
        workers=2,
        raising=3,
        deadly=1,
        kills=1,
        max_attempts=2,
        session_seconds=1.0,
        seed=SEED,
    )
    counts = poison.run_all(tmp_path / "data", size, [work_process, work_consume])
    assert counts["dead letters"] == 4
    assert counts["replayed"] == 4


def test_the_heartbeats_of_members_without_work_write_nothing(tmp_path: Path) -> None:
    size = idle.Size(members=200, seconds=3.0, session_seconds=2.0)
    counts = idle.run_all(tmp_path / "data", size)
    assert counts["journal bytes grown"] == 0
    assert counts["journal bytes of an expiry"] > 0


# ---- the command ---------------------------------------------------------------------------------


def test_the_command_prints_the_figures(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sharing, "PARTS", {"sharing": lambda *_: {"messages": 4_000}})
    assert sharing.main(["--seed", "7"]) == 0
    assert capsys.readouterr().out == f"sharing, seed 7:\n  {'messages':44} {'4,000':>9}\n"


def test_the_command_fails_if_something_is_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: object) -> None:
        raise Failed("1 lost")

    monkeypatch.setattr(sharing, "PARTS", {"poison": fails})
    assert sharing.main(["--seed", "7"]) == 1
    assert capsys.readouterr().out == "poison: VIOLATION with --seed 7: 1 lost\n"
