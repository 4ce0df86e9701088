"""Checks docs/reference/spark.md against the source: options, columns, errors, limits."""

import re
from pathlib import Path

import pytest

from semel.model import limits
from semel.spark import options
from semel.spark.source import columns
from tests.docs.test_docs import code_of, table_rows

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/reference/spark.md").read_text(encoding="utf-8")
SOURCES = "\n".join(
    path.read_text(encoding="utf-8") for path in sorted((ROOT / "src/semel").rglob("*.py"))
)
SPARKS_OWN = {"checkpointLocation must be specified", "does not support Update mode"}


def section(title: str) -> str:
    _, found, rest = PAGE.partition(f"\n## {title}\n")
    assert found, title
    return rest.partition("\n## ")[0]


def first_cells(text: str) -> list[str]:
    return [code_of(row[0]) for row in table_rows(text) if code_of(row[0])]


@pytest.mark.parametrize(
    ("title", "known"),
    [("Options of a read", options._SOURCE), ("Options of a write", options._SINK)],
)
def test_every_option_stands_in_the_page_and_no_other(title: str, known: tuple[str, ...]) -> None:
    assert sorted(first_cells(section(title))) == sorted(known)


def test_every_column_stands_in_the_page_with_its_type() -> None:
    rows = table_rows(section("Columns of a read"))
    shown = {code_of(row[0]): row[1] for row in rows if code_of(row[0])}
    kinds = {**dict(columns._PLAIN), **columns._FILLED}
    names = {"bigint": "long"}
    real = {
        name: names.get(kind.simpleString(), kind.simpleString()) for name, kind in kinds.items()
    }
    assert shown == {**real, "headers": "`array<struct<key string, value binary>>`"}


def phrases(cell: str) -> list[str]:
    """Return the fixed parts of the text of an error."""
    return [part.strip(" ,.:") for part in re.split(r"\.\.\.|\d+", cell) if part.strip(" ,.:")]


def test_every_error_of_the_page_is_said_by_the_source() -> None:
    messages = re.sub(r'"\s*\n\s*f?"|\{[^}]*\}', " ", SOURCES)  # join split literals, drop fields
    messages = re.sub(r"\s+", " ", messages)
    shown = [cell for cell in first_cells(section("Errors")) if cell not in SPARKS_OWN]
    assert len(shown) > 15
    missing = [part for cell in shown for part in phrases(cell) if part not in messages]
    assert missing == []


def test_the_limits_of_the_page_are_those_of_the_source() -> None:
    units = {"KiB": 1024, "MiB": 1024**2}
    found = re.findall(r"\| ([\d,]+)(?: (\w+))? \(`([A-Z_]+)`\)", section("Limits"))
    shown = {
        name: int(number.replace(",", "")) * units.get(unit, 1) for number, unit, name in found
    }
    assert shown == {name: getattr(limits, name) for name in shown}
    assert len(shown) == 4
