"""The Python of Spark's tasks: the current one, one without packages, and a missing one."""

import subprocess
import sys
from pathlib import Path

import pytest

from semel.spark.runtime import environment
from semel.spark.runtime.environment import (
    ProbeResult,
    WrongPython,
    check_worker_python,
    is_fit,
    probe,
    worker_python,
)


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a Python of this version without any packages."""
    home = tmp_path_factory.mktemp("bare") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True)
    return str(home / "bin" / "python3")


def test_this_python_is_fit_and_finds_the_format() -> None:
    found = probe(sys.executable)
    assert found is not None
    assert is_fit(found)
    assert found.packages["pyspark_semel"] == ""
    check_worker_python(sys.executable)


def test_the_editable_install_is_found_as_spark_looks_for_it() -> None:
    """Only by its .pth file, because Spark uses pkgutil, which ignores import hooks."""
    look = "import pkgutil; print(*(module.name for module in pkgutil.iter_modules()))"
    command = [sys.executable, "-E", "-c", look]
    found = subprocess.run(command, cwd="/", capture_output=True, text=True, check=True).stdout
    assert "pyspark_semel" in found.split()


def test_a_bare_python_is_refused_with_the_cure(bare: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    with pytest.raises(WrongPython) as caught:
        check_worker_python(bare)
    said = str(caught.value)
    assert f"{bare}, which has no pyarrow and no semel" in said
    assert f"export PYSPARK_PYTHON={sys.executable}" in said


def test_another_path_to_a_fit_python_is_taken(tmp_path: Path) -> None:
    script = tmp_path / "python3"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    script.chmod(0o755)
    check_worker_python(str(script))


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (None, "which does not run"),
        (ProbeResult("3.9", [], {}), "which is Python 3.9 and not 3"),
    ],
)
def test_a_python_that_cannot_do_is_refused(
    monkeypatch: pytest.MonkeyPatch, found: ProbeResult | None, said: str
) -> None:
    monkeypatch.setattr(environment, "probe", lambda _python: found)
    with pytest.raises(WrongPython, match=said):
        check_worker_python("/elsewhere/python3")


@pytest.mark.parametrize("text", ["", "exit 3", "echo no json"])
def test_what_is_no_python_says_nothing(tmp_path: Path, text: str) -> None:
    script = tmp_path / "python3"
    script.write_text(f"#!/bin/sh\n{text}\n")
    script.chmod(0o755)
    assert probe(str(script)) is None


def test_a_broken_package_of_another_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pyspark_broken.py").write_text("import no_such_module\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    found = probe(sys.executable)
    assert found is not None
    assert "no_such_module" in found.packages["pyspark_broken"]


def test_spark_takes_the_environment_then_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "/here/python")
    assert worker_python() == "/here/python"
    monkeypatch.delenv("PYSPARK_PYTHON")
    assert worker_python() == "python3"
