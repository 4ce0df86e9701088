"""Lists which tests show which promise of the seeds: `python -m tests.rows`.

The rows are in docs/reference/seeds.md. A comment above a test names the rows that the test shows:

    # rows: D08, U07
    def test_a_gap_is_refused_and_names_what_is_missing() -> None:

The table of rows and tests is printed. The exit code is 1 if a row has no test, no replacement and
no plan, or if a test names an unknown row.
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

ROOT: Final = Path(__file__).resolve().parents[1]
PAGE: Final = ROOT / "docs/reference/seeds.md"

# Seeds that are not implemented yet, with their number of rows. A seed is removed when its table is
# added to the page.
PLANNED: Final[dict[str, int]] = {}

MARK: Final = "# rows:"
REPLACED: Final = "replaced: "
LATER: Final = "planned: "


class Row(NamedTuple):
    """A row of the page; `note` says how the promise is replaced or planned, or is empty."""

    id: str
    promise: str
    note: str


class Named(NamedTuple):
    """A test and one row that the test names."""

    row: str
    test: str


class Found(NamedTuple):
    """The rows that tests name, and the row comments that are above no test."""

    named: list[Named]
    strays: list[str]


def rows_of(page: str) -> list[Row]:
    """Return the rows of all tables of the page."""
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in page.splitlines()
        if re.match(r"\| [A-Z]\d\d \|", line)
    ]
    return [Row(*row) for row in cells]


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


def planned_ids() -> list[str]:
    return [f"{seed}{n:02d}" for seed, count in PLANNED.items() for n in range(1, count + 1)]


def complaints(rows: list[Row], found: Found) -> Iterator[str]:
    """Yield a message for each row that is missing, unknown or contradictory."""
    yield from found.strays
    known = Counter([*[row.id for row in rows], *planned_ids()])
    yield from (f"{row} stands twice" for row, count in known.items() if count > 1)
    for one in found.named:
        if one.row not in known:
            yield f"{one.test} names the unknown row {one.row!r}"
    named = {one.row for one in found.named}
    for row in rows:
        complaint = complaint_of(row, row.id in named)
        if complaint is not None:
            yield complaint


def complaint_of(row: Row, is_named: bool) -> str | None:
    if not row.note:
        return None if is_named else f"{row.id} has neither a test nor a replacement"
    if row.note.startswith(REPLACED):
        return None  # a test may show the behaviour that replaces the promise
    if not row.note.startswith(LATER):
        return f"{row.id} has a note that is neither {REPLACED!r} nor {LATER!r}"
    return f"{row.id} is planned and has a test: drop the note" if is_named else None


def table(rows: list[Row], found: Found) -> Iterator[str]:
    """Yield lines: every row with its tests, replacement or plan."""
    tests: dict[str, list[str]] = {}
    for one in found.named:
        tests.setdefault(one.row, []).append(one.test)
    for row in rows:
        yield f"{row.id}  {row.promise}"
        shown = [*([row.note] if row.note else []), *tests.get(row.id, [])]
        yield from (f"     {line}" for line in shown or ["NO TEST"])
    for seed, count in PLANNED.items():
        done = sum(row.startswith(seed) for row in tests)
        yield f"{seed}01-{seed}{count}  planned, not counted; {done} of them named by a test"


def summary(rows: list[Row], found: Found) -> str:
    """Return a line with the number of rows and tests."""
    named = {one.row for one in found.named}
    tested = sum(row.id in named for row in rows)
    replaced = sum(row.note.startswith(REPLACED) for row in rows)
    later = sum(row.note.startswith(LATER) for row in rows)
    tests = len({one.test for one in found.named})
    return (
        f"{len(rows)} rows: {tested} shown by {tests} tests, {replaced} replaced,"
        f" {later} planned; {len(planned_ids())} more of seeds not built yet"
    )


def main() -> int:
    """Print the table; return 1 if there are complaints."""
    rows, found = rows_of(PAGE.read_text(encoding="utf-8")), named_below(ROOT / "tests")
    print(*table(rows, found), summary(rows, found), sep="\n")
    wrong = list(complaints(rows, found))
    print(*wrong, sep="\n", end="\n" if wrong else "", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
