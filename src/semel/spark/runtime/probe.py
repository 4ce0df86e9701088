"""Run with the Python of Spark's tasks: prints a line of JSON about it, see `ProbeResult`.

This must not import semel nor use new features of Python: that Python may be old, without semel.
"""

import importlib
import importlib.util
import json
import pkgutil
import sys

NEEDED = ("pyarrow", "semel", "pyspark_semel")


def import_error(name: str) -> str:
    """Import a module as Spark does; return the error, or an empty string."""
    try:
        importlib.import_module(name)
    except Exception as error:  # noqa: BLE001 - Spark would fail with any of them
        return f"{type(error).__name__}: {error}"
    return ""


if __name__ == "__main__":
    names = [module.name for module in pkgutil.iter_modules()]
    result = {
        "version": f"{sys.version_info[0]}.{sys.version_info[1]}",
        "missing": [name for name in NEEDED if importlib.util.find_spec(name) is None],
        "packages": {name: import_error(name) for name in names if name.startswith("pyspark_")},
    }
    sys.stdout.write(f"\n{json.dumps(result)}\n")
