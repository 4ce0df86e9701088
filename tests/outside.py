"""Finds the tests that use a real process: a server, a command, a worker, or Spark.

Such a test is called *outside*. It is found without running it. A definition is outside if it uses
one of STARTERS, or another definition or fixture that is outside. Tests in INSIDE are never
outside: they test single modules, or simulate.
"""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[1]
INSIDE: Final = ("tests/unit/", "tests/sim/", "tests/docs/")

# What starts a process, by module and name.
STARTERS: Final = frozenset(
    {
        ("subprocess", "Popen"),
        ("subprocess", "run"),
        ("subprocess", "check_output"),
        ("asyncio", "create_subprocess_exec"),
        ("multiprocessing", "get_context"),
        ("semel", "local"),
        ("semel.client.local", "local"),
        ("semel.client.local", "LocalServer"),
        ("semel.spark", "session"),
        ("semel.spark.runtime.session", "session"),
        ("pyspark.sql", "SparkSession"),
    }
)

Reference = tuple[str, str]  # a module and a name in it; a name is empty for the module itself


class Module(NamedTuple):
    """The top-level definitions of a file with what they use, and what imported names refer to."""

    uses: dict[str, set[Reference]]
    imports: dict[str, Reference]


def is_outside(test: str) -> bool:
    """Return whether a test, such as `tests/spec/test_reads.py::test_a`, uses a real process."""
    path, _, name = test.partition("::")
    if path.startswith(INSIDE) or not (ROOT / path).is_file():
        return False
    module = path.removesuffix(".py").replace("/", ".")
    found = _module(module)
    return found is not None and name in found.uses and _reaches(module, name, set())


def _reaches(module: str, name: str, seen: set[Reference]) -> bool:
    """Return whether a name of a module leads to one of STARTERS."""
    if (module, name) in STARTERS:
        return True
    found = _module(module)
    if found is None or (module, name) in seen:
        return False
    seen.add((module, name))
    if name in found.uses:
        return any(_reaches(*reference, seen) for reference in found.uses[name])
    if name in found.imports:
        return _reaches(*found.imports[name], seen)
    return False


@cache
def _module(name: str) -> Module | None:
    """Return the module with this name, or None if it is not one of ours."""
    if not name.startswith("tests"):
        return None
    path = ROOT / name.replace(".", "/")
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    if not file.is_file():
        return None
    tree = ast.parse(file.read_text(encoding="utf-8"))
    imports = dict(_imports(tree))
    uses: dict[str, set[Reference]] = {}
    automatic = []
    for node in tree.body:
        for one in _names(node):
            uses.setdefault(one, set()).update(_references(name, node, imports, file.parent))
        if isinstance(node, ast.FunctionDef) and "autouse" in ast.dump(node):
            automatic.append(node.name)
    for test, references in uses.items():
        if test.startswith("test_"):
            references.update((name, each) for each in automatic)
    return Module(uses, imports)


def _imports(tree: ast.Module) -> Iterator[tuple[str, Reference]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.asname or alias.name.partition(".")[0], (alias.name, "")
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                yield alias.asname or alias.name, (node.module, alias.name)


def _names(node: ast.stmt) -> Iterator[str]:
    """Yield the names that a top-level statement defines."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        yield from (target.id for target in targets if isinstance(target, ast.Name))


def _references(
    module: str, node: ast.stmt, imports: dict[str, Reference], folder: Path
) -> Iterator[Reference]:
    """Yield what a definition uses: names, attributes of modules, and fixtures."""
    for one in ast.walk(node):
        if isinstance(one, ast.Name):
            yield module, one.id
        elif isinstance(one, ast.Attribute) and isinstance(one.value, ast.Name):
            origin = imports.get(one.value.id)
            if origin is not None:
                yield (f"{origin[0]}.{origin[1]}".rstrip("."), one.attr)
        elif isinstance(one, ast.arg):
            yield module, one.arg
            yield from ((each, one.arg) for each in _conftests(folder))


def _conftests(folder: Path) -> Iterator[str]:
    """Yield the modules whose fixtures a file in this folder can use."""
    while folder != ROOT:
        if (folder / "conftest.py").is_file():
            yield ".".join([*folder.relative_to(ROOT).parts, "conftest"])
        folder = folder.parent
