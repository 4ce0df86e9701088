"""The Spark checks of `semel doctor`, on machines where something is missing."""

import importlib.metadata
import importlib.util
import sys

import pytest

from semel.cli import doctor
from semel.cli.doctor import check_spark
from semel.spark.runtime.environment import Java, JavaMissing, ProbeResult


def said(name: str) -> tuple[str, str]:
    (check,) = [check for check in check_spark() if check.name == name]
    return check.status, check.detail


def answer(monkeypatch: pytest.MonkeyPatch, found: ProbeResult | None) -> None:
    monkeypatch.setattr(doctor, "probe", lambda _python: found)


def here(missing: list[str] | None = None, **packages: str) -> ProbeResult:
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    return ProbeResult(version, missing or [], {"pyspark_semel": "", **packages})


def test_a_machine_that_runs_the_tests_can_run_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    assert [check for check in check_spark() if check.status != "ok"] == []


def test_without_spark_one_line_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    (check,) = check_spark()
    assert check.status == "info"
    assert "in a checkout of semel, run: pip install '.[spark]'" in check.detail


@pytest.mark.parametrize(
    ("name", "version", "status"),
    [
        ("pyspark", "4.1.4", "warn"),
        ("pyspark", "4.2.0", "ok"),
        ("pyspark", "5.0.0", "warn"),
        ("pyarrow", "17.0.0", "warn"),
        ("pyarrow", "26.0.1", "ok"),
        ("pandas", "2.1.9", "warn"),
        ("pandas", "2.3.3", "ok"),
        ("pandas", "3.0rc1", "warn"),
    ],
)
def test_a_version_that_does_not_fit_is_named_with_the_command(
    monkeypatch: pytest.MonkeyPatch, name: str, version: str, status: str
) -> None:
    answer(monkeypatch, None)
    monkeypatch.setattr(importlib.metadata, "version", lambda _name: version)
    found, detail = said(name)
    assert found == status
    assert version in detail
    assert (f"pip install '{name}>=" in detail) == (status == "warn")


def test_a_missing_package_is_named_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    answer(monkeypatch, None)
    monkeypatch.setattr(importlib.metadata, "version", refuse)
    assert said("pandas") == ("warn", "the package is missing; run: pip install 'pandas>=2.2,<3'")
    assert said("pyarrow") == ("warn", "the package is missing; run: pip install 'pyarrow>=18'")


def test_the_versions_are_those_of_the_extra() -> None:
    extra = {
        line.partition(";")[0].strip()
        for line in importlib.metadata.requires("semel") or []
        if "extra == 'spark'" in line
    }
    wanted = {doctor.pip_requirement(*one) for one in doctor.REQUIRED}
    assert {_sorted(line) for line in wanted} <= {_sorted(line) for line in extra}


def _sorted(requirement: str) -> tuple[str, ...]:
    """Return the name and the sorted bounds, because pip may list the bounds in any order."""
    name = requirement[: min(requirement.index(sign) for sign in "<>" if sign in requirement)]
    return name, *sorted(requirement.removeprefix(name).split(","))


def test_java_is_named_with_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    answer(monkeypatch, None)
    monkeypatch.setattr(doctor, "find_java", lambda: Java("/j", 21, "PATH"))  # type: ignore[arg-type]
    assert said("java") == ("ok", "21 in /j, found through PATH")


def test_a_missing_java_is_told_with_its_cures(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> Java:
        raise JavaMissing("the cure")

    answer(monkeypatch, None)
    monkeypatch.setattr(doctor, "find_java", refuse)
    assert said("java") == ("warn", "the cure")


@pytest.mark.parametrize(
    ("found", "complaint"),
    [
        (None, "does not run"),
        (ProbeResult("2.7", [], {}), "is Python 2.7"),
        (here(missing=["pyarrow", "semel"]), "has no pyarrow and no semel"),
    ],
)
def test_the_wrong_python_is_told_with_the_command(
    monkeypatch: pytest.MonkeyPatch, found: ProbeResult | None, complaint: str
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "/elsewhere/python")
    answer(monkeypatch, found)
    status, detail = said("python of tasks")
    assert status == "warn"
    assert f"/elsewhere/python {complaint}" in detail
    assert f"export PYSPARK_PYTHON={sys.executable}" in detail


def test_a_broken_neighbour_that_hides_the_format_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answer(monkeypatch, here(pyspark_other="ImportError: no"))
    status, detail = said('format "semel"')
    assert status == "warn"
    assert "pyspark_other: ImportError: no" in detail
    assert "semel.spark.register(spark)" in detail
    answer(monkeypatch, here())
    assert said('format "semel"')[0] == "ok"
