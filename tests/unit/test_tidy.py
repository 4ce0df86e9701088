"""Checks of the source: sizes, names, leftovers, and the modules that an import loads.

Every checker takes source text and returns complaints, and is also tested with bad text.
"""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path, PurePath

import pytest

from tests import tidy
from tests.tidy import SOURCE_ROOT, python_files

FUNCTION_LINES_MAX = 60  # aim under 25
FILE_LINES_MAX = 500  # aim at 150 to 400

VAGUE_MODULES = frozenset({"utils", "helpers", "common", "manager", "base"})
VAGUE_CLASS_ENDINGS = ("Manager", "Handler", "Helper", "Impl")
LEFTOVERS = ("TODO!", "FIXME")
MAY_PRINT = (PurePath("semel/cli"), PurePath("semel/testing"))
HEAVY = ("pyspark", "semel.server", "semel.broker")

Checker = Callable[[PurePath, str], list[str]]


def long_functions(path: PurePath, source: str) -> list[str]:
    complaints = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > FUNCTION_LINES_MAX:
                complaints.append(f"{path}:{node.lineno} {node.name} has {lines} lines")
    return complaints


def long_file(path: PurePath, source: str) -> list[str]:
    lines = len(source.splitlines())
    return [f"{path} has {lines} lines"] if lines > FILE_LINES_MAX else []


def vague_module(path: PurePath, source: str) -> list[str]:
    del source
    vague = [part for part in path.with_suffix("").parts if part.strip("_") in VAGUE_MODULES]
    return [f"{path} is named {name!r}, which says nothing" for name in vague]


def vague_classes(path: PurePath, source: str) -> list[str]:
    return [
        f"{path}:{node.lineno} class {node.name} is named for no concept"
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ClassDef) and node.name.endswith(VAGUE_CLASS_ENDINGS)
    ]


def leftovers(path: PurePath, source: str) -> list[str]:
    return [
        f"{path}:{number} {word}"
        for number, line in enumerate(source.splitlines(), start=1)
        for word in LEFTOVERS
        if word in line
    ]


def stray_prints(path: PurePath, source: str) -> list[str]:
    if any(path.is_relative_to(folder) for folder in MAY_PRINT):
        return []
    return [
        f"{path}:{node.lineno} print("
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "print"
    ]


CHECKERS: tuple[Checker, ...] = (
    long_functions,
    long_file,
    vague_module,
    vague_classes,
    leftovers,
    stray_prints,
)


@pytest.mark.parametrize("check", CHECKERS, ids=lambda check: check.__name__)
def test_the_source_is_tidy(check: Checker) -> None:
    complaints = [
        complaint
        for path in python_files(SOURCE_ROOT)
        for complaint in check(path.relative_to(SOURCE_ROOT), path.read_text(encoding="utf-8"))
    ]
    assert complaints == []


def test_the_walk_finds_the_source() -> None:
    found = {path.relative_to(SOURCE_ROOT).as_posix() for path in python_files(SOURCE_ROOT)}
    assert {"semel/__init__.py", "pyspark_semel/__init__.py", "semel_bench/__init__.py"} <= found


