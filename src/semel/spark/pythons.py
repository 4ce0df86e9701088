"""Which Python runs Spark's tasks, and whether it has what they need.

Spark takes PYSPARK_PYTHON, or the first `python3` of the PATH: from a virtual environment that is
not activated, that is another Python. Such a task cannot import semel, or there is no task at all
because Spark finds no format "semel".
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import msgspec

SECONDS_MAX: Final = 120
_PROBE: Final = Path(__file__).with_name("probe.py")


class WrongPython(RuntimeError):
    """Tasks would run a Python that has no semel."""


class Probed(msgspec.Struct, frozen=True):
    """What a Python says of itself."""

    version: str
    missing: list[str]  # of the modules a task imports
    packages: dict[str, str]  # those named pyspark_..., and why the import failed, or ""


def worker_python() -> str:
    """Name the Python that a plain session would run its tasks with."""
    return os.environ.get("PYSPARK_PYTHON") or "python3"


def probe(python: str) -> Probed | None:
    """Ask a Python what it has; None if it does not run."""
    try:
        answer = subprocess.run(  # noqa: S603 - the Python that Spark would run
            [python, "-c", _PROBE.read_text()],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(_spark_path())},
            capture_output=True,
            timeout=SECONDS_MAX,
            check=True,
        )
        return msgspec.json.decode(answer.stdout.splitlines()[-1], type=Probed)
    except (OSError, subprocess.SubprocessError, IndexError, msgspec.DecodeError):
        return None


def check_worker_python(python: str) -> None:
    """Refuse a Python whose tasks could not import semel."""
    if shutil.which(python) == sys.executable:
        return
    found = probe(python)
    if found is not None and is_fit(found):
        return
    raise WrongPython(
        f"Spark would run its tasks with {python}, which {complaint(found)}; {cure()}, "
        "or use semel.spark.session()"
    )


def is_fit(found: Probed) -> bool:
    """Whether tasks that read and write streams run there."""
    return not found.missing and found.version == _version()


def complaint(found: Probed | None) -> str:
    """Say what is wrong with a Python that is not fit."""
    if found is None:
        return "does not run"
    if found.version != _version():
        return f"is Python {found.version} and not {_version()}"
    return f"has no {' and no '.join(found.missing)}"


def cure() -> str:
    """Say how to give Spark this Python."""
    return f"before it starts, run: export PYSPARK_PYTHON={sys.executable}"


def _version() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def _spark_path() -> list[str]:
    """List where a worker finds modules: Spark's own come from the driver's installation."""
    import pyspark

    own = sorted(map(str, (Path(pyspark.__file__).parent / "python" / "lib").glob("*.zip")))
    return [*own, *filter(None, [os.environ.get("PYTHONPATH")])]
