"""Checks that every promise of the seeds is shown from outside: `python -m tests.rows`.

The rows are in docs/reference/seeds.md. Each names the test that shows it with a real process, and
a comment above the test names the row:

    # rows: D08, U07
    def test_a_gap_is_refused_and_names_what_is_missing() -> None:

The table of rows, tests and seeded bugs is printed. The exit code is 1 if a row that is kept names
no test from outside, if a test and a row do not name each other, or if a row has a note of another
kind. With `--mutants`, the seeded bugs are injected, and the tests must find them: see
`tests/row_mutants`.
"""

import ast
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from tests.outside import is_outside
from tests.row_mutants.registry import MUTANTS, name_of
from tests.row_mutants.runner import run_mutants

ROOT: Final = Path(__file__).resolve().parents[1]
PAGE: Final = ROOT / "docs/reference/seeds.md"

MARK: Final = "# rows:"
REPLACED: Final = "replaced: "
LATER: Final = "planned: "


class Row(NamedTuple):
    """A row of the page; `note` says how the promise is replaced or planned, or is empty."""

    id: str
    words: str
    note: str = ""
    tests: tuple[str, ...] = ()


class Named(NamedTuple):
    """A test and one row that the test names."""

    row: str
    test: str


class Found(NamedTuple):
    """The rows that tests name, and the row comments that are above no test."""

    named: list[Named]
    strays: list[str]


# ---- the page and the tests ----------------------------------------------------------------------


def rows_of(page: str) -> list[Row]:
    """Return the rows of all tables of the page."""
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in page.splitlines()
        if re.match(r"\| [A-Z]\d\d \|", line)
    ]
    return [
        Row(id, words, note, tuple(re.findall(r"`([^`]+)`", tests)))
        for id, words, note, tests in cells
    ]


def named_in(source: str, name: str) -> Found:
    """Return the rows that the tests of one file name."""
    left = row_lines(source)
    named = []
    for test in tests_of(source):
        line = min([test.lineno, *[one.lineno for one in test.decorator_list]]) - 1
        while line in left:
            named += [Named(row, f"{name}::{test.name}") for row in left.pop(line)]
            line -= 1
    return Found(named, [f"{name}:{line} names rows above no test" for line in sorted(left)])


def row_lines(source: str) -> dict[int, list[str]]:
    """Return the rows that comments name, by line number."""
    return {
        token.start[0]: [row.strip() for row in token.string.removeprefix(MARK).split(",")]
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT and token.string.startswith(MARK)
    }


def tests_of(source: str) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if node.name.startswith("test_"):
            yield node


def named_below(folder: Path) -> Found:
    """Return the rows that all tests below a folder name."""
    named, strays = [], []
    for path in sorted(folder.rglob("test_*.py")):
        found = named_in(path.read_text(encoding="utf-8"), path.relative_to(ROOT).as_posix())
        named += found.named
        strays += found.strays
    return Found(named, strays)


# ---- complaints ----------------------------------------------------------------------------------


def complaints(rows: list[Row], found: Found) -> Iterator[str]:
    """Yield a message for each row that is missing, unknown, contradictory or not shown."""
    yield from found.strays
    known = Counter(row.id for row in rows)
    yield from (f"{row} occurs twice" for row, count in known.items() if count > 1)
    for one in found.named:
        if one.row not in known:
            yield f"{one.test} names the unknown row {one.row!r}"
    named = set(found.named)
    for row in rows:
        yield from _complaints_of(row, named)


def _complaints_of(row: Row, named: set[Named]) -> Iterator[str]:
    for test in row.tests:
        if Named(row.id, test) not in named:
            yield f"{row.id} names {test}, which does not exist or does not name {row.id}"
        elif not is_outside(test):
            yield f"{row.id} names {test}, which uses no real process"
    yield from _complaints_of_note(row, is_named=row.id in {one.row for one in named})


def _complaints_of_note(row: Row, *, is_named: bool) -> Iterator[str]:
    if row.id in MUTANTS and not row.tests:
        yield f"{row.id} has a seeded bug and no test that could find it"
    if not row.note:
        if not row.tests:
            yield f"{row.id} names neither a test from outside nor a replacement"
    elif row.note.startswith(LATER):
        if is_named:
            yield f"{row.id} is planned and has a test: drop the note"
    elif not row.note.startswith(REPLACED):
        yield f"{row.id} has a note that is neither {REPLACED!r} nor {LATER!r}"


# ---- printing ------------------------------------------------------------------------------------


def table(rows: list[Row], found: Found) -> Iterator[str]:
    """Yield lines: every row with its words, note, tests and seeded bugs."""
    tests: dict[str, list[str]] = {}
    for one in found.named:
        tests.setdefault(one.row, []).append(one.test)
    for row in rows:
        yield f"{row.id}  {row.words}"
        if row.note:
            yield f"     {row.note}"
        if not (row.note or row.tests):
            yield "     NO TEST"
        yield from (f"     outside: {test}" for test in row.tests)
        yield from (f"     also: {test}" for test in tests.get(row.id, []) if test not in row.tests)
        yield from (f"     mutant: {name_of(mutant)}" for mutant in MUTANTS.get(row.id, ()))


def summary(rows: list[Row], found: Found) -> str:
    """Return a line with the number of rows, tests and seeded bugs."""
    replaced = sum(row.note.startswith(REPLACED) for row in rows)
    later = sum(row.note.startswith(LATER) for row in rows)
    outside = len({test for row in rows for test in row.tests})
    return (
        f"{len(rows)} rows: {len(rows) - replaced - later} kept, {replaced} replaced, {later}"
        f" planned; shown by {outside} tests from outside and"
        f" {len({one.test for one in found.named}) - outside} others; {len(MUTANTS)} rows have"
        f" {sum(map(len, MUTANTS.values()))} seeded bugs"
    )


def main(arguments: list[str]) -> int:
    """Print the table, or run the seeded bugs; return 1 if there are complaints."""
    rows, found = rows_of(PAGE.read_text(encoding="utf-8")), named_below(ROOT / "tests")
    if arguments[:1] == ["--mutants"]:
        wanted = arguments[1:] or list(MUTANTS)
        wrong = run_mutants({row.id: row.tests for row in rows if row.id in wanted})
    else:
        print(*table(rows, found), summary(rows, found), sep="\n")
        wrong = list(complaints(rows, found))
    print(*wrong, sep="\n", end="\n" if wrong else "", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
