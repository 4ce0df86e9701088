"""The checks of `semel doctor` on this machine: what semel and Spark need."""

import importlib
import importlib.metadata
import importlib.util
import platform
import re
import resource
import shutil
import sys
from typing import Final, Literal

from msgspec import Struct

from semel.cli.output import size_text
from semel.model.limits import RESERVE_BYTES_DEFAULT, SEGMENT_BYTES_DEFAULT
from semel.spark.runtime.environment import (
    JavaMissing,
    ProbeResult,
    find_java,
    is_fit,
    probe,
    python_advice,
    python_problem,
    worker_python,
)
from semel.version import install_advice

DEPENDENCIES: Final = ("click", "crc32c", "lmdb", "msgspec", "rich", "uvloop")
_PYTHON_MIN: Final = (3, 11)
_FILES_MIN: Final = 4_096
_FREE_BYTES_MIN: Final = 2 * SEGMENT_BYTES_DEFAULT + RESERVE_BYTES_DEFAULT

Status = Literal["ok", "info", "warn", "fail"]


class Check(Struct, frozen=True):
    """The result of one check."""

    name: str
    status: Status
    detail: str


def check_environment() -> list[Check]:
    """Run the checks that need no data directory."""
    dependencies = [_check_dependency(name) for name in DEPENDENCIES]
    return [_check_python(), *dependencies, _check_files()]


def _check_python() -> Check:
    version = platform.python_version()
    if sys.version_info >= _PYTHON_MIN:
        return Check("python", "ok", version)
    return Check("python", "fail", f"{version}; semel requires {_dotted(_PYTHON_MIN)} or newer")


def _check_dependency(name: str) -> Check:
    try:
        importlib.import_module(name)
        return Check(name, "ok", importlib.metadata.version(name))
    except ImportError as error:
        return Check(name, "fail", f"cannot be imported ({error}); install semel again")


def _check_files() -> Check:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)  # a server raises its limit to this
    if hard == resource.RLIM_INFINITY:
        return Check("open files", "ok", "no limit")
    if hard >= _FILES_MIN:
        return Check("open files", "ok", f"up to {hard}")
    advice = f"raise it, e.g. `ulimit -n {_FILES_MIN}`"
    return Check("open files", "warn", f"only {hard}; {advice}")


def check_space(path: str) -> Check:
    """Check the free space of a file system."""
    free = shutil.disk_usage(path).free
    if free >= _FREE_BYTES_MIN:
        return Check("free space", "ok", size_text(free))
    needed = f"with default settings a server needs {size_text(_FREE_BYTES_MIN)}"
    return Check("free space", "warn", f"only {size_text(free)}; {needed}")


# ---- spark ---------------------------------------------------------------------------------------
# Nothing of this is needed without Spark.


Version = tuple[int, ...]

# name, lowest version, and the first version that is too new, as in the extra `spark`
REQUIRED: Final = (("pyspark", (4, 2), (5,)), ("pyarrow", (18,), None), ("pandas", (2, 2), (3,)))


def check_spark() -> list[Check]:
    """Run the checks for Spark; if it is not installed, the only result says so."""
    if importlib.util.find_spec("pyspark") is None:
        advice = "to read and write streams with Spark, " + install_advice("'.[spark]'")
        return [Check("spark", "info", f"pyspark is not installed; {advice}")]
    packages = [_check_package(*requirement) for requirement in REQUIRED]
    python = worker_python()
    result = probe(python)
    checks = [*packages, _check_java(), _check_worker_python(python, result)]
    if result is not None and is_fit(result):
        checks.append(_check_format(result))
    return checks


def pip_requirement(name: str, lowest: Version, too_new: Version | None) -> str:
    """Return the requirement in the syntax of pip."""
    return f"{name}>={_dotted(lowest)}" + (f",<{_dotted(too_new)}" if too_new else "")


def _check_package(name: str, lowest: Version, too_new: Version | None) -> Check:
    advice = f"run: pip install '{pip_requirement(name, lowest, too_new)}'"
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return Check(name, "warn", f"is missing; {advice}")
    numbers = tuple(map(int, re.findall(r"\d+", version)[:2]))
    if numbers < lowest or (too_new is not None and numbers >= too_new):
        return Check(name, "warn", f"version {version} is not supported; {advice}")
    return Check(name, "ok", version)


def _dotted(version: Version) -> str:
    return ".".join(map(str, version))


def _check_java() -> Check:
    try:
        java = find_java()
    except JavaMissing as error:
        return Check("java", "warn", str(error))
    return Check("java", "ok", f"{java.version} at {java.home}, found by {java.origin}")


def _check_worker_python(python: str, result: ProbeResult | None) -> Check:
    if result is not None and is_fit(result):
        return Check("python of tasks", "ok", f"{python}, {result.version}")
    return Check(
        "python of tasks",
        "warn",
        f"{python} {python_problem(result)}; {python_advice()} (semel.spark.session() does this)",
    )


def _check_format(result: ProbeResult) -> Check:
    """Check that Spark finds the format.

    Spark imports all `pyspark_...` packages together: one that fails hides all others.
    """
    broken = {name: why for name, why in result.packages.items() if why}
    if not broken:
        return Check('format "semel"', "ok", "Spark finds it through pyspark_semel")
    names = " ".join(broken)
    reasons = "; ".join(f"{name}: {why}" for name, why in broken.items())
    advice = f"fix or remove {names}, or call semel.spark.register(spark)"
    return Check('format "semel"', "warn", f"Spark does not find the format ({reasons}); {advice}")
