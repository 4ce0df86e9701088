"""Run by the Python that would run Spark's tasks: one line of JSON says what it has.

Nothing of semel may be imported here, and nothing new of Python be used: that Python may be an old
one without semel.
"""

import importlib
import importlib.util
import json
import pkgutil
import sys

NEEDED = ("pyarrow", "semel", "pyspark_semel")


def main() -> None:
    """Print what this Python has; pythons.Probed is its form."""
    names = [module.name for module in pkgutil.iter_modules()]
    found = {
        "version": f"{sys.version_info[0]}.{sys.version_info[1]}",
        "missing": [name for name in NEEDED if importlib.util.find_spec(name) is None],
        "packages": {name: failure(name) for name in names if name.startswith("pyspark_")},
    }
    sys.stdout.write(f"\n{json.dumps(found)}\n")


def failure(name: str) -> str:
    """Import a module as Spark will; why that failed, or nothing."""
    try:
        importlib.import_module(name)
    except Exception as error:  # noqa: BLE001 - whatever it is, Spark would stumble over it
        return f"{type(error).__name__}: {error}"
    return ""


if __name__ == "__main__":
    main()