def test_the_walk_leaves_hidden_folders_out(tmp_path: Path) -> None:
    for name in ("kept/seen.py", ".venv/lib/unseen.py", "kept/.cache/unseen.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert list(python_files(tmp_path)) == [tmp_path / "kept/seen.py"]


# ---------------------------------------------------------------- the checkers can fail

MODULE = PurePath("semel/model/offsets.py")


def a_function(lines: int, keyword: str = "def") -> str:
    return f"{keyword} f():\n" + "    pass\n" * (lines - 1)


@pytest.mark.parametrize("keyword", ["def", "async def"])
def test_a_function_over_the_limit_is_noticed(keyword: str) -> None:
    assert long_functions(MODULE, a_function(FUNCTION_LINES_MAX, keyword)) == []
    assert len(long_functions(MODULE, a_function(FUNCTION_LINES_MAX + 1, keyword))) == 1


def test_a_long_method_inside_a_class_is_noticed() -> None:
    method = "".join(f"    {line}\n" for line in a_function(FUNCTION_LINES_MAX + 1).splitlines())
    assert len(long_functions(MODULE, "class Stream:\n" + method)) == 1


def test_a_file_over_the_limit_is_noticed() -> None:
    assert long_file(MODULE, "x = 1\n" * FILE_LINES_MAX) == []
    assert len(long_file(MODULE, "x = 1\n" * (FILE_LINES_MAX + 1))) == 1


@pytest.mark.parametrize("name", sorted(VAGUE_MODULES))
def test_a_vague_module_or_package_is_noticed(name: str) -> None:
    for path in (f"semel/{name}.py", f"semel/wire/_{name}.py", f"semel/{name}/offsets.py"):
        assert len(vague_module(PurePath(path), "")) == 1
    assert vague_module(PurePath(f"semel/{name}_of_offsets.py"), "") == []


@pytest.mark.parametrize("ending", VAGUE_CLASS_ENDINGS)
def test_a_vague_class_is_noticed(ending: str) -> None:
    assert len(vague_classes(MODULE, f"class Stream{ending}: ...\n")) == 1
    assert vague_classes(MODULE, f"class {ending}Stream: ...\n") == []


@pytest.mark.parametrize("word", LEFTOVERS)
def test_a_leftover_is_noticed_with_its_line(word: str) -> None:
    assert leftovers(MODULE, f"x = 1\ny = 2  # {word} later\n") == [f"{MODULE}:2 {word}"]


def test_a_print_is_noticed_outside_the_rooms_that_may_speak() -> None:
    assert stray_prints(MODULE, "print('here')\n") == [f"{MODULE}:1 print("]
    assert stray_prints(PurePath("semel/cli/main.py"), "print('here')\n") == []
    assert stray_prints(PurePath("semel/testing/report.py"), "print('here')\n") == []
    assert stray_prints(MODULE, "fingerprint('print(')\n") == []


# ---------------------------------------------------------------- figures that must not get worse

# When a figure improves, its limit is changed to the new value. `python -m tests.tidy` prints all
# figures. The comments give the values before the source was cleaned up. A limit in AT_MOST must
# never exceed them.
AT_MOST = {
    "one-importer modules per 100": 14.5,  # 28.3
    "names defined twice per 1,000": 30.5,  # 87.9
    "calls with more than 6 positional arguments": 16,  # 52
    "files over 500 lines": 0,  # 2
    "docstrings of at most 4 words": 30,  # 271
}
MEDIAN_LINES = (130, 250)  # 106

# Modules that only one module imports, and why each is not a part of its importer. `layer`: the
# importer is in another package. `lazy`: it is imported when it is used, because it loads something
# heavy. `public`: a package's `__init__` exports its names. `size`: together they would have more
# than 400 lines. A test checks each reason.
ONE_IMPORTER: dict[str, str] = {
    "semel.broker.endings": "size",
    "semel.broker.gap_hold": "layer",
    "semel.broker.lag": "layer",
    "semel.broker.surveys": "size",
    "semel.cli.append_lines": "size",
    "semel.cli.demo.run": "size",
    "semel.cli.serve_reload": "size",
    "semel.cli.space": "size",
    "semel.cli.streams": "size",
    "semel.client.aio.catalog": "size",
    "semel.client.aio.processing": "size",
    "semel.client.aio.transaction": "size",
    "semel.client.append_lanes": "size",
    "semel.client.producer.identity": "size",
    "semel.client.producer.pump": "size",
    "semel.client.subscription_errors": "size",
    "semel.client.suspects": "size",
    "semel.client.sync.catalog": "size",
    "semel.client.sync.processing": "size",
    "semel.client.sync.subscriptions": "size",
    "semel.errors": "public",
    "semel.journal.lmdb_transactions": "size",
    "semel.journal.verify.segments": "public",
    "semel.journal.verify.subscriptions": "size",
    "semel.journal.verify.tables": "size",
    "semel.machine.assignment": "size",
    "semel.machine.subscription_needs": "size",
    "semel.machine.txn.apply_open": "size",
    "semel.pipeline.local.engine": "size",
    "semel.pipeline.local.step": "size",
    "semel.pipeline.spark.frames": "size",
    "semel.server.event_stream": "size",
    "semel.server.groups": "size",
    "semel.server.producers": "size",
    "semel.server.request_body": "size",
    "semel.server.subscriptions": "size",
    "semel.server.tls_transport": "size",
    "semel.server.tokens": "size",
    "semel.server.topics": "size",
    "semel.server.webhook_sender": "size",
    "semel.spark.sink.commit": "size",
    "semel.spark.source.catalog": "size",
    "semel.spark.source.decode": "size",
    "semel.spark.source.readers": "lazy",
    "semel.testing.check": "public",
    "semel.testing.disk": "public",
    "semel.testing.fault_session": "size",
    "semel.testing.store": "public",
    "semel.testing.txn.check": "public",
    "semel.testing.txn.graph": "size",
    "semel.testing.txn.positions": "size",
    "semel.webhooks.receiver": "public",
    "semel.wire.commits": "layer",
    "semel.wire.members": "layer",
    "semel.wire.producers": "layer",
    "semel.wire.refusal_table_topics": "size",
    "semel.wire.refusal_table_txn": "size",
    "semel_bench.command": "layer",
    "semel_bench.spark_queries": "lazy",
}
LINES_TOGETHER_MAX = 400

MODULES = tidy.load(SOURCE_ROOT)
FIGURES = tidy.figures(MODULES)


@pytest.mark.parametrize("name", AT_MOST)
def test_a_figure_does_not_get_worse(name: str) -> None:
    assert round(FIGURES[name], 1) <= AT_MOST[name]


def test_a_file_of_middling_size_holds_one_concept() -> None:
    low, high = MEDIAN_LINES
    assert low <= FIGURES["median lines of a file"] <= high


def reasons_of(modules: list[tidy.Module], name: str) -> set[str]:
    """Return every reason that holds for keeping a module apart from its only importer."""
    by_name = {module.name: module for module in modules}
    module, importer = by_name[name], by_name[tidy.one_importer(modules)[name]]
    holds = {
        "layer": package_of(name) != package_of(importer.name),
        "lazy": name not in tidy.imports_at_start(importer, {name}),
        "public": importer.name.endswith(".__init__"),
        "size": module.line_count + importer.line_count > LINES_TOGETHER_MAX,
    }
    return {reason for reason, is_true in holds.items() if is_true}


def package_of(name: str) -> str:
    """Return the package of a module, such as `semel.broker` or `semel_bench`."""
    parts = name.split(".")
    return ".".join(parts[:2]) if parts[0] == "semel" else parts[0]


def test_every_module_with_one_importer_has_a_reason() -> None:
    assert set(tidy.one_importer(MODULES)) == set(ONE_IMPORTER)


@pytest.mark.parametrize("name", ONE_IMPORTER)
def test_the_reason_of_a_module_with_one_importer_is_true(name: str) -> None:
    assert ONE_IMPORTER[name] in reasons_of(MODULES, name)


def test_a_reason_that_is_not_true_is_noticed(tmp_path: Path) -> None:
    modules = written(
        tmp_path,
        {
            "semel/a/__init__.py": "from semel.a.public import f",
            "semel/a/public.py": "def f(): ...",
            "semel/a/short.py": "x = 1",
            "semel/a/long.py": "x = 1\n" * LINES_TOGETHER_MAX,
            "semel/a/heavy.py": "import pyspark",
            "semel/a/importer.py": (
                "import semel.a.short, semel.a.long\ndef f():\n    import semel.a.heavy"
            ),
            "semel/b/other.py": "import semel.a.importer",
        },
    )
    assert reasons_of(modules, "semel.a.public") == {"public"}
    assert reasons_of(modules, "semel.a.short") == set()
    assert reasons_of(modules, "semel.a.long") == {"size"}
    assert reasons_of(modules, "semel.a.heavy") == {"lazy"}
    assert reasons_of(modules, "semel.a.importer") == {"layer"}


def written(tmp_path: Path, files: dict[str, str]) -> list[tidy.Module]:
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return tidy.load(tmp_path)


def test_importers_are_counted_however_they_import(tmp_path: Path) -> None:
    modules = written(
        tmp_path,
        {
            "p/__init__.py": "",
            "p/a.py": "def f(): ...",
            "p/b.py": "import p.a",
            "p/c.py": "def g():\n    from p import a, b",
            "p/d.py": "from p.c import g",
        },
    )
    assert tidy.importers(modules)["p.a"] == {"p.b", "p.c"}
    assert tidy.one_importer(modules) == {"p.b": "p.c", "p.c": "p.d"}


def test_names_calls_and_statements_are_counted(tmp_path: Path) -> None:
    modules = written(
        tmp_path,
        {
            "a.py": '"""A module."""\n\ndef f():\n    """Do it."""\n    g(1, 2, 3, 4, 5, 6, 7)\n',
            "b.py": "class f: ...\ndef _g(): ...\ng(1, 2, 3, 4, 5, 6)\n",
            "c.py": "# generated from a\ndef f(): ...\ndef only(): ...\n",
        },
    )
    measured = tidy.figures(modules)
    assert measured["names defined twice"] == 1
    assert measured["calls with more than 6 positional arguments"] == 1
    assert measured["statements"] == 2 + 5 + 4
    assert measured["statements by hand"] == 2 + 5
    assert measured["docstrings of at most 4 words"] == 2


# ---------------------------------------------------------------- asserts


def asserts_raise(optimize: int = -1) -> bool:
    """Return whether a false assert raises. -1 is the level of this interpreter."""
    try:
        exec(compile("assert False", "<probe>", "exec", optimize=optimize))
    except AssertionError:
        return True
    return False


def test_asserts_are_enabled() -> None:
    assert asserts_raise(), "run without -O: asserts are part of the product"


def test_the_probe_notices_disabled_asserts() -> None:
    assert not asserts_raise(optimize=1)


# ---------------------------------------------------------------- imports load little


def heavy_modules(loaded: Iterable[str]) -> list[str]:
    return [name for name in loaded if any(f"{name}.".startswith(f"{h}.") for h in HEAVY)]


def modules_loaded_by(statement: str) -> list[str]:
    program = f"{statement}\nimport sys\nprint(*sys.modules, sep='\\n')"
    run = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=60
    )
    return run.stdout.split()


