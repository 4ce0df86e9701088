"""Checks docs/contributing/architecture.md and renames.md against the source.

Both pages name files, functions and classes. A citation is a path in backticks, and the names in
backticks that follow it; a name alone must be defined somewhere. Every checker takes text and
returns a list of errors, so each is also tested with wrong text.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.docs.test_docs import avoided_words, code_of, prose, table_rows

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src"
CODE = SOURCE / "semel"
ARCHITECTURE = ROOT / "docs/contributing/architecture.md"
RENAMES = ROOT / "docs/contributing/renames.md"

CITATION = re.compile(r"`([\w/]+\.py)`((?:(?:,| or)? `[A-Za-z_][\w.]*`(?!/))*)")
NAME = re.compile(r"`([A-Za-z_][\w.]*)`")
# Code of the page that is not a name of the source: directories, a value, a pattern.
OTHER_CODE = frozenset({"src", "tests", "docs", "pyproject.toml", "read_committed", "measure_NAME"})


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


# ---------------------------------------------------------------- names of the source


@cache
def definitions(file: Path) -> frozenset[str]:
    """Return the names that a module defines; members are `Class.member`."""
    return frozenset(_defined(ast.parse(text_of(file)).body))


def _defined(body: list[ast.stmt]) -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
        elif isinstance(node, ast.ClassDef):
            yield node.name
            yield from (f"{node.name}.{member}" for member in _members(node))
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            yield from _targets(node)
        elif isinstance(node, ast.If | ast.Try):
            yield from _defined([*node.body, *node.orelse])


def _members(node: ast.ClassDef) -> Iterator[str]:
    yield from _defined(node.body)
    for inner in ast.walk(node):
        if isinstance(inner, ast.Assign | ast.AnnAssign):
            yield from _attributes(inner)


def _targets(node: ast.Assign | ast.AnnAssign) -> Iterator[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    yield from (target.id for target in targets if isinstance(target, ast.Name))


def _attributes(node: ast.Assign | ast.AnnAssign) -> Iterator[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    for target in targets:
        for part in target.elts if isinstance(target, ast.Tuple) else [target]:
            if isinstance(part, ast.Attribute) and ast.unparse(part.value) == "self":
                yield part.attr


def packages() -> list[str]:
    """Return all packages of semel, such as `machine.txn`."""
    folders = sorted(path.parent.relative_to(CODE) for path in CODE.rglob("*/__init__.py"))
    return [".".join(folder.parts) for folder in folders]


def module_file(dotted: str) -> Path | None:
    """Return the file of a module or package. Names in semel have no `semel.` prefix."""
    base = SOURCE if dotted.partition(".")[0] == "semel_bench" else CODE
    path = base.joinpath(*dotted.split("."))
    found = [path / "__init__.py", path.with_name(f"{path.name}.py")]
    return next((file for file in found if file.exists()), None)


def is_defined(dotted: str) -> bool:
    """Return whether `module.name` or `module.Class.member` exists."""
    parts = dotted.split(".")
    for end in range(len(parts) - 1, 0, -1):
        file = module_file(".".join(parts[:end]))
        if file is not None:
            return ".".join(parts[end:]) in definitions(file)
    return False


# ---------------------------------------------------------------- architecture.md


def cited_file(path: str) -> Path:
    is_from_root = path.partition("/")[0] in {"src", "tests"}
    return (ROOT if is_from_root else CODE) / path


def wrong_citations(text: str) -> list[str]:
    """Return files that do not exist, and names that the preceding file does not define."""
    complaints = []
    for path, following in CITATION.findall(prose(text)):
        file = cited_file(path)
        if not file.exists():
            complaints.append(f"no file {path}")
            continue
        names = [name for name in NAME.findall(following) if not name.endswith(".py")]
        complaints += [f"no {name} in {path}" for name in names if name not in definitions(file)]
    return complaints


@cache
def all_names() -> frozenset[str]:
    files = [*CODE.rglob("*.py"), *SOURCE.joinpath("semel_bench").rglob("*.py")]
    return frozenset(name for file in files for name in definitions(file))


def undefined_names(text: str) -> list[str]:
    """Return names without a file that are not defined anywhere."""
    rest = CITATION.sub("", prose(text))
    known = {*all_names(), *packages(), *OTHER_CODE}
    return [name for name in NAME.findall(rest) if name not in known]


def missing_packages(text: str) -> list[str]:
    """Return the packages without a paragraph that has their name in bold."""
    return [name for name in packages() if f"**`{name}`**" not in text]


def test_every_file_and_name_of_the_architecture_exists() -> None:
    text = text_of(ARCHITECTURE)
    assert len(CITATION.findall(text)) > 200
    assert wrong_citations(text) == []
    assert undefined_names(text) == []


def test_every_package_is_described() -> None:
    found = packages()
    assert {"model", "machine.txn", "client.sync", "testing"} <= set(found)
    assert missing_packages(text_of(ARCHITECTURE)) == []


def test_a_wrong_file_or_name_is_reported() -> None:
    right = "`broker/broker.py` `Broker.submit`, `Reply`; `tests/sim/mutants.py` `MUTANTS`"
    assert wrong_citations(right) == []
    assert wrong_citations("`broker/brokers.py` `Broker`") == ["no file broker/brokers.py"]
    assert wrong_citations("`src/semel_bench/none.py`") == ["no file src/semel_bench/none.py"]
    assert wrong_citations(right.replace("submit", "send")) == [
        "no Broker.send in broker/broker.py"
    ]
    assert wrong_citations("| a | `machine/apply.py` `apply` or `decide` |") == [
        "no decide in machine/apply.py"
    ]
    assert wrong_citations("`cli/main.py` `_COMMANDS`, `Engine`") == ["no Engine in cli/main.py"]


def test_a_name_that_nothing_defines_is_reported() -> None:
    assert undefined_names("`Effects`, `broker/broker.py` `Broker.submit`, `machine.txn`") == []
    assert undefined_names("the `News` of a `Crowd`, `make test`") == ["News", "Crowd"]


def test_a_package_without_a_description_is_reported() -> None:
    text = "".join(f"**`{name}`** " for name in packages())
    assert missing_packages(text) == []
    assert missing_packages(text.replace("**`machine.txn`**", "`machine.txn`")) == ["machine.txn"]


# ---------------------------------------------------------------- renames.md


def section(text: str, title: str) -> str:
    _, found, rest = text.partition(f"\n## {title}\n")
    assert found, f"there is no section {title}"
    return rest.partition("\n## ")[0]


def rename_rows(text: str) -> list[tuple[str, str]]:
    """Return the rows of a section: the old name, and the cell with the new name."""
    rows = [(code_of(row[0]), row[1]) for row in table_rows(text) if len(row) == 2]
    return [(was, now) for was, now in rows if was]


def wrong_modules(text: str) -> list[str]:
    """Return new modules that do not exist, and old modules that still exist."""
    complaints = []
    for was, now in rename_rows(text):
        modules = NAME.findall(now)
        complaints += [f"no module {name}" for name in modules if module_file(name) is None]
        file = module_file(was)
        if not modules or (file is not None and file.name != "__init__.py"):
            complaints.append(f"{was} has not moved")
    return complaints


def wrong_names(text: str) -> list[str]:
    """Return new names that do not exist, and old names that still exist."""
    complaints = []
    for was, now in rename_rows(text):
        names = NAME.findall(now)
        known = [name for name in names if is_defined(name) or module_file(name) is not None]
        complaints += [f"no {name}" for name in names if name not in known]
        if not names and not now.startswith("removed"):
            complaints.append(f"nothing replaces {was}")
        if is_defined(was):
            complaints.append(f"{was} is still there")
    return complaints


def doubled(text: str) -> list[str]:
    names = [was for was, _ in rename_rows(text)]
    return sorted({was for was in names if names.count(was) > 1})


@pytest.mark.parametrize("title", ["Modules", "Names", "Members"])
def test_every_old_name_has_one_row(title: str) -> None:
    text = section(text_of(RENAMES), title)
    assert len(rename_rows(text)) > 40
    assert doubled(text) == []


def test_every_module_that_is_named_as_the_new_one_exists() -> None:
    assert wrong_modules(section(text_of(RENAMES), "Modules")) == []


@pytest.mark.parametrize("title", ["Names", "Members"])
def test_every_name_that_is_given_as_the_new_one_exists(title: str) -> None:
    assert wrong_names(section(text_of(RENAMES), title)) == []


def test_a_wrong_row_of_the_renames_is_reported() -> None:
    good = "| `journal.memory` | `journal.txn_history`, `semel_bench.command` |\n"
    assert wrong_modules(good) == []
    assert wrong_modules(good.replace("txn_history", "history")) == ["no module journal.history"]
    assert wrong_modules("| `broker.broker` | `broker.durable_view` |") == [
        "broker.broker has not moved"
    ]
    good = "| `machine.rows.ProducerRow.zero` | `machine.rows.ProducerRow.first_receipt` |\n"
    assert wrong_names(good) == []
    assert wrong_names(good.replace("first_receipt", "first")) == [
        "no machine.rows.ProducerRow.first"
    ]
    assert wrong_names("| `broker.broker.Broker` | `broker.durable_view.BrokerReader` |") == [
        "broker.broker.Broker is still there"
    ]
    assert wrong_names("| `a.b` | gone |") == ["nothing replaces a.b"]
    assert wrong_names("| `a.b` | removed; the module is a script |") == []
    assert doubled("| `a.b` | x |\n| `a.b` | y |\n| `a.c` | z |\n") == ["a.b"]


# ---------------------------------------------------------------- both pages


@pytest.mark.parametrize("page", [ARCHITECTURE, RENAMES], ids=lambda page: page.name)
def test_the_pages_are_in_the_words_of_the_glossary(page: Path) -> None:
    assert avoided_words(text_of(page)) == []
