"""Runs the examples of the pages and compares the pages with the source.

A fence has one of these info strings: `python` is run, `output` is what the Python block before it
prints, `text` is not run. A Python block that begins with `# name.py` can be imported by later
blocks of its page; a block that uses Spark is run by tests/spark/test_docs.py. In `sh` and
`console` the commands of semel are run. `make` and `python -m` would run for minutes, so only the
names in these commands are checked. Every checker takes text and returns errors, so each is also
tested with bad text.
"""

import importlib
import inspect
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from msgspec.structs import asdict

from semel.broker import broker
from semel.cli import output
from semel.journal import checkpoint, frame
from semel.journal.frame import KINDS, SegmentStarted
from semel.machine import events, rows
from semel.machine.events import ProducerStamp, Section, StreamAppended, StreamCreated
from semel.machine.rows import NewStream
from semel.machine.shared_events import Assigned
from semel.model import errors, limits, outcomes
from semel.model.checksum import digest_of
from semel.model.commands import (
    PositionResult,
    SnapshotRange,
    StreamResult,
    TxnOutcome,
    TxnResult,
)
from semel.model.outcomes import Outcome
from semel.model.rights import Scope
from semel.server.limits_http import HttpLimits

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
FORMAT = ROOT / "docs/reference/format.md"
ERRORS = ROOT / "docs/reference/errors.md"
LIMITS = ROOT / "docs/reference/limits.md"
CLI = ROOT / "docs/reference/cli.md"
PIPELINES = ROOT / "docs/tutorial/pipelines.md"
PAGES = [README, ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
INFO_STRINGS = frozenset({"python", "output", "sh", "console", "text"})
RUN_SECONDS_MAX = 100


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


# ---------------------------------------------------------------- reading a page


class Fence(NamedTuple):
    info: str
    body: str
    line: int


def fences(text: str) -> list[Fence]:
    found = []
    opened: tuple[str, int] | None = None
    body: list[str] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if opened is None and line.startswith("```"):
            opened, body = (line[3:].strip(), number), []
        elif opened is not None and line == "```":
            found.append(Fence(opened[0], "".join(f"{part}\n" for part in body), opened[1]))
            opened = None
        else:
            body.append(line)
    if opened is not None:
        raise ValueError(f"the fence of line {opened[1]} is never closed")
    return found


def prose(text: str) -> str:
    """Return a page without its fences."""
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


def table_rows(text: str) -> Iterator[list[str]]:
    """Yield the cells of every table row of a page, including headers and separators."""
    for line in prose(text).splitlines():
        if line.startswith("|") and line.endswith("|"):
            yield [cell.strip() for cell in line.strip("|").split(" | ")]


def code_of(cell: str) -> str:
    """Return the code of a cell; empty if the cell has other text than code."""
    found = re.fullmatch(r"`([^`]*)`", cell)
    return found[1] if found else ""


# ---------------------------------------------------------------- running a page


class Example(NamedTuple):
    page: Path
    fence: Fence
    expected: str | None
    modules: dict[str, str] = {}  # noqa: RUF012 - never changed; earlier blocks by file name


def examples(page: Path, text: str) -> Iterator[Example]:
    found = fences(text)
    modules: dict[str, str] = {}
    for index, fence in enumerate(found):
        if fence.info == "python":
            following = found[index + 1] if index + 1 < len(found) else None
            is_output = following is not None and following.info == "output"
            expected = following.body if following and is_output else None
            yield Example(page, fence, expected, dict(modules))
            if name := re.match(r"# (\w+\.py)\n", fence.body):
                modules[name[1]] = fence.body


def python_complaint(example: Example, directory: Path) -> str | None:
    script = directory / "example.py"
    for name, body in {**example.modules, script.name: example.fence.body}.items():
        (directory / name).write_text(body, encoding="utf-8")
    run = subprocess.run(
        [sys.executable, "-W", "error", script.name],
        cwd=directory,
        env={
            **os.environ,
            "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}:{directory}",
            "PYTHONSAFEPATH": "1",
        },
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS_MAX,
        check=False,
    )
    if run.returncode:
        return f"ended with {run.returncode}: {run.stderr}"
    if example.expected is not None and run.stdout != example.expected:
        return f"printed {run.stdout!r}, not {example.expected!r}"
    return None


def commands(text: str) -> Iterator[tuple[int, str]]:
    """Yield the command lines of shell blocks; in a console block the lines after a `$`."""
    for fence in fences(text):
        for number, line in enumerate(fence.body.splitlines(), start=fence.line + 1):
            if fence.info == "sh" and line.strip():
                yield number, line.strip()
            elif fence.info == "console" and line.startswith("$ "):
                yield number, line[2:].strip()


def command_complaint(line: str, directory: Path) -> str | None:
    """Run a command of semel; for others check that the names in the command exist."""
    words = shlex.split(line)
    while words and re.fullmatch(r"SEMEL_\w+=\d+", words[0]):
        variable = words.pop(0).partition("=")[0]
        if not mentions(ROOT / "tests", variable):
            return f"nothing reads {variable}"
    if words[0] == "semel":
        return semel_complaint(words[1:], directory)
    if words[0] == "make":
        return make_complaint(words[1:])
    if words[:2] == [".venv/bin/python", "-m"]:
        return module_complaint(words[2], words[3:])
    return "only semel, make and python -m may stand in a shell block"


def semel_complaint(words: list[str], directory: Path) -> str | None:
    run = subprocess.run(
        [sys.executable, "-c", "from semel.cli.main import main; main()", *words],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS_MAX,
        check=False,
    )
    return f"ended with {run.returncode}: {run.stderr}" if run.returncode else None


def make_complaint(words: list[str]) -> str | None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for word in words:
        name, equals, _ = word.partition("=")
        pattern = rf"^{re.escape(name)}\s*\?=" if equals else rf"^{re.escape(name)}:"
        if not re.search(pattern, makefile, flags=re.MULTILINE):
            return f"the Makefile has no {name}"
    return None


def module_complaint(module: str, arguments: list[str]) -> str | None:
    source = ""
    if module != "pytest":
        path = ROOT.joinpath(*module.split("."))
        main = path / "__main__.py" if path.is_dir() else path.with_suffix(".py")
        if not main.exists():
            return f"there is no module {module}"
        source = main.read_text(encoding="utf-8")
    for argument in arguments:
        if argument.startswith("--") and f'"{argument}"' not in source:
            return f"{module} does not know {argument}"
        if "/" in argument and not (ROOT / argument).exists():
            return f"there is no {argument}"
    return None


def mentions(folder: Path, word: str) -> bool:
    return any(
        word in path.read_text(encoding="utf-8")
        for path in sorted(folder.rglob("*.py"))
        if path != Path(__file__).resolve()
    )


def uses_spark(example: Example) -> bool:
    """Return whether a block uses Spark; tests/spark runs such blocks in its session."""
    return re.search(r"\b(pyspark|semel\.spark)\b", example.fence.body) is not None


ALL = [one for page in PAGES for one in examples(page, page.read_text(encoding="utf-8"))]
EXAMPLES = [one for one in ALL if not uses_spark(one)]


@pytest.mark.parametrize(
    "example", EXAMPLES, ids=lambda one: f"{name_of(one.page)}:{one.fence.line}"
)
def test_every_python_block_runs(example: Example, tmp_path: Path) -> None:
    assert python_complaint(example, tmp_path) is None


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_command_works(page: Path, tmp_path: Path) -> None:
    complaints = []
    for number, line in commands(page.read_text(encoding="utf-8")):
        complaint = command_complaint(line, tmp_path)
        if complaint is not None:
            complaints.append(f"{name_of(page)}:{number} {line}: {complaint}")
    assert complaints == []


def stray_fences(text: str) -> list[str]:
    found = fences(text)
    complaints = [
        f"line {fence.line}: a fence of kind {fence.info!r}"
        for fence in found
        if fence.info not in INFO_STRINGS
    ]
    for before, fence in zip([None, *found], found, strict=False):
        if fence.info == "output" and (before is None or before.info != "python"):
            complaints.append(f"line {fence.line}: nothing prints this output")
    return complaints


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_fence_says_what_it_is(page: Path) -> None:
    assert stray_fences(page.read_text(encoding="utf-8")) == []


def test_the_pages_have_examples_at_all() -> None:
    shown = {name_of(example.page) for example in EXAMPLES}
    assert {"README.md", "docs/reference/format.md", "docs/explanation/testing.md"} <= shown
    lines = [line for _, line in commands(README.read_text(encoding="utf-8"))]
    assert {"make demo", "make test"} <= set(lines)
    assert any(line.startswith("semel demo") for line in lines)


# ---------------------------------------------------------------- words of a page

# Pages that use the words of docs/contributing/glossary.md. Do not remove a page from this list.
PLAIN = [
    README,
    ROOT / "CHANGELOG.md",
    ROOT / "docs/README.md",
    ROOT / "docs/contributing/README.md",
    ROOT / "docs/contributing/changing-the-journal.md",
    ROOT / "docs/contributing/connections.md",
    CLI,
    LIMITS,
    ERRORS,
    ROOT / "docs/reference/access.md",
    ROOT / "docs/reference/groups.md",
    ROOT / "docs/reference/http.md",
    ROOT / "docs/reference/pipelines.md",
    ROOT / "docs/reference/python.md",
    ROOT / "docs/reference/spark.md",
    ROOT / "docs/reference/transactions.md",
    ROOT / "docs/reference/promises.md",
    ROOT / "docs/reference/topics.md",
    ROOT / "docs/reference/machine.md",
    FORMAT,
    ROOT / "docs/reference/seeds.md",
    *sorted((ROOT / "docs/tutorial").glob("*.md")),
    *sorted((ROOT / "docs/how-to").glob("*.md")),
    *sorted((ROOT / "docs/explanation").glob("*.md")),
    *sorted((ROOT / "docs/adr").glob("*.md")),
]
AVOIDED = re.compile(
    r"\b(behind|tells?|told|stands?|anew|crowd|stranger|(?:im)?patient"
    r"|so many|wanted is|leave away)\b",
    flags=re.IGNORECASE,
)


def avoided_words(text: str) -> list[str]:
    """Return the words to avoid of the glossary that a page uses outside of code and links."""
    own = re.sub(r"`[^`\n]*`|\]\([^)]*\)", "", prose(text))
    return AVOIDED.findall(own)


@pytest.mark.parametrize("page", PLAIN, ids=name_of)
def test_a_plain_page_has_none_of_the_words_to_avoid(page: Path) -> None:
    assert avoided_words(page.read_text(encoding="utf-8")) == []


def test_a_word_to_avoid_is_noticed() -> None:
    page = "`behind` [a](adr/0015-steps-are-told.md)\n```text\ntold anew\n```\n"
    assert avoided_words(page) == []
    assert avoided_words("# 15. It is told\nIt is told") == ["told", "told"]
    assert avoided_words(page + "It stands behind\nso many others.") == [
        "stands",
        "behind",
        "so many",
    ]


# ---------------------------------------------------------------- links and citations


def anchors(text: str) -> set[str]:
    """Return the anchors that GitHub makes from the headings of a page."""
    headings = re.findall(r"^#+ +(.*)$", prose(text), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(page: Path, text: str) -> list[str]:
    complaints = []
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(text)):
        if re.match(r"https://", target):
            continue
        file, _, anchor = target.partition("#")
        path = (page.parent / file) if file else page
        if not path.exists():
            complaints.append(f"no file {target}")
        elif anchor:
            there = text if path == page else path.read_text(encoding="utf-8")
            if anchor not in anchors(there):
                complaints.append(f"no heading {target}")
    return complaints


def known_names() -> set[str]:
    """Return the names of all functions of the tests, including seeded bugs."""
    return {
        name
        for path in sorted((ROOT / "tests").rglob("*.py"))
        for name in re.findall(r"def (\w+)\(", path.read_text(encoding="utf-8"))
    }


def stale_citations(text: str, known: set[str]) -> list[str]:
    """Return paths and tests in backticks that do not exist."""
    complaints = []
    for cited in re.findall(r"`([^`\n]+)`", prose(text)):
        if re.fullmatch(r"(src|tests|docs|bench|examples)/[\w./-]+", cited):
            if not (ROOT / cited).exists():
                complaints.append(f"no file {cited}")
        elif re.fullmatch(r"test_\w+", cited) and cited not in known:
            complaints.append(f"no test {cited}")
    return complaints


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_leads_somewhere(page: Path) -> None:
    assert broken_links(page, page.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_test_and_file_cited_is_there(page: Path) -> None:
    assert stale_citations(page.read_text(encoding="utf-8"), known_names()) == []


def test_every_seeded_bug_backs_a_promise_and_every_promise_is_listed() -> None:
    text = (ROOT / "docs/reference/promises.md").read_text(encoding="utf-8")
    mutants = importlib.import_module("tests.sim.mutants").MUTANTS
    assert [m.__name__ for m in mutants if f"`{m.__name__}`" not in text] == []
    numbers = re.findall(r"^## ([PC]\d+)\. ", text, flags=re.MULTILINE)
    assert numbers == [f"P{n}" for n in range(1, 22)] + [f"C{n}" for n in range(1, 9)]


def test_every_page_can_be_reached_from_the_readme() -> None:
    seen: set[Path] = set()
    queue = [README]
    while queue:
        page = queue.pop()
        if page in seen:
            continue
        seen.add(page)
        for target in re.findall(r"\]\(([^)#\s]+)", prose(page.read_text(encoding="utf-8"))):
            path = (page.parent / target).resolve()
            queue.extend(sorted(path.glob("*.md")) if path.is_dir() else [])
            queue.extend([path] if path.suffix == ".md" and path.exists() else [])
    assert [name_of(page) for page in PAGES if page not in seen] == []


# ---------------------------------------------------------------- the tables against the source


def outcome_types(root: type[Outcome] = Outcome) -> Iterator[type[Outcome]]:
    """Yield all outcomes except the two that only group others."""
    for kind in root.__subclasses__():
        if kind is not outcomes.Refusal and kind.__module__.startswith("semel."):
            yield kind
        yield from outcome_types(kind)


def wrong_outcomes(text: str, kinds: Iterable[type[Outcome]]) -> list[str]:
    listed = {(code_of(row[0]), code_of(row[1])) for row in table_rows(text) if len(row) > 1}
    wanted = {(kind.code, kind.__name__) for kind in kinds}
    names = {name for _, name in wanted}
    missing = [f"{name} ({code}) is not listed" for code, name in sorted(wanted - listed)]
    return missing + [
        f"{name} has not the code {code}"
        for code, name in sorted(listed - wanted)
        if code and name in names
    ]


def test_every_outcome_is_listed_with_its_code() -> None:
    kinds = list(outcome_types())
    assert broker.ReadDone in kinds
    assert outcomes.SequenceGap in kinds
    assert wrong_outcomes(ERRORS.read_text(encoding="utf-8"), kinds) == []


def error_rows() -> dict[str, tuple[str, str]]:
    found = {}
    for name, kind in inspect.getmembers(errors, inspect.isclass):
        if issubclass(kind, errors.SemelError) and kind is not errors.SemelError:
            code = kind.exit_code if issubclass(kind, errors.EngineError) else "none"
            found[name] = (kind.code, str(code))
    return found


def test_every_error_is_listed_with_its_code_and_exit_code() -> None:
    text = ERRORS.read_text(encoding="utf-8")
    listed = {code_of(r[0]): (code_of(r[1]), r[2]) for r in table_rows(text) if len(r) == 4}
    found = error_rows()
    assert {name: listed.get(name) for name in found} == found


def exit_codes_in(text: str) -> set[int]:
    _, _, section = text.partition("## Exit codes")
    section = section.partition("\n## ")[0]
    return {int(row[0]) for row in table_rows(section) if row[0].isdigit()}


@pytest.mark.parametrize("page", [CLI, ERRORS], ids=name_of)
def test_the_exit_codes_are_those_of_the_source(page: Path) -> None:
    kinds: list[type[errors.EngineError]] = [errors.EngineError]
    kinds.extend(errors.EngineError.__subclasses__())
    engine = {kind.exit_code for kind in kinds}
    commands_ = {value for name, value in vars(output).items() if name.startswith("EXIT_")}
    assert exit_codes_in(page.read_text(encoding="utf-8")) == {0, 130} | engine | commands_


UNITS = {
    "": 1,
    "bytes": 1,
    "KiB": 1024,
    "MiB": 1024**2,
    "GiB": 1024**3,
    "s": 1_000,
    "h": 3_600_000,
}


def value_of(cell: str) -> int | None:
    """Parse a printed limit: a number with a unit, or a power of two minus one."""
    if power := re.fullmatch(r"2\^(\d+) - 1", cell):
        return int(2 ** int(power[1])) - 1
    if number := re.fullmatch(r"([\d,]+)(?: (\w+))?", cell):
        unit = UNITS.get(number[2] or "")
        return None if unit is None else int(number[1].replace(",", "")) * unit
    return None


def printed_limits(text: str) -> dict[str, int | None]:
    return {
        code_of(row[0]): value_of(row[1])
        for row in table_rows(text)
        if len(row) == 4 and re.fullmatch(r"[A-Z_]+", code_of(row[0]))
    }


def test_the_page_of_limits_has_every_limit_as_it_is() -> None:
    units = {"KIB", "MIB", "GIB"}
    real = {k: v for k, v in vars(limits).items() if k.isupper() and k not in units}
    assert printed_limits(LIMITS.read_text(encoding="utf-8")) == real


def printed_http_limits(text: str) -> dict[str, int | None]:
    """Parse the table of HTTP limits by field name; times are in milliseconds."""
    section = text.partition("\n## HTTP\n")[2].partition("\n## ")[0]
    rows = [row for row in table_rows(section) if len(row) == 4 and row[0].startswith("`")]
    return {code_of(row[0]): value_of(row[1]) for row in rows}


def test_the_page_of_limits_has_every_limit_of_http_as_it_is() -> None:
    real = {
        name: value * 1000 if name.endswith("_seconds") else value
        for name, value in asdict(HttpLimits()).items()
    }
    assert printed_http_limits(LIMITS.read_text(encoding="utf-8")) == real


def printed_kinds(text: str) -> dict[str, tuple[int, list[str]]]:
    return {
        code_of(row[1]): (int(row[0]), fields_of(row[2]))
        for row in table_rows(text)
        if len(row) == 3 and row[0].isdigit() and code_of(row[1])
    }


def fields_of(cell: str) -> list[str]:
    return re.findall(r"\w+", code_of(cell))


def test_the_format_has_every_kind_of_frame_and_its_fields_in_order() -> None:
    real = {kind.__name__: (n, field_names(kind)) for kind, n in KINDS.items()}
    assert printed_kinds(FORMAT.read_text(encoding="utf-8")) == real


def field_names(kind: Any) -> list[str]:
    return list(kind.__struct_fields__)


def test_the_format_has_every_row_and_its_fields_in_order() -> None:
    text = FORMAT.read_text(encoding="utf-8")
    printed = {
        code_of(row[0]): fields_of(row[1])
        for row in table_rows(text)
        if len(row) == 2 and code_of(row[1]).startswith("[")
    }
    kinds: list[type] = [*rows.Row.__subclasses__(), rows.ProducerRow]
    kinds += [ProducerStamp, checkpoint.CheckpointPosition]
    kinds += [events.Ended, events.CommitStamp, events.SinkStamp, SnapshotRange]
    kinds += [TxnOutcome, TxnResult, rows.NamedPosition, Scope]
    kinds += [rows.NewStream, rows.NewPosition, Assigned]
    kinds += [StreamResult, PositionResult]
    real = {kind.__name__: field_names(kind) for kind in kinds}
    assert printed == real


def test_the_format_has_every_table_of_the_checkpoint() -> None:
    text = FORMAT.read_text(encoding="utf-8").partition("## The checkpoint")[2]
    printed = {code_of(row[0]) for row in table_rows(text) if len(row) == 3} - {""}
    assert printed == set(importlib.import_module("semel.journal.store").TABLES)


def example_bytes() -> bytes:
    """Return the journal of the worked example, written by the codec of the engine."""
    time_ms = 1_700_000_000_000
    mark = ProducerStamp("p", "dense", 0, None, 0, 0, digest_of(b"hello"), None)
    row = NewStream(1, "a", "i", "text/plain", time_ms)
    cases: list[tuple[frame.Record, tuple[Section, ...], int]] = [
        (SegmentStarted(4096), (), 0),
        (StreamCreated(row, 0, False), (), 0),
        (StreamAppended(1, stamp=mark), (Section(1, 0, 1, b"hello"),), 144),
    ]
    journal = b""
    previous_crc = 0
    for record, sections, watermark in cases:
        meta = frame.encode_meta(record)
        encoded = frame.encode(
            KINDS[type(record)],
            meta,
            sections,
            length=frame.frame_bytes(meta, sections),
            lsn=len(journal),
            watermark=watermark,
            time_ms=time_ms,
            previous_crc=previous_crc,
            seed=frame.checksum_seed(b"sixteen bytes id"),
        )
        journal += b"".join(encoded.buffers)
        previous_crc = encoded.crc
    return journal


def printed_bytes(text: str) -> bytes:
    found = re.search(r'bytes\.fromhex\("""(.*?)"""\)', text, flags=re.DOTALL)
    assert found is not None
    return bytes.fromhex(found[1])


def test_the_worked_example_is_what_the_codec_writes() -> None:
    assert printed_bytes(FORMAT.read_text(encoding="utf-8")) == example_bytes()


def test_the_header_in_the_format_is_the_header() -> None:
    text = FORMAT.read_text(encoding="utf-8").partition("## Frames")[2].partition("### Kinds")[0]
    sizes = [(int(r[0]), int(r[1])) for r in table_rows(text) if r[0].isdigit() and r[1].isdigit()]
    ends = [at + size for at, size in sizes]
    assert [at for at, _ in sizes] == [0, *ends[:-1]]
    assert ends[-1] == frame.HEADER_BYTES


# ---------------------------------------------------------------- the checkers can fail


def an_example(body: str, expected: str | None = None) -> Example:
    return Example(README, Fence("python", body, 1), expected)


def test_a_python_block_that_fails_or_prints_otherwise_is_noticed(tmp_path: Path) -> None:
    assert python_complaint(an_example("print('a')\n", "a\n"), tmp_path) is None
    assert "printed" in (python_complaint(an_example("print('b')\n", "a\n"), tmp_path) or "")
    assert "NameError" in (python_complaint(an_example("x\n"), tmp_path) or "")


def test_a_python_block_is_paired_with_its_output() -> None:
    page = "```python\nprint(1)\n```\n\n```output\n1\n```\n\n```python\nx\n```\n"
    found = list(examples(README, page))
    assert [one.expected for one in found] == ["1\n", None]


def test_a_python_block_with_a_name_is_there_for_those_after_it(tmp_path: Path) -> None:
    page = "```python\n# shop.py\nitem = 1\n```\n\n```python\nimport shop\n\nshop.item\n```\n"
    named, user = examples(README, page)
    assert python_complaint(named, tmp_path) is None
    assert "shop" in (python_complaint(an_example(user.fence.body), tmp_path) or "")
    assert python_complaint(user, tmp_path) is None


@pytest.mark.parametrize(
    "line",
    [
        "semel nothing",
        "semel doctor --data absent",
        "make nothing",
        "make sim NOTHING=5",
        ".venv/bin/python -m tests.nothing",
        ".venv/bin/python -m tests.sim --nothing 5",
        ".venv/bin/python -m pytest tests/nothing.py",
        "SEMEL_NOTHING=1 make test",
        "curl https://example.org",
    ],
)
def test_a_command_that_does_not_work_is_noticed(line: str, tmp_path: Path) -> None:
    assert command_complaint(line, tmp_path) is not None


def test_commands_are_found_in_both_kinds_of_shell_block() -> None:
    page = "```sh\nmake a\n\nmake b\n```\n```console\n$ make c\nmade\n```\n```text\nmake d\n```\n"
    assert list(commands(page)) == [(2, "make a"), (4, "make b"), (7, "make c")]


def test_a_fence_that_escapes_is_noticed() -> None:
    assert stray_fences("```python\n```\n```output\n```\n```text\n```\n") == []
    assert len(stray_fences("```py\nx\n```\n")) == 1
    assert len(stray_fences("```output\nx\n```\n")) == 1
    with pytest.raises(ValueError, match="line 2"):
        fences("a\n```python\nx\n")


def test_a_broken_link_is_noticed() -> None:
    page = "# The top\n[a](docs/adr/) [b](#the-top) [c](LICENSE) [d](https://example.org)\n"
    assert broken_links(README, page) == []
    for bad in ("[a](docs/nothing.md)", "[a](#nothing)", "[a](CHANGELOG.md#nothing)"):
        assert len(broken_links(README, page + bad)) == 1


def test_a_stale_citation_is_noticed() -> None:
    assert stale_citations("`tests/sim` `test_a` `make test`", {"test_a"}) == []
    assert len(stale_citations("`tests/nothing.py` `test_b`", {"test_a"})) == 2


def test_a_missing_or_wrong_code_is_noticed() -> None:
    row = "| `stream_gone` | `Gone` | gone | go |\n"
    assert wrong_outcomes(row, [outcomes.Gone]) == []
    assert wrong_outcomes("", [outcomes.Gone]) != []
    assert wrong_outcomes(row.replace("stream_gone", "gone"), [outcomes.Gone]) != []
    assert wrong_outcomes(row + row.replace("stream_gone", "x"), [outcomes.Gone]) != []


def test_limits_are_read_with_their_units() -> None:
    texts = ["4 MiB", "64 GiB", "10,000", "24 h", "2^53 - 1", "120 s", "1 KiB", "255 bytes"]
    values = [4 * 1024**2, 64 * 1024**3, 10_000, 86_400_000, 2**53 - 1, 120_000, 1024, 255]
    assert [value_of(text) for text in texts] == values
    assert value_of("many") is None
    assert value_of("5 apples") is None
    assert printed_limits("| `A_MAX` | 5 | of a | b |\n| `b` | 6 | c | d |\n") == {"A_MAX": 5}


def test_kinds_and_exit_codes_are_read_from_tables() -> None:
    assert printed_kinds("| 7 | `New` | `[a, b]` |\n") == {"New": (7, ["a", "b"])}
    assert exit_codes_in("| 1 | a |\n## Exit codes\n| 2 | b |\n## Next\n| 3 | c |\n") == {2}


def test_every_code_the_server_makes_itself_is_listed() -> None:
    made = re.compile(r'(?:bad_request|Refused|Problem)\((?:\d+, )?"([a-z_]+)"')
    sources = [*ROOT.glob("src/semel/wire/*.py"), *ROOT.glob("src/semel/server/*.py")]
    codes = {code for source in sources for code in made.findall(source.read_text())}
    listed = (ROOT / "docs/reference/errors.md").read_text()
    assert len(codes) > 15
    assert {code for code in codes if f"`{code}`" not in listed} == set()


def test_the_tutorial_begins_with_the_quickstart_that_the_demo_runs() -> None:
    quickstart = (ROOT / "examples/quickstart.py").read_text(encoding="utf-8")
    first = next(examples(PIPELINES, PIPELINES.read_text(encoding="utf-8")))
    assert first.fence.body == quickstart
    assert "examples/quickstart.py" in (ROOT / "Makefile").read_text(encoding="utf-8")


README_LINES_MAX = 175


def test_the_readme_is_short_and_begins_with_a_producer() -> None:
    text = README.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= README_LINES_MAX
    first = next(examples(README, text))
    assert ".producer(" in first.fence.body
    assert first.expected is not None


@pytest.mark.parametrize("name", ["README.md", "docs/reference/http.md"])
def test_a_read_with_curl_says_which_messages_it_returns(name: str) -> None:
    """Without isolation=read_committed, a read by HTTP returns aborted messages, too."""
    reads = re.findall(r"curl .*offset=.*", (ROOT / name).read_text())
    assert reads
    assert all("isolation=read_committed" in line for line in reads)
