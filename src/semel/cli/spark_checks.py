"""What this machine has of what Spark needs. Nothing here is needed without Spark."""

import importlib.metadata
import importlib.util
import re
from typing import Final

from semel.cli.environment import Check
from semel.spark.java import JavaMissing, find_java
from semel.spark.pythons import Probed, complaint, cure, is_fit, probe, worker_python

Version = tuple[int, ...]

# name, lowest and first version too new, as in the extra `spark`
WANTED: Final = (("pyspark", (4, 2), (5,)), ("pyarrow", (18,), None), ("pandas", (2, 2), (3,)))


def check_spark() -> list[Check]:
    """Ask everything about Spark; one line if it is not installed."""
    if importlib.util.find_spec("pyspark") is None:
        advice = "to read and write streams with Spark, run: pip install 'semel[spark]'"
        return [Check("spark", "info", f"pyspark is not installed; {advice}")]
    packages = [_check_package(*wanted) for wanted in WANTED]
    python = worker_python()
    found = probe(python)
    checks = [*packages, _check_java(), _check_python(python, found)]
    if found is not None and is_fit(found):
        checks.append(_check_format(found))
    return checks


def requirement(name: str, lowest: Version, too_new: Version | None) -> str:
    """Write down what is wanted as pip reads it."""
    return f"{name}>={_dotted(lowest)}" + (f",<{_dotted(too_new)}" if too_new else "")


def _check_package(name: str, lowest: Version, too_new: Version | None) -> Check:
    advice = f"run: pip install '{requirement(name, lowest, too_new)}'"
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return Check(name, "warn", f"is missing; {advice}")
    numbers = tuple(map(int, re.findall(r"\d+", version)[:2]))
    if numbers < lowest or (too_new is not None and numbers >= too_new):
        return Check(name, "warn", f"{version} does not fit; {advice}")
    return Check(name, "ok", version)


def _dotted(version: Version) -> str:
    return ".".join(map(str, version))


def _check_java() -> Check:
    try:
        java = find_java()
    except JavaMissing as error:
        return Check("java", "warn", str(error))
    return Check("java", "ok", f"{java.version} at {java.home}, found by {java.origin}")


def _check_python(python: str, found: Probed | None) -> Check:
    if found is not None and is_fit(found):
        return Check("python of tasks", "ok", f"{python}, {found.version}")
    return Check(
        "python of tasks",
        "warn",
        f"{python} {complaint(found)}; {cure()} (semel.spark.session() does)",
    )


def _check_format(found: Probed) -> Check:
    """Spark imports every `pyspark_...` package at once: one that fails hides all of them."""
    broken = {name: why for name, why in found.packages.items() if why}
    if not broken:
        return Check('format "semel"', "ok", "Spark finds it through pyspark_semel")
    names = " ".join(broken)
    reasons = "; ".join(f"{name}: {why}" for name, why in broken.items())
    advice = f"mend or remove {names}, or call semel.spark.register(spark)"
    return Check('format "semel"', "warn", f"Spark finds no such format ({reasons}); {advice}")
