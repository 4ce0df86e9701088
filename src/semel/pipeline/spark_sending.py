"""Functions on their way to Spark's workers: by value, unless a worker finds them by itself."""

import inspect
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from pyspark import cloudpickle

_pickle: Final[Any] = cloudpickle  # it has no types


def unsendable(function: Callable[..., Any]) -> str | None:
    """Try whether a function can be sent; the complaint if it cannot.

    The file of a graph is no module that a worker could import, so what is defined there goes by
    value.
    """
    module = inspect.getmodule(function)
    if module is not None and not _is_found(module):
        _pickle.register_pickle_by_value(module)
    try:
        _pickle.dumps(function)
    except Exception as error:  # noqa: BLE001 - whatever an object of the user's raises
        return (
            f"its function cannot be sent to Spark's workers: {type(error).__name__}: {error}; make"
            " what it needs inside of it"
        )
    return None


def _is_found(module: ModuleType) -> bool:
    """Whether a worker finds the module by itself: it is part of Python, of semel or a package."""
    name, file = module.__name__, getattr(module, "__file__", None)
    if name == "__main__" or name not in sys.modules:
        return True  # these go by value anyhow
    if name.partition(".")[0] == "semel" or file is None:
        return True
    places = {sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib", "platstdlib")}
    return any(Path(file).resolve().is_relative_to(Path(place).resolve()) for place in places)