def test_importing_semel_loads_nothing_heavy() -> None:
    loaded = modules_loaded_by("import semel")
    assert "semel" in loaded
    assert heavy_modules(loaded) == []


def test_a_heavy_import_is_noticed() -> None:
    loaded = ["os", "pyspark.sql", "semel", "semel.broker", "semel.brokerage", "semel.server.x"]
    assert heavy_modules(loaded) == ["pyspark.sql", "semel.broker", "semel.server.x"]


# ---- dependencies --------------------------------------------------------------------------------

# A new version of one of these could change the bytes on disk, or how they get there.
BOUNDED = ("crc32c", "lmdb", "msgspec", "uvloop")


def unbounded(requirements: Iterable[str]) -> list[str]:
    """Return the requirements of bounded packages without the next incompatible version."""
    complaints = []
    for requirement in requirements:
        name, low, high = re.fullmatch(
            r"([a-z0-9-]+)>=([\d.]+)(?:,<([\d.]+))?", requirement
        ).groups()  # type: ignore[union-attr]
        if name in BOUNDED:
            # Below version 1, a new minor version may be incompatible.
            wanted = 2 if low.startswith("0.") else 1
            if high is None or len(high.split(".")) != wanted:
                complaints.append(requirement)
    return complaints


def requirements() -> list[str]:
    project = tomllib.loads((SOURCE_ROOT.parent / "pyproject.toml").read_text(encoding="utf-8"))
    found: list[str] = project["project"]["dependencies"]
    return found


def test_what_could_change_the_bytes_on_disk_has_an_upper_bound() -> None:
    found = requirements()
    assert unbounded(found) == []
    assert all(any(each.startswith(f"{name}>") for each in found) for name in BOUNDED)


@pytest.mark.parametrize("bad", ["lmdb>=1.7", "msgspec>=0.20,<1", "lmdb>=1.7,<1.8"])
def test_a_missing_or_wrong_upper_bound_is_noticed(bad: str) -> None:
    assert unbounded(["click>=8.1", bad]) == [bad]
