"""`semel bench` finds its benchmarks, or prints how to install them."""

import importlib
import inspect
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import semel
import semel_bench
from semel_bench.command import BENCHMARKS

ROOT = Path(__file__).resolve().parents[3]
ABSENT = "sys.modules['semel_bench'] = None"
OLDER = "import semel_bench; semel_bench.__version__ = '0.0.1'"


def run(before: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    program = f"import sys; {before}; from semel.cli.main import main; main()"
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("name", [name for name in BENCHMARKS if name != "spark"])
def test_every_benchmark_is_found(name: str) -> None:
    module = importlib.import_module(f"semel_bench.{BENCHMARKS[name]}")
    assert inspect.iscoroutinefunction(getattr(module, f"measure_{name}"))


def test_the_benchmark_of_spark_is_found_without_loading_spark() -> None:
    script = (
        "import sys, semel.cli.bench, semel_bench.spark;"
        "assert semel_bench.spark.measure_spark;"
        "print([name for name in sys.modules if name.startswith(('pyspark', 'pyarrow'))])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_the_page_names_every_benchmark_and_no_other() -> None:
    page = (ROOT / "docs/reference/cli.md").read_text(encoding="utf-8")
    section = page.partition("\n## `semel bench`\n")[2].partition("\n## ")[0]
    named = re.findall(r"^\| `([a-z]+)` \|", section, flags=re.MULTILINE)
    assert named == list(BENCHMARKS)


@pytest.mark.parametrize("arguments", [(), ("--help",), ("append", "--quick")])
def test_without_the_package_the_command_says_how_to_install_it(arguments: tuple[str, ...]) -> None:
    done = run(ABSENT, "bench", *arguments)
    assert done.returncode == 69
    assert done.stderr == (
        "semel: the benchmarks are not installed; "
        "in a checkout of semel, run: pip install . ./src/semel_bench\n"
    )


def test_without_the_package_the_command_is_still_listed() -> None:
    done = run(ABSENT, "--help")
    assert done.returncode == 0
    assert re.search(r"^ +bench +Measure", done.stdout, flags=re.MULTILINE)


def test_benchmarks_of_another_version_are_refused() -> None:
    done = run(OLDER, "bench", "--help")
    assert done.returncode == 69
    assert f"does not match semel {semel.__version__}; in a checkout of semel" in done.stderr
    assert "pip install . ./src/semel_bench" in done.stderr


def test_a_module_that_the_benchmarks_lack_is_no_missing_package() -> None:
    done = run("sys.modules['semel_bench.harness'] = None", "bench", "--help")
    assert done.returncode == 1
    assert "ModuleNotFoundError" in done.stderr


def test_both_packages_have_one_version() -> None:
    project = tomllib.loads((ROOT / "src/semel_bench/pyproject.toml").read_text())["project"]
    assert semel_bench.__version__ == semel.__version__
    assert project["dependencies"] == [f"semel=={semel.__version__}"]


def test_the_wheel_of_semel_has_no_benchmarks() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = settings["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert sorted(packages) == ["src/pyspark_semel", "src/semel"]
    assert settings["project"]["optional-dependencies"]["bench"] == ["semel-bench"]
