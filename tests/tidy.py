"""Figures about the source that must not get worse: `python -m tests.tidy [ROOT]` prints them.

A count would grow with every new feature, so most limits are on ratios. `tests/unit/test_tidy.py`
compares the figures with their limits.
"""

import ast
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

SOURCE_ROOT = Path(__file__).resolve().parents[1] / "src"
POSITIONAL_MAX = 6
FILE_LINES_LONG = 500
SHORT_WORDS = 4
GENERATED = "# generated from "

_Function = ast.FunctionDef | ast.AsyncFunctionDef
_Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


class Module(NamedTuple):
    """A source file: its dotted name, its text and its syntax tree."""

    name: str
    text: str
    tree: ast.Module

    @property
    def is_package(self) -> bool:
        return self.name.endswith((".__init__", ".__main__"))

    @property
    def line_count(self) -> int:
        return len(self.text.splitlines())

    @property
    def is_generated(self) -> bool:
        return self.text.startswith(GENERATED)


def python_files(root: Path) -> Iterator[Path]:
    """Yield every Python file below root, except in hidden folders such as .venv."""
    for path in sorted(root.rglob("*.py")):
        if not any(part.startswith(".") for part in path.relative_to(root).parts):
            yield path


def load(root: Path) -> list[Module]:
    modules = []
    for path in python_files(root):
        name = ".".join(path.relative_to(root).with_suffix("").parts)
        text = path.read_text(encoding="utf-8")
        modules.append(Module(name, text, ast.parse(text)))
    return modules


def importers(modules: list[Module]) -> dict[str, set[str]]:
    """Return, for each module that is not a package, the modules that import it."""
    names = {module.name for module in modules if not module.is_package}
    imported_by: dict[str, set[str]] = {name: set() for name in names}
    for module in modules:
        for target in _imports(module.tree, names):
            if target != module.name:
                imported_by[target].add(module.name)
    return imported_by


def _imports(tree: ast.Module, names: set[str]) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                target = whole if whole in names else node.module
                if target in names:
                    yield target


def imports_at_start(module: Module, names: set[str]) -> set[str]:
    """Return which of these modules a module imports at its top level."""
    at_start = [node for node in module.tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    return set(_imports(ast.Module([*at_start], []), names))


def one_importer(modules: list[Module]) -> dict[str, str]:
    """Return the modules that exactly one module imports, each with its importer."""
    return {name: next(iter(by)) for name, by in importers(modules).items() if len(by) == 1}


def public_names(modules: list[Module]) -> dict[str, set[str]]:
    """Return the public functions and classes with the modules that define each.

    Generated modules are left out: they define the same names as their source on purpose.
    """
    homes: defaultdict[str, set[str]] = defaultdict(set)
    for module in modules:
        if module.is_generated:
            continue
        for node in module.tree.body:
            if isinstance(node, _Function | ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].add(module.name)
    return homes


def crowded_calls(modules: list[Module]) -> list[str]:
    """Return the calls that pass more than six arguments by position."""
    return [
        f"{module.name}:{node.lineno} {ast.unparse(node.func)} takes {len(node.args)}"
        for module in modules
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Call) and len(node.args) > POSITIONAL_MAX
    ]


def docstrings(modules: list[Module]) -> list[str]:
    found = (
        ast.get_docstring(node)
        for module in modules
        for node in ast.walk(module.tree)
        if isinstance(node, _Documented)
    )
    return [text for text in found if text is not None]


def statement_count(modules: list[Module]) -> int:
    """Count statements without docstrings; unlike lines, a formatter does not change the count."""
    whole = sum(isinstance(node, ast.stmt) for module in modules for node in ast.walk(module.tree))
    return whole - len(docstrings(modules))


def longest_function(modules: list[Module]) -> int:
    return max(
        (node.end_lineno or node.lineno) - node.lineno + 1
        for module in modules
        for node in ast.walk(module.tree)
        if isinstance(node, _Function)
    )


def figures(modules: list[Module]) -> Mapping[str, float]:
    """Return all figures, with and without a limit."""
    lines = [module.line_count for module in modules]
    homes = public_names(modules)
    alone = one_importer(modules)
    shared = [name for name, places in homes.items() if len(places) > 1]
    defined = sum(map(len, homes.values()))
    by_hand = [module for module in modules if not module.is_generated]
    return {
        "files": len(modules),
        "lines": sum(lines),
        "statements": statement_count(modules),
        "statements by hand": statement_count(by_hand),
        "median lines of a file": statistics.median(lines),
        "files over 500 lines": sum(count > FILE_LINES_LONG for count in lines),
        "longest function": longest_function(modules),
        "one-importer modules": len(alone),
        "one-importer modules per 100": 100 * len(alone) / len(modules),
        "names defined twice": len(shared),
        "names defined twice per 1,000": 1000 * len(shared) / defined,
        "calls with more than 6 positional arguments": len(crowded_calls(modules)),
        "docstrings": len(docstrings(modules)),
        "docstrings of at most 4 words": sum(
            len(text.split()) <= SHORT_WORDS for text in docstrings(modules)
        ),
    }


def main() -> None:
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else SOURCE_ROOT
    modules = load(root)
    for name, value in figures(modules).items():
        print(f"{name:<45} {value:>10,.1f}".replace(".0", "  "))
    for name, importer in sorted(one_importer(modules).items()):
        print(f"  {name}, imported by {importer}")


if __name__ == "__main__":
    main()
