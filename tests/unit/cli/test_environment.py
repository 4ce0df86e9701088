"""The environment checks, run in an environment where what they look for is missing."""

import resource
import shutil
from collections import namedtuple

import pytest

from semel.cli import doctor
from semel.cli.doctor import check_environment, check_space

Usage = namedtuple("Usage", ["total", "used", "free"])


def status_of(name: str) -> tuple[str, str]:
    (check,) = [check for check in check_environment() if check.name == name]
    return check.status, check.detail


def test_a_machine_that_runs_the_tests_has_what_is_needed() -> None:
    assert [check for check in check_environment() if check.status == "fail"] == []


def test_an_old_python_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_PYTHON_MIN", (9, 0))
    status, detail = status_of("python")
    assert status == "fail"
    assert "install 9.0 or newer" in detail


def test_a_missing_dependency_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "DEPENDENCIES", ("no_such_module",))
    status, detail = status_of("no_such_module")
    assert status == "fail"
    assert "install" in detail


@pytest.mark.parametrize(
    ("hard", "status"), [(256, "warn"), (65_536, "ok"), (resource.RLIM_INFINITY, "ok")]
)
def test_few_open_files_are_a_warning(
    monkeypatch: pytest.MonkeyPatch, hard: int, status: str
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _which: (256, hard))
    assert status_of("open files")[0] == status


@pytest.mark.parametrize(("free", "status"), [(1 << 20, "warn"), (1 << 40, "ok")])
def test_little_space_is_a_warning(monkeypatch: pytest.MonkeyPatch, free: int, status: str) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: Usage(1 << 41, 0, free))
    assert check_space(".").status == status
