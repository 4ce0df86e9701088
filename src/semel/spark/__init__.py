"""Read and write streams with Spark's `format("semel")`.

A query that reads and writes semel streams writes each result exactly once.

Importing this package does not import Spark. The public names are imported on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from semel.version import install_advice

if TYPE_CHECKING:
    from semel.spark.runtime.environment import JavaMissing, WrongPython, ensure_java
    from semel.spark.runtime.session import register, session
    from semel.spark.sink.writers import commit_batch

__all__ = ["JavaMissing", "WrongPython", "commit_batch", "ensure_java", "register", "session"]

_MODULES: Final = {
    "JavaMissing": "semel.spark.runtime.environment",
    "WrongPython": "semel.spark.runtime.environment",
    "commit_batch": "semel.spark.sink.writers",
    "ensure_java": "semel.spark.runtime.environment",
    "register": "semel.spark.runtime.session",
    "session": "semel.spark.runtime.session",
}
_EXTRA: Final = ("pandas", "pyarrow", "pyspark")


def __getattr__(name: str) -> Any:
    """Import a public name on first use.

    Raises ModuleNotFoundError if a package that the extra `spark` installs is missing. The message
    says how to install it.
    """
    if name not in _MODULES:
        raise AttributeError(f"module 'semel.spark' has no attribute {name!r}")
    try:
        return getattr(import_module(_MODULES[name]), name)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in _EXTRA:
            raise
        raise ModuleNotFoundError(
            f"{missing} is not installed; " + install_advice("'.[spark]'"), name=missing
        ) from error


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
